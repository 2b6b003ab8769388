"""What the tests of the command line share: the binaries, a store of one's own, processes that end.

HAPAX_BUILD names the build directory (default: build/ of this tree).
"""
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("HAPAX_BUILD", ROOT / "build")).resolve()
HAPAX = BUILD / "hapax"
OP = BUILD / "tests/store/op"

DOORS = ("gate", "consume", "lambda", "relay", "door", "cli", "web")
for folder in ("servers", "store", "broker", "sdk", *(f"e2e/{door}" for door in DOORS)):
    sys.path.insert(0, str(ROOT / "tests" / folder))
from process import PATIENCE, NotReady, Server, pause_after  # noqa: E402


pytest_plugins = ["browser", "gate_fixtures", "sql_database"]


def pytest_xdist_make_scheduler(config, log):
    from schedule import Scheduler
    return Scheduler(config, log)


class Progress:
    """Writes lines of JSON to the file HAPAX_PROGRESS: the cases there are, and each that ends (tools/suite.py)."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1, encoding="utf-8")
        self.told, self.results, self.seconds = False, {}, {}

    def tell(self, **what):
        self.file.write(json.dumps(what) + "\n")

    def pytest_xdist_node_collection_finished(self, node, ids):
        if not self.told:
            self.told = True
            self.tell(cases=list(ids))

    def pytest_runtest_logreport(self, report):
        case = report.nodeid
        self.seconds[case] = self.seconds.get(case, 0) + report.duration
        if report.failed or case not in self.results or report.skipped and self.results[case] == "passed":
            self.results[case] = report.outcome
        if report.failed:
            queues = [text for name, text in report.sections if "queues" in name]
            self.tell(failed=case, text=report.longreprtext, queues=queues)
        if report.when == "teardown":
            self.tell(case=case, result=self.results[case], seconds=self.seconds[case],
                      processor=getattr(report, "processor", 0))


def covering(cases):
    """As few of them as have each value of each parameter, the first where several would do."""
    values = [{(name, repr(value)) for name, value in case.callspec.params.items()} for case in cases]
    met, kept = set(), []
    while met != set.union(*values):
        best = max(range(len(cases)), key=lambda i: len(values[i] - met))
        met |= values[best]
        kept.append(cases[best])
    return kept


def spread(cases, most):
    """At most so many of them: the first, and the others evenly spread."""
    return cases if len(cases) <= most else [cases[i * len(cases) // most] for i in range(most)]


def leave_some(items):
    """Gives the mark `ci` to those cases of a test with the mark `some` that `make test` leaves out."""
    tests = {}
    for item in items:
        if item.get_closest_marker("some") and not item.get_closest_marker("ci") and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        most = cases[0].get_closest_marker("some").args
        kept = spread(cases, *most) if most else covering(cases)
        for item in cases:
            if item not in kept:
                item.add_marker("ci")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    """Cases with the mark `ci` are run where they are asked for: pytest -m ci, as .ci/run does."""
    if config.option.markexpr or not any("[" in name for name in config.args):  # who names cases, plays these
        leave_some(items)
    if not config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("ci")]
        items[:] = [item for item in items if not item.get_closest_marker("ci")]
        config.hook.pytest_deselected(items=left_out)


def pytest_configure(config):
    config.addinivalue_line("markers", "ci: left out of `make test`, as it takes long; .ci/run plays it")
    config.addinivalue_line("markers", "some(n): `make test` plays n of its cases; without n as few as have each value "
                                       "of each parameter. The others have the mark ci")
    path = os.environ.get("HAPAX_PROGRESS")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(path))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Of a test that ended, the processor's seconds, those of processes that ended meanwhile with them; of one that
    failed, what is left in the queues of the brokers of this process."""
    report = (yield).get_result()
    if call.when == "teardown":
        used = sum(os.times()[:4])
        report.processor = used - getattr(item.session, "used", used)
        item.session.used = used
    if report.failed:
        for server in Server.servers:
            if hasattr(server, "listed") and server.running and not server.stopped:
                with contextlib.suppress(Exception):  # it may be what failed
                    report.sections.append((f"queues of {server.name} on port {server.port}", server.listed()))


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """Runs hapax in a folder of its own, with an environment that holds no settings of the user."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HAPAX_", "XDG_"))}
        self.env.update(HOME=str(folder), LC_ALL="C")

    def run(self, *words, stdin=b"", **env):
        done = subprocess.run([str(word) for word in words], input=stdin, capture_output=True,
                              cwd=self.folder, env={**self.env, **env}, timeout=PATIENCE)
        done.stdout, done.stderr = done.stdout.decode("utf-8"), done.stderr.decode("utf-8", "replace")
        return Result(done)

    def __call__(self, *words, **more):
        result = self.run(HAPAX, *words, **more)
        assert result.code in (0, 1, 2, 3), f"{words} ended with {result.code}: {result.err}"
        return result

    def op(self, store, *words):
        """One op by tests/store/op.c; its verdict."""
        return self.run(OP, store, *words).out.strip()

    def completed(self, store, key, status=200, headers="", body="", scope="default", retention_ms=86400000):
        assert self.op(store, "claim", key, "1", 30000, "rerun", retention_ms, scope) == "claimed"
        assert self.op(store, "complete", key, "1", status, headers, body, scope) == "ok"

    def unknown(self, store, key):
        assert self.op(store, "claim", key, "1", 30000, "hold") == "claimed"
        assert self.op(store, "fail", key, "1", "unknown") == "ok"

    def many_unknown(self, store, keys):
        lines = "".join(f"claim {key} 1 30000 hold\nfail {key} 1 unknown\n" for key in keys)
        assert self.run(OP, store, stdin=lines.encode()).out == "claimed\nok\n" * len(keys)

    def start(self, *words, stderr=subprocess.PIPE, **env):
        """A process that logs much needs another stderr: nobody reads the pipe before the end."""
        process = subprocess.Popen([str(HAPAX), *map(str, words)], cwd=self.folder, env={**self.env, **env},
                                   stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.processes.append(process)
        return process

    def keep(self, store, *words, **env):
        """A keeper that is ready; its line is in .ready."""
        process = self.start("keep", "--store", store, *words, **env)
        process.ready = read_line(process)
        assert "holding" in process.ready, process.ready + process.stderr.read()
        return process


def read_line(process):
    """The next line of a process's stdout, within PATIENCE; "" at its end.

    Read byte by byte, past the pipe's own buffer: poll() would not see what that buffer held. So read() or
    communicate() later miss nothing."""
    line, deadline = b"", time.monotonic() + PATIENCE
    while not line.endswith(b"\n"):
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        assert poll.poll(max(0, deadline - time.monotonic()) * 1000), f"the process printed nothing but {line!r}"
        byte = os.read(process.stdout.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode()


def wait_until(true, what):
    """what: a text, or a function that gives it. It is asked when the time is over: then it says what there is."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() < began + PATIENCE, f"{what() if callable(what) else what} did not happen"
        time.sleep(pause_after(time.monotonic() - began))


