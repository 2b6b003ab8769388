"""Who may come in at a Kafka that asks, and that nobody reads the password: TLS, PLAIN and SCRAM, and what is printed
of them. Against a real Kafka."""
import urllib.parse

import psycopg2
import pytest

import pg
from conftest import PATIENCE, end, read_line, wait_until
from kafka_server import JARS, PASSWORD, USER, Kafka
from rabbit import Consumer, Handler
from topics import Topic, confluent_kafka


HUSH = "hu5h"  # is in each password here
assert HUSH in PASSWORD
# Kafka 4 refuses the SCRAM of librdkafka before 2.6.1 (its pull request 4895). Where the system's librdkafka
# is older, hapax runs with the one of tools/kafka/fetch.
OLD = confluent_kafka.libversion()[1] < 0x020601ff
NEWER = {"LD_LIBRARY_PATH": str(next(JARS.resolve().glob("librdkafka-*"), "missing: tools/kafka/fetch"))} if OLD else {}
SCRAM = {"sasl.mechanism": "SCRAM-SHA-256"}


def quoted(text):
    return urllib.parse.quote(text, safe="")


class Login:
    """How a command is told who it is: parameters of its URIs, and its environment."""

    def __init__(self, parameters, user=None, password=PASSWORD, **env):
        self.parameters = parameters
        self.env = env | ({"HAPAX_KAFKA_USER": user, "HAPAX_KAFKA_PASSWORD": password} if user else {})


LOGINS = {
    "environment": Login({}, USER),  # PLAIN over TLS, where nothing else is said
    "uri": Login({"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": USER,
                  "sasl.password": quoted(PASSWORD)}),
    "scram": Login({"security.protocol": "sasl_ssl", **SCRAM}, USER, **NEWER),
}
ALL = ["scram", "environment", pytest.param("uri", marks=pytest.mark.ci)]


@pytest.fixture(scope="module")
def kafka():
    with Kafka(logins=True) as kafka:
        yield kafka.start()


@pytest.fixture
def topic(kafka):
    return Topic(kafka, partitions=2)


@pytest.fixture
def handler():
    handler = Handler()
    yield handler
    handler.close()


def source(topic, **parameters):
    return topic.broker.login_uri(topic.name, group=topic.name, **parameters)


def ended(process):
    """Its exit status and all it printed; no password is in that."""
    code = end(process)
    out, err = process.communicate()
    assert HUSH not in out + err, out + err
    return code, out + err


# ---- those who may --------------------------------------------------------------------------------


@pytest.mark.parametrize("login", ALL)
def test_consume_and_redrive_come_in(hapax, topic, handler, store, login):
    login = LOGINS[login]
    handler.answers = lambda body: 422 if body == "bad" else 200
    topic.publish("one", "bad", "two")
    consumer = Consumer(hapax, source(topic, **login.parameters), handler.url, store, **login.env)
    assert HUSH not in consumer.line
    consumer.wait_metric("hapax_consumer_acknowledged_total", 2)
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    assert HUSH not in consumer.get("/metrics")[1] + consumer.get("/health")[1]
    handler.answers = lambda body: 200
    broker = topic.broker
    done = hapax("redrive", "--from", broker.login_uri(topic.dead.name, **login.parameters), "--to",
                 broker.login_uri(topic.name, **login.parameters), "--json", **login.env)
    assert done.code == 0 and done.json["put_back"] == 1 and HUSH not in done.out + done.err, done.out + done.err
    consumer.wait_metric("hapax_consumer_acknowledged_total", 3)
    assert sorted(handler.bodies) == ["bad", "bad", "one", "two"]
    code, said = ended(consumer.process)
    assert code == 0 and "connected" in said
    wait_until(lambda: not topic.left(), lambda: f"nothing being left ({topic.left()})")


@pytest.mark.some(1)
@pytest.mark.parametrize("login", ALL)
def test_relay_comes_in(hapax, topic, login):
    login, database = LOGINS[login], pg.Database(pg.server())
    process = relay(hapax, database, topic.broker.login_uri(**login.parameters), **login.env)
    put_in_outbox(database, topic, "one", "two")
    wait_until(lambda: topic.ready() == 2, "two messages")
    wait_until(lambda: waiting(database) == 0, "the rows having ended")
    assert ended(process)[0] == 0


def relay(hapax, database, to, **env):
    process = hapax.start("relay", "--from", database.uri, "--to", to, "--metrics", "127.0.0.1:0", **env)
    process.ready = read_line(process)
    assert "publishes" in process.ready and HUSH not in process.ready, process.ready + process.stderr.read()
    return process


def put_in_outbox(database, topic, *bodies):
    with psycopg2.connect(database.uri) as conn, conn.cursor() as cursor:
        for body in bodies:
            cursor.execute("SELECT hapax.publish(%s, 'a', %s, NULL, %s)", (topic.name, f"k-{body}", body.encode()))
    conn.close()


