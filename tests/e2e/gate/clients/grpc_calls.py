"""A gRPC service and its client: grpc_calls.py CASE GATE UPSTREAM. Serves at the port UPSTREAM, calls through the gate
at the port GATE, and prints what became of it."""
import json
import sys
import threading
import time
from concurrent import futures

import grpc

CASE, GATE, UPSTREAM = sys.argv[1], *map(int, sys.argv[2:4])
PATIENCE = 100


class Service(grpc.GenericRpcHandler):
    """Counts its runs by key. A request "hold" waits for its door."""

    def __init__(self):
        self.lock, self.runs, self.door = threading.Lock(), {}, threading.Event()
        self.begun, self.ended = threading.Event(), threading.Event()
        self.deadlines, self.active = [], []

    def service(self, details):
        if details.method.endswith("Stream"):
            return grpc.unary_stream_rpc_method_handler(self.stream)
        return grpc.unary_unary_rpc_method_handler(self.charge)

    def count(self, context):
        key = dict(context.invocation_metadata()).get("idempotency-key", "-")
        with self.lock:
            self.runs[key] = self.runs.get(key, 0) + 1
            return self.runs[key]

    def charge(self, request, context):
        nth = self.count(context)
        left = context.time_remaining()
        self.deadlines.append(left is not None and left < 1e6)  # without one, None or centuries
        self.begun.set()
        if request == b"hold":
            self.door.wait(PATIENCE)
        self.active.append(context.is_active())
        self.ended.set()
        return b"%d:%s" % (nth, request)

    def stream(self, request, context):
        nth = self.count(context)
        for i in range(3):
            yield b"%d:%d" % (nth, i)


service = Service()
server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[service])
assert server.add_insecure_port(f"127.0.0.1:{UPSTREAM}") == UPSTREAM
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{GATE}")


def call(request, key, method="/shop.Shop/Charge", timeout=PATIENCE, channel=channel):
    """What a call became: the name of its status, and its message or response."""
    metadata = [("idempotency-key", key)] if key is not None else []
    try:
        response, done = channel.unary_unary(method).with_call(request, timeout=timeout, metadata=metadata)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    replayed = dict(done.initial_metadata()).get("idempotency-replayed")
    return [done.code().name, response.decode(), replayed]


def until(true):
    deadline = time.monotonic() + PATIENCE
    while not (result := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def case_refusals():
    """What the gate answers by itself."""
    call(b"1", "used")
    holder = threading.Thread(target=call, args=(b"hold", "held"))
    holder.start()
    until(lambda: service.runs.get("held"))
    told = {"again": call(b"1", "used"), "mismatch": call(b"2", "used"), "malformed": call(b"1", '"open'),
            "missing": call(b"1", None, "/shop.Keyed/Charge"),
            "in flight": call(b"hold", "held"), "dead": call(b"1", "dead", "/shop.Dead/Charge"),
            "late": call(b"hold", "late", "/shop.Slow/Charge"), "down": call(b"1", "down", "/shop.Down/Charge"),
            "no key": call(b"1", None)}
    service.door.set()
    holder.join()
    return told


def case_deadline():
    """The client's deadline passes while the handler runs; the client calls again once the handler has ended."""
    for nth, timeout in enumerate((0.5, 2, 8)):
        key = f"key{nth}"
        first = call(b"hold", key, timeout=timeout)
        if service.begun.wait(timeout) and service.runs.get(key):  # else a busy machine: it never got there
            break
    service.door.set()
    assert service.ended.wait(PATIENCE)
    again = until(lambda: (told := call(b"hold", key))[0] != "ABORTED" and told)
    told = {"first": first, "again": again, "deadlines": any(service.deadlines), "active": all(service.active),
            "runs": service.runs[key]}
    call(b"1", None)
    return told | {"without a key": service.deadlines[-1]}


def case_retry():
    """A retry policy of the client sends again what is in flight, and gets the first response."""
    policy = {"methodConfig": [{"name": [{}], "retryPolicy": {
        "maxAttempts": 5, "initialBackoff": "2s", "maxBackoff": "2s", "backoffMultiplier": 1,
        "retryableStatusCodes": ["ABORTED", "UNAVAILABLE"]}}]}
    retrying = grpc.insecure_channel(f"127.0.0.1:{GATE}", [("grpc.service_config", json.dumps(policy))])
    first, again = [], []
    holder = threading.Thread(target=lambda: first.extend(call(b"hold", "k")))
    holder.start()
    until(lambda: service.runs.get("k"))
    repeat = threading.Thread(target=lambda: again.extend(call(b"hold", "k", channel=retrying)))
    repeat.start()
    sys.stdout.write("held\n")  # the test opens the door when the gate has refused the repeat
    sys.stdout.flush()
    sys.stdin.readline()
    service.door.set()
    holder.join()
    repeat.join()
    return {"first": first, "again": again, "runs": service.runs["k"]}


def case_stream():
    """A stream of responses is one outcome; a repeat gets the same stream."""
    def stream():
        done = channel.unary_stream("/shop.Shop/Stream")(b"1", timeout=PATIENCE, metadata=[("idempotency-key", "k")])
        return [part.decode() for part in done], dict(done.initial_metadata()).get("idempotency-replayed")

    return {"first": stream(), "again": stream(), "runs": service.runs["k"]}


print(json.dumps(globals()["case_" + CASE]()))
server.stop(None).wait()
