"""Programs that a real Prometheus scrapes once a second, by the rules of ops/ with short windows and no `for`; and the
page for operators, in a browser that looks at what the doors do."""
import json
import re
import time

from conftest import ROOT, Command, end, wait_until
from process import free_port
from prometheus_server import Prometheus
from test_web import Web

RULES = ROOT / "ops/prometheus/hapax.rules.yml"
SECONDS = 2 + 2 + 4  # two scrapes; the census and the rules; the machine may be busy


def quick(text):
    """The rules for a test: windows of 6 s, no `for`, and no long ages."""
    text = re.sub(r"\[\d+m\]", "[6s]", text)
    text = re.sub(r"for: \d+m", "for: 0s", text)
    text = text.replace("silent_seconds > 10", "silent_seconds > 2")
    return text.replace("> 900", "> 0.5").replace("lag_seconds > 60", "lag_seconds > 1")


class Watched:
    """Programs of a test, which name a port for each by metrics(JOB), and then call watch()."""

    def __init__(self, folder, browser):
        self.hapax, self.ports, self.prometheus, self.page = Command(folder), {}, None, browser.page()
        folder.chmod(0o755)

    def metrics(self, job):
        """Options of a program; the second time it gets the same port."""
        return "--metrics", f"127.0.0.1:{self.ports.setdefault(job, free_port())}"

    def watch(self, store):
        """store: the page's."""
        pages = [word for port in self.ports.values() for word in ("--watch", f"http://127.0.0.1:{port}/metrics")]
        self.web = Web(self.hapax, store, *pages)
        self.page.open(self.web.url)
        self.prometheus = Prometheus(self.ports, quick(RULES.read_text())).start()
        self.quiet()

    def shows(self, *words):
        """The page does, where it stands. It reads the doors every five seconds, and is drawn as often."""
        for word in words:
            self.page.wait(f"RegExp({json.dumps(word)}).test(document.body.innerText)")

    def quiet(self):
        wait_until(lambda: not self.prometheus.firing() and len(self.prometheus.query("up == 1")) == len(self.ports),
                   lambda: f"that nothing fires, of {self.prometheus.firing()}")

    def fires(self, *alerts, more=0):
        """Within two scrapes; the counts of the store and the rules are a second old at most, too. more: seconds after
        which the incident is one. A count that took long is made again after a hundred times as long."""
        since = time.monotonic()
        wait_until(lambda: self.prometheus.firing() >= set(alerts), lambda: f"{alerts} ({self.prometheus.firing()})")
        took = time.monotonic() - since
        print(f"{', '.join(alerts)}: after {took:.1f} s")
        counts = self.prometheus.query("max(max_over_time(hapax_store_census_seconds[5m]))")
        assert took < SECONDS + more + sum(100 * float(sample["value"][1]) for sample in counts)

    def value(self, query):
        """Of its one sample."""
        sample, = self.prometheus.query(query)
        return float(sample["value"][1])

    def close(self):
        self.page.close()
        if self.prometheus:
            self.prometheus.end()
        for process in self.hapax.processes:
            if process.poll() is None:
                end(process)
            process.communicate()
