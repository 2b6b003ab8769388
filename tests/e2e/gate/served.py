"""`hapax serve` before an API of the test's."""
import gate as g
from conftest import read_line, wait_until
from process import family_of


class Served:
    """A hapax serve that is ready."""

    def __init__(self, hapax, api, store, *words, ready=True, **env):
        self.port = g.free_port()
        self.process = hapax.start("serve", "--upstream", f"http://127.0.0.1:{api.port}", "--listen",
                                   f"127.0.0.1:{self.port}", "--store", store, "--module", g.MODULE, *words, **env)
        self.line = read_line(self.process) if ready else ""
        assert self.line or not ready, self.process.stderr.read()

    def send(self, method, path, key=None, body=b"", headers=()):
        with g.Connection(self.port) as connection:
            connection.send(g.request(method, path, key, body, headers))
            return connection.response(head=method == "HEAD")

    def post(self, path, key=None, body=b"", headers=()):
        return self.send("POST", path, key, body, headers)

    def family(self, workers=1):
        """It, its nginx and the workers, once they are there: the port accepts before they do."""
        found = []

        def complete():
            found[:] = family_of(self.process.pid)
            return len(found) == 2 + workers

        wait_until(complete, "all workers starting")
        return found
