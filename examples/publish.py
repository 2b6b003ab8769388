#!/usr/bin/python3
"""Publishes a message to a queue of RabbitMQ, and returns once the broker has it: publish.py URI QUEUE KEY BODY"""
import sys

import pika

if len(sys.argv) != 5:
    sys.exit(__doc__)
uri, queue, key, body = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(uri))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2, message_id=key), mandatory=True)
connection.close()
