"""hapax run: a command once for its key, whatever happens to it and to those who ask."""
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from conftest import HAPAX, PATIENCE, at_some_pace, end, wait_until
from postgres_server import Postgres
from process import children_of, is_over
from redis_server import Redis

GONE, USED_UP, MISMATCH, UNKNOWN, IN_FLIGHT, NO_STORE, LOST, WRONG = range(118, 126)


def hear_hangups():
    """Who runs the tests may ignore them, as behind nohup, and what is ignored stays so."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Runs:
    """hapax run on one store, in a folder whose file `effects` has a line for each command that began."""

    def __init__(self, hapax, store):
        self.hapax, self.store, self.folder = hapax, store, hapax.folder
        os.mkfifo(self.folder / "go")

    def words(self, key, *words):
        return [str(HAPAX), "run", "--store", self.store, key, *map(str, words)]

    def __call__(self, key, *words, stdin=b"", **env):
        return subprocess.run(self.words(key, *words), cwd=self.folder, env={**self.hapax.env, **env}, input=stdin,
                              capture_output=True, timeout=PATIENCE)

    def sh(self, key, script, *options, **more):
        return self(key, *options, "--", "sh", "-c", script, **more)

    def start(self, key, script, *options, waits=True, **more):
        """A run whose command is under way, or one that waits for another's."""
        return self.start_words(key, *options, "--", "sh", "-c", script, waits=waits, **more)

    def start_words(self, key, *words, waits=True, **more):
        before = self.effects()
        process = subprocess.Popen(self.words(key, *words), cwd=self.folder,
                                   env=self.hapax.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, **{"preexec_fn": hear_hangups, **more})
        self.hapax.processes.append(process)
        if waits:
            wait_until(lambda: self.effects() > before, "the command's begin")
        return process

    def effects(self):
        path = self.folder / "effects"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def go(self):
        """Lets a command that reads `go` end."""
        def opened():
            with contextlib.suppress(OSError):  # nobody reads yet
                os.close(os.open(self.folder / "go", os.O_WRONLY | os.O_NONBLOCK))
                return True

        wait_until(opened, "the command's reading")

    def status(self, key):
        return self.hapax("show", "--store", self.store, "--json", key).json


libc = ctypes.CDLL(None)
BEGIN = "echo $HAPAX_ATTEMPT >> effects; "
WAIT = BEGIN + "cat go; echo done"


@pytest.fixture
def runs(hapax, store):
    """On a store that a keeper holds."""
    keeper = hapax.keep(store)
    yield Runs(hapax, f"unix:{store.removeprefix('rocksdb:')}/keeper.sock")
    assert keeper.poll() is None


@pytest.fixture(scope="module")
def redis():
    with Redis().start() as server:
        yield server


@pytest.fixture(scope="module")
def postgres():
    with Postgres().start() as server:
        yield server


@pytest.fixture(params=["unix", "redis", pytest.param("postgres", marks=pytest.mark.ci)])
def shared(request, hapax, store):
    if request.param == "unix":
        hapax.keep(store)
        uri = f"unix:{store.removeprefix('rocksdb:')}/keeper.sock"
    elif request.param == "redis":
        server = request.getfixturevalue("redis")
        server.do("FLUSHALL")
        uri = server.uri()
    else:
        server = request.getfixturevalue("postgres")
        uri = server.uri(server.database())
        assert hapax("init", "--store", uri).code == 0
    return Runs(hapax, uri)


# ---- replays ----------------------------------------------------------------------------------

# What was printed and the status are given again, byte by byte, and nothing runs.
@pytest.mark.some(3)
@pytest.mark.parametrize("script, options", [
    (r"printf 'a\000\377\n'; echo err >&2; exit 0", []),
    ("exit 0", []),
    ("echo no; exit 7", ["--class", "7 final"]),
    ("echo no; exit 7", ["--on-failed", "replay"]),
    ("head -c 3000000 /dev/urandom; exit 0", ["--max-response", "4m"]),
])
def test_a_repeat_gets_output_and_status_and_runs_nothing(runs, script, options):
    first, second = [runs.sh("k", BEGIN + script, *options) for _ in range(2)]
    assert (first.returncode, first.stdout) == (second.returncode, second.stdout)
    assert first.returncode == int(script[-1]) and runs.effects() == 1
    assert (b"err" in first.stderr) == ("err" in script) and second.stderr == b""