def waiting(database):
    return database.one("SELECT count(*) FROM hapax.outbox WHERE state = 0")


# ---- those who may not ------------------------------------------------------------------------------


@pytest.mark.some()
@pytest.mark.parametrize("parameters", [{}, SCRAM], ids=["PLAIN", "SCRAM"])
@pytest.mark.parametrize("user, password", [(USER, f"{HUSH}-not"), ("nobody", PASSWORD)])
def test_who_is_not_let_in_is_told(hapax, topic, handler, store, parameters, user, password):
    topic.publish("one")
    env = Login({}, user, password).env
    done = hapax("consume", "--from", source(topic, **parameters), "--to", handler.url, "--store", store, **env)
    assert done.code == 1 and done.out == "", done.out + done.err
    last = done.err.splitlines()[-1]
    assert f'cannot read topic "{topic.name}"' in last and "the broker does not accept the login" in last, done.err
    assert ("librdkafka 2.6.1" in last) == (OLD and parameters == SCRAM), done.err
    redriven = hapax("redrive", "--from", topic.broker.login_uri(topic.dead.name, **parameters), "--to",
                     topic.broker.uri(topic.name), **env)
    assert redriven.code == 1 and "the broker does not accept the login" in redriven.err, redriven.err
    assert redriven.err.count("\n") == 1
    for said in (done.err, redriven.out + redriven.err):
        assert HUSH not in said, said
    assert not handler.bodies and topic.ready() == 1


def test_a_password_that_is_not_encoded_is_not_shown(hapax, topic, handler, store):
    uri = source(topic, **{"sasl.username": USER, "sasl.password": PASSWORD})
    done = hapax("consume", "--from", uri, "--to", handler.url, "--store", store)
    assert done.code == 2 and "percent-encoded" in done.err and HUSH not in done.out + done.err, done.err


# A CA that is not the broker's: nothing is sent there, no password either, and it goes on asking.
@pytest.mark.parametrize("parameters", [{}, {"security.protocol": "ssl"}], ids=["login", "none"])
def test_a_broker_with_another_ca_is_not_trusted(hapax, topic, handler, store, folder, parameters):
    topic.publish("one")
    uri = source(topic, **parameters).replace(f"ssl.ca.location={topic.broker.ca}&", "")
    env = LOGINS["environment"].env if not parameters else {}
    consumer = Consumer(hapax, uri, handler.url, store, ready=False, **env)
    line = ""
    while "the broker is away" not in line:
        line = consumer.process.stderr.readline()
        assert line and HUSH not in line, "it ended"
    assert "certificate" in line and "verif" in line, line
    assert consumer.process.poll() is None and not handler.bodies
    assert ended(consumer.process)[0] == 0
    if not env:  # once is enough: half a minute goes by before it gives up
        return
    done = hapax("redrive", "--from", uri.replace(f"group={topic.name}", "group=other"),
                 "--to", topic.broker.uri(topic.name), **env)
    assert done.code == 3 and "certificate" in done.err and done.err.count("\n") == 1, done.err
    assert HUSH not in done.out + done.err, done.err


def test_a_ca_that_cannot_be_read_is_refused(hapax, topic, handler, store):
    uri = source(topic).replace(str(topic.broker.ca), "/no/such/ca.pem")
    done = hapax("consume", "--from", uri, "--to", handler.url, "--store", store, **LOGINS["environment"].env)
    assert done.code == 1 and "ssl.ca.location failed" in done.err.splitlines()[-1], done.err
    assert HUSH not in done.out + done.err


# TLS where the broker speaks none, and none where it asks for TLS.
@pytest.mark.parametrize("plain", [False, True])
def test_the_wrong_protocol_is_said(hapax, topic, handler, store, plain):
    broker = topic.broker
    uri, env = (f"kafka://127.0.0.1:{broker.tls_port}/{topic.name}?group=g", {}) if plain else \
        (f"kafka://127.0.0.1:{broker.port}/{topic.name}?group=g", LOGINS["environment"].env)
    process = Consumer(hapax, uri, handler.url, store, ready=False, **env).process
    line = ""
    while "the broker is away" not in line:
        line = process.stderr.readline()
        assert line and HUSH not in line, "it ended"
    assert line.split("the broker is away")[1].strip(": \n"), line
    assert ended(process)[0] == 0


# With rows and without: librdkafka logs in by itself.
@pytest.mark.some(1)
@pytest.mark.parametrize("rows", [0, 1])
def test_a_relay_that_is_not_let_in_ends_and_keeps_its_rows(hapax, topic, rows):
    database = pg.Database(pg.server())
    put_in_outbox(database, topic, *["one"][:rows])
    process = relay(hapax, database, topic.broker.login_uri(), **Login({}, USER, f"{HUSH}-not").env)
    assert process.wait(PATIENCE) == 1
    said = process.stderr.read()
    assert "the broker does not accept the login" in said and HUSH not in said, said
    assert waiting(database) == rows and topic.ready() == 0
