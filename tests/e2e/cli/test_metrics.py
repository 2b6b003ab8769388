"""The pages of metrics: each program serves what docs/metrics.md lists, and nothing else."""
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

import gate as g
from conftest import ROOT, read_line, wait_until
from served import Served

# Shown only where a broker, or a database, says it; of servers, in tests/ops.
ELSEWHERE = {"hapax_relay_lag", "hapax_relay_lag_seconds", "hapax_relay_held", "hapax_consumer_lag",
             "hapax_store_clock_ahead_seconds", "hapax_store_replicas", "hapax_store_replica_lag_bytes",
             "hapax_store_replica_silent_seconds", "hapax_store_certificate_seconds", "hapax_gate_certificate_seconds"}


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def scraped(port, line=""):
    """The page, once it is there and has the line."""
    found = []

    def there():
        try:
            found[:] = [scrape(port)]
        except (urllib.error.URLError, ConnectionError):
            return False
        return line in found[0]

    wait_until(there, f"a page with {line}")
    return found[0]


def port_of(line):
    return int(re.search(r"metrics at port (\d+)", line)[1])


def names_of(page):
    return set(re.findall(r"^# TYPE (\S+)", page, re.M))


def value(page, sample):
    return float(re.search(rf"^{re.escape(sample)} (\S+)$", page, re.M)[1])


def documented():
    text = (ROOT / "docs/metrics.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `hapax_")]
    return {name for cell in cells for name in re.findall(r"`(hapax_[a-z_]+)", cell)}


@pytest.fixture
def pages(hapax, api):
    """A page of each program, some without what they work with."""
    metrics = ["--metrics", "127.0.0.1:0"]
    found = {}
    kept = hapax.keep(f"rocksdb:{hapax.folder}/kept", *metrics)
    found["keep"] = scraped(port_of(kept.ready), "hapax_store_operations")
    served = Served(hapax, api, f"rocksdb:{hapax.folder}/served", *metrics)
    assert served.post("/pay", "k1").status == 200
    found["serve"] = scraped(port_of(served.line), "hapax_store_operations")
    door = hapax.start("door", "--store", f"rocksdb:{hapax.folder}/door", "--listen", f"unix:{hapax.folder}/d.sock",
                       *metrics)
    found["door"] = scraped(port_of(read_line(door)), "hapax_store_operations")
    relay = hapax.start("relay", "--from", "postgres://127.0.0.1:1/none", "--to", "amqp://127.0.0.1:1", *metrics)
    found["relay"] = scraped(port_of(read_line(relay)))
    port = g.free_port()
    hapax.start("consume", "--from", "amqp://127.0.0.1:1/?queue=q", "--to", "http://127.0.0.1:1/", "--store", "memory:",
                "--metrics", f"127.0.0.1:{port}")
    found["consume"] = scraped(port, "hapax_store_ops_total")
    return found


def test_every_page_has_what_the_docs_list_and_nothing_else(pages):
    """And promtool, where it is, finds no fault with names, types and help."""
    shown = set().union(*map(names_of, pages.values()))
    assert shown - documented() == set()
    assert documented() - shown <= ELSEWHERE
    for program, page in pages.items():
        assert names_of(page) == set(re.findall(r"^# HELP (\S+)", page, re.M)), program
        assert len(re.findall(r"^# TYPE", page, re.M)) == len(names_of(page)), f"{program}: a metric is there twice"
        assert len(re.findall("hapax_build_info{", page)) == 1, program
        assert "k1" not in page and "/pay" not in page
        if shutil.which("promtool"):
            lint = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True,
                                  check=False)
            assert (lint.returncode, lint.stdout + lint.stderr) == (0, ""), program


def test_serve_shows_gate_keeper_and_store_on_one_page(hapax, api):
    served = Served(hapax, api, f"rocksdb:{hapax.folder}/store", "--metrics", "127.0.0.1:0")
    for _ in range(2):
        assert served.post("/pay", "k1").status == 200
    hapax.unknown(f"rocksdb:{hapax.folder}/store", "stuck")
    page = scraped(port_of(served.line), 'hapax_store_operations{state="unknown"} 1')
    assert [value(page, f'hapax_answers_total{{answer="{kind}"}}') for kind in ("fresh", "replay")] == [1, 1]
    assert value(page, 'hapax_attempts_total{class="final"}') == 1
    assert value(page, "hapax_gate_up") == 1
    assert value(page, "hapax_keeper_requests_total") >= 4
    assert value(page, "hapax_store_batch_ops_sum") >= 4
    assert value(page, 'hapax_store_oldest_seconds{state="unknown"}') > 0
    assert 0 < value(page, "hapax_store_disk_free_bytes") < value(page, "hapax_store_disk_size_bytes")


def test_a_store_that_was_away_at_the_start_is_said_to_be_down(hapax, api):
    served = Served(hapax, api, "postgres://127.0.0.1:1/none", "--metrics", "127.0.0.1:0")
    scraped(port_of(served.line), "hapax_store_census_up 0")


def test_a_door_that_waits_for_its_store_has_its_page(hapax):
    """A supervisor that looks at the port leaves the door alone; /health tells of the store."""
    port = g.free_port()
    hapax.start("door", "--store", "redis://127.0.0.1:1", "--listen", f"unix:{hapax.folder}/d.sock",
                "--metrics", f"127.0.0.1:{port}")
    assert value(scraped(port), "hapax_door_store_up") == 0
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30)


# ---- what is made of them -------------------------------------------------------------------------


def metrics_in(queries):
    """The names of metrics in queries; those of a histogram without what Prometheus adds."""
    names = {name for query in queries for name in re.findall(r"\b(hapax_[a-z_]+)", query)}
    return {re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_rules_and_board_name_metrics_that_are_there():
    rules = (ROOT / "ops/prometheus/hapax.rules.yml").read_text()
    board = json.loads((ROOT / "ops/grafana/hapax.json").read_text())
    drawn = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked = re.findall("expr: '(.*)'$", rules, re.M)
    assert len(asked) == rules.count("- alert:") > 20 and len(drawn) > 20
    assert metrics_in(asked + drawn) - documented() == set()


def test_each_alert_has_its_section_in_the_runbook():
    rules = (ROOT / "ops/prometheus/hapax.rules.yml").read_text()
    sections = re.findall("^## (.*)$", (ROOT / "docs/runbook.md").read_text(), re.M)
    assert re.findall("- alert: (.*)$", rules, re.M) == sections
    assert re.findall("runbook_url: '.*#(.*)'$", rules, re.M) == [name.lower() for name in sections]


# Nobody is asked for a password there, so it is said aloud that others may read it.
@pytest.mark.parametrize("words", [("keep",), ("door",), ("serve", "--upstream", "http://127.0.0.1:1"),
                                   ("relay", "--from", "postgres://127.0.0.1:1/none", "--to", "amqp://127.0.0.1:1"),
                                   ("consume", "--from", "amqp://127.0.0.1:1/?queue=q", "--to", "http://127.0.0.1:1/")],
                         ids=lambda words: words[0])
def test_a_page_for_other_machines_has_to_be_asked_for(hapax, words):
    store = () if words[0] == "relay" else ("--store", f"rocksdb:{hapax.folder}/store")
    more = {"door": ("--listen", f"unix:{hapax.folder}/d"), "serve": ("--module", g.MODULE, "--listen", "127.0.0.1:0")}
    result = hapax(*words, *store, *more.get(words[0], ()), "--metrics", "0.0.0.0:0")
    assert result.code == 2
    assert '--metrics: other machines can reach "0.0.0.0"' in result.err and "--metrics-public" in result.err


