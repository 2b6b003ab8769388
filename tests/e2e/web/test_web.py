"""hapax web, in a real browser and by hand; and hapax top, over the same data."""
import base64
import contextlib
import http.client
import http.server
import itertools
import json
import os
import re
import socket
import subprocess
import threading
import time

import pika
import pytest
import rabbit
from conftest import end, read_line, wait_until
from process import PATIENCE
from sql_database import ask

FOREIGN = "<img src=x onerror=\"window.hacked=1\">"


class Web:
    """A hapax web that is ready."""

    def __init__(self, hapax, store, *words, **env):
        self.process = hapax.start("web", "--store", store, "--listen", "127.0.0.1:0", "--json", *words, **env)
        line = read_line(self.process)
        assert "port" in line, line + self.process.stderr.read()
        self.port = json.loads(line)["port"]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.headers = {}

    def ask(self, method, path, body=None, **headers):
        """Status, headers and body; a header None is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        all_headers = {"Host": f"127.0.0.1:{self.port}", **self.headers, **named}
        connection.putrequest(method, path, skip_host=True)
        if body is not None:
            all_headers["Content-Length"] = str(len(body))
        for name, value in all_headers.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        got = answer.status, answer.headers, answer.read().decode()
        connection.close()
        return got

    def token(self):
        return json.loads(self.ask("GET", "/api/session")[2])["token"]

    def post(self, path, asked, **headers):
        body = (asked if isinstance(asked, str) else json.dumps(asked)).encode()
        more = {"Content_Type": "application/json", "X_Hapax_Token": self.token(), **headers}
        return self.ask("POST", f"/api/{path}", body, **more)


def basic(login):
    return "Basic " + base64.b64encode(login.encode()).decode()


@pytest.fixture
def kept(hapax, store):
    """A store that a keeper holds, with one operation of each state."""
    hapax.keep(store)
    hapax.unknown(store, "stuck")
    assert hapax.op(store, "claim", "runs", "1", 600000, "rerun") == "claimed"
    assert hapax.op(store, "claim", "died", "1", 1, "hold", 86400000, "billing") == "claimed"
    assert hapax.op(store, "claim", "tried", "1", 30000, "rerun") == "claimed"
    assert hapax.op(store, "fail", "tried", "1", "ran") == "ok"
    hapax.completed(store, "paid", 201, "Content-Type: application/json\\r\\n", '{"charge":"ch_1"}', "payments")
    return store


@pytest.fixture
def web(hapax, kept, folder):
    """It reads and resolves; zoe and ann may log in, and audit is where acts leave lines."""
    (folder / "passwd").touch(0o600)
    with open(folder / "passwd", "w") as file:
        for name, password in (("zoe", "pw"), ("ann", "pw2")):
            made = subprocess.run(["openssl", "passwd", "-6", password], capture_output=True, text=True, check=True)
            file.write(f"{name}:{made.stdout}")
    web = Web(hapax, kept, "--allow", "resolve", "--password-file", folder / "passwd",
              HAPAX_AUDIT_FILE=str(folder / "audit"))
    web.headers = {"Authorization": basic("zoe:pw")}
    yield web
    if web.process.poll() is None:
        assert end(web.process) == 0


@pytest.fixture
def visit(browser):
    pages = []

    def open_page(web, login=None, **how):
        if login:
            how["headers"] = {"Authorization": basic(login)}
        pages.append(browser.page(**how))
        pages[-1].open(web.url)
        return pages[-1]

    yield open_page
    for page in pages:
        known = ("status of 4", "status of 503", "TrustedHTML")  # answers, and what a test tries
        faults = [fault for fault in page.faults() if not any(word in json.dumps(fault) for word in known)]
        page.close()
        assert not faults, faults


def watched(hapax, store, folder):
    """A door, and its page of metrics."""
    door = hapax.start("door", "--store", store, "--listen", f"unix:{folder}/d.sock", "--json",
                       "--metrics", "127.0.0.1:0")
    return door, f"http://127.0.0.1:{json.loads(read_line(door))['metrics_port']}/metrics"


def id_of(hapax, store, key, scope="default"):
    return hapax("show", key, "--scope", scope, "--store", store, "--json").json["id"]


def open_operation(page, operation):
    page.js(f"go('op/{operation}')")
    page.shows("What happened")


def resolve(page, act, sign, **fields):
    page.set("#resolve [name=act]", act)
    for name, value in fields.items():
        page.set(f"#resolve [name={name}]", value)
    page.set("#resolve [name=sign]", sign)
    page.click("#resolve button")


def hold(page):
    """Answers wait for release() from now on."""
    page.js("window.whole = window.whole || api; window.held = []; api = async (...words) => {"
            "const got = await whole(...words); await new Promise(go => held.push(go)); return got }")


def release(page):
    """What was held is there, and the page has done what it does with it."""
    page.js("api = whole; held.forEach(go => go()); new Promise(done => setTimeout(done))")


# ---- views --------------------------------------------------------------------------------


def test_each_view_shows_what_the_store_has(hapax, kept, visit, folder):
    """By mouse and by keys, read only: now, a filter, a key, an operation with its body, and what there is not."""
    door, metrics = watched(hapax, kept, folder)
    web = Web(hapax, kept, "--watch", metrics, "--watch", "http://127.0.0.1:1/")
    page = visit(web)
    page.shows("Waiting longest")
    assert page.js("[...document.querySelectorAll('.tile b')].map(b => b.textContent)") == ["1", "1", "1", "1"]
    page.wait("document.body.innerText.includes('down') && document.body.innerText.includes('fresh')")
    page.press("2")
    page.shows("Page 1")
    assert page.js("document.querySelectorAll('tr.open').length") == 4
    page.set("[aria-label=Filter] [name=state]", "completed")
    page.click("[aria-label=Filter] button")
    page.wait("document.querySelectorAll('tr.open').length === 1")
    page.press("/")
    page.wait("document.activeElement.id === 'find'")
    page.set("#find", "paid")
    page.set("[aria-label='Find by key'] [name=scope]", "payments")
    page.press("Enter")
    page.shows("gets the same answer, with status 201")
    assert "ch_1" not in page.text() and "This page only reads" in page.text()
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'Show the body').click()")
    page.shows('{"charge":"ch_1"}')
    assert page.js("location.href").endswith(f"#op/{id_of(hapax, kept, 'paid', 'payments')}")  # and no key
    page.press("1")
    page.shows("Waiting longest")
    page.press("j")
    page.press("Enter")
    page.shows("What happened")
    for key, words in ("4", "An outbox is in a PostgreSQL"), ("5", "hapax redrive"), ("3", "This page only reads"):
        page.press(key)
        page.shows(words)
    assert web.post("resolve", {"id": "0" * 64, "fail": True, "if-attempt": 1, "if-updated": 1})[0] == 403
    assert end(web.process) == 0 and end(door) == 0


def test_what_a_relay_put_aside_is_shown_and_put_back(hapax, db, visit, folder):
    uri = f"postgres://postgres@127.0.0.1:{db.server.port}/{db.name}"
    conn = db.connect()
    ask(conn, "SELECT hapax.publish('nowhere', %s, 'secret-key', NULL, 'm', '{}')", FOREIGN)
    ask(conn, "SELECT hapax.outbox_lease(gen_random_uuid(), 30000)")
    ask(conn, "SELECT * FROM hapax.outbox_turn(ARRAY[1]::bigint[], ARRAY['no such queue'], 1, 1, %s::smallint[], 0, 1)",
        list(range(64)))
    web = Web(hapax, uri, "--allow", "resolve", "--user-header", "X-User", HAPAX_AUDIT_FILE=str(folder / "audit"))
    page = visit(web, headers={"X-User": "zoe"})
    page.press("4")
    page.shows("no such queue")
    assert FOREIGN in page.text() and "secret-key" not in page.text() and "first 200" not in page.text()
    ask(conn, "SELECT hapax.publish('nowhere', 'a', 'k') FROM generate_series(1, 200)")
    ask(conn, "UPDATE hapax.outbox SET state = 2")
    page.press("r")
    page.shows("The first 200. There may be more, and all of them are put back.")
    page.set("[name=sign]", "put back")
    page.click("form button")
    page.shows("None was put aside")
    assert "201 are published after all." in page.text()
    assert hapax("list", "--outbox", "--store", uri).out == "" and not page.js("window.hacked")
    acts = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    assert [(a["by"], a["act"], a["end"]) for a in acts] == [("zoe", "put back", "asked"), ("zoe", "put back", "ok")]
    assert end(web.process) == 0


def letters(broker, count):
    """A queue of dead letters that failed, and one that did not; and the queue where they came from."""
    back = rabbit.Queue(broker)
    dead = rabbit.Queue(broker, back.dead.name)
    with dead.channel() as channel:
        for n in range(count):
            headers = {"hapax-reason": "failed" if n else "mismatch", "hapax-scope": FOREIGN, "hapax-id": "ab" * 32,
                       "hapax-attempts": "3", "hapax-error": f"number {n}", "hapax-time": str(time.time_ns() // 1000)}
            channel.basic_publish("", dead.name, b"secret-body",
                                  pika.BasicProperties(message_id=f"secret-key-{n}", headers=headers, delivery_mode=2))
    dead.wait_ready(count)
    return back


@pytest.mark.ci
def test_dead_letters_are_shown_and_put_back(hapax, kept, visit, folder):
    """Looked at without a key or a body, and left; then put back by whoever types the queue's name, with a trail."""
    back = letters(rabbit.server(), 4)
    pair = f"{back.dead.uri()} {back.uri()}"
    reads = Web(hapax, kept, "--dead", pair)
    assert reads.post("letters", {"queue": 0})[0] == reads.post("put-back", {"queue": 0, "limit": 9})[0] == 403
    assert end(reads.process) == 0
    web = Web(hapax, kept, "--dead", pair, "--allow", "resolve", "--user-header", "X-User",
              HAPAX_AUDIT_FILE=str(folder / "audit"))
    page = visit(web, headers={"X-User": "zoe"})
    page.press("5")
    page.shows("To look takes")
    page.click("main section form button")
    page.wait("document.querySelectorAll('.letters tbody tr').length === 4")
    text = page.text()
    assert FOREIGN in text and "number 3" in text and "mismatch" in text and "secret" not in text
    assert "undefined" not in text, text
    assert "guest:guest" not in page.js("document.documentElement.outerHTML") and not page.js("window.hacked")
    back.dead.wait_ready(4)
    hold(page)
    page.click("main section form button")
    page.wait("held.length")
    page.set("[name=key]", "another")
    release(page)  # of letters that the form does not ask for any more
    assert page.js("!document.querySelector('.letters') && !document.querySelector('[name=sign]')")
    page.set("[name=key]", "")
    page.click("main section form button")
    page.wait("document.querySelectorAll('.letters tbody tr').length === 4")
    back.dead.wait_ready(4)
    page.set("[name=sign]", "put back")
    page.click("[aria-label='Put back'] button")
    page.shows(f"Type {back.dead.name}")
    page.set("[name=sign]", back.dead.name)
    page.click("[aria-label='Put back'] button")
    page.shows("3 put back, 1 left")
    assert sorted(headers["hapax-error"] for _, headers in back.take()) == [f"number {n}" for n in (1, 2, 3)]
    back.dead.wait_ready(1)
    acts = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    assert [(a["by"], a["act"], a["end"]) for a in acts] == [("zoe", "put back", "asked"), ("zoe", "put back", "ok")]
    assert all(act["from"].endswith(f"queue={back.dead.name}") and "guest:guest" not in act["from"] for act in acts)
    web.headers = {"X-User": "zoe"}
    for path, asked, said in (("letters", {"queue": 1}, "queue is none of --dead"),
                              ("letters", {"queue": 0, "from": "amqp://x"}, "a member is not known here"),
                              ("put-back", {"queue": 0}, "limit is missing"),
                              ("put-back", {"queue": 1, "limit": 1}, "queue is none of --dead"),
                              ("put-back", {"queue": 0, "limit": 1001}, "limit is not within 1 to 1000"),
                              ("redrive", {"queue": 0}, "a member is not known here")):
        status, _, body = web.post(path, asked)
        assert status == 400 and said in body, body
    assert all("from" in json.loads(line) for line in (folder / "audit").read_text().splitlines())
    status, headers, body = web.post("put-back", {"queue": 0, "limit": 1}, Sec_Fetch_Site="cross-site")
    assert status == 403 and "another site" in body
    assert end(web.process) == 0


