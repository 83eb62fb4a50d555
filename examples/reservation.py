"""Deduct stock if there is enough, record the reservation, answer: once, however often a client asks.

    DATABASE_URL=sqlite:shop.db python examples/reservation.py 8080
    DATABASE_URL=postgres://localhost/shop python examples/reservation.py 8080      (needs: pip install 'psycopg[binary]')

    curl -i localhost:8080/reservations -H 'Authorization: Bearer demo' -H 'Idempotency-Key: "8e03978e"' \\
         -H 'Content-Type: application/json' -d '{"item":"ticket","quantity":1}'

The key, the stock, the reservation and the answer are one transaction: a crash frees the key, a COMMIT keeps the answer, and
a client that never got it asks again with the same key. docs/guard.md says why. (`aftercommit migrate` made aftercommit's tables. Put
something in stock first: INSERT INTO stock VALUES ('ticket', 10). The effect is for a downstream `mail` of your configuration.)
"""

import hashlib
import json
import os
import re
import sqlite3
import sys
import time
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

TENANTS = {"Bearer demo": "tenant-1", "Bearer demo-2": "tenant-2"}  # Keys of different callers never meet.
TABLES = (
    "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, available bigint NOT NULL CHECK (available >= 0))",
    "CREATE TABLE IF NOT EXISTS reservations (id text PRIMARY KEY, item text NOT NULL, quantity bigint NOT NULL)",
)


class Answer(NamedTuple):
    status: int
    headers: bytes  # The lines as they are sent: a map would lose order, repetition and bytes that are not UTF-8.
    body: bytes


class Postgres:
    """The functions; one transaction is one connection here, and would be one of a pool elsewhere."""

    mark, effects = "%s", "aftercommit.effects"

    def __init__(self, url):
        import psycopg

        self.connect, self.unavailable = lambda: psycopg.connect(url), psycopg.OperationalError

    @contextmanager
    def transaction(self):
        with self.connect() as tx:  # commits at the end, rolls back on an exception
            yield tx

    def begin_request(self, tx, scope, key, fingerprint):
        begin = "SELECT * FROM aftercommit.begin_request(%s, %s, %s::text)"
        status, *answer = tx.execute(begin, (scope, key, fingerprint)).fetchone()
        return status, Answer(*answer)

    def finish_request(self, tx, scope, key, answer):
        tx.execute("SELECT aftercommit.finish_request(%s, %s, %s, %s, %s)", (scope, key, *answer))


