"""tools/flake: which runs it tells of, and what is left of a run that is ended. In a tree of its own, whose tools/test
writes results as the suite does."""
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from conftest import PATIENCE, ROOT, wait_until
from process import is_over

PLAYED = """#!/bin/sh
mkdir -p build/meson-logs build/results
echo . >> turns
[ $(wc -l < turns) = 2 ] && broken='<failure/>'
echo '{"name": "unit", "result": "OK"}' > build/meson-logs/testlog.json
echo '<a><testcase classname="c" name="same"/></a>' > build/meson-logs/testlog.junit.xml
echo "<a><testcase classname='c' name='moody'>$broken</testcase></a>" > build/results/e2e.xml
echo all told
[ -z "$broken" ]
"""
# Ends with a child that is in a session of its own, and works in a folder of a C program's.
STAYS = """#!/bin/sh
echo "$TMPDIR" > temporary
touch "$TMPDIR/something"
mktemp -d /tmp/hapax-flake-XXXXXX > folder
cd "$(cat folder)"
setsid sh -c 'echo $$ > "$0/child.new"; mv "$0/child.new" "$0/child"; exec sleep 600' "$OLDPWD" &
exec sleep 600
"""


@pytest.fixture
def tree(folder):
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools/flake", folder / "tools")
    return folder


def suite(tree, text):
    (tree / "tools/test").write_text(text)
    (tree / "tools/test").chmod(0o755)


def flake(tree, *words):
    done = subprocess.run([tree / "tools/flake", *words], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_differences_are_told_over_the_runs_of_all_calls(tree):
    suite(tree, PLAYED)
    code, lines = flake(tree, "1")
    assert code == 0 and lines[0].startswith("run 1: all told (")
    assert lines[1:] == ["1 runs, 0 failed, 0 cases differ or fail, 3 cases"]
    code, lines = flake(tree, "2", "--load")
    assert code == 1 and [line[:6] for line in lines[:2]] == ["run 2:", "run 3:"]
    told = ["c::moody: failed in 2; passed in 1, 3", "3 runs, 1 failed, 1 cases differ or fail, 3 cases"]
    assert lines[2:] == told
    assert flake(tree, "0") == (1, told)
    assert flake(tree, "1", "--new")[1][1:] == ["1 runs, 0 failed, 0 cases differ or fail, 3 cases"]


@pytest.mark.some(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_it_started_and_keeps_whole_runs_alone(tree, number):
    suite(tree, PLAYED)
    flake(tree, "1")
    suite(tree, STAYS)
    process = subprocess.Popen([tree / "tools/flake", "1"], stdout=subprocess.PIPE, text=True)
    try:
        wait_until((tree / "child").exists, "the run")
    finally:
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (128 + number, "")
    assert is_over(int((tree / "child").read_text()))
    for name in ("temporary", "folder"):
        assert not os.path.exists(pathlib.Path(tree / name).read_text().strip())
    assert flake(tree, "0") == (0, ["1 runs, 0 failed, 0 cases differ or fail, 3 cases"])