def test_dead_letters_are_confirmed_by_their_queue_or_topic(hapax, kept, visit, folder):
    pairs = ("kafka://127.0.0.1:1/orders.dead?group=billing kafka://127.0.0.1:1/orders",
             "amqp://127.0.0.1:1/?queue=a.dead amqp://127.0.0.1:1/?queue=a",
             "sqs://eu-central-1/b.dead sqs://eu-central-1/b")
    web = Web(hapax, kept, *(word for pair in pairs for word in ("--dead", pair)), "--allow", "resolve",
              "--user-header", "X-User", HAPAX_AUDIT_FILE=str(folder / "audit"))
    page = visit(web, headers={"X-User": "zoe"})
    page.press("5")
    page.shows("To look takes")
    assert page.js("[...document.querySelectorAll('main section form')].map(f => f.getAttribute('aria-label'))") == [
        "Look at orders.dead", "Look at a.dead", "Look at b.dead"]
    assert end(web.process) == 0


@pytest.mark.ci
def test_a_look_at_a_broker_that_is_silent_holds_up_nobody(hapax, kept, folder):
    """The store's views go on meanwhile, a second look is told to come again, and SIGTERM ends the first."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        web = Web(hapax, kept, "--allow", "resolve", "--user-header", "X-User", "--dead",
                  f"amqp://127.0.0.1:{port}/?queue=a.dead amqp://127.0.0.1:{port}/?queue=a",
                  HAPAX_AUDIT_FILE=str(folder / "audit"))
        web.headers = {"X-User": "zoe"}
        idle = [http.client.HTTPConnection("127.0.0.1", web.port, timeout=5) for _ in range(12)]

        def all_are_answered():
            for connection in idle:
                connection.request("GET", "/api/session", headers=web.headers)
                assert connection.getresponse().read()

        def look():
            with contextlib.suppress(http.client.RemoteDisconnected):  # it ends in the midst of this
                web.post("letters", {"queue": 0})

        all_are_answered()
        asking = threading.Thread(target=look)
        asking.start()
        silent.accept()
        all_are_answered()
        assert web.post("list", {})[0] == 200
        status, _, body = web.post("letters", {"queue": 0})
        assert status == 409 and "try again" in body
        assert end(web.process) == 0
        asking.join(PATIENCE)


# ---- resolving -----------------------------------------------------------------------------


def test_a_stuck_operation_is_resolved_and_the_second_operator_is_told(hapax, kept, web, visit, folder):
    """Two look at one operation. The first says that it happened; the second is too late, and sees by whom."""
    operation = id_of(hapax, kept, "stuck")
    zoe, ann = visit(web, "zoe:pw"), visit(web, "ann:pw2")
    for page in (zoe, ann):
        open_operation(page, operation)
    resolve(zoe, "complete", "....", status="201")
    zoe.shows(f"Type the first four digits of the id: {operation[:4]}")
    assert hapax("show", "stuck", "--store", kept, "--json").json["state"] == "unknown"
    resolve(zoe, "complete", operation[:4], status="201", type="text/plain", text="paid by hand")
    zoe.shows("Resolved by zoe")
    resolve(ann, "fail", operation[:4])
    ann.shows("Not resolved: it was changed meanwhile, by zoe. It is completed.")
    record = hapax("show", "stuck", "--store", kept, "--json").json
    assert (record["state"], record["status"], record["body"]) == ("completed", 201, "paid by hand")
    assert record["resolved_by"] == "zoe" and record["headers"] == ["Content-Type: text/plain"]
    assert record["replaced_state"] == "unknown"
    acts = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    assert [(a["by"], a["act"], a["end"]) for a in acts] == [("zoe", "complete", "asked"), ("zoe", "complete", "ok")]
    # who fails what is failed already changed it, too: the attempt alone would not tell
    tried = hapax("show", "tried", "--store", kept, "--json").json
    asked = {"id": tried["id"], "if-attempt": 1, "if-updated": tried["updated_us"], "fail": True}
    assert [web.post("resolve", asked)[0] for _ in range(2)] == [200, 409]


@pytest.mark.ci
def test_many_are_listed_before_they_are_resolved(hapax, kept, web, visit):
    hapax.many_unknown(kept, [f"m{i}" for i in range(120)])
    page = visit(web, "ann:pw2")
    page.press("3")
    page.shows("First they are listed")
    page.set("#many [name=act]", "fail")
    page.click("#many button")
    page.shows("121 operations would be resolved")
    assert len(hapax("list", "--state", "unknown", "--store", kept, "--json").lines) == 121
    page.set("#confirm [name=sign]", "12")
    page.click("#confirm button")
    page.shows("Type 121, the number of operations")
    hapax.unknown(kept, "later")  # was not listed
    assert hapax("resolve", "m7", "--forget", "--store", kept).code == 0
    hapax.unknown(kept, "m7")  # of the same key, but not what was listed
    page.set("#confirm [name=sign]", "121")
    page.click("#confirm button")
    page.wait("document.querySelector('#confirm button').disabled && document.querySelector('#many button').disabled ||"
              "document.body.innerText.includes('resolved by')")
    page.shows("120 resolved by ann; 1 passed over")
    left = hapax("list", "--state", "unknown", "--store", kept, "--json").lines
    assert {record["id"] for record in left} == {id_of(hapax, kept, "later"), id_of(hapax, kept, "m7")}


def test_a_form_that_was_changed_while_it_was_listed_confirms_nothing(hapax, kept, web, visit):
    """What would be confirmed is what the form says, and stands in the heading and on the button."""
    page = visit(web, "ann:pw2")
    page.press("3")
    page.shows("First they are listed")
    page.set("#many [name=act]", "fail")
    hold(page)
    page.click("#many button")
    page.wait("held.length")
    page.set("#many [name=act]", "complete")
    release(page)
    assert page.js("!document.getElementById('confirm')"), page.text()
    page.click("#many button")
    page.shows("1 operations would be resolved as completed with status 200")
    assert page.js("document.querySelector('#confirm button').textContent") == "Resolve 1 as completed with status 200"


# ---- what strangers can do ------------------------------------------------------------------


def test_foreign_text_stays_text(hapax, kept, web, visit):
    """A scope, what an operation is, a header, a body and an operator's name, each with an element that would run."""
    assert hapax.op(kept, "owned", "x", "1", "acme", FOREIGN) == "claimed"
    hapax.completed(kept, "y", 200, f"X: {FOREIGN}\\r\\n", FOREIGN, FOREIGN)
    assert hapax("resolve", "y", "--scope", FOREIGN, "--force", "--complete", "200", "--text", FOREIGN,
                 "--header", f"X: {FOREIGN}", "--by", FOREIGN, "--store", kept).code == 0
    page = visit(web, "zoe:pw")
    page.js("list.filter = {state: STATES}; go('operations')")
    page.wait("document.querySelectorAll('tr.open').length === 7")
    assert page.text().count(FOREIGN) == 2
    open_operation(page, id_of(hapax, kept, "y", FOREIGN))
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'Show the body').click()")
    page.wait("!document.getElementById('body').hidden")
    assert page.text().count(FOREIGN) == 5 and f"Resolved by {FOREIGN}" in page.text()  # in, scope, by, header, body
    assert page.js("document.querySelectorAll('img').length") == 0 and not page.js("window.hacked")
    # trusted types: a line that wrote HTML would throw
    assert page.js("(() => { try { document.body.innerHTML = '<b>'; return false } catch { return true } })()")


