"""Verifies what a webhook receiver got, by other people's libraries. A line of JSON in, a line out.

in:  {"headers": {...}, "body": BASE64, "secret": "whsec_...", "public": "whpk_..." or null, "event": true or false}
out: what each library says: {"standardwebhooks": true, "svix": true, "ed25519": true or null, "event": {...} or null}
"""

import base64
import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import Webhook as Standard
from svix.webhooks import Webhook as Svix


def verifies(library, secret, body, headers):
    try:
        library(secret).verify(body, headers)
        return True
    except UnicodeDecodeError:
        return None  # It reads text alone.
    except json.JSONDecodeError:
        return True  # The signature was checked before; not every body is JSON.
    except Exception as problem:
        if type(problem).__name__ == "WebhookVerificationError":
            return False
        raise


def ed25519(public, body, headers):
    if public is None:
        return None
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    for signature in headers["webhook-signature"].split(" "):
        if signature.startswith("v1a,"):
            try:
                key.verify(base64.b64decode(signature.removeprefix("v1a,")), signed)
                return True
            except InvalidSignature:
                return False
    return False


def event(headers, body):
    found = from_http_event(HTTPMessage(headers=headers, body=body))
    attributes = {name: str(value) for name, value in found.get_attributes().items()}
    data = found.get_data()
    if isinstance(data, (bytes, bytearray)):
        data = {"base64": base64.b64encode(data).decode()}
    return {"attributes": attributes, "data": data}


for line in sys.stdin:
    asked = json.loads(line)
    headers, body = asked["headers"], base64.b64decode(asked["body"])
    secret = asked.get("secret")
    print(
        json.dumps(
            {
                "standardwebhooks": secret and verifies(Standard, secret, body, headers),
                "svix": secret and verifies(Svix, secret, body, headers),
                "ed25519": ed25519(asked.get("public"), body, headers),
                "event": event(headers, body) if asked.get("event") else None,
            }
        ),
        flush=True,
    )
