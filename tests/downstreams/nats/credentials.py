"""Prints what a NATS server and its clients need to know each other by nkeys and by JWTs, made by hand as the formats are written
down (github.com/nats-io/nkeys, /jwt): one JSON object."""

import base64
import json
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

SEED, OPERATOR, ACCOUNT, USER = 18 << 3, 14 << 3, 0, 20 << 3


def crc16(data):
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc.to_bytes(2, "little")


def base32(data):
    return base64.b32encode(data + crc16(data)).decode().rstrip("=")


def base64url(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Key:
    def __init__(self, kind):
        self.private = Ed25519PrivateKey.generate()
        raw = self.private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        self.seed = base32(bytes([SEED | kind >> 5, (kind & 31) << 3]) + raw)
        public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = base32(bytes([kind]) + public)

    def jwt(self, subject, name, nats):
        claims = {"jti": name, "iat": int(time.time()), "iss": self.public, "name": name, "sub": subject.public}
        claims["nats"] = nats | {"version": 2}
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        signed = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{base64url(self.private.sign(signed.encode()))}"


def creds(jwt, user):
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )


operator, account, system, user, stranger = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT), Key(USER), Key(USER)
limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
user_claims = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
print(json.dumps({
    "public": user.public,
    "seed": user.seed,
    "stranger": stranger.seed,
    "operator": operator.jwt(operator, "operator", {"type": "operator"}),
    "account": account.public,
    "account_jwt": operator.jwt(account, "shop", {"type": "account", "limits": limits | storage}),
    "system": system.public,
    "system_jwt": operator.jwt(system, "system", {"type": "account", "limits": limits}),
    "creds": creds(account.jwt(user, "worker", user_claims), user),
    # Signed by an account that the server does not know.
    "foreign_creds": creds(Key(ACCOUNT).jwt(user, "worker", user_claims), user),
}))
