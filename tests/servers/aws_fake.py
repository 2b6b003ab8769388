"""A fake of AWS, and no more than that: one service of the JSON protocol, STS, a container's and an instance's service
of keys, on one port of 127.0.0.1, in this process. It checks signatures by code of its own, and fails on request.

    with FakeAws() as fake:
        fake.know("AKID", "secret")
        fake.script = [fake.error(400, "ThrottlingException"), fake.reset, fake.ok]    one entry a call; then ok
"""
import datetime
import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
import threading
import time
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def signature_of(method, target, headers, signed, body, secret, scope):
    """SigV4, from the specification's steps."""
    path, _, query = target.partition("?")
    canonical = "\n".join(
        [method, path, "&".join(sorted(query.split("&")))]
        + [f"{name}:{' '.join(headers[name].split())}" for name in signed]
        + ["", ";".join(signed), hashlib.sha256(body).hexdigest()])
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def stamp(seconds_ahead):
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds_ahead)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        with self.server.fake.lock:
            self.server.fake.connections += 1

    def log_message(self, *_):
        pass

    def reply(self, status, body, headers=()):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        fake = self.server.fake
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        lines = [(name.lower(), value) for name, value in self.headers.items()]
        self.fields = dict(lines)
        assert len(self.fields) == len(lines), f"a header is there twice: {lines}"
        try:
            fake.answer(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_PUT = do_POST = handle_any

    def do_CONNECT(self):
        self.server.fake.asked.append(f"proxy {self.path}")
        self.send_error(502)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass  # clients that go away in the middle are what is tested


class FakeAws:
    def __init__(self, service="dynamodb", region="eu-central-1", target="DynamoDB_20120810", certificate=None):
        self.service, self.region, self.target, self.certificate = service, region, target, certificate
        self.lock = threading.Lock()
        self.keys = {}  # id -> (secret, token or None, expires or None)
        self.script = []
        self.calls = []  # (operation, body, key id) of the service, the refused ones included
        self.asked = []  # what else was asked: "imds …", "container", "sts …"
        self.connections = 0
        self.issue = 0  # temporary keys given out
        self.lives_s = 3600  # of keys given out from now on
        self.down = False  # the sources of credentials answer 500
        self.web_tokens = set()  # those STS takes
        self.container_token = None
        self.role = "hapax-role"
        self.date = None  # the Date of refusals

    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.fake = self
        self.port = self.server.server_address[1]
        self.url = f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}"
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)  # with its key
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def know(self, key, secret, token=None, expires=None):
        self.keys[key] = (secret, token, expires)

    def new_keys(self):
        """Temporary keys, of which the service knows."""
        with self.lock:
            self.issue += 1
            key, secret, token = f"ASIA{self.issue}", f"s/{self.issue}+x", "tok+/" * 40 + str(self.issue)
            self.know(key, secret, token, time.time() + self.lives_s)
        return key, secret, token

    # ---- what a call of the service gets ---------------------------------------------------

    def ok(self, request, body=b'{"Item":{}}', crc=True):
        headers = [("Content-Type", "application/x-amz-json-1.0"), ("x-amzn-RequestId", "R")]
        if crc:
            headers.append(("x-amz-crc32", str(zlib.crc32(body))))
        request.reply(200, body, headers)

    def error(self, status, name, message="why", headers=(), space="com.amazonaws.dynamodb.v20120810#"):
        return lambda request: request.reply(
            status, json.dumps({"message": message, "__type": space + name} if name else {}), headers)

    def reset(self, request):
        """A reply that begins, and a RST."""
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        request.wfile.flush()
        self.cut(request)

    def cut(self, request):
        """No reply, and a RST."""
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.close_connection = True
        request.wfile.close()
        request.rfile.close()
        os.close(request.connection.detach())

    def short(self, request):
        """Less than Content-Length says, and an orderly end."""
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        request.close_connection = True

    def damaged(self, request):
        request.reply(200, b'{"Item":{}}', [("x-amz-crc32", "1")])

    def hang(self, request):
        """No reply for as long as the client waits."""
        request.connection.settimeout(60)
        request.connection.recv(1)
        request.close_connection = True

    def long(self, size):
        return lambda request: self.ok(request, b" " * size, crc=False)

    # ---- who asks for what ----------------------------------------------------------------

    def answer(self, request):
        if request.path.startswith("/latest/"):
            return self.instance(request)
        if request.path.startswith("/creds"):
            return self.container(request)
        if request.fields.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return self.sts(request)
        return self.call(request)

    def refusal(self, request, service):
        """Why a signed request is not taken; None."""
        fields = request.fields
        kind, _, rest = fields.get("authorization", "").partition(" ")
        parts = dict(part.split("=", 1) for part in rest.split(", "))
        key, _, scope = parts.get("Credential", "/").partition("/")
        secret, token, expires = self.keys.get(key, (None, None, None))
        if kind != "AWS4-HMAC-SHA256" or secret is None:
            return key, "UnrecognizedClientException"
        if expires is not None and expires < time.time():
            return key, "ExpiredTokenException"
        signed = parts["SignedHeaders"].split(";")
        must = {"host", "x-amz-date"} | {name for name in fields if name.startswith("x-amz-")}
        wanted = f"{fields['x-amz-date'][:8]}/{self.region}/{service}/aws4_request"
        if signed != sorted(signed) or not must <= set(signed) or scope != wanted:
            return key, "IncompleteSignature"
        if fields.get("x-amz-security-token") != token:
            return key, "UnrecognizedClientException"
        mine = signature_of(request.command, request.path, fields, signed, request.body, secret, scope)
        return key, None if mine == parts["Signature"] else "InvalidSignatureException"

    def call(self, request):
        key, why = self.refusal(request, self.service)
        target, _, operation = request.fields.get("x-amz-target", "").rpartition(".")
        with self.lock:
            self.calls.append((operation, request.body, key))
            act = self.script.pop(0) if self.script and not why else self.ok
        if why:
            if self.date:
                request.date_time_string = lambda *_: self.date
            return request.reply(400, json.dumps({"__type": why, "message": "no"}))
        assert target == self.target and request.fields["content-type"] == "application/x-amz-json-1.0"
        return act(request)

    def document(self, names=("AccessKeyId", "SecretAccessKey", "Token"), **more):
        keys = dict(zip(names, self.new_keys()))
        return json.dumps({**more, **keys, "Expiration": stamp(self.lives_s)}, indent=1)

    def instance(self, request):
        self.asked.append(f"imds {request.command} {request.path}")
        if request.command == "PUT" and request.path == "/latest/api/token":
            assert int(request.fields["x-aws-ec2-metadata-token-ttl-seconds"]) > 0
            return request.reply(200, "imds-token==")
        if request.fields.get("x-aws-ec2-metadata-token") != "imds-token==":
            return request.reply(401, "")
        if self.down:
            return request.reply(500, "")
        begin = "/latest/meta-data/iam/security-credentials/"
        if request.path == begin:
            return request.reply(200, self.role)
        if request.path == begin + self.role:
            return request.reply(200, self.document(Code="Success", Type="AWS-HMAC"))
        return request.reply(404, "")

    def container(self, request):
        self.asked.append("container")
        if self.container_token and request.fields.get("authorization") != self.container_token:
            return request.reply(403, '{"Code":"no"}')
        return request.reply(500, "") if self.down else request.reply(200, self.document(RoleArn="x"))

    def sts(self, request):
        form = dict(urllib.parse.parse_qsl(request.body.decode(), strict_parsing=True))
        action = form["Action"]
        self.asked.append(f"sts {action} {form.get('WebIdentityToken', '')}".strip())
        if self.down:
            return request.reply(503, "")
        if action == "AssumeRoleWithWebIdentity" and form["WebIdentityToken"] not in self.web_tokens:
            return request.reply(400, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>")
        if action == "AssumeRole":
            why = self.refusal(request, "sts")[1]
            if why:
                return request.reply(403, f"<ErrorResponse><Error><Code>{why}</Code></Error></ErrorResponse>")
        assert form["RoleArn"].startswith("arn:") and form["RoleSessionName"] and form["Version"] == "2011-06-15"
        key, secret, token = self.new_keys()
        return request.reply(200, f"""<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <{action}Result><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
  <SessionToken>{token}</SessionToken><Expiration>{stamp(self.lives_s)}</Expiration></Credentials>
  </{action}Result></{action}Response>""")
