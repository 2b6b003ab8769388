"""hapax erase: all operations of an owner or a scope, in every store."""
import json
import os
import pathlib
import signal

import pytest
from conftest import HAPAX, PATIENCE
from dynamodb_server import Dynalite
from postgres_server import Postgres
from process import files_of
from redis_server import Redis

MARK = "MARKED-4f1d"


@pytest.fixture(scope="module")
def servers():
    """Started when they are first asked for."""
    made = {}

    def give(kind):
        if kind not in made:
            made[kind] = kind().start()
        return made[kind]

    yield give
    for server in made.values():
        server.stop()


@pytest.fixture(params=["rocksdb", "redis", *(pytest.param(kind, marks=pytest.mark.ci)
                                              for kind in ("keeper", "postgres", "hybrid", "dynamodb"))])
def any_store(request, hapax, folder, servers):
    def postgres():
        server = servers(Postgres)
        return server.uri(server.database())

    if request.param == "keeper":
        hapax.keep(f"rocksdb:{folder}/store")
        return f"unix:{folder}/store/keeper.sock"
    uri = {"rocksdb": lambda: f"rocksdb:{folder}/store", "redis": lambda: servers(Redis).uri(),
           "postgres": postgres, "hybrid": lambda: f"hybrid:{servers(Redis).uri()}+{postgres()}",
           "dynamodb": lambda: servers(Dynalite).uri(f"t{os.urandom(4).hex()}")}[request.param]()
    hapax.env.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y")
    assert hapax("init", "--store", uri).code == 0
    return uri


class Once:
    """Operations of `hapax run` on a store; .owner has them."""

    def __init__(self, hapax, store, owner):
        self.hapax, self.store, self.owner = hapax, store, owner

    def words(self, key, script, *options):
        return ["run", "--store", self.store, "--owner", self.owner, *options, key, "--", "sh", "-c", script]

    def __call__(self, key, script="echo $HAPAX_ATTEMPT $HAPAX_FENCE", *options):
        return self.hapax.run(HAPAX, *self.words(key, script, *options))

    def erase(self, *options, by=True):
        done = self.hapax("erase", "--store", self.store, *(["--owner", self.owner] if by else []), "--json", *options)
        return done.code, json.loads(done.out.splitlines()[-1])

    def runs(self, key, folder):
        """An operation that runs until what is returned is called."""
        os.mkfifo(folder / "gate")
        script = f"echo in >&2; cat {folder}/gate; echo done"
        process = self.hapax.start(*self.words(key, script))
        assert process.stderr.readline() == "in\n"

        def end():
            (folder / "gate").write_text("")
            assert process.communicate(timeout=PATIENCE)[0] == self(key, script).out == "done\n"
        return end


def counts(**named):
    return {**dict.fromkeys(("started", "completed", "failed", "unknown", "left_running", "left_unknown",
                             "left_changed", "not_known"), 0), **named}


def report(said, erased):
    return {name: said[name] for name in counts()}, said[erased]


def test_an_owner_is_erased(hapax, folder, any_store):
    """What runs and what waits for an operator is left; another owner's keys, and fences, are as they were."""
    ann, bob = Once(hapax, any_store, "ann"), Once(hapax, any_store, "bob")
    first, others = ann("k1").out.split(), bob("k1").out
    assert first[0] == "1" and ann("k2", f"echo {MARK}").code == 0 and ann("k1").out.split() == first
    assert ann("k3", "exit 1").code == 1 and ann("k4", "kill -9 $$", "--on-expired", "hold").code == 137
    assert ann("k1", "echo x", "--scope", "other").code == 0
    end = ann.runs("k5", folder)
    assert ann.erase("--scope", "other")[1]["erased"] == 1
    there = counts(completed=2, failed=1, left_running=1, left_unknown=1)
    code, said = ann.erase("--dry-run")
    assert code == 1 and report(said, "would_erase") == (there, 3)
    code, said = ann.erase()
    assert code == 1 and report(said, "erased") == (there, 3) and said["remains_in"]
    end()  # it has kept its claim, and is stored
    code, said = ann.erase("--unknown")
    assert code == 0 and report(said, "erased") == (counts(completed=1, unknown=1), 2)
    assert hapax("list", "--store", any_store, "--owner", "ann", "--json").out == ""
    assert bob("k1").out == others
    again = ann("k1").out.split()
    assert again[0] == "1" and int(again[1]) > int(first[1])


