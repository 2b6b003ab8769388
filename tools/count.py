#!/usr/bin/python3
"""Sums test results: count.py FILE…

Takes meson's testlog.json (with testlog.junit.xml beside it, which has the single cases of each
TAP program), JUnit files of pytest, and text files whose last line is a sum of this script. Prints
`N passed, N failed, N skipped` and exits 1 if any failed. A file that does not exist or holds no
result is a failure: what was to run has not. Of each failed case it prints, to stderr, the ten lines
that matter and the command that plays it again.
"""
import json
import os
import re
import shlex
import sys
import xml.etree.ElementTree as xml

BAD = {"FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"}
SHOWN = 10  # lines of a failed case
SUM = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")


def cases(element):
    """Passed, failed and skipped test cases below an element."""
    passed = failed = skipped = 0
    for case in element.iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return [passed, failed, skipped]


def matter(output):
    """Of a TAP program's output: the cases that failed, each with the `#` lines beside it, then its last lines."""
    lines = output.splitlines()
    bad = [i for i, line in enumerate(lines) if line.startswith(("not ok", "Bail out!"))]
    near = [i for i, line in enumerate(lines) if i in bad or line.startswith("#") and any(abs(i - n) <= 4 for n in bad)]
    chosen = near[:SHOWN]
    rest = [i for i, line in enumerate(lines) if i not in chosen and not line.startswith("ok ")]
    chosen += rest[len(rest) - (SHOWN - len(chosen)):] if len(chosen) < SHOWN else []
    return [lines[i] for i in sorted(chosen)]


def tell(case, lines, again, log):
    print(f"failed: {case}", file=sys.stderr)
    for line in lines:
        print(f"    {line[:200]}", file=sys.stderr)
    print(f"  again: {again}\n  all of it: {log}", file=sys.stderr)


def lines_of(text):
    """Of what pytest tells of a failed case: its last line of source, and what was wrong with it."""
    lines = text.splitlines()
    chosen = [line for line in lines if line[:2] in ("E ", "> ") or re.match(r"\S+:\d+: ", line)]
    return (chosen or lines)[-SHOWN:]


def of_junit(path):
    """A JUnit file of pytest."""
    root = xml.parse(path).getroot()
    for case in root.iter("testcase"):
        for bad in (child for child in case if child.tag in ("failure", "error")):
            node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            log = os.path.join(os.path.dirname(path), "pytest.log")
            again = f"HAPAX_BUILD=build /usr/bin/python3 -m pytest {shlex.quote(node)}"
            tell(node, lines_of(bad.text or ""), again, log if os.path.exists(log) else path)
    return cases(root)


def of_meson(path):
    suites = {suite.get("name"): suite for suite in xml.parse(path.replace(".json", ".junit.xml")).iter("testsuite")}
    total = [0, 0, 0]
    for line in open(path, encoding="utf-8"):
        test = json.loads(line)
        suite = suites.get("hapax." + test["name"])
        bad = test["result"] in BAD
        if suite is None:
            counts = [0, 1, 0] if bad else [0, 0, 1] if test["result"] == "SKIP" else [1, 0, 0]
        else:
            counts = cases(suite)
            if bad and counts[1] == 0:  # it died between or after its cases
                counts[1] = 1
        if bad:
            lines = matter(test.get("stdout", "") + test.get("stderr", ""))
            name = test["name"].rpartition(" / ")[2]
            build = os.path.dirname(os.path.dirname(path))
            tell(f"{test['name']} ({test['result'].lower()})", lines, f"meson test -C {build} {shlex.quote(name)}",
                 path.replace(".json", ".txt"))
        total = [a + b for a, b in zip(total, counts)]
    return total


def of_text(path):
    lines = open(path, encoding="utf-8", errors="replace").read().splitlines()
    found = SUM.fullmatch(lines[-1]) if lines else None
    return [int(n) for n in found.groups()] if found else [0, 1, 0]


def of(path):
    try:
        if path.endswith(".json"):
            counts = of_meson(path)
        elif path.endswith(".xml"):
            counts = of_junit(path)
        else:
            counts = of_text(path)
    except (OSError, ValueError, xml.ParseError) as error:
        print(f"failed: {path}: {error}", file=sys.stderr)
        return [0, 1, 0]
    if sum(counts) == 0:
        print(f"failed: {os.path.basename(path)} holds no result", file=sys.stderr)
        return [0, 1, 0]
    return counts


def main(paths):
    passed, failed, skipped = (sum(column) for column in zip(*map(of, paths)))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
