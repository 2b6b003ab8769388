"""Pages of another origin before `hapax serve`, in a real browser: what its scripts may read, and what they may not."""
import http.server
import json
import os
import queue
import shutil
import subprocess
import threading

import pytest

from conftest import PATIENCE, wait_until

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
NAMES = ["Idempotency-Replayed", "Retry-After", "Link", "X-A"]

PAGE = """<!DOCTYPE html><meta charset=utf-8><script>
async function ask(url, key, body, more) {
  try {
    const answer = await fetch(url, {method: 'POST', body, headers: {'Idempotency-Key': key}, ...more});
    const headers = Object.fromEntries(%s.map(name => [name, answer.headers.get(name)]));
    return {status: answer.status, headers, body: await answer.text()};
  } catch (error) {
    return {error: String(error)};
  }
}
(async () => {
  const found = [];
  for (const request of %s) found.push(await ask(...request));
  await fetch('/found', {method: 'POST', body: JSON.stringify(found)});
})();
</script>"""


class Shop(http.server.ThreadingHTTPServer):
    """Another origin: a page that sends what it is told to, and posts what it could read."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Page)
        self.requests, self.found = [], queue.Queue()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Page(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        page = (PAGE % (json.dumps(NAMES), json.dumps(self.server.requests))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self):
        self.server.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()


@pytest.fixture
def shop():
    shop = Shop()
    yield shop
    shop.shutdown()
    shop.server_close()


@pytest.fixture
def browse(shop, folder):
    """What a page of the shop could read of these requests, each [url, key, body] and perhaps options of fetch."""
    assert BROWSER, "no chromium-headless-shell: tools/install test"

    def look(*requests):
        shop.requests = requests
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        process = subprocess.Popen([BROWSER, *sandbox, "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
                                    f"--user-data-dir={folder}/profile", shop.origin],
                                   env={**os.environ, "HOME": str(folder)}, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return shop.found.get(timeout=PATIENCE)
        finally:
            os.killpg(process.pid, 9)
            process.wait(PATIENCE)

    return look


def test_a_page_of_another_origin_reads_answers_and_refusals(serve, api, shop, browse):
    """--cors: fresh, replay, 422 and 409 with their headers, though the API knows nothing of CORS."""
    served = serve("--cors", "https://other.example", "--cors", shop.origin, "--wait", "0")
    held = threading.Thread(target=served.post, args=("/hold/d", "held"), kwargs={"headers": [("Host", "127.0.0.1")]},
                            daemon=True)  # at the host that the page asks
    held.start()
    wait_until(lambda: api.count("held") == 1, "the attempt in flight")
    at = f"http://127.0.0.1:{served.port}"
    fresh, replay, mismatch, in_flight, cookies = browse(
        [f"{at}/ok", "k", "a"], [f"{at}/ok", "k", "a"], [f"{at}/ok", "k", "b"], [f"{at}/hold/d", "held", ""],
        [f"{at}/ok", "c", "a", {"credentials": "include"}])
    api.door("d").set()
    held.join(PATIENCE)
    assert (fresh["status"], fresh["body"]) == (200, "effect=1 body=1")
    assert fresh["headers"]["Idempotency-Replayed"] == "false"
    assert (replay["status"], replay["headers"]["Idempotency-Replayed"], replay["body"]) == (200, "true", fresh["body"])
    assert mismatch["status"] == 422 and "fingerprint-mismatch" in mismatch["headers"]["Link"]
    assert in_flight["status"] == 409 and int(in_flight["headers"]["Retry-After"]) > 0
    assert json.loads(in_flight["body"])["type"].endswith("in-flight")
    assert cookies["status"] == 200 and fresh["headers"]["X-A"] is None  # no header of the API's is laid open
    assert api.count("k") == 1


def test_a_page_of_an_origin_that_is_not_named_reads_nothing(serve, api, shop, browse):
    """Its preflight goes to the API, which does not allow it: nothing runs."""
    served = serve("--cors", "https://other.example")
    answer, = browse([f"http://127.0.0.1:{served.port}/ok", "k", "a"])
    assert "Failed to fetch" in answer["error"]
    assert api.count("k") == 0


def test_all_origins_read_answers_without_credentials(serve, api, shop, browse):
    """--cors '*': pages everywhere, but not with cookies."""
    served = serve("--cors", "*")
    at = f"http://127.0.0.1:{served.port}"
    plain, cookies = browse([f"{at}/ok", "k", "a"], [f"{at}/ok", "c", "a", {"credentials": "include"}])
    assert (plain["status"], plain["headers"]["Idempotency-Replayed"]) == (200, "false")
    assert "Failed to fetch" in cookies["error"]


def test_an_nginx_of_ones_own_adds_the_headers_itself(make_gate, api, shop, browse):
    """add_header … always reaches replays and refusals too, as docs/nginx.md says."""
    gate = make_gate(f"""server {{
        LISTEN
        hapax on;
        add_header Access-Control-Allow-Origin {shop.origin} always;
        add_header Access-Control-Allow-Headers 'Idempotency-Key' always;
        add_header Access-Control-Expose-Headers 'Idempotency-Replayed, Retry-After, Link' always;
        if ($request_method = OPTIONS) {{ return 204; }}
        location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
    }}""").start()
    at = f"http://127.0.0.1:{gate.port}"
    fresh, replay, mismatch = browse([f"{at}/ok", "k", "a"], [f"{at}/ok", "k", "a"], [f"{at}/ok", "k", "b"])
    assert (fresh["headers"]["Idempotency-Replayed"], replay["headers"]["Idempotency-Replayed"]) == ("false", "true")
    assert mismatch["status"] == 422 and "fingerprint-mismatch" in mismatch["headers"]["Link"]
    assert api.count("k") == 1
