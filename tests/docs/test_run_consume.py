"""What `make run-consume` tells a newcomer to type, verbatim, and what comes of it."""
import os
import re
import signal
import subprocess

import pytest

from conftest import BUILD, PATIENCE, ROOT, wait_until


@pytest.fixture
def lines(folder):
    """The lines that tools/run-consume prints, once it is ready; after Ctrl-C nothing of it is left."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HAPAX_")}
    with open(folder / "printed", "w") as printed:
        process = subprocess.Popen([ROOT / "tools/run-consume"], env={**env, "HAPAX_BUILD": str(BUILD)},
                                   stdout=printed, stderr=printed, start_new_session=True)

    def ready():
        text = (folder / "printed").read_text()
        assert process.poll() is None, text
        return "Ctrl-C ends it." in text

    try:
        wait_until(ready, "tools/run-consume")
        yield re.findall(r"^  ([^#\s].*)$", (folder / "printed").read_text(), re.M)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def shell(line):
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


# An order twice, one that is refused, and the same put back: each is in the ledger once.
def test_the_lines_of_run_consume_do_as_they_say(lines):
    one, again, ledger, close, two, dry, reopen, back, ledger2, held = lines
    assert one == again and ledger == ledger2
    shell(one)
    shell(again)
    wait_until(lambda: shell(ledger) == "one book\n", "the first order")
    shell(close)
    shell(two)
    wait_until(lambda: "would be put back: reason=refused" in shell(dry), "a dead letter")
    shell(reopen)
    assert shell(back) == "put back: 1, left: 0\n"
    wait_until(lambda: shell(ledger) == "one book\ntwo books\n", "the second order")
    wait_until(lambda: shell(held).count("completed") == 2, "two records")
