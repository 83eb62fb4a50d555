"""POST with one Idempotency-Key for one intent: the same key with every try, full-jitter backoff, until there is an answer."""

import email.utils, http.client, json, random, sys, time, urllib.error, urllib.request, uuid


def asked(wish):
    """Seconds that the server asks for: a number, or an HTTP date."""
    try:
        return float(wish) if wish.isdigit() else max(0.0, email.utils.parsedate_to_datetime(wish).timestamp() - time.time())
    except ValueError:
        return 0.0


def post(url, body, key=None, headers={}, deadline=120.0, first=0.2, longest=20.0):
    """(status, headers, body). Give a key that outlives this process (an order's number; no spaces, quotes, commas) where a crash must not act twice."""
    key, end, tries = str(uuid.uuid4()) if key is None else key, time.monotonic() + deadline, 0
    while True:
        request, wish, lost = urllib.request.Request(url, body, {**headers, "Idempotency-Key": key}), "", None
        try:
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status, answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                last, wish = (error.code, error.headers, error.read()), error.headers.get("Retry-After", "")
                again = error.code >= 500 or error.code in (408, 425, 429)
                in_progress = error.code == 409 and wish  # Any other 409 is the application's own answer.
                if "Idempotent-Replayed" in error.headers or not (again or in_progress):
                    return last  # 422: the key is another request's. Another try would say the same.
        except (OSError, http.client.HTTPException) as error:
            lost = error  # What the request did is not known: the same key finds out.
        pause = max(asked(wish), random.uniform(0, min(longest, first * 2 ** min(tries, 30))))
        if time.monotonic() + pause > end:
            if lost:
                raise lost
            return last
        tries += 1
        time.sleep(pause)


if __name__ == "__main__":
    url, order = sys.argv[1:3]
    body = json.dumps({"order": order, "amount": 1500}).encode()
    status, _, text = post(url, body, f"order-{order}", {"Content-Type": "application/json"})
    print(status, text.decode())