def at_some_pace(case, *paces):
    """Plays a case whose times are short, and which therefore breaks where a process stands still for a moment.

    The case is played again at each longer pace. What is always wrong is wrong at the last pace, too."""
    for pace in paces[:-1]:
        try:
            return case(pace)
        except (AssertionError, NotReady) as error:
            print(f"not at {pace}: {error}")
    return case(paces[-1])


def heeds(pid, number):
    """Whether a process blocks, ignores or handles a signal. Until it does, the signal kills it."""
    with contextlib.suppress(OSError):
        masks = re.findall(r"^Sig(?:Blk|Ign|Cgt):\s*(\w+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
        return any(int(mask, 16) >> number - 1 & 1 for mask in masks)
    return False


def tell_to_end(process, number=signal.SIGTERM):
    """Sends the signal once the process heeds it: one that was just started would die of it."""
    wait_until(lambda: heeds(process.pid, number) or process.poll() is not None, "the process heeding its signals")
    process.send_signal(number)


def end(process, number=signal.SIGTERM):
    """Ends a process, and gives its exit status."""
    if number == signal.SIGKILL:
        process.kill()
    else:
        tell_to_end(process, number)
    return process.wait(PATIENCE)


@pytest.fixture
def folder():
    """A short path: the name of a socket has 107 bytes."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="hapax-e2e-"))
    yield path
    for below in [path, *path.rglob("*")]:
        if below.is_dir() and not below.is_symlink():
            below.chmod(0o700)
    shutil.rmtree(path)


@pytest.fixture
def hapax(folder):
    command = Command(folder)
    yield command
    for process in command.processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)  # what it has left running may hold its output


@pytest.fixture
def store(folder):
    return f"rocksdb:{folder}/store"
