"""A receiver of webhooks (Standard Webhooks) that acts once on each, and reads none that its sender did not sign.

    DATABASE_URL=sqlite:shop.db WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py 8081
    DATABASE_URL=postgres://localhost/shop WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py 8081

(needs: pip install standardwebhooks 'psycopg[binary]')

The signature covers id, time stamp and the bytes of the body: it is verified over what came off the wire, before anything
parses it. Then the inbox remembers the id in the transaction that acts. A sender that got no 2xx sends again: the second time
is answered like the first, and changes nothing. (`aftercommit migrate` made the tables.)
"""

import json
import os
import sqlite3
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

BODY_MAX = 1 << 20
PAYMENTS = "CREATE TABLE IF NOT EXISTS received_payments (id text NOT NULL, amount bigint NOT NULL)"


class Postgres:
    mark, accept = "%s", "SELECT aftercommit.inbox_accept('payment webhooks', %s)"

    def __init__(self, url):
        import psycopg

        self.transaction, self.unavailable = lambda: psycopg.connect(url), psycopg.OperationalError

    def accepted(self, tx, key):
        return tx.execute(self.accept, (key,)).fetchone()[0]


class Sqlite:
    mark = "?"
    accept = (
        "INSERT INTO aftercommit_inbox (consumer, key) VALUES ('payment webhooks', ?)"
        " ON CONFLICT (consumer, key) DO NOTHING"
    )

    def __init__(self, url):
        self.file, self.unavailable = url.removeprefix("sqlite:"), sqlite3.OperationalError

    @contextmanager
    def transaction(self):
        connection = sqlite3.connect(self.file, timeout=30, isolation_level=None)
        try:
            if sqlite3.sqlite_version_info < (3, 51, 3):
                connection.execute("PRAGMA wal_autocheckpoint = 0")  # Checkpoints are left to the worker.
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()  # Rolls back what is not committed.

    def accepted(self, tx, key):
        return tx.execute(self.accept, (key,)).rowcount == 1


def receive(database, webhook, headers, body):
    """The status of the answer; anything but 2xx makes the sender send again, or give up."""
    try:
        # Over the bytes; refuses time stamps that are more than five minutes off. What it parses then is signed.
        webhook.verify(body, headers)
    except (WebhookVerificationError, ValueError) as error:  # ValueError: a header that is no signature at all.
        print(f"refused: {error}", file=sys.stderr)
        return 401
    try:
        event = json.loads(body)
        payment = (event["data"]["id"], event["data"]["amount"]) if event["type"] == "payment.received" else None
    except (ValueError, TypeError, KeyError) as error:
        print(f"signed, and not readable: {error}", file=sys.stderr)
        return 400
    try:
        with database.transaction() as tx:
            if database.accepted(tx, headers["webhook-id"]):
                act(database, tx, payment)
    except database.unavailable as error:
        print(error, file=sys.stderr)
        return 503
    return 200  # Also for one that was received before: the sender has not heard of it.


def act(database, tx, payment):
    """The business: a payment came in. Events of other kinds are received and ignored."""
    if payment:
        insert = f"INSERT INTO received_payments (id, amount) VALUES ({database.mark}, {database.mark})"
        tx.execute(insert, payment)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > BODY_MAX:
            self.close_connection, status = True, 413
        else:
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receive(self.server.database, self.server.webhook, headers, body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    url = os.environ["DATABASE_URL"]
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    server.webhook = Webhook(os.environ["WEBHOOK_SECRET"])
    server.database = Sqlite(url) if url.startswith("sqlite:") else Postgres(url)
    with server.database.transaction() as tx:
        tx.execute(PAYMENTS)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
