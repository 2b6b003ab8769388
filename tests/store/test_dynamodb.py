"""A DynamoDB store that is slow, cut off, throttled, forbidden, without its table, damaged: what an op is told, that
the same op repeated finds out its result, and that the record knows of one attempt only. Then the command line, two
processes that race, and hapax serve on DynamoDB Local, which is killed and comes back.
"""
import base64
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

import gate as g
from conftest import HAPAX, OP, PATIENCE, ROOT, read_line, wait_until
from handle import Handle, patient

sys.path.insert(0, str(ROOT / "tests/servers"))
import dynamodb_server  # noqa: E402
from dynamodb_server import KEYS, REGION, have_dynamodb  # noqa: E402
from process import faketime  # noqa: E402
from proxy import Proxy  # noqa: E402
from load import Load  # noqa: E402
from served import Served  # noqa: E402

DynamoDB, Dynalite = patient(dynamodb_server.DynamoDB), patient(dynamodb_server.Dynalite)
TIMEOUT_MS = 800  # of the store, where something is not to answer
LATE_S = 30
KILLS = int(os.environ.get("HAPAX_DYNAMODB_KILLS", "1"))
UNHURRIED = ("--timeout", "30s", "--save-wait", "30s")  # of hapax serve


@pytest.fixture(scope="module", autouse=True)
def keys():
    """Credentials for all that is started here, and none of the user's."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(KEYS)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def server(keys):
    assert have_dynamodb(), "there is no DynamoDB Local (tools/npm/fetch)"
    with DynamoDB(kept=True).start() as server:
        subprocess.run([HAPAX, "init", "--store", server.uri()], check=True, capture_output=True)
        yield server


@pytest.fixture
def table(server, request):
    """A table of the test's own."""
    name = "t" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    subprocess.run([HAPAX, "init", "--store", server.uri(name)], check=True, capture_output=True)
    yield name
    server.ask("DeleteTable", TableName=name)


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


def through(server, proxy, table, **more):
    more = {"timeout": f"{TIMEOUT_MS}ms", **more}
    return server.uri(table, **more).replace(f":{server.port}", f":{proxy.port}")


def shown(hapax, uri, key):
    result = hapax("show", "--store", uri, "--json", key)
    assert result.code == 0, result.err
    return result.json


def items(server, table, *names):
    """The keys of all that is in a table, which a page of a scan may not hold; and these attributes."""
    found, more = [], {}
    while True:
        page = server.ask("Scan", TableName=table, ProjectionExpression=",".join(["id", "part", *names]), **more)[1]
        found += page["Items"]
        if "LastEvaluatedKey" not in page:
            return found
        more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


# ---- the network ------------------------------------------------------------------------

# What happens to each put, and whether the server has carried it out.
NETWORK = {
    "request cut": (lambda p: p.cut("request", 40, containing=b"PutItem"), False),
    "reset before the reply": (lambda p: p.cut("reply", 0, containing=b"PutItem"), True),
    "closed before the reply": (lambda p: p.cut("reply", 0, "fin", containing=b"PutItem"), True),
    "reset mid-reply": (lambda p: p.cut("reply", 30, containing=b"PutItem"), True),
    "reply vanishes": (lambda p: p.blackhole("reply", containing=b"PutItem"), True),
    "reply late": (lambda p: p.delay("reply", PATIENCE, containing=b"PutItem"), True),  # until heal()
}


# A put of which a byte was sent may have been applied; only its repeat can tell.
@pytest.mark.some(3)
@pytest.mark.parametrize("fault", NETWORK)
# promise 10
def test_a_claim_whose_answers_are_lost_is_indeterminate_and_its_repeat_gets_it(hapax, server, proxy, table, fault):
    breaks, carried_out = NETWORK[fault]
    with Handle(through(server, proxy, table)) as store:
        store.until("claimed", "claim", "before", "a")
        rule = breaks(proxy)
        rule.times = 0
        began = time.monotonic()
        assert store.sent(lambda: rule.used, "claim", "k", "a") == "indeterminate"
        assert time.monotonic() - began < LATE_S
        assert rule.fired.wait(PATIENCE)
        assert hapax.op(server.uri(table), "claim", "k", "b") == ("in_flight" if carried_out else "claimed")
        proxy.heal()
        store.until("claimed" if carried_out else "in_flight", "claim", "k", "a")
        assert shown(hapax, server.uri(table), "k")["attempt"] == 1


