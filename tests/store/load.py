"""Processes that race for operations, and the ledger of what they saw (load.c)."""
import json
import subprocess
import time

from conftest import BUILD, PATIENCE
from process import end_with_parent, wait_for
LOAD = BUILD / "tests/store/load"


class Load:
    """tests/store/load.c: workers that race for operations, and the ledger of what they saw."""

    def __init__(self, uri, workers=6, pause_us=8000, lease_ms=None):
        words = [LOAD, uri, workers, pause_us, *([lease_ms] if lease_ms else [])]
        self.process = subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        preexec_fn=end_with_parent)
        self.slow, self.lost_since_us = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def read(self):
        line = self.process.stdout.readline()
        assert line, f"load ended with {self.process.wait(PATIENCE)}"
        counts = json.loads(line)
        self.slow += counts.pop("slow")
        since_us = counts.pop("lost_since_us")
        if since_us and (not self.lost_since_us or since_us < self.lost_since_us):
            self.lost_since_us = since_us
        return counts

    def lost_since_s(self):
        """When the earliest was told of what was found forgotten since this was asked last; None: nothing was."""
        since_us, self.lost_since_us = self.lost_since_us, 0
        return since_us / 1e6 if since_us else None

    def ask(self, what="report"):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()

    def wait_ops(self, more):
        enough = self.ask()["ops"] + more
        return wait_for(lambda: self.ask()["ops"] >= enough, f"{more} ops", 3 * PATIENCE)

    def served_again(self, since_s, usual_s=0.2):
        """Waits until no op takes longer than usual; how long after that moment the last that did had its verdict."""
        wait_for(lambda: time.monotonic() - since_s > 0.3 and self.ask()["oldest_op_us"] < usual_s * 1e6,
                 "every worker having a verdict", 3 * PATIENCE, 0.05)
        since_us = since_s * 1e6
        waited = [ended - max(began, since_us) for began, ended in self.slow if ended > since_us]
        self.slow = []
        return max(waited, default=0) / 1e6

    def end(self):
        self.process.stdin.close()
        counts = self.read()
        assert self.process.wait(PATIENCE) == 0
        return counts
