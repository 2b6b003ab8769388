"""Kafka for tests: one node that is broker and controller, from the jars of tools/kafka/fetch."""
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess

from process import PATIENCE, NotReady, Server, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
JARS = pathlib.Path(os.environ.get("HAPAX_KAFKA_JARS", ROOT / "build/kafka"))


def have_kafka():
    """Whether there is a broker to start."""
    return any(JARS.glob("kafka_*.jar"))


class Kafka(Server):
    """A node of its own; options are properties of the broker."""

    name = "kafka"
    taken = ("Address already in use",)

    def __init__(self, **options):
        if not have_kafka():
            raise NotReady(f"there is no Kafka broker in {JARS} (tools/kafka/fetch)")
        super().__init__()
        self.options = {name.replace("_", "."): value for name, value in options.items()}

    def choose_ports(self):
        self.port, self.controller = free_port(), free_port()
        shutil.rmtree(self.folder / "data", ignore_errors=True)  # the controller's port is written there

    def properties(self):
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
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
        } | self.options

    def command(self):
        (self.folder / "properties").write_text("".join(f"{k}={v}\n" for k, v in self.properties().items()))
        self.format()
        return self.java("kafka.Kafka", self.folder / "properties")

    def java(self, *words):
        """A small machine that starts quickly."""
        return ["java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{JARS.resolve()}/*", *words]

    def format(self):
        """Makes its empty storage: once per set of jars, and copied from then on."""
        form = JARS / "formatted"
        if not form.exists():
            new = JARS / f"formatted.{os.getpid()}"
            (self.folder / "format").write_text("".join(
                f"{k}={v}\n" for k, v in (self.properties() | {"log.dirs": new.resolve()}).items()))
            subprocess.run([str(w) for w in self.java("kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c",
                                                      self.folder / "format")],
                           check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
            with contextlib.suppress(OSError):  # another was faster
                new.rename(form)
            shutil.rmtree(new, ignore_errors=True)
        if not (self.folder / "data").exists():
            shutil.copytree(form, self.folder / "data")

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def uri(self, topic="", **parameters):
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"kafka://{self.address}" + (f"/{topic}" if topic else "") + (f"?{query}" if query else "")

    def make_topic(self, topic, partitions=1):
        from confluent_kafka.admin import AdminClient, NewTopic
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)
        return topic