# One reply that is lost is made good within the op: the put that landed is known by its version.
@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["rst", "fin"])
def test_one_lost_reply_is_made_good_by_the_version_that_landed(hapax, server, proxy, table, how):
    with Handle(through(server, proxy, table, timeout="20s")) as store:
        rule = proxy.cut("reply", 0, how, containing=b"attribute_not_exists")
        assert store("claim", "k", "a") == "claimed"
        assert rule.fired.wait(PATIENCE)
        rule = proxy.cut("reply", 0, how, containing=b"v = :v")
        assert store("complete", "k", "a", 200, "", "body") == "ok"
        assert rule.fired.wait(PATIENCE)
        assert store("claim", "k", "b") == "completed"
    assert shown(hapax, server.uri(table), "k")["attempt"] == 1


def test_a_completion_whose_answers_are_lost_is_indeterminate_and_its_repeat_is_ok(hapax, server, proxy, table):
    complete = ("complete", "k", "a", 201, "A:1", "body")
    with Handle(through(server, proxy, table)) as store:
        store.until("claimed", "claim", "k", "a")
        rule = proxy.cut("reply", 0, containing=b"PutItem", times=0)
        assert store.sent(lambda: rule.used, *complete) == "indeterminate"
        assert rule.fired.wait(PATIENCE)
        assert shown(hapax, server.uri(table), "k")["state"] == "completed"
        proxy.heal()
        store.until("ok", *complete)
        record = shown(hapax, server.uri(table), "k")
        assert (record["state"], record["status"], record["body"], record["attempt"]) == ("completed", 201, "body", 1)


# What only reads was surely not applied, and what never left neither.
def test_what_was_not_sent_or_only_reads_is_unavailable(hapax, server, proxy, table):
    with Handle(through(server, proxy, table)) as store:
        proxy.blackhole("reply", containing=b"GetItem", times=0)
        assert store("complete", "k", "a", 200, "", "x") == "unavailable"
        proxy.heal()
        store.until("lost", "complete", "k", "a", 200, "", "x")
    nobody = server.uri(table, timeout="300ms").replace(f":{server.port}", f":{g.free_port()}")
    with Handle(nobody) as store:
        assert store("claim", "k", "a") == "unavailable"
        assert "dynamodb: " in store.text()


# ---- a server that refuses --------------------------------------------------------------


def size_of(item):
    """An item's bytes, about: names, and values; two digits of a number are one."""
    def value(typed):
        (kind, text), = typed.items()
        return len(base64.b64decode(text)) if kind == "B" else len(text) // 2 + 1

    return sum(len(name) + value(typed) for name, typed in item.items())


