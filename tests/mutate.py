#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mechanical mistakes in src/core: each must be caught by a unit test or the simulator.

One mistake at a time: a comparison, an operator or a constant becomes another, a condition is negated, a statement is
left out. The file is linked with the test programs of its part, which run until one fails, hangs
or dies. What survives is named, and fails this program, unless tests/mutate.txt says why no test can tell it from the
original. tests/sim/mutants.py has mistakes that mean something; these are all that a machine can think of.

    mutate.py BUILD [--only FILE,FILE…] [--count N --seed N] [--jobs N] [--list]

BUILD must be built. --count: so many of them, drawn by the seed. --list prints them, and tries none.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests/mutate.txt"
SIM = "sim"
FLOW = "flow flow_mates flow_breaker flow_resume"
# The files, and the programs that try each, the quickest to find something first. Several tests with a space between
# are linked into one program. For another file: its row here, and each survivor caught by a test or explained.
PROGRAMS = {
    "breaker": [FLOW, SIM],
    "class": ["class", SIM],
    "drive": [FLOW, SIM],
    "flow": [FLOW, SIM],
    "id": ["text", "record"],
    "key": ["text"],
    "limit": ["limit"],
    "machine": ["machine", "machine_kept", SIM, "machine_table"],
    "owners": ["limit"],
    "policy": ["policy"],
    "question": ["text"],
    "record": ["record"],
    "token": ["token"],
    "trace": ["text"],
    "waiters": [FLOW, SIM],
    "what": ["text"],
}
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-w", "-fno-strict-aliasing", "-fPIC", "-Iinclude", "-Isrc", "-Isrc/core"]
LINK = ["cc", *(["-fuse-ld=gold"] if shutil.which("ld.gold") else []), "-s"] # gold takes a third of the time
LIBRARIES = ["-lcmocka", "-lcrypto", "-lssl", "-lpq", "-lcurl", "-lpthread", "-lm"]
# What a program may take of a processor, in seconds: several times what it needs. That time does not pass while the
# process stands still, so this is what ends a mistake that hangs. The other limit is for one that sleeps.
CPU_S = {SIM: 5, "machine_table": 40}
TIMEOUT_S = 300

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
# Ahead of the file: which copy is called.
CHOICE = """#include <stdlib.h>
static int chosen;
__attribute__((constructor)) static void choose(void) { chosen = atoi(getenv("CHOSEN")); }"""
Mutant = collections.namedtuple("Mutant", "name path at new of_table")
# Where a function begins. A table belongs to none.
FUNCTION = re.compile(r"^[a-z][^;=]*?(\w+)\([^;]*$")


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
    """Each mistake: its name, as in tests/mutate.txt, the file, the number of the line from 0, and the line instead."""
    for path in sorted((ROOT / "src/core").glob("*.c")):
        if only and path.stem not in only.split(","):
            continue
        place, seen = path.name, {}
        for at, line in enumerate(path.read_text(encoding="utf-8").split("\n")):
            if found := FUNCTION.match(line):
                place = f"{path.name} {found[1]}"
            elif line.startswith("}"):
                place = path.name
            for new, what in mutations_of(line):
                name = place, line.strip(), what
                seen[name] = seen.get(name, 0) + 1
                if seen[name] > 1:
                    name = f"{place} {seen[name]}", *name[1:]
                yield Mutant(name, path, at, new, place == path.name)


def functions_of(lines):
    """Where each function begins, where its body does, and where it ends."""
    for begin, line in enumerate(lines):
        if FUNCTION.match(line):
            yield begin, lines.index("{", begin), lines.index("}", begin)


def text_with(lines, mutants):
    """The file with a copy of a function for each mistake in it; CHOSEN says by number which mistake is made, 0: none.

    So a file is compiled and linked once for all of them. Also gives the mistake of each line, or None.
    """
    out, whose, done = CHOICE.split("\n"), [], 0
    for begin, body, end in functions_of(lines):
        out += lines[done:begin]
        head = "\n".join(lines[begin:body])
        name, words = FUNCTION.match(lines[begin])[1], re.search(r"\((.*)\)", head, re.S)[1]
        call = ", ".join(re.search(r"(\w+)(?:\[[^\]]*\])?$", word.strip())[1]
                         for word in words.split(",") if word != "void")
        cases = []
        for number, mutant in enumerate([None, *mutants]):
            if mutant and not begin < mutant.at < end:
                continue
            copy = lines[body:end + 1]
            if mutant:
                copy[mutant.at - body] = mutant.new
            whose += [None] * (len(out) - len(whose))
            out += [re.sub(rf"\b{name}\(", f"{name}__{number}(", head, count=1).replace("\n", " "), *copy]
            whose += [mutant] * (len(copy) + 1)
            cases.append(f"{f'case {number}' if number else 'default'}: return {name}__{number}({call});")
        out += [head.replace("\n", " "), "{ switch (chosen) {", *cases, "} }"]
        done = end + 1
    out += lines[done:]
    return "\n".join(out), whose + [None] * (len(out) - len(whose))


