"""A stand-in for SQS: fauxqs by way of sqs_server.mjs, whose head says what it is not. From the packages of
tools/npm/fetch."""
import contextlib
import http.client
import json
import os
import pathlib

from process import NotReady, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
NPM = pathlib.Path(os.environ.get("HAPAX_NPM", ROOT / "build/npm"))
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_EC2_METADATA_DISABLED": "true"}


class Sqs(Server):
    name = "sqs"
    taken = ("EADDRINUSE",)

    def __init__(self):
        if not (NPM / "node_modules/fauxqs/dist/app.js").exists():
            raise NotReady(f"there is no SQS stand-in in {NPM} (tools/npm/fetch)")
        super().__init__()

    def command(self):
        return ["node", pathlib.Path(__file__).with_name("sqs_server.mjs"), NPM.resolve(), self.port]

    def http(self, method, path, body=b"", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or "{}")

    def answers(self):
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return self.http("GET", "/health")[0] == 200
        return False

    def ask(self, operation, **body):
        """One call, as AWS's tools make it; its document."""
        status, document = self.http(
            "POST", "/", json.dumps(body), **{
                "X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0",
                "Authorization": f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261120/{REGION}/sqs/aws4_request, "
                                 "SignedHeaders=host, Signature=00"})
        if status != 200:
            raise RuntimeError(f"{operation}: {status} {document}")
        return document

    def faults(self, *faults):
        """What goes wrong next (sqs_server.mjs); without any: nothing more."""
        assert self.http("POST", "/faults", json.dumps(faults),
                         **{"Content-Type": "application/octet-stream"})[0] == 200

    def seen(self, operation, what="calls"):
        return self.http("GET", "/seen")[1][what].get(operation, 0)

    def make_queue(self, queue, **attributes):
        if queue.endswith(".fifo"):
            attributes = {"FifoQueue": "true", **attributes}
        return self.ask("CreateQueue", QueueName=queue, Attributes=attributes)["QueueUrl"]

    def inside(self, queue):
        """Its messages by state: ready, delayed, inflight; None: there is no such queue."""
        status, document = self.http("GET", f"/_fauxqs/queues/{queue}")
        return document["messages"] if status == 200 else None

    def listed(self):
        """The queues that hold something, for who reads of a failure."""
        names = [url.rpartition("/")[2] for url in self.ask("ListQueues").get("QueueUrls", [])]
        counts = {name: {state: len(messages) for state, messages in (self.inside(name) or {}).items() if messages}
                  for name in names}
        return "\n".join(f"{name}: {count}" for name, count in counts.items() if count)

    def uri(self, queue="", port=None, **parameters):
        parameters = {"endpoint": f"http://127.0.0.1:{port or self.port}", **parameters}
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"sqs://{REGION}{'/' if queue else ''}{queue}?{query}"
