#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mistakes planted by hand, where a bug would hurt: each must make one named test of `make test` fail.

One mistake at a time is written into a private view of this tree (an overlay in a mount namespace, so root is
needed). What the test needs is built there as `make test` builds it, and the test runs. A mistake that survives, whose
text is not in its file exactly once, or whose test fails without it, fails this program. tests/sim/mutants.py has the
core's mistakes, which the simulator must catch.

    planted.py BUILD [--only WORD,WORD…] [--count N] [--seconds S] [--seed TEXT] [--jobs N] [--list]
    planted.py --texts

BUILD lies in this tree, and is built. --only: those whose name or file holds a word. --count, --seconds: so many, and
no new one after so long, drawn by the seed. --texts only looks whether each text is there once.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/sim"))
from mutants import plant  # noqa: E402
from planted_rows import MISTAKES  # noqa: E402

TIMEOUT_S = 300
PATIENCE_S = 30 # of a case, with the mistake and without: many wait for what the mistake keeps from happening
MODULE = "nginx/ngx_http_hapax_module.so"
# How the process of one mistake ends.
CAUGHT, SURVIVED, BROKEN = 0, 10, 11
# What it says besides.
HANGS, BUILT, FAILED = "it hangs", "built in", "failed:"

PRIVATE = """
set -e
mount -t tmpfs tmpfs {place}
mkdir {place}/upper {place}/work
mount -t overlay overlay -o lowerdir={root},upperdir={place}/upper,workdir={place}/work {root}
cd {root}
exec {command}
"""


def texts():
    """What is wrong with the table."""
    names = set()
    for name, file, old, new, _test in MISTAKES:
        if name in names:
            yield f"{name}: stands twice"
        names.add(name)
        try:
            plant((ROOT / file).read_text(encoding="utf-8"), old, new)
        except (ValueError, OSError) as error:
            yield f"{name}: {file}: {error}"


def has_gate(case):
    """Whether a case of pytest runs nginx with the module."""
    file, _, name = case.partition("::")
    found = re.search(rf"^def {name}\(.*?(?=^\S|\Z)", (ROOT / file).read_text(encoding="utf-8"), re.M | re.S)
    return "/gate/" in file or re.search(r"\bgate\b|\bServed\b", found[0]) is not None


def make_targets(build, targets):
    """What went wrong, if something did. No header is mistaken, so nginx's own build need not begin anew."""
    plain = [one for one in targets if one != MODULE]
    words = [["ninja", "-C", build, "--quiet", *plain]] if plain else []
    if MODULE in targets:
        source, objs = os.environ.get("NGX_SRC", "/usr/share/nginx/src"), build / "nginx/objs"
        words += [["make", "-s", "-C", source, "-f", objs / "Makefile", "modules"],
                  ["cp", objs / pathlib.Path(MODULE).name, build / MODULE]]
    for one in words:
        env = {**os.environ, "HAPAX_LIBDIR": str(build)}
        made = subprocess.run(one, env=env, capture_output=True, text=True, check=False)
        if made.returncode:
            return made.stdout[-2000:] + made.stderr[-2000:]
    return None


def command_of(build, test, file):
    """What runs the test, its environment, and what must be built for it. None: `make test` has no such test."""
    env = {"HAPAX_BUILD": str(build), "HAPAX_PATIENCE_S": str(PATIENCE_S)}
    if test.startswith("tests/"):
        cases = test.split()
        targets = ["hapax", "tests/store/op", "libhapax.a"]
        if file.startswith("nginx/"):
            targets = []
        if any(has_gate(case) for case in cases):
            targets.append(MODULE)
        words = ["/usr/bin/python3", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *cases]
        return words, env, targets, ROOT
    known = json.loads((build / "meson-info/intro-tests.json").read_text())
    found = [one for one in known if one["name"] == test and not any(":ci" in suite for suite in one["suite"])]
    if not found:
        return None
    made = {one["id"]: one["filename"] for one in json.loads((build / "meson-info/intro-targets.json").read_text())}
    targets = [os.path.relpath(name, build) for one in found[0]["depends"] for name in made[one]]
    return found[0]["cmd"], {**env, **found[0]["env"]}, targets, build


