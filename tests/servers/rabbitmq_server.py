"""RabbitMQ for tests: a node of its own, with an epmd of its own, that shares nothing with others."""
import contextlib
import glob
import os
import pathlib
import re
import secrets
import signal
import socket
import subprocess
import time

from process import PATIENCE, Server, becomes, free_port, wait_for

# What a node loads in the end, by application. Loaded all together before it starts, they take a third less of the
# processor's time than one by one.
LOADED = ("kernel, stdlib, sasl, compiler, syntax_tools, tools, ssl, public_key, inets, xmerl, mnesia, os_mon, rabbit, "
          "rabbit_common, rabbitmq_prelaunch, cuttlefish, ra, aten, osiris, ranch, recon, jsx, syslog, systemd, "
          "observer_cli")
HOME = pathlib.Path(sorted(glob.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*"))[-1]
                    if glob.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*") else "")


class RabbitMQ(Server):
    """One node on 127.0.0.1, user guest:guest. Options are rabbitmq.conf's:
    RabbitMQ(consumer_timeout=5000); those with a dot go by `conf`, a text that is appended.

    The Erlang node is run without RabbitMQ's shell scripts, and epmd as its child in the foreground, so that kill()
    takes both, as a machine that dies would.
    """

    name = "rabbitmq"
    user = "rabbitmq"
    taken = ("eaddrinuse", "already in use", "Address already in use")

    def __init__(self, conf="", tls=False, **options):
        super().__init__()
        self.cookie = secrets.token_hex(10)
        self.node = f"hapax-{secrets.token_hex(5)}@localhost"
        self.conf = conf
        self.options = options
        self.tls_port = None
        self.ca = None
        self.tls = tls
        (self.folder / "home").mkdir()
        cookie = self.folder / "home" / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)
        if tls:
            self.ca = self.make_certificates()
        self.give()

    def give(self):
        """Root's files in the folder become the server's."""
        if self.user:
            subprocess.run(["chown", "-R", self.user, str(self.folder)], check=True)

    def choose_ports(self):
        self.port, self.epmd_port, self.dist_port = free_port(), free_port(), free_port()
        self.tls_port = free_port() if self.tls else None

    def environment(self):
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
                "ERL_EPMD_PORT": str(self.epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_MAX_PORTS": "4096",
                "ERL_MAX_ETS_TABLES": "50000", "ERL_LIBS": str(HOME / "plugins"), "RABBITMQ_HOME": str(HOME),
                "RABBITMQ_NODENAME": self.node, "RABBITMQ_BASE": str(self.folder),
                "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"), "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
                "RABBITMQ_LOGS": "-", "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
                "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
                "RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_ENABLED_PLUGINS": "", "SYS_PREFIX": "",
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
                "RABBITMQ_DIST_PORT": str(self.dist_port)}

    def write_config(self):
        lines = {"listeners.tcp.1": f"127.0.0.1:{self.port}", "log.console.level": "warning",
                 "vm_memory_high_watermark.absolute": "1GB", "disk_free_limit.absolute": "1MB",
                 "loopback_users": "none", "collect_statistics": "none"}
        if self.tls:
            lines.update({"listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
                          "ssl_options.cacertfile": self.ca, "ssl_options.certfile": self.folder / "cert.pem",
                          "ssl_options.keyfile": self.folder / "key.pem", "ssl_options.verify": "verify_none"})
        lines.update(self.options)
        text = "".join(f"{name} = {value}\n" for name, value in lines.items())
        (self.folder / "rabbitmq.conf").write_text(text + self.conf)
        # How often consumers are looked at is in no rabbitmq.conf; nor when a retry queue whose letter got no answer,
        # since the broker came up just then, sends it again: three minutes as it comes.
        (self.folder / "advanced.config").write_text(
            "[{rabbit, [{channel_tick_interval, 1000}, {dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n")
        self.give()

    def command(self):
        self.write_config()
        words = "".join(f"export {name}='{value}'\n" for name, value in self.environment().items())
        load = (f'code:ensure_modules_loaded([list_to_atom(filename:basename(F, ".beam")) || A <- [{LOADED}], '
                '[_ | _] = D <- [code:lib_dir(A)], F <- filelib:wildcard(D ++ "/ebin/*.beam")]).')
        script = (words + f"epmd -port {self.epmd_port} -address 127.0.0.1 &\n"
                  f"exec erl -noinput -eval '{load}' -s rabbit boot -boot start_sasl +W w +S 2:2 +SDio 8 +A 8 "
                  "+sbwt none +sbwtdcpu none +sbwtdio none +P 65536 +B i -start_epmd false -syslog logger '[]' "
                  "-syslog syslog_error_logger false "
                  "-kernel prevent_overlapping_partitions false -kernel inet_dist_use_interface '{127,0,0,1}'\n")
        return ["sh", "-c", script]

    def answers(self):
        """The listeners are opened last, when the queues are there."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as wire:
                wire.settimeout(5)
                wire.sendall(b"AMQP\0\0\x09\x01")
                return wire.recv(1) == b"\x01"
        except OSError:
            return False

    def wait_ready(self, seconds=3 * PATIENCE):
        return super().wait_ready(seconds)

    def ctl(self, *words, program="rabbitmqctl", check=True):
        """rabbitmqctl; what it printed. It takes a second or more, most of it its own start, and once in a great while
        it never ends: then again, so a command must be one that may be repeated."""
        for tries in (1, 2, 3):
            with contextlib.suppress(*[subprocess.TimeoutExpired] * (tries < 3)):
                done = subprocess.run([str(HOME / "sbin" / program), "-q", "-n", self.node, *map(str, words)],
                                      cwd=self.folder,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                                      preexec_fn=becomes(self.user) if self.user else None, env=self.environment())
                break
        if check and done.returncode != 0:
            raise RuntimeError(f"{program} {words[0]}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def eval(self, code):
        """What an Erlang expression is worth in the node, as text. By erl_call: rabbitmqctl takes a second or more,
        nearly all of it processor time for its own start. erl_call does not print binaries, so the node writes the
        value to a file."""
        path = self.folder / f"value-{secrets.token_hex(5)}"
        whole = (f'Value = begin {code} end, '
                 f'ok = file:write_file("{path}", unicode:characters_to_binary(io_lib:format("~tp", [Value]))).\n')
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(["erl_call", "-sname", self.node, "-c", self.cookie, "-e"],
                                  input=whole, cwd=self.folder,
                                  capture_output=True, text=True, timeout=PATIENCE, env=self.environment())
            if done.returncode == 0 and done.stdout.strip() == "{ok, ok}":
                break
            # A node that stands still for a moment does not take the connection in erl_call's time.
            if "failed to connect" not in done.stdout + done.stderr or time.monotonic() > deadline:
                raise RuntimeError(f"erl_call: {done.stdout}{done.stderr}")
            time.sleep(0.2)
        value = path.read_text()
        path.unlink()
        return value

    def uri(self, vhost="", queue=None, port=None, tls=False, **parameters):
        """amqp://…; vhost as it stands in a URI: "" is the default, %2f."""
        if queue is not None:
            parameters = {"queue": queue, **parameters}
        if tls:
            parameters = {"tls_ca": self.ca, **parameters}
        words = "&".join(f"{name}={value}" for name, value in parameters.items())
        scheme, at = ("amqps", self.tls_port) if tls else ("amqp", self.port)
        return f"{scheme}://guest:guest@127.0.0.1:{port or at}/{vhost}" + (f"?{words}" if words else "")

    def consumer_timeout(self, ms):
        """How long a delivery may stay unacknowledged; for channels opened from now on."""
        self.eval(f"application:set_env(rabbit, consumer_timeout, {ms})")

    @contextlib.contextmanager
    def body_max(self, size):
        """Channels that are opened meanwhile take no larger body. They are closed over each that is."""
        was = self.eval("element(2, application:get_env(rabbit, max_message_size))")
        self.eval(f"application:set_env(rabbit, max_message_size, {size})")
        try:
            yield
        finally:
            self.eval(f"application:set_env(rabbit, max_message_size, {was})")

    def alarm(self, on):
        """A memory alarm: no connection may publish."""
        self.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {10**6 if on else 10**9}}})")
        if not on:
            wait_for(lambda: not self.blocked(), "the alarm's end")

    def blocked(self):
        """Whether a connection is told to publish nothing."""
        return "blocked" in re.findall(r"\w+", self.eval(
            "[rabbit_networking:connection_info(C, [state]) || C <- rabbit_networking:connections_local()]"))

    def slow_log(self, seconds):
        """Quorum queues write nothing to their log for so long, from now on."""
        self.eval(f"""
            Log = whereis(ra_log_wal),
            ok = sys:suspend(Log),
            spawn(fun() -> timer:sleep({1000 * seconds}), sys:resume(Log) end)""")

    def keep_queues(self):
        """That there is a queue, RabbitMQ tells its disk a while after it has said so, and of a quorum queue it does so
        in two places, its tables and the names of its logs. A kill within that takes the queue, or begins the quorum
        queue anew, with none of what was confirmed in it. After this, no kill takes those there are."""
        assert self.eval("[ok = dets:sync(Table) || Table <- dets:all()], mnesia:dump_log()") == "dumped"

    def queues(self):
        """Messages by queue, ready and unacknowledged: what the queues themselves say. (What `list_queues` tells of a
        quorum queue may be five seconds old, and is 0 for one that just came back.) -1: it has no leader."""
        text = self.eval("""
            [{element(4, amqqueue:get_name(Q)), case amqqueue:get_type(Q) of
                 rabbit_quorum_queue ->
                     case catch ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1, 20000) of
                         {ok, {_, N}, _} -> N;
                         _ -> -1
                     end;
                 _ -> proplists:get_value(messages, rabbit_amqqueue:info(Q, [messages]))
             end} || Q <- rabbit_amqqueue:list()]""")
        return {name: int(n) for name, n in re.findall(r'<<"([^"]+)"(?:/utf8)?>>,\s*(-?\d+)', text)}

    def listed(self):
        """The queues that hold something, for who reads of a failure: what they say, and what RabbitMQ lists."""
        lines = self.ctl("list_queues", "name", "type", "messages_ready", "messages_unacknowledged", "consumers",
                         check=False).splitlines()
        said = {name: n for name, n in self.queues().items() if n}
        return "\n".join([str(said), *(line for line in lines if line.split("\t")[2:4] != ["0", "0"])])

    def restart(self, number=signal.SIGKILL, ready=True):
        """By kill -9 unless told else: what was confirmed is on disk."""
        self.kill(number)
        wait_for(self.ports_free, "the ports being free")
        self.launch(ready)
        if ready:
            self.elect()
        return self

    def elect(self):
        """RabbitMQ 3.10 on one node leaves quorum queues without a leader after a kill, for ever. Until each has one,
        and takes what it is told: a queue's process may be up later than the listeners, or miss its election."""
        wait_for(lambda: self.eval("""
            Led = fun(N) -> case ets:lookup(ra_state, N) of
                      [{_, leader}] ->
                          ok =:= element(1, (catch ra:consistent_query({N, node()}, fun(_) -> ok end, 2000)));
                      [{_, follower}] -> catch ra:trigger_election({N, node()}), false;
                      _ -> false
                  end end,
            Until = erlang:monotonic_time(second) + 15,
            Left = fun Left(Names) -> case {[N || N <- Names, not Led(N)], erlang:monotonic_time(second) < Until} of
                       {[], _} -> [];
                       {Others, false} -> Others;
                       {Others, true} -> timer:sleep(100), Left(Others)
                   end end,
            Left([element(1, amqqueue:get_pid(Q)) || Q <- rabbit_amqqueue:list(),
                  amqqueue:get_type(Q) =:= rabbit_quorum_queue])""") == "[]", "leaders of all quorum queues", pause=0.1)

    def ports_free(self):
        for port in (self.port, self.epmd_port, self.dist_port):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    return False
        return True