# A replay is silent unless it is asked for.
def test_verbose_says_what_became_of_it(runs):
    assert runs.sh("k", "exit 0", "--verbose").stderr == b"hapax run: ran, as attempt 1\n"
    assert runs.sh("k", "exit 0", "--verbose").stderr == b"hapax run: a replay of attempt 1\n"


# One object holds all, what is no text in base64.
def test_json_has_answer_status_and_output(runs):
    first, second = [json.loads(runs.sh("k", r"printf 'a\377'", "--json").stdout) for _ in range(2)]
    assert (first["answer"], second["answer"]) == ("fresh", "replay")
    assert first["exit"] == 0 and first["output_base64"] == second["output_base64"] == "Yf8="
    busy = json.loads(runs("k", "--json", "--", "other").stdout)
    assert (busy["answer"], busy["exit"], "output" in busy) == ("mismatch", MISMATCH, False)


# What was closed stays closed: no socket of ours gets its number, and what is printed for people with it.
def test_closed_files_are_not_opened_for_something_else(runs):
    words = [HAPAX, "run", "--store", runs.store, "k", "--", "sh", "-c", "readlink /proc/$PPID/fd/0 /proc/$PPID/fd/2"]
    done = runs.hapax.run("sh", "-c", '"$@" <&- 2>&-', "sh", *words)
    assert done.out == "/\n/\n"
    assert runs.hapax.run("sh", "-c", '"$@" >&-', "sh", HAPAX, "list", "--store", runs.store).code == 3


# stdout has one object for a program to read, whatever the command prints.
def test_json_is_alone_where_the_output_is_too_long(runs):
    done = runs.sh("k", "head -c 70000 /dev/zero | tr '\\0' x; exit 3", "--json", "--max-response", "64k")
    said = json.loads(done.stdout)
    assert (said["exit"], "output" in said) == (3, False) and b"x" * 70000 in done.stderr


# Output that is too long to be kept is passed on whole; a repeat must not pass for one that printed nothing.
def test_output_over_the_limit_is_passed_on_and_a_repeat_says_so(runs):
    script = BEGIN + "head -c 200000 /dev/zero; exit 0"
    first, second = [runs.sh("k", script, "--max-response", "64k") for _ in range(2)]
    assert (first.returncode, first.stdout) == (0, bytes(200000)) and b"is not kept" in first.stderr
    assert (second.returncode, second.stdout) == (GONE, b"") and b"with status 0" in second.stderr
    assert runs.effects() == 1


# The last byte that fits is kept.
def test_output_of_the_limit_is_kept(runs):
    first, second = [runs.sh("k", "head -c 65536 /dev/zero", "--max-response", "64k") for _ in range(2)]
    assert first.stdout == second.stdout == bytes(65536) and second.returncode == 0


# --live: the output is there before the command has ended, and is not kept.
def test_live_output_is_passed_on_at_once_and_not_kept(runs):
    process = runs.start("k", BEGIN + "echo now; cat go", "--live", waits=False)
    assert process.stdout.readline() == b"now\n"
    runs.go()
    assert process.wait(PATIENCE) == 0
    assert runs.sh("k", BEGIN + "echo now; cat go", "--live").stdout == b""
    assert runs.effects() == 1


# An outcome is stored before it is printed, so whoever cannot print it can ask again.
def test_output_that_nobody_reads_is_stored(runs):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(runs.words("k", "--", "echo", "x"), env=runs.hapax.env, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == WRONG and b"cannot print" in done.stderr
    assert runs("k", "--", "echo", "x").stdout == b"x\n"


# Output over the limit is printed as it comes. If nobody reads it, signals are handed on nevertheless, and a command
# that has lost its claim is ended.
@pytest.mark.parametrize("lost", [False, True])
def test_output_that_nobody_reads_holds_up_no_end(runs, lost):
    process = runs.start("k", BEGIN + "echo $$ > inner; exec yes", "--max-response", "1k", "--lease", "900ms")
    wait_until(lambda: unread(process.stdout) == fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ), "the pipe being full")
    if lost:
        assert runs.hapax("resolve", "--store", runs.store, "k", "--fail", "--force").code == 0
    else:
        process.send_signal(signal.SIGTERM)
    wait_until(lambda: is_over(number_in(runs.folder / "inner")), "the command's end")
    if lost:
        process.communicate(timeout=PATIENCE)
    assert process.wait(PATIENCE) == (LOST if lost else WRONG)


