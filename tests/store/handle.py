"""A handle of a store that tests drive op by op, through tests/store/op.c."""
import signal
import subprocess
import sys

from conftest import OP, PATIENCE, ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import end_with_parent, wait_for  # noqa: E402


def patient(kind):
    """The same servers, whose URIs leave a batch the time that it takes on a busy machine: what has to time out says
    so."""
    class Patient(kind):
        def uri(self, *words, **parameters):
            return super().uri(*words, **{"timeout": "20s", **parameters})

    return Patient


ERRORS = ("invalid", "nomem", "too_big", "unavailable", "indeterminate", "corrupt", "unsupported", "refused")


class Handle:
    """Many ops over one handle of a store, in a process of its own."""

    def __init__(self, uri):
        self.process = subprocess.Popen([str(OP), uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
        self.untold = 0  # texts of errors that nobody has read

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
        self.untold += line.strip() in ERRORS
        return line.strip()

    def text(self):
        """What it said of the last op that had no verdict."""
        text = ""
        for _ in range(self.untold):
            text = self.process.stderr.readline().strip()
        self.untold = 0
        return text

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

    def sent(self, sent, *words):
        """The verdict of an op that has got there; where its time was over before, it is asked again.
        sent(): whether the other side has seen anything of it."""
        def asked():
            given = self(*words)
            return (given not in ("unavailable", "indeterminate") or sent()) and given

        return wait_for(asked, f"a verdict for {words}", pause=0.05)