def test_a_scope_is_erased(hapax, store):
    """Of all owners; with --owner only that one's. The store's own records stay."""
    (pathlib.Path(hapax.folder) / "secret").write_text("s" * 32)
    (pathlib.Path(hapax.folder) / "secret").chmod(0o600)
    hapax.env["HAPAX_SECRET_FILE"] = str(pathlib.Path(hapax.folder) / "secret")
    ann, bob = Once(hapax, store, "ann"), Once(hapax, store, "bob")
    for scope in ("a", "b"):
        assert ann("k", "echo 1", "--scope", scope).code == bob("k", "echo 1", "--scope", scope).code == 0
    assert ann.erase("--scope", "a")[1]["erased"] == 1 and ann.erase("--scope", "a", by=False)[1]["erased"] == 1
    assert ann.erase("--scope", "a", by=False)[0] == 0
    assert [ann.erase("--dry-run")[1]["would_erase"], bob.erase("--dry-run")[1]["would_erase"]] == [1, 1]
    for words in ([], ["--scope", "hapax"], ["--scope", ""]):
        assert hapax("erase", "--store", store, *words).code == 2
    assert ann("k", "echo 1", "--scope", "b").out == "1\n"  # the store still knows its secret


def files_with(folder, text):
    """The names of the store's files that have it."""
    return [path.name for path, held in files_of(folder / "store").items() if text.encode() in held]


@pytest.mark.some(1)
@pytest.mark.parametrize("kept", [False, True])
def test_no_file_has_bytes_of_what_was_erased(hapax, store, folder, kept):
    """Neither a log nor a table: bodies of several openings, and one that is in no table yet."""
    ann, bob = Once(hapax, store, "ann"), Once(hapax, store, "bob")

    for key in range(3):
        assert ann(f"k{key}", f"echo {MARK}; head -c 100000 /dev/zero").code == 0
    keeper = kept and hapax.keep(store)
    assert ann("last", f"echo {MARK}").code == 0 and bob("k", f"echo of-bob-{MARK[:6]}").code == 0
    assert len(files_with(folder, MARK)) > kept
    code, said = ann.erase()
    assert code == 0 and said["erased"] == 4 and "snapshots" in said["remains_in"]
    assert files_with(folder, MARK) == [] and files_with(folder, "of-bob") != []
    assert bob("k").code == 120  # another command: the record is there
    assert ann.erase()[0] == 0  # where nothing is left to be done
    if kept:
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(PATIENCE) == 0
        assert bob("k").code == 120 and files_with(folder, MARK) == []


def test_erasures_at_once(hapax, store, folder):
    """Each waits until files are written that it has begun itself."""
    hapax.keep(store)
    owners = [Once(hapax, store, f"owner-{i}") for i in range(4)]
    for once in owners:
        assert once("k", f"echo {MARK}-{once.owner}").code == 0
    assert files_with(folder, MARK)
    for process in [hapax.start("erase", "--store", store, "--owner", once.owner) for once in owners]:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and out.startswith("erased 1 operation (1 completed)\n"), err
    assert files_with(folder, MARK) == []


def test_an_erasure_leaves_lines(hapax, store, folder):
    """Who, when, how many; of the owner a digest. Where they cannot be written nothing is erased."""
    ann = Once(hapax, store, "ann")
    assert ann("k", "echo 1").code == 0
    assert hapax("erase", "--store", store, "--owner", "ann", "--audit", "/dev/full").code == 3
    assert ann.erase("--dry-run")[1]["would_erase"] == 1
    assert ann.erase("--audit", folder / "trail")[0] == 0
    asked, end = [json.loads(line) for line in (folder / "trail").read_text().splitlines()]
    assert (asked["act"], asked["end"], end["end"]) == ("erase", "asked", "done: erased 1, left 0")
    assert len(end["owner"]) == 64 and "ann" not in end.values() and asked["user"]
