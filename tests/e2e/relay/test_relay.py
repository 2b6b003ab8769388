"""hapax relay: what was committed is published, in order, whoever dies; real PostgreSQL, real RabbitMQ.

HAPAX_RELAY_ROUNDS (8) is how often a relay is killed or stopped while four writers write; 200 in a soak.
"""
import collections
import hashlib
import json
import os
import random
import re
import signal
import sys
import threading
import time
import types
import urllib.request

import psycopg2
import psycopg2.errors
import pytest

import rabbit
import sqs
from conftest import HAPAX, PATIENCE, ROOT, at_some_pace, end, read_line, wait_until
from pg import Database

sys.path.insert(0, str(ROOT / "tests/servers"))
import postgres_server  # noqa: E402
from collector import Collector  # noqa: E402
from process import faketime, free_port  # noqa: E402
from proxy import Proxy  # noqa: E402

ROUNDS = int(os.environ.get("HAPAX_RELAY_ROUNDS", 8))


@pytest.fixture(scope="module")
def server():
    running = postgres_server.Postgres(max_connections=60).start()
    yield running
    running.end()


@pytest.fixture
def database(server):
    return Database(server)


@pytest.fixture
def queue():
    return rabbit.Queue(rabbit.server())


def publish(database, queue, *payloads, aggregate="a", key=None, step=None, headers=None):
    with psycopg2.connect(database.uri) as conn, conn.cursor() as cursor:
        for payload in payloads:
            cursor.execute("SELECT hapax.publish(%s, %s, %s, %s, %s, %s)",
                           (getattr(queue, "name", queue), aggregate,
                            key or f"k-{payload}", step, str(payload).encode(),
                            json.dumps(headers or {})))
    conn.close()


def relay(hapax, database, *words, broker=None, uri=None, ready=True, **env):
    process = hapax.start("relay", "--from", uri or database.uri, "--to", broker or rabbit.server().uri(), *words,
                          **env)
    if ready:
        process.ready = read_line(process)
        assert "publishes" in process.ready, process.ready + process.stderr.read()
    return process


def bodies(queue, n):
    """n messages of the queue with different bodies, with their headers; they are taken out, second copies too."""
    found = []
    wait_until(lambda: found.extend(queue.take()) or len({body for body, _ in found}) >= n,
               lambda: f"{n} messages ({found})")
    own = ("hapax-letter", "x-delivery-count")  # the sink's, and the queue's
    return [(body, {name: value for name, value in headers.items() if name not in own}) for body, headers in found]


def waiting(database):
    return database.run("SELECT count(*) FROM hapax.outbox WHERE state = 0")[0][0]


# ---- what is published ----------------------------------------------------------------------


def test_what_was_committed_is_published_with_its_key(hapax, database, queue):
    relay(hapax, database)
    conn = psycopg2.connect(database.uri)
    with conn.cursor() as cursor:
        cursor.execute("SELECT hapax.publish(%s, 'a', 'gone', NULL, 'never')", (queue.name,))
    conn.rollback()
    conn.close()
    publish(database, queue, "one", key="order 17", step="pay", headers={"x-tenant": "é", "x-like": "b"})
    publish(database, queue, "two", key='with "quotes"')
    publish(database, queue, "three", key="schlüssel")
    (one, two, three) = bodies(queue, 3)
    assert one == ("one", {"idempotency-key": '"order 17:pay"', "x-tenant": "é", "x-like": "b"})
    assert two == ("two", {"idempotency-key": '"with \\"quotes\\""'})
    assert three == ("three", {})  # its id is the key
    wait_until(lambda: waiting(database) == 0, "the rows having ended")


# The environment of a process, and a server's settings, are no part of a key.
def test_a_key_is_utf8_whatever_the_environment_says(hapax, database, queue):
    relay(hapax, database, PGCLIENTENCODING="LATIN1")
    publish(database, queue, "one", key="schlüssel")
    wait_until(lambda: waiting(database) == 0, "the row having ended")
    with queue.channel() as channel:
        _, properties, _ = channel.basic_get(queue.name, auto_ack=True)
    assert properties.message_id == "schlüssel"


