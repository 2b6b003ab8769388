"""A Prometheus that scrapes once a second, with rules that judge as often."""
import json
import urllib.parse
import urllib.request

from process import Server


class Prometheus(Server):
    """targets: ports, by the name of their job. rules: their text."""

    name = "prometheus"

    def __init__(self, targets, rules=""):
        super().__init__()
        jobs = "".join(f"  - job_name: {job}\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
                       for job, port in targets.items())
        (self.folder / "rules.yml").write_text(rules or "groups: []\n")
        (self.folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: [rules.yml]\nscrape_configs:\n{jobs}")

    def command(self):
        return ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]

    def get(self, path, **parameters):
        """The member `data` of an answer."""
        words = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{words}", timeout=30) as answer:
            return json.load(answer)["data"]

    def answers(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def query(self, text):
        """The samples of an instant."""
        return self.get("/api/v1/query", query=text)["result"]

    def firing(self):
        """The names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.get("/api/v1/alerts")["alerts"]
                if alert["state"] == "firing"}
