"""sdk/node: its own cases (tests/sdk/node/*.test.js), and what it does with PostgreSQL, a gate, and a clean folder."""
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import pg
from conftest import PATIENCE, ROOT, read_line
from served import Served

NODE = shutil.which("node")
SDK = ROOT / "sdk/node"
HERE = pathlib.Path(__file__).parent / "node"


@functools.cache
def frameworks():
    """The folder of modules that sdk/node has adapters for."""
    done = subprocess.run([ROOT / "tools/frameworks/fetch"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1000, check=False)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip()) / "node_modules"


def env(**more):
    return {**os.environ, "NODE_PATH": str(frameworks()), **more}


def run(*words, timeout=3 * PATIENCE, **more):
    """A program that ends well; what it printed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=timeout, check=False, **more)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


class Program:
    """A program of Node's that takes and gives lines of JSON."""

    def __init__(self, script, *words, **more):
        self.process = subprocess.Popen([NODE, script, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env(**more))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def send(self, **said):
        print(json.dumps(said), file=self.process.stdin, flush=True)

    def answer(self):
        return json.loads(read_line(self.process))

    def __call__(self, **said):
        self.send(**said)
        return self.answer()


@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in HERE.glob("*.test.js")))
def test_the_cases_of(name):
    """All cases of a file pass, and there are some."""
    said = run(NODE, "--test", "--test-reporter=tap", HERE / f"{name}.test.js", env=env())
    counts = dict(re.findall(r"^# (\w+) (\d+)$", said, re.M))
    assert int(counts["pass"]) > 4 and counts["fail"] == counts["cancelled"] == counts["skipped"] == "0", said


# ---- without a door ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def db():
    database = pg.Database(pg.server())
    database.run("DROP TABLE payments; CREATE TABLE payments (amount integer NOT NULL);"
                 "CREATE TABLE fences (name text PRIMARY KEY, fence bigint NOT NULL)")
    return database


@pytest.mark.parametrize("how", ["pg", *(pytest.param(how, marks=pytest.mark.ci) for how in ("prisma", "typeorm"))])
def test_complete_commits_rows_and_outcome_together(db, how):
    """complete(): both are there, or neither; who lost the claim or repeats cannot commit, nor a lower fence write."""
    db.run("TRUNCATE payments, fences, hapax.operations")

    def claimed(key):
        token, fence = db.run("SELECT token, fence FROM hapax.begin('default', %s)", key)[0]
        return {"idempotency-key": f'"{key}"', "idempotency-attempt": "1", "idempotency-fence": str(fence),
                "Idempotency-Token": token}

    def rows():
        return db.one("SELECT count(*) FROM payments"), db.completed("default")

    with Program(HERE / "handler.js", f"postgres://postgres@127.0.0.1:{db.server.port}/{db.name}") as pay:
        first, second = claimed("a"), claimed("b")
        assert pay(how=how, headers=first, fail=True)["text"].startswith("it fails") and rows() == (0, 0)
        assert pay(how=how, headers=second, name="card-7") == {
            "attempt": 1, "outcome": {"status": 201, "body": "receipt"}}
        assert rows() == (1, 1)
        status, headers, body = db.run("SELECT status, headers, body FROM hapax.begin('default', 'b')")[0]
        assert (status, bytes(headers), bytes(body)) == (201, b"Location: /payments/1\r\n", b"receipt")
        assert pay(how=how, headers=first, name="card-7")["error"] == "StaleFence" and rows() == (1, 1)
        assert pay(how=how, headers=second, body="another")["error"] == "ClaimLost" and rows() == (1, 1)
        db.run("TRUNCATE payments")
        lost = {**first, "Idempotency-Token": first["Idempotency-Token"][:43] + "A" * 21}
        assert pay(how=how, headers=lost)["error"] == "ClaimLost" and rows() == (0, 1)
        assert pay(how=how, headers={}) == {} and rows() == (1, 1)
        assert pay(how=how, headers=first, body={"a": [1]})["outcome"]["body"] == '{"a":[1]}'


def test_keys_are_derived_as_in_sql(db):
    """keyDerive() gives what hapax.key_derive() gives."""
    script = f"""const {{ keyDerive }} = require({json.dumps(str(SDK / 'lib/handler.js'))});
                 for (const n of [1, 249, 250, 255]) console.log(keyDerive('k'.repeat(n), 'step-'));"""
    derived = run(NODE, "-e", script).splitlines()
    assert derived == [db.one("SELECT hapax.key_derive(%s, 'step-')", "k" * n) for n in (1, 249, 250, 255)]
    assert derived[-1] == "sha256-" + hashlib.sha256(b"k" * 255 + b":step-").hexdigest()


@pytest.mark.some(1)
@pytest.mark.parametrize("sender", ["fetch", "axios"])
def test_a_client_meets_a_gate(hapax, api, store, sender):
    """Tries of one call are one operation, form and all; a gate's problems are errors of their names."""
    served = Served(hapax, api, store)
    with Program(HERE / "caller.js", f"http://127.0.0.1:{served.port}", sender) as call:
        assert call(path="/ok", form="5", key="k")["status"] == 200
        assert call(path="/ok", form="5", key="k")["replayed"] == "true" and api.count('"k"') == 1
        assert call(path="/ok", form="6", key="k") == {
            "error": "Mismatch", "code": "fingerprint-mismatch", "differs": "fingerprint", "key": '"k"'}
        assert call(path="/ok", form="5")["replayed"] == "false"


# ---- types, and the package ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A clean folder with the package, as sdk/node/package packs and installs it; it runs programs there, too."""
    into = tmp_path_factory.mktemp("made")
    run(SDK / "package", into)
    return into / "app"


@pytest.mark.ci
def test_the_types_are_right(installed):
    """TypeScript, strictly, for ESM and CommonJS, beside the frameworks' own types; each mark is a real error."""
    shutil.copy(HERE / "types.ts", installed / "use.mts")
    (installed / "use.cts").write_text("""
        import { connect } from 'hapax-sdk';
        import { idempotent } from 'hapax-sdk/express';
        const next = connect().once({ key: (n: number) => `${n}` }, (n, op) => n + op.fence);
        export const answer: Promise<number> = next(5);
        export const middleware = idempotent(connect());
    """)
    for module in frameworks().iterdir():
        if not (installed / "node_modules" / module.name).exists():
            (installed / "node_modules" / module.name).symlink_to(module)
    tsc = [NODE, frameworks() / "typescript/bin/tsc", "--noEmit", "--strict", "--module", "node16",
           "--target", "es2022", "--types", "node"]
    run(*tsc, "--experimentalDecorators", "--emitDecoratorMetadata", "--skipLibCheck", "use.mts", "use.cts",
        cwd=installed)
    run(*tsc, *(installed / "node_modules/hapax-sdk/lib").glob("*.d.ts"), cwd=installed)