REFUSED = [
    ("a name that points here", {"Host": "evil.example"}, 421),
    ("no Host", {"Host": None}, 421),
    ("a page of another site", {"Sec_Fetch_Site": "cross-site"}, 403),
    ("a page of another port", {"Sec_Fetch_Site": "same-site"}, 403),
    ("an old browser's page of another site", {"Origin": "https://evil.example"}, 403),
    ("a page of nowhere", {"Origin": "null"}, 403),
    ("what a form can send", {"Content_Type": "text/plain"}, 415),
    ("no token", {"X_Hapax_Token": None}, 403),
    ("a token that is wrong", {"X_Hapax_Token": "0" * 32}, 403),
    ("no login", {"Authorization": None}, 401),
    ("a wrong password", {"Authorization": basic("zoe:pw2")}, 401),
    ("a name that nobody has", {"Authorization": basic("eve:pw")}, 401),
    ("no base64", {"Authorization": "Basic !!"}, 401),
]
WRONG = [
    ("resolve", {"fail": True, "force": True, "if-attempt": 1, "if-updated": 1}, "not known here"),
    ("resolve", {"complete": 200, "body": "/etc/passwd", "if-attempt": 1, "if-updated": 1}, "not known here"),
    ("resolve", {"fail": True, "by": "somebody", "if-attempt": 1, "if-updated": 1}, "not known here"),
    ("resolve", {"fail": True, "audit": "/tmp/x", "if-attempt": 1, "if-updated": 1}, "not known here"),
    ("resolve", {"fail": True, "if-attempt": 1}, "if-updated are missing"),
    ("resolve", {"state": ["unknown"], "fail": True, "limit": 1}, "dry-run is missing"),
    ("resolve", {"state": ["unknown"], "fail": True, "dry-run": True}, "limit is missing"),
    ("resolve", {"state": ["unknown"], "fail": True, "dry-run": True, "limit": 1001}, "not within 1 to 1000"),
    ("resolve", {"id": "0" * 64, "state": [], "dry-run": True, "limit": 1, "fail": True}, "go with --state"),
    ("resolve", {"complete": 200, "header": [True], "if-attempt": 1, "if-updated": 1}, "of another kind"),
    ("list", {"state": [True]}, "of another kind"),
    ("list", {"limit": 501}, "not within 1 to 500"),
    ("list", '{"l\\u0069mit": 501}', "not within 1 to 500"),
    ("list", {"limit": [501]}, "given more than once"),
    ("list", {"outbox": True}, "not known here"),
    ("list", {"scope": True}, "of another kind"),
    ("list", {"scope": {"a": 1}}, "neither text nor a number"),
    ("list", {"scope": "a\0b"}, "neither text nor a number"),
    ("show", {"key": "k", "id": "0"}, "not by both"),
    ("show", {"body-max": "16m"}, "not known here"),
    ("show", "[]", "no JSON object"),
    ("show", "{", "no JSON object"),
]


