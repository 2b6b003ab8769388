"""What pages tell their readers to type, or to write into a file, outside of the recipes: each block as it stands.

Names of the page that stand for the reader's own (a store's URI, a key, /etc/hapax, a port) become the test's, and
nothing else is changed.
"""
import contextlib
import json
import os
import re
import subprocess

import pytest

import gate as g
from conftest import BUILD, PATIENCE, ROOT, end, read_line
from dynamodb_server import KEYS, DynamoDB
from postgres_server import Postgres

PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def blocks(page, kind=""):
    return [text for of, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], re.M | re.S) if of == kind]


def commands(block):
    """Its lines, without what stands behind a #."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.partition("#")[0].strip()]


@pytest.fixture
def shell(folder, hapax, store):
    """Types a line; what it printed."""
    env = {**hapax.env, "PATH": f"{BUILD}:{os.environ['PATH']}", "HAPAX_STORE": store,
           "HAPAX_AUDIT_FILE": f"{folder}/audit"}

    def type_it(line, code=0, **more):
        done = subprocess.run(["bash", "-c", line], cwd=folder, env={**env, **more}, capture_output=True, text=True,
                              timeout=PATIENCE)
        assert done.returncode == code, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout
    return type_it


# ---- docs/unknowns.md ----------------------------------------------------------------------

def test_an_unknown_operation_is_found_and_resolved_in_each_way(hapax, store, shell, folder):
    find, one, many = blocks("unknowns.md", "sh")
    hapax.unknown(store, "order-1")
    check, listed, show = commands(find)
    assert "1 operation is unknown" in shell(check)
    row = shell(listed).splitlines()[1]
    assert "unknown" in row
    assert "state         unknown" in shell(show.replace("ID", row.split()[0]))
    (folder / "receipt.json").write_text('{"receipt": 1}')
    ends = [("completed", 0), ("failed", 0), ("no such operation", 1)]
    for line, (state, code) in zip(commands(one), ends, strict=True):
        shell(line.replace("ID", row.split()[0]))
        done = hapax("show", "--store", store, "order-1")
        assert done.code == code and state in done.out + done.err
        if not code:
            assert hapax("resolve", "--store", store, "order-1", "--forget", "--force").code == 0
        hapax.unknown(store, "order-1")
    dry, real = commands(many)
    assert shell(dry) == shell(real) == ""  # none is a day old
    assert hapax.op(store, "claim", "p", "1", 30000, "hold", 86400000, "probes") == "claimed"
    assert hapax.op(store, "fail", "p", "1", "unknown", "probes") == "ok"
    assert "would" in shell(dry.replace("1d", "0s"))
    shell(real.replace("1d", "0s"))
    assert "failed" in hapax("show", "--store", store, "p", "--scope", "probes").out


# ---- docs/run.md ---------------------------------------------------------------------------

# The first line, cron's and CI's: what was run is not run again, and prints the same.
@pytest.mark.parametrize("which", ["first", "cron", "CI"])
def test_a_command_runs_once_as_the_page_types_it(which, store, shell, folder):
    first, ci = blocks("run.md", "sh")[0], blocks("run.md", "sh")[-1]
    cron, = (line for block in blocks("run.md") for line in block.splitlines() if "hapax run" in line)
    fields = cron.split(None, 5)
    assert len(fields) == 6 and all(re.fullmatch(r"[\d*]+", field) for field in fields[:5])
    assert "%" not in fields[5].replace(r"\%", "")  # cron takes a bare one for the end of the line
    (folder / "Makefile").write_text("dist:\n\t@./publish made\n")
    (folder / "publish").write_text('#!/bin/sh\necho "$1" >>ran; echo "run $1 of $(wc -l <ran)"\n')
    (folder / "publish").chmod(0o755)
    lines = {"first": commands(first), "cron": [fields[5].replace(r"\%", "%")], "CI": commands(ci)}[which]
    for line in lines:
        line = line.replace("redis://cache", store).replace("/usr/local/bin/report", "./publish report")
        said = shell(line, GIT_COMMIT="5f3c", TAG="v1")
        assert "run " in said and shell(line, GIT_COMMIT="5f3c", TAG="v1") == said
    assert len((folder / "ran").read_text().splitlines()) == len(lines)


# ---- docs/encryption.md, docs/metrics.md ---------------------------------------------------

@contextlib.contextmanager
def running(shell_line, env, folder):
    process = subprocess.Popen(["bash", "-c", "exec " + shell_line], cwd=folder, env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        read_line(process)
        yield process
    finally:
        end(process)
        process.stdout.close()


def test_outcomes_are_sealed_by_the_keys_that_the_page_makes(hapax, store, shell, folder, api):
    umask, make, export, serve = commands(blocks("encryption.md", "sh")[0])
    port = g.free_port()
    shell(f"{umask}; {make}".replace("/etc/hapax", str(folder)))
    variable = export.removeprefix("export ").replace("/etc/hapax", str(folder)).split("=")
    line = serve.replace("8080", str(api.port)) + f" --listen {port} --timeout 30s"
    with running(line, {**hapax.env, "PATH": f"{BUILD}:{os.environ['PATH']}", "HAPAX_STORE": store,
                        variable[0]: variable[1]}, folder):
        said = shell(f"curl -si localhost:{port}/created -H 'Idempotency-Key: k' -d a")
        assert "Idempotency-Replayed: false" in said
    shell("hapax show k", code=3)
    assert "status        201" in shell("hapax show k", **dict([variable]))


def test_metrics_are_where_the_page_says(hapax, store, shell, folder, api):
    line, = commands(blocks("metrics.md", "sh")[0])
    port, metrics = g.free_port(), g.free_port()
    line = line.replace("9000", str(api.port)).replace("9464", str(metrics)) + f" --listen {port}"
    with running(line, {**hapax.env, "PATH": f"{BUILD}:{os.environ['PATH']}", "HAPAX_STORE": store}, folder):
        assert "hapax_answers_total" in shell(f"curl -sf localhost:{metrics}/metrics")
        shell(f"curl -sf localhost:{metrics}/health")


# ---- docs/moving.md ------------------------------------------------------------------------

def test_a_table_of_ones_own_is_brought_along(shell, folder):
    line, = (block for block in blocks("moving.md") if block.startswith('{"key"'))
    select, = (block for block in blocks("moving.md") if block.startswith("SELECT"))
    brings = re.search(r"`(set -o pipefail; psql [^`]*) --store NEW`", PAGES["moving.md"])[1]
    later = re.sub(r'"(created|expires)": 1795', r'"\1": 4095', line)  # the page's time passes
    (folder / "keys.jsonl").write_text(later)
    shell("hapax init")
    shell("hapax import keys.jsonl")
    assert '{"id": 9}' in shell("hapax show k-17 --owner customer-4")
    with Postgres().start() as server:
        name = server.database()
        server.psql("CREATE TABLE idempotency_keys (key text, user_id int, response_code int, response_body text,"
                    " locked_at timestamptz)", name)
        server.psql("INSERT INTO idempotency_keys VALUES ('k-1', 4, 201, '{}', now()), ('k-2', 4, NULL, NULL, now())",
                    name)
        (folder / "keys.sql").write_text(select)
        shell(brings.replace("shop", server.uri(name)))
        (folder / "keys.sql").write_text("SELECT no_such_column")
        shell(brings.replace("shop", server.uri(name)), code=3)
    assert "201" in shell("hapax show k-1 --owner 4")
    shell("hapax show k-2 --owner 4", code=1)


# ---- docs/runbook.md -----------------------------------------------------------------------

def test_each_hapax_line_of_the_runbook_runs(hapax, store, shell):
    """Those that an alert tells to type. What they name is a store, and operations that are there."""
    lines = [line for block in blocks("runbook.md") for line in commands(block) if line.startswith("hapax ")]
    lines = [line for line in lines if not line.startswith(("hapax redrive", "hapax list --outbox"))]
    assert len(lines) > 25
    hapax.unknown(store, "k")
    listed = hapax("list", "--store", store, "--json").lines
    for line in lines:
        for name, value in {"URI": store, "KEY": "k", "SCOPE": "default", "HEX": listed[0]["id"]}.items():
            line = line.replace(name, value)
        done = hapax.run("bash", "-c", line, PATH=f"{BUILD}:{os.environ['PATH']}", HAPAX_STORE=store)
        assert done.code == 0, f"{line}: {done.out}{done.err}"
        if line.startswith("hapax resolve"):  # the next one finds it as it was
            hapax("resolve", "--store", store, "k", "--forget", "--force")
            hapax.unknown(store, "k")


# ---- docs/trying.md ------------------------------------------------------------------------

def test_gates_are_switched_as_the_page_says(store, shell):
    shell("hapax init")
    erase, switch = ([line.removeprefix("$ ").replace("URI", store) for line in commands(block)]
                     for block in blocks("trying.md", "console"))
    for line in erase + switch[:2]:
        shell(line)
    assert shell(switch[3]).startswith("shadow") and "payments: off" in shell(f"{switch[3]} --scope payments")
    shell(switch[2])
    assert shell(switch[3]).startswith("on")


# ---- docs/dynamodb.md, docs/install.md -----------------------------------------------------

def test_a_table_is_made_checked_and_served(shell, api, hapax, folder):
    _, init, check, serve = commands(blocks("dynamodb.md", "sh")[0])
    with DynamoDB().start() as server:
        uri = server.uri()
        at = [line.replace("dynamodb://eu-central-1/hapax", f"'{uri}'") for line in (init, check, serve)]
        assert all(uri in line for line in at)
        shell(at[0], **KEYS)
        assert "ok" in shell(at[1], **KEYS)
        port = g.free_port()
        line = at[2].replace("8080", str(api.port)) + f" --listen {port} --timeout 30s"
        with running(line, {**hapax.env, **KEYS, "PATH": f"{BUILD}:{os.environ['PATH']}"}, folder):
            shell(f"curl -sf localhost:{port}/created -H 'Idempotency-Key: k' -d a")
        assert "completed" in shell(f"hapax list --store '{uri}'", **KEYS)


def test_the_settings_of_a_unit_are_taken(shell, folder):
    block, = (block for block in blocks("install.md", "sh") if "serve-payments.conf <<" in block)
    write, config = block[:block.index("hapax config")], commands(block[block.index("hapax config"):])[0]
    shell(write.replace("/etc/hapax", str(folder)))
    said = shell("unset HAPAX_STORE; " + config.replace("serve-payments", f"{folder}/serve-payments.conf"))
    assert "auth:X-Account" in said and "unix:/var/lib/hapax/store/keeper.sock" in said


# ---- SDKs ----------------------------------------------------------------------------------

PYTHON = """
import types
charges = []
bank = types.SimpleNamespace(refund=lambda amount, idempotency_key: charges.append(amount) or f"c-{len(charges)}")
ledger = types.SimpleNamespace(write=lambda order, charge, fence: None)
print([refund("order-17", 500), refund("order-17", 500), charges])
"""


NODE = """
let charges = 0;
async function bank() { charges += 1; return `c-${charges}`; }
console.log(JSON.stringify([await refund('order-17', 500), await refund('order-17', 500), charges]));
hx.close();
"""


# The first program of sdk/python/README.md and of sdk/node/README.md: the second call returns what the first did.
@pytest.mark.parametrize("sdk, code, file, more, said", [
    ("python", "python", "app.py", PYTHON, "[{'receipt': 'c-1'}, {'receipt': 'c-1'}, [500]]"),
    ("node", "js", "app.mjs", NODE, '[{"receipt":"c-1"},{"receipt":"c-1"},1]'),
])
def test_the_first_program_of_an_sdk(sdk, code, file, more, said, shell, store, folder):
    text = (ROOT / f"sdk/{sdk}/README.md").read_text()
    program, = re.findall(rf"^## In 60 seconds\n\n```{code}\n(.*?)^```", text, re.M | re.S)
    line, = re.findall(rf"^(hapax door .* {file}) +#", text, re.M)
    (folder / file).write_text(program + more)
    (folder / "node_modules").mkdir()
    (folder / "node_modules/hapax-sdk").symlink_to(ROOT / "sdk/node")
    assert said in shell(line.replace("redis://localhost", store), PYTHONPATH=str(ROOT / "sdk/python"),
                         PYTHONDONTWRITEBYTECODE="1")


# ---- docs/nginx.md, docs/index.md, JSON ----------------------------------------------------

@pytest.mark.parametrize("page", [page for page in PAGES if "```nginx\n" in PAGES[page]])
def test_nginx_takes_each_block(page, folder):
    """In `http`, `server` or `location`, wherever it belongs; or its first paragraph in `http`, the rest in `server`;
    as main configuration where it loads the module."""
    for number, block in enumerate(blocks(page, "nginx")):
        mine = "hapax_store unix:/nowhere/keeper.sock; upstream subscriber { server 127.0.0.1:9; }"
        if "load_module" in block:
            block = block.replace("load_module modules/ngx_http_hapax_module.so;", "")
            block = re.fullmatch(r"\s*http \{(.*)\}\s*", block, re.S)[1]
            mine = ""
        elif "upstream api" not in block:
            mine += "upstream api { server 127.0.0.1:9; }"
        server = "listen 127.0.0.1:1; set $jwt_sub x;"
        first, _, rest = block.partition("\n\n")
        said = []
        for text in (f"{mine} {block}", f"{mine} server {{ {server} {block} }}",
                     f"{mine} server {{ {server} location / {{ {block} }} }}",
                     f"{mine} {first} server {{ {server} {rest} }}"):
            tried = g.Gate(folder, text, name=f"nginx-{number}").nginx("-t")
            said.append(tried.stderr)
            if tried.returncode == 0:
                break
        else:
            raise AssertionError(f"{block}\n{said}")


def test_the_three_calls_in_c_compile(folder):
    block, = blocks("index.md", "c")
    declared, calls = block.split("\n\n", 1)
    (folder / "three.c").write_text(
        f"#include <hapax/hapax.h>\n{declared}\n"
        "void f(struct hapax *h, struct hapax_policy policy, struct hapax_request request, void *order,\n"
        "       struct hapax_answer answer, char *text)\n{\n" + calls + "}\n")
    done = subprocess.run(["gcc", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}/include", folder / "three.c"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if "```json\n" in PAGES[page]])
def test_each_block_of_json_is_json(page):
    for block in blocks(page, "json"):
        # A template of problems has variables in the place of numbers.
        json.loads(re.sub(r": \$\w+", ": 0", block))