class Refusing(http.server.ThreadingHTTPServer):
    """Answers each request as it is told, or passes it on: (status, error) for the operations named, so many times."""

    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), RefusingHandler)
        self.target, self.rules, self.later, self.seen = target, {}, {}, []
        self.before, self.slow, self.lost, self.plain, self.passed = {}, {}, {}, {}, []
        self.wcu = self.rcu = self.calls = None  # counted once they are 0
        self.absent = True  # whether a GetItem that found nothing counts
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]

    def handle_error(self, request, client_address):
        pass  # clients go away in these tests

    def refuse(self, operation, status, error, times):
        self.rules[operation] = [status, error, times]

    def then(self, operation, status, error):
        """What follows when the rule that stands is used up."""
        self.later[operation] = [status, error, 10**6]

    def once_before(self, operation, act):
        """act() runs before the next such request is passed on."""
        self.before[operation] = act

    def lose(self, operation, times):
        """So many are carried out and answered 500."""
        self.lost[operation] = times

    def loses(self, operation):
        with self.lock:
            self.lost[operation] = self.lost.get(operation, 0) - 1
            return self.lost[operation] >= 0

    def answer(self, operation, reply):
        """A 200 of something else than DynamoDB."""
        self.plain[operation] = reply

    def count(self):
        self.wcu = self.rcu = self.calls = 0

    def spent(self):
        """(calls, write units, read units) since count(), which it begins again."""
        with self.lock:
            spent = (self.calls, self.wcu, self.rcu)
            self.count()
            return spent

    def add(self, operation, reply):
        """What a reply cost. A condition that failed costs as many write units as what stands there has KB (AWS, "Read
        and write operations"), which the reply does not say."""
        if operation == "GetItem" and "Item" not in reply and not self.absent:
            return
        units = reply.get("ConsumedCapacity", {}).get("CapacityUnits", 0)
        if "Item" in reply and operation in ("PutItem", "DeleteItem"):
            units = -(-size_of(reply["Item"]) // 1024)
        with self.lock:
            self.calls += 1
            if operation in ("GetItem", "Scan"):
                self.rcu += units
            else:
                self.wcu += units

    def take(self, operation):
        with self.lock:
            self.seen.append(operation)
            rule = self.rules.get(operation)
            if not rule or rule[2] == 0:
                rule = self.later.get(operation)
            if not rule:
                return None
            rule[2] -= 1
            return rule[:2]


def turned(reply):
    """The attributes of an item in the other order: there is none that servers must keep."""
    reply = json.loads(reply)
    if "Item" in reply:
        reply["Item"] = {name: reply["Item"][name] for name in sorted(reply["Item"], reverse=True)}
    return json.dumps(reply).encode()


class RefusingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        rule = self.server.take(operation)
        self.server.before.pop(operation, lambda: None)()
        time.sleep(self.server.slow.get(operation, 0))
        counts = self.server.calls is not None
        if counts:
            body = json.dumps({**json.loads(body), "ReturnConsumedCapacity": "TOTAL"}).encode()
            self.headers.replace_header("Content-Length", str(len(body)))
        if rule:
            status = rule[0]
            reply = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{rule[1]}", "message": "told to"}).encode()
        elif operation in self.server.plain:
            status, reply = 200, self.server.plain[operation]
        else:
            request = urllib.request.Request(f"http://127.0.0.1:{self.server.target}/", body, dict(self.headers))
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    status, reply = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, reply = error.code, turned(error.read())
            self.server.passed.append(operation)
            if self.server.loses(operation):
                status, reply = 500, b"{}"
        if counts:
            self.server.add(operation, json.loads(reply))
        head = (f"HTTP/1.1 {status} Told\r\nContent-Type: application/x-amz-json-1.0\r\n"
                f"Content-Length: {len(reply)}\r\n\r\n")
        self.wfile.write(head.encode() + reply)


@pytest.fixture
def refusing(server):
    with Refusing(server.port) as refusing:
        yield refusing
        refusing.shutdown()


# A few throttled calls cost time; throttling without end is UNAVAILABLE, and nothing was applied.
@pytest.mark.some(1)
@pytest.mark.parametrize("error", ["ProvisionedThroughputExceededException", "ThrottlingException",
                                   "RequestLimitExceeded"])
def test_throttled_calls_are_tried_again_and_then_unavailable(hapax, server, refusing, table, error):  # promise 27
    uri = through(server, refusing, table)
    with Handle(uri.replace(f"{TIMEOUT_MS}ms", "20s")) as store:
        refusing.refuse("PutItem", 400, error, 3)
        assert store("claim", "k", "a") == "claimed"
        assert refusing.seen.count("PutItem") == 4
    with Handle(uri) as store:
        refusing.refuse("PutItem", 400, error, 10**6)
        # A try that the deadline cuts off may have been applied, for all that is known; most end between two tries.
        wait_until(lambda: store("claim", "other", "a") == "unavailable", "an op that was throttled to its end")
    assert hapax.op(server.uri(table), "claim", "other", "b") == "claimed"


# A 500 may have been applied.
def test_a_server_that_fails_leaves_the_op_indeterminate(server, refusing, table):
    with Handle(through(server, refusing, table)) as store:
        refusing.refuse("PutItem", 500, "InternalServerError", 10**6)
        assert store.sent(lambda: refusing.seen, "claim", "k", "a") == "indeterminate"


# What the service says to a repeat does not take back that the first try may have been applied.
@pytest.mark.parametrize("error", ["AccessDeniedException", "ExpiredTokenException", "ResourceNotFoundException",
                                   "ValidationException", ""])
def test_a_repeat_that_is_refused_leaves_the_op_indeterminate(server, refusing, table, error):
    with Handle(through(server, refusing, table)) as store:
        refusing.refuse("PutItem", 500, "InternalServerError", 1)
        refusing.then("PutItem", 400, error)
        assert store.sent(lambda: refusing.seen, "claim", "k", "a") == "indeterminate"


# A put that landed by its first try is answered as it was judged: with the record's own scope.
def test_an_answer_that_took_a_repeat_shows_the_record(refusing, server, table):
    with Handle(through(server, refusing, table, timeout="20s")) as store:
        assert store("claim", "k", "a", 30000, "rerun", 86400000, "a-scope-that-is-long-enough-to-be-seen") == "claimed"
        refusing.lose("PutItem", 1)
        words = ("complete", "k", "a", 200, "A:1", "body", "a-scope-that-is-long-enough-to-be-seen")
        assert store(*words) == "ok"
        assert refusing.seen.count("PutItem") == 3


# Whatever answers 200 at a wrong endpoint has granted nothing.
@pytest.mark.some(2)
@pytest.mark.parametrize("reply", [b"", b"<html>It works!</html>", b"[]", b"{", b"{}}", b"null"])
def test_a_reply_that_is_none_of_dynamodb_grants_nothing(server, refusing, table, reply):
    with Handle(through(server, refusing, table, timeout="20s")) as store:  # which it ends before
        refusing.answer("PutItem", reply)
        assert store("claim", "k", "a") == "indeterminate"
        assert "makes no sense" in store.text()
        refusing.plain.clear()
        assert store("claim", "k", "b") == "claimed"
        refusing.answer("DeleteItem", reply)
        refusing.answer("GetItem", reply)
        assert store("complete", "other", "a", 200, "", "") == "unavailable"


# Keys that are not taken, and rights that are missing, are no outage.
@pytest.mark.some(2)
@pytest.mark.parametrize("error", ["AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException",
                                   "ExpiredTokenException", "MissingAuthenticationTokenException"])
def test_wrong_credentials_are_refused_and_said_so(server, refusing, table, error):
    with Handle(through(server, refusing, table, timeout="20s")) as store:  # which it ends before
        refusing.refuse("PutItem", 400, error, 10**6)
        assert store("claim", "k", "a") == "refused"
        text = store.text()
        assert error in text and table in text
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in text and KEYS["AWS_ACCESS_KEY_ID"] not in text


# --print-acl has a policy for each use: with the calls that its commands make, all of them and no others.
def test_the_printed_policies_have_the_calls_that_are_made(hapax, server, refusing, table):
    uri = through(server, refusing, table, timeout="20s", inline_max="0")
    printed = json.loads(hapax("init", "--print-acl", "--store", uri).out)
    secret = hapax.folder / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)

    def door():
        assert hapax.op(uri, "claim", "k", "a", 30000, "rerun", 1) == "claimed"
        assert hapax.op(uri, "complete", "k", "a", 200, "", "beside its record") == "ok"
        wait_until(lambda: hapax.op(uri, "claim", "k", "b", 30000, "rerun") == "claimed", "the record expiring")
        assert hapax.op(uri, "complete", "k", "b", 200, "", "beside its record") == "ok"
        assert hapax.op(uri, "claim", "k", "c") == "completed"

    def operator():
        for words in (["show", "k"], ["list"], ["resolve", "k", "--force", "--complete", "201"],
                      ["resolve", "k", "--force", "--forget"]):
            assert hapax(*words, "--store", uri).code == 0, words

    def check():
        assert hapax("check", "--store", uri).code in (0, 1)

    def init():
        for _ in range(2):
            assert hapax("init", "--store", uri.replace(table, f"{table}-new"), HAPAX_SECRET_FILE=str(secret)).code == 0

    assert list(printed) == ["door", "operator", "check", "init"]
    for use, act in {"door": door, "operator": operator, "check": check, "init": init}.items():
        (statement,) = printed[use]["Statement"]
        assert statement["Resource"] == f"arn:aws:dynamodb:{REGION}:*:table/{table}"
        refusing.seen.clear()
        act()
        assert {f"dynamodb:{call}" for call in refusing.seen} == set(statement["Action"]), use
    server.ask("DeleteTable", TableName=f"{table}-new")


