"""Kafka for tests: one node that is broker and controller, from the jars of tools/kafka/fetch."""
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time

from process import PATIENCE, NotReady, Server, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
JARS = pathlib.Path(os.environ.get("HAPAX_KAFKA_JARS", ROOT / "build/kafka"))
USER, PASSWORD = "alice", "hu5h & hu5h/%41"  # not fit for a URI as it stands


def have_kafka():
    """Whether there is a broker to start."""
    return any(JARS.glob("kafka_*.jar"))


class Kafka(Server):
    """A node of its own; options are properties of the broker.

    logins=True: beside the plain port another (.tls_port) that is TLS alone, with a certificate for 127.0.0.1 by a CA
    in .ca, and asks for a login: USER with PASSWORD, by PLAIN or SCRAM-SHA-256.
    """

    name = "kafka"
    taken = ("Address already in use",)

    def __init__(self, logins=False, **options):
        if not have_kafka():
            raise NotReady(f"there is no Kafka broker in {JARS} (tools/kafka/fetch)")
        super().__init__()
        self.options = {name.replace("_", "."): value for name, value in options.items()}
        self.logins, self.tls_port, self.ca, self.leaves = logins, None, None, None
        if logins:
            self.ca = self.make_certificates()
            (self.folder / "both.pem").write_text((self.folder / "key.pem").read_text()
                                                  + (self.folder / "cert.pem").read_text())

    def login_properties(self):
        """Of the port that asks for a login."""
        jaas = "org.apache.kafka.common.security"
        return {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.login.plain.sasl.jaas.config":
                f'{jaas}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "listener.name.login.scram-sha-256.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.folder / "both.pem",
        } if self.logins else {}

    def choose_ports(self):
        self.port, self.controller = free_port(), free_port()
        self.tls_port = free_port() if self.logins else None
        shutil.rmtree(self.folder / "data", ignore_errors=True)  # the controller's port is written there

    def properties(self):
        login = f",LOGIN://127.0.0.1:{self.tls_port}" if self.logins else ""
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller}{login}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}{login}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 100,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "log.cleaner.enable": "false",
            # A node that was killed takes its own place again at once.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "initial.broker.registration.timeout.ms": 60000,
        } | self.login_properties() | self.options

    def command(self):
        (self.folder / "properties").write_text("".join(f"{k}={v}\n" for k, v in self.properties().items()))
        self.format()
        return self.java(*self.classes(), "kafka.Kafka", self.folder / "properties")

    def java(self, *words):
        """A small machine that starts quickly."""
        return ["java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{JARS.resolve()}/*", *words]

    def classes(self):
        """Where its classes come from: an archive, which halves the time to start. The first broker leaves it, at its
        end."""
        mark = next(JARS.glob("of-*"), pathlib.Path("of-here")).name
        self.archive, self.leaves = JARS.resolve() / f"classes-{mark}.jsa", None
        if self.archive.exists():
            return [f"-XX:SharedArchiveFile={self.archive}"]
        self.leaves = self.archive.with_name(f"{self.archive.name}.{secrets.token_hex(5)}")
        return [f"-XX:ArchiveClassesAtExit={self.leaves}"]

    def end(self):
        if self.leaves and self.running and not self.stopped and not self.archive.exists():
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                self.kill(signal.SIGTERM)
                self.leaves.rename(self.archive)
        super().end()
        if self.leaves:
            self.leaves.unlink(missing_ok=True)

    def format(self):
        """Makes its empty storage: once per set of jars, and copied from then on. It holds SCRAM's logins, too."""
        form = JARS / "formatted-login"
        if not form.exists():
            new = JARS / f"formatted-login.{os.getpid()}"
            (self.folder / "format").write_text("".join(
                f"{k}={v}\n" for k, v in (self.properties() | {"log.dirs": new.resolve()}).items()))
            subprocess.run([str(w) for w in self.java("kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c",
                                                      self.folder / "format", "--add-scram",
                                                      f'SCRAM-SHA-256=[name="{USER}",password="{PASSWORD}"]')],
                           check=True, stdout=subprocess.DEVNULL, timeout=3 * PATIENCE)
            with contextlib.suppress(OSError):  # another was faster
                new.rename(form)
            shutil.rmtree(new, ignore_errors=True)
        if not (self.folder / "data").exists():
            shutil.copytree(form, self.folder / "data")

    def answers(self):
        """It names itself as a broker: before that it takes connections and requests, and has no room for a topic."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port),
                                                                    1) as wire, wire.makefile("rb") as reply:
            wire.settimeout(5)
            wire.sendall(struct.pack(">ihhihi", 14, 3, 1, 0, -1, 0))  # Metadata of no topic
            # behind length and number: how many brokers there are
            return int.from_bytes(reply.read(12)[8:], "big") == 1
        return False

    def wait_ready(self, seconds=3 * PATIENCE):
        return super().wait_ready(seconds)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def listed(self):
        """The partitions of which not all is committed, for who reads of a failure: by the group of the tests' naming,
        which is the topic's own, or that of its retries or redrives."""
        import confluent_kafka
        lines, settings = [], {"bootstrap.servers": self.address, "log_level": 0}
        known = confluent_kafka.Consumer({**settings, "group.id": "none"}).list_topics(timeout=10).topics
        for name, topic in known.items():
            first, _, what = name.partition(".")
            group = f"{name}.redrive" if what.endswith(("dead", "parked")) else first
            client = confluent_kafka.Consumer({**settings, "group.id": group})
            asked = [confluent_kafka.TopicPartition(name, n) for n in topic.partitions if not name.startswith("__")]
            for one in client.committed(asked, timeout=10) if asked else ():
                low, high = client.get_watermark_offsets(one, timeout=10)
                if max(one.offset, low) != high:
                    lines.append(f"{name}[{one.partition}]: {low} to {high}, committed {one.offset} by {group}")
            client.close()
        return "\n".join(lines)

    def uri(self, topic="", **parameters):
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"kafka://{self.address}" + (f"/{topic}" if topic else "") + (f"?{query}" if query else "")

    def login_uri(self, topic="", **parameters):
        """By TLS, whose CA is known; who comes in is not said in it."""
        query = "&".join(f"{name}={value}" for name, value in {"ssl.ca.location": self.ca, **parameters}.items())
        return f"kafka://127.0.0.1:{self.tls_port}/{topic}?{query}"

    def make_topic(self, topic, partitions=1):
        """Makes it, also where the broker is not heard in time by its own controller and is out of office for a
        moment."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic
        passing = (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.REQUEST_TIMED_OUT,
                   KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 3})
        deadline, again = time.monotonic() + PATIENCE, False
        while True:
            try:
                admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)
                return topic
            except KafkaException as error:
                code = error.args[0].code()
                if again and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return topic
                if code not in passing or time.monotonic() > deadline:
                    raise
                again = True
                time.sleep(.1)