def unread(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


# A command that has ended is done, though its output is read after --run-max. So is one whose dead are left to us,
# as to process 1 of a container.
@pytest.mark.parametrize("orphan", ["", "(: &); "])
def test_output_that_is_read_late_leaves_the_end_known(runs, orphan):
    def case(run_max):
        key = f"{run_max} s"
        script = BEGIN + orphan + "head -c 100000 /dev/zero; echo > ended"
        began = time.monotonic()
        process = runs.start(key, script, "--max-response", "1k", "--run-max", f"{run_max}s",
                             "--lease", f"{run_max}s", waits=False, preexec_fn=become_reaper)
        wait_until((runs.folder / "ended").exists, "the command's end")
        (runs.folder / "ended").unlink()
        wait_until(lambda: time.monotonic() > began + run_max + 0.3, "--run-max")
        assert process.communicate(timeout=PATIENCE)[0] == bytes(100000)
        assert process.returncode == 0
        assert runs.sh(key, script, "--max-response", "1k").returncode == GONE

    at_some_pace(case, 1, 5, 20)


def become_reaper():
    """For preexec_fn: orphans below become its children, as those of process 1 do."""
    assert libc.prctl(36, 1, 0, 0, 0) == 0


# SIGHUP may mean "reload" to the command: then it does not tell us to give up a slow reader 5 s after the end.
def test_a_reload_gives_up_no_reader(runs):
    script = "trap 'echo > told' HUP; " + BEGIN + "while ! [ -e told ]; do sleep .05; done; head -c 150000 /dev/zero"
    process = runs.start("k", script)
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: unread(process.stdout) == fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ), "the pipe being full")
    full = time.monotonic()
    wait_until(lambda: time.monotonic() > full + 6, "what a signal leaves to a reader")
    assert len(process.communicate(timeout=PATIENCE)[0]) == 150000 and process.returncode == 0


# But a terminal that went away, and the command with it, has no reader.
def test_a_hangup_ends_one_that_nobody_reads(runs):
    process = runs.start("k", BEGIN + "exec yes", "--max-response", "1k")
    wait_until(lambda: unread(process.stdout) == fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ), "the pipe being full")
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == WRONG


# A signal is heard, too, that comes while the outcome is being stored.
def test_a_signal_counts_while_an_outcome_is_stored(hapax, store):
    keeper = hapax.keep(store)
    runs = Runs(hapax, f"unix:{store.removeprefix('rocksdb:')}/keeper.sock")
    process = runs.start("k", BEGIN + "cat go; head -c 150000 /dev/zero", "--save-wait", "500ms", "--lease", "1s")
    end(keeper, signal.SIGKILL)
    runs.go()
    wait_until(lambda: not children_of(process.pid), "the command's end")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == WRONG


# What the command leaves running may still print: that is part of the output, as in a shell's $(…).
def test_output_ends_when_all_have_closed_it(runs):
    process = runs.start("k", BEGIN + "(cat go; echo late) & echo early", waits=True)
    runs.go()
    assert process.communicate(timeout=PATIENCE)[0] == b"early\nlate\n"
    daemon = runs.start("d", BEGIN + "cat go >/dev/null 2>&1 & echo early")
    assert daemon.communicate(timeout=PATIENCE)[0] == b"early\n"  # and does not wait for it
    runs.go()


# ---- statuses ---------------------------------------------------------------------------------

