#!/usr/bin/python3
"""Refunds that take effect once, though callers repeat them and this program dies half-way.

    hapax door --store rocksdb:/tmp/refunds -- python3 example.py order-17 500

Run it again: nothing is refunded twice, and the receipt is the same. With another amount it says so. `kill -9` it where
it waits (--slow SECONDS): the next run goes on behind the step that was done. Effects are lines in the file `effects`.
"""
import argparse
import pathlib
import sys
import time

import hapax

hx = hapax.connect()  # $HAPAX_DOOR, which hapax door sets


def effect(text):
    """Stands for what other services do."""
    with pathlib.Path("effects").open("a") as file:
        file.write(text + "\n")


@hx.once(scope="refunds", key="order", fingerprint="amount", retention="7d", wait="30s", lease="5s")
def refund(order: str, amount: int, *, slow: float = 0, op: hapax.Op) -> dict:
    def charge(step):
        effect(f"{amount} back for {order}, by the key {step.key}")
        return f"re_{order}"

    refunded = op.step("charge", charge)
    time.sleep(slow)
    op.step("mail", lambda step: effect(f"mail for {order}"))
    return {"refund": refunded, "attempt": op.attempt}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("order")
    parser.add_argument("amount", type=int)
    parser.add_argument("--slow", type=float, default=0)
    given = parser.parse_args()
    try:
        print(refund(given.order, given.amount, slow=given.slow))
    except hapax.Mismatch:
        sys.exit(f"{given.order} was refunded with another amount")
    except hapax.InFlight as error:
        sys.exit(f"another one is at it; again in {error.retry_after} s")


if __name__ == "__main__":
    main()
