#!/usr/bin/python3
"""Publishes a record to a topic of Kafka, and returns once the broker has it: publish.py SERVERS TOPIC KEY VALUE"""
import sys

import confluent_kafka

servers, topic, key, value = sys.argv[1:]
producer = confluent_kafka.Producer({"bootstrap.servers": servers})
producer.produce(topic, value, key)
sys.exit(producer.flush(60) != 0)
