#!/usr/bin/python3
"""A service with one way to run each Idempotency-Key once: app.py WAY, $PORT, $STORE or $HAPAX_DOOR, and $EFFECTS.
Prints its port. bench/peers.py starts it; app.cjs says what the paths do.

Functions stand behind 64 threads that read no more of HTTP than wrk and bench/peers.py send, so that the way is seen
beside the server; middlewares behind uvicorn.
"""
import asyncio
import itertools
import json
import os
import pathlib
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "sdk/python"))
STORE, EFFECTS = os.environ.get("STORE", ""), pathlib.Path(os.environ.get("EFFECTS", "."))
FILL = "x" * 170
count = itertools.count(1)


def begin(path, key):
    """The effect; the result, and whether it may be given."""
    receipt = {"receipt": f"{os.getpid()}-{next(count)}", "fill": FILL}
    if path == "/pay":
        return receipt, lambda: True
    with open(EFFECTS / "effects", "a", encoding="utf-8") as file:
        file.write(f"{key}\n")
    until = time.monotonic() + 0.02
    return receipt, lambda: time.monotonic() > until if path == "/slow" else (EFFECTS / path[6:]).exists()


def pay(path, key):
    receipt, may = begin(path, key)
    while not may():
        time.sleep(0.002)
    return receipt


# ---- functions -------------------------------------------------------------------------------------


def powertools(layer):
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function

    class Context:
        @staticmethod
        def get_remaining_time_in_millis():
            return 30000

    config = IdempotencyConfig(event_key_jmespath="key", raise_on_no_idempotency_key=True)

    @idempotent_function(data_keyword_argument="event", persistence_store=layer, config=config)
    def handler(event):
        return pay(event["path"], event["key"])

    def once(path, key, body):
        config.register_lambda_context(Context)
        return handler(event={"path": path, "key": key, "body": body})

    return once


def powertools_redis():
    import redis
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
    return powertools(RedisCachePersistenceLayer(client=redis.Redis.from_url(STORE, decode_responses=True)))


def powertools_dynamodb():
    import boto3
    from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
    from botocore.config import Config
    client = boto3.client("dynamodb", endpoint_url=STORE, region_name="eu-central-1",
                          config=Config(max_pool_connections=64))
    return powertools(DynamoDBPersistenceLayer(table_name="powertools", boto3_client=client))


def by_hapax():
    import hapax
    hx = hapax.connect()

    def once(path, key, body):
        return hx.run(lambda op: pay(path, key), scope="pay", key=key, fingerprint=body)

    return once


def converse(connection, once):
    incoming = connection.makefile("rb")
    while line := incoming.readline():
        path, headers = line.split()[1].decode(), {}
        while (line := incoming.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        body = incoming.read(int(headers.get(b"content-length", 0))).decode()
        try:
            status, said = "201 Created", once(path, headers[b"idempotency-key"].decode(), body)
        except Exception as error:  # noqa: BLE001 - the client is told of all of them
            status, said = "409 Conflict", {"error": f"{type(error).__name__}: {error}"}
        text = json.dumps(said).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        connection.sendall(head.encode() + text)


def converse_once(connection, once):
    with connection:
        try:
            converse(connection, once)
        except OSError:
            pass  # the client is gone


def threads(once):
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", 0))), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=converse_once, args=(connection, once), daemon=True).start()


# ---- middlewares -----------------------------------------------------------------------------------


async def application(scope, receive, send):
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    receipt, may = begin(scope["path"], dict(scope["headers"]).get(b"idempotency-key", b"").decode())
    while not may():
        await asyncio.sleep(0.002)
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(receipt).encode()})


def asgi(app):
    import uvicorn
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", 0))), backlog=256)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", timeout_keep_alive=60)
    asyncio.run(uvicorn.Server(config).serve([listener]))


def asgi_idempotency_header():
    from idempotency_header_middleware.backends.redis import RedisBackend
    from idempotency_header_middleware.middleware import IdempotencyHeaderMiddleware
    from redis.asyncio import Redis
    return IdempotencyHeaderMiddleware(application, backend=RedisBackend(Redis.from_url(STORE, decode_responses=True)))


def asgi_hapax():
    import hapax.asgi
    return hapax.asgi.Idempotent(application, hapax.connect())


WAYS = {
    "threads": lambda: threads(lambda path, key, body: pay(path, key)),
    "threads-hapax": lambda: threads(by_hapax()),
    "powertools-redis": lambda: threads(powertools_redis()),
    "powertools-dynamodb": lambda: threads(powertools_dynamodb()),
    "asgi": lambda: asgi(application),
    "asgi-idempotency-header": lambda: asgi(asgi_idempotency_header()),
    "asgi-hapax": lambda: asgi(asgi_hapax()),
}
WAYS[sys.argv[1]]()
