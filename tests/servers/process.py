"""Real servers for tests: processes in a folder of their own that surely end.

Every folder is told to a minder, before it is made: a process that outlives the test by a moment. When
the test is gone, however it went (kill -9 included), the minder kills all that still works in those folders,
servers and their children, and removes them. A death signal would do for one process, but is lost when
a server changes its user, is bound to the thread that started it, and leaves stopped children behind.
"""
import atexit
import contextlib
import ctypes
import functools
import glob
import os
import pathlib
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref

# Seconds after which something that should have happened has not.
PATIENCE = int(os.environ.get("HAPAX_PATIENCE_S", "120"))
START_S = max(120, PATIENCE)  # the same of a server that starts


class NotReady(Exception):
    """A server ended, or said nothing, before it was ready."""


def faketime(ahead=None):
    """The environment of a program whose clock is set, by so many seconds or as FAKETIME… says.

    libfaketime makes files in /dev/shm, named by the number of its process. A process that is killed leaves its files,
    and a later process of that number does not start. So files that have no process are removed first. The command
    faketime makes such files, too, and a kill of the command leaves the program that it has started.
    """
    for left in glob.glob("/dev/shm/*faketime_s[eh]m_*"):
        if not os.path.exists(f"/proc/{left.rpartition('_')[2]}"):
            with contextlib.suppress(OSError):
                os.unlink(left)
    env = {"LD_PRELOAD": glob.glob("/usr/lib/*/faketime/libfaketime.so.1")[0]}
    return env if ahead is None else {**env, "FAKETIME": f"{ahead:+.3f}"}


# ---- what is left of a test ---------------------------------------------------------------


def children_of(pid):
    found = []
    with contextlib.suppress(OSError):  # it may end while it is looked at
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def family_of(pid):
    """The process and all that came from it."""
    return [pid] + [member for child in children_of(pid) for member in family_of(child)]


def signal_each(pids, number):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def is_over(pid):
    """Gone, or waiting to be reaped. Threads may outlive the first one for a moment, with all that is open."""
    try:
        ended = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return ended and len(os.listdir(f"/proc/{pid}/task")) < 2
    except OSError:
        return True


def stands(pid):
    """Stopped, with all of its threads, or over."""
    try:
        states = [task.read_text().rpartition(")")[2].split()[0]
                  for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread ended meanwhile
        return is_over(pid)
    return all(state in "TtZX" for state in states)


def stop(pid):
    """SIGSTOP; what a thread is at, it does for a moment longer, and that is waited for."""
    signal_each([pid], signal.SIGSTOP)
    wait_for(lambda: stands(pid), f"process {pid} standing still")


def kill_family(pid):
    """kill -9 of the process and all that came from it. It is stopped first, as what it forks after we have looked
    would live on, with its shared memory; and waits until all are gone."""
    stop(pid)
    family = family_of(pid)
    signal_each(family, signal.SIGKILL)
    wait_for(lambda: all(map(is_over, family)), f"the end of process {pid} and its children")


def remove_folder(path):
    """Also the shared memory that a killed PostgreSQL leaves; its lock file names it."""
    for lock in pathlib.Path(path).glob("*/postmaster.pid"):
        with contextlib.suppress(OSError, IndexError):
            subprocess.run(["ipcrm", "-m", lock.read_text().split("\n")[6].split()[1]], stderr=subprocess.DEVNULL)
    shutil.rmtree(path, ignore_errors=True)


def inside(folder):
    """Processes that work in a folder, as servers and their children do in theirs."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            where = os.readlink(f"/proc/{entry}/cwd")
            if where == folder or where.startswith(folder + "/"):
                yield int(entry)


def files_of(folder):
    """Each file there, with its bytes. A store at work removes some meanwhile."""
    found = {}
    for path in pathlib.Path(folder).rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


def mind():
    """The minder: a folder on each line, until the test is gone."""
    for folder in [line.rstrip("\n") for line in sys.stdin]:
        while pids := list(inside(folder)):
            signal_each(pids, signal.SIGKILL)
            time.sleep(0.01)
        remove_folder(folder)


class Minder:
    def __init__(self):
        self.lock = threading.Lock()
        self.process = None

    def tell(self, folder):
        with self.lock:
            if self.process is None or self.owner != os.getpid():
                self.owner = os.getpid()
                self.process = subprocess.Popen([sys.executable, "-S", __file__], stdin=subprocess.PIPE,
                                                stdout=subprocess.DEVNULL, start_new_session=True, cwd="/", text=True)
                atexit.register(self.process.stdin.close)
            self.process.stdin.write(f"{folder}\n")
            self.process.stdin.flush()


minder = Minder()

# ---- small things ---------------------------------------------------------------------------


class Ports:
    """Ports that no other process of these tests is given, so that nobody takes one between its choice and its use.

    A process holds blocks of them, each by a socket with an abstract name: those names reach as far as ports do, to the
    end of the network namespace, and one whose process is gone, however it went, is free again. A port is given out
    once while there are others: what still connects to a server that is gone meets nobody.
    """

    SIZE, MOST = 32, 64  # ports of a block, blocks of a process

    def __init__(self):
        self.lock = threading.Lock()
        self.holders, self.mine, self.left, self.owner = [], [], [], None

    def next(self):
        with self.lock:
            if self.owner != os.getpid():  # a fork's blocks are its parent's
                self.holders, self.mine, self.left, self.owner = [], [], [], os.getpid()
            for _ in range(100000):
                if not self.left:
                    self.left = self.block() or list(self.mine)
                port = self.left.pop()
                with socket.socket() as probe, contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    return port
        raise NotReady("there is no free port")

    def block(self):
        """A block that nobody held; none where all are held, or enough by this process."""
        if len(self.holders) == self.MOST:
            return []
        # Below those that the system gives to clients, so that a server can be started again on its own.
        low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        starts = range(10000, max(low, 20000) - self.SIZE + 1, self.SIZE)
        for start in random.sample(starts, len(starts)):
            holder = socket.socket(socket.AF_UNIX)
            try:
                holder.bind(f"\0hapax-test-ports-{start}")
            except OSError:
                holder.close()
                continue
            self.holders.append(holder)
            self.mine += range(start, start + self.SIZE)
            return list(range(start, start + self.SIZE))
        return []


ports = Ports()


def free_port():
    """A port of 127.0.0.1 for a server, which other processes of these tests leave alone as long as this one lives."""
    return ports.next()


def pause_after(waited_s, least=0.01):
    """Seconds between two looks at whether an event has come: a tenth of the wait so far, up to 0.2. A look may cost a
    server as much as the work that is waited for."""
    return max(min(waited_s / 10, 0.2), least)


class Workers:
    """Threads that work until they are told that it is over: self.threads, and self.over."""

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def wait_for(true, what, seconds=PATIENCE, pause=0.01):
    """Waits for an event, and gives what it was. pause: least seconds between two looks."""
    began = time.monotonic()
    while True:
        found = true()
        if found:
            return found
        waited_s = time.monotonic() - began
        if waited_s > seconds:
            raise NotReady(f"{what}: not within {seconds} s")
        time.sleep(pause_after(waited_s, pause))


def end_with_parent():
    """For preexec_fn: the process dies with the thread that started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def becomes(user):
    """For preexec_fn: what root has to give up for servers that refuse it."""
    entry = pwd.getpwnam(user)

    def change():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)

    return change


