"""The PostgreSQL store against real servers: what it says when replies are lost, servers refuse, and schemas do not
fit.

Ops are run by tests/store/op.c; between it and the server stands, where something is to be lost, a proxy.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

import psycopg2
import pytest
from conftest import HAPAX, PATIENCE, ROOT
from handle import Handle

sys.path.insert(0, str(ROOT / "tests/servers"))
from postgres_server import PgBouncer, Postgres  # noqa: E402
from process import free_port, wait_for  # noqa: E402
from proxy import Proxy  # noqa: E402


TIMEOUT_S = 3  # of the store, in tests where it runs out
RUN = b"hapax.run("


@pytest.fixture(scope="module")
def server():
    with Postgres().start() as started:
        yield started


class Database:
    def __init__(self, server, init=True):
        self.server, self.name = server, server.database(Postgres.initialised if init else None)

    def uri(self, port=None, timeout="30s", **more):
        return self.server.uri(self.name, port=port, timeout=timeout, sslmode="disable", gssencmode="disable", **more)

    def sql(self, statement):
        return self.server.psql(statement, self.name)

    def connect(self):
        return psycopg2.connect(host="127.0.0.1", port=self.server.port, user="postgres", dbname=self.name)

    def records(self):
        """state|attempt of each record that has not expired"""
        return self.sql("SELECT state, attempt FROM hapax.operations WHERE expires_us = 0 OR expires_us > "
                        "hapax.now_us() ORDER BY state, attempt").split()


@pytest.fixture
def database(server):
    return Database(server)


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as started:
        yield started


# ---- lost replies -----------------------------------------------------------------------


# The reply to a statement that was committed is lost, as a whole, in its middle, or only its very end, which is what
# tells of the commit: the op is sent again, with its token, and is answered as the first try would have been.
@pytest.mark.some()
@pytest.mark.parametrize("after", [0, 20, -6, -1])
@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_lost_reply_is_asked_for_again(database, proxy, after, how):
    with Handle(database.uri(proxy.port)) as run:
        assert run("claim", "warm", "1") == "claimed"
        for words, verdict in [(("claim", "k", "1"), "claimed"), (("complete", "k", "1", 201, "A", "b"), "ok")]:
            rule = proxy.cut("reply", after=after, how=how, containing=RUN)
            assert run(*words) == verdict
            assert rule.fired.wait(PATIENCE)
    assert sorted(database.records()) == ["1|1", "2|1"]


# A statement that did not get there as a whole is sent again as well.
@pytest.mark.some(1)
@pytest.mark.parametrize("after", [0, 30, -1])
def test_a_statement_that_was_cut_is_sent_again(database, proxy, after):
    with Handle(database.uri(proxy.port)) as run:
        assert run("claim", "warm", "1") == "claimed"
        rule = proxy.cut("request", after=after, containing=RUN)
        assert run("claim", "k", "2") == "claimed"
        assert rule.fired.wait(PATIENCE)
    assert database.records() == ["1|1", "1|1"]


# No reply ever comes: nobody knows, within the time; and the same op with the same token finds out later.
def test_without_any_reply_an_op_is_indeterminate(database, proxy):  # promise 10
    with Handle(database.uri(proxy.port, timeout=f"{TIMEOUT_S}s")) as run:
        run.until("claimed", "claim", "k", "1")
        rule = proxy.cut("reply", containing=RUN, times=0)
        assert run.sent(lambda: rule.used, "complete", "k", "1", 200, "A", "b") == "indeterminate"
        assert "postgres" in run.text()
        proxy.heal()
        run.until("ok", "complete", "k", "1", 200, "A", "b")
    assert database.records() == ["2|1"]


# Bytes vanish: the op is answered when its time is over, and not when the kernel gives up, after minutes.
@pytest.mark.parametrize("side", ["request", "reply"])
def test_a_silent_connection_ends_in_time(database, proxy, side):
    with Handle(database.uri(proxy.port, timeout=f"{TIMEOUT_S}s")) as run:
        run.until("claimed", "claim", "warm", "1")
        rule = proxy.blackhole(side, containing=RUN, times=0)
        began = time.monotonic()
        assert run.sent(lambda: rule.used, "claim", "k", "1") == "indeterminate"
        assert TIMEOUT_S - 0.1 < time.monotonic() - began < TIMEOUT_S + 20
        assert "no answer in time" in run.text()
        proxy.heal()
        run.until("claimed", "claim", "k", "1")


# Forgetting takes the token along, so a repeat would meet whatever came after it.
def test_a_forget_is_not_sent_twice(database, proxy, hapax):
    resolves = b"\0\0\0\2\0\x08"  # a smallint of 8, the kind of op
    assert hapax.op(database.uri(), "claim", "k", "1") == "claimed"
    rule = proxy.cut("reply", containing=resolves)
    done = hapax("resolve", "k", "--forget", "--force", "--store", database.uri(proxy.port))
    assert rule.fired.wait(PATIENCE), done.err
    assert len([sent for sent in proxy.requests if resolves in sent]) == 1
    assert database.records() == []


# ---- refusals ---------------------------------------------------------------------------


def replace_run(database, body, declare=""):
    database.sql("ALTER FUNCTION hapax.run RENAME TO run_as_it_was")
    database.sql("CREATE FUNCTION hapax.run(smallint[], bytea[], bytea[], bytea[], bytea[], bytea[], bigint[], "
                 "bigint[], integer[], bigint[], integer[], bytea[], bytea[], bytea[], bytea[], bytea[], boolean) "
                 "RETURNS TABLE (a integer) LANGUAGE plpgsql AS"
                 f" $f$ {declare} BEGIN {body} END $f$")


# Whatever the server says no with, the op was rolled back with it: it is never indeterminate.
@pytest.mark.some(6)
@pytest.mark.parametrize("sqlstate, error", [
    ("25006", "unavailable"), ("57P01", "unavailable"), ("57P02", "unavailable"), ("57P03", "unavailable"),
    ("53300", "unavailable"), ("53100", "unavailable"), ("55P03", "unavailable"), ("57014", "unavailable"),
    ("40001", "unavailable"), ("40P01", "unavailable"), ("XX000", "unavailable"),
    ("42501", "refused"), ("28000", "refused"), ("3F000", "unsupported"),
    ("42883", "unsupported"), ("42P01", "unsupported"),
    ("XX001", "corrupt"), ("23514", "corrupt"),
])
def test_an_error_of_the_server_is_not_applied(database, sqlstate, error):
    replace_run(database, f"RAISE EXCEPTION 'no, it says' USING ERRCODE = '{sqlstate}';")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == error
        assert "no, it says" in run.text()


# Class 08 is a pooler's word about its own connection to the server, where the op may have got through.
def test_a_poolers_error_is_indeterminate(database):
    replace_run(database, "RAISE EXCEPTION 'gone' USING ERRCODE = '08006';")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "indeterminate"


# A statement that lost against another is run again, and wins.
def test_a_serialization_failure_is_tried_again(database):
    database.sql("CREATE SEQUENCE tries")
    replace_run(database, "IF nextval('tries') < 3 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF;"
                "RAISE EXCEPTION 'not again' USING ERRCODE = '42501';")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "refused"
    assert database.sql("SELECT last_value FROM tries") == "3"


# The rows and "command complete" come before the commit: a commit that fails takes its verdicts back.
def test_a_verdict_counts_only_once_it_is_committed(database):
    database.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not committed'"
                 " USING ERRCODE = '53100'; END $$")
    database.sql("CREATE CONSTRAINT TRIGGER no AFTER INSERT ON hapax.operations DEFERRABLE INITIALLY DEFERRED FOR EACH "
                 "ROW EXECUTE FUNCTION no()")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "unavailable"
        assert "not committed" in run.text()
        database.sql("DROP TRIGGER no ON hapax.operations")
        assert run("claim", "k", "1") == "claimed"


# Rows that are none of hapax.run()'s are no answer, and not "absent".
def test_rows_of_something_else_are_no_answer(database):
    replace_run(database, "RETURN QUERY SELECT 1;")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "indeterminate"
        assert "make no sense" in run.text()


# Somebody has the row locked: nobody waits for him, and what is his to decide is not said.
def test_a_row_that_is_held_is_unavailable_at_once(database):
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "claimed"
        holder = database.connect()
        holder.cursor().execute("SELECT FROM hapax.operations FOR UPDATE")
        began = time.monotonic()
        assert run("complete", "k", "1", 200, "A", "b") == "unavailable"
        assert "holds" in run.text()
        assert run("claim", "other", "1") == "claimed"
        assert time.monotonic() - began < 25  # of 30, in which one who waits gets no answer
        holder.close()
        assert run("complete", "k", "1", 200, "A", "b") == "ok"


# A caller's own transaction on one key, open for as long as it likes, is in flight for that key and nothing to the
# others.
def test_an_open_transaction_delays_nobody_else(database):
    with Handle(database.uri()) as run:
        holder = database.connect()
        holder.cursor().execute("SELECT * FROM hapax.begin('default', 'held')")
        began = time.monotonic()
        for i in range(1000):
            run.begin("claim", f"k{i}", "1")
        assert [run.verdict() for _ in range(1000)] == ["claimed"] * 1000
        took = time.monotonic() - began
        assert run("claim", "held", "1") == "in_flight"
        holder.rollback()
        wait_for(lambda: run("claim", "held", "1") == "claimed", "the claim, once the other has gone")
        holder.close()
        began = time.monotonic()
        for i in range(1000):
            run.begin("claim", f"l{i}", "1")
        assert [run.verdict() for _ in range(1000)] == ["claimed"] * 1000
        assert took < 10 * (time.monotonic() - began) + 20  # each of a thousand that waited would take its 30 s


# ---- what is there -----------------------------------------------------------------------


def test_without_a_schema_it_says_what_to_do(server, hapax):
    database = Database(server, init=False)
    done = hapax("check", "--store", database.uri())
    assert done.code == 2 and 'run "hapax init"' in done.err
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "unsupported"
        assert hapax("init", "--store", database.uri()).code == 0
        assert run("claim", "k", "1") == "claimed"


VERSION = "FUNCTION hapax.version(program integer DEFAULT 0) RETURNS integer LANGUAGE sql"


@pytest.mark.parametrize("version, advice", [(5, 'run "hapax init"'), (7, "use a newer Hapax")])
def test_another_version_is_refused_by_both_numbers(database, version, advice):  # promise 31
    database.sql(f"CREATE OR REPLACE {VERSION} AS 'SELECT {version}'")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "unsupported"
        text = run.text()
        assert f"of version {version}, this is for version 6" in text and advice in text


def test_before_version_6_it_says_what_to_do(database, hapax):
    """Its function takes no program's version. `hapax init` puts the new one in its place, with what was granted."""
    database.sql("DROP FUNCTION hapax.version; DELETE FROM hapax.schema_version WHERE version > 5;"
                 "CREATE FUNCTION hapax.version() RETURNS integer LANGUAGE sql AS 'SELECT 5';"
                 "COMMENT ON FUNCTION hapax.version IS 'the version';"
                 "GRANT EXECUTE ON FUNCTION hapax.version TO pg_monitor")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "unsupported" and 'run "hapax init"' in run.text()
        assert hapax("init", "--store", database.uri()).code == 0
        assert run("claim", "k", "1") == "claimed"
    assert database.sql("SELECT has_function_privilege('pg_monitor', 'hapax.version(integer)', 'execute')") == "t"


