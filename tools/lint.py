#!/usr/bin/python3
"""Looks for what a compiler does not see: tools/lint.py [CHECK…] [--root ROOT]

width   lines of code and comments are 100 columns at most, Python's 120
words   words that the project has retired (docs/design.md, "The words") are not used again
tags    a struct, enum or union tag with the prefix hapax names one type in the whole program
links   every link of a page to a file or a heading of the project has its target, and every test that it names is there
promises  each promise of docs/guarantees.md, the tests that it names and the asserts that keep it bear one number, and
        each rule of the simulator is of a promise
prose   no sentence of a page has more than 40 words, and no more of them than LONG_MAX have over 25
sdk     what an SDK is, without adapters and what needs no door, is 600 lines at most: those that say something, so no
        blank line, no comment, no import, no annotation, and no line of closing brackets. Java's Json.java does not
        count: the other languages' libraries have what it does

Without a CHECK all of them run. Prints FILE:LINE: what is wrong, and exits 1 if there is any.
"""
import argparse
import ast
import pathlib
import re
import subprocess
import sys
import unicodedata

WIDTHS = {".c": 100, ".h": 100, ".lua": 100, ".sql": 100, ".sh": 100, ".build": 100, ".py": 120}

# A retired word, and what is said instead. Names that users type or store stay (KEPT).
RETIRED = {
    r"\w*settl(e|es|ed|ing|ement)\w*": "finish an op, decide a message, release a delivery, refresh a hint",
    r"\w*fates?": "result",
    r"(?<!of )\w*courses?": "deliveries, op",
    r"\w*(hapax__|struct |enum )(seat|ear|begun|origin|nest|twin|giver|look(?!up)|place|held|posting)\w*":
        "call, told(), outer, duplicate, credentials source, lookup, index, client",
    r"seats?|ears?|twins?|givers?|letterbox(es)?": "call, told(), duplicate, credentials source",
}
WORDS = re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})\b)" for i, pattern in enumerate(RETIRED)), re.I)
# Besides: pages of commands, which docs/cli.md repeats, a name in the JSON of "hapax purge", and a
# column of hapax.purge().
KEPT = re.compile(
    r'"settled": \d|'
    r'hapax_held_max|held_max|json_unsigned\(&json, "settled"|settle an operation by hand|whose fate the program'
    r"|settle abandoned ones|taken and not settled|[Ww]ho settle[sd] it|A step is settled"
    r"|\bsettled (?:integer|:=)")
PROSE = ("src/", "nginx/", "include/", "lua/", "sql/", "tests/", "bench/", "examples/", "docs/",
         "README.md", "CONTRIBUTING.md", "SECURITY.md", "tools/")
CASE = re.compile(r"`(tests/[\w/.]+\.(?:py|c|pml))(?:::(\w+))?`")
TAG = re.compile(r"^(?:typedef )?(?:struct|enum|union) (hapax\w*)\s*\{", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| (\d+) \| .* \| (.*) \|$", re.M)
PROMISE = re.compile(r"\bpromises? (\d+(?:, \d+)*)")
BEGINS = re.compile(r"(?:(?:async )?def |static void |CASE\(|CASE_WITH\()(\w+)")
RULES = re.compile(r"\brules? ([a-z](?:(?:, | and )[a-z])*)\b")
SENTENCE_MAX, LONG, LONG_MAX = 40, 25, 180  # never raised: where there are fewer, it comes down
NO_PROSE = re.compile(r"^[ \t]*```.*?^[ \t]*```$|^<!--.*?-->$|^[ \t]*(?:\||#|!\[|    )[^\n]*$", re.M | re.S)
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.M)


