"""What the tests of the Lambda door share: a fake Runtime API, `hapax lambda` on it before a function, and its
effects."""
import atexit
import base64
import collections
import json
import os
import re
import sys

from conftest import HAPAX, ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
import lambda_api  # noqa: E402
from process import free_port  # noqa: E402
from redis_server import Redis  # noqa: E402

FUNCTIONS = ROOT / "tests/e2e/lambda/functions"
PYTHON = ["/usr/bin/python3", "-S", "-E", "-B", str(FUNCTIONS / "runtime.py")]


class Function:
    """A sandbox with `hapax lambda` in it, and its Runtime API. bare: the function alone."""

    def __init__(self, hapax, store, name, *options, command=None, bare=False, api=None, words=(), **env):
        self.folder, self.api = hapax.folder, api or lambda_api.Api()
        self.port = free_port()
        command = command or [*PYTHON, name, *words]
        before = [HAPAX, "lambda", "--store", store, "--listen", f"127.0.0.1:{self.port}", *options, "--"]
        kept = {name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")}
        # a store that is slow now and then is no matter of most
        patience = {"HAPAX_TIMEOUT": "30s", "HAPAX_SAVE_WAIT": "30s"}
        env = {"PATH": "/usr/bin:/bin", "HOME": str(hapax.folder), "LC_ALL": "C", **patience, **kept, **env}
        self.sandbox = lambda_api.Sandbox(self.api, command if bare else before + command, hapax.folder, env)

    def __enter__(self):
        self.sandbox.ready()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.sandbox.kill()
        self.api.close()
        assert self.api.misuse == [], self.api.misuse

    def invoke(self, event, **more):
        """The answer to an event, once it is there."""
        invocation = self.api.invoke(event, **more)
        self.sandbox.wait_for(invocation.finished.is_set, "the answer")
        return invocation.answer

    def begin(self, event, **more):
        """An event that has been taken."""
        invocation = self.api.invoke(event, **more)
        self.sandbox.wait_for(invocation.given.is_set, "the event being taken")
        return invocation

    def cold(self):
        """The same in a new process."""
        self.sandbox.kill()
        self.sandbox.ready()
        return self

    def file(self, name, text=""):
        (self.folder / name).write_text(text)

    def gone(self, name):
        (self.folder / name).unlink()

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_lines(self, name, count):
        self.sandbox.wait_for(lambda: len(self.lines(name)) >= count, f"{count} lines of {name}")
        return self.lines(name)

    def effects(self):
        """How often each key took effect."""
        return collections.Counter(line.split()[0] for line in self.lines("effects"))


def agree(*answers):
    """That all are answers, of one and the same run."""
    assert {answer.kind for answer in answers} == {"response"}, answers
    assert len({answer.body for answer in answers}) == 1, answers


# ---- events -----------------------------------------------------------------------------------


def gateway_v1(body, key=None, path="/orders", method="POST", header="Idempotency-Key", **more):
    headers = {"Content-Type": "application/json", **({header: key} if key is not None else {})}
    return {"resource": path, "path": path, "httpMethod": method, "headers": headers,
            "multiValueHeaders": {name: [value] for name, value in headers.items()}, "queryStringParameters": None,
            "multiValueQueryStringParameters": None, "pathParameters": None, "stageVariables": None,
            "requestContext": {"resourcePath": path, "httpMethod": method, "requestId": "r-1", "stage": "prod",
                               "identity": {"sourceIp": "127.0.0.1"}},
            "body": body, "isBase64Encoded": False, **more}


def gateway_v2(body, key=None, path="/orders", method="POST", header="idempotency-key", **more):
    """API Gateway's HTTP API and Function URLs."""
    headers = {"content-type": "application/json", **({header: key} if key is not None else {})}
    return {"version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "", "headers": headers,
            "requestContext": {"accountId": "000000000000", "domainName": "x.lambda-url.eu-west-1.on.aws",
                               "http": {"method": method, "path": path,
                                        "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1"},
                               "requestId": "r-1", "routeKey": "$default", "stage": "$default", "timeEpoch": 1},
            "body": body, "isBase64Encoded": False, **more}


def balancer(body, key=None, path="/orders", method="POST", header="idempotency-key", many=False, **more):
    headers = {"content-type": "application/json", **({header: key} if key is not None else {})}
    if many:
        named = {"multiValueHeaders": {name: [value] for name, value in headers.items()},
                 "multiValueQueryStringParameters": {}}
    else:
        named = {"headers": headers, "queryStringParameters": {}}
    return {"requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-west-1:000000000000:t"}},
            "httpMethod": method, "path": path, **named, "body": body, "isBase64Encoded": False, **more}


