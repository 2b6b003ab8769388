"""hapax copy: what one store has, another store of whatever kind has as well, as it is."""
import json
import os
import signal
import time

import pytest
from conftest import HAPAX, PATIENCE, wait_until
from dynamodb_server import Dynalite
from postgres_server import Postgres
from process import files_of
from redis_server import Redis
from test_erase import Once, servers  # noqa: F401

STATES = [word for state in ("started", "completed", "failed", "unknown") for word in ("--state", state)]
KEYS = "k1 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"
MARK = "MARKED-7c31"


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def copied(hapax, source, to, *options):
    done = hapax("copy", "--from", source, "--to", to, "--json", *options)
    return done.code, json.loads(done.out.splitlines()[-1]), done.err


def records(hapax, store):
    """All that is known of each operation, with its outcome."""
    there = {}
    for line in hapax("list", "--store", store, *STATES, "--json").out.splitlines():
        record = json.loads(line)
        shown = hapax("show", "--store", store, "--id", record["id"], "--json").json
        there[record["id"]] = {name: shown[name] for name in shown if name not in ("now_us", "repeat", "steps")}
    return there


@pytest.fixture
def fresh(hapax, folder, servers):  # noqa: F811
    """A new store of a kind."""
    made = []

    def postgres():
        return servers(Postgres).uri(servers(Postgres).database())

    def redis():
        return f"{servers(Redis).uri()}?prefix=t{os.urandom(4).hex()}:"

    def give(kind):
        made.append(kind)
        uri = {"rocksdb": lambda: f"rocksdb:{folder}/store{len(made)}", "redis": redis,
               "keeper": lambda: f"unix:{folder}/store{len(made)}/keeper.sock", "postgres": postgres,
               "hybrid": lambda: f"hybrid:{redis()}+{postgres()}",
               "dynamodb": lambda: servers(Dynalite).uri(f"t{os.urandom(4).hex()}")}[kind]()
        hapax.env.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y")
        if kind == "keeper":
            hapax.keep(f"rocksdb:{folder}/store{len(made)}")
        elif kind != "rocksdb":
            done = hapax("init", "--store", uri, HAPAX_SECRET_FILE="")
            assert done.code == 0, done.err
        return uri
    return give


CHAINS = [["rocksdb", "redis", "rocksdb"],
          pytest.param(["postgres", "keeper", "hybrid", "dynamodb", "redis", "postgres"], marks=pytest.mark.ci)]


@pytest.mark.parametrize("kinds", CHAINS, ids=len)
def test_a_copy_has_all_of_it(hapax, folder, fresh, kinds):
    """From store to store, every field and each outcome, which stays sealed; then all repeats are answered as at the
    first one, and what was unknown is resolved there."""
    private(folder / "secret", "s" * 32)
    private(folder / "keys", KEYS)
    stores = [fresh(kind) for kind in kinds]
    hapax.env.update(HAPAX_SECRET_FILE=str(folder / "secret"), HAPAX_KEYS_FILE=str(folder / "keys"))
    ann = Once(hapax, stores[0], "ann")
    first = ann("k1", f"echo {MARK} $HAPAX_FENCE").out
    assert MARK in first and ann("k2", "exit 1").code == 1
    assert ann("k3", "kill -9 $$", "--on-expired", "hold").code == 137
    assert ann("k4", "kill -9 $$", "--on-expired", "hold").code == 137
    assert hapax("resolve", "--store", stores[0], "--owner", "ann", "k4", "--complete", "200").code == 0
    was = records(hapax, stores[0])
    assert len(was) == 4
    for source, to in zip(stores, stores[1:]):
        code, said, err = copied(hapax, source, to, "--dry-run")
        assert (code, said["would_copy"]) == (0, 4), err
        code, said, err = copied(hapax, source, to)
        assert (code, said["copied"], said["left_running"], said["left_otherwise"]) == (0, 4, 0, 0), err
        assert copied(hapax, source, to)[:2] == (code, said)
        assert records(hapax, to) == was
    ann.store = stores[-1]
    assert ann("k1", f"echo {MARK} $HAPAX_FENCE").out == first
    assert ann("k4", "kill -9 $$", "--on-expired", "hold").code == 200
    assert hapax("resolve", "--store", stores[-1], "--owner", "ann", "k3", "--fail").code == 0
    assert ann("k3", "kill -9 $$", "--on-expired", "hold").code == 137


