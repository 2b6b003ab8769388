"""Problems: what they hold, in which shape, and where they take the place of nginx's own errors."""
import json

import pytest

import gate as g
from conftest import ROOT, wait_until

PAGES = sorted((ROOT / "docs/problems").glob("*.md"))


def of_problem(answer):
    """The body of a problem, whose slug is everywhere the same."""
    problem = json.loads(answer.body)
    assert problem["type"].endswith(answer.problem) and problem["error"]["code"] == answer.problem
    assert (problem["status"], answer.get("Cache-Control")) == (answer.status, "no-store")
    assert problem["error"]["message"] == f"{problem['title']}. {problem['detail']}"
    return problem


def test_a_problem_has_an_error_and_the_operations_id(gate, hapax, store):
    """SDKs look for `error`; support asks for `instance`, and the command line takes it."""
    gate.post("/ok", "k", b"1")
    mismatch = of_problem(gate.post("/ok", "k", b"2"))
    assert mismatch["error"]["type"] == "idempotency_error"
    assert mismatch["instance"].startswith("urn:hapax:operation:")
    shown = hapax("show", "--store", store, "--id", mismatch["instance"], "--json")
    assert (shown.code, shown.json["state"]) == (0, "completed")
    assert shown.json["id"] == mismatch["instance"].rpartition(":")[2]
    refused = of_problem(gate.post("/ok", "a b"))
    assert refused["error"]["type"] == "invalid_request_error" and "instance" not in refused


def test_a_template_gives_an_api_its_shape(make_gate, api, folder):
    """A file, by location; values are escaped; other locations have the built-in shapes."""
    (folder / "shape.json").write_text('{"errors": [{"http": $status, "was": $original_status, "where": "<$type>",\n'
                                       '"text": "$title ($detail)", "id": "$instance", "cost": "$$5", "c": "$code"}]}')
    gate = make_gate(f"""
        server {{ LISTEN hapax required; hapax_problem_template {folder}/shape.json; hapax_max_response 10;
                  hapax_problem_base 'https://api.test/"p"/';
                  location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
                  location /stripe/ {{ hapax_problem_template stripe; proxy_pass http://127.0.0.1:{api.port}/; }}
                  location /rfc/ {{ hapax_problem_template rfc9457; proxy_pass http://127.0.0.1:{api.port}/; }} }}
        """).start()
    missing = gate.post("/ok")
    assert (missing.status, missing.get("Content-Type")) == (400, "application/json")
    assert json.loads(missing.body) == {"errors": [{
        "http": 400, "was": None, "where": '<https://api.test/"p"/missing-key>', "id": "", "cost": "$5",
        "text": "Idempotency key is missing (This operation needs an idempotency key.)", "c": "missing-key"}]}
    gate.post("/ok?len=100", "k")
    gone, = json.loads(gate.post("/ok?len=100", "k").body)["errors"]
    assert (gone["http"], gone["was"], gone["c"]) == (410, 200, "response-not-kept") and gone["id"]
    error = json.loads(gate.post("/stripe/ok").body)
    assert list(error) == ["error"] and error["error"]["doc_url"] == 'https://api.test/"p"/missing-key'
    assert of_problem(gate.post("/rfc/ok"))["status"] == 400


@pytest.mark.some(3)
@pytest.mark.parametrize("text, said", [
    ("", "it is empty, or over 4096 bytes"),
    ('"' + "x" * 4096 + '"', "it is empty, or over 4096 bytes"),
    ('{"a": "$message"', "it gives no JSON"),
    ('{"a": $message}', "it gives no JSON; only $status and $original_status stand outside of strings"),
    ('{"a": 1$original_status}', "it gives no JSON"),
    ('{"a": "$nothing"}', 'there is no variable "$nothing"; $$ is a dollar'),
    ('{"a": "5 $"}', 'there is no variable "$"; $$ is a dollar'),
    (None, "takes rfc9457, stripe or a file: cannot read"),
])
def test_a_malformed_template_fails(folder, hapax, text, said):
    """nginx -t says what is wrong, and so does hapax serve, by its own name for it."""
    if text is not None:
        (folder / "shape").write_text(text)
    gate = g.Gate(folder, f"server {{ LISTEN location / {{ hapax_problem_template {folder}/shape; }} }}")
    done = gate.nginx("-t")
    assert done.returncode == 1 and said in done.stderr, done.stderr
    served = hapax("serve", "--upstream", "http://127.0.0.1:9", "--problem-template", folder / "shape",
                   "--module", g.MODULE)
    assert served.code == 2 and "--problem-template" in served.err, served.err
    assert (said if text is not None else "No such file") in served.err


@pytest.mark.parametrize("path, status, problem, runs", [
    ("/drop", 502, "upstream-failed", 1),
    ("/slowdead/hold/d", 504, "upstream-timeout", 1),
    ("/dead", 502, "upstream-unreachable", 0),
])
def test_nginx_errors_of_operations_are_problems(gate, api, path, status, problem, runs):
    """A service that gives no response: a problem that says whether anything may have run. Without a key it is nginx's
    page, as without the gate."""
    answer = gate.post(path, "k")
    assert (answer.status, answer.problem, answer.replayed) == (status, problem, "false")
    assert ("Nothing was run." in of_problem(answer)["detail"]) == (runs == 0)
    assert of_problem(answer)["instance"]
    if runs:
        wait_until(lambda: api.count("k") == 1, "the attempt")
    bare = gate.post(path)
    assert (bare.status, bare.get("Content-Type")) == (status, "text/html")
    api.door("d").set()


