"""Redis for tests: one node, a primary with replicas and sentinels, a cluster."""
import contextlib
import signal
import socket
import ssl
import time

from process import PATIENCE, Server, free_port, wait_for
from proxy import Proxy


class RedisError(Exception):
    """An error reply."""


class Wire:
    """A connection that says what it is told and nothing else: no retries, no second thoughts."""

    def __init__(self, port, password=None, user="default", tls=None, timeout=PATIENCE):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.socket = tls.wrap_socket(self.socket)
        self.file = self.socket.makefile("rb")
        if password:
            self("AUTH", user, password)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()
        self.socket.close()

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection was closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        data = self.file.read(int(rest) + 2)[:-2]
        return data.decode("utf-8", "surrogateescape")

    def __call__(self, *words):
        self.send(*words)
        return self.reply()


class Redis(Server):
    """One redis-server. Options are redis.conf's, with _ for -: Redis(appendonly="yes", maxmemory="8mb").

    tls=True: only TLS, with a certificate for 127.0.0.1 by a CA in .ca.
    """

    name = "redis"
    mode = []

    def __init__(self, tls=False, replica_of=None, requirepass=None, acl=(), **options):
        super().__init__()
        self.password = requirepass
        self.options = {"save": "", "bind": "127.0.0.1", "protected_mode": "no",
                        "enable_debug_command": "yes", "enable_protected_configs": "yes",
                        "repl_diskless_sync_delay": 0, "shutdown_timeout": 0, "dir": self.folder, **options}
        if requirepass:
            self.options.update(requirepass=requirepass, masterauth=requirepass)
        if replica_of:
            self.options["replicaof"] = f"127.0.0.1 {replica_of.announced}"
        if acl:
            self.options["aclfile"] = self.folder / "acl"
            (self.folder / "acl").write_text("".join(line + "\n" for line in acl))
        self.ca = self.use_tls() if tls else None
        self.wire = None

    @property
    def announced(self):
        """The port by which others reach it."""
        return self.port

    def use_tls(self):
        ca = self.make_certificates()
        self.options.update(tls_cert_file="cert.pem", tls_key_file="key.pem", tls_ca_cert_file="ca.pem",
                            tls_auth_clients="no")
        return ca

    def config(self):
        ports = {"port": 0, "tls_port": self.port} if self.ca else {"port": self.port}
        lines = []
        for option, value in {**self.options, **ports}.items():
            for one in value if isinstance(value, list) else [value]:
                text = str(one)
                quoted = option in ("save", "requirepass", "masterauth", "dir", "aclfile")
                lines.append(f"{option.replace('_', '-')} " + (f'"{text}"' if quoted else text))
        return lines

    def command(self):
        path = self.folder / "redis.conf"
        path.write_text("\n".join(self.config()) + "\n")
        return ["redis-server", path, *self.mode]

    def connect(self, timeout=PATIENCE):
        tls = None
        if self.ca:
            tls = ssl.create_default_context(cafile=self.ca)
            tls.check_hostname = False
        return Wire(self.port, self.password, tls=tls, timeout=timeout)

    def do(self, *words):
        """One command on a connection of the test's own; the reply, or RedisError."""
        if self.wire is None:
            self.wire = self.connect()
        try:
            return self.wire(*words)
        except (OSError, ValueError):
            self.forget()
            raise

    def forget(self):
        if self.wire is not None:
            with contextlib.suppress(OSError):
                self.wire.close()
            self.wire = None

    def info(self, section="all"):
        lines = self.do("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def answers(self):
        try:
            return self.do("PING") == "PONG"
        except RedisError as error:
            return "NOPERM" in str(error)
        except OSError:
            return False

    def kill(self, number=signal.SIGKILL):
        self.forget()
        super().kill(number)

    def uri(self, port=None, **parameters):
        if self.ca:
            parameters = {"tls_ca": self.ca, **parameters}
        login = f":{self.password}@" if self.password else ""
        return f"redis{'s' if self.ca else ''}://{login}127.0.0.1:{port or self.port}{query(parameters)}"


def query(parameters):
    return "?" + "&".join(f"{name}={value}" for name, value in parameters.items()) if parameters else ""


class Sentinel(Redis):
    """One sentinel; it keeps what it learns in its own file, so a restart must not write that anew."""

    name = "sentinel"
    mode = ["--sentinel"]

    def __init__(self, primary, master, quorum, down_after_ms, password):
        super().__init__()
        self.monitor = [f"sentinel monitor {master} 127.0.0.1 {primary.announced} {quorum}",
                        f"sentinel down-after-milliseconds {master} {down_after_ms}",
                        f"sentinel failover-timeout {master} 5000", f"sentinel parallel-syncs {master} 9"]
        if password:
            self.monitor.append(f"sentinel auth-pass {master} {password}")

    def config(self):
        return [f"port {self.port}", "bind 127.0.0.1", "protected-mode no", f'dir "{self.folder}"', *self.monitor]

    def command(self):
        path = self.folder / "redis.conf"
        known = path.exists() and f"port {self.port}\n" in path.read_text() and "myid" in path.read_text()
        return ["redis-server", path, *self.mode] if known else super().command()


class Group:
    """Several servers that serve one store."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        for server in self.servers():
            server.end()

    def started(self, begin):
        """Runs begin() and returns self; ends all servers if begin() fails."""
        try:
            begin()
        except BaseException:
            self.end()
            raise
        return self


class FarRedis(Redis):
    """One of several machines: whoever speaks to it goes through a proxy. As a replica it gets what is
    written lag_s late, and when its primary dies, what was on its way is lost."""

    def __init__(self, lag_s, **options):
        super().__init__(**options)
        self.lag_s, self.proxy = lag_s, None

    def choose_ports(self):
        super().choose_ports()
        self.end_proxy()
        self.proxy = Proxy(self.port)
        self.options.update(replica_announce_ip="127.0.0.1", replica_announce_port=self.proxy.port)

    @property
    def announced(self):
        return self.proxy.port

    def launch(self, ready=True):
        self.proxy.listen()
        return super().launch(ready)

    def kill(self, number=signal.SIGKILL):
        if self.proxy:
            self.proxy.refuse()
        super().kill(number)

    def end_proxy(self):
        if self.proxy:
            self.proxy.end()

    def end(self):
        self.end_proxy()
        super().end()


class Sentinels(Group):
    """A primary, replicas, and three sentinels over them. lags_s: each node is so far away.

    What tests failovers asks for a shorter down_after_ms: a node that has no processor for some seconds is not to be
    replaced under any other test. With down-after-milliseconds 1000, which is the pause between a sentinel's attempts
    to connect, sentinels that have just followed a failover now and then took the new primary for dead, and made
    another beside it.
    """

    master = "mymaster"

    def __init__(self, replicas=2, sentinels=3, down_after_ms=20000, lags_s=(), requirepass=None, **options):
        self.nodes, self.sentinels = [], []
        self.counts, self.down_after_ms, self.lags_s = (replicas, sentinels), down_after_ms, lags_s
        self.options = {"requirepass": requirepass, **options}

    def make(self, **more):
        options = {**self.options, **more}
        return FarRedis(self.lags_s[len(self.nodes)], **options) if self.lags_s else Redis(**options)

    def hold_back(self):
        """What each node is sent as a replica comes late; it says who it is when it connects."""
        for node in self.nodes:
            name = b"listening-port\r\n$5\r\n%d\r\n" % node.announced
            for other in self.nodes:
                if other is not node:
                    other.proxy.delay("reply", node.lag_s, times=0, lasting=True, containing=name)
                    other.proxy.cut_all()

    def servers(self):
        return self.sentinels + self.nodes

    def start(self):
        return self.started(self.begin)

    def begin(self):
        replicas, sentinels = self.counts
        self.nodes.append(self.make().start())
        for _ in range(replicas):
            self.nodes.append(self.make(replica_of=self.nodes[0]).start())
        if self.lags_s:
            self.hold_back()
        wait_for(lambda: int(self.nodes[0].info("replication")["connected_slaves"]) == replicas, "replicas", pause=0.02)
        for _ in range(sentinels):
            self.sentinels.append(Sentinel(self.nodes[0], self.master, sentinels // 2 + 1, self.down_after_ms,
                                           self.options["requirepass"]).start())
        self.wait_ready()

    def wait_ready(self, seconds=2 * PATIENCE):
        """The primary has all its replicas, and every sentinel knows them and the others."""
        replicas, sentinels = self.counts

        def ready():
            primary = self.primary()
            if primary is None or int(attempt(lambda: primary.info("replication")["connected_slaves"], 0)) < replicas:
                return False
            for node in self.nodes:
                if node is not primary and attempt(lambda: node.info("replication")["master_link_status"]) != "up":
                    return False
            return all(self.knows(sentinel, replicas, sentinels - 1) for sentinel in self.sentinels)

        wait_for(ready, "sentinels and replicas", seconds, 0.05)
        return self

    def knows(self, sentinel, replicas, others):
        words = attempt(lambda: sentinel.do("SENTINEL", "MASTER", self.master), [])
        state = dict(zip(words[::2], words[1::2]))
        listed = attempt(lambda: sentinel.do("SENTINEL", "REPLICAS", self.master), [])
        healthy = [r for r in listed if dict(zip(r[::2], r[1::2]))["flags"] == "slave"]
        return (state.get("num-other-sentinels") == str(others) and len(healthy) >= replicas
                and state.get("flags") == "master")

    def primary(self):
        """Whom the sentinels agree on; None while they do not, or it does not run."""
        named = {str(attempt(lambda: sentinel.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master)[1]))
                 for sentinel in self.sentinels if sentinel.running}
        for node in self.nodes:
            if named == {str(node.announced)} and node.running and attempt(lambda: node.do("ROLE")[0]) == "master":
                return node
        return None

    def primaries(self):
        return [self.primary()]

    def elected(self, node):
        """It has taken the primary's place, whoever knows."""
        return attempt(lambda: node.do("ROLE")[0]) == "master"

    def rejoin(self, old, new):
        """Starts a killed primary as a replica: what the sentinels would make of it some seconds later."""
        old.options["replicaof"] = f"127.0.0.1 {new.announced}"
        old.launch()

    def uri(self, **parameters):
        login = f":{self.options['requirepass']}@" if self.options["requirepass"] else ""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{login}{hosts}/{self.master}{query(parameters)}"


class ClusterNode(Redis):
    name = "cluster"

    def __init__(self, node_timeout_ms, **options):
        super().__init__(cluster_enabled="yes", cluster_config_file="nodes.conf", cluster_node_timeout=node_timeout_ms,
                         cluster_replica_validity_factor=0, **options)

    def choose_ports(self):
        super().choose_ports()
        self.options["cluster_port"] = free_port()


class RedisCluster(Group):
    """Three primaries, each with some replicas. What tests failovers asks for a shorter node_timeout_ms."""

    SLOTS = 16384

    def __init__(self, primaries=3, replicas=0, node_timeout_ms=20000, requirepass=None, **options):
        self.nodes, self.counts, self.node_timeout_ms = [], (primaries, replicas), node_timeout_ms
        self.options = {"requirepass": requirepass, **options}

    def servers(self):
        return self.nodes

    def start(self):
        return self.started(self.begin)

    def begin(self):
        primaries, replicas = self.counts
        self.nodes += [ClusterNode(self.node_timeout_ms, **self.options).start()
                       for _ in range(primaries * (1 + replicas))]
        for i, node in enumerate(self.nodes):
            node.do("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < primaries:
                node.do("CLUSTER", "ADDSLOTSRANGE", self.SLOTS * i // primaries, self.SLOTS * (i + 1) // primaries - 1)
        self.introduced = 0
        wait_for(self.met, "nodes meeting", pause=0.05)
        for i, node in enumerate(self.nodes[primaries:]):
            owner = self.id_of(self.nodes[i % primaries])
            wait_for(lambda node=node, owner=owner: attempt(lambda: node.do("CLUSTER", "REPLICATE", owner)) == "OK",
                     "a replica joining", pause=0.05)
        self.wait_ready()

    def met(self):
        """Whether each knows all. Those that do not are introduced every five seconds: Redis forgets a meeting that
        is not over within node_timeout_ms, as where one of the two stood still."""
        strangers = [node for node in self.nodes if int(self.state(node)["cluster_known_nodes"]) != len(self.nodes)]
        if strangers and (not self.introduced or time.monotonic() > self.introduced + 5):
            self.introduced, first = time.monotonic(), self.nodes[0]
            for node in self.nodes[1:]:
                node.do("CLUSTER", "MEET", "127.0.0.1", first.port, first.options["cluster_port"])
        return not strangers

    def state(self, node):
        return dict(line.split(":", 1) for line in node.do("CLUSTER", "INFO").splitlines() if ":" in line)

    def id_of(self, node):
        return node.do("CLUSTER", "MYID")

    def wait_ready(self, seconds=2 * PATIENCE):
        """Every running node sees all slots served, and every replica has its primary."""
        primaries, replicas = self.counts

        def ready():
            for node in self.nodes:
                if not node.running or attempt(lambda: self.state(node)["cluster_state"]) != "ok":
                    return False
                role = attempt(lambda: node.do("ROLE"), [None])
                if role[0] == "slave" and role[3] != "connected" or role[0] is None:
                    return False
                if role[0] == "master" and attempt(lambda: self.slots_of(node)) and len(role[2]) < replicas:
                    return False
            return len(self.primaries()) == primaries

        wait_for(ready, "the cluster", seconds, 0.05)
        return self

    def slots_of(self, node):
        """How many slots it says it serves."""
        own = [line.split() for line in node.do("CLUSTER", "NODES").splitlines() if "myself" in line][0]
        ranges = [word.split("-") for word in own[8:] if not word.startswith("[")]
        return sum(int(pair[-1]) - int(pair[0]) + 1 for pair in ranges) if "master" in own[2] else 0

    def primaries(self):
        """The running nodes that serve slots."""
        return [node for node in self.nodes if node.running and attempt(lambda: self.slots_of(node), 0)]

    def elected(self, node):
        return bool(attempt(lambda: self.slots_of(node), 0))

    def rejoin(self, old, new):
        old.launch()

    def replicas_of(self, primary):
        owner = self.id_of(primary)
        return [node for node in self.nodes if node.running and node is not primary
                and f"slave {owner}" in " ".join(own_line(node)[2:4]).replace("myself,", "")]

    def move(self, slot, source, target):
        """Moves a slot with its keys from one primary to another, as redis-cli --cluster reshard does."""
        target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        password = ["AUTH", self.options["requirepass"]] if self.options["requirepass"] else []
        while True:
            keys = source.do("CLUSTER", "GETKEYSINSLOT", slot, 100)
            if not keys:
                break
            source.do("MIGRATE", "127.0.0.1", target.port, "", 0, 1000 * PATIENCE, *password, "KEYS", *keys)
        owner = self.id_of(target)
        for node in [target, source, *[n for n in self.primaries() if n not in (source, target)]]:
            node.do("CLUSTER", "SETSLOT", slot, "NODE", owner)

    def uri(self, **parameters):
        login = f":{self.options['requirepass']}@" if self.options["requirepass"] else ""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])
        return f"redis+cluster://{login}{hosts}{query(parameters)}"


def own_line(node):
    return [line.split() for line in node.do("CLUSTER", "NODES").splitlines() if "myself" in line][0]


def attempt(ask, otherwise=None):
    """What it gives, or otherwise where the server does not answer so."""
    try:
        return ask()
    except (OSError, RedisError, ValueError, KeyError, IndexError, TypeError):
        return otherwise