@pytest.mark.parametrize("region, partition", [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"),
                                               ("us-isob-east-1", "aws-iso-b"), ("eu-west-1", "aws")])
def test_the_policies_name_the_regions_partition(hapax, region, partition):
    """IAM takes no ARN of another one."""
    printed = json.loads(hapax("init", "--print-acl", "--store", f"dynamodb://{region}/jobs").out)
    assert printed["door"]["Statement"][0]["Resource"] == f"arn:{partition}:dynamodb:{region}:*:table/jobs"


def test_without_credentials_nothing_is_sent(hapax, server, table):
    for name in KEYS:
        hapax.env.pop(name, None)
    hapax.env.update(AWS_EC2_METADATA_DISABLED="true")
    result = hapax.run(OP, server.uri(table), "claim", "k", "a")
    assert result.out.strip() in ("unavailable", "refused") and "credential" in result.err.lower()
    assert items(server, table) == []


def test_a_table_that_is_not_there_is_to_be_made(hapax, server):
    result = hapax.run(OP, server.uri("missing"), "claim", "k", "a")
    assert result.out.strip() == "unsupported" and 'run "hapax init"' in result.err
    assert hapax("check", "--store", server.uri("missing")).code != 0


# ---- the table --------------------------------------------------------------------------


def test_init_makes_the_table_once_and_prints_what_it_would(hapax, server):
    uri = server.uri("made-here")
    made = hapax("init", "--store", uri)
    assert made.code == 0 and "made-here" in made.out
    again = hapax("init", "--store", uri)
    assert again.code == 0 and "made the table" not in again.out
    ttl = server.ask("DescribeTimeToLive", TableName="made-here")[1]["TimeToLiveDescription"]
    assert ttl == {"AttributeName": "x", "TimeToLiveStatus": "ENABLED"}
    lines = hapax("init", "--print", "--store", uri).out.splitlines()
    assert [line.split()[:3] for line in lines] == [["aws", "dynamodb", "create-table"], ["aws", "dynamodb", "wait"],
                                                    ["aws", "dynamodb", "update-time-to-live"]]
    assert all(f"--endpoint-url {server.endpoint}" in line and f"--region {REGION}" in line for line in lines)
    server.ask("DeleteTable", TableName="made-here")


