"""Doors while the secret is changed (docs/rotation.md): what one did under the old secret alone is replayed by one with
both, and what that does is replayed by one that still has the old secret alone."""
import contextlib
import json

import lambda_bed
import pytest
import rabbit
from conftest import HAPAX, end, wait_until
from redis_server import Redis
from test_door import Door
from test_erase import servers  # noqa: F401
from test_web import Web, resolve, visit  # noqa: F401


@pytest.fixture
def secrets(folder):
    """Settings by name: with the old secret alone, and with both."""
    for name in ("old", "new"):
        (folder / name).write_text(name * 10)
        (folder / name).chmod(0o600)
    old = {"HAPAX_SECRET_FILE": str(folder / "old")}
    both = {"HAPAX_SECRET_FILE": str(folder / "new"), "HAPAX_SECRET_OLD_FILE": str(folder / "old")}
    return {"old": old, "both": both}


@pytest.fixture
def redis(servers, folder):  # noqa: F811
    return servers(Redis).uri(prefix=f"{folder.name}:", timeout="30s")


@contextlib.contextmanager
def door(hapax, store, env):
    """Runs a key once; what it answers is the nonce of the run."""
    serving = Door(hapax, store, "--drain", "100ms", "--timeout", "30s", "--save-wait", "30s", **env)
    with serving.client() as client:
        yield lambda key, nonce: client.once(key, nonce.encode()).body.decode() or nonce
    end(serving.process)


@contextlib.contextmanager
def function(hapax, store, env):
    with lambda_bed.Function(hapax, store, "echo", "--key", "/id", **env) as one:
        yield lambda key, nonce: one.invoke({"id": key}).body


@pytest.mark.parametrize("begin", [door, function])
def test_an_operation_runs_once_in_doors_of_all_secrets(hapax, redis, secrets, begin):
    assert hapax("init", "--store", redis, **secrets["old"]).code == 0
    with begin(hapax, redis, secrets["old"]) as ask:
        first = ask("k1", "1")
        assert ask("other", "2") != first
    with begin(hapax, redis, secrets["both"]) as ask:
        assert ask("k1", "3") == first
        second = ask("k2", "4")
        assert second != first and ask("k2", "5") == second
    with begin(hapax, redis, secrets["old"]) as ask:
        assert ask("k2", "6") == second
    records = hapax("list", "--store", redis, "--state", "completed", "--json", **secrets["both"]).lines
    assert len(records) == 5, records  # two of each but of `other`


@pytest.mark.ci
def test_a_message_runs_once_in_consumers_of_all_secrets(hapax, redis, secrets):
    """Each is delivered anew to the next consumer."""
    assert hapax("init", "--store", redis, **secrets["old"]).code == 0
    queue, handler = rabbit.Queue(rabbit.server()), rabbit.Handler()
    for which, bodies in (("old", ["m1"]), ("both", ["m1", "m2"]), ("old", ["m2", "m1", "m3"])):
        consumer = rabbit.Consumer(hapax, queue.uri(), handler.url, redis, **secrets[which])
        queue.publish(*bodies)
        wait_until(lambda: not queue.left(), "an empty queue")
        assert end(consumer.process) == 0
    handler.close()
    assert [body for body, _ in handler.calls] == ["m1", "m2", "m3"]


def test_a_page_resolves_what_either_secret_knows(hapax, redis, secrets, visit, folder):  # noqa: F811
    """By its key, though the records of the two secrets count attempts apart."""
    def run(which, key, script, on_expired="hold"):
        return hapax.run(HAPAX, "run", "--store", redis, "--on-expired", on_expired, key, "--", "sh", "-c", script,
                         **secrets[which]).code

    assert run("old", "k2", "exit 75", "rerun") == 75
    assert [run(which, key, "kill -9 $$") for which, key in (("old", "k1"), ("both", "k2"))] == [137, 137]
    web = Web(hapax, redis, "--allow", "resolve", "--user-header", "X-User", HAPAX_AUDIT_FILE=str(folder / "audit"),
              **secrets["both"])
    web.headers = {"X-User": "ann"}
    page = visit(web, headers=web.headers)
    for key, attempts in (("k1", 1), ("k2", 2)):
        shown = json.loads(web.post("show", {"key": key})[2])
        assert (shown["state"], shown["attempt"]) == ("unknown", attempts), shown
        page.press("/")
        page.wait("document.activeElement.id === 'find'")
        page.set("#find", key)
        page.press("Enter")
        page.shows("What happened")
        resolve(page, "fail", shown["id"][:4])
        page.shows("Resolved by ann")
        assert run("both", key, "kill -9 $$") == 137  # it runs again
    assert end(web.process) == 0
