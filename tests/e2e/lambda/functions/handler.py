"""A function for AWS's own Python client: handler.handle."""
import json
import os


class Unlucky(Exception):
    pass


def effect(key):
    nonce = os.urandom(6).hex()
    handle = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{key} {nonce}\n".encode())
    os.close(handle)
    return nonce


def handle(event, context):
    if "Records" in event:
        for record in event["Records"]:
            effect(json.loads(record["body"])["id"])
        return {"batchItemFailures": []}
    if "requestContext" in event:
        return {"statusCode": 201, "headers": {"X-Run": effect(json.loads(event["body"])["id"])}, "body": "grüße"}
    run = effect(event["id"])
    if os.path.exists("fails"):
        raise Unlucky(run)
    return {"run": run, "text": "grüße", "id": context.aws_request_id,
            "left": context.get_remaining_time_in_millis() > 0}
