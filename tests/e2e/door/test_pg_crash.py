"""Whoever dies, before or after whichever statement: business rows = completed operations, each key once, and
nothing that was acknowledged is lost.

HAPAX_CRASH_ROUNDS rounds (20), HAPAX_CRASH_SEED to repeat a run.
"""
import os
import random
import subprocess
import threading
import time

import pytest

import pg
import postgres_server
from conftest import PATIENCE, wait_until
from process import wait_for
from proxy import REPLY, REQUEST, Proxy

ROUNDS = int(os.environ.get("HAPAX_CRASH_ROUNDS", 20))
SEED = int(os.environ.get("HAPAX_CRASH_SEED", random.randrange(1 << 32)))
STATEMENTS = {pg.TRANSFER: 11, pg.TRANSFER_PY: 7}  # requests of one run, the start of the connection among them


def start(program, conninfo, key, amount):
    return subprocess.Popen([program, conninfo, key, "alice", "bob", str(amount)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def acknowledged(process):
    """Its end; it says so where the money was moved, by it or before."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and ": moved " in out, f"{process.args}: {process.returncode} {out} {err}"


class Round:
    """One key, one program behind a proxy that stops it at its nth statement, one death."""

    def __init__(self, number, server, db, draw):
        self.server, self.db, self.draw = server, db, draw
        self.program = draw.choice(list(STATEMENTS))
        self.nth = draw.randint(1, STATEMENTS[self.program])
        self.where = draw.choice(["lost on its way", "on its way", "done, not told", "done, never told"])
        self.who = draw.choice(["client", "client", "connection", "server"])
        self.key, self.amount = f"k{number}", number + 1
        self.away_s = 0

    def __repr__(self):
        return (f"{self.key}: {self.program.name}, statement {self.nth} {self.where}, the {self.who} dies "
                f"(HAPAX_CRASH_SEED={SEED})")

    def rule(self, proxy):
        side = REQUEST if "way" in self.where else REPLY
        return (proxy.blackhole if self.where in ("lost on its way",
                                                  "done, never told") else proxy.stall)(side, nth=self.nth)

    def kill(self, process):
        if self.who == "client":
            process.kill()
        elif self.who == "connection":
            self.db.terminate()
        else:
            began = time.monotonic()
            self.server.kill()
            self.server.launch()
            self.away_s = time.monotonic() - began

    def run(self):
        with Proxy(self.server.port) as proxy:
            rule = self.rule(proxy)
            process = start(self.program, self.db.conninfo(port=proxy.port), self.key, self.amount)
            wait_until(lambda: rule.fired.is_set() or process.poll() is not None, f"{self}: statement {self.nth}")
            rival = None
            if rule.fired.is_set():
                if self.who != "server" and self.draw.random() < 0.3:
                    rival = start(self.draw.choice(list(STATEMENTS)), self.db.conninfo(), self.key, self.amount)
                self.kill(process)
            proxy.heal()
            if self.who == "client" and rule.fired.is_set():
                process.communicate(timeout=PATIENCE)
                known = False
            elif self.away_s > 3:  # the server was away for about as long as a program tries again
                process.communicate(timeout=PATIENCE)
                known = process.returncode == 0
            else:
                acknowledged(process)
                known = True
            if rival and self.who == "connection":
                rival.communicate(timeout=PATIENCE)  # it may have been hit as well, in its last try
                known |= rival.returncode == 0
            elif rival:
                acknowledged(rival)
                known = True
        wait_until(self.db.idle, "the end of what was cut off")
        if not known and self.draw.random() < 0.7:
            acknowledged(start(self.draw.choice(list(STATEMENTS)), self.db.conninfo(), self.key, self.amount))
            known = True
        return known


@pytest.mark.ci
def test_whoever_dies_rows_are_completed_operations():
    """Client, connection and server, killed before and after statements of either program, with rivals and retries."""
    draw = random.Random(SEED)
    known, hit = set(), 0
    with postgres_server.Postgres() as server:
        server.start()
        db = pg.Database(server).rich()
        for number in range(ROUNDS):
            round_ = Round(number, server, db, draw)
            try:
                if round_.run():
                    known.add(round_.amount)
                moved = db.check(known)
            except AssertionError as error:
                raise AssertionError(f"{round_}") from error
            hit += round_.amount in moved
    assert len(known) >= ROUNDS // 2 and hit >= len(known)


@pytest.mark.parametrize("program", [pg.TRANSFER, pytest.param(pg.TRANSFER_PY, marks=pytest.mark.ci)])
def test_every_statement_is_a_place_to_die(program):  # promise 24
    """The client is killed before and after each of its statements in turn; a retry always ends with one row."""
    db = pg.Database(pg.server()).rich()
    amount, undone, done = 0, 0, 0
    for nth in range(1, STATEMENTS[program] + 2):
        for side in (REQUEST, REPLY):
            amount += 1
            with Proxy(db.server.port) as proxy:
                rule = proxy.blackhole(side, nth=nth)
                process = start(program, db.conninfo(port=proxy.port), f"k{amount}", amount)
                wait_until(lambda: rule.fired.is_set() or process.poll() is not None, f"statement {nth}")
                process.kill()
                process.communicate(timeout=PATIENCE)
                proxy.heal()
                fired = rule.fired.is_set()
            wait_until(db.idle, "the end of what was cut off")
            moved = db.check()
            undone += amount not in moved
            done += amount in moved and fired
            acknowledged(start(program, db.conninfo(), f"k{amount}", amount))
            assert amount in db.check()
            last = nth
            if not fired:
                break
    assert last > STATEMENTS[program] - 2, f"only {last} statements"
    assert done >= 1 and undone >= 2 * (last - 3), f"{done} were committed when the client died, {undone} not"


# ---- failover -----------------------------------------------------------------------------


class Worker(threading.Thread):
    """Moves money for key after key, each again and again until it is told that it was moved."""

    def __init__(self, number, conninfo, over):
        super().__init__(daemon=True)
        self.number, self.conninfo, self.over = number, conninfo, over
        self.known, self.tries = set(), 0
        self.start()

    def run(self):
        amount = self.number
        while not self.over.is_set():
            amount += 10
            while True:
                self.tries += 1
                process = start(self.draw(), self.conninfo, f"k{amount}", amount)
                process.communicate()
                if process.returncode == 0:
                    self.known.add(amount)
                    break
                time.sleep(0.05)

    def draw(self):
        return pg.TRANSFER if self.tries % 2 else pg.TRANSFER_PY


@pytest.mark.ci
def test_failover_to_a_synchronous_standby_loses_and_doubles_nothing():
    """The primary is killed under load, its standby promoted; clients that name both hosts come back by themselves."""
    primary, standby = postgres_server.synchronous_pair()
    try:
        db = pg.Database(primary).rich()
        both = db.conninfo().replace("host='127.0.0.1'", "host='127.0.0.1,127.0.0.1'")
        both = both.replace(f"port='{primary.port}'", f"port='{primary.port},{standby.port}'")
        over = threading.Event()
        workers = [Worker(i, both + " target_session_attrs='read-write' connect_timeout='3'", over) for i in range(4)]
        wait_for(lambda: all(len(w.known) >= 3 for w in workers), "work on the primary", 5 * PATIENCE)
        primary.kill()
        standby.promote()
        standby.psql("ALTER SYSTEM SET synchronous_standby_names = ''")
        standby.psql("SELECT pg_reload_conf()")
        before = [len(w.known) for w in workers]
        wait_for(lambda: all(len(w.known) >= n + 3 for w, n in zip(workers, before)),
                 "work on the standby", 5 * PATIENCE)
        over.set()
        for worker in workers:
            worker.join(PATIENCE)
            assert not worker.is_alive()
        db.server = standby
        wait_until(db.idle, "the end of what was cut off")
        db.check(set().union(*(w.known for w in workers)))
    finally:
        standby.end()
        primary.end()