# The table of docs/run.md: what an end means, and so whether the next one runs.
@pytest.mark.some(6)
@pytest.mark.parametrize("script, options, first, second, effects", [
    ("exit 3", [], 3, 3, 2),
    ("exit 75", [], 75, 75, 2),
    ("exit 3", ["--on-expired", "hold"], 3, UNKNOWN, 1),
    ("exit 75", ["--on-expired", "hold"], 75, UNKNOWN, 1),
    ("exit 75", ["--on-expired", "hold", "--class", "75 not_run"], 75, 75, 2),
    ("exit 4", ["--on-expired", "hold", "--class", "3-5 9 not_run", "--class", "1 final"], 4, 4, 2),
    ("exit 1", ["--on-expired", "hold", "--class", "3-5 9 not_run", "--class", "1 final"], 1, 1, 1),
    ("exit 3", ["--attempts-max", "1"], 3, USED_UP, 1),
    ("kill -9 $$", ["--on-expired", "hold"], 137, UNKNOWN, 1),
    ("kill -9 $$", [], 137, IN_FLIGHT, 1),  # until the lease is over
    ("kill -9 $$", ["--lease", "10ms", "--wait", "1m"], 137, 137, 2),
    ("kill -9 $$", ["--class", "137 failed"], 137, 137, 2),
    ("exit 0", ["--rerun-completed", "on"], 0, 0, 2),
])
def test_what_a_status_means(runs, script, options, first, second, effects):
    assert [runs.sh("k", BEGIN + script, *options).returncode for _ in range(2)] == [first, second]
    assert runs.effects() == effects


# What cannot be executed has surely not run, under hold too.
def test_a_command_that_cannot_be_run_was_not_run(runs):
    for _ in range(2):
        done = runs("k", "--on-expired", "hold", "--", "./missing")
        assert done.returncode == 127 and b"cannot run" in done.stderr
    (runs.folder / "plain").write_text("text")
    assert runs("k2", "--", "./plain").returncode == 126
    assert runs.sh("k2", "exit 0").returncode == 0  # nothing binds the key


# ---- the request ------------------------------------------------------------------------------

# A key that is used for another command by mistake yields no output of the first.
def test_another_command_or_input_is_a_mismatch(runs):
    assert runs("k", "--", "echo", "a", "b").returncode == 0
    assert runs("k", "--", "echo", "a b").returncode == MISMATCH
    assert runs("i", "--stdin", "--", "cat", stdin=b"\x00\xff").stdout == b"\x00\xff"
    assert runs("i", "--stdin", "--", "cat", stdin=b"\x00\xff").stdout == b"\x00\xff"
    assert runs("i", "--stdin", "--", "cat", stdin=b"\x00").returncode == MISMATCH
    assert runs("f", "--fingerprint", "v1", "--", "echo", "a").stdout == b"a\n"
    assert runs("f", "--fingerprint", "v1", "--", "/bin/echo", "b").stdout == b"a\n"
    assert runs("f", "--fingerprint", "v2", "--", "echo", "a").returncode == MISMATCH


# A command has no stdin but what was compared.
def test_stdin_is_empty_unless_asked_for(runs):
    assert runs("k", "--", "cat", stdin=b"text").stdout == b""
    big = runs("b", "--stdin", "--max-request", "1k", "--", "cat", stdin=bytes(1025))
    assert big.returncode == WRONG and b"max-request, which is 1024 bytes" in big.stderr
    assert runs("b", "--stdin", "--max-request", "1k", "--", "cat", stdin=bytes(1024)).stdout == bytes(1024)


# Owners and scopes have keys of their own.
def test_owner_and_scope_tell_keys_apart(runs):
    for options in [[], ["--owner", "a"], ["--owner", "b"], ["--scope", "s"]]:
        assert runs.sh("k", BEGIN + "exit 0", *options).returncode == 0
    assert runs.effects() == 4


# The command knows its attempt, and nothing of ours that was in the environment before.
def test_the_environment_has_the_attempt(runs):
    script = "echo $HAPAX_KEY $HAPAX_ATTEMPT $HAPAX_FENCE $HAPAX_STALE ${HAPAX_TOKEN:-none}; exit 3"
    first, second = [runs.sh("k", script, HAPAX_TOKEN="old", HAPAX_STALE="old").stdout.decode().split()
                     for _ in range(2)]
    assert (first[:2], first[3:]) == (["k", "1"], ["0", "none"]) and second[:2] == ["k", "2"]
    assert int(second[2]) > int(first[2]) > 0
    token = runs.sh("t", "echo $HAPAX_TOKEN", "--pass-token", "on").stdout.strip()
    assert len(token) == 64


