"""Incidents on real servers: the alert of each fires within two scrapes, the page for operators shows it, and the
runbook's commands end it. Those of the store's own servers are in test_servers.py.
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import gate as g
import rabbit
from conftest import ROOT, read_line, wait_until
from served import Served
from watched import Watched

BOARD = ROOT / "ops/grafana/hapax.json"


class Bed(Watched):
    """A keeper, a gate before an API, a consumer, and a page for operators."""

    def __init__(self, folder, browser, api):
        super().__init__(folder, browser)
        self.api = api
        self.store = f"rocksdb:{folder}/store"
        self.keep()
        self.serve()
        self.queue = rabbit.Queue(rabbit.server())
        self.consume()
        # By the socket: given the folder, the page would keep the store itself once the keeper is dead.
        self.watch(f"unix:{folder}/store/keeper.sock")

    def keep(self):
        workers = ("--group", "www-data") if os.geteuid() == 0 else ()
        self.keeper = self.hapax.keep(self.store, *workers, *self.metrics("hapax-keep"))

    def serve(self):
        self.served = Served(self.hapax, self.api, f"unix:{self.hapax.folder}/store/keeper.sock", "--lease", "600ms",
                             "--run-max", "1m", "--timeout", "300ms", "--wait", "0", "--workers", "1",
                             *self.metrics("hapax-serve"))

    def consume(self):
        self.consumer = self.hapax.start("consume", "--from", self.queue.uri(), "--to",
                                         f"http://127.0.0.1:{self.api.port}/status/500,200", "--store", "memory:",
                                         "--attempts-max", "1", *self.metrics("hapax-consume"))
        assert "takes messages" in read_line(self.consumer)


@pytest.fixture(scope="module")
def bed(browser):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hapax-e2e-"))
    api = g.Api()
    bed = Bed(folder, browser, api)
    yield bed
    bed.close()
    api.close()
    shutil.rmtree(folder)


def test_promtool_plays_the_rules():
    done = subprocess.run(["promtool", "test", "rules", ROOT / "tests/ops/rules_test.yml"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_of_the_board_is_answered(bed):
    """By a Prometheus that scrapes a gate; a query about operations has samples."""
    bed.served.post("/ok", "board")
    board = json.loads(BOARD.read_text())
    queries = [target["expr"].replace("$__rate_interval", "10s").replace("$job", ".*")
               for panel in board["panels"] for target in panel.get("targets", [])]
    for text in queries:
        # No relay is scraped here, this broker does not say its lag, and an embedded store has no servers.
        if any(word in text for word in ("relay", "consumer_lag", "replica", "clock", "certificate")):
            bed.prometheus.query(text)
        else:
            wait_until(lambda text=text: bed.prometheus.query(text), f"samples of {text}")


# ---- incidents ------------------------------------------------------------------------------------


def test_an_unknown_operation_wakes_somebody_and_is_resolved(bed):
    bed.hapax.unknown(bed.store, "k-unknown")
    bed.fires("HapaxUnknown")
    bed.shows(r"Unknown\s1\s+oldest", r"Waiting longest[^]*unknown\s[^]*default")
    assert bed.hapax("resolve", "k-unknown", "--store", bed.store, "--complete", "201").code == 0
    bed.quiet()


def test_a_stuck_handler_is_seen_though_it_renews(bed):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = pool.submit(bed.served.post, "/hold/stuck", "k-stuck")
        try:
            bed.fires("HapaxStuckHandler")
            bed.shows(r"Running\s1\s+oldest")
        finally:
            bed.api.door("stuck").set()
        pending.result()
    bed.quiet()


def test_a_zombie_is_counted(bed):
    """Its operation was decided while it ran; what it ends with is refused."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = pool.submit(bed.served.post, "/hold/zombie", "k-zombie")
        wait_until(lambda: bed.api.count("k-zombie") == 1, "that it runs")
        assert bed.hapax("resolve", "k-zombie", "--store", bed.store, "--complete", "201", "--force").code == 0
        bed.api.door("zombie").set()
        pending.result()
    bed.fires("HapaxLostClaims")
    bed.shows(r"\blost 1\b")
    bed.quiet()


def test_a_switch_that_is_left_off_is_seen_until_it_is_on(bed):
    for word in "off", "shadow":
        assert bed.hapax("switch", word, "--store", bed.store, "--audit", "trail").code == 0
        bed.fires("HapaxSwitch")
        assert bed.hapax("switch", "on", "--store", bed.store, "--audit", "trail").code == 0
        bed.quiet()


def test_a_dead_store_is_seen_and_found_again(bed):
    bed.keeper.kill()
    bed.keeper.communicate()
    for i in range(4):
        bed.served.post("/ok", f"down-{i}")
    bed.fires("HapaxStoreDown", "HapaxDown")
    bed.shows("The store: unavailable: ", r"\bstore dead 1\b")
    bed.keep()
    wait_until(lambda: bed.served.post("/ok", "back").status == 200, "that the gate finds its store")
    bed.quiet()


def test_a_poison_message_is_a_dead_letter_that_redrive_puts_back(bed):
    bed.queue.publish("poison", id="k-poison")
    bed.fires("HapaxDeadLetters")
    bed.shows(r"\bconsumer dead lettered 1\b")
    back = "redrive", "--from", bed.queue.dead.uri(), "--to", bed.queue.uri()
    assert bed.hapax(*back, "--dry-run").code == 0
    assert bed.hapax(*back).code == 0
    wait_until(lambda: any("k-poison" in key and n == 2 for key, n in list(bed.api.effects.items())),
               f"that it runs again, of {bed.api.effects}")
    bed.quiet()
