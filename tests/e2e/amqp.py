"""The broker as a test needs it.

python amqp.py publish QUEUE    a durable message for each line of stdin: its id (may be empty), a tab, its body
python amqp.py depth QUEUE      prints how many messages wait
"""

import os
import sys

import pika

command, queue = sys.argv[1:3]
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
declared = channel.queue_declare(queue, durable=True)
if command == "depth":
    print(declared.method.message_count)
elif command == "publish":
    channel.confirm_delivery()
    for line in sys.stdin:
        id, body = line.rstrip("\n").split("\t", 1)
        # Raises unless the broker confirms.
        channel.basic_publish("", queue, body, pika.BasicProperties(message_id=id or None, delivery_mode=2), mandatory=True)
else:
    sys.exit(f"amqp.py knows publish and depth, not {command}")
connection.close()
