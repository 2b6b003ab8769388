"""Functions for runtime.py, by name. Each does its effects first; what it answers differs from run to run."""
import base64
import json
import os
import signal
import time

from runtime import BASE, Answered, effect, mark, wait_for_file


class Unlucky(Exception):
    pass


def key_of(event):
    """What an event is about: its id, or its body's."""
    if not isinstance(event, dict):
        return "scalar"
    if "id" in event:
        return event["id"]
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        body = base64.b64decode(body)
    try:
        return json.loads(body)["id"]
    except (ValueError, KeyError, TypeError):
        return "none"


def echo(event, context):
    """Answers the event, and who ran."""
    event = json.loads(event)
    return {"run": effect(key_of(event)), "event": event}


def slow(event, context):
    """Waits after its effect."""
    answer = echo(event, context)
    wait_for_file()
    return answer


def work(event, context):
    """Is at it for a while after its effect."""
    answer = echo(event, context)
    time.sleep(0.005)
    return answer


def fail(event, context):
    """Fails while the file `fails` is there, after its effect."""
    answer = echo(event, context)
    if os.path.exists("fails"):
        raise Unlucky(answer["run"])
    return answer


def die(event, context):
    """Dies, while the file `dies` is there, after its effect."""
    answer = echo(event, context)
    if os.path.exists("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


def post_and_leave(event, context):
    """Stops hapax, posts its answer, and is gone before hapax can read that."""
    answer = json.dumps({"run": effect(key_of(json.loads(event)))}).encode()
    os.kill(os.getppid(), signal.SIGSTOP)
    many = {f"X{n}": "x" * 2000 for n in range(100)}  # which take a while to be read
    context.connection.begin("POST", f"{BASE}invocation/{context.id}/response", Content_Length=len(answer), **many)
    context.connection.socket.sendall(answer)
    os._exit(0)


def leave(event, context, status):
    effect(key_of(json.loads(event)))
    raise SystemExit(int(status))


def seen(event, context):
    """What it was given: headers of the event, and its environment."""
    effect(key_of(json.loads(event)))
    return {"headers": context.fields, "env": dict(os.environ), "length": len(event)}


def octets(event, context):
    """An answer that is no JSON."""
    effect("octets")
    return bytes(range(256)) * 4 + event[:16]


def big(event, context, size):
    """An answer of so many bytes."""
    run = effect(key_of(json.loads(event)))
    return (b'{"run":"%s","fill":"' % run.encode()).ljust(int(size) - 2, b"x") + b'"}'


def http(event, context):
    """An answer of a function behind API Gateway; the body's `status` is its status. Fails while the file `fails` is
    there."""
    event = json.loads(event)
    run = effect(key_of(event))
    if os.path.exists("fails"):
        raise Unlucky(run)
    wanted = json.loads(base64.b64decode(event["body"]) if event.get("isBase64Encoded") else event["body"])
    if "slow" in wanted:
        wait_for_file()
    if "binary" in wanted:
        return {"statusCode": 200, "headers": {"Content-Type": "image/png"}, "isBase64Encoded": True,
                "body": base64.b64encode(b"\x89PNG\0" + run.encode()).decode()}
    if "bare" in wanted:
        return {"run": run, "hello": "there"}
    return {"statusCode": wanted.get("status", 200),
            "headers": {"X-Run": run, "Content-Type": "text/plain", "Set-Cookie": "a=b", **wanted.get("headers", {})},
            "multiValueHeaders": {"X-Many": ["1", "2"]}, "cookies": ["session=secret"], "body": f"did {run}"}


def tagged(event, context):
    """A response with the event's tag, and who ran."""
    event = json.loads(event)
    return {"statusCode": 200, "body": f"{event['tag']} {effect(key_of(event))}"}


def stream(event, context):
    """A streaming response in two pieces, with a wait between them."""
    run = effect(key_of(json.loads(event)))
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked",
                     Lambda_Runtime_Function_Response_Mode="streaming", Content_Type="application/octet-stream",
                     Trailer="Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body")
    connection.chunk(f"first {run} ".encode())
    wait_for_file()
    connection.chunk(b"second")
    if os.path.exists("fails"):
        body = base64.b64encode(b'{"errorMessage":"half-way","errorType":"Unlucky"}').decode()
        connection.trailers(Lambda_Runtime_Function_Error_Type="Unlucky", Lambda_Runtime_Function_Error_Body=body)
    else:
        connection.trailers()
    status, _, _ = connection.answer()
    mark("posted", f"stream {status}")
    raise Answered


def stream_again(event, context):
    """A stream that breaks off, and is posted once more by another connection."""
    from runtime import Connection

    run = effect(key_of(json.loads(event)))
    wait_for_file()
    for connection in context.connection, Connection():
        connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked",
                         Lambda_Runtime_Function_Response_Mode="streaming")
        connection.chunk(f"first {run} ".encode())
        if connection is context.connection:
            connection.close()
    connection.trailers()
    status, _, _ = connection.answer()
    mark("posted", f"again {status}")
    raise Answered


