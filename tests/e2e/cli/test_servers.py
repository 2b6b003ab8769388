"""tests/servers: what is started there ends, whatever becomes of the test."""
import glob
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import PATIENCE, ROOT, read_line, wait_until

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import faketime  # noqa: E402

WITH = ROOT / "tests/servers/with.py"


@pytest.fixture
def start():
    """Starts with.py around a command that says where the server is, and waits; it and all its processes."""
    started = []

    def begin(kind):
        process = subprocess.Popen([str(WITH), kind, "sh", "-c", 'echo "$0"; exec sleep 600', "{uri}"], text=True,
                                   stdout=subprocess.PIPE)
        started.append(process)
        assert "127.0.0.1:" in read_line(process)
        return process, [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if belongs(pid, process.pid)]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def belongs(pid, ancestor):
    while pid > 1 and pid != ancestor:
        try:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return False
    return pid == ancestor


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def works_in(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


# The signal of a harness that gives up, and the one that leaves no time to clean up.
@pytest.mark.some(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["redis", "postgres-bare"])
def test_servers_end_with_the_test_that_is_killed(start, kind, number):
    process, family = start(kind)
    assert len(family) >= 4  # it, the minder, the server, the command
    folders = {where for where in map(works_in, family) if f"/hapax-{kind.split('-')[0]}-" in where}
    assert folders
    process.send_signal(number)
    process.wait(PATIENCE)
    wait_until(lambda: not any(alive(pid) for pid in family), "every process ending")
    wait_until(lambda: not any(map(os.path.exists, folders)), lambda: f"an end of {folders}")


# So that a test run with a server fails when its program does, and its output is the program's.
def test_the_command_s_status_and_output_are_passed_on():
    done = subprocess.run([str(WITH), "redis", "sh", "-c", "echo out; exit 7"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert subprocess.run([str(WITH), "redis", "sh", "-c", "kill -9 $$"]).returncode == 128 + 9


# What it leaves would keep a later process of its number from starting.
def test_what_a_killed_program_with_a_clock_of_its_own_has_left_is_removed():
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, **faketime(60)})

    def left():
        return glob.glob(f"/dev/shm/*faketime_s[eh]m_{process.pid}")

    wait_until(lambda: len(left()) == 2, "what it shares")
    faketime()
    assert len(left()) == 2
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # while it is a zombie nobody removes what it left
    assert len(left()) == 2
    process.wait()
    faketime()
    assert left() == []
