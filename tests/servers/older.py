"""An older Hapax, built from the history of this repository into build/old: the program and the nginx module alone."""
import fcntl
import functools
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What two programs must agree on, and where its number stands.
NUMBERS = {"schema": ("src/store/postgres/link.h", "HAPAX__PG_VERSION"),
           "protocol": ("src/store/keeper/frame.h", "HAPAX__FRAME_VERSION")}


class Program:
    """What a test runs of one version."""

    def __init__(self, name, build):
        self.name, self.hapax, self.module = name, build / "hapax", build / "nginx/ngx_http_hapax_module.so"

    def __repr__(self):
        return self.name


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)


def number_at(commit, path, macro):
    found = re.search(rf"^#define {macro} +(\d+)", git("show", f"{commit}:{path}").stdout, re.M)
    return found and int(found[1])


def commit_before(what):
    """The last commit with the number before the newest one."""
    path, macro = NUMBERS[what]
    for commit in git("log", "--format=%H", f"-G#define {macro} ", "HEAD", "--", path).stdout.split():
        before = git("rev-parse", "--verify", "--quiet", f"{commit}^").stdout.strip()
        numbers = number_at(before, path, macro) if before else None, number_at(commit, path, macro)
        if None not in numbers and numbers[0] != numbers[1]:
            return before, numbers
    pytest.fail(f"the history here does not reach back to the change of {macro}: git fetch --unshallow")


def build(commit, into):
    """Only what is run, once, and not optimised."""
    into.mkdir(parents=True, exist_ok=True)
    with open(into / "log", "ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # another process of pytest may be at it
        if (into / "ready").exists():
            return

        def run(*words, **more):
            subprocess.run([str(word) for word in words], cwd=into, check=True, stderr=log, **more)

        (into / "source").mkdir(exist_ok=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
        run("tar", "-x", "-C", "source", input=archive)
        if not (into / "build/build.ninja").exists():
            run("meson", "setup", "build", "source", "-Dtests=false", "-Dbuildtype=debug", stdout=log)
        run("ninja", "-C", "build", "--quiet", "hapax", "nginx/ngx_http_hapax_module.so", stdout=log)
        (into / "ready").touch()


@functools.cache
def program_before(what):
    """The Hapax before the newest change of that number."""
    commit, numbers = commit_before(what)
    into = ROOT / "build/old" / commit[:12]
    try:
        build(commit, into)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{commit} cannot be built here: {error}; see {into}/log")
    print(f"old: {commit[:12]}, {what} {numbers[0]}; new: {numbers[1]}")
    return Program("old", into / "build")
