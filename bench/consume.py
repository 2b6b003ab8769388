#!/usr/bin/python3
"""What the message door costs: build/bench/consume_bench over real servers, for each store, with a handler in C and
with that of `hapax consume`. The head of consume_bench.c says what is compared.

    bench/consume.py [--brokers rabbitmq,kafka,sqs] [--stores memory,rocksdb,redis,postgres] [--handlers c,http]
                     [--messages N] [--rounds N]

Judged are redis: and rocksdb: on RabbitMQ with a handler in C; all else is for reading. Exits 1 if they take less
than half of the messages that the same loop without Hapax takes, less a tenth, since one run on a machine of two
processors varies. HAPAX_BUILD names the build directory (default: build/).
"""
import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("HAPAX_BUILD", ROOT / "build")).resolve()
sys.dont_write_bytecode = True
sys.path[0] = str(ROOT / "tests/servers")
from kafka_server import Kafka, have_kafka  # noqa: E402 - they are found only now
from postgres_server import Postgres  # noqa: E402
from rabbitmq_server import RabbitMQ  # noqa: E402
from redis_server import Redis  # noqa: E402
from sqs_server import KEYS, Sqs  # noqa: E402

BOUND = 0.5
BOUNDED = ("redis", "rocksdb")


@contextlib.contextmanager
def running(server):
    try:
        yield server.start()
    finally:
        server.end()


@contextlib.contextmanager
def store(kind):
    """A new store's URI."""
    with contextlib.ExitStack() as stack:
        if kind == "memory":
            yield "memory:"
        elif kind == "rocksdb":
            yield "rocksdb:" + stack.enter_context(tempfile.TemporaryDirectory(prefix="hapax-bench-")) + "/store"
        elif kind == "redis":
            yield stack.enter_context(running(Redis())).uri()
        elif kind == "postgres":
            server = stack.enter_context(running(Postgres()))
            uri = server.uri(server.database())
            subprocess.run([BUILD / "hapax", "init", "--store", uri], check=True, stdout=subprocess.DEVNULL)
            yield uri
        else:
            sys.exit(f"there is no store \"{kind}\"")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", default="rabbitmq,kafka,sqs")
    parser.add_argument("--stores", default="memory,rocksdb,redis,postgres")
    parser.add_argument("--handlers", default="c,http")
    parser.add_argument("--messages", type=int, default=40000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    subprocess.run(["ninja", "-C", BUILD, "--quiet", "bench/consume_bench"], check=True)
    status = 0
    for name in args.brokers.split(","):
        if name == "kafka" and not have_kafka():
            print("kafka: skipped, there is no broker (tools/kafka/fetch)")
            continue
        if name == "sqs":  # fauxqs, which tells what Hapax costs beside it, and nothing of SQS
            os.environ.update(KEYS)
        with running({"kafka": Kafka, "sqs": Sqs}.get(name, RabbitMQ)()) as broker:
            for handler in args.handlers.split(","):
                for kind in args.stores.split(","):
                    bound = BOUND if name == "rabbitmq" and handler == "c" and kind in BOUNDED else 0
                    with store(kind) as uri:
                        print(f"{name} | ", end="", flush=True)
                        status |= subprocess.run(
                            [BUILD / "bench/consume_bench", "--broker", broker.uri(), "--store", uri,
                             "--handler", handler, "--messages", str(args.messages // (1 if handler == "c" else 4)),
                             "--rounds", str(args.rounds), "--bound", str(bound)], check=False).returncode
    print(f"# load {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors")
    return min(status, 2)


if __name__ == "__main__":
    sys.exit(main())