def test_a_copy_leaves_what_runs(hapax, folder, fresh):
    """It is counted, and copied once it has ended; what has gone on in the other store stays as it is there."""
    source, to = fresh("rocksdb"), fresh("rocksdb")
    hapax.keep(source)
    ann = Once(hapax, source, "ann")
    assert ann("k1", "echo 1").code == 0 and ann("k2", "exit 1").code == 1
    end = ann.runs("k3", folder)
    code, said, err = copied(hapax, source, to)
    assert (code, said["copied"], said["left_running"]) == (1, 2, 1), err
    there = Once(hapax, to, "ann")
    assert there("k2", "exit 1").code == 1
    waiting = hapax.start("copy", "--from", source, "--to", to, "--wait", "1m", "--json")
    end()
    out, err = waiting.communicate(timeout=PATIENCE)
    said = json.loads(out.splitlines()[-1])
    assert waiting.returncode == 1 and (said["copied"], said["left_running"], said["left_otherwise"]) == (2, 0, 1), err
    assert "further on" in err
    assert records(hapax, to) != records(hapax, source)


def test_a_claim_that_died_runs_in_no_store(hapax, fresh):
    """Its lease is over by the clock of its store, and comes to no other, whose clock may be behind."""
    source, to = fresh("rocksdb"), fresh("rocksdb")
    hapax.keep(source)
    ann = Once(hapax, source, "ann")
    asked = ("k1", "[ $HAPAX_ATTEMPT = 2 ] || kill -9 $PPID", "--lease", "1s", "--on-expired", "rerun")
    assert ann(*asked).code == -9
    code, said, err = copied(hapax, source, to, "--wait", "1m")
    assert (code, said["copied"], said["left_running"]) == (0, 1, 0), err
    record, = records(hapax, to).values()
    assert record["state"] == "started" and not record["lease_until_us"]
    shown = hapax("show", "--store", to, "--owner", "ann", "k1")
    assert any(line.split()[0] == "lease" and line.split()[-1] == "over" for line in shown.out.splitlines()), shown.out
    assert Once(hapax, to, "ann")(*asked).code == 0


@pytest.mark.parametrize("kind", ["rocksdb", pytest.param("hybrid", marks=pytest.mark.ci)])
def test_what_a_store_has_for_itself_is_not_copied(hapax, folder, fresh, kind):
    """Neither the secret's check value nor an epoch is in the way of a copy that has all of it."""
    hapax.env["HAPAX_SECRET_FILE"] = private(folder / "secret", "s" * 32)
    source, to = fresh(kind), fresh(kind)
    assert Once(hapax, source, "ann")("k1", "echo 1").code == 0
    assert Once(hapax, to, "ann")("k2", "echo 2").code == 0
    for _ in range(2):
        code, said, err = copied(hapax, source, to)
        assert (code, said["copied"], said["left_otherwise"]) == (0, 1, 0), err
    assert len(records(hapax, to)) == 2


def test_stores_of_two_secrets_are_not_mixed(hapax, folder, fresh):
    """In neither direction, and no record is put."""
    source, to = fresh("rocksdb"), fresh("rocksdb")
    assert Once(hapax, source, "ann")("k1", "echo 1").code == 0
    hapax.env["HAPAX_SECRET_FILE"] = private(folder / "secret", "s" * 32)
    assert Once(hapax, to, "ann")("k2", "echo 1").code == 0
    for one, other in ((source, to), (to, source)):
        done = hapax("copy", "--from", one, "--to", other)
        assert done.code == 2 and "different secrets" in done.err
    assert len(records(hapax, to)) == 1


@pytest.mark.parametrize("kind", ["rocksdb", pytest.param("redis", marks=pytest.mark.ci),
                                  pytest.param("postgres", marks=pytest.mark.ci)])