def test_a_table_of_somebody_else_is_left_alone(hapax, server):
    server.ask("CreateTable", TableName="theirs", BillingMode="PAY_PER_REQUEST",
               AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
               KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}])
    uri = server.uri("theirs")
    assert "another key" in hapax("init", "--store", uri).err
    check = hapax("check", "--store", uri)
    assert check.code != 0 and "another key" in check.out + check.err
    assert hapax.op(uri, "claim", "k", "a") == "unavailable"
    server.ask("DeleteTable", TableName="theirs")


def test_check_says_what_a_table_is_set_up_for(hapax, server):
    def advice(table):
        check = hapax("check", "--store", server.uri(table))
        assert check.code == 0, check.err
        return check.out

    server.ask("CreateTable", TableName="bare", BillingMode="PROVISIONED",
               ProvisionedThroughput={"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
               AttributeDefinitions=[{"AttributeName": n, "AttributeType": "B"} for n in ("id", "part")],
               KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "part", "KeyType": "RANGE"}])
    said = advice("bare")
    assert "is ACTIVE; DynamoDB, which counts about every six hours, last counted 0 items" in said
    assert "provisioned" in said and "TTL is off" in said and "not protected from deletion" in said
    server.ask("UpdateTimeToLive", TableName="bare", TimeToLiveSpecification={"AttributeName": "y", "Enabled": True})
    assert 'TTL is on the attribute "y"' in advice("bare")
    server.ask("DeleteTable", TableName="bare")
    said = advice("hapax")
    assert "paid by request" in said and "TTL" not in said and "within 0 ms" in said


def test_check_says_that_a_clock_is_off(server, table):
    # By more than a call takes: what it took is no skew.
    done = subprocess.run([HAPAX, "check", "--store", server.uri(table)], capture_output=True, text=True,
                          timeout=PATIENCE, env={**os.environ, **faketime(60), "HAPAX_STORE": ""})
    assert "ahead of its clock" in done.stdout + done.stderr


# The metric is what a page shows, from the Date of any answer.
def test_a_page_tells_how_far_the_clock_is_off(server, table, hapax):
    door = hapax.start("door", "--store", server.uri(table), "--listen", f"unix:{hapax.folder}/d.sock", "--metrics",
                       "127.0.0.1:0", "--json", FAKETIME_DONT_FAKE_MONOTONIC="1", **faketime(60))
    port = json.loads(read_line(door))["metrics_port"]

    def ahead_s():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            return re.search(r"^hapax_store_clock_ahead_seconds (\S+)$", page.read().decode(), re.M)

    wait_until(ahead_s, "the metric")
    assert -61 <= float(ahead_s()[1]) <= -30  # what the question took is in doubt, and a minute passes before the next


# ---- bodies beside their records --------------------------------------------------------


def is_chunk(item):
    return base64.b64decode(item["part"]["B"])[:1] == b"\x01"


def chunk_keys(server, table):
    return list(filter(is_chunk, items(server, table)))


def records(server, table):
    return [item for item in items(server, table) if not is_chunk(item)]


def lease_until(hapax, uri, key):
    """Seconds since 1970."""
    return (shown(hapax, uri, key)["lease_until_us"] or 0) / 1e6


# ---- processes --------------------------------------------------------------------------


@pytest.fixture
def ahead(hapax, server, table):
    """An op by a process whose clock is so many seconds ahead."""
    def op(by, *words):
        return subprocess.run([OP, server.uri(table), *words], stdout=subprocess.PIPE, text=True, timeout=PATIENCE,
                              env={**hapax.env, **faketime(by)}).stdout.strip()

    return op


# A claim that another process's clock would call dead is left alone for the skew margin.
def test_a_lease_lasts_for_the_skew_margin(hapax, server, table, ahead):
    assert hapax.op(server.uri(table, skew="60s"), "claim", "k", "a", 1000) == "claimed"
    assert ahead(5, "claim", "k", "b") == "in_flight"
    assert ahead(120, "claim", "k", "b") == "claimed"
    assert hapax.op(server.uri(table), "complete", "k", "a", 200, "", "") == "lost"