# ---- a server -------------------------------------------------------------------------------


@functools.cache
def place():
    """Where servers work: in memory, where there is much of it. They make and remove very many files, three hundred for
    each database of PostgreSQL alone, which there costs a third; and of a disk the tests ask that files outlive the
    process that wrote them, no more. Not the folders of embedded stores: RocksDB reserves 74 MB in each, which is real
    where memory is the disk."""
    memory, least = pathlib.Path("/dev/shm"), 6 << 30
    with contextlib.suppress(OSError, ValueError):
        there = os.statvfs(memory)
        free = int(re.search(r"^MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M)[1]) * 1024
        if min(free, there.f_bavail * there.f_frsize) > least and not there.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) \
                and os.access(memory, os.W_OK):
            return memory
    return pathlib.Path(tempfile.gettempdir()).resolve()


class Server:
    """One process. Subclasses say what is run (command) and whether it answers (answers)."""

    servers = weakref.WeakSet()  # of this process
    name = "server"
    user = None  # whom root becomes
    taken = ("Address already in use", "could not bind")  # what the log says of a port that is not free

    def __init__(self):
        Server.servers.add(self)
        self.folder = place() / f"hapax-{self.name}-{secrets.token_hex(5)}"
        minder.tell(self.folder)
        self.folder.mkdir(0o700)
        self.log = self.folder / "log"
        self.process = None
        self.stopped = False
        if os.geteuid() != 0:
            self.user = None
        if self.user:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, pwd.getpwnam(self.user).pw_gid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def choose_ports(self):
        self.port = free_port()

    def make_certificates(self):
        """cert.pem and key.pem for it, signed by ca.pem, whose path is given."""
        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                "/CN=test CA", "-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca.key", "-out", "ca.pem")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=127.0.0.1",
                "-keyout", "key.pem", "-out", "request.pem")
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n"
                                           "authorityKeyIdentifier=keyid\n")  # Python 3.13 asks for these
        openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                "2", "-extfile", "names", "-out", "cert.pem")
        return self.folder / "ca.pem"

    def start(self):
        """On ports that are free, others if somebody was faster."""
        for last in [False] * 9 + [True]:
            self.choose_ports()
            try:
                self.launch()
                return self
            except NotReady:
                text = self.log.read_text(errors="replace") if self.log.exists() else ""
                self.kill()
                if last or not any(word in text for word in self.taken):
                    self.end()
                    raise
                self.log.unlink()
        return self

    def launch(self, ready=True):
        """Starts it where it was; ready: and waits until it serves."""
        assert not self.running
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(word) for word in self.command()], cwd=self.folder, stdout=log,
                                            stdin=subprocess.DEVNULL, stderr=log, start_new_session=True,
                                            preexec_fn=becomes(self.user) if self.user else None)
        self.stopped = False
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self, seconds=START_S):
        def ready():
            if self.process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise NotReady(f"{self.name} ended with {self.process.returncode}: {tail}")
            return self.answers()

        wait_for(ready, f"{self.name} on port {self.port}", seconds)
        return self

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def reap(self):
        self.process.wait(PATIENCE)
        self.process = None

    def kill(self, number=signal.SIGKILL):
        """Ends it by a signal, with its children where that is kill -9."""
        if self.process is None:
            return
        if self.process.poll() is None:
            if number == signal.SIGKILL:
                kill_family(self.process.pid)
            else:
                signal_each([self.process.pid], number)
            if self.stopped:
                self.cont()
        self.reap()

    def stop(self):
        """Stops it and its children in their tracks; connections stay open and nobody answers."""
        self.stopped = True
        signal_each(family_of(self.process.pid), signal.SIGSTOP)

    def cont(self):
        self.stopped = False
        signal_each(family_of(self.process.pid)[::-1], signal.SIGCONT)

    def restart(self, number=signal.SIGTERM, ready=True):
        self.kill(number)
        return self.launch(ready)

    def end(self):
        self.kill()
        remove_folder(self.folder)


if __name__ == "__main__":
    mind()
