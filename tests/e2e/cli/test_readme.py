"""What the README tells a newcomer to type, verbatim, and what it says they will see."""
import html
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import gate as g
from conftest import BUILD, PATIENCE, ROOT, read_line, wait_until
from served import Served


@pytest.fixture
def port(folder):
    """tools/run, ready, at a port of its own; after Ctrl-C nothing of it is left."""
    port = g.free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith("HAPAX_")}
    with open(folder / "printed", "w") as printed:
        process = subprocess.Popen([ROOT / "tools/run", str(port)], env={**env, "HAPAX_BUILD": str(BUILD)},
                                   stdout=printed, stderr=printed, start_new_session=True)

    def ready():
        text = (folder / "printed").read_text()
        assert process.poll() is None, text
        return "Ctrl-C ends it" in text

    try:
        wait_until(ready, "tools/run")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_owners_that_it_and_help_name_are_taken(hapax, api):
    """hapax serve starts with each."""
    readme = re.search(r"\*\*For payments\*\*.*?It is `hold`", (ROOT / "README.md").read_text(), re.S)[0]
    said = re.search("--owner VALUE.*", hapax("help", "serve").out)[0]
    owners = [re.findall(r"auth:[\w-]+|\$\w+", text) for text in (readme, said)]
    assert all(owners)
    for n, owner in enumerate({*owners[0], *owners[1]}):
        served = Served(hapax, api, f"rocksdb:{hapax.folder}/{n}", "--profile", "payments", "--owner", owner,
                        "--auth-request", "http://127.0.0.1:1/")
        assert f"({owner}) has keys of its own" in read_line(served.process)


def curl_lines():
    """(command, comment) of each line of the README that runs curl, in its order."""
    text = (ROOT / "README.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]
    found = [re.fullmatch(r"(.*?) +# (.*)", line) for line in lines if "curl " in line]
    assert len(found) == 5 and all(found), "each curl line says what it answers"
    return [match.groups() for match in found]


def shell(line, port):
    assert "localhost:8080" in line
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    done = subprocess.run(["bash", "-c", line.replace("localhost:8080", f"127.0.0.1:{port}")], env=env,
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def served(line, port):
    """The same where the store answers in time: a refusal that says to come again is followed."""
    deadline = time.monotonic() + PATIENCE
    while (said := shell(line, port)).startswith("HTTP/1.1 503"):
        assert time.monotonic() < deadline, said
    return said


def test_the_lines_of_the_readme_answer_as_it_says(port):
    """A charge, its replay, a mismatch, the counter, a repeat that waits for the first answer."""
    (charge, c1), (again, c2), (other, c3), (count, c4), (race, c5) = curl_lines()
    first = served(charge, port)
    assert c1.startswith("201") and first.startswith("HTTP/1.1 201") and "Idempotency-Replayed: false" in first
    second = served(again, port)
    assert c2.startswith("201") and again == charge and "Idempotency-Replayed: true" in second
    assert second.splitlines()[-1] == first.splitlines()[-1] and "r-1" in first
    assert c3.startswith("422") and served(other, port).startswith("HTTP/1.1 422")
    assert c4 in shell(count, port)
    assert c5.startswith("201 twice, one replayed") and "order-2" in race
    charges = 1
    for n in range(2, 6):  # with other keys, where the store was too slow for one of them
        said = shell(race.replace("order-2", f"order-{n}"), port)
        charges += said.count("Idempotency-Replayed: false")
        assert f'"charges": {charges}' in shell(count, port)
        answers = sorted(re.findall(r"HTTP/1.1 (\d+)", said))
        if answers == ["201", "201"]:
            break
        assert "503" in answers, said
    assert answers == ["201", "201"]
    assert said.count("Idempotency-Replayed: false") == said.count("Idempotency-Replayed: true") == 1


def test_the_recording_is_of_these_lines():
    """docs/pictures/terminal.svg, which tools/record makes: a scene of each line, whole, and what it answers."""
    picture = (ROOT / "docs/pictures/terminal.svg").read_text()
    scenes = [html.unescape(re.sub(r"<[^>]*>", "", scene)) for scene in re.findall(r"<g .*?</g>", picture, re.S)]
    for scene, (command, said) in zip(scenes, curl_lines(), strict=True):
        assert re.sub(r"\s", "", scene).startswith(re.sub(r"\s", "", "$" + command))
        assert re.match(r"\d+|.*", said)[0] in scene