class Sqlite:
    """The statements. There is one writer: whoever has begun sees every answer there is."""

    mark, effects = "?", "aftercommit_effects"
    LOOK = """
        SELECT id, fingerprint, response_status, response_headers, response_body,
               expires_at <= :now
               AND EXISTS (SELECT 1 FROM aftercommit_retention WHERE step = 'keys' AND looked_at >= :now - 86400000000)
               AND NOT EXISTS (
                   SELECT 1 FROM aftercommit_effects AS e WHERE e.request_id = r.id
                   AND NOT EXISTS (SELECT 1 FROM aftercommit_outcomes AS o WHERE o.effect_id = e.id)) AS forgotten
        FROM aftercommit_requests AS r WHERE scope = :scope AND key = :key"""
    FORGET = "DELETE FROM aftercommit_requests WHERE id = :id"
    BEGIN = """
        INSERT INTO aftercommit_requests (scope, key, fingerprint, created_at, expires_at)
        VALUES (:scope, :key, :fingerprint, :now, :now + coalesce(
            (SELECT CAST(value AS INTEGER) FROM aftercommit_meta WHERE key = 'requests_kept_us'), 86400000000))"""
    FINISH = """
        UPDATE aftercommit_requests
        SET response_status = :status, response_headers = :headers, response_body = :body, unanswered = NULL
        WHERE scope = :scope AND key = :key AND unanswered IS NOT NULL"""

    def __init__(self, url):
        self.file, self.unavailable = url.removeprefix("sqlite:"), sqlite3.OperationalError

    @contextmanager
    def transaction(self):
        connection = sqlite3.connect(self.file, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA foreign_keys = ON")  # They refuse a COMMIT without the answer.
            if sqlite3.sqlite_version_info < (3, 51, 3):
                connection.execute("PRAGMA wal_autocheckpoint = 0")  # Checkpoints are left to the worker.
            connection.execute("BEGIN IMMEDIATE")  # Waits here for another request's COMMIT.
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()  # Rolls back what is not committed.

    def begin_request(self, tx, scope, key, fingerprint):
        words = {"scope": scope, "key": key, "fingerprint": fingerprint, "now": time.time_ns() // 1000}
        row = tx.execute(self.LOOK, words).fetchone()
        if row:
            id, stored, *answer, forgotten = row
            if not forgotten:
                return ("replay" if stored == fingerprint else "mismatch"), Answer(*answer)
            tx.execute(self.FORGET, {"id": id})
        tx.execute(self.BEGIN, words)
        return "new", None

    def finish_request(self, tx, scope, key, answer):
        finished = tx.execute(self.FINISH, {"scope": scope, "key": key, **answer._asdict()})
        assert finished.rowcount == 1, "this transaction has not begun this request"


def guarded(database, scope, key, fingerprint, business):
    """The answer to a request, and whether it is a replay. `business(tx)` runs in the transaction that stores its answer."""
    with database.transaction() as tx:
        status, answer = database.begin_request(tx, scope, key, fingerprint)
        if status == "replay":
            return answer, True
        if status == "in_progress":
            return problem(409, "in progress", "The first request with this key is still running.", retry_after=1), False
        if status == "mismatch":
            return problem(422, "key reused", "This key was used with another request."), False
        tx.execute("SAVEPOINT business")
        answer = business(tx)
        if answer.status >= 400:  # The refusal is remembered, and what the business wrote is not.
            tx.execute("ROLLBACK TO SAVEPOINT business")
        database.finish_request(tx, scope, key, answer)
    return answer, False


def derive_key(scope, request_key, name):
    """The key that an effect of this request has, whenever the request runs: the same as aftercommit.derive_key in SQL."""
    parts = [part.encode() for part in (scope, request_key, name)]
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
    number = int.from_bytes(digest[:16], "big") & ~(0xF << 76 | 0x3 << 62) | 8 << 76 | 2 << 62
    return str(uuid.UUID(int=number))


def reserve(database, tx, scope, key, item, quantity):
    """The business: knows nothing of repeats, but that its own id and its effect's key are derived from the request's."""
    mark = database.mark
    reservation = derive_key(scope, key, "reservation")
    made = tx.execute(f"SELECT item, quantity FROM reservations WHERE id = {mark}", (reservation,)).fetchone()
    if made and tuple(made) != (item, quantity):
        return problem(422, "key reused", "This key was used with another request, long ago.")
    if not made:  # If there is one, this request was answered so long ago that its answer is forgotten.
        deduct = f"UPDATE stock SET available = available - {mark} WHERE item = {mark} AND available >= {mark}"
        if tx.execute(deduct, (quantity, item, quantity)).rowcount == 0:
            return problem(410, "sold out", f"There are not {quantity} of {item} left.")
        insert = f"INSERT INTO reservations (id, item, quantity) VALUES ({mark}, {mark}, {mark})"
        tx.execute(insert, (reservation, item, quantity))
        effect = f"INSERT INTO {database.effects} (downstream, idempotency_key, payload) VALUES ({mark}, {mark}, {mark})"
        tx.execute(effect, ("mail", derive_key(scope, key, "mail/"), json.dumps({"reservation": reservation})))
    body = json.dumps({"reservation": reservation, "item": item, "quantity": quantity}).encode()
    lines = f"Content-Type: application/json\r\nLocation: /reservations/{reservation}\r\n"
    return Answer(201, lines.encode(), body)


def problem(status, title, detail, retry_after=None):
    body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()
    lines = "Content-Type: application/problem+json\r\n" + (f"Retry-After: {retry_after}\r\n" if retry_after else "")
    return Answer(status, lines.encode(), body)


def request_key(value):
    """The key of a header `Idempotency-Key`: "quoted", as the draft has it, or bare, as most clients send it."""
    quoted = re.fullmatch(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', value or "")
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value or ""
    legal = re.fullmatch(r"[!-~](?:[ -~]{0,253}[!-~])?" if quoted else r"[!#-+\--~]{1,255}", key)
    return key if legal else None


def judge(database, path, headers, body):
    """The answer to POST `path`, and whether it is a replay."""
    scope, key = TENANTS.get(headers.get("Authorization")), request_key(headers.get("Idempotency-Key"))
    if path != "/reservations":
        return problem(404, "not found", "POST /reservations"), False
    if scope is None:
        return problem(401, "who are you?", "Send Authorization: Bearer demo."), False
    if key is None:
        return problem(400, "no key", 'Send Idempotency-Key: "…", 1 to 255 printable ASCII characters.'), False
    try:
        order = json.loads(body)
        item, quantity = order["item"], order["quantity"]
        if type(item) is not str or "\0" in item or type(quantity) is not int or quantity >= 1 << 63:
            raise TypeError("not an item and a whole number")
    except (ValueError, TypeError, KeyError):
        return problem(400, "not an order", 'Send {"item": "ticket", "quantity": 1}.'), False
    if quantity < 1:
        return problem(400, "not an order", "A quantity is at least 1."), False
    fingerprint = hashlib.sha256(b"POST\n" + path.encode() + b"\n" + body).hexdigest()
    try:
        business = lambda tx: reserve(database, tx, scope, key, item, quantity)
        return guarded(database, scope, key, fingerprint, business)
    except database.unavailable as error:
        print(error, file=sys.stderr)
        return problem(503, "database unavailable", "Nothing is lost: ask again with the same key.", retry_after=1), False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer, replayed = judge(self.server.database, self.path, self.headers, body)
        self.send_response(answer.status)
        for line in answer.headers.decode("latin-1").splitlines():
            self.send_header(*line.split(": ", 1))
        if replayed:
            self.send_header("Idempotent-Replayed", "true")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128


if __name__ == "__main__":
    url = os.environ["DATABASE_URL"]
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    server.database = Sqlite(url) if url.startswith("sqlite:") else Postgres(url)
    with server.database.transaction() as tx:
        for table in TABLES:
            tx.execute(table)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