# What a host whose clock is ahead has written is there for a copy at once, and what it runs is counted.
def test_a_copy_has_what_a_clock_ahead_wrote(hapax, server, table, ahead, folder):
    old, new = server.uri(table, skew="60s"), f"rocksdb:{folder}/new"
    assert ahead(50, "claim", "k", "a") == "claimed"
    assert hapax("copy", "--from", old, "--to", new).code == 1
    assert ahead(50, "complete", "k", "a", "200", "", "x") == "ok"
    assert hapax("copy", "--from", old, "--to", new).code == 0
    assert shown(hapax, new, "k")["state"] == "completed"


# Who holds a claim counts on it without the margin, and each renewal puts the margin on it anew.
def test_the_margin_is_for_others_and_stays_on_renewal(hapax, api, server, table):
    uri = server.uri(table, skew="60s")
    served = Served(hapax, api, uri, *UNHURRIED, "--workers", "1", "--lease", "9s")
    poster = threading.Thread(target=served.post, args=("/hold/margin", "k"))
    poster.start()
    try:
        wait_until(lambda: api.count("k") == 1, "the handler's beginning")
        began = time.monotonic()
        first = lease_until(hapax, uri, "k")
        wait_until(lambda: lease_until(hapax, uri, "k") > first, "a renewal")
        assert time.monotonic() - began < 20  # a third of the lease is 3 s; with the margin, 23
        assert lease_until(hapax, uri, "k") > time.time() + 50
    finally:
        api.door("margin").set()
        poster.join()
        served.process.terminate()


# An operator forgets a record that is damaged. A request of that which arrives late removes nothing that took its
# place.
def test_what_took_the_place_of_a_damaged_record_is_not_forgotten(hapax, server, refusing, table):
    with Handle(server.uri(table)) as store:
        assert store("claim", "k", "a") == "claimed"
        key = items(server, table)[0]
        server.ask("PutItem", TableName=table, Item={**key, "r": {"B": "AAAA"}})

        given_up = threading.Event()

        def replace():
            given_up.wait(PATIENCE)
            server.ask("DeleteItem", TableName=table, Key=key)
            assert store("claim", "k", "b") == "claimed"

        refusing.once_before("DeleteItem", replace)
        def left():
            """Until its request has come; where its time was over before, it is said again."""
            forget = hapax("resolve", "--store", through(server, refusing, table), "--forget", "--force", "k")
            assert forget.code != 0
            return "DeleteItem" in refusing.seen

        wait_until(left, "the request")
        given_up.set()
        wait_until(lambda: "DeleteItem" in refusing.passed, "the late request")
        assert hapax.op(server.uri(table), "claim", "k", "c") == "in_flight"


# A record that a newer Hapax has written is none that is absent: nothing runs, and it stays as it is.
def test_a_record_of_a_newer_version_is_unsupported(hapax, server, table):  # promise 31
    uri = server.uri(table)
    with Handle(uri) as store:
        assert store("claim", "k", "a") == "claimed"
        item = items(server, table, "r", "v", "d")[0]
        record, write = base64.b64decode(item["r"]["B"]), base64.b64decode(item["v"]["B"])
        newer = {**item, "r": {"B": base64.b64encode(b"\3" + record[1:]).decode()},
                 "v": {"B": base64.b64encode(bytes(write[:-1]) + bytes([write[-1] ^ 1])).decode()}}
        assert server.ask("PutItem", TableName=table, Item=newer)[0] == 200
        assert store("claim", "k", "b") == "unsupported"
        assert "a newer version of hapax wrote it" in store.text()
        assert store("complete", "k", "a", 200, "", "body") == "unsupported"
        assert items(server, table, "r", "v", "d") == [newer]


# A list comes as far as its time lets it, and goes on from there.
@pytest.mark.ci
def test_a_list_that_takes_longer_than_a_batch_may_comes_to_its_end(hapax, gate, api, server, refusing, table):
    for key in "abcdef":  # a page of a scan is 1 MB
        assert gate.post(f"/ok?len={1200 << 10}", key, b"x").status == 200
    refusing.slow["Scan"] = 0.7
    answers = []

    def listed():
        """A page that takes more than the second which is left when it begins ends it."""
        refusing.seen.clear()
        answers.append(hapax("list", "--store", through(server, refusing, table, timeout="2s"),
                             "--json", "--state", "completed"))
        return answers[-1].code == 0

    wait_until(listed, "a list")
    assert refusing.seen.count("Scan") > 3
    assert answers[-1].out.count("completed") >= 6


