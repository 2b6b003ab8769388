"""What takes long says on a terminal how far it is (src/cli/progress.h)."""
import os
import re
import subprocess
import time

import pytest
from conftest import HAPAX, end, wait_until

SECONDS = 2.5  # it begins to tell after 2


# The erase waits for whoever reads its trail, and has then taken long enough to tell.
@pytest.mark.ci
def test_what_takes_long_says_how_far_it_is(hapax, store, folder):
    keeper = hapax.keep(store)
    words = ["erase", "--store", store, "--scope", "bench", "--audit", folder / "trail"]
    hapax("bench", "--store", store, "--seconds", "1", "--duplicates", "0", "--clients", "64", "--size", "16")
    os.mkfifo(folder / "trail")
    terminal, side = os.openpty()
    process = subprocess.Popen([HAPAX, *map(str, words)], stdout=subprocess.PIPE, stderr=side, text=True)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + SECONDS, "the time")
    with open(folder / "trail") as trail:
        out, _ = process.communicate(timeout=120)
        assert "asked" in trail.read()
    told = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    os.close(side)
    assert process.returncode == 0 and out.startswith("erased "), told
    assert re.match(r"hapax erase: \d+ forgotten, \d+ %, about \d+\S+ left\x1b\[K\r", told) and told.endswith("\x1b[K")
    (folder / "trail").unlink()
    assert hapax(*words).err == ""  # no terminal
    end(keeper)
