"""A storm before an application that answers requests: it, and the door with its store, are killed again and again."""
import collections
import concurrent.futures
import http.client
import itertools
import json
import random
import time

from conftest import PATIENCE
from process import wait_for

CLIENTS = 4


def asked(port, path, n):
    """One request of key n: "done", "unknown", or None: ask again."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps({"id": f"k{n}", "amount": 20}), {
            "Idempotency-Key": f"k{n}", "Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if response.status in (200, 201):
        return "done"
    return "unknown" if "unknown" in body and response.status == 409 else None


def takes_effect_once(application, door, paths, on_expired, seconds):
    """Whoever dies: with rerun each key has its effect, and more of them only where one was killed; with hold none has
    two. The application has a port, start(), kill() and effects(), which counts them by key."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)  # noqa: S311
    numbers, over, kills = itertools.count(), [], collections.Counter()
    until = time.monotonic() + seconds

    def client():
        ended = collections.Counter()
        while time.monotonic() < until:
            n, result = next(numbers), None
            path = paths[n % len(paths)]
            while result is None:
                result = asked(application.port, path, n)
                time.sleep(0 if result else 0.05)
            if result == "done":
                assert asked(application.port, path, n) in ("done", None)  # a repeat
            ended[result] += 1
            over.append(n)
        return ended

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            while time.monotonic() < until:
                seen = len(over)
                wait_for(lambda: len(over) > seen + 5 or time.monotonic() > until,  # noqa: B023
                         "more that ended", pause=0.02)
                what, which = chance.choice([("application", application), ("door", door), ("door", door)])
                which.kill()
                which.start()
                kills[what] += 1
            ended = sum((done.result(PATIENCE) for done in clients), collections.Counter())
        finally:
            application.kill()
            door.close()
    counts = application.effects()
    twice = sum(counts.values()) - len(counts)
    print(f"{on_expired}: seed {seed}, {len(over)} keys, {dict(kills)} killed, {dict(ended)}, {twice} effects more")
    assert set(counts) <= {f"k{n}" for n in over} and ended["done"] + ended["unknown"] == len(over)
    if on_expired == "hold":
        assert twice == 0
    else:
        assert len(counts) == len(over) == ended["done"] and twice <= CLIENTS * sum(kills.values())
