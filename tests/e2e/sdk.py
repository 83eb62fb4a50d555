"""Places orders through somebody else's SDK, which makes the keys and retries on its own.

python sdk.py stripe|svix BASE_URL N    prints a line of JSON for each order: the key, the first answer, the answer to a repeat
"""

import json
import sys

sdk, base, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def order(n):
    return {"item": f"tea {n}", "amount": 100 + n, "currency": "jpy"}


def answer(status, headers, body):
    headers = {name.lower(): value for name, value in headers.items()}
    return {
        "status": status,
        "location": headers.get("location", ""),
        "body": body,
        "replayed": headers.get("idempotent-replayed"),
    }


def stripe_orders():
    import stripe

    class Recording(stripe.RequestsClient):
        def request(self, method, url, headers, *rest, **more):
            self.key = headers["Idempotency-Key"]
            return super().request(method, url, headers, *rest, **more)

    http = Recording()
    client = stripe.StripeClient(
        "sk_test_demo", base_addresses={"api": base}, max_network_retries=10, http_client=http
    )

    def place(n, **options):
        response = client.raw_request("post", "/orders", **order(n), **options)
        return http.key, answer(response.code, response.headers, response.body)

    for n in range(count):
        key, first = place(n)
        yield key, first, place(n, idempotency_key=key)[1]


def svix_orders():
    import httpx
    from svix.api import Svix, SvixOptions

    options = SvixOptions(server_url=base, retry_schedule=[0.05] * 5)  # It takes no more than five.
    client = Svix("token", options).message  # Any of its parts: all send alike.

    def place(n, **headers):
        try:
            response = client._request_sync("post", "/orders", json_body=json.dumps(order(n)), header_params=headers)
        except httpx.RequestError as lost:
            # Six answers lost in a row: it has given up, and its caller has not.
            return place(n, **{"idempotency-key": lost.request.headers["idempotency-key"]})
        key = response.request.headers["idempotency-key"]
        return key, answer(response.status_code, response.headers, response.text)

    for n in range(count):
        key, first = place(n)
        yield key, first, place(n, **{"idempotency-key": key})[1]


orders = {"stripe": stripe_orders, "svix": svix_orders}
for key, first, again in orders[sdk]():
    print(json.dumps({"key": key, "first": first, "again": again}), flush=True)
