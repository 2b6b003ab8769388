"""docs/recipes, and the quick start of docs/consume.md: each page's lines, typed into one shell in the order of the
page, and what the page says of each.

A line is what stands in a block of `sh`. What stands behind its `#`, cut at its commas, is in what the line prints; a
number alone is all that the line prints. The ports of the page become free ones, and those of servers the servers' own,
also in a copy of each configuration that a line names; nothing else is changed. A line that ends in `&` goes on
running. Typed once more is what only looks, until it shows what the page says; and what nobody has run yet, as a
service was still starting. The last line of each page ends all that the page began.
"""
import contextlib
import os
import pathlib
import re
import signal
import subprocess

import pytest

from conftest import BUILD, PATIENCE, ROOT, wait_until
from kafka_server import Kafka
from postgres_server import Postgres
from process import free_port
from rabbitmq_server import RabbitMQ
from redis_server import Redis, RedisCluster

PAGES = {page.stem: page.read_text() for page in sorted((ROOT / "docs/recipes").glob("*.md"))}
START = re.search(r"^## Quick start\n(.*?)^## ", (ROOT / "docs/consume.md").read_text(), re.M | re.S)[1]
TYPED = {**PAGES, "consume": START}
SERVERS = {5432: Postgres, 5672: RabbitMQ, 6379: Redis, 9092: Kafka}
CLUSTER = (7000, 7001, 7002)
FREE = (8080, 8081, 8082, 9000, 9001, 9464)
CONFIGURATION = re.compile(r"(?:\$PWD/)?(examples/[\w/]+\.(?:yaml|conf))\b")
PORT = re.compile(r"(?<=[: ])(" + "|".join(map(str, [*SERVERS, *CLUSTER, *FREE])) + r")\b")
LOOKS = re.compile(r"(hapax (list|show|redrive .*--dry-run)|psql|cat |tail |wc |curl (?!.* -d )(?!.*-X))")
NOT_YET = re.compile(r"HTTP/1.1 50[23]|Connection refused|curl: \(7\)|onnection was reset")


def lines_of(page):
    """(command, what it prints) of each line."""
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S))
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command, _, said = line.partition("  # ")
        if command.strip():
            yield command.strip(), [word.strip() for word in said.split(", ") if word.strip()]


class Shell:
    """One bash, which keeps its variables and its jobs."""

    def __init__(self, folder, env):
        self.folder, self.number = folder, 0
        self.process = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, cwd=ROOT, env=env, text=True,
                                        start_new_session=True)

    def type(self, command):
        """What it prints; of what goes on running, nothing."""
        self.number += 1
        said = self.folder / f"said-{self.number}"
        runs_on = command.endswith("&")
        words = command.removesuffix("&")
        to = f"</dev/null >{said} 2>&1"
        self.process.stdin.write(f"{words} {to} &\n" if runs_on else f"{{ {words}; }} {to}\n")
        self.process.stdin.write('echo "ended $?"\n')
        self.process.stdin.flush()
        # bash says on the same line of output when a job was killed.
        while not (status := self.process.stdout.readline()).startswith("ended ") and status:
            pass
        assert status == "ended 0\n" or LOOKS.match(command) or "curl" in command, f"{command}: {said.read_text()}"
        return said.read_text() if not runs_on else ""

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
                         for path in sorted(self.folder.glob("said-*")))

    def end(self):
        """True where nothing of it was left by itself."""
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 0)
            os.killpg(self.process.pid, signal.SIGKILL)
            return False
        return True


def at_the_test(page, stack, folder):
    """The ports that the page names, as this test has them."""
    ports, files = {}, CONFIGURATION.findall(page)
    page += "".join((ROOT / path).read_text() for path in files)
    numbers = {int(found) for found in PORT.findall(page)}
    if numbers & set(CLUSTER):
        nodes = stack.enter_context(RedisCluster().start()).nodes
        ports.update(zip(CLUSTER, (node.port for node in nodes), strict=True))
    for number in numbers - set(CLUSTER):
        if number in SERVERS:
            server = SERVERS[number]()
            stack.enter_context(server.start())
            if number == 5432:
                server.psql("CREATE DATABASE shop")
            ports[number] = server.port
        else:
            ports[number] = free_port()

    def here(text):
        return PORT.sub(lambda found: str(ports[int(found[1])]), text)

    for path in files:
        (folder / pathlib.Path(path).name).write_text(here((ROOT / path).read_text()))
    return lambda line: CONFIGURATION.sub(lambda found: str(folder / pathlib.Path(found[0]).name), here(line))


def shows(printed, said):
    if len(said) == 1 and said[0].isdecimal() and "HTTP/1.1" not in printed:
        return printed.strip() == said[0]
    return all(word in printed for word in said)


def play(shell, line, said):
    """Types a line, and once more as the head of this file says."""
    def holds():
        printed = shell.type(line)
        if shows(printed, said) and (said or not NOT_YET.search(printed)):
            return True
        logs = shell.logs()
        assert "Traceback" not in logs, logs
        assert LOOKS.match(line) or NOT_YET.search(printed), f"{line}: {printed}\n{logs}"
        return False
    wait_until(holds, lambda: f"what the page says of {line}:\n{shell.logs()}")


@pytest.mark.parametrize("name", TYPED)
def test_the_lines_of_a_recipe_do_as_it_says(name, folder):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("HAPAX_") and not name.lower().endswith("_proxy")}
    (folder / "bin").mkdir()
    (folder / "bin/python3").symlink_to("/usr/bin/python3")
    env.update({name: str(folder) for name in ("HOME", "TMPDIR", "XDG_STATE_HOME")},
               PATH=f"{folder}/bin:{BUILD}:{env['PATH']}", PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8")
    if "node_modules" in TYPED[name]:
        env["FRAMEWORKS"] = subprocess.check_output([ROOT / "tools/frameworks/fetch"], text=True).strip()
    if "go build" in TYPED[name]:
        into = subprocess.check_output([ROOT / "tools/go/fetch"], text=True).strip()
        env.update(GOPATH=into, GOCACHE=f"{into}/cache", GOTOOLCHAIN="local", GOPROXY="off")
    env["MODULES"] = str(BUILD / "nginx")
    if "$ENVOY" in TYPED[name]:
        env["ENVOY"] = subprocess.check_output([ROOT / "tools/envoy/fetch"], text=True).strip()
    if "$SPRING" in TYPED[name]:
        env["SPRING"] = subprocess.check_output([ROOT / "tools/spring/fetch"], text=True).strip()
    lines = list(lines_of(TYPED[name]))
    with contextlib.ExitStack() as stack:
        here = at_the_test("\n".join(line for line, _ in lines), stack, folder)
        shell = Shell(folder, env)
        try:
            for line, said in lines:
                play(shell, here(line), [here(word) for word in said])
        finally:
            alone = shell.end()
        assert alone, "the page's last line ends all that the page began"


# Code that a page shows is the example's, as it stands.
@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_its_example_as_it_is(name):
    shown = re.findall(r"^From \[(examples/[\w./-]+)\]\(\.\./\.\./\1\):\n\n```\w+\n(.*?)^```", PAGES[name], re.M | re.S)
    blocks = re.findall(r"^```(?!sh$|$)\w+$", PAGES[name], re.M)
    assert len(shown) == len(blocks), "each block says which example it is from"
    for path, code in shown:
        assert code in (ROOT / path).read_text(), f"{path} has other code than the page"
