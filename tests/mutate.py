#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mechanical mistakes in src/core: each must be caught by a unit test or the simulator.

One mistake at a time: a comparison, an operator or a constant becomes another, a condition is negated, a statement is
left out. The file is compiled with it and linked with the test programs of its part, which run until one fails, hangs
or dies. What survives is named, and fails this program, unless tests/mutate.txt says why no test can tell it from the
original. tests/sim/mutants.py has mistakes that mean something; these are all that a machine can think of.

    mutate.py BUILD [--only FILE,FILE…] [--count N --seed N] [--jobs N] [--list]

BUILD must be built. --count: so many of them, drawn by the seed. --list prints them, and tries none.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests/mutate.txt"
SIM = "sim"
# The files, and the programs that try each, the quickest to find something first. For another file: its row here, and
# each survivor caught by a test or explained.
PROGRAMS = {
    "breaker": ["flow_breaker", "flow_mates", SIM],
    "class": ["class", SIM],
    "drive": ["flow", SIM],
    "id": ["text", "record"],
    "limit": ["limit"],
    "machine": ["machine", "machine_kept", SIM, "machine_table"],
    "owners": ["limit"],
    "policy": ["policy"],
    "question": ["text"],
    "record": ["record"],
    "token": ["token"],
    "trace": ["text"],
    "waiters": ["flow_mates", "flow", SIM],
    "what": ["text"],
}
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-w", "-fno-strict-aliasing", "-fPIC", "-Iinclude", "-Isrc", "-Isrc/core"]
LIBRARIES = ["-lcmocka", "-lcrypto", "-lssl", "-lpq", "-lcurl", "-lpthread", "-lm"]
# What a program may take of a processor and of time. The processor's time does not pass while the process stands still.
LIMITS = ["prlimit", "--cpu=10", "--core=0"]
TIMEOUT_S = 60

OTHER = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "&&": "||", "||": "&&", "+": "-", "-": "+",
         "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=",
         "true": "false", "false": "true"}
OPERATOR = re.compile(r"(?<= )(==|!=|<=|>=|<<|>>|&&|\|\||\+=|-=|\|=|&=|[<>+*/%-])(?= )|\b(true|false)\b")
NUMBER = re.compile(r"(?<![\w.\"'])(\d+)(?![\w.\"'])")
CONDITION = re.compile(r"^\s*(?:\} else )?(?:if|while) \((.*)\)(?: \{)?$")
# A call or an assignment on one line: no declaration, and nothing that the compiler needs.
STATEMENT = re.compile(r"^\s+(?:\(void\))?[a-z_][\w.>\[\]-]*(?:\(.*\)| [|&+-]?= [^;]*|\+\+|--);$|^\s+\+\+[\w.>-]+;$")
SKIPPED = re.compile(r"^\s*(#|/\*| \*|\*|assert\(|static_assert|return;|break;|const struct|static const)|\bassert\("
                     r"|^[a-z].*\(|^\s+(?!return\b)(?:struct )?\w+ \w+(?:\[[^\]]*\])+;")


def mutations_of(line):
    """The lines that this line may become, and what was done, with a number where that could be said of several."""
    seen = {}
    for new, what in changes_of(line):
        seen[what] = seen.get(what, 0) + 1
        yield new, what if seen[what] == 1 else f"{what} ({seen[what]})"


def changes_of(line):
    if SKIPPED.search(line):
        return
    code = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', lambda found: "\0" * len(found[0]), line)
    code = re.sub(r"/\*.*?\*/|sizeof\([^()]*\)", lambda found: "\0" * len(found[0]), code)
    for found in OPERATOR.finditer(code):
        if found[0] == "*" and re.search(r"(struct \w+|\w+_t|char|void|int) $", code[:found.start()]):
            continue
        yield f"{line[:found.start()]}{OTHER[found[0]]}{line[found.end():]}", f"{found[0]} is {OTHER[found[0]]}"
    for found in NUMBER.finditer(code):
        yield f"{line[:found.start()]}{int(found[0]) + 1}{line[found.end():]}", f"{found[0]} is {int(found[0]) + 1}"
    if found := CONDITION.match(code):
        inside = line[found.start(1):found.end(1)]
        yield f"{line[:found.start(1)]}!({inside}){line[found.end(1):]}", "negated"
    if STATEMENT.match(code):
        yield re.match(r"\s*", line)[0] + ";", "left out"


