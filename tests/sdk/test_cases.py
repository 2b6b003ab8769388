"""The cases in sdk/cases, with the driver of each SDK, on each store (sdk/cases/README.md)."""
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import tempfile

import pytest
from conftest import BUILD, PATIENCE, ROOT
from doors import STORES, Door, Lines, Store, state_is
from played import HOW, Between

CASES = [case for path in sorted((ROOT / "sdk/cases").glob("*.json")) for case in json.loads(path.read_text())]
DRIVERS = sorted(path.name for path in (ROOT / "tests/sdk/drivers").iterdir() if os.access(path, os.X_OK))
CANNOT = {"cancel": ["python"], "break": ["node", "python"]}  # what a case needs, and whose SDK has it not
SCOPE = "cases"
numbers = itertools.count(1)


class Bench:
    """A door on a store, and up to two drivers at it."""

    def __init__(self, driver, kind, options=(), through=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hapax-sdk-"))
        self.driver, self.drivers, self.between = driver, {}, None
        self.store = Store(kind, self.folder)
        self.door = Door(self.store, self.folder, *options)
        self.address = self.door.address
        if through:
            self.address = f"unix:{self.folder}/between.sock"
            self.between = Between(self.folder / "between.sock", self.door.socket, HOW[through]())

    def client(self, number):
        if number not in self.drivers:
            self.drivers[number] = Lines([str(ROOT / "tests/sdk/drivers" / self.driver)],
                                         {"HAPAX_DOOR": self.address, "HAPAX_BUILD": str(BUILD)})
        return self.drivers[number]

    def close(self):
        with contextlib.ExitStack() as stack:  # all of it, whatever fails
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            stack.callback(self.door.close)
            if self.between:
                stack.callback(self.between.close)
            for driver in self.drivers.values():
                stack.callback(driver.close)


def fits(wanted, got, saved):
    if isinstance(wanted, dict) and len(wanted) == 1:
        (word, value), = wanted.items()
        if word == "one_of":
            return got in value
        if word == "has":
            return isinstance(got, str) and value in got
        if word == "more_than":
            return got > saved[value]
    return type(wanted) is type(got) and wanted == got


def play(case, bench):
    before, saved = f"{next(numbers)}-", {}

    def unique(key):
        key = "k" * key["size"] if isinstance(key, dict) else key
        if not key or "{}" in key:
            return key.replace("{}", before)
        return (before + key)[:max(255, len(key))]

    for step in case["steps"]:
        driver = bench.client(step.get("client", 1)) if {"do", "expect"} & set(step) else None
        if "do" in step:
            command = {name: value for name, value in step.items() if name != "client"}
            if step["do"] in ("call", "nest"):
                command.update(scope=command.get("scope", SCOPE), key=unique(command["key"]))
            driver.send({**command, "id": before + step["id"], **({"as": before + step["as"]} if "as" in step else {})})
        elif "expect" in step:
            kind, = {"run", "reconcile", "lost", "end"} & set(step["expect"])
            event = driver.next(kind, lambda event: event[kind] == before + step["expect"][kind])
            for name, wanted in step["expect"].items():
                wanted = before + wanted if name in (kind, "key") else wanted
                assert name in event and fits(wanted, event[name], saved), f"wanted: {step['expect']}; came: {event}"
            saved.update({to: event[name] for name, to in step.get("save", {}).items()})
        elif "state" in step:
            state_is(bench.store, SCOPE, unique(step["state"]["key"]), step["state"]["is"])
        elif "held" in step:
            assert bench.between.how.held.wait(PATIENCE), f"no {step['held']} came"
        elif "resolve" in step:
            resolve(bench, unique(step["resolve"]["key"]), **step["resolve"])
        else:
            happen(bench, step)
    for number, driver in bench.drivers.items():
        left = [event for event in driver.rest() if any(str(event.get(k, "")).startswith(before)
                                                        for k in ("run", "reconcile", "lost", "end"))]
        assert left == [], f"not expected, of client {number}: {left}"


def resolve(bench, unique, key, options, body=None):
    if body is not None:
        (bench.folder / "body").write_text(body)
        options = [*options, "--body", str(bench.folder / "body")]
    done = bench.store.hapax("resolve", "--scope", SCOPE, unique, *options)
    assert done.returncode == 0, f"{key}: {done.stderr}"


def happen(bench, step):
    (what, whom), number = next(item for item in step.items() if item[0] != "client"), step.get("client", 1)
    if whom == "door":
        {"kill": bench.door.kill, "end": lambda: bench.door.kill(signal.SIGTERM, wait=False),
         "start": bench.door.start}[what]()
    elif what == "start":
        bench.drivers.pop(number).close()
    else:
        bench.client(number).kill({"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "cont": signal.SIGCONT}[what])


@pytest.fixture(scope="module")
def benches():
    """Of the cases that share a door and its drivers; the last one used."""
    made = {}

    def give(driver, kind):
        if (driver, kind) not in made:
            for old in list(made):
                made.pop(old).close()
            made[driver, kind] = Bench(driver, kind)
        return made[driver, kind]

    yield give, made
    for bench in made.values():
        bench.close()


def drivers_of(case):
    return [driver for driver in DRIVERS if driver not in CANNOT.get(case.get("needs"), ())]


def kinds_of(case, drivers, place):
    """The stores that a case is played on with the driver at this place: one where it is the driver's turn, the
    driver's own, or another one in turn for a case that has a door of its own. HAPAX_SDK_CASES=all plays it on all,
    `others` what is left out without it, as .ci/run does."""
    kinds, (turn, driver) = case.get("stores", STORES), divmod(CASES.index(case), len(drivers))
    alone = {"own", "door", "through"} & set(case)
    chosen = [kinds[(place + (turn if alone else 0)) % len(kinds)]] if place == driver else []
    return {"all": kinds, "others": [kind for kind in kinds if kind not in chosen]}.get(
        os.environ.get("HAPAX_SDK_CASES"), chosen)


def triples():
    for driver, kind in itertools.product(DRIVERS, STORES):
        for case in CASES:
            drivers = drivers_of(case)
            if driver in drivers and kind in kinds_of(case, drivers, drivers.index(driver)):
                yield pytest.param(driver, kind, case, id=f"{driver}-{kind}-{case['name']}")


# What each case says of itself.
@pytest.mark.parametrize("driver, kind, case", triples())
def test_case(driver, kind, case, benches):  # promises 42, 43, 45
    give, made = benches
    if case.get("own") or case.get("door") or case.get("through"):
        bench = Bench(driver, kind, case.get("door", ()), case.get("through"))
        try:
            play(case, bench)
        finally:
            bench.close()
        return
    bench = give(driver, kind)
    assert case.get("needs", "") in ("", *bench.client(1).ready["can"])
    try:
        play(case, bench)
    except BaseException:  # what is left of it would disturb the next
        made.pop((driver, kind)).close()
        raise


# Every case can be played: no step is misspelled, and every driver can be run.
def test_the_cases_are_well_formed():
    kinds = {"do", "expect", "kill", "stop", "cont", "end", "start", "state", "held", "resolve"}
    assert len({case["name"] for case in CASES}) == len(CASES) and DRIVERS
    for case in CASES:
        assert set(case) <= {"name", "stores", "door", "through", "needs", "own", "steps"}, case["name"]
        for step in case["steps"]:
            assert len(kinds & set(step)) == 1, (case["name"], step)
