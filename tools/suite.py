#!/usr/bin/python3
"""Runs meson's tests and pytest's at once, on the build in build/, and prints how far they are.

Prints a line for each suite of meson's and each file of pytest's that ends, with its counts and the seconds of its
tests, added up; a line at once for each case that fails; and a line where nothing ended for 20 s. The last line is that
of count.py, behind what the failed cases printed and the commands that play them again. Exit status 0 only if no case
failed.

Most tests wait, and those that compute are few: so both runners share the processors, and neither waits for the other.
TEST_WORKERS: processes of pytest (6). HAPAX_PROGRAMS: programs of meson at once (3).
"""
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time

from count import lines_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
RESULTS = BUILD / "results"
MESON_LOG = BUILD / "meson-logs/testlog.json"
FILES = ["tests/store", "tests/broker", "tests/e2e", "tests/sdk"]
LINE = re.compile(r"\s*\d+/\d+ \S+?:([^ +]+)\S* / (.+?)\s+([A-Z]+)\s+([\d.]+)s"
                  r"(?:\s+(\d+)(?:/\d+)? subtests passed)?")


class Part:
    """A suite of meson's or a file of pytest's: what it has, and what became of it."""

    def __init__(self, name):
        self.name, self.left, self.seconds, self.processor = name, 0, 0.0, 0.0
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}


class Board:
    """All parts, and the lines that are printed of them."""

    def __init__(self):
        self.began, self.parts, self.all, self.done = time.monotonic(), {}, 0, 0

    def say(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        percent = 100 * self.done // max(self.all, 1)
        print(f"{minutes:3}:{seconds:02} {percent:3} %  {text}", flush=True)

    def expect(self, name):
        part = self.parts.setdefault(name, Part(name))
        part.left += 1
        self.all += 1

    def ended(self, name, case, result, seconds, cases=1, processor=0.0):
        part = self.parts[name]
        part.counts[result] += cases
        part.seconds += seconds
        part.processor += processor
        part.left -= 1
        self.done += 1
        if result == "failed" and name.startswith("meson"):
            self.say(f"FAILED {case}")
        if part.left == 0:
            counts = ", ".join(f"{n} {what}" for what, n in part.counts.items() if n or what == "passed")
            used = f", processor {part.processor:6.1f} s" if part.processor else ""
            self.say(f"{part.name:44} {counts:28} {part.seconds:6.1f} s{used}")


    def failed(self, case, lines):
        """A case of pytest, with the lines that matter; count.py prints the command in the end."""
        self.say(f"FAILED {case}")
        for line in lines:
            print(f"             {line[:200]}", flush=True)


def run_meson(news):
    """Puts ("ended", …) into news for each test of meson's, and None at the end."""
    command = ["meson", "test", "-C", BUILD, "--no-rebuild", "-t", "2", "--no-suite", "ci",
               "--num-processes", os.environ.get("HAPAX_PROGRAMS", "3")]
    with open(RESULTS / "meson.log", "w") as log, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", cwd=ROOT) as process:
        for line in process.stdout:
            log.write(line)
            if found := LINE.match(line):
                suite, name, word, seconds, cases = found.groups()
                result = {"OK": "passed", "SKIP": "skipped", "EXPECTEDFAIL": "passed"}.get(word, "failed")
                news.put(("ended", f"meson: {suite}", f"{suite} / {name}", result, float(seconds), int(cases or 1)))
    news.put(None)


def run_pytest(news):
    """The same for the cases of pytest, which tests/conftest.py writes to a file, with ("expect", …) before."""
    progress = RESULTS / "progress"
    progress.write_text("")
    env = os.environ | {"HAPAX_BUILD": str(BUILD), "HAPAX_PROGRESS": str(progress),
                        "TEST_WORKERS": os.environ.get("TEST_WORKERS", "6")}
    with open(RESULTS / "pytest.log", "w") as log, open(progress, encoding="utf-8") as lines:
        process = subprocess.Popen([ROOT / "tools/pytest", RESULTS / "e2e.xml", *FILES], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, env=env, cwd=ROOT)
        over, line = False, ""
        while True:
            line += lines.readline()
            if line.endswith("\n"):
                told, line = json.loads(line), ""
                for case in told.get("cases", []):
                    news.put(("expect", case.split("::")[0]))
                if "failed" in told:
                    news.put(("failed", told["failed"], lines_of(told["text"]) + told["queues"]))
                if "case" in told:
                    news.put(("ended", told["case"].split("::")[0], told["case"], told["result"], told["seconds"], 1,
                              told["processor"]))
            elif over:
                break
            else:
                over = process.poll() is not None  # then what is left is read
                time.sleep(0.1)
    news.put(None)


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    RESULTS.mkdir(exist_ok=True)
    for old in (MESON_LOG, MESON_LOG.with_suffix(".junit.xml"), RESULTS / "e2e.xml"):
        old.unlink(missing_ok=True)
    board, news = Board(), queue.Queue()
    listed = subprocess.run(["meson", "introspect", BUILD, "--tests"], check=True, capture_output=True).stdout
    for test in json.loads(listed):
        suites = [suite.rpartition(":")[2] for suite in test["suite"]]
        if "ci" not in suites:  # those are left to .ci/run
            board.expect(f"meson: {suites[0]}")
    for run in (run_meson, run_pytest):
        threading.Thread(target=run, args=(news,), daemon=True).start()
    running = 2
    while running:
        try:
            told = news.get(timeout=20)
        except queue.Empty:
            board.say(f"{board.done} of {board.all} ended")
            continue
        if told is None:
            running -= 1
        else:
            getattr(board, told[0])(*told[1:])
    seconds = {pathlib.Path(name).stem: round(part.seconds) for name, part in sorted(board.parts.items())
               if name.endswith(".py") and part.seconds > 10}
    (RESULTS / "seconds").write_text(json.dumps(seconds, indent=0) + "\n")  # as in tests/schedule.py
    count = [sys.executable, ROOT / "tools/count.py", MESON_LOG, RESULTS / "e2e.xml"]
    return subprocess.run(count, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