def all_mutants(only):
    for path in sorted((ROOT / "src/core").glob("*.c")):
        if path.stem not in PROGRAMS or (only and path.stem not in only.split(",")):
            continue
        lines = path.read_text(encoding="utf-8").split("\n")
        for at, line in enumerate(lines):
            for new, what in mutations_of(line):
                yield path, at, line.strip(), what, "\n".join([*lines[:at], new, *lines[at + 1:]])


def objects_of(build, program):
    if program == SIM:
        return sorted((build / "tests/sim/sim.p").glob("*.o"))
    made = [build / f"tests/unit/test_{program}.p/test_{program}.c.o"]
    if program == "token": # it lets allocations fail
        made += [build / "tests/libfaulty.a", build / "tests/unit/liboom.a", *(
            f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free", "strdup", "strndup"))]
    return made


def catch(build, work, number, mutant):
    """Who catches the mistake: a program, "the compiler", or nobody (None)."""
    path, _at, _line, _what, text = mutant
    source, made, program = work / f"{number}.c", work / f"{number}.o", work / f"{number}.test"
    source.write_text(text, encoding="utf-8")
    try:
        if subprocess.run(["cc", *FLAGS, "-c", source, "-o", made], cwd=ROOT, stderr=subprocess.DEVNULL,
                          check=False).returncode:
            return "the compiler"
        for name in PROGRAMS[path.stem]:
            archives = [build / "libhapax.a", build / "src/core/libhapax-core.a", build / "tests/libcases.a"]
            subprocess.run(["cc", *objects_of(build, name), made, "-Wl,--start-group", *archives, "-Wl,--end-group",
                            *LIBRARIES, "-s", "-o", program], check=True, capture_output=True)
            words = ["--schedules", "15000", "--jobs", "1"] if name == SIM else []
            try:
                done = subprocess.run([*LIMITS, program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      check=False, timeout=TIMEOUT_S, cwd=work)
            except subprocess.TimeoutExpired:
                return f"{name}, which hangs"
            if done.returncode:
                return name
        return None
    finally:
        for file in (source, made, program):
            file.unlink(missing_ok=True)


def known():
    """What tests/mutate.txt explains: FILE | LINE | WHAT, WHAT… | WHY."""
    rows = [row.split(" | ") for row in KNOWN.read_text(encoding="utf-8").splitlines() if row and row[0] != "#"]
    return {(file, line, what) for file, line, whats, _why in rows for what in whats.split(", ")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    build, mutants, explained = args.build.resolve(), list(all_mutants(args.only)), known()
    there = {(path.name, line, what) for path, _at, line, what, _text in mutants}
    stale = explained - there if not args.only else set()
    for row in stale:
        print(f"tests/mutate.txt explains what is not there: {' | '.join(row)}")
    if args.count:
        mutants = random.Random(args.seed).sample(mutants, min(args.count, len(mutants)))
    if args.list:
        for path, at, line, what, _text in mutants:
            print(f"{path.name}:{at + 1}: {what}: {line}")
        return len(stale) > 0
    survivors = caught = refused = told = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder, \
            concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        work = pathlib.Path(folder)
        jobs = [pool.submit(catch, build, work, number, mutant) for number, mutant in enumerate(mutants)]
        for (path, at, line, what, _text), job in zip(mutants, jobs):
            by = job.result()
            if by == "the compiler":
                refused += 1
            elif by:
                caught += 1
            elif (path.name, line, what) in explained:
                told += 1
            else:
                survivors += 1
                print(f"SURVIVED {path.name}:{at + 1}: {path.name} | {line} | {what}", flush=True)
    print(f"# {len(mutants)} mistakes: {caught} caught, {refused} that do not compile, {told} explained, "
          f"{survivors} survived")
    return survivors > 0 or len(stale) > 0


if __name__ == "__main__":
    sys.exit(main())
