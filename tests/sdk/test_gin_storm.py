"""An API by gin, and the door with its store, killed again and again: each key takes effect once.

HAPAX_GIN_STORM=60 pytest -s tests/sdk/test_gin_storm.py storms for a minute each, and prints what became of it.
"""
import collections
import os
import subprocess

import pytest
from conftest import PATIENCE, read_line
from doors import Door, Store
from process import end_with_parent, free_port
from storms import takes_effect_once
from test_go import TESTS, built

SECONDS = float(os.environ.get("HAPAX_GIN_STORM", "4"))


class Application:
    def __init__(self, door, folder):
        self.program, self.port, self.path = built(TESTS, "./gin"), free_port(), folder / "effects"
        self.env = {**os.environ, "HAPAX_DOOR": door.address, "EFFECTS": str(self.path)}
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.program, f"127.0.0.1:{self.port}"], env=self.env, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=end_with_parent)
        assert read_line(self.process).startswith("payments: ")

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def effects(self):
        return collections.Counter(self.path.read_text().split())


@pytest.mark.ci
@pytest.mark.parametrize("on_expired", ["hold", "rerun"])
def test_a_request_takes_effect_once(folder, on_expired):
    """Whoever dies, as takes_effect_once() says."""
    door = Door(Store("rocksdb", folder), folder, "--on-expired", on_expired, "--lease", "1s")
    takes_effect_once(Application(door, folder), door, ["/orders"], on_expired, SECONDS)
