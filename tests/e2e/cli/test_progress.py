"""What takes long says on a terminal how far it is (src/cli/progress.h)."""
import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import rabbit
from conftest import HAPAX, end, wait_until
from test_web import letters

SECONDS = 2.5  # it begins to tell after 2
pytestmark = pytest.mark.ci


def told(words, waits=lambda _: True, go_on=lambda: None, code=0):
    """What a command tells on a terminal, and its output: of one that waits for something, until it has taken long."""
    terminal, side = os.openpty()
    process = subprocess.Popen([HAPAX, *map(str, words)], stdout=subprocess.PIPE, stderr=side, text=True)
    wait_until(lambda: waits(process), "it waits")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + SECONDS, "the time")
    held = go_on()
    out, _ = process.communicate(timeout=120)
    del held
    os.close(side)
    said = b""
    with contextlib.suppress(OSError):  # all was read; what was written last may come a moment later
        while part := os.read(terminal, 1 << 16):
            said += part
    os.close(terminal)
    said = said.decode()
    assert process.returncode == code, said + out
    return said, out


def says(said, command, what):
    """It tells how much is done and what is left, and wipes its line at the end."""
    assert re.match(rf"hapax {command}: \d+ {what}, \d+ %, about \d+\S+ left\x1b\[K\r", said), said
    assert said.endswith("\x1b[K"), said


def opens_a_pipe(process):
    """Nobody has opened its other end yet."""
    with contextlib.suppress(OSError):  # a thread that has ended
        return any("wait_for_partner" in at.read_text() for at in Path(f"/proc/{process.pid}/task").glob("*/wchan"))


# The erase waits for whoever reads its trail.
def test_an_erase_says_how_far_it_is(hapax, store, folder):
    keeper = hapax.keep(store)
    words = ["erase", "--store", store, "--scope", "bench", "--audit", folder / "trail"]
    hapax("bench", "--store", store, "--seconds", "1", "--duplicates", "0", "--clients", "64", "--size", "16")
    os.mkfifo(folder / "trail")
    said, out = told(words, opens_a_pipe, lambda: open(folder / "trail"))
    says(said, "erase", "forgotten")
    assert out.startswith("erased ")
    (folder / "trail").unlink()
    assert hapax(*words).err == ""  # no terminal
    end(keeper)


# A transaction has the table. The test's server is one that check calls dangerous.
@pytest.mark.parametrize("command, what, code", [("purge", "removed", 0), ("check", "unknown", 1)])
def test_a_walk_says_how_far_it_is(hapax, db, command, what, code):
    uri = f"postgres://postgres@127.0.0.1:{db.server.port}/{db.name}?timeout=30s"

    def filled():  # with more than one op walks through; a busy machine makes few in a second
        hapax("bench", "--store", uri, "--seconds", "1", "--duplicates", "0", "--clients", "64", "--size", "4096")
        return db.run("SELECT count(*) FROM hapax.operations")[0][0] >= 3000

    wait_until(filled, "3000 operations")
    hapax.many_unknown(uri, [f"k{i}" for i in range(3000)])
    blocker = db.connect(autocommit=False)
    blocker.cursor().execute("LOCK TABLE hapax.operations")
    said, _ = told([command, "--store", uri], lambda _: db.run("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0],
                   blocker.rollback, code)
    says(said, command, what)


# It may hold one letter, which it leaves: it waits for the broker to count the others.
def test_a_redrive_says_how_far_it_is():
    back = letters(rabbit.server(), 4)
    words = ["redrive", "--from", back.dead.uri(), "--to", back.uri(), "--in-hand-max", "1"]
    said, out = told(words, code=1)
    says(said.rpartition("hapax redrive: not all")[0], "redrive", "letters seen")
    assert "put back: 0, left: 1" in out
