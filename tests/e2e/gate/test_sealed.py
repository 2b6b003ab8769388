"""Encryption at rest (docs/encryption.md): what copies of a store show, and what becomes of replays as keys change."""
import base64
import os
import secrets

import pytest

from conftest import HAPAX, PATIENCE, wait_until
from dynamodb_server import Dynalite
from postgres_server import Postgres
from process import files_of, is_over
from redis_server import Redis

ONE, TWO = (f"{name} {secrets.token_hex(32)}\n" for name in ("one", "two"))
BODY, HEADER, KEY, OWNER, LOGIN, SCOPE = (f"{what}-{secrets.token_hex(8)}" for what in
                                         ("BODY", "HEADER", "KEY", "OWNER", "LOGIN", "SCOPE"))


def write(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def keys(hapax, folder):
    """Sets the text of the keys file that commands are given; None: none is given."""
    def set_keys(text):
        hapax.env.pop("HAPAX_KEYS_FILE", None)
        if text is not None:
            hapax.env["HAPAX_KEYS_FILE"] = write(folder / "keys", text)
    return set_keys


def run(hapax, store, key, *options):
    """What it prints differs each time it runs."""
    return hapax.run(HAPAX, "run", "--store", store, "--on-store-error", "open", *options, key, "--",
                     "sh", "-c", f"echo {BODY} $$; echo x >>runs")


# ---- keys -------------------------------------------------------------------------------


def test_keys_are_set_and_changed_without_losing_a_replay(hapax, store, keys, folder):
    """What was stored in clear is replayed until sealed-only; each outcome is opened by the key that sealed it. Without
    that key nothing is shown, and nothing runs, not even where the store may be away."""
    def runs():
        return len((folder / "runs").read_text())

    clear = run(hapax, store, "clear").out
    keys(ONE)
    assert run(hapax, store, "clear").out == clear
    by_one = run(hapax, store, "by-one").out
    keys(TWO + ONE)
    by_two = run(hapax, store, "by-two").out
    assert [run(hapax, store, key).out for key in ("clear", "by-one", "by-two")] == [clear, by_one, by_two]
    assert BODY in hapax("show", "--store", store, "--json", "by-two").out and runs() == 6
    for text, key, said in ((TWO, "by-one", 'by the key "one", which is not in the keys file'),
                            (None, "by-two", 'by the key "two", which was not given'),
                            (ONE + "two " + "0" * 64, "by-two", 'by another key "two"'),
                            (TWO + "sealed-only", "clear", "says sealed-only")):
        keys(text)
        shown = hapax("show", "--store", store, "--json", key)
        assert (shown.code, shown.json["error"]) == (3, "sealed") and said in shown.json["text"]
        again = run(hapax, store, key)
        assert again.code != 0 and again.out == "" and runs() == 6, again.err
    assert hapax("list", "--store", store, "--json").out.count('"completed"') == 3


@pytest.mark.some(2)
@pytest.mark.parametrize("text, mode, said", [("one 12\n", 0o600, "line 1"), (ONE, 0o644, "chmod o-r"),
                                              ("\n", 0o600, "empty"), ("# one\n\n", 0o600, "no key")],
                         ids=["line", "mode", "empty", "comments"])
def test_a_keys_file_is_checked_before_anything_runs(hapax, store, folder, text, mode, said):
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    assert hapax("init", "--store", store).code == 0
    hapax.env["HAPAX_KEYS_FILE"] = str(path)
    for words in (("show", "k"), ("run", "k", "--", "true"), ("door",), ("serve", "--upstream", "http://127.0.0.1:1")):
        done = hapax.run(HAPAX, words[0], "--store", store, *words[1:])
        assert done.code in (2, 125) and "HAPAX_KEYS_FILE" in done.err + done.out and said in done.err + done.out
        assert ONE.split()[1] not in done.err + done.out


def test_what_a_lost_key_sealed_can_be_resolved(hapax, store, keys):
    assert hapax("init", "--store", store).code == 0
    keys(ONE)
    assert BODY in run(hapax, store, '"k"').out
    keys(TWO)
    assert run(hapax, store, '"k"').code != 0
    words = "--store", store, "--force"
    assert hapax("resolve", '"k"', *words, "--complete", "200").code == 0
    assert hapax("resolve", '"k"', *words, "--forget").code == 0
    assert BODY in run(hapax, store, '"k"').out


def test_sql_neither_shows_nor_repeats_what_is_sealed(hapax, keys):
    server = Postgres().start()
    try:
        database = server.database()
        assert hapax("init", "--store", server.uri(database)).code == 0
        keys(ONE)
        assert BODY in run(hapax, server.uri(database), "k").out
        with pytest.raises(RuntimeError, match="the outcome is sealed, and SQL has no key"):
            server.psql("SELECT (hapax.begin('default', 'k', fingerprint, caller)).verdict FROM hapax.operations "
                        "WHERE octet_length(headers) > 0", database)
    finally:
        server.stop()


# ---- the gate ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_the_gate_replays_what_it_sealed_before_kill_9(hapax, serve, api, store, keys, folder, kind):
    """By a keeper, which is asked from the worker's own events, and by a lane."""
    redis = Redis(appendonly="yes").start() if kind == "redis" else None
    try:
        uri = redis.uri() if redis else store
        keys(ONE)
        path = f"/status/200?h=X-Mark:{HEADER}"
        served = serve("--workers", "1", store=uri)
        first = served.post(path, "k")
        assert first.replayed == "false" and first.get("X-Mark") == HEADER
        family = served.family()
        served.process.kill()
        wait_until(lambda: all(is_over(pid) for pid in family), "the end of nginx")
        keys(TWO + ONE)
        again = serve(store=uri).post(path, "k")
        assert (again.replayed, again.get("X-Mark"), again.body) == ("true", HEADER, first.body)
        keys(TWO)
        assert serve(store=uri).post(path, "k").status == 503
        assert api.count("k") == 1
    finally:
        if redis:
            redis.stop()


# ---- copies -----------------------------------------------------------------------------


@pytest.fixture(params=["rocksdb", "redis", *(pytest.param(kind, marks=pytest.mark.ci)
                                              for kind in ("postgres", "hybrid", "dynamodb"))])
def copied(request, hapax, folder):
    """The URI of a store, and what gives all files of it and a dump."""
    servers = []

    def start(server):
        servers.append(server.start())
        return server

    def redis():
        return start(Redis(appendonly="yes", rdbcompression="no", save=""))

    def of_redis(server):
        server.do("SAVE")
        return list(files_of(server.folder).items())

    def of_postgres(server, database):
        server.psql("CHECKPOINT")
        return [*files_of(server.data).items(), ("pg_dump", server.run(
            "pg_dump", "-h", "127.0.0.1", "-p", server.port, "-U", "postgres", database).encode())]

    def unhexed(files):
        """A dump has bytea in hex."""
        return files + [(name, bytes.fromhex(word)) for name, data in files if name == "pg_dump"
                        for word in (part[3:].split("\t")[0].split("\n")[0] for part in data.decode().split("\\\\x"))
                        if len(word) % 2 == 0 and not set(word) - set("0123456789abcdef")]

    hapax.env.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y")
    if request.param == "rocksdb":
        uri, files = f"rocksdb:{folder}/store", lambda: list(files_of(folder / "store").items())
    elif request.param == "redis":
        server = redis()
        uri, files = server.uri(), lambda: of_redis(server)
    elif request.param == "dynamodb":
        server, table = start(Dynalite()), f"t{os.urandom(4).hex()}"
        uri, files = server.uri(table), lambda: [
            (name, base64.b64decode(text) if kind == "B" else text.encode())
            for item in server.ask("Scan", TableName=table)[1]["Items"]
            for name, value in item.items() for kind, text in value.items()]
    else:
        server = start(Postgres())
        database = server.database()
        uri, files = server.uri(database), lambda: unhexed(of_postgres(server, database))
        if request.param == "hybrid":
            hints, postgres = redis(), files
            uri, files = f"hybrid:{hints.uri()}+{uri}", lambda: postgres() + of_redis(hints)
    yield uri, files
    for server in servers:
        server.stop()


@pytest.mark.parametrize("sealed", [True, False])
def test_no_copy_of_a_store_shows_what_is_secret(hapax, serve, keys, folder, copied, sealed):
    """With a secret and keys, no file and no dump has a body, header, key, owner or caller in clear. That the search
    works is shown by the scope, and by body and header where there are no keys."""
    uri, files = copied
    hapax.env["HAPAX_SECRET_FILE"] = write(folder / "secret", "s" * 32)
    keys(ONE if sealed else None)
    assert hapax("init", "--store", uri).code == 0
    served = serve("--scope", SCOPE, store=uri)
    for replayed in ("false", "true"):
        assert served.post(f"/status/200?h=X-Mark:{HEADER}", KEY,
                           headers=[("Authorization", f"Bearer {LOGIN}")]).replayed == replayed
    assert BODY in run(hapax, uri, KEY, "--owner", OWNER).out
    served.process.terminate()
    served.process.wait(PATIENCE)
    found = files()

    def having(text):
        sought = text if isinstance(text, bytes) else text.encode()
        return sorted({str(name) for name, data in found if sought in data})

    assert having(SCOPE), "the search finds nothing"
    for text in (BODY, HEADER):
        assert bool(having(text)) is not sealed, having(text)
    for text in (KEY, OWNER, LOGIN, ONE.split()[1], bytes.fromhex(ONE.split()[1])):
        assert not having(text), having(text)
