"""hapax rotate: the secret of a store is changed (docs/rotation.md)."""
import pytest
from conftest import HAPAX
from redis_server import Redis
from test_erase import any_store, servers  # noqa: F401
from test_redis_rights import by, make, users_of

SECRETS = {"old": ("old", ""), "both": ("new", "old"), "new": ("new", ""), "other": ("other", ""),
           "both others": ("other", "old"), "from none": ("new", "none"), "none": ("", "")}


@pytest.fixture
def use(hapax, folder):
    """Sets which secrets the commands have."""
    for name in ("old", "new", "other"):
        (folder / name).write_text(name * 10)
        (folder / name).chmod(0o600)

    def use(which):
        now, old = SECRETS[which]
        hapax.env.update(HAPAX_SECRET_FILE=now, HAPAX_SECRET_OLD_FILE=old)
    use("old")
    return use


@pytest.fixture
def once(hapax):
    """Runs a key's command: what it prints differs each time it runs."""
    def once(store, key, *options):
        return hapax.run(HAPAX, "run", "--store", store, *options, key, "--", "sh", "-c", "echo $$")
    return once


def refused(done):
    return done.code != 0 and "secret" in done.err


def test_each_store_is_rotated(hapax, use, once, any_store):  # noqa: F811
    """Who may open it when; what was made before is replayed; and the end waits for what is left."""
    store = any_store

    def rotate(*words):
        done = hapax("rotate", "--store", store, "--json", *words)
        assert done.out, done.err
        return done.code, done.json["at"], done.json["left"]

    assert once(store, "k0", "--retention", "5s", "--lease", "2s").code == 0
    first = once(store, "k1").out
    use("both")
    assert hapax("init", "--store", store).code == 0
    assert rotate() == (0, "begun", 0)
    assert once(store, "k1").out == first
    both = once(store, "k2").out
    use("old")
    assert once(store, "k2").out == both
    for name in ("new", "other", "both others", "none"):
        use(name)
        assert refused(once(store, "k1")), name
    use("both")
    assert rotate("--both")[:2] == (0, "both") == rotate("--both")[:2]
    code, at, left = rotate("--end")
    assert (code, at) == (1, "both") and left >= 2
    assert "may be known under the old one alone" in hapax("check", "--store", store).out
    for name in ("old", "new", "other"):
        use(name)
        assert refused(once(store, "k1")), name
    use("both")
    for key in ("k1", "k2"):
        assert hapax("resolve", "--store", store, key, "--forget", "--force").code == 0
    while (answer := rotate("--end"))[0] == 1:
        assert answer[1] == "both"
    assert answer[:2] == (0, "ended") == rotate("--end")[:2]
    third = once(store, "k3").out
    assert "take HAPAX_SECRET_OLD_FILE away" in hapax("check", "--store", store).out
    use("new")
    assert once(store, "k3").out == third and hapax("show", "--store", store, "k3").code == 0
    use("old")
    assert refused(once(store, "k3"))
    use("other")
    assert refused(once(store, "k3"))


def test_a_change_is_given_up_before_both(hapax, use, once, store):
    """What was made meanwhile is found, and another new secret may follow."""
    first = once(store, "k1").out
    use("both")
    second = once(store, "k2").out
    use("both others")
    assert "to another one than" in hapax("rotate", "--store", store).err
    use("both")
    assert hapax("rotate", "--store", store, "--back").code == 0
    use("both others")
    assert hapax("rotate", "--store", store, "--both").code == 0
    assert 'at "both"' in hapax("rotate", "--store", store, "--back").err
    assert (once(store, "k1").out, once(store, "k2").out) == (first, second)


def test_who_may_not_look_is_told_so(hapax, use, servers):  # noqa: F811
    """hapax check goes on."""
    redis = servers(Redis)
    make(users_of(hapax, redis.uri()), [redis])
    use("both")
    assert hapax("rotate", "--store", redis.uri()).code == 0
    check = hapax("check", "--store", by("hapax-check", redis.uri()))
    assert check.code in (0, 1) and "how far the change of the secret is was not seen" in check.out


def test_a_store_without_a_secret_gets_one(hapax, use, once, store):
    use("none")
    first = once(store, "k").out
    use("from none")
    assert once(store, "k").out == first
    assert hapax("rotate", "--store", store, "--both").code == 0
    use("none")
    assert refused(once(store, "k"))
    use("from none")
    assert hapax("rotate", "--store", store, "--end").code == 1
    assert hapax("resolve", "--store", store, "k", "--forget", "--force").code == 0
    assert hapax("rotate", "--store", store, "--end").code == 0
    use("new")
    assert once(store, "k").code == 0


def test_operators_see_both_records(hapax, use, once, store):
    """show, resolve and erase know what was made by the old secret, and by both."""
    def kill(key):
        return hapax.run(HAPAX, "run", "--store", store, "--on-expired", "hold", "--owner", "o", key, "--", "sh", "-c",
                         "kill -9 $$")

    assert kill("before").code == 137
    use("both")
    assert kill("after").code == 137
    for key in ("before", "after"):
        shown = hapax("show", "--store", store, "--owner", "o", "--json", key).json
        assert shown["state"] == "unknown"
        done = hapax("resolve", "--store", store, "--owner", "o", key, "--complete", "0")
        assert done.code == 0, done.err
        assert hapax("show", "--store", store, "--owner", "o", "--json", key).json["state"] == "completed"
        assert kill(key).code == 0
    listed = hapax("list", "--store", store, "--owner", "o", "--json")
    assert len(listed.lines) == 4
    for limit in (1, 3, 4):
        listed = hapax("list", "--store", store, "--owner", "o", "--limit", limit)
        assert len(listed.out.splitlines()) == 1 + limit
        assert (f"this is --limit {limit}" in listed.err) == (limit < 4), listed.err
    assert hapax("erase", "--store", store, "--owner", "o", "--json").json["erased"] == 4
    assert hapax("list", "--store", store, "--owner", "o", "--json").out == ""


@pytest.mark.parametrize("now, old, said", [
    ("", "old", "HAPAX_SECRET_FILE, the new secret, is not"), ("old", "", "HAPAX_SECRET_OLD_FILE"),
    ("old", "old", "are the same"), ("new", "missing", "missing"), ("new", "other", "neither of the two")])
def test_wrong_secrets_are_refused_by_name(hapax, use, once, store, now, old, said):
    first = once(store, "k").out
    hapax.env.update(HAPAX_SECRET_FILE=now, HAPAX_SECRET_OLD_FILE=old)
    done = hapax("rotate", "--store", store)
    assert done.code in (2, 3) and said in done.err
    use("old")
    assert once(store, "k").out == first


def test_a_move_is_ended_before(hapax, use, folder):
    use("both")
    done = hapax("rotate", "--store", f"move:rocksdb:{folder}/a+rocksdb:{folder}/b")
    assert done.code == 2 and "end the move" in done.err, done.err