def chunky(event, context):
    """A response that is sent in chunks and is no stream."""
    run = effect(key_of(json.loads(event)))
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked")
    connection.chunk(b'{"run":')
    connection.chunk(json.dumps(run).encode() + b"}")
    connection.trailers()
    status, _, _ = connection.answer()
    mark("posted", f"chunky {status}")
    raise Answered


def part_of(record):
    """What a record of a batch is about."""
    if "kinesis" in record:
        return json.loads(base64.b64decode(record["kinesis"]["data"]))["id"], record["kinesis"]["sequenceNumber"]
    if "dynamodb" in record:
        return record["dynamodb"]["Keys"]["id"]["S"], record["dynamodb"]["SequenceNumber"]
    return json.loads(record["body"])["id"], record["messageId"]


def lines(file):
    return open(file).read().split() if os.path.exists(file) else []


def batch(event, context):
    """An effect for each record in its order; it reports those that the file `bad` names. Where the file `report` is,
    that is its answer. A line of `batches` for each call: the records that it was given."""
    parts = [part_of(record) for record in json.loads(event)["Records"]]
    mark("batches", " ".join(key for key, _ in parts))
    bad, fail = lines("bad"), []
    for key, item in parts:
        if key in bad:
            fail.append({"itemIdentifier": item})
            if os.path.exists("stops"):
                break
        else:
            effect(key)
        if os.path.exists("slow") and key in lines("slow"):
            wait_for_file()
    if os.path.exists("raises"):
        raise Unlucky("all of it")
    if os.path.exists("report"):
        return open("report", "rb").read()
    return {"batchItemFailures": fail}


def many(event, context):
    """A batch where only the number of effects counts."""
    records = json.loads(event)["Records"]
    effect(f"records-{len(records)}")
    return {"batchItemFailures": []}


def plain(event, context):
    """A batch's function that knows nothing of reports."""
    for record in json.loads(event)["Records"]:
        effect(part_of(record)[0])
    if os.path.exists("raises"):
        raise Unlucky("all of it")


def says(event, context):
    """What the file `report` holds."""
    effect("says")
    return open("report", "rb").read()


def flood(event, context, mib):
    """A stream of so many MiB."""
    effect(key_of(json.loads(event)))
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked",
                     Lambda_Runtime_Function_Response_Mode="streaming")
    for _ in range(int(mib) * 16):
        connection.chunk(b"x" * 65536)
    connection.trailers()
    connection.answer()
    raise Answered


def prelude(event, context, status):
    """A stream as function URLs have it."""
    effect(key_of(json.loads(event)))
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked",
                     Content_Type="application/vnd.awslambda.http-integration-response",
                     Lambda_Runtime_Function_Response_Mode="streaming")
    head = json.dumps({"statusCode": int(status), "headers": {"X-A": "b"}}).encode()
    for piece in head[:9], head[9:], bytes(5), bytes(3) + b"the ", b"body":
        connection.chunk(piece)
    connection.trailers()
    connection.answer()
    raise Answered


def breaks(event, context):
    """Dies amid a stream."""
    effect(key_of(json.loads(event)))
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked",
                     Lambda_Runtime_Function_Response_Mode="streaming")
    connection.chunk(b"first ")
    wait_for_file()
    os.kill(os.getpid(), signal.SIGKILL)


def halves(event, context):
    """Posts half of an answer and closes, while the file `dies` is there; then it dies."""
    run = effect(key_of(json.loads(event)))
    if os.path.exists("dies"):
        context.connection.begin("POST", f"{BASE}invocation/{context.id}/response", Content_Length=1000)
        context.connection.socket.sendall(b'{"run":')
        context.connection.close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"run": run}


def inherited(event, context):
    """What it got from its parent: open files, and signals blocked and ignored."""
    status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if line.startswith("Sig"))
    files = [os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else ""
             for fd in os.listdir("/proc/self/fd")]
    return {"sockets": sum("socket" in file for file in files), "anon": sum("anon" in file for file in files),
            "files": len(files), "SigBlk": status["SigBlk"], "SigIgn": status["SigIgn"]}


# ---- what comes before the first event ------------------------------------------------------


def start_no_init(connection):
    """Cannot begin, says so, and ends."""
    body = b'{"errorMessage":"no module","errorType":"Runtime.ImportModuleError"}'
    status, _, _ = connection.ask("POST", BASE + "init/error", body,
                                  Lambda_Runtime_Function_Error_Type="Runtime.Import")
    mark("posted", f"init {status}")
    raise SystemExit(7)


no_init = echo


def start_restored(connection):
    """SnapStart: waits to be restored, then begins."""
    status, _, _ = connection.ask("GET", BASE + "restore/next")
    mark("posted", f"restore {status}")


restored = echo


def start_not_restored(connection):
    connection.ask("GET", BASE + "restore/next")
    status, _, _ = connection.ask("POST", BASE + "restore/error", b'{"errorType":"Runtime.AfterRestore"}',
                                  Lambda_Runtime_Function_Error_Type="Runtime.AfterRestore")
    mark("posted", f"restore error {status}")
    raise SystemExit(8)


not_restored = echo