def test_a_copy_that_was_killed_goes_on(hapax, fresh, kind):
    """kill -9 once some of it is there; the same command then ends with all of it."""
    source, n = fresh("rocksdb"), 4000
    hapax.keep(source)
    lines = "".join(f"claim k{i} 1 30000 rerun\ncomplete k{i} 1 200 A:b {'x' * 500}\n" for i in range(n))
    assert hapax.run(HAPAX.parent / "tests/store/op", source, stdin=lines.encode()).out == "claimed\nok\n" * n

    def killed():
        """A store that it was killed over, and how often; 0 where each copy was done before."""
        to, kills = fresh(kind), 0
        if kind == "rocksdb":
            hapax.keep(to)
        for _ in range(5):
            process = hapax.start("copy", "--from", source, "--to", to, stderr=None)

            def some(process=process):
                listed = hapax("list", "--store", to, "--state", "completed", "--limit", "1000", "--json").out
                return process.poll() is not None or len(listed.splitlines()) > 100 * (kills + 1)

            wait_until(some, "a copy that is half done")
            process.send_signal(signal.SIGKILL)
            kills += process.wait(PATIENCE) == -signal.SIGKILL
        return to, kills

    to, kills = next(found for found in (killed() for _ in range(10)) if found[1])
    code, said, err = copied(hapax, source, to)
    assert (code, said["copied"]) == (0, n), err
    began = time.monotonic()
    assert copied(hapax, to, source)[:2] == (0, said), "nothing may differ"
    print(f"{n / (time.monotonic() - began):.0f} records a second, {kills} kills")


def test_a_table_of_keys_is_imported(hapax, folder, fresh):
    """Its keys are answered with what the table had, under the secret and sealed; again, nothing changes."""
    store, now = fresh("rocksdb"), int(time.time())
    hapax.env.update(HAPAX_SECRET_FILE=private(folder / "secret", "s" * 32),
                     HAPAX_KEYS_FILE=private(folder / "keys", KEYS))
    assert hapax("init", "--store", store).code == 0
    ann = Once(hapax, store, "ann")
    assert ann("k0", "echo ours").out == "ours\n"
    ours = next(iter(records(hapax, store).values()))
    lines = [
        {"key": "k1", "owner": "ann", "status": 0, "body": f"{MARK}\n", "created": now - 60},
        {"key": "k2", "owner": "ann", "status": 7, "body_base64": "AHgK", "created": now - 60, "expires": now + 3600,
         "headers": {"Content-Type": "text/plain", "X-A": "\u00e9"}, "what": "POST /v1", "scope": "default"},
        {"key": "k0", "owner": "ann", "status": 0, "body": "theirs", "created": now - 60},
        {"key": "k3", "owner": "ann", "status": 0, "created": now - 90000},
        {"key": "k4", "status": 0, "created": now, "body": {"a": [1, 2.0]}, "fingerprint": "ab" * 32},
    ]
    (folder / "keys.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")

    def imported(*options):
        done = hapax("import", folder / "keys.jsonl", "--store", store, "--json", *options)
        return done.code, json.loads(done.out.splitlines()[-1])

    code, said = imported("--dry-run")
    assert (code, said["would_import"], said["left_expired"]) == (0, 4, 1) and len(records(hapax, store)) == 1
    for _ in range(2):
        code, said = imported()
        assert (code, said["imported"], said["left_otherwise"], said["left_expired"]) == (1, 3, 1, 1)
    assert ann("k1").out == f"{MARK}\n" and ann("k2", "exit 1").code == 7 and ann("k0", "echo ours").out == "ours\n"
    shown = hapax("show", "--store", store, "--owner", "ann", "k2", "--json").json
    assert (shown["created_us"], shown["expires_us"]) == ((now - 60) * 10**6, (now + 3600) * 10**6)
    assert shown["what"] == "POST /v1" and shown["body"] == "\0x\n", shown
    assert hapax("show", "--store", store, "k4", "--json").json["body"] == '{"a": [1, 2.0]}'
    assert hapax.run(HAPAX, "run", "--store", store, "k4", "--", "true").code == 120  # another request
    assert ann("k3", "echo anew").out == "anew\n"
    assert ours in records(hapax, store).values()
    files = files_of(folder / "store1").values()
    assert files and not any(MARK.encode() in held for held in files)