def test_what_is_kept_of_a_failed_attempt_is_the_problem(gate, hapax, store, api):
    """Under hold, `hapax show` has what the client was told; where 502 is made final, it is replayed."""
    first = gate.post("/operated/drop", "k")
    shown = hapax("show", "--store", store, "k", "--json").json
    assert (shown["state"], shown["status"], first.problem) == ("unknown", 502, "upstream-failed")
    assert "Content-Type: application/problem+json" in shown["headers"] and shown["body"].encode() == first.body
    final, again = gate.post("/class/drop", "f"), gate.post("/class/drop", "f")
    g.same(final, again)
    assert (again.problem, again.replayed, api.count("f")) == ("upstream-failed", "true", 1)


def test_an_error_page_of_ones_own_stays(make_gate, api, folder):
    """Who has a page for 502 keeps it: from a file, and from a location that returns it. HEAD has a header alone."""
    gate = make_gate(f"""
        server {{ LISTEN hapax on; hapax_methods POST HEAD;
                  location / {{ error_page 502 /own.html; proxy_pass http://127.0.0.1:1; }}
                  location = /own.html {{ root {folder}; }}
                  location /named {{ error_page 502 @named; proxy_pass http://127.0.0.1:1; }}
                  location @named {{ return 502 "named"; }}
                  location /tried/ {{ try_files /nothing @tried; }}
                  location @tried {{ proxy_pass http://127.0.0.1:1; }}
                  location /head {{ proxy_pass http://127.0.0.1:1; }} }}
        """).start()
    (folder / "own.html").write_text("own")
    assert [(a.status, a.body) for a in (gate.post("/x", "a"), gate.post("/named", "b"))] == [(502, b"own"),
                                                                                            (502, b"named")]
    assert gate.post("/tried/x", "c").problem == "upstream-unreachable"
    head = gate.send("HEAD", "/head", "d")
    assert (head.status, head.problem, head.replayed) == (502, "upstream-unreachable", "false")


def test_the_pages_about_problems(make_gate):
    """hapax_problems serves docs/problems, each page whole, below any location."""
    gate = make_gate("server { LISTEN location /help/ { hapax_problems; } }").start()
    for page in PAGES:
        answer = gate.send("GET", f"/help/{page.stem}")
        assert (answer.status, answer.get("Content-Type")) == (200, "text/plain; charset=utf-8")
        assert answer.body == page.read_bytes()
    for path, status in (("/help/", 404), ("/help/other", 404), ("/help/in-flight%20(409", 404)):
        assert gate.send("GET", path).status == status
    assert gate.send("HEAD", "/help/in-flight").status == 200
    assert gate.post("/help/in-flight").status == 405


def test_the_type_of_a_problem_opens(make_gate, api):
    """Without a word of configuration; not where the types are elsewhere, nor in a server that names none."""
    api_is = f"proxy_pass http://127.0.0.1:{api.port};"
    other, urn = g.free_port(), g.free_port()
    gate = make_gate(f"""
        server {{ LISTEN location / {{ hapax required; {api_is} }} location /private/ {{ deny all; }} }}
        server {{ listen 127.0.0.1:{other}; location / {{ {api_is} }} }}
        server {{ listen 127.0.0.1:{urn}; hapax_problem_base urn:hapax:problem:;
                  location / {{ hapax required; {api_is} }} }}
        """).start()
    problem = of_problem(gate.post("/ok"))
    assert problem["type"] == "/hapax-problems/missing-key"
    page = gate.send("GET", problem["type"])
    assert (page.status, page.body) == (200, (ROOT / "docs/problems/missing-key.md").read_bytes())
    assert gate.send("GET", "/hapax-problems/none").status == 404
    assert gate.post(problem["type"], "k").status == 405 and api.count("k") == 0

    def ask(port, method, path):
        connection = g.Connection(port)
        connection.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
        answer = connection.response()
        connection.close()
        return answer

    assert all(ask(port, "GET", problem["type"]).body != page.body for port in (other, urn))
    assert of_problem(ask(urn, "POST", "/ok"))["type"] == "urn:hapax:problem:missing-key"


def test_served_problems_can_be_followed(serve, api, folder):
    """The type of a problem of hapax serve is a path of its own; --problem-base and --problem-template change it."""
    served = serve("--key", "required", "--run-max", "1s", "--lease", "1s")
    problem = of_problem(served.post("/ok"))
    assert problem["type"] == "/hapax-problems/missing-key"
    assert served.send("GET", problem["type"]).body == (ROOT / "docs/problems/missing-key.md").read_bytes()
    assert served.post("/hold/d", "k").problem == "upstream-timeout"
    api.door("d").set()
    (folder / "shape").write_text('{"type": "$type"}')
    other = serve("--key", "required", "--problem-base", "https://api.test/", "--problem-template", "shape")
    assert json.loads(other.post("/ok").body) == {"type": "https://api.test/missing-key"}
