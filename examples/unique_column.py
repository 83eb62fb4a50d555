"""The pattern without a store: the key of the request is a UNIQUE column of the business row.

    python examples/unique_column.py sqlite:shop.db 8e03978e A-17 1500
    python examples/unique_column.py postgres://localhost/shop 8e03978e A-17 1500      (needs: pip install 'psycopg[binary]')

For requests that make exactly one row, whose answer can be told from that row. Whoever inserts it acts; whoever finds it
answers from it. The same command prints the same answer again; with another amount it is refused.
"""

import json
import sqlite3
import sys
import uuid
from contextlib import contextmanager

TENANT = "tenant-1"  # Whoever sent the request: keys of different callers never meet.
PAYMENTS = """
    CREATE TABLE IF NOT EXISTS payments (
        id text PRIMARY KEY, tenant text NOT NULL, request_key text NOT NULL,
        order_id text NOT NULL, amount bigint NOT NULL, UNIQUE (tenant, request_key))"""


def pay(tx, effects, mark, key, order, amount):
    """The answer to a request to pay, in the transaction that the caller has open: (status, body)."""
    insert = (
        f"INSERT INTO payments (id, tenant, request_key, order_id, amount) VALUES ({mark}, {mark}, {mark}, {mark}, {mark})"
        " ON CONFLICT (tenant, request_key) DO NOTHING"  # Waits for another transaction that has just inserted it.
    )
    first = tx.execute(insert, (str(uuid.uuid4()), TENANT, key, order, amount)).rowcount == 1
    # A statement of its own: it sees what the other transaction committed.
    look = f"SELECT id, order_id, amount FROM payments WHERE tenant = {mark} AND request_key = {mark}"
    payment, its_order, its_amount = tx.execute(look, (TENANT, key)).fetchone()
    if (its_order, its_amount) != (order, amount):
        return 422, {"title": "this key was used with another request"}
    if first:
        effect = (
            f"INSERT INTO {effects} (downstream, operation, idempotency_key, payload)"
            f" VALUES ('payments', 'charge', {mark}, {mark})"
        )
        charge = {"amount": amount, "currency": "jpy", "source": "tok_visa", "metadata": {"order": order}}
        tx.execute(effect, (f"payment-{payment}/charge", json.dumps(charge)))
    # From the row alone, so that every repeat is told the same.
    return 201, {"payment": payment, "order": its_order, "amount": its_amount}


@contextmanager
def sqlite(file):
    connection = sqlite3.connect(file, timeout=30, isolation_level=None)
    try:
        if sqlite3.sqlite_version_info < (3, 51, 3):
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # Checkpoints are left to the worker.
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()  # Rolls back what is not committed.


if __name__ == "__main__":
    url, key, order, amount = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if url.startswith("sqlite:"):
        transaction, effects, mark = sqlite(url.removeprefix("sqlite:")), "aftercommit_effects", "?"
    else:
        import psycopg

        transaction, effects, mark = psycopg.connect(url), "aftercommit.effects", "%s"
    with transaction as tx:
        tx.execute(PAYMENTS)
        status, body = pay(tx, effects, mark, key, order, amount)
    print(json.dumps({"status": status, "body": body}))
