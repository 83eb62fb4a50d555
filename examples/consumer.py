"""A RabbitMQ consumer that acts once on each message, however often the broker delivers it.

    DATABASE_URL=sqlite:shop.db AMQP_URL=amqp://localhost python examples/consumer.py orders
    DATABASE_URL=postgres://localhost/shop AMQP_URL=amqp://localhost python examples/consumer.py orders

(needs: pip install pika 'psycopg[binary]')

A broker that lost an acknowledgement delivers again, and so does one whose consumer died. The inbox remembers the message id
in the transaction that acts on the message; the acknowledgement follows the COMMIT. If the process dies in between, the next
delivery finds the id and is acknowledged without acting. (`aftercommit migrate` made the tables.)
"""

import json
import os
import sqlite3
import sys
from contextlib import contextmanager

import pika

CONSUMER = "shipping"  # Each consumer has a record of its own: two of them may act on one message.
SHIPMENTS = "CREATE TABLE IF NOT EXISTS shipments (order_id text NOT NULL)"


class Postgres:
    def __init__(self, url):
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)
        self.transaction, self.mark = self.connection.transaction, "%s"

    def accept(self, key):
        """Whether this transaction is the one to act on the message."""
        return self.connection.execute("SELECT aftercommit.inbox_accept(%s, %s)", (CONSUMER, key)).fetchone()[0]


class Sqlite:
    def __init__(self, url):
        self.connection = sqlite3.connect(url.removeprefix("sqlite:"), timeout=30, isolation_level=None)
        self.mark = "?"
        if sqlite3.sqlite_version_info < (3, 51, 3):
            self.connection.execute("PRAGMA wal_autocheckpoint = 0")  # Checkpoints are left to the worker.

    @contextmanager
    def transaction(self):
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def accept(self, key):
        """Whether this transaction is the one to act on the message."""
        accept = "INSERT INTO aftercommit_inbox (consumer, key) VALUES (?, ?) ON CONFLICT (consumer, key) DO NOTHING"
        return self.connection.execute(accept, (CONSUMER, key)).rowcount == 1


def act(database, order):
    """The business: an order is shipped."""
    database.connection.execute(f"INSERT INTO shipments (order_id) VALUES ({database.mark})", (order["order"],))


def on_message(database, channel, delivery, properties, body):
    key = properties.message_id
    try:
        order = json.loads(body)
        if not key or "order" not in order:
            raise ValueError("no message_id, or no order")
    except (ValueError, TypeError) as error:
        # It will never be better: to the dead letters, if the queue has a place for them.
        print(f"refused: {error}", file=sys.stderr)
        return channel.basic_reject(delivery.delivery_tag, requeue=False)
    # A database that fails ends this process, unacknowledged; the broker delivers again to whoever consumes next.
    with database.transaction():
        if database.accept(key):
            act(database, order)
    # After the COMMIT, and also where it was accepted before: the broker has not heard of it.
    channel.basic_ack(delivery.delivery_tag)


if __name__ == "__main__":
    queue, url = sys.argv[1], os.environ["DATABASE_URL"]
    database = Sqlite(url) if url.startswith("sqlite:") else Postgres(url)
    database.connection.execute(SHIPMENTS)
    channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
    channel.queue_declare(queue, durable=True)
    channel.basic_qos(prefetch_count=20)
    channel.basic_consume(queue, lambda *delivered: on_message(database, *delivered))
    print("consuming", flush=True)
    channel.start_consuming()