GOOD = {"key": "k", "status": 200, "created": 1795449600}


@pytest.mark.some(5)
@pytest.mark.parametrize("line,why", [
    ("[]", "no JSON object"), ('{"key": "k"', "no JSON object"), (GOOD | {"key": ""}, "1 to 255 bytes"),
    (GOOD | {"key": 7}, "no string"), (GOOD | {"status": 1000}, "status"), (GOOD | {"status": "x"}, "status"),
    (GOOD | {"created": None}, "created"), (GOOD | {"created": "2026-01-31"}, "whole number of seconds"),
    (GOOD | {"expires": 1}, "before"), (GOOD | {"headers": {"A": "b\r\nC: d"}}, "no header"),
    (GOOD | {"headers": {"A B": "c"}}, "no header"), (GOOD | {"headers": {"": "c"}}, "no header"),
    (GOOD | {"headers": {"A": 1}}, "no header"), (GOOD | {"headers": []}, "no object"),
    (GOOD | {"body_base64": "*"}, "base64"), (GOOD | {"fingerprint": "ab"}, "64 hex digits"),
    (GOOD | {"caller": "A" * 64}, "64 hex digits"), (GOOD | {"caller": ""}, "64 hex digits"),
    (GOOD | {"fingerprint": ""}, "64 hex digits"), (GOOD | {"owner": ""}, "1 to 255 bytes"),
    (GOOD | {"scope": ""}, "1 to 255 bytes")])
def test_a_wrong_line_is_named(hapax, fresh, line, why):
    """By its number; what stands before it in its batch is not put."""
    store = fresh("rocksdb")
    assert hapax("init", "--store", store).code == 0
    text = json.dumps(GOOD | {"key": "first"}) + "\n" + (line if isinstance(line, str) else json.dumps(line))
    done = hapax("import", "-", "--store", store, stdin=text.encode())
    assert done.code == 2 and "line 2: " in done.err and why in done.err, done.err
    assert records(hapax, store) == {}


def test_an_import_says_what_it_has_done(hapax, fresh):
    """Which lines are there where another is wrong; and where two of one second answer a key, the first stays."""
    store, now = fresh("rocksdb"), int(time.time())
    assert hapax("init", "--store", store).code == 0

    def imported(lines, *options):
        text = "\n".join(json.dumps(GOOD | {"created": now} | line) for line in lines)
        return hapax("import", "-", "--store", store, *options, stdin=text.encode())

    done = imported([{"key": f"k{n}"} for n in range(70)] + [{"status": -1}])
    assert done.code == 2 and "line 71: " in done.err and "lines 1 to 64 are done" in done.err, done.err
    assert len(records(hapax, store)) == 64
    for _ in range(2):
        done = imported([{"body": body} for body in "aba"], "--json")
        said = json.loads(done.out.splitlines()[-1])
        assert (done.code, said["imported"], said["left_otherwise"]) == (1, 2, 1), done.err
    assert hapax("show", "--store", store, "k", "--json").json["body"] == "a"


def test_a_line_over_the_memory_is_not_seen_as_the_end(hapax, folder, fresh):
    """The import fails where such a line stands, and does not end as if all was read."""
    store, path = fresh("rocksdb"), folder / "keys.jsonl"
    assert hapax("init", "--store", store).code == 0
    path.write_text(json.dumps(GOOD | {"created": int(time.time())}) + "\n")
    os.truncate(path, 1 << 30)
    done = hapax.run("prlimit", f"--data={256 << 20}", HAPAX, "import", path, "--store", store)
    assert done.code == 3 and "cannot read: Cannot allocate memory" in done.err, done.err


def test_an_import_needs_a_file(hapax, store):
    """One that there is."""
    assert hapax("init", "--store", store).code == 0
    assert "say which FILE" in hapax("import", "--store", store).err
    assert 'cannot read "none"' in hapax("import", "none", "--store", store).err
