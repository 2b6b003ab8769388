"""The secret of a store is changed while gates are at work (docs/rotation.md): each gate is replaced by one with both
secrets, and then by one with the new secret alone. Clients ask all the time, and are refused nothing."""
import itertools
import os
import threading
import time

import pytest
from conftest import PATIENCE, wait_until
from postgres_server import Postgres
from redis_server import Redis
from process import Workers

CLIENTS = 3
RETENTION_S = 14
SURE_S = RETENTION_S / 2  # within which a repeat is surely within the retention
OLD, BOTH, NEW = ({"HAPAX_SECRET_FILE": "old", "HAPAX_SECRET_OLD_FILE": ""},
                  {"HAPAX_SECRET_FILE": "new", "HAPAX_SECRET_OLD_FILE": "old"},
                  {"HAPAX_SECRET_FILE": "new", "HAPAX_SECRET_OLD_FILE": ""})


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.ci),
                        pytest.param("keeper", marks=pytest.mark.ci)])
def shared(request, hapax, folder):
    """A store that two gates have."""
    server = None
    if request.param == "keeper":
        folder.chmod(0o755)
        hapax.keep(f"rocksdb:{folder}/store", *(["--group", "www-data"] if os.geteuid() == 0 else []))
        yield f"unix:{folder}/store/keeper.sock"
        return
    server = (Redis() if request.param == "redis" else Postgres()).start()
    yield server.uri() if request.param == "redis" else server.uri(server.database())
    server.stop()


class Load(Workers):
    """Clients that ask each key of two gates at once, and again; what was answered is in .wrong, if it is wrong."""

    def __init__(self, gates):
        self.gates, self.wrong, self.asked, self.over = gates, [], 0, False
        self.numbers, self.lock = itertools.count(), threading.Lock()
        self.threads = [threading.Thread(target=self.work) for _ in range(CLIENTS)]

    def ask(self, number, key, bodies):
        """A client that came to a gate which has just gone asks the next one."""
        while True:
            gate = self.gates[number]
            try:
                response = gate.post("/tagged", key, headers=[("X-Tag", "mine")])
            except (ConnectionRefusedError, ConnectionResetError):  # or was in the backlog of one that went
                assert gate is not self.gates[number], "a gate that is there refuses"
                continue
            bodies.append((response.status, response.body))
            return

    def work(self):
        while not self.over:
            with self.lock:
                key = f"key-{next(self.numbers)}"
            bodies, begun = [], time.monotonic()
            try:
                racing = threading.Thread(target=self.ask, args=(1, key, bodies))
                racing.start()
                self.ask(0, key, bodies)
                racing.join()
                self.ask(1, key, bodies)
            except OSError as error:
                self.wrong.append(f"{key}: {error!r}")
            if time.monotonic() - begun < SURE_S and (len(set(bodies)) != 1 or bodies[0][0] != 200):
                self.wrong.append(f"{key}: {bodies}")
            self.asked += 1

    def wait(self, more=30):
        enough = self.asked + more
        wait_until(lambda: self.asked >= enough or self.wrong, f"{more} keys")
        assert not self.wrong, self.wrong[0]


@pytest.mark.parametrize("sealed", [True, pytest.param(False, marks=pytest.mark.ci)], ids=["sealed", "clear"])
def test_the_secret_of_two_gates_is_changed_under_load(hapax, serve, api, folder, shared, sealed):
    """Each key runs once, and each of its answers is the same; also what was made under the old secret alone is
    replayed to a client of a gate with both, and what was made under both to one of a gate with the new one."""
    for name, text in (("old", "o" * 32), ("new", "n" * 32), ("keys", "k1 " + "0a" * 32)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    if sealed:
        hapax.env["HAPAX_KEYS_FILE"] = str(folder / "keys")
    assert hapax("init", "--store", shared, **OLD).code == 0

    def begin(secrets):
        return serve("--wait", "20s", "--on-expired", "hold", "--retention", f"{RETENTION_S}s", "--lease", "10s",
                     "--workers", "1", store=shared, **secrets)

    def rotate(*words, code=0):
        done = hapax("rotate", "--store", shared, "--json", *words, **BOTH)
        assert done.code == code, done.err
        return done.json

    gates = [begin(OLD), begin(OLD)]

    def replace(number, secrets):
        """As behind a balancer: the new gate is there before the old one goes."""
        was, gates[number] = gates[number], begin(secrets)
        was.process.terminate()
        was.process.wait(PATIENCE)

    made = {}

    def tell(number, key):
        return gates[number].post("/tagged", key, headers=[("X-Tag", "mine")])

    def make(number, key):
        made[key] = time.monotonic()
        assert tell(number, key).replayed == "false"

    def replays(number, key):
        """On a machine that stood still it may have been forgotten."""
        return tell(number, key).replayed == "true" or time.monotonic() - made[key] > SURE_S

    with Load(gates) as load:
        load.wait()
        assert rotate()["at"] == "begun"
        make(0, "made-by-old")
        for number in (0, 1):
            replace(number, BOTH)
            load.wait()
        assert replays(1, "made-by-old")
        assert rotate("--both")["at"] == "both"
        left = rotate("--end", code=1)
        assert left["at"] == "both" and left["left"] > 30
        load.wait()
        wait_until(lambda: hapax("rotate", "--store", shared, "--end", **BOTH).code == 0, "the old secret to be over")
        make(1, "made-by-both")
        for number in (0, 1):
            replace(number, NEW)
            load.wait()
        assert replays(0, "made-by-both")
    assert not load.wrong, load.wrong[0]
    twice = {key: n for key, n in api.effects.items() if n > 1}
    assert not twice
    assert all(gate.post("/tagged", "late", headers=[("X-Tag", "mine")]).status == 200 for gate in gates)