# Behind its retention a key says that it was done. Lists call that expired, a sweep takes the output away once, and
# who erases an owner erases it too: then the key is new.
# A command that stands still for a retention has its record expire under it.
def test_a_tombstone_says_that_it_was_done(runs):
    def told(*words):
        return runs.hapax(*words, "--store", runs.store, "--json")

    def case(retention):
        def ask():
            return runs.sh(retention, BEGIN + "echo done", "--lease", "100ms", "--retention", retention,
                           "--tombstone", "1h", "--owner", "ann")

        told("erase", "--owner", "ann")  # what a pace before has left
        before = runs.effects()
        assert ask().stdout == b"done\n"
        wait_until(lambda: b"it was done under this KEY" in ask().stderr, "the end of retention")
        assert ask().returncode == WRONG and runs.effects() == before + 1
        assert [line["state"] for line in told("list").lines] == ["expired"]
        assert [told("purge").json["purged"] for _ in range(2)] == [1, 0]
        assert b"it was done" in ask().stderr and told("erase", "--owner", "ann").json["erased"] == 1
        assert ask().stdout == b"done\n" and runs.effects() == before + 2

    at_some_pace(case, "200ms", "1s", "10s")


@pytest.mark.some(8)
@pytest.mark.parametrize("words, text", [
    ([], "KEY is missing"),
    (["k"], "COMMAND is missing"),
    (["k", "--"], "COMMAND is missing"),
    (["", "--", "true"], "KEY is missing"),
    (["k" * 256, "--", "true"], "key of 256 bytes is over 255"),
    (["k", "--owner", "", "--", "true"], "--scope and --owner have 1 to 255 bytes"),
    (["k", "--lease", "1", "--", "true"], "--lease"),
    (["k", "--on-expird", "hold", "--", "true"], "did you mean"),
    (["k", "--key-min", "2", "--", "true"], "KEY has fewer bytes than --key-min, which is 2"),
    (["k", "--owner-required", "on", "--", "true"], "--owner is missing"),
    (["t1000000000-k", "--key-expires", "on", "--", "true"], "KEY is older than --retention"),
    (["k", "--on-expired", "reconcile", "--", "true"], "there is no --reconcile SCRIPT"),
    (["k", "--reconcile", "true", "--", "true"], "nobody asks"),
    (["k", "--class", "256 final", "--", "true"], '--class "256 final" is not statuses'),
    (["k", "--class", "9-3 final", "--", "true"], '--class "9-3 final" is not statuses'),
    (["k", "--class", "3", "--", "true"], '--class "3" is not statuses'),
    (["k", "--class", " final", "--", "true"], '--class " final" is not statuses'),
    (["k", "--live", "--json", "--", "true"], "do not go together"),
    (["k", "l", "--", "true"], "one KEY is enough"),
])
def test_a_wrong_command_line_has_a_status_of_its_own(hapax, store, words, text):
    done = hapax.run(HAPAX, "run", "--store", store, *words)
    assert done.code == WRONG and text in done.err + done.out


# `hapax check` says of it what it says of any door.
def test_check_says_what_its_settings_promise(hapax, store):
    assert hapax("init", "--store", store).code == 0
    done = hapax("check", "--store", store, "--", "run", "--on-expired", "hold", "k", "--", "true")
    assert "no effect happens twice" in done.out and "whoever has a key is given its output" in done.out


# ---- several at once --------------------------------------------------------------------------

# Cron on ten hosts: one runs, all end with its output and status.
def test_of_ten_at_once_one_runs_and_all_get_its_output(shared):
    first = shared.start("k", WAIT, "--wait", "1m")
    others = [shared.start("k", WAIT, "--wait", "1m", waits=False) for _ in range(9)]
    busy = shared.sh("k", WAIT)
    assert busy.returncode == IN_FLIGHT and b"its last sign of life was" in busy.stderr
    quiet = shared.sh("k", WAIT, "--in-flight-exit", "0")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")
    shared.go()
    for process in [first, *others]:
        assert process.communicate(timeout=PATIENCE) == (b"done\n", b"") and process.returncode == 0
    assert shared.effects() == 1


