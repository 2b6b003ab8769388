"""A handle of a store that tests drive op by op, through tests/e2e/op.c."""
import signal
import subprocess
import sys

from conftest import OP, PATIENCE, ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import end_with_parent, wait_for  # noqa: E402


class Handle:
    """Many ops over one handle of a store, in a process of its own."""

    def __init__(self, uri):
        self.process = subprocess.Popen([str(OP), uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:  # at the end of stdin it closes the store and ends
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        assert self.process.returncode in (0, -signal.SIGKILL)

    def begin(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def verdict(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.strip()

    def text(self):
        """What it said of the next op that had no verdict."""
        return self.process.stderr.readline().strip()

    def __call__(self, *words):
        """The op's verdict, or the error's name."""
        self.begin(*words)
        return self.verdict()

    def until(self, verdict, *words):
        """Repeats an op until its verdict is that; errors may come before."""
        def asked():
            given = self(*words)
            assert given in (verdict, "unavailable", "indeterminate"), given
            return given == verdict

        wait_for(asked, f"{verdict} for {words}", pause=0.05)
        return verdict