def start_asks(connection, *requests):
    """Each of the requests, METHOD PATH BODY, and what came back."""
    for request in requests:
        method, path, body = request.split(" ", 2)
        status, headers, answer = connection.ask(method, path, body.encode(), X_Odd="Yes",
                                                 Lambda_Extension_Name="inner")
        mark("asked",
             json.dumps([status, dict((name.lower(), value) for name, value in headers), answer.decode("latin-1")]))


asks = echo


def start_extension(connection):
    """Within the function's own process group: an extension that waits for its events, on a connection of its own."""
    if os.fork() == 0:
        status, _, _ = connection.ask("POST", "/2020-01-01/extension/register", b'{"events":["INVOKE"]}',
                                      Lambda_Extension_Name="inner")
        mark("extension", f"registered {status}")
        while True:
            status, _, event = connection.ask("GET", "/2020-01-01/extension/event/next")
            mark("extension", f"{status} {json.loads(event)['eventType']}")


extension = echo


def start_forked(connection, times):
    """So many runtimes beside each other, as where several invocations run at once."""
    for _ in range(int(times) - 1):
        if os.fork() == 0:
            break


def forked(event, context, times):
    return slow(event, context)


def slow_fail(event, context):
    raise Unlucky(slow(event, context)["run"])


def nothing(event, context):
    return b'{"done":true}'


def twice(event, context):
    """Posts its answer, and then another one."""
    run = effect(key_of(json.loads(event)))
    for body in json.dumps({"run": run}), '{"run":"second"}':
        status, _, _ = context.connection.ask("POST", f"{BASE}invocation/{context.id}/response", body.encode())
        mark("posted", f"twice {status}")
    raise Answered


def start_impatient(connection):
    """Asks for an event, goes away, and asks again."""
    from runtime import Connection

    for _ in range(3):
        other = Connection()
        other.begin("GET", BASE + "invocation/next")
        other.close()
    mark("posted", "went away")


impatient = echo


def streamed_report(event, context):
    """As batch(), with its report as a stream. With the file `breaks` an error in the trailers ends it."""
    report = batch(event, context)
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Transfer_Encoding="chunked",
                     Lambda_Runtime_Function_Response_Mode="streaming")
    connection.chunk(json.dumps(report).encode())
    if os.path.exists("breaks"):
        connection.trailers(Lambda_Runtime_Function_Error_Type="Unlucky",
                            Lambda_Runtime_Function_Error_Body=base64.b64encode(b'{"errorType":"Unlucky"}').decode())
    else:
        connection.trailers()
    connection.answer()
    raise Answered


def posts_again(event, context):
    """Loses its connection amid its answer, and posts it once more by another one."""
    body = json.dumps({"run": effect(key_of(json.loads(event)))}).encode()
    connection = context.connection
    connection.begin("POST", f"{BASE}invocation/{context.id}/response", Content_Length=len(body))
    connection.socket.sendall(body[:5])
    connection.close()
    time.sleep(0.05)  # nothing tells it that the other side has seen this
    connection.ask("POST", f"{BASE}invocation/{context.id}/response", body)
    raise Answered


def start_hasty(connection):
    """Answers by a second connection when it has seen the head of an event, and closes the first one."""
    from runtime import Connection

    while True:
        first, second = Connection(), Connection()
        first.begin("GET", BASE + "invocation/next")
        id = ""
        while (line := first.incoming.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            id = value.strip() if name.lower() == "lambda-runtime-aws-request-id" else id
        status, _, _ = second.ask("POST", f"{BASE}invocation/{id}/error", b'{"errorType":"TooLong"}',
                                  Lambda_Runtime_Function_Error_Type="TooLong")
        first.close()
        second.close()
        mark("posted", f"hasty {status}")


hasty = echo


def start_queries(connection):
    """Paths with a query behind them, and a body to a question that has none."""
    while True:
        status, headers, event = connection.ask("GET", BASE + "invocation/next?a=b", b"body")
        id = dict(headers)["Lambda-Runtime-Aws-Request-Id"]
        body = json.dumps({"run": effect(key_of(json.loads(event)))}).encode()
        connection.ask("POST", f"{BASE}invocation/{id}/response?c=d", body)


queries = echo


def insists(event, context):
    """Posts until somebody answers, and each time another body."""
    effect(key_of(json.loads(event)))
    for i in range(10):
        try:
            context.connection.ask("POST", f"{BASE}invocation/{context.id}/response", b'{"post":%d}' % i)
            mark("posted", f"insists {i}")
            raise Answered
        except ConnectionError:
            context.connection.close()


def impatiently(event, context):
    """Posts, and posts something else by another connection before that was answered."""
    from runtime import Connection

    effect(key_of(json.loads(event)))
    target, others = f"{BASE}invocation/{context.id}/response", [context.connection, Connection()]
    for i, connection in enumerate(others):
        connection.begin("POST", target, Content_Length=10)
        connection.socket.sendall(b'{"post":%d}' % i)
        if i == 0:
            wait_for_file("posted-first")
    mark("posted", "both")
    for connection in others:
        connection.answer()
    others[1].close()
    raise Answered
