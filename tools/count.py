#!/usr/bin/python3
"""Sums test results: count.py FILE…

Takes meson's testlog.json (with testlog.junit.xml beside it, which has the single cases of each
TAP program), JUnit files of pytest, and text files whose last line is a sum of this script. Prints
`N passed, N failed, N skipped` and exits 1 if any failed. A file that is not there, or holds no
result at all, is a failure: what was to run has not. Of each failed meson test it prints what the
program said of its failed cases, with their `#` lines: meson itself shows stderr only, and a seed
stands in stdout.
"""
import json
import os
import re
import sys
import xml.etree.ElementTree as xml

BAD = {"FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"}
SHOWN = 60  # lines of a failed test
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


def said(output):
    """The last lines of a TAP program's output, without the middle of each run of cases that passed."""
    lines = output.splitlines()
    dull = [line.startswith("ok ") for line in lines]
    near = zip([False, *dull], dull, [*dull[1:], False])
    return [line for line, three in zip(lines, near) if not all(three)][-SHOWN:]


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
            print(f"failed: {test['name']} ({test['result'].lower()})", file=sys.stderr)
            for shown in said(test.get("stdout", "")):
                print(f"    {shown}", file=sys.stderr)
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
            counts = cases(xml.parse(path).getroot())
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