# What a handle wrote last is old news where another process took the claim over: it begins writes, and answers nothing.
def test_what_a_handle_remembers_is_never_the_answer(hapax, server, table):
    uri = server.uri(table, skew=0)
    with Handle(uri) as store:
        assert store("claim", "k", "a", 1) == "claimed"
        wait_until(lambda: hapax.op(uri, "claim", "k", "b") == "claimed", "the lease's end")
        assert store("complete", "k", "b", 200, "", "body") == "ok"


def test_processes_that_race_run_each_operation_once(server, table):  # promise 1
    with Load(server.uri(table), workers=2) as load:
        load.wait_ops(300)
        counts = load.ask("look 20")
    assert counts["acknowledged"] > 0
    assert not any(counts[what] for what in ("doubles", "lost", "changed", "wrong")), counts


# kill -9 of the server, and back with its files: what was acknowledged is there, and nothing ran twice.
@pytest.mark.ci
def test_a_server_that_is_killed_and_comes_back_loses_nothing(keys):  # promise 27
    with DynamoDB(kept=True).start() as server:
        subprocess.run([HAPAX, "init", "--store", server.uri()], check=True, capture_output=True)
        with Load(server.uri(timeout="2s"), workers=2) as load:
            for _ in range(KILLS):
                load.wait_ops(40)
                server.kill()
                server.launch()
                load.wait_ops(40)
                load.ask("look 50")
            counts = load.end()
    print(f"\n{KILLS} kills: {json.dumps(counts)}")
    assert not any(counts[what] for what in ("doubles", "lost", "changed", "wrong")), counts


# ---- costs ------------------------------------------------------------------------------


# The table of docs/dynamodb.md: (calls, write units, read units) of each operation, by what the server says it took.
def test_what_operations_cost(hapax, server, refusing, table, api):
    uri = through(server, refusing, table, timeout="30s")
    spent = {}
    with Handle(uri) as store:
        refusing.count()

        def cost(name, verdict, *words):
            assert store(*words) == verdict
            spent[name] = refusing.spent()

        cost("claim, new", "claimed", "claim", "k", "a")
        cost("claim, in flight", "in_flight", "claim", "k", "b")
        cost("complete, by who claimed", "ok", "complete", "k", "a", 200, "A:1", "body")
        cost("claim, completed: a replay", "completed", "claim", "k", "b")
        store("claim", "dead", "a", 1)
        wait_until(lambda: refusing.spent() and store("claim", "dead", "b") == "claimed", "the lease's end")
        spent["claim, a takeover"] = refusing.spent()
        cost("fail, by who claimed", "ok", "fail", "dead", "b", "ran")
        store("claim", "far", "a")
        refusing.spent()
    hapax.op(uri, "complete", "far", "a", 200, "", "")
    spent["complete, by another process"] = refusing.spent()
    shown(hapax, uri, "far")
    spent["show"] = refusing.spent()
    refusing.absent = False  # a worker looks each second for a switch, and nobody has set one
    served = Served(hapax, api, uri, *UNHURRIED, "--max-response", "16m", "--workers", "1")
    assert served.post("/ok", "warm", b"").status == 200  # with what a worker asks for once
    refusing.spent()
    for name, size in (("100 KB", 100 << 10), ("1 MB", 1 << 20)):
        for turn in ("first", "replay"):
            assert len(served.post(f"/ok?len={size}", name.replace(" ", ""), b"").body) == size
            spent[f"{name}, {turn}"] = refusing.spent()
    served.process.terminate()
    served = Served(hapax, api, f"{uri}&inline_max=4k", *UNHURRIED, "--max-response", "16m", "--workers", "1")
    assert served.post("/ok", "warm", b"").status == 200
    for turn in ("first", "replay"):
        refusing.spent()
        assert len(served.post(f"/ok?len={100 << 10}", "beside", b"").body) == 100 << 10
        spent[f"100 KB beside, {turn}"] = refusing.spent()
    served.process.terminate()
    for name, (calls, wcu, rcu) in spent.items():
        print(f"{name:30} {calls:3} calls {wcu:6} WCU {rcu:6} RCU")
    expected = {"claim, new": (1, 1, 0), "claim, in flight": (1, 1, 0), "complete, by who claimed": (1, 1, 0),
                "claim, completed: a replay": (1, 1, 0), "claim, a takeover": (2, 2, 0),
                "fail, by who claimed": (1, 1, 0), "complete, by another process": (2, 1, 1), "show": (66, 0, 66),
                "100 KB, first": (2, 102, 0), "100 KB, replay": (1, 101, 0),
                "100 KB beside, first": (3, 103, 0), "100 KB beside, replay": (2, 1, 26)}
    for name, cost in expected.items():
        assert spent[name] == cost, name


