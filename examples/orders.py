"""An order and its charge in one transaction, in Python.

    python examples/orders.py sqlite:shop.db A-17 1500
    python examples/orders.py postgres://localhost/shop A-17 1500      (needs: pip install 'psycopg[binary]')

Nothing is sent here. The second INSERT writes down what is to be sent; a worker (`aftercommit work`) does it after the commit.
Running it again with the same order fails on the order's own primary key: the charge is not written twice either.
"""

import json
import sqlite3
import sys

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount bigint NOT NULL)"


def place_order(execute, effects, mark, order, amount):
    """Both rows, in the transaction that the caller has open. `mark` is the driver's placeholder for a value."""
    execute(f"INSERT INTO orders (id, amount) VALUES ({mark}, {mark})", (order, amount))
    payload = {"amount": amount, "currency": "jpy", "source": "tok_visa", "metadata": {"order": order}}
    execute(
        f"INSERT INTO {effects} (downstream, operation, idempotency_key, payload, metadata)"
        f" VALUES ('payments', 'charge', {mark}, {mark}, {mark})",
        # The key says what the charge is for: every attempt sends it, and the payment server recognises a repetition.
        (f"order-{order}/charge", json.dumps(payload), json.dumps({"order": order})),
    )


def on_sqlite(file, order, amount):
    # Autocommit, so that the transaction is the one we write; waits for other writers instead of failing.
    connection = sqlite3.connect(file, timeout=30, isolation_level=None)
    # Below 3.51.3 a checkpoint of ours could lose a commit of another process: leave checkpoints to the worker.
    if sqlite3.sqlite_version_info < (3, 51, 3):
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(ORDERS)
    connection.execute("BEGIN IMMEDIATE")
    try:
        place_order(connection.execute, "aftercommit_effects", "?", order, amount)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def on_postgres(url, order, amount):
    import psycopg

    with psycopg.connect(url) as connection:  # commits at the end, rolls back on an exception
        connection.execute(ORDERS)
        place_order(connection.execute, "aftercommit.effects", "%s", order, amount)


if __name__ == "__main__":
    database, order, amount = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if database.startswith("sqlite:"):
        on_sqlite(database.removeprefix("sqlite:"), order, amount)
    else:
        on_postgres(database, order, amount)
