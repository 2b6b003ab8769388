"""Fixtures for who tests the gate; tests/conftest.py makes them known to all files."""
import contextlib
import subprocess

import pytest

import gate as g
from fake_http import Fake
from served import Served


@pytest.fixture
def api():
    api = g.Api()
    yield api
    api.close()


@pytest.fixture
def cgi():
    cgi = g.Cgi()
    yield cgi
    cgi.close()


@pytest.fixture
def uri(folder, hapax, store):
    """A keeper of one's own; the URI at which it is reached."""
    folder.chmod(0o755)
    hapax.keeper = hapax.keep(store)
    return f"unix:{folder}/store/keeper.sock"


@pytest.fixture
def gates():
    """The gates of a test: in the end each is stopped, and then its log is looked at."""
    gates = []
    yield gates
    for gate in gates:
        gate.stop()
    for gate in gates:
        gate.check_log()


@pytest.fixture
def make_gate(folder, uri, gates):
    def make(http, **more):
        patience = "" if "hapax_timeout" in http else "hapax_timeout 30s; hapax_save_wait 30s;"
        gates.append(g.Gate(folder, f"hapax_store {uri}; {patience}\n" + http, **more))
        return gates[-1]

    return make


@pytest.fixture
def gate(make_gate, api, cgi, folder):
    gate = make_gate(g.locations(api, folder, cgi.server_address[1]))
    (gate.folder / "html/error.html").write_text("the error page")
    (gate.folder / "html/file.txt").write_text("the file")
    return gate.start()


@pytest.fixture
def serve(hapax, api, store):
    started = []

    def start(*words, store=store, **more):
        started.append(Served(hapax, api, store, "--timeout", "30s", "--save-wait", "30s", *words, **more))
        return started[-1]

    yield start
    for served in started:  # twice: what is in hand is not waited for
        while served.process.poll() is None:
            served.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                served.process.wait(0.2)


@pytest.fixture
def fake():
    made = []

    def make(handler, response):
        made.append(Fake(handler, response))
        return made[-1]

    yield make
    for server in made:
        server.close()