# ---- the gate ---------------------------------------------------------------------------


@pytest.fixture
def api():
    api = g.Api()
    yield api
    api.close()


@pytest.fixture
def gate(hapax, api, server, table):
    served = Served(hapax, api, server.uri(table, timeout="30s"), *UNHURRIED, "--workers", "2", "--max-response", "16m")
    yield served
    served.process.terminate()


def test_the_gate_runs_once_and_replays(gate, api):
    first = gate.post("/ok", "k1", b"pay")
    again = gate.post("/ok", "k1", b"pay")
    assert first.status == again.status == 200 and first.body == again.body == b"effect=1 body=3"
    assert api.count("k1") == 1
    assert gate.post("/ok", "k1", b"other").status == 422


# 5 MB do not fit an item: the body stands beside its record in chunks, and comes back whole; one that is lost is said
# so.
def test_a_large_body_is_kept_in_chunks_and_comes_back(hapax, gate, api, server, table):
    size = 5 << 20
    first = gate.post(f"/ok?len={size}", "big", b"x")
    assert first.status == 200 and len(first.body) == size
    chunks = chunk_keys(server, table)
    assert len(chunks) == -(-size // (350 << 10))
    again = gate.post(f"/ok?len={size}", "big", b"x")
    assert again.status == 200 and again.body == first.body
    assert api.count("big") == 1
    server.ask("DeleteItem", TableName=table, Key=chunks[3])
    damaged = hapax("show", "--store", server.uri(table), "big")
    assert damaged.code != 0 and "a part of its body is missing" in damaged.err
    assert gate.post(f"/ok?len={size}", "big", b"x").status == 503
    assert api.count("big") == 1
    forgotten = hapax("resolve", "--store", server.uri(table), "--forget", "--force", "big")
    assert forgotten.code == 0, forgotten.err
    assert len(records(server, table)) == 1  # the check value of the secret


# A second is for the removal of chunks that nobody names any more: what it is too short for goes by the table's TTL.
def test_chunks_go_with_their_record(hapax, gate, server, table):
    keys = iter(range(1000))

    def gone():
        key, before = f"k{next(keys)}", chunk_keys(server, table)
        assert gate.post(f"/ok?len={800 << 10}", key, b"x").status == 200
        assert len(chunk_keys(server, table)) == len(before) + 3
        assert all("x" in item for item in items(server, table, "x") if is_chunk(item))
        forgotten = hapax("resolve", "--store", server.uri(table), "--forget", "--force", key)
        assert forgotten.code == 0, forgotten.err
        assert len(records(server, table)) == 1  # the check value of the secret
        return len(chunk_keys(server, table)) <= len(before)

    wait_until(gone, "its chunks being removed")


@pytest.mark.ci
def test_the_gate_outlives_its_server(hapax, api, server, table):
    gate = Served(hapax, api, server.uri(table, timeout="4s"), "--workers", "2")
    try:
        wait_until(lambda: gate.post("/ok", "k1").status == 200, "service")
        server.kill()
        assert gate.post("/ok", "k2").status == 503
        assert api.count("k2") == 0
        server.launch()
        for key in ("k2", "k1"):
            wait_until(lambda key=key: gate.post("/ok", key).status == 200, "an answer")
        assert gate.post("/ok", "k1").body == b"effect=1 body=0"
        assert api.count("k1") == api.count("k2") == 1
    finally:
        gate.process.terminate()


# ---- a server that shows no item --------------------------------------------------------


# dynalite is older than ReturnValuesOnConditionCheckFailure: a failed condition is followed by a read.
def test_a_server_that_does_not_show_the_item_is_asked_for_it(hapax, keys):
    with Dynalite().start() as server:
        made = hapax("init", "--store", server.uri())
        assert made.code == 0 and "no TTL" in made.out
        assert hapax.op(server.uri(), "claim", "k", "a") == "claimed"
        assert hapax.op(server.uri(), "claim", "k", "b") == "in_flight"
        assert hapax.op(server.uri(), "complete", "k", "a", 200, "", "x") == "ok"
        assert hapax.op(server.uri(), "claim", "k", "b") == "completed"
        assert hapax.op(server.uri(), "complete", "k", "b", 200, "", "x") == "lost"
        server.ask("PutItem", TableName="hapax", Item={**items(server, "hapax")[0], "r": {"B": "AAAA"}})
        assert hapax.op(server.uri(), "claim", "k", "b") == "corrupt"
        forget = hapax("resolve", "--store", server.uri(), "--forget", "--force", "k")
        assert forget.code == 0, forget.err
        assert items(server, "hapax") == []