SDKS = {
    "python": ["hapax/__init__.py", "hapax/_calls.py", "hapax/_door.py", "hapax/errors.py"],
    "node": ["lib/door.js", "lib/errors.js", "lib/frame.js", "lib/index.js", "lib/notrun.js"],
    "go": ["*.go"],
    "java": ["src/hapax/*.java"],
}
SDK_MAX = 600
UNSAID = re.compile(r"[\s)\]}>;,'`]*$|\s*(//|#|@\w+(\(.*\))?$|(package|import) |'use strict'|const .* = require\()")
BLOCKS = re.compile(r"^[ \t]*/\*.*?\*/[ \t]*$|^import \(.*?^\)|^const \{[^}]*\} = require\(.*?$", re.M | re.S)


def tracked(root):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, check=True,
                           capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if "/corpus/" not in name and (root / name).is_file()]


def lines_of(root, names):
    for name in names:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield name, number, line


def width(root, names):
    for name, number, line in lines_of(root, [n for n in names if pathlib.Path(n).suffix in WIDTHS]):
        most = WIDTHS[pathlib.Path(name).suffix]
        if len(line) > most:
            yield f"{name}:{number}: {len(line)} columns, over {most}"


def words(root, names):
    mine = [n for n in names if n.startswith(PROSE) and n != "tools/lint.py" and not n.endswith("lock.json")]
    for name, number, line in lines_of(root, mine):
        if "retired" in line:  # the table that says so
            continue
        for found in WORDS.finditer(KEPT.sub("", line)):
            instead = list(RETIRED.values())[int(found.lastgroup[1:])]
            yield f'{name}:{number}: "{found.group()}" is retired: say {instead}'


def tags(root, names):
    seen = {}
    for name in names:
        if not name.startswith(("src/", "nginx/", "include/")) or not name.endswith((".c", ".h")):
            continue
        for tag in TAG.findall((root / name).read_text(encoding="utf-8")):
            if seen.setdefault(tag, name) != name:
                yield f"{name}: {tag} names another type in {seen[tag]}"


def anchors_of(path):
    """The anchors of a page's headings, as forges make them."""
    counts, anchors = {}, set()
    for heading in HEADING.findall(re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        kept = (c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN")
        anchor = "".join(kept).replace(" ", "-")
        counts[anchor] = counts.get(anchor, -1) + 1
        anchors.add(anchor if counts[anchor] == 0 else f"{anchor}-{counts[anchor]}")
    return anchors


def links(root, names):
    pages = [name for name in names if name.endswith(".md")]
    anchors = {(root / name).resolve(): anchors_of(root / name) for name in pages}
    for name, number, line in lines_of(root, pages):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            path = ((root / name).parent / file if file else root / name).resolve()
            if not path.exists():
                yield f"{name}:{number}: there is no {target}"
            elif anchor and path in anchors and anchor not in anchors[path]:
                yield f"{name}:{number}: {file or name} has no heading #{anchor}"
        for file, case in CASE.findall(line):
            path = root / file
            if not path.exists() or case and not re.search(rf"\b{case}\b", path.read_text(encoding="utf-8")):
                yield f"{name}:{number}: there is no test {file}{case and '::'}{case}"


def sentences(text):
    """(line, sentence) of a page's prose: not of its tables, headings and code. A semicolon ends one, too."""
    text = NO_PROSE.sub(lambda found: re.sub(r"[^\n]", "", found[0]), text)
    number = 1
    for block in re.split(r"(\n[ \t]*\n|\n(?=[ \t]*(?:[-*>]|\d+\.)[ \t]))", text):
        for part in re.split(r"(?<=[.!?:;])[\"*_)]*(?=\s+[\"*_(]*[A-Z0-9`[])|(?<=;)(?=\s)|(?<=:)(?=\s*$)", block):
            yield number + len(re.match(r"\s*", part)[0].splitlines()) - 1 if part.strip() else number, part
            number += part.count("\n")


def prose(root, names):
    """Words are what blanks part; a span of code and a link's target are none of their own."""
    long = 0
    for name in names:
        if not name.endswith(".md") or name == "docs/cli.md":
            continue
        for number, sentence in sentences((root / name).read_text(encoding="utf-8")):
            words = len(re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "x", sentence)).split())
            long += words > LONG
            if words > SENTENCE_MAX:
                yield f"{name}:{number}: a sentence of {words} words, over {SENTENCE_MAX}: {sentence.strip()[:60]}…"
    if long > LONG_MAX:
        yield f"{long} sentences of pages have over {LONG} words, and may be {LONG_MAX}: shorten those that you wrote"