# Such a database may hold any bytes. To a client in UTF-8 it sends an error instead of those that are no UTF-8. A
# header that an earlier publish() let pass holds up no message behind it.
def test_a_database_without_an_encoding_stops_no_relay(hapax, server, queue):
    name = f"ascii_{os.getpid()}"
    server.psql(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    server.initialised(name)
    server.psql(f"SELECT hapax.publish('{queue.name}', 'a', 'k-header', NULL, 'header', '{{\"a\": \"?\"}}')", name)
    server.psql("UPDATE hapax.outbox SET headers = E'{\"a\": \"M\\xFCller\"}'", name)
    server.psql(f"SELECT hapax.publish('{queue.name}', E'M\\xFCller', 'k-ascii', NULL, 'ascii', '{{}}')", name)
    relay(hapax, None, uri=server.uri(name))
    found = dict(bodies(queue, 2))
    assert set(found) == {"ascii", "header"} and found["header"]["a"] == b"M\xFCller"


# Neither its own line nor that of `hapax config` has what may be a secret of the broker's.
def test_no_property_of_a_broker_is_shown(hapax, database):
    uri = f"kafka://127.0.0.1:{free_port()}/?sasl.oauthbearer.config=geheim"
    assert "geheim" not in relay(hapax, database, broker=uri).ready
    for words in (["relay", "--to", uri], ["web", "--dead", f"amqp://u:sehr geheim@h/?queue=a {uri}"],
                  ["consume", "--to", "http://127.0.0.1/?token=geheim"],
                  ["check", "--store", "redis://:sehr geheim@127.0.0.1"]):
        shown = hapax("config", *words)
        assert shown.code == 0 and "127.0.0.1" in shown.out and "geheim" not in shown.out, shown.out


# A span and an event for what is published, under the context that its writer gave, which goes out unchanged.
def test_what_is_published_is_traced(hapax, database, queue, folder):
    collector, parent = Collector(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    relay(hapax, database, "--traces", collector.url, "--events", folder / "events")
    publish(database, queue, "one", key="secret-key", headers={"traceparent": parent})
    assert bodies(queue, 1)[0][1]["traceparent"] == parent
    wait_until(lambda: collector.named(f"publish {queue.name}"), "the span")
    span, = collector.named(f"publish {queue.name}")
    assert (span.trace, span.parent, span.kind, span.failed) == (*parent.split("-")[1:3], 4, False)
    assert span.attributes["messaging.destination.name"] == queue.name and b"secret-key" not in collector.bodies[0]
    wait_until(lambda: (folder / "events").read_text().endswith("\n"), "the event")
    event = json.loads((folder / "events").read_text())
    assert (event["door"], event["scope"], event["what"]) == ("relay", queue.name, f"{queue.name} 1")
    assert (event["class"], event["answer"], event["id"]) == ("final", "fresh", None)
    assert event["trace"] == f"00-{span.trace}-{span.id}-01" and "secret-key" not in str(event)
    collector.close()


# The key that a consumer reads is the one that was published: the message and its repeat are one operation.
def test_a_consumer_reads_the_key_it_was_published_with(hapax, database, queue, store):
    handler = rabbit.Handler()
    rabbit.Consumer(hapax, queue.uri(), handler.url, store, "--scope", "s")
    relay(hapax, database)
    for key in ("order 17", "schlüssel", "k" * 255):
        publish(database, queue, "m", key=key)
        publish(database, queue, "m", key=key)
    handler.wait_calls(3)
    wait_until(lambda: waiting(database) == 0 and not queue.left(), "all having ended")
    assert handler.bodies == ["m"] * 3
    handler.close()


def default_sources():
    """Where a consumer looks for a key, as the page has it."""
    page = (ROOT / "docs/consume.md").read_text()
    return re.search(r"The default is\n\n((?: {4}\S+\n)+)", page)[1].replace("\n", "").replace(" ", "").split(",")


def spellings(source):
    """Headers by which a producer could name a key to this source."""
    if source == "cloudevents":
        return [{f"{by}id": "other", f"{by}source": "/s"} for by in ("ce_", "CE-", "cloudEvents:", "cloudEvents_")]
    return [{name: "other"} for name in (source, source.lower(), source.upper())]


# Whatever the headers are: publish refuses them, or the consumer takes the key that was published.
def test_no_header_of_the_users_is_taken_for_the_key(hapax, database, queue, store):
    handler, taken, refused = rabbit.Handler(), {}, set()
    sources = default_sources()
    assert "Idempotency-Key" in sources and "message-id" in sources and "cloudevents" in sources
    for source in sources:
        for number, headers in enumerate(spellings(source)):
            for key in (f"key-{source}-{number}", f"schlüssel-{source}-{number}"):
                try:
                    publish(database, queue, key, key=key, headers=headers)
                    taken[key] = key if key.isascii() else "sha256-" + hashlib.sha256(key.encode()).hexdigest()
                except psycopg2.errors.InvalidParameterValue as error:
                    refused.add((source, key.isascii()))
                    assert "a consumer would take it for the key" in str(error)
    assert {("Idempotency-Key", True), ("x-idempotency-key", False), ("cloudevents", False)} <= refused
    assert ("cloudevents", True) not in refused
    with pytest.raises(psycopg2.errors.InvalidParameterValue), psycopg2.connect(database.uri) as conn:
        conn.cursor().execute("SELECT hapax.publish('q', 'a', 'schlüssel', content_type => %s)",
                              ("application/CloudEvents+JSON",))
    rabbit.Consumer(hapax, queue.uri(), handler.url, store)
    relay(hapax, database)
    handler.wait_calls(len(taken))
    assert {body: headers["Idempotency-Key"].strip('"') for body, headers in handler.calls} == taken
    handler.close()


def test_to_sqs_an_aggregate_is_a_group_and_keeps_its_order(hapax, database):
    """Though parts of batches fail, and answers are lost: what was sent again is taken once."""
    hapax.env.update(sqs.KEYS)
    queue = sqs.Queue(sqs.server(), fifo=True)
    queue.broker.faults({"op": "SendMessageBatch", "how": "partial",
                         "entries": [0, 1], "code": "InternalError", "times": 4},
                        {"op": "SendMessageBatch", "how": "lost", "times": 2})
    for aggregate in "abc":
        publish(database, queue, *(f"{aggregate}{n}" for n in range(12)), aggregate=aggregate)
    process = relay(hapax, database, broker=queue.broker.uri())
    wait_until(lambda: waiting(database) == 0, "that all are published")
    messages = sorted(queue.inside()["ready"], key=lambda one: one["sequenceNumber"])
    for aggregate in "abc":
        assert [one["body"]
                for one in messages if one["messageGroupId"] == aggregate] == [f"{aggregate}{n}" for n in range(12)]
    assert len(messages) == 36
    assert {one["messageAttributes"]["idempotency-key"]["StringValue"].strip('"') for one in messages} == \
        {f"k-{one['body']}" for one in messages}
    assert end(process) == 0
    queue.broker.faults()


def test_it_is_called_and_polls_only_for_the_rest(hapax, database, queue):
    relay(hapax, database, "--poll", "60s")
    publish(database, queue, "first")
    bodies(queue, 1)
    begun = time.monotonic()
    publish(database, queue, "second")
    bodies(queue, 1)
    assert time.monotonic() - begun < 45  # it looks for itself after 60


def test_behind_pgbouncer_polling_alone_does(hapax, server, database, queue):
    bouncer = postgres_server.PgBouncer(server).start()
    try:
        relay(hapax, database, "--poll", "100ms", uri=bouncer.uri(database.name))
        publish(database, queue, *range(20))
        assert [body for body, _ in bodies(queue, 20)] == [str(i) for i in range(20)]
    finally:
        bouncer.end()


# The second transaction has the higher number, and is published before the first one commits.
def test_one_that_commits_late_is_found_before_the_next_poll(hapax, database, queue):
    relay(hapax, database, "--poll", "60s")
    with psycopg2.connect(database.uri) as late:
        late.cursor().execute("SELECT hapax.publish(%s, 'late', 'k', NULL, 'late')", (queue.name,))
        publish(database, queue, "early")
        bodies(queue, 1)
        begun = time.monotonic()
    late.close()
    assert bodies(queue, 1)[0][0] == "late" and time.monotonic() - begun < 45


# As under a transaction that is open for hours: what searches from the beginning gets no answer in time.
def test_a_search_that_gets_no_answer_holds_up_no_later_message(hapax, server, database, queue):
    relay(hapax, database, uri=server.uri(database.name, timeout="1s"))
    publish(database, queue, "first")
    bodies(queue, 1)
    wait_until(lambda: waiting(database) == 0, "the row having ended")
    database.run("""ALTER FUNCTION hapax.outbox_next RENAME TO turn;
        CREATE FUNCTION hapax.outbox_next(bigint[], text[], text[], text[], bigint, integer, smallint[],
            p_floor bigint, integer) RETURNS TABLE (seq bigint, topic text, aggregate text, key text,
            content_type text, headers bytea, payload bytea) LANGUAGE plpgsql AS $$
        BEGIN
            IF p_floor = 0 THEN
                PERFORM pg_sleep(30);
            END IF;
            RETURN QUERY SELECT * FROM hapax.turn($1, $2, $3, $4, $5, $6, $7, $8, $9);
        END $$""")
    publish(database, queue, "second", "third")
    assert [body for body, _ in bodies(queue, 2)] == ["second", "third"]
    wait_until(lambda: waiting(database) == 0, "the rows having ended")


# Nor does it count for long what waits: half a second in five, and not in two.
def test_what_waits_is_counted_in_a_tenth_of_the_time(hapax, database):
    database.run("""CREATE TABLE asked (at timestamptz);
        ALTER FUNCTION hapax.outbox_lag RENAME TO lag;
        CREATE FUNCTION hapax.outbox_lag(OUT bigint, OUT bigint, OUT bigint) LANGUAGE sql AS $$
            INSERT INTO public.asked VALUES (clock_timestamp());
            SELECT l.* FROM pg_sleep(0.5), hapax.lag() l $$""")
    relay(hapax, database)
    wait_until(lambda: database.run("SELECT count(*) FROM asked")[0][0] > 1, "a second count")
    assert database.run("SELECT max(at) - min(at) > interval '4.5 s' FROM asked") == [(True,)]


def test_published_rows_are_swept(hapax, database, queue):
    publish(database, queue, *range(50))
    relay(hapax, database, "--keep", "0")
    bodies(queue, 50)
    wait_until(lambda: waiting(database) == 0, "the rows having ended")
    relay(hapax, database, "--keep", "0")
    wait_until(lambda: database.run("SELECT count(*) FROM hapax.outbox")[0][0] == 0, "an empty table")


# As one over millions of rows, which takes step after step.
def test_a_relay_that_sweeps_without_end_hears_sigterm(hapax, database):
    database.run("""CREATE OR REPLACE FUNCTION hapax.outbox_sweep(p_keep_ms bigint, p_after bigint, OUT swept integer,
        OUT last bigint, OUT more boolean) LANGUAGE sql AS 'SELECT 0, p_after + 1, true'""")
    assert end(relay(hapax, database)) == 0


def test_metrics_and_health(hapax, database, queue):
    process = relay(hapax, database, "--metrics", "127.0.0.1:0")
    port = int(process.ready.split("port ")[1])
    publish(database, queue, 1, 2)
    bodies(queue, 2)

    def page(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()

    wait_until(lambda: "hapax_relay_published_total 2\n" in page("/metrics"), "two published")
    text = page("/metrics")
    assert "hapax_relay_parts 64\n" in text and "hapax_relay_connected 1\n" in text and page("/health") == "ok\n"
    assert "k-1" not in text


# ---- what cannot be published ---------------------------------------------------------------


def test_a_refused_one_holds_back_its_aggregate_alone_and_goes_aside(hapax, database, queue):
    publish(database, "no-such-queue", "bad", aggregate="x")
    publish(database, queue, "behind", aggregate="x")
    publish(database, queue, "other", aggregate="y")
    process = relay(hapax, database, "--retry", "50ms", "--attempts-max", "3")  # which finds all of them there
    assert [body for body, _ in bodies(queue, 2)] == ["other", "behind"]
    listed = hapax("list", "--outbox", "--json", "--store", database.uri)
    assert listed.code == 0, listed.err
    shown = json.loads(listed.out)
    assert (shown["topic"], shown["aggregate"], shown["tries"]) == ("no-such-queue", "x", 3) and shown["error"]
    assert "k-bad" not in listed.out
    late = rabbit.Queue(rabbit.server(), "no-such-queue")
    try:
        done = hapax("redrive", "--from", database.uri, "--key", "k-bad")
        assert done.code == 0 and "put back: 1" in done.out
        assert [body for body, _ in bodies(late, 1)] == ["bad"]
    finally:
        with late.channel() as channel:
            channel.queue_delete(late.name)
    assert hapax("redrive", "--from", database.uri, "--key", "k-bad").code == 1
    assert end(process) == 0
    said = process.stderr.read()
    assert len(re.findall(r'row \d+ for "no-such-queue" is refused: \S', said)) == 1 and "k-bad" not in said


def put_aside(database, count):
    database.run("SELECT hapax.publish('nowhere', 'a', 'k') FROM generate_series(1, %s)", count)
    database.run("UPDATE hapax.outbox SET state = 2, error = 'no such queue'")


# The count is that of the repeat; and where no answer comes, nobody can say that nothing was put back.
def test_a_put_back_whose_answer_is_lost_says_at_least(hapax, database):
    put_aside(database, 3)
    with Proxy(database.server.port) as proxy:
        words = ("redrive", "--json", "--key", "k", "--from")
        rule = proxy.cut("reply", containing=b"outbox_put_back")
        done = hapax(*words, database.server.uri(database.name, port=proxy.port, timeout="20s"))
        assert rule.fired.wait(PATIENCE) and (done.code, done.json) == (0, {"put_back": 0, "at_least": True}), done.err
        assert waiting(database) == 3

        def never_answered(seconds):
            put_aside(database, 3)
            proxy.cut("reply", containing=b"outbox_put_back", times=0)
            done = hapax(*words, database.server.uri(database.name, port=proxy.port, timeout=f"{seconds}s"))
            proxy.heal()
            assert waiting(database) >= 6, done.out
            told, failure = done.lines
            assert told == {"put_back": 0, "at_least": True} and failure["error"] == "indeterminate"
            assert done.code == 3

        at_some_pace(never_answered, 1, 10, 40)


# Of 1,500 the first thousand are back; the rest the database refuses, as a full disk would make it.
def test_what_was_put_back_before_a_failure_is_told(hapax, database):
    put_aside(database, 1500)
    database.run("""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                    BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = 'disk_full'; END $$;
                    CREATE TRIGGER refuse BEFORE UPDATE ON hapax.outbox FOR EACH ROW WHEN (OLD.seq > 1000)
                    EXECUTE FUNCTION refuse()""")
    done = hapax("redrive", "--json", "--from", database.uri)
    told, failure = done.lines
    assert told == {"put_back": 1000, "at_least": False} and waiting(database) == 1000
    assert (done.code, failure["error"]) == (3, "indeterminate") and "no room" in failure["text"]
    shown = hapax("redrive", "--from", database.uri, "--key", "other")
    assert (shown.code, shown.out) == (1, "put back: 0\n")


def test_each_row_aside_shows_its_own_error(hapax, database):
    topics = ["nowhere-1", "x" * 255, "nowhere-3"]
    for topic in topics:
        publish(database, topic, "bad", aggregate=topic[:9])
    relay(hapax, database, "--retry", "50ms", "--attempts-max", "1")
    wait_until(lambda: waiting(database) == 0, "the rows being put aside")
    listed = hapax("list", "--outbox", "--json", "--store", database.uri)
    errors = {row["topic"]: row["error"] for row in map(json.loads, listed.out.splitlines())}
    assert sorted(errors) == sorted(topics)
    for topic, error in errors.items():
        assert f'"{topic[:100]}' in error, errors


# PostgreSQL takes no half of a character: the row would never end, and its whole batch would be published again.
def test_an_error_that_is_cut_inside_a_character_ends_its_row(hapax, database):
    hapax.env.update(sqs.KEYS)
    publish(database, "\u6ce8" * 40, "bad")
    relay(hapax, database, "--attempts-max", "1", broker="sqs://r?endpoint=http://127.0.0.1:1")
    wait_until(lambda: waiting(database) == 0, "the row being put aside")
    (error,), = database.run("SELECT error FROM hapax.outbox")
    assert f'"{26 * chr(0x6ce8)}??"' in error, error


# RabbitMQ closes the channel over a body that is too large for it, and does not say which one it was.
def test_a_message_that_closes_the_channel_goes_aside_and_holds_up_no_other(hapax, database, queue):
    small = [f"small-{n}" for n in range(40)]
    for body in [*small[:20], "b" * 3000, "c" * 3000, *small[20:]]:
        publish(database, queue, body, aggregate=body[:9], key=body[:9])
    with rabbit.server().body_max(2000):
        process = relay(hapax, database, "--retry", "50ms", "--attempts-max", "2")
        assert {body for body, _ in bodies(queue, 40)} == set(small)
        wait_until(lambda: waiting(database) == 0, "all having ended")
    listed = hapax("list", "--outbox", "--json", "--store", database.uri)
    rows = [json.loads(line) for line in listed.out.splitlines()]
    assert [row["aggregate"][0] for row in rows] == ["b", "c"] and all("larger than" in row["error"] for row in rows)
    assert hapax("redrive", "--from", database.uri).code == 0
    assert {body[0] for body, _ in bodies(queue, 2)} <= {"b", "c", "s"}  # one that was lost may come twice
    wait_until(lambda: waiting(database) == 0, "the large ones having gone, too")
    assert end(process) == 0 and "away" not in process.stderr.read()


# publish() refuses these names. Rows of a time before it did are published without harm.
def test_rows_with_headers_that_would_close_the_channel_are_published(hapax, database, queue):
    headers = [{"CC": "x"}, {"BCC": "x"}, {"amqp-reply-to": "amq.rabbitmq.reply-to"}]
    for number, of_row in enumerate(headers):
        publish(database, queue, number, aggregate=str(number))
        database.run("UPDATE hapax.outbox SET headers = %s WHERE key = %s", json.dumps(of_row), f"k-{number}")
    process = relay(hapax, database)
    assert sorted(body for body, _ in bodies(queue, 3)) == ["0", "1", "2"]
    assert end(process) == 0 and "away" not in process.stderr.read()


@pytest.mark.parametrize("words, what", [
    (["--to", "amqp://localhost"], "--from URI is missing"),
    (["--from", "postgres://localhost/x"], "--to URI is missing"),
    (["--from", "postgres://localhost/x", "--to", "smtp://localhost"], "no broker"),
    (["--from", "redis://localhost", "--to", "amqp://localhost"], "postgres"),
    (["--from", "postgres://localhost/x", "--to", "amqp://localhost", "--batch", "1001"], "--batch"),
    (["--from", "postgres://localhost/x", "--to", "amqp://localhost", "--traces", "ftp://u:hush@x?token=hush"],
     'not to "ftp://u:***@x"'),
])
def test_bad_settings_are_named(hapax, words, what):
    done = hapax("relay", *words)
    assert done.code == 2 and what in done.err


# As hapax consume does. Once the broker has taken a login, the relay waits.
@pytest.mark.parametrize("rows", [0, 1])
def test_a_wrong_password_of_the_broker_ends_it(hapax, database, queue, rows):
    publish(database, queue, *range(rows))
    process = relay(hapax, database, broker=rabbit.server().uri().replace("guest:guest", "guest:geheim"))
    assert process.wait(PATIENCE) == 1
    said = process.stderr.read()
    assert "refused the login" in said and "geheim" not in said
    assert waiting(database) == rows


def test_a_database_without_the_outbox_is_refused(hapax, server):
    process = relay(hapax, None, uri=server.uri(server.database()), ready=False)
    assert process.wait(PATIENCE) == 2 and 'run "hapax init"' in process.stderr.read()


# As `hapax init` of an earlier day left them: the schema has the same number.
def test_functions_that_take_other_arguments_are_refused(hapax, database):
    database.run("DROP FUNCTION hapax.outbox_next")
    process = relay(hapax, database, ready=False)
    assert process.wait(PATIENCE) == 2 and 'not those of this Hapax (run "hapax init")' in process.stderr.read()


# ---- who dies -------------------------------------------------------------------------------


# The clock of the database goes on while the machine sleeps: so the lease is renewed at once afterwards.
def test_a_relay_whose_machine_was_suspended_renews_its_lease(hapax, database, tmp_path):
    def until():
        return database.run("SELECT max(until_us) FROM hapax.outbox_relays")[0][0]

    library = HAPAX.parent / "tests/e2e/relay/libsuspended.so"
    relay(hapax, database, "--lease", "1h", LD_PRELOAD=str(library), HAPAX_SUSPENDED=str(tmp_path / "slept"),
          ASAN_OPTIONS="verify_asan_link_order=0")
    wait_until(until, "the first lease")
    first = until()
    (tmp_path / "slept").write_bytes(bytes(1800))
    wait_until(lambda: until() > first, "the lease being renewed")


def test_sigterm_gives_its_parts_to_the_next_at_once(hapax, database, queue):
    first = relay(hapax, database, "--lease", "1h")
    publish(database, queue, 1)
    bodies(queue, 1)
    wait_until(lambda: waiting(database) == 0, "the row having ended")
    assert end(first) == 0
    relay(hapax, database)
    publish(database, queue, 2)
    assert [body for body, _ in bodies(queue, 1)] == ["2"]


@pytest.mark.ci
def test_a_broker_that_was_away_gets_all(hapax, database):
    broker = rabbit.rabbitmq_server.RabbitMQ().start()
    try:
        queue = rabbit.Queue(broker, **{"x-queue-type": "classic"})
        process = relay(hapax, database, broker=broker.uri())
        publish(database, queue, "before")
        bodies(queue, 1)
        broker.keep_queues()
        broker.kill()
        # A classic queue confirms one message of an aggregate after the other, each in a tenth of a second.
        for first in range(0, 300, 15):
            publish(database, queue, *range(first, first + 15), aggregate=f"a{first}")
        assert "the broker is away: " in process.stderr.readline()
        broker.restart()
        assert "the broker answers again" in process.stderr.readline()
        wait_until(lambda: waiting(database) == 0, "all being published")
        found = dict.fromkeys(body for body, _ in bodies(queue, 300))  # what it had not written down comes again
        found.pop("before", None)
        assert sorted(map(int, found)) == list(range(300))
        for first in range(0, 300, 15):
            assert [body for body in found if int(body) // 15 == first // 15] == [str(first + i) for i in range(15)]
    finally:
        broker.end()


# It is connected, and its letter is not confirmed. Here a minute is over at once.
@pytest.mark.ci
def test_a_row_that_an_alarm_keeps_back_is_told(hapax, database, folder):
    clock = folder / "clock"
    clock.write_text("+0")
    with rabbit.rabbitmq_server.RabbitMQ() as broker, (folder / "log").open("w") as log:
        queue = rabbit.Queue(broker.start())
        broker.alarm(True)
        relay(hapax, database, "--lease", "1h", broker=broker.uri(heartbeat="60s"), stderr=log,
              FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1", **faketime())
        publish(database, queue, "one")
        wait_until(broker.blocked, "the alarm")
        clock.write_text("+70")
        wait_until(lambda: "no row was published or refused for a minute: RabbitMQ has an alarm" in
                   (folder / "log").read_text(), lambda: f"the line in {(folder / 'log').read_text()}")
        broker.alarm(False)
        assert [body for body, _ in bodies(queue, 1)] == ["one"]


def test_a_database_that_was_away_is_waited_for(hapax, queue):
    server = postgres_server.Postgres(max_connections=30).start()
    try:
        database = Database(server)
        relay(hapax, database)
        publish(database, queue, "before")
        bodies(queue, 1)
        wait_until(lambda: waiting(database) == 0, "the row having ended")
        server.restart()
        publish(database, queue, "after")
        assert [body for body, _ in bodies(queue, 1)] == ["after"]
    finally:
        server.end()


# A database that takes no writes any more, though its connections live, is left for the URI's next host.
def test_a_host_that_has_become_read_only_is_left(hapax, queue):
    with postgres_server.Postgres().start() as first, postgres_server.Postgres().start() as second:
        for server in (first, second):
            server.initialised("postgres")
        relay(hapax, None, "--lease", "1s",
              uri=f"postgres://postgres@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres")
        publish(types.SimpleNamespace(uri=first.uri()), queue, "before")
        assert [body for body, _ in bodies(queue, 1)] == ["before"]
        first.psql("ALTER SYSTEM SET default_transaction_read_only = on")
        first.psql("SELECT pg_reload_conf()")
        publish(types.SimpleNamespace(uri=second.uri()), queue, "after")
        wait_until(lambda: "after" in [body for body, _ in queue.take()], "the row of the second")


# A failover to a standby that was behind, while a message is on its way: its row is lost, its number is given again.
def test_a_number_that_is_given_again_loses_no_message(hapax, database, queue):
    with Proxy(rabbit.server().port) as proxy:
        rule = proxy.stall("request", containing=b"first")
        relay(hapax, database, broker=rabbit.server().uri(port=proxy.port))
        publish(database, queue, "first")
        assert rule.fired.wait(PATIENCE)
        (seq,), = database.run("SELECT seq FROM hapax.outbox")
        database.run(f"DELETE FROM hapax.outbox; ALTER TABLE hapax.outbox ALTER seq RESTART WITH {seq}")
        publish(database, queue, "second")
        proxy.heal()
        assert [body for body, _ in bodies(queue, 2)] == ["first", "second"]
        wait_until(lambda: waiting(database) == 0, "the row having ended")


class Writers:
    """Transactions that write for one or two aggregates each, roll back now and then, and commit late."""

    def __init__(self, database, queue, seed):
        self.committed, self.lock, self.enough = collections.defaultdict(list), threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(database, queue, random.Random(seed + i), i))
                        for i in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self, database, queue, draw, number):
        conn, done = psycopg2.connect(database.uri), 0
        while not self.enough.is_set():
            names = sorted({f"a{draw.randrange(1000)}" for _ in range(draw.randrange(1, 9))})
            with conn.cursor() as cursor:
                for i, name in enumerate(names):
                    body = f"{name} {number}-{done}-{i}"
                    cursor.execute("SELECT hapax.publish(%s, %s, %s, NULL, %s)",
                                   (queue.name, name, body, body.encode()))
            self.enough.wait(draw.random() * .03)  # and so it is late; the queue is to stay within what a test reads
            if draw.random() < .1:
                conn.rollback()
                continue
            with self.lock:  # the order of commits is known
                conn.commit()
                for i, name in enumerate(names):
                    self.committed[name].append(f"{name} {number}-{done}-{i}")
            done += len(names)
        conn.close()

    def end(self):
        self.enough.set()
        for thread in self.threads:
            thread.join()


# Four relays, killed and stopped at random, with rows that commit late: of each aggregate the first copies are in the
# order of commits, and none is missing.
def test_relays_that_are_killed_keep_the_order_and_lose_nothing(hapax, database, queue):  # promise 41
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    print("seed", seed)
    words = ("--lease", "1s", "--poll", "100ms", "--batch", "50")
    relays = [relay(hapax, database, *words) for _ in range(4)]
    writers, kills = Writers(database, queue, seed), 0
    for done in range(ROUNDS):
        victim = draw.randrange(4)
        if done % 2 == 0:
            relays[victim].kill()
            relays[victim].wait()
            relays[victim] = relay(hapax, database, *words)
            kills += 1
        else:
            relays[victim].send_signal(signal.SIGSTOP)
            threading.Event().wait(1.2)  # longer than its lease: it wakes up a zombie
            relays[victim].send_signal(signal.SIGCONT)
    writers.end()
    wait_until(lambda: waiting(database) == 0, "all being published")
    assert [end(process) for process in relays] == [0] * 4
    seen = queue.take()
    first = collections.defaultdict(dict)
    for body, headers in seen:
        assert headers["idempotency-key"] == f'"{body}"'
        first[body.split(" ")[0]].setdefault(body)
    total = sum(map(len, writers.committed.values()))
    print(f"{total} rows, {len(seen) - total} repeated, {kills} kills, {ROUNDS - kills} stops")
    for name, expected in writers.committed.items():
        assert list(first[name]) == expected, f"{name}: {list(first[name])} is not {expected} (seed {seed})"
    assert set(first) == set(writers.committed)