def said_in(file):
    """What was written there so far; the offset of the file is the writer's."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def try_here(build, name, test):
    """Plants the mistake, if one is named, builds, and runs the test. In the private view."""
    file = ""
    for row in MISTAKES:
        if row[0] == name:
            _name, file, old, new, test = row
            path = ROOT / file
            path.write_text(plant(path.read_text(encoding="utf-8"), old, new), encoding="utf-8")
    if not (command := command_of(build, test, file)):
        print(f"`make test` has no test {test}")
        return BROKEN
    words, env, targets, folder = command
    began = time.monotonic()
    if targets and (broken := make_targets(build, targets)):
        print(broken)
        return BROKEN
    print(f"{BUILT} {time.monotonic() - began:.0f} s")
    with tempfile.TemporaryFile() as out: # not a pipe, which a process that is left behind would hold open
        until_s = time.monotonic() + TIMEOUT_S
        # What still runs when this returns ends with its namespace.
        running = subprocess.Popen(words, cwd=folder, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=subprocess.STDOUT)
        while running.poll() is None:
            if time.monotonic() > until_s:
                print(HANGS)
                return CAUGHT
            said = said_in(out)
            if name and (failed := re.search(r"^not ok \d+ - (\S+)", said, re.M)):
                print(f"{FAILED} {failed[1]}")
                return CAUGHT
            time.sleep(0.1)
        said = said_in(out)[-4000:]
    if running.returncode == 0:
        return SURVIVED
    # 2 to 5 of pytest: it ran no test.
    ran = not test.startswith("tests/") or running.returncode == 1
    if not ran or not name:
        print(said)
    if not ran:
        return BROKEN
    return CAUGHT


def try_one(build, name, test):
    """What came of it, and what it said: in namespaces of mounts and of processes, so that nothing stays behind."""
    words = [sys.executable, __file__, str(build), "--inside", name, "--test", test]
    with tempfile.TemporaryDirectory() as place:
        script = PRIVATE.format(place=shlex.quote(place), root=shlex.quote(str(ROOT)), command=shlex.join(words))
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c",
                               script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", check=False)
    return done.returncode, done.stdout


def judge(build, row, sound):
    """A line for the mistake, and whether its test caught it. sound: what came of the test without a mistake."""
    name, _file, _old, _new, test = row
    came, said = sound
    if came != SURVIVED:
        return f"BROKEN   {name}: without it, {test} does not pass\n{said}", False
    began = time.monotonic()
    came, said = try_one(build, name, test)
    if came == CAUGHT:
        hangs = ", which hangs" if HANGS in said else ""
        built = "".join(f", {line}" for line in said.splitlines() if line.startswith(BUILT))
        failed = "".join(f", {line}" for line in said.splitlines() if line.startswith(FAILED))
        return f"caught   {name}: {test}{hangs}{failed} ({time.monotonic() - began:.0f} s{built})", True
    return (f"SURVIVED {name}: {test} passes" if came == SURVIVED else f"BROKEN   {name}: {said}"), False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?", default=ROOT / "build")
    parser.add_argument("--only", default="")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--test", help=argparse.SUPPRESS)
    args = parser.parse_args()
    build = args.build.resolve()
    if args.texts:
        return "\n".join(texts()) or None
    if args.inside is not None:
        return try_here(build, args.inside, args.test)
    if ROOT not in build.parents:
        return f"{build} is not in {ROOT}"
    chosen = [row for row in MISTAKES if any(word in row[0] or word in row[1] for word in args.only.split(","))]
    if args.count or args.seconds:
        random.Random(args.seed).shuffle(chosen)
    chosen = chosen[:args.count]
    if args.list:
        print("\n".join(f"{row[0]}: {row[1]}: {row[4]}" for row in chosen))
        return 0
    began, missed, tried = time.monotonic(), 0, 0
    sound, lock = {}, threading.Lock()
    threads = concurrent.futures.ThreadPoolExecutor
    with threads(args.jobs) as pool, threads(args.jobs) as bare:
        def play(row):
            if args.seconds and time.monotonic() - began >= args.seconds:
                return None
            with lock: # the cases of one file are tried together
                file = row[4].partition("::")[0]
                if file not in sound:
                    cases = sorted({one[4] for one in chosen if one[4].partition("::")[0] == file})
                    sound[file] = bare.submit(try_one, build, "", " ".join(cases))
            return judge(build, row, sound[file].result())

        for told in pool.map(play, chosen):
            if told:
                print(told[0], flush=True)
                tried += 1
                missed += not told[1]
    print(f"# {tried} of {len(MISTAKES)} planted mistakes tried: {tried - missed} caught, {missed} not")
    return missed > 0 or tried == 0


if __name__ == "__main__":
    sys.exit(main())
