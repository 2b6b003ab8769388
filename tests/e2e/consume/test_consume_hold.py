"""hapax consume under `hold`, before a real RabbitMQ and a service that charges, and then answers as it likes."""
import json

import rabbit
from conftest import wait_until
from rabbit import Consumer, Handler, Queue

LATER = {"Retry-After": "1"}
# What the service answers each time after the charge.
HELD = [408, 500, (500, LATER), 502, 503, 504, 507, None, 404, 409]
AGAIN = [401, 403, 425, 429, (408, LATER), (503, LATER), (409, LATER), (423, {"Stripe-Should-Retry": "true"})]


def name(answer):
    return json.dumps(answer).replace('"', "'")


def test_under_hold_no_answer_after_the_charge_charges_twice(hapax, store):
    """Three deliveries of a message charge once, and are parked, unless the service itself says that it did nothing:
    then the message is tried again until it is done."""
    charges = {}

    def charge(body):
        charges[body] = nth = charges.get(body, 0) + 1
        held = {name(answer): answer for answer in HELD}
        again = {name(answer): answer for answer in AGAIN}
        return held[body] if body in held else again[body] if nth < 3 else 200

    queue, handler = Queue(rabbit.server()), Handler(charge)
    try:
        consumer = Consumer(hapax, queue.uri(), handler.url, store, "--key", "message-id", "--on-expired", "hold",
                            "--retry", "10ms..20ms")
        queue.publish(*[name(answer) for answer in AGAIN])
        for _ in range(3):
            queue.publish(*[name(answer) for answer in HELD])
        consumer.wait_metric("hapax_consumer_parked_total", 3 * len(HELD))
        wait_until(lambda: queue.left() == {queue.parked.name: 3 * len(HELD)}, "the others being done")
        assert charges == {**{name(answer): 1 for answer in HELD}, **{name(answer): 3 for answer in AGAIN}}
        letters = queue.parked.take()
        assert {headers["hapax-reason"] for _, headers in letters} == {"unknown"} and len(letters) == 3 * len(HELD)
    finally:
        handler.close()