def objects_of(build, program):
    if program == SIM:
        return sorted(o for part in ("sim.p", "libsim_world.a.p") for o in (build / "tests/sim" / part).glob("*.o"))
    made = [build / f"tests/unit/test_{name}.p/test_{name}.c.o" for name in program.split()]
    if program == "token": # it lets allocations fail
        made += [build / "tests/libfaulty.a", build / "tests/unit/liboom.a", *(
            f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free", "strdup", "strndup"))]
    return made


def compiled(text, source):
    """Compiles the text; gives the numbers from 0 of the lines that the compiler refuses."""
    source.write_text(text, encoding="utf-8")
    done = subprocess.run(["cc", *FLAGS, "-fmax-errors=0", "-c", source, "-o", source.with_suffix(".o")], cwd=ROOT,
                          capture_output=True, check=False, text=True)
    wrong = re.findall(rf"^{source}:(\d+):\d+: error", done.stderr, re.M)
    if done.returncode and not wrong:
        sys.exit(done.stderr)
    return [int(line) - 1 for line in wrong]


def linked(build, source, name):
    archives = [build / "libhapax.a", build / "src/core/libhapax-core.a", build / "tests/libcases.a"]
    program = source.with_suffix(".test")
    subprocess.run([*LINK, *objects_of(build, name), source.with_suffix(".o"), "-Wl,--start-group", *archives,
                    "-Wl,--end-group", *LIBRARIES, "-o", program], check=True)
    return program


def fails(program, name, number):
    words = ["--schedules", "15000", "--jobs", "1"] if name == SIM else []
    limits = ["prlimit", f"--cpu={CPU_S.get(name, 1)}", "--core=0"]
    try:
        return subprocess.run([*limits, program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              check=False, timeout=TIMEOUT_S, cwd=program.parent,
                              env={**os.environ, "CHOSEN": str(number)}).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def catch(build, source, path, mutants, jobs):
    """Who catches each of these mistakes of a file: a program, "the compiler", or nobody (None)."""
    lines, found, left = path.read_text(encoding="utf-8").split("\n"), {}, mutants
    of_table = mutants[0].of_table # and alone
    if of_table:
        lines[left[0].at] = left[0].new
        if compiled("\n".join(lines), source):
            return {left[0].name: "the compiler"}
    else:
        while wrong := compiled((made := text_with(lines, left))[0], source):
            found |= {made[1][line].name: "the compiler" for line in wrong}
            left = [mutant for mutant in left if mutant.name not in found]
    numbers = {number: mutant.name for number, mutant in enumerate(left, 1)}
    for name in PROGRAMS[path.stem]:
        program = linked(build, source, name)
        if not of_table and fails(program, name, 0):
            sys.exit(f"{name} fails without a mistake in {path.name}")
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            caught = pool.map(lambda number: fails(program, name, number), list(numbers))
            found |= {numbers.pop(number): name for number, is_caught in zip(list(numbers), caught) if is_caught}
    return {mutant.name: found.get(mutant.name) for mutant in mutants}


def known():
    """What tests/mutate.txt explains: PLACE | LINE | WHAT, WHAT… | WHY."""
    rows = [row.split(" | ") for row in KNOWN.read_text(encoding="utf-8").splitlines() if row and row[0] != "#"]
    return {(place, line, what) for place, line, whats, _why in rows for what in whats.split(", ")}


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
    stale = explained - {mutant.name for mutant in mutants} if not args.only else set()
    for row in stale:
        print(f"tests/mutate.txt explains what is not there: {' | '.join(row)}")
    if args.count:
        mutants = random.Random(args.seed).sample(mutants, min(args.count, len(mutants)))
    if args.list:
        for mutant in mutants:
            print(f"{mutant.path.name}:{mutant.at + 1}: {' | '.join(mutant.name)}")
        return len(stale) > 0
    batches = {}
    for mutant in mutants: # those of one file's functions are tried together
        batches.setdefault((mutant.path, mutant.name if mutant.of_table else None), []).append(mutant)
    found = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        for number, ((path, _alone), batch) in enumerate(batches.items()):
            found |= catch(build, pathlib.Path(folder) / f"{number}.c", path, batch, args.jobs)
    survivors = caught = refused = told = 0
    for mutant in mutants:
        by = found[mutant.name]
        if by == "the compiler":
            refused += 1
        elif by:
            caught += 1
        elif mutant.name in explained:
            told += 1
        else:
            survivors += 1
            print(f"SURVIVED {mutant.path.name}:{mutant.at + 1}: {' | '.join(mutant.name)}", flush=True)
    print(f"# {len(mutants)} mistakes: {caught} caught, {refused} that do not compile, {told} explained, "
          f"{survivors} survived")
    return survivors > 0 or len(stale) > 0


if __name__ == "__main__":
    sys.exit(main())