# Doors of the version before connect again while they are exchanged one by one.
def test_a_newer_schema_serves_whom_it_says(database, hapax):
    database.sql("INSERT INTO hapax.schema_version (version) VALUES (7)")
    with Handle(database.uri()) as run:
        assert run("claim", "k", "1") == "claimed"
    assert hapax("list", "--store", database.uri()).code == 0
    done = hapax("init", "--store", database.uri())
    assert done.code == 2 and "of version 7, this is for version 6" in done.err


FUNCTIONS = "SELECT string_agg(pg_get_functiondef(oid), '' ORDER BY oid::regprocedure::text) FROM pg_proc" \
            " WHERE pronamespace = to_regnamespace('hapax') AND prokind = 'f'"


# A schema of the same number from another build, before there were digests or since, gets the functions of this one.
@pytest.mark.parametrize("script", ["", f"; script {'0' * 64}"])
def test_functions_of_another_build_are_told_and_replaced(database, hapax, script):
    def says(command):
        return hapax(command, "--store", database.uri()).out

    ours, told = database.sql(FUNCTIONS), "danger +the functions .* are not those of this build"
    assert says("init") == "nothing had to be made\n" and not re.search(told, says("check"))
    database.sql("CREATE OR REPLACE FUNCTION hapax.mark_of(p_token bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';"
                 f"COMMENT ON SCHEMA hapax IS 'Hapax: each logical request takes effect once{script}'")
    assert re.search(told, says("check"))
    role = f"j{os.getpid()}_{database.name}"  # a job of a deployment, say
    database.sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA hapax TO {role};"
                 f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA hapax TO {role}")
    refused = hapax("init", "--store", database.uri().replace("//postgres@", f"//{role}@"))
    assert refused.code == 3 and 'run "hapax init" as that role' in refused.err, refused
    database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert "replaced the functions" in says("init") and database.sql(FUNCTIONS) == ours
    assert says("init") == "nothing had to be made\n" and not re.search(told, says("check"))