HTTP = {"v1": gateway_v1, "v2": gateway_v2, "alb": balancer}


def header_of(answer, name):
    """A header of a Lambda proxy response, however it is put."""
    reply = answer.json
    for names in (reply.get("headers") or {}, reply.get("multiValueHeaders") or {}):
        for other, value in names.items():
            if other.lower() == name.lower():
                return value[0] if isinstance(value, list) else value
    return None


def problem_of(answer):
    return re.split("[:/#]", json.loads(answer.json["body"])["type"])[-1]


def sqs(*keys, groups=None, arn="arn:aws:sqs:eu-west-1:000000000000:orders"):
    """Records by key: KEY, or KEY=MESSAGE-ID; the body holds the key. groups: of a FIFO queue, one for each."""
    records = []
    for i, word in enumerate(keys):
        key, _, id = word.partition("=")
        attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": "1", "SenderId": "s",
                      "ApproximateFirstReceiveTimestamp": "1"}
        if groups:
            attributes |= {"MessageGroupId": groups[i], "SequenceNumber": f"{i:020}", "MessageDeduplicationId": key}
        records.append({"messageId": id or f"m-{key}", "receiptHandle": f"h-{i}", "body": json.dumps({"id": key}),
                        "attributes": attributes, "messageAttributes": {}, "md5OfBody": "0", "eventSource": "aws:sqs",
                        "eventSourceARN": arn + (".fifo" if groups else ""), "awsRegion": "eu-west-1"})
    return {"Records": records}


def kinesis(*keys, partitions=None):
    return {"Records": [{
        "kinesis": {"kinesisSchemaVersion": "1.0", "partitionKey": partitions[i] if partitions else "p",
                    "sequenceNumber": f"4959033827149025660855969253836157109592157598913658{i:04}",
                    "data": base64.b64encode(json.dumps({"id": key}).encode()).decode(),
                    "approximateArrivalTimestamp": 1.5},
        "eventSource": "aws:kinesis", "eventVersion": "1.0",
        "eventName": "aws:kinesis:record", "awsRegion": "eu-west-1",
        "eventID": f"shardId-000000000006:4959033827149025660855969253836157109592157598913658{i:04}",
        "eventSourceARN": "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"} for i, key in enumerate(keys)]}


def dynamodb(*keys):
    return {"Records": [{
        "eventID": f"e-{key}", "eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb",
        "awsRegion": "eu-west-1",
        "dynamodb": {"Keys": {"id": {"S": key}}, "NewImage": {"id": {"S": key}}, "SequenceNumber": f"{i + 1:021}",
                     "SizeBytes": 26, "StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 1},
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/x"}
                        for i, key in enumerate(keys)]}


def reported(answer):
    """The identifiers of a batch's report, in their order."""
    assert answer.kind == "response", answer
    assert set(answer.json) == {"batchItemFailures"}, answer
    return [item["itemIdentifier"] for item in answer.json["batchItemFailures"]]


# ---- stores -----------------------------------------------------------------------------------

class PatientRedis(Redis):
    """Whose users give it time."""

    def uri(self, port=None, **parameters):
        return super().uri(port, **{"timeout": "30s", **parameters})


redis_servers = []


def redis_server():
    """One of this process, empty."""
    if not redis_servers:
        redis_servers.append(PatientRedis().start())
        atexit.register(redis_servers[0].end)
    redis_servers[0].do("FLUSHALL")
    return redis_servers[0]


# ---- what a service makes of a batch's answer ---------------------------------------------------


def identifiers(event):
    """Of a batch's records, in their order: what a report calls them."""
    return [record["kinesis"]["sequenceNumber"] if "kinesis" in record
            else record["dynamodb"]["SequenceNumber"] if "dynamodb" in record else record["messageId"]
            for record in event["Records"]]


def redelivered(event, answer, report=True):
    """The batch that comes again, as AWS's documentation of ReportBatchItemFailures has it; None: nothing does. Of a
    stream it begins at the first record that failed; a report that it does not understand means all."""
    ids, records = identifiers(event), event["Records"]
    failed = set()
    if answer.kind != "response":
        failed = set(ids)
    elif report:
        try:
            said = json.loads(answer.body) if answer.body else None
            items = (said.get("batchItemFailures") if isinstance(said, dict) else None) or []
            failed = {item["itemIdentifier"] for item in items}
            if not failed <= set(ids):
                failed = set(ids)
        except (ValueError, KeyError, TypeError, AttributeError):
            failed = set(ids)
    left = [record for record, id in zip(records, ids) if id in failed]
    if left and "messageId" not in records[0]:
        left = records[records.index(left[0]):]
    return {"Records": left} if left else None