def said_by(path):
    """How many lines of a program say something."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        text = BLOCKS.sub("", text)
        return sum(not UNSAID.match(line) for line in text.splitlines())
    left = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            left.update(range(node.lineno, node.end_lineno + 1))
    return sum(number not in left and not UNSAID.match(line) for number, line in enumerate(text.splitlines(), 1))


def sdk(root, names):
    for language, patterns in SDKS.items():
        files = [path for pattern in patterns for path in (root / "sdk" / language).glob(pattern)
                 if path.name != "Json.java" and not path.name.endswith("_test.go")]
        lines = sum(map(said_by, files))
        if lines > SDK_MAX:
            yield f"sdk/{language}: {lines} lines of code without adapters, over {SDK_MAX}"


def promises_of(root, names):
    """Where a number stands: (number, file, case), of a test in or before its first line; case "" elsewhere."""
    for name in names:
        if not name.startswith(("src/", "nginx/", "tests/")) or not name.endswith((".c", ".h", ".py", ".pml")):
            continue
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        for at, line in enumerate(lines):
            for numbers in PROMISE.findall(line):
                case = next((found[1] for near in lines[at:at + 2] if (found := BEGINS.match(near))), "")
                asserts = any("assert(" in near for near in lines[at:at + 3])
                for number in re.findall(r"\d+", numbers):
                    yield number, name, case if name.startswith("tests/") else "", asserts, at + 1


def promises(root, names):
    """Promises, and what keeps and tries each: the page, the tests, the asserts and the checkers say the same."""
    page = root / "docs/guarantees.md"
    rows = dict(ROW.findall(page.read_text(encoding="utf-8")))
    tried = {(number, *test) for number, row in rows.items() for test in CASE.findall(row)}
    kept = {(number, file) for number, row in rows.items() for file in re.findall(r"`((?:src|nginx)/[\w/.]+)`", row)}
    here = list(promises_of(root, names))
    for number, file, case, asserts, line in here:
        if file.startswith("tests/") and (number, file, case) not in tried:
            yield f"{file}:{line}: promise {number} does not name {case or 'this file'}"
        if not file.startswith("tests/") and not ((number, file) in kept and asserts):
            yield f"{file}:{line}: no assert that promise {number} names"
    for number, file, case in sorted(tried - {found[:3] for found in here}):
        yield f"{file}: {case or 'its head'} does not say that it tries promise {number}"
    for number, file in sorted(kept - {found[:2] for found in here}):
        yield f"{file}: no assert says that it keeps promise {number}"
    checkers = "".join(path.read_text(encoding="utf-8") for path in (root / "tests/sim").glob("*.c"))
    rules = {rule: number for number, row in rows.items()
             for rule in re.findall(r"\b[a-z]\b", "".join(RULES.findall(row)))}
    for rule in sorted(set(re.findall(r'sim_fail\(s,\s*"([a-z]) ', checkers)) ^ set(rules)):
        yield f"docs/guarantees.md: rule {rule} of the simulator is of no promise" if rule not in rules else \
            f"docs/guarantees.md: promise {rules[rule]} names a rule {rule}, which the simulator does not have"
    for number, row in rows.items():
        if not CASE.search(row):
            yield f"docs/guarantees.md: nothing tries to break promise {number}"


CHECKS = {"width": width, "words": words, "tags": tags, "links": links, "prose": prose, "promises": promises,
          "sdk": sdk}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    args = parser.parse_args()
    unknown = set(args.checks) - set(CHECKS)
    if unknown:
        parser.error(f"no check \"{unknown.pop()}\"; there are {', '.join(CHECKS)}")
    names = tracked(args.root)
    found = [line for check in args.checks or CHECKS for line in CHECKS[check](args.root, names)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