# Many at once: each succeeds, and there is one schema.
def test_init_may_be_run_by_many_at_once(server):
    database = Database(server, init=False)
    runs = [subprocess.Popen([HAPAX, "init", "--json", "--store", database.uri()],
                             stdout=subprocess.PIPE) for _ in range(4)]
    outs = [run.communicate(timeout=PATIENCE)[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, outs
    assert any(json.loads(out)["created"] for out in outs)


# What --print gives makes the same schema by psql.
def test_the_printed_script_is_the_schema(server, database, hapax):
    by_hand = Database(server, init=False)
    script = hapax("init", "--print", "--store", by_hand.uri()).out
    assert by_hand.sql("SELECT to_regnamespace('hapax') IS NULL") == "t"
    path = server.folder / f"{by_hand.name}.sql"  # longer than a word of a command may be
    path.write_text(script)
    by_hand.sql(f"\\i {path}")
    assert by_hand.sql(FUNCTIONS) == database.sql(FUNCTIONS)
    assert hapax("init", "--store", by_hand.uri()).out == "nothing had to be made\n"
    with Handle(by_hand.uri()) as run:
        assert run("claim", "k", "1") == "claimed"


# A role with nothing but what it was granted can run ops; one without is refused.
def test_a_role_needs_to_be_granted(database, hapax):
    role = f"r{os.getpid()}_{database.name}"
    database.sql(f"CREATE ROLE {role} LOGIN")
    uri = database.uri().replace("//postgres@", f"//{role}@")
    with Handle(uri) as run:
        assert run("claim", "k", "1") == "refused"
        assert "permission" in run.text()
    assert hapax("check", "--store", uri).code == 3
    database.sql(f"GRANT USAGE ON SCHEMA hapax TO {role}")
    database.sql(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA hapax TO {role}")
    with Handle(uri) as run:
        assert run("claim", "k", "1") == "claimed"


# ---- servers that come and go ------------------------------------------------------------


# A handle outlives its server: an op that was never sent is unavailable, and the next one is answered.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_handle_outlives_a_restart(number):
    with Postgres().start() as own:
        database = Database(own)
        with Handle(database.uri(timeout=f"{TIMEOUT_S}s")) as run:
            run.until("claimed", "claim", "k", "1")
            own.kill(number) if number == signal.SIGKILL else own.kill(signal.SIGINT)
            assert run("complete", "k", "1", 200, "A", "b") in ("unavailable", "indeterminate")
            own.launch()
            wait_for(lambda: run("complete", "k", "1", 200, "A", "b") == "ok", "the record being completed")


# Each backend of ours is ended, again and again, while ops run: no op gets another answer for it.
@pytest.mark.ci
def test_an_ended_backend_changes_no_answer(database):
    with Handle(database.uri()) as run:
        for i in range(50):
            run.begin("claim", f"k{i}", "1")
            database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                         " AND pid <> pg_backend_pid()")
            assert run.verdict() == "claimed"
    assert database.records() == ["1|1"] * 50


# So is a connection that is ended before any op went over it. One whose server ends all of them is not tried for ever.
@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_connection_that_is_cut_at_once_is_made_again(database, proxy, how):
    with Handle(database.uri(proxy.port)) as run:
        rule = proxy.cut("reply", how=how, containing=b"pg_is_in_recovery")
        assert run("claim", "k", "1") == "claimed"
        assert rule.fired.wait(PATIENCE)
    rule = proxy.cut("reply", how=how, containing=b"pg_is_in_recovery", times=0)
    with Handle(database.uri(proxy.port)) as run:
        began = time.monotonic()
        assert run("claim", "k2", "1") == "unavailable"
        assert rule.fired.wait(PATIENCE) and time.monotonic() - began < 25  # of 30
        proxy.heal()
        assert run("claim", "k2", "1") == "claimed"


# A server, or a database, that takes no writes is not the one; where the URI has another, that is asked.
def test_a_read_only_server_is_unavailable(database, proxy):
    database.sql(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    with Handle(database.uri(timeout=f"{TIMEOUT_S}s")) as run:
        def told():
            run.until("unavailable", "claim", "k", "1")
            return "read-only" in run.text()

        wait_for(told, "a refusal")


# So is a server that takes none any more, in the midst of a connection; also by a sweep.
@pytest.mark.parametrize("words", [("claim", "k2", "1"), ("purge", "-")])
def test_a_host_that_has_become_read_only_is_left(words):
    with Postgres().start() as first, Postgres().start() as second:
        for server in (first, second):
            server.initialised("postgres")
        uri = f"postgres://postgres@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres?timeout=30s"
        with Handle(uri) as run:
            assert run("claim", "k", "1") == "claimed"
            first.psql("ALTER SYSTEM SET default_transaction_read_only = on")
            first.psql("SELECT pg_reload_conf()")

            def left():
                assert run(*words) in ("claimed", "ok"), run.text()
                return second.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hapax'") == "1"

            wait_for(left, "a connection to the second")


def test_a_host_that_is_dead_or_hangs_does_not_hide_the_next(server, database, proxy):
    proxy.stall("request", times=0)
    for port in (free_port(), proxy.port):
        uri = f"postgres://postgres@127.0.0.1:{port},127.0.0.1:{server.port}/{database.name}?timeout=6s&sslmode=disable"
        with Handle(uri) as run:
            keys = (f"{port}-{n}" for n in range(1000))

            def stays():
                """With the one that answers; where that was late, it looks for another, and is asked again."""
                key = next(keys)
                run.until("claimed", "claim", key, "1")
                before, given = proxy.connections, run("complete", key, "1", 200, "A", "b")
                assert given in ("ok", "unavailable", "indeterminate"), given
                assert given != "ok" or proxy.connections == before
                return given == "ok"

            wait_for(stays, "a completion")


def test_nobody_there_is_unavailable_and_within_its_time():
    with Handle(f"postgres://postgres@127.0.0.1:{free_port()}/x?timeout=3s") as run:
        began = time.monotonic()
        for _ in range(10):
            assert run("claim", "k", "1") == "unavailable"
            assert "connection refused" in run.text()
        assert 0.5 < time.monotonic() - began < 60  # it pauses between its tries, and not for long


# ---- logins and TLS ----------------------------------------------------------------------


def test_a_wrong_password_is_refused_and_not_shown():
    hba = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    with Postgres(hba=hba).start() as own:
        own.psql("ALTER ROLE postgres PASSWORD 'tulip'")
        for password, verdict in (("daisy", "refused"), ("tulip", "unsupported")):
            with Handle(own.uri(timeout="30s").replace("postgres@", f"postgres:{password}@")) as run:
                assert run("claim", "k", "1") == verdict
                text = run.text()
                assert password not in text
        with Handle(own.uri("nosuch", timeout="30s").replace("postgres@", "postgres:tulip@")) as run:
            assert run("claim", "k", "1") == "refused"
            assert "nosuch" in run.text()


def make_certificate(folder, user):
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
             "-days", "2", "-subj", "/CN=localhost", "-addext",
             "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    if user:
        for name in ("key.pem", "cert.pem"):
            subprocess.run(["chown", user, str(folder / name)], check=True)
    (folder / "key.pem").chmod(0o600)


def test_tls_knows_the_server_or_goes_no_further(folder, hapax):
    own = Postgres(hba="local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
    make_certificate(own.folder, own.user)
    own.options.update(ssl="on", ssl_cert_file=own.folder / "cert.pem", ssl_key_file=own.folder / "key.pem")
    make_certificate(folder, None)
    with own.start():
        name = own.database()

        def uri(host, certificate, mode="verify-full"):
            return f"postgres://postgres@{host}:{own.port}/{name}?timeout=30s&sslmode={mode}&sslrootcert={certificate}"

        good = uri("localhost", own.folder / "cert.pem")
        assert hapax("init", "--store", good).code == 0
        assert hapax.op(good, "claim", "k", "1") == "claimed"
        for bad, why in ((uri("127.0.0.1", own.folder / "cert.pem"), "host name|certificate"),
                         (uri("localhost", folder / "cert.pem"), "certificate"),
                         (f"postgres://postgres@localhost:{own.port}/{name}?sslmode=disable", "encryption")):
            with Handle(bad) as run:
                assert run("claim", "k2", "1") in ("unavailable", "refused")
                assert re.search(why, run.text())


# ---- check, purge, list --------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("setting, value, says", [
    ("synchronous_commit", "off", "synchronous_commit is off"), ("fsync", "off", "fsync is off"),
    ("full_page_writes", "off", "full_page_writes is off")])
def test_check_knows_what_can_lose_an_answer(hapax, setting, value, says):
    options = {"fsync": "on", setting: value}
    with Postgres(**options).start() as own:
        database = Database(own)
        done = hapax("check", "--store", database.uri())
        assert done.code == 1 and re.search(f"danger +{says}", done.out)
        assert done.out.count("danger") == 1


def test_plain_text_over_a_network_is_a_danger(hapax):
    """An address that is not the loopback one stands for another machine."""
    with Postgres(fsync="on").start() as own:
        database = Database(own)
        done = hapax("check", "--store", database.uri().replace("127.0.0.1", "0.0.0.0"))
        assert done.code == 1 and re.search("danger +the connection to 0.0.0.0 is not encrypted", done.out), done.out


def test_check_finds_a_pooler_and_nothing_else(hapax):
    with Postgres(fsync="on").start() as own, PgBouncer(own).start() as pooler:
        database = Database(own)
        assert hapax("check", "--store", database.uri()).code == 0
        done = hapax("check", "--store", database.uri(port=pooler.port))
        assert done.code == 0 and "pooler" in done.out


def test_purge_and_list_see_what_is_there(database, hapax):
    uri = database.uri()
    assert hapax.op(uri, "claim", "gone", "1", 1, "rerun", 1) == "claimed"
    hapax.completed(uri, "kept")
    assert hapax.op(uri, "claim", "stuck", "1", 1, "rerun") == "claimed"
    wait_for(lambda: hapax("purge", "--store", uri, "--json").json["purged"] == 1, "the expired record being removed")
    assert database.sql("SELECT count(*) FROM hapax.operations") == "2"
    assert len(hapax("list", "--store", uri, "--json").lines) == 2
    assert [line["state"] for line in hapax("list", "--state", "started", "--store",
                                            uri, "--json").lines] == ["started"]