def test_who_is_not_admitted_and_what_is_no_request(hapax, kept, web):
    stuck = hapax("show", "stuck", "--store", kept, "--json").json
    asked = {"id": stuck["id"], "if-attempt": 1, "if-updated": stuck["updated_us"], "fail": True}
    for why, headers, status in REFUSED:
        assert web.post("resolve", asked, **headers)[0] == status, why
    for path, request, text in WRONG:
        status, _, body = web.post(path, request)
        assert (status, text in body) == (400, True), (path, request, body)
    assert web.post("show", "x" * 70000)[0] == 413
    with socket.create_connection(("127.0.0.1", web.port), timeout=30) as endless, pytest.raises(OSError):
        endless.sendall(b"POST /api/show HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        for _ in range(1000):  # the connection ends before
            endless.sendall(b"x" * 65536)
    assert web.ask("GET", "/api/list")[0] == 405 and web.ask("GET", "/nothing")[0] == 404
    assert hapax("show", "stuck", "--store", kept, "--json").json["state"] == "unknown"
    status, headers, _ = web.ask("GET", "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and "script-src 'self'" in policy and "unsafe" not in policy
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert headers["Access-Control-Allow-Origin"] is None


def test_a_page_of_another_site_gets_nothing_done(hapax, kept, web, browser, visit):
    """In a browser that is logged in: what a form can send, a request with our headers, and a look at the token."""
    token, stuck = web.token(), hapax("show", "stuck", "--store", kept, "--json").json
    body = json.dumps({"id": stuck["id"], "fail": True, "if-attempt": 1, "if-updated": stuck["updated_us"]})

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"""<script>(async () => {{
              const url = '{web.url}api/resolve', body = {json.dumps(body)}, got = [];
              const headers = {{'Content-Type': 'application/json', 'X-Hapax-Token': '{token}'}};
              for (const how of [{{mode: 'no-cors'}}, {{headers}}])
                got.push(await fetch(url, {{method: 'POST', body, credentials: 'include', ...how}})
                  .then(a => a.type, e => 'refused'));
              got.push(await fetch('{web.url}api/session').then(a => a.text(), e => 'refused'));
              window.got = got;
            }})()</script>""".encode())

        def log_message(self, *args):
            pass

    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=evil.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    page = browser.page(headers={"Authorization": basic("zoe:pw")})
    page.open(f"http://127.0.0.1:{evil.server_address[1]}/", "window.got")
    assert page.js("window.got") == ["refused"] * 3
    page.close()
    evil.shutdown()
    evil.server_close()
    assert hapax("show", "stuck", "--store", kept, "--json").json["state"] == "unknown"
    assert web.post("resolve", body)[0] == 200  # which the page's own script gets done


@pytest.mark.parametrize("words, text", [
    (["--allow", "resolve"], "--allow needs to know who resolves"),
    (["--allow", "everything"], '--allow "everything" is not resolve'),
    (["--listen", "0.0.0.0:0"], "other machines can reach \"0.0.0.0\", and nobody is asked"),
    (["--listen", "7500"], "is not HOST:PORT"),
    (["--password-file", "/no/such"], 'cannot read --password-file "/no/such"'),
    (["--watch", "file:///etc/passwd"], "is not http://HOST:PORT"),
])
def test_what_it_does_not_start_with(hapax, words, text):
    done = hapax("web", "--store", "memory:", *words)
    assert done.code == 2 and text in done.err, done.err


def test_acts_without_a_trail_are_refused_at_the_start(hapax, folder):
    words = ("web", "--store", "memory:", "--allow", "resolve", "--user-header", "X-User")
    done = hapax(*words, HAPAX_AUDIT_FILE=str(folder / "no/such"))
    assert done.code == 2 and "cannot open the audit file" in done.err, done.err
    if not os.path.exists("/dev/log"):
        done = hapax(*words)
        assert done.code == 2 and "--allow needs a trail" in done.err, done.err


def test_a_proxy_says_who_it_is(hapax, kept, folder):
    """--user-header alone, with another Host by --name; a request without it, or with no name in it, is nobody's."""
    web = Web(hapax, kept, "--user-header", "X-User", HAPAX_NAME="ops.example")  # an option is a setting, too
    assert json.loads(web.ask("GET", "/api/session", Host="ops.example:8443", X_User="zoe")[2])["who"] == "zoe"
    for user in (None, "", "x" * 65, "a\tb"):
        assert web.ask("GET", "/api/session", X_User=user)[0] == 401, user
    assert web.ask("GET", "/", Host="ops.example.evil", X_User="zoe")[0] == 421
    twice = ("GET /api/session HTTP/1.1\r\nHost: localhost\r\nX-User: zoe\r\nx-user: ann\r\n"
             "Connection: close\r\n\r\n")
    with socket.create_connection(("127.0.0.1", web.port), timeout=30) as sock:
        sock.sendall(twice.encode())
        assert sock.recv(12) == b"HTTP/1.1 401"
    assert end(web.process) == 0


def test_wrong_passwords_hold_up_nobody_who_is_logged_in(web):
    """While they are checked, one at a time: who is known is answered, and another stranger is told to try again."""
    over = threading.Event()
    statuses = []

    def guess(n):
        while not over.is_set():
            statuses.append(web.ask("GET", "/", Authorization=basic(f"zoe:{n}" + "x" * 200))[0])

    assert web.ask("GET", "/")[0] == 200
    threads = [threading.Thread(target=guess, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    while not {401, 429} <= set(statuses) and time.monotonic() < began + PATIENCE:
        assert web.ask("GET", "/")[0] == 200
    over.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {401, 429}


@contextlib.contextmanager
def serving(lines):
    """A page whose lines are asked for by its path; its URL."""
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write("\n".join(lines(self.path)).encode())

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_disk_is_marked_by_the_rule_of_hapax_check(hapax, kept, visit):
    """Under 1 GiB free, and under a tenth where the page says of what; three disks, of which the first has room."""
    disks = {"/room": (5e8, 2e9), "/full": (1e8, 2e9), "/alone": (5e8, None)}

    def lines(path):
        free, size = disks[path]
        return [f"hapax_store_disk_free_bytes {free}", *([f"hapax_store_disk_size_bytes {size}"] if size else [])]

    with serving(lines) as url:
        web = Web(hapax, kept, *(word for path in disks for word in ("--watch", url + path)))
        page = visit(web)
        page.wait("document.querySelectorAll('main section svg').length === 3")
        assert page.js("[...document.querySelectorAll('main section')].map(s => s.textContent.includes('disk free'))"
                       ) == [False, True, True]
        assert "disk size" not in page.text()
        assert end(web.process) == 0


def test_numbers_of_a_page_are_foreign_text(hapax, kept):
    """Whatever a watched page counts, each answer is JSON, and a sum stays within its bound."""
    reads = itertools.count(1)

    def lines(_):
        read = next(reads)
        return [*(f'hapax_handler_seconds_bucket{{le="{le}"}} {read}e16' for le in ("1e308", "+Inf")),
                *['hapax_answers_total{answer="fresh"} 1e18', "hapax_in_flight 1e18", "hapax_lost_total -1e18",
                  f'hapax_store_seconds_bucket{{le="1"}} {read}e17'] * 20]

    with serving(lines) as url:
        web = Web(hapax, kept, "--watch", url + "/")
        wait_until(lambda: "p99_ms" in web.post("now", {})[2], "two readings")
        watch, = json.loads(web.post("now", {})[2])["watch"]
        assert [answer["total"] for answer in watch["answers"]] == [10**18]
        assert {f["name"]: f["value"] for f in watch["figures"]} == {"in_flight": 1e18, "lost_total": -1e18}
        assert [time["name"] for time in watch["times"]] == ["handler_seconds", "store_seconds"] and watch["points"]
        assert end(web.process) == 0


def test_now_says_all_is_well_only_where_all_was_counted(hapax, store, visit):
    """No operation waits: that is said, but not where a limit or damage ended the count."""
    hapax("init", "--store", store)
    web = Web(hapax, store)
    page = visit(web)
    page.shows("Nothing waits")
    page.js("window.whole = api; api = async (...words) => { const got = await whole(...words);"
            "got.lines[0].more = true; return got }; drawNow()")
    page.shows("more than were counted")
    assert "Nothing waits" not in page.text()
    # an answer that is none is said, and the next one is drawn
    page.js("window.was = fetch; window.fetch = async () => new Response('{', {headers: {'Content-Type':"
            "'application/x-ndjson'}}); api = whole; drawNow()")
    page.shows("hapax web does not answer")
    page.js("window.fetch = was; drawNow()")
    page.shows("Nothing waits")
    assert page.js("fill(h('p'), ['a\\u202eb\\n']).textContent") == "a\\u202eb\n"
    assert end(web.process) == 0


# ---- size -----------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_hundred_thousand_operations(hapax, kept, visit):
    """The first paint does not wait for the store, a page is found at once, and memory stays small."""
    cycles = 0
    while cycles < 100000:
        cycles += hapax("bench", "--store", kept, "--seconds", "2", "--duplicates", "0", "--clients", "256",
                        "--size", "16", "--retention", "1h", "--json").json["cycles"]
    web = Web(hapax, kept)
    page = visit(web)
    page.shows("Waiting longest")
    paint = page.wait("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.js("list.filter = {state: STATES}; go('operations')")
    page.wait("document.querySelectorAll('tr.open').length === 50")
    for number in (2, 3, 4):
        page.press("]")
        page.shows(f"Page {number}.")
    took = min(page.js("(async () => { const t = performance.now(); await api('list', {state: STATES, limit: 50});"
                       "return performance.now() - t })()") for _ in range(3))
    peak = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{web.process.pid}/status").read())[1])
    print(f"first paint {paint:.0f} ms, a page of {cycles} operations {took:.0f} ms, {peak} kB")
    assert paint < 6000 and took < 2000  # 200 is meant; other tests run beside, and a process may stand still for 3 s
    assert peak < 30000 or "ASAN_OPTIONS" in os.environ
    assert end(web.process) == 0


def test_a_store_that_is_away_comes_back(hapax, store, visit):
    """The page stands while the keeper is away, says so, and goes on with the next keeper."""
    first = hapax.keep(store)
    hapax.unknown(store, "stuck")
    web = Web(hapax, f"unix:{store.partition(':')[2]}/keeper.sock?timeout=300ms")
    page = visit(web)
    page.shows("Waiting longest")
    assert end(first) == 0
    page.press("2")
    page.shows("unavailable: ")
    assert web.post("now", {})[0] == 200  # with the doors, whatever the store does
    hapax.keep(store)
    page.press("r")
    page.shows("Page 1")
    page.press("1")
    page.shows("Waiting longest")
    assert end(web.process) == 0


# ---- the command line -------------------------------------------------------------------------


def test_top_prints_once_what_the_page_shows(hapax, kept, folder):
    door, metrics = watched(hapax, kept, folder)
    words = ("top", "--store", kept, "--once", "--watch", metrics, "--watch", "http://127.0.0.1:1/")
    done = hapax(*words)
    assert done.code == 0 and re.search(r"^unknown +1 ", done.out, re.M), done
    assert re.search(r"^lease over +1 ", done.out, re.M), done.out
    assert re.search(r" 0\.0 .*metrics$", done.out, re.M) and "127.0.0.1:1/: Couldn't connect" in done.out
    shown = hapax(*words, "--json").json
    assert [t["count"] for t in shown["totals"]] == [1, 1, 1, 1]
    assert len(shown["oldest"]) == 2 and shown["more"] is False
    assert [w["up"] for w in shown["watch"]] == [True, False] and shown["watch"][0]["rate"] == 0
    totals = hapax("list", "--totals", "--store", kept, "--json").json["totals"]
    assert [{**t, "oldest_us": 0} for t in totals] == [{**t, "oldest_us": 0} for t in shown["totals"]]
    assert end(door) == 0
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert hapax("top", "--once", "--store", f"redis://127.0.0.1:{nobody.getsockname()[1]}?timeout=200ms").code == 3


def test_a_watched_url_is_shown_without_its_secrets(hapax, kept):
    for url in "http://hush@127.0.0.1:1/m?token=hush", "http://u:hush@127.0.0.1:1/m", "http://u:hu?sh@127.0.0.1:1/m":
        web = Web(hapax, kept, "--watch", url)
        body = web.post("now", {})[2]
        top = hapax("top", "--store", kept, "--once", "--watch", url).out
        for text in body, top:
            assert "***" in text and not any(part in text for part in ("hush", "hu?", "sh@")), text
        assert end(web.process) == 0
    refused = hapax("web", "--store", "memory:", "--watch", "ftp://u:hush@h?token=hush")
    assert refused.code == 2 and '"ftp://u:***@h" is not http://' in refused.err


def test_a_list_in_pages_has_all_of_them_once(hapax, kept):
    after, ids = "start", []
    while after:
        *records, last = hapax("list", "--store", kept, "--after", after, "--limit", "2", "--json").lines
        assert last["count"] == len(records) and last["more"] is (last["after"] is not None)
        ids += [record["id"] for record in records]
        after = last["after"]
    assert ids == [record["id"] for record in hapax("list", "--store", kept, "--json").lines] and len(ids) == 5


@pytest.mark.parametrize("words, text", [
    (["list", "--after", "x"], '--after is neither "start" nor 64 hex digits'),
    (["list", "--totals", "--scope", "s"], "--totals goes alone"),
    (["resolve", "k", "--complete", "200", "--body", "f", "--text", "t"], "give --body or --text, not both"),
    (["resolve", "k", "--fail", "--text", "t"], "--text go with --complete"),
    (["resolve", "--state", "unknown", "--fail", "--if-updated", "1"], "are for one operation"),
])
def test_words_that_do_not_go_together(hapax, words, text):
    done = hapax(*words, "--store", "memory:")
    assert done.code == 2 and text in done.err, done.err


def test_a_body_is_cut_between_characters(hapax, store):
    hapax("init", "--store", store)
    hapax.completed(store, "k", body="aäää")
    shown = [hapax("show", "k", "--store", store, "--json", "--body-max", n).json for n in (0, 2, 4, 9)]
    assert [record["body"] for record in shown] == ["", "a", "aä", "aäää"]
    assert [record["body_size"] for record in shown] == [7] * 4
