"""Celery's workers, their children, and the door with its store, killed again and again: each key takes effect once.

HAPAX_CELERY_STORM=60 pytest -s tests/sdk/test_celery_storm.py storms for a minute each, and prints what became of it.
"""
import collections
import json
import os
import random
import signal
import subprocess
import time

import pytest
from conftest import PATIENCE, ROOT
from doors import Door, Store
from process import children_of, kill_family, wait_for
from redis_server import Redis

SECONDS = float(os.environ.get("HAPAX_CELERY_STORM", "6"))
SHOP = """
import functools, os, sys, time
import celery, hapax, hapax.celery
from kombu.transport.redis import QoS
# What a killed worker had comes back at a worker's start, or each 10 s; without this line each 100 s.
QoS.restore_visible = functools.partialmethod(QoS.restore_visible, interval=1)
hx = hapax.connect(timeout=60)
app = celery.Celery("shop", broker=os.environ["BROKER"],
                    task_cls=hapax.celery.once(hx, key=lambda task, args, kwargs: args[0], lease="1s", again_s=0.2,
                                               on_expired=os.environ["ON_EXPIRED"]))
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1,
                broker_transport_options={"visibility_timeout": 3}, broker_connection_retry_on_startup=True,
                task_ignore_result=True)

@app.task(name="shop.pay")
def pay(key):
    effects = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(effects, f"{key}\\n".encode())
    os.close(effects)
    time.sleep(0.02)
    return {"paid": key}

if __name__ == "__main__":
    for n in range(int(sys.argv[1]), int(sys.argv[2])):
        for again in range(2):  # the producer, too, sends twice
            pay.delay(f"order-{n}")
"""


class Workers:
    def __init__(self, folder, env):
        self.folder, self.env, self.log = folder, env, open(folder / "celery.log", "ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-m", "celery", "-A", "shop", "worker", "-c", "2", "-l", "WARNING", "--without-gossip",
             "--without-mingle", "--without-heartbeat"], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log)

    def kill_child(self):
        for child in children_of(self.process.pid)[:1]:
            os.kill(child, signal.SIGKILL)

    def kill(self):
        kill_family(self.process.pid)
        self.process.wait(PATIENCE)

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.log.close()


@pytest.mark.ci
@pytest.mark.parametrize("on_expired", ["hold", "rerun"])
def test_each_task_takes_effect_once(folder, on_expired):
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)  # noqa: S311
    (folder / "shop.py").write_text(SHOP)
    store, kills, sent = Store("rocksdb", folder), collections.Counter(), 0
    door = Door(store, folder)
    with Redis().start() as broker:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}/sdk/python", "BROKER": f"redis://127.0.0.1:{broker.port}",
               "ON_EXPIRED": on_expired, "HAPAX_DOOR": door.address, "PYTHONWARNINGS": "ignore"}
        workers = Workers(folder, env)
        try:
            def send(more):
                subprocess.run(["/usr/bin/python3", "shop.py", str(sent), str(sent + more)], cwd=folder, env=env,
                               check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
                return sent + more

            def effects():
                path = folder / "effects"
                return collections.Counter(path.read_text().split()) if path.exists() else collections.Counter()

            sent = send(40)
            wait_for(effects, "the first effect")
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                what = chance.choice(["child", "child", "child", "door", "worker"])
                if what == "child":
                    workers.kill_child()
                elif what == "door":
                    door.kill()
                    door.start()
                else:
                    workers.kill()
                    workers.start()
                kills[what] += 1
                seen = sum(effects().values())  # the next blow falls into work
                if seen >= sent - 10:
                    sent = send(40)
                wait_for(lambda: sum(effects().values()) > seen, "more effects", pause=0.05)  # noqa: B023
            done = ("completed", "unknown")

            def over():
                states = collections.Counter()
                for n in range(sent):
                    shown = store.hapax("show", "--scope", "shop.pay", "--json", f"order-{n}")
                    states[json.loads(shown.stdout)["state"] if shown.returncode == 0 else "absent"] += 1
                return states if sum(states[state] for state in done) == sent else None

            states = wait_for(over, "the end of each operation", pause=0.5)
            counts = effects()
        finally:
            workers.close()
            door.close()
    twice = sum(counts.values()) - len(counts)
    print(f"{on_expired}: seed {seed}, {sent} keys sent twice, {dict(kills)} killed, {dict(states)}, "
          f"{twice} effects more")
    if on_expired == "hold":
        assert twice == 0 and states["completed"] + states["unknown"] == sent
    else:  # what died between its effect and its end has run again: two at a time, for each that was killed
        assert states["completed"] == len(counts) == sent and twice <= 2 * sum(kills.values())
