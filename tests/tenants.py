"""Two tenants at a door with equal keys, paths and bodies: what each may be told.

HAPAX_TENANT_REQUESTS: how many requests each tenant sends at each door in each mode (700).
"""
import os
import random
import threading

REQUESTS = int(os.environ.get("HAPAX_TENANT_REQUESTS", "700"))
STRANGER = ("caller-mismatch", "in-flight")  # what one is told of a key that is another caller's


def play(name, owned, send, count):
    """Both at once, each with requests of its own draw: new keys, repeats, and known keys with another body.

    send(tenant, key, body) gives the tag of the answer and its text, which tells the run; or None and a problem.
    owned: each has keys of its own, so each is told exactly what one would be told who is alone. Otherwise a key is
    whose request came first, and the other is told nothing but that. Gives how often each key must have run."""
    told, asked, wrong = {"a": {}, "b": {}}, {"a": set(), "b": set()}, []

    def tenant(me):
        drawn, mine = random.Random(f"{name} {me}"), told[me]
        for _ in range(count):
            key, body = f"{name}-{drawn.randrange(count // 4 + 1)}", drawn.choice("xy")
            asked[me].add(key)
            tag, text = send(me, key, body)
            if key in mine and body != mine[key][0]:
                assert (tag, text) == (None, "fingerprint-mismatch"), (me, key, tag, text)
            elif tag is None:
                assert not owned and key not in mine and text in STRANGER, (me, key, text)
            else:
                assert tag == me, (me, key, tag, text)
                assert mine.setdefault(key, (body, text)) == (body, text), (me, key, text)

    def run(me):
        try:
            tenant(me)
        except Exception as error:  # noqa: BLE001 - it is the test's
            wrong.append(error)

    threads = [threading.Thread(target=run, args=me) for me in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in wrong:
        raise error
    both = asked["a"] & asked["b"]
    if owned:
        assert all(told[me].keys() == asked[me] for me in told)  # no operation was swallowed
        assert all(told["a"][key][1] != told["b"][key][1] for key in both)
    else:
        assert told["a"].keys() | told["b"].keys() == asked["a"] | asked["b"]
        assert not told["a"].keys() & told["b"].keys()
    return {key: 1 + (owned and key in both) for key in asked["a"] | asked["b"]}