# Whoever is told to end while another runs ends at once, and leaves no claim behind.
def test_a_signal_ends_one_that_waits(shared):
    first = shared.start("k", WAIT)
    second = shared.start("k", WAIT, "--wait", "1h", waits=False)
    wait_until(lambda: b"hapax-pulse" in names_of_threads(second.pid), "the second being under way")
    assert end(second) == 128 + signal.SIGTERM
    shared.go()
    assert first.wait(PATIENCE) == 0 and shared.effects() == 1
    assert shared.sh("k", WAIT).stdout == b"done\n"


# What its starter ignores, it ignores, as all commands do: behind nohup a terminal that goes away ends nothing.
def test_an_ignored_signal_ends_nothing(runs):
    script = BEGIN + "[ $HAPAX_ATTEMPT = 2 ] || { cat go; exit 3; }; echo done"
    first = runs.start("k", script)
    second = runs.start("k", script, "--wait", "1h", waits=False,
                        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_until(lambda: b"hapax-pulse" in names_of_threads(second.pid), "the second being under way")
    second.send_signal(signal.SIGHUP)
    runs.go()
    assert second.communicate(timeout=PATIENCE)[0] == b"done\n" and second.returncode == 0
    assert first.wait(PATIENCE) == 3


# But one that the command handles reaches it.
def test_an_ignored_signal_reaches_the_command(runs):
    script = ("import signal, sys\nsignal.signal(signal.SIGHUP, lambda *_: sys.exit(5))\n"
              "open('effects', 'a').write('1\\n')\nwhile True: signal.pause()")
    process = runs.start_words("k", "--", sys.executable, "-c", script,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 5


def names_of_threads(pid):
    return b"".join(subprocess.run(["sh", "-c", f"cat /proc/{pid}/task/*/comm"], capture_output=True).stdout.split())


# ---- deaths -----------------------------------------------------------------------------------

def number_in(path):
    """The process's number that a script has written there."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the inner command")
    return int(path.read_text())


# kill -9 of hapax run: neither the command nor what it has started goes on; the next attempt knows of it.
def test_nothing_goes_on_where_run_is_killed(shared):
    script = BEGIN + "sh -c 'echo $$ > inner; cat go; echo later >> effects' & wait"
    process = shared.start("k", script, "--lease", "1s")
    family = [number_in(shared.folder / "inner"), *children_of(process.pid)]
    assert len(family) == 3  # with the guard
    end(process, signal.SIGKILL)
    wait_until(lambda: all(map(is_over, family)), "their end")
    again = shared.sh("k", script.replace("sh -c", "echo $HAPAX_ATTEMPT $HAPAX_STALE; exit 0; sh -c"), "--fingerprint",
                      "x")
    assert again.returncode == MISMATCH  # it is the same operation still
    after = shared.start("k", script, "--wait", "1m", "--lease", "1s")
    assert (shared.folder / "effects").read_text().split() == ["1", "2"]
    end(after, signal.SIGKILL)


# kill -9 of its whole process group, as by `timeout -k` or `kill %1`: the guard is in a group of its own.
def test_nothing_goes_on_where_the_group_of_run_is_killed(runs):
    process = runs.start("k", BEGIN + "sh -c 'echo $$ > inner; cat go' & wait", start_new_session=True)
    family = [number_in(runs.folder / "inner"), *children_of(process.pid)]
    os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_over, family)), "their end")


def refuse_close_range():
    """For preexec_fn: a kernel before 5.9, or a sandbox of one."""
    lines = [(0x20, 0, 0, 0), (0x15, 0, 1, 436), (0x06, 0, 0, 0x50000 | errno.ENOSYS), (0x06, 0, 0, 0x7fff0000)]
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    program = struct.pack("HP", len(lines), ctypes.cast(code, ctypes.c_void_p).value)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0  # no new rights; a filter


# The guard closes what is not its own by close_range(), where there is that.
def test_a_command_runs_where_there_is_no_close_range(runs):
    process = runs.start("k", BEGIN + "echo done", waits=False, preexec_fn=refuse_close_range)
    assert process.communicate(timeout=PATIENCE) == (b"done\n", b"")


# Under hold nobody runs it again; an operator who knows gives the output.
def test_under_hold_a_death_is_left_to_an_operator(runs):  # promise 5
    process = runs.start("k", WAIT, "--on-expired", "hold", "--lease", "500ms")
    end(process, signal.SIGKILL)
    last = runs.sh("k", WAIT, "--on-expired", "hold", "--wait", "1m")
    assert last.returncode == UNKNOWN and b"hapax resolve" in last.stderr
    (runs.folder / "body").write_text("done\n")
    assert runs.hapax("resolve", "--store", runs.store, "k", "--complete", "0", "--body",
                      str(runs.folder / "body")).code == 0
    last = runs.sh("k", WAIT, "--on-expired", "hold")
    assert (last.returncode, last.stdout, runs.effects()) == (0, b"done\n", 1)


# reconcile: the hook is asked, and its word counts.
@pytest.mark.some(2)
@pytest.mark.parametrize("hook, status, output, effects", [
    ("echo found $HAPAX_ATTEMPT $HAPAX_STALE; exit 0", 0, b"found 2 1\n", 1),
    ("exit 1", 0, b"", 2),
    ("exit 2", UNKNOWN, b"", 1),
    ("kill -9 $$", UNKNOWN, b"", 1),
])
def test_a_hook_is_asked_whether_it_happened(runs, hook, status, output, effects):
    options = ["--on-expired", "reconcile", "--lease", "500ms", "--wait", "1m", "--reconcile", hook]
    script = BEGIN + "[ $HAPAX_ATTEMPT = 2 ] || cat go"
    end(runs.start("k", script, *options), signal.SIGKILL)
    done = runs.sh("k", script, *options)
    assert (done.returncode, done.stdout, runs.effects()) == (status, output, effects), done.stderr


# A hook that a signal may have ended has not answered, whatever its status; so the command is not run again.
@pytest.mark.parametrize("hook", [
    "trap 'exit 1' TERM; echo > asked; while :; do sleep .05; done",
    "trap 'exit 0' TERM; echo > asked; while :; do sleep .05; done",
    "(echo > asked; cat go) & exit 1",  # it has ended, and what it started has not
])
def test_a_hook_that_is_told_to_end_is_not_believed(runs, hook):
    options = ["--on-expired", "reconcile", "--lease", "500ms", "--wait", "1m", "--reconcile", hook]
    script = BEGIN + "[ $HAPAX_ATTEMPT = 2 ] || cat go"
    end(runs.start("k", script, *options), signal.SIGKILL)
    process = runs.start("k", script, *options, waits=False)
    wait_until((runs.folder / "asked").exists, "the hook's begin")
    process.send_signal(signal.SIGTERM)
    err = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, runs.effects(), runs.status("k")["state"]) == (UNKNOWN, 1, "unknown"), err


# A signal reaches the command and what it has started, and its own end counts.
def test_signals_are_handed_on(runs):
    process = runs.start("k", f"trap 'echo told; exit 5' TERM; sh -c '{BEGIN} exec cat go'", "--class", "5 final")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE)[0] == b"told\n" and process.returncode == 5
    assert runs.sh("q", "kill -TERM $$").returncode == 128 + signal.SIGTERM


# An operator takes the claim away: the command is told to end, and made to if it does not listen.
@pytest.mark.parametrize("ignores", [False, True])
def test_a_command_whose_claim_is_lost_is_ended(runs, ignores):
    script = ("trap '' TERM; " if ignores else "") + BEGIN + "while :; do cat go; done"
    process = runs.start("k", script, "--lease", "900ms")
    assert runs.hapax("resolve", "--store", runs.store, "k", "--fail", "--force").code == 0
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == LOST and b"the claim was lost" in err and out == b""
    assert runs.sh("k", BEGIN + "exit 0").returncode == MISMATCH  # it is free, for the same command


# So is what the command has started, though the command itself has ended and nothing prints any more.
def test_nothing_goes_on_where_a_claim_is_lost(runs):
    inner = "trap \"\" TERM; echo $$ > inner; while :; do cat go; done"
    process = runs.start("k", f"sh -c '{inner}' >/dev/null 2>&1 & {BEGIN} wait", "--lease", "900ms")
    pid = number_in(runs.folder / "inner")
    assert runs.hapax("resolve", "--store", runs.store, "k", "--fail", "--force").code == 0
    assert process.wait(PATIENCE) == LOST
    wait_until(lambda: is_over(pid), "the end of what it started")


# Longer than --run-max a command does not run, since nobody renews its claim then; what it did, nobody knows.
@pytest.mark.parametrize("expired, again", [("hold", UNKNOWN), ("rerun", 0)])
def test_a_command_ends_where_run_max_is_over(runs, expired, again):
    options = ["--lease", "300ms", "--on-expired", expired, "--wait", "1m"]
    script = BEGIN + "trap 'exit 0' TERM; [ $HAPAX_ATTEMPT = 2 ] || while :; do sleep .05; done"
    done = runs.sh("k", script, *options, "--run-max", "300ms")
    assert done.returncode == LOST and b"--run-max is over" in done.stderr
    assert runs.sh("k", script, *options).returncode == again


# Stopped past the lease: another has run meanwhile, and its outcome is the operation's.
def test_one_that_was_stopped_past_its_lease_gets_the_other_outcome(runs):  # promise 2
    script = BEGIN + "[ $HAPAX_ATTEMPT = 2 ] || cat go; echo $HAPAX_ATTEMPT"
    first = runs.start("k", script, "--lease", "500ms")
    first.send_signal(signal.SIGSTOP)
    second = runs.sh("k", script, "--wait", "1m")
    assert second.stdout == b"2\n"
    first.send_signal(signal.SIGCONT)
    out, err = first.communicate(timeout=PATIENCE)
    assert (first.returncode, out) == (0, b"2\n") and b"another attempt completed" in err


# ---- no store ---------------------------------------------------------------------------------

def test_without_a_store_nothing_runs_unless_it_may(hapax, folder):  # promise 11
    runs = Runs(hapax, f"unix:{folder}/nobody.sock")
    closed = runs.sh("k", BEGIN + "exit 0", "--timeout", "100ms")
    assert closed.returncode == NO_STORE and runs.effects() == 0
    opened = runs.sh("k", BEGIN + "echo x; exit 4", "--timeout", "100ms", "--on-store-error", "open")
    assert (opened.returncode, opened.stdout) == (4, b"x\n") and b"unprotected" in opened.stderr
    assert (folder / "effects").read_text() == "1\n"


# The outcome is kept until the store is back, within the lease.
def test_an_outcome_waits_for_a_store_that_is_away(hapax, store):
    keeper = hapax.keep(store)
    runs = Runs(hapax, f"unix:{store.removeprefix('rocksdb:')}/keeper.sock")
    process = runs.start("k", WAIT, "--save-wait", "100ms", "--lease", "1m")
    end(keeper, signal.SIGKILL)
    runs.go()
    assert process.stdout.read(5) == b"done\n"  # printed, and not stored yet
    hapax.keep(store)
    assert process.wait(PATIENCE) == 0 and process.stderr.read() == b""
    assert runs.sh("k", WAIT).stdout == b"done\n" and runs.effects() == 1


# What could not be stored is said; also behind an object of JSON, which is printed before.
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_outcome_that_is_not_stored_is_told(hapax, store, options):  # promise 4
    keeper = hapax.keep(store)
    runs = Runs(hapax, f"unix:{store.removeprefix('rocksdb:')}/keeper.sock")
    process = runs.start("k", WAIT, "--save-wait", "100ms", "--lease", "500ms", *options)
    end(keeper, signal.SIGKILL)
    runs.go()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and b"could not be stored" in err
    assert (json.loads(out)["output"] if options else out.decode()) == "done\n"
