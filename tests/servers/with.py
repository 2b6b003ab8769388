#!/usr/bin/python3
"""Runs a command with a real server: with.py KIND COMMAND ARG…

KIND: redis redis-aof redis-tls cluster cluster-replicas sentinel postgres pgbouncer postgres-bare pgbouncer-bare
      pgbouncer-statement (in its statement mode)
      hybrid hybrid3 (over three Redis) hybrid-sentinel rabbitmq
      kafka (without topics; started again whenever it dies, HAPAX_SERVER_PID is the first one's)
      sqs (a stand-in without queues)
      dynamodb (DynamoDB Local) dynalite (each also with -bare)
`{uri}` in the ARGs becomes the server's URI: of a new database, where `hapax init` was run (not with -bare).
HAPAX_BUILD names the build directory of hapax (default: build/ of this tree). Exits with the
command's status; its output is passed through. All that was started has ended by then.
"""
import os
import pathlib
import signal
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from dynamodb_server import KEYS, Dynalite, DynamoDB  # noqa: E402
from kafka_server import Kafka  # noqa: E402
from postgres_server import PgBouncer, Postgres  # noqa: E402
from process import end_with_parent  # noqa: E402
from rabbitmq_server import RabbitMQ  # noqa: E402
from redis_server import Redis, RedisCluster, Sentinels  # noqa: E402
from sqs_server import Sqs  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAPAX = pathlib.Path(os.environ.get("HAPAX_BUILD", ROOT / "build")).resolve() / "hapax"


class Ended(Exception):
    pass


def revive(server, over):
    """Starts it again, where it was, each time it is found dead."""
    while not over.wait(0.05):
        if not server.running:
            server.launch(ready=False)


def start(kind, servers):
    """Starts what is asked for, adding each server to servers; the URI."""
    def add(server):
        servers.append(server)
        return server.start()

    if kind in ("redis", "redis-aof", "redis-tls"):
        return add(Redis(tls=kind == "redis-tls", appendonly="yes" if kind == "redis-aof" else "no")).uri()
    if kind == "kafka":
        server = add(Kafka())
        os.environ["HAPAX_SERVER_PID"] = str(server.process.pid)
        return server.uri()
    if kind in ("cluster", "cluster-replicas"):
        return add(RedisCluster(replicas=int(kind != "cluster"))).uri()
    if kind == "sentinel":
        return add(Sentinels()).uri()
    if kind in ("hybrid", "hybrid3", "hybrid-sentinel"):
        locks = ["sentinel"] if kind == "hybrid-sentinel" else ["redis"] * (3 if kind == "hybrid3" else 1)
        return f"hybrid:{','.join(start(lock, servers) for lock in locks)}+{start('postgres', servers)}"
    if kind == "move":
        return f"move:{start('redis', servers)}+{start('postgres', servers)}"
    if kind.removesuffix("-bare") in ("postgres", "pgbouncer", "pgbouncer-statement"):
        postgres = add(Postgres())
        mode = "statement" if kind.endswith("-statement") else "transaction"
        door = add(PgBouncer(postgres, pool_mode=mode)) if kind.startswith("pgbouncer") else postgres
        database = postgres.database()
        if not kind.endswith("-bare"):
            subprocess.run([str(HAPAX), "init", "--store", postgres.uri(database)], check=True, stdout=sys.stderr,
                           stdin=subprocess.DEVNULL)
        return door.uri(database)
    if kind == "rabbitmq":
        return add(RabbitMQ()).uri()
    if kind == "sqs":
        os.environ.update(KEYS)
        return add(Sqs()).uri()
    if kind == "move":
        return f"move:{start('redis', servers)}+{start('postgres', servers)}"
    if kind.removesuffix("-bare") in ("dynamodb", "dynalite"):
        os.environ.update(KEYS)
        uri = add(DynamoDB() if kind.startswith("dynamodb") else Dynalite()).uri()
        if not kind.endswith("-bare"):
            subprocess.run([str(HAPAX), "init", "--store", uri], check=True,
                           stdout=sys.stderr, stdin=subprocess.DEVNULL)
        return uri
    sys.exit(__doc__)


def main(words):
    if len(words) < 2:
        sys.exit(__doc__)
    servers, over, reviver = [], threading.Event(), None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: (_ for _ in ()).throw(Ended()))
    try:
        uri = start(words[0], servers)
        if words[0] == "kafka":
            reviver = threading.Thread(target=revive, args=(servers[0], over))
            reviver.start()
        command = [word.replace("{uri}", uri) for word in words[1:]]
        process = subprocess.Popen(command, preexec_fn=end_with_parent)
        try:
            status = process.wait()
        finally:
            process.kill()
        return status if status >= 0 else 128 - status
    except Ended:
        return 1
    finally:
        over.set()
        if reviver:
            reviver.join()
        for server in reversed(servers):
            server.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
