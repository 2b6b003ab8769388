"""hapax lambda and batches: each record of SQS, Kinesis and DynamoDB streams is an operation. What a fake Runtime API
(tests/servers/lambda_api.py) is answered, what of a batch the function gets, and what comes again.
"""
import contextlib
import json
import time

import pytest

import lambda_bed as bed
from conftest import wait_until
from lambda_bed import Function, dynamodb, identifiers, kinesis, redelivered, reported, sqs
from proxy import Proxy

SOURCES = {"sqs": sqs, "kinesis": kinesis, "dynamodb": dynamodb}


@pytest.fixture
def function(hapax, store):
    with contextlib.ExitStack() as stack:
        def start(name="batch", *options, store=store, **more):
            return stack.enter_context(Function(hapax, store, name, *options, **more))

        yield start


@pytest.fixture
def redis():
    return bed.redis_server()


@pytest.fixture
def two(function, redis):
    """Two sandboxes on one store: the first is at work on records that the second gets, too."""
    return function(store=redis.uri()), function(store=redis.uri())


def busy(one, event, key):
    """Begins a batch and waits until the function is at a record."""
    one.file("slow", key)
    running = one.begin(event)
    one.sandbox.wait_for(lambda: one.effects()[key] == 1, "the effect")
    return running


@pytest.mark.parametrize("policy, state, effects", [("hold", "unknown", {"a": 1, "b": 1}),
                                                    ("rerun", "completed", {"a": 2, "b": 2, "c": 1})])
def test_a_batch_that_is_cut_off_half_way(function, hapax, redis, policy, state, effects):
    """No record of it is done, those before the cut neither: all wait for an operator, or all run again."""
    one = function("batch", "--on-expired", policy, "--scope", f"cut-{policy}", store=redis.uri())
    event = sqs("a", "b", "c")
    one.file("slow", "b")
    one.api.invoke(event, deadline_s=0.5)
    one.sandbox.wait_for(lambda: one.effects()["b"] == 1, "the effect")
    one.cold().file("go")

    def ended():
        back = reported(one.invoke(event))
        listed = hapax("list", "--store", redis.uri(), "--scope", f"cut-{policy}", "--state", state, "--json").out
        return len(back) == (3 if policy == "hold" else 0) and len(listed.splitlines()) == 3

    wait_until(ended, "the lease's end")
    assert one.effects() == effects
    if policy == "hold":
        for key, *word in ("m-a", "--complete", "200"), ("m-b", "--fail"), ("m-c", "--fail"):
            assert hapax("resolve", "--store", redis.uri(), "--scope", "cut-hold", key, *word).code == 0
        assert reported(one.invoke(event)) == []
        assert one.effects() == {"a": 1, "b": 2, "c": 1}


@pytest.mark.parametrize("policy, back", [("hold", ["m-a"]), ("rerun", [])])
def test_a_record_whose_outcome_is_not_stored(function, redis, policy, back):  # promise 4
    """Under hold it has to come again, and waits for an operator then; under rerun it would only run once more."""
    with Proxy(redis.port) as proxy:
        one = function("batch", "--on-expired", policy, "--save-wait", "300ms", store=f"redis://127.0.0.1:{proxy.port}")
        running = busy(one, sqs("a"), "a")
        proxy.refuse()
        one.file("go")
        assert reported(running.wait()) == back
        assert one.sandbox.text().count("an outcome was not stored") == 1


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_batch_that_comes_again_does_not_run(function, make):
    """Nothing is left of it: an empty report, and the function is not asked; also in a new process."""
    one = function()
    event = make("a", "b", "c")
    for _ in range(2):
        assert reported(one.invoke(event)) == []
    assert reported(one.cold().invoke(event)) == []
    assert one.effects() == {"a": 1, "b": 1, "c": 1}
    assert one.lines("batches") == ["a b c"]


def test_a_record_is_handed_on_as_it_came(function):
    """Those that are done are taken out, and nothing else is changed."""
    one = function("echo")
    first = one.invoke(sqs("a"))
    assert first.json["event"] == sqs("a")
    mixed = sqs("a", "b", "c")
    mixed["Records"][1]["messageAttributes"] = {"n": {"stringValue": "1.50", "dataType": "Number"}}
    mixed["More"] = {"kept": [1, None, "ü"]}
    one.invoke(mixed)
    assert one.effects()["none"] == 2, one.effects()
    assert one.invoke(mixed).kind == "response" and one.effects()["none"] == 2


def test_done_ones_are_taken_out(function):
    """Of a batch that is mixed otherwise than before the function gets the new ones, in their order."""
    one = function()
    assert reported(one.invoke(sqs("b", "d"))) == []
    assert reported(one.invoke(sqs("a", "b", "c", "d", "e"))) == []
    assert one.lines("batches") == ["b d", "a c e"]


def test_a_tombstone_is_done(hapax, function, store):
    """What was done longer ago than outcomes are kept is done, in a batch of its own and among new ones."""
    one = function("batch", "--lease", "1s", "--retention", "1s", "--tombstone", "1h")
    assert reported(one.invoke(sqs("a"))) == []
    wait_until(lambda: [line["state"] for line in hapax("list", "--store", store, "--json").lines] == ["expired"],
               "the end of retention")
    assert reported(one.invoke(sqs("a"))) == [] and reported(one.invoke(sqs("a", "b"))) == []
    assert one.effects() == {"a": 1, "b": 1} and one.lines("batches") == ["a", "b"]


def test_the_functions_own_report_is_kept(function):
    """What it reports is reported and runs again; what it does not is done."""
    one = function()
    one.file("bad", "b")
    assert reported(one.invoke(sqs("a", "b", "c"))) == ["m-b"]
    one.gone("bad")
    assert reported(one.invoke(sqs("a", "b", "c"))) == []
    assert one.lines("batches") == ["a b c", "b"]


@pytest.mark.some()
@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
@pytest.mark.parametrize("make", [kinesis, dynamodb], ids=["kinesis", "dynamodb"])
def test_what_follows_a_record_that_a_stream_failed_at_is_not_done(function, make, stops):
    """A function may stop there and report that one alone, as AWS's examples do: nothing behind it is taken for
    done."""
    one = function()
    one.file("bad", "b")
    if stops:
        one.file("stops")
    event = make("a", "b", "c")
    answer = one.invoke(event)
    assert identifiers(event)[0] not in reported(answer)
    left = redelivered(event, answer)
    assert identifiers(left) == identifiers(event)[1:]
    one.gone("bad")
    assert redelivered(left, one.invoke(left)) is None
    assert one.lines("batches") == ["a b c", "b c"]


def test_those_in_flight_are_reported_and_the_rest_runs(two):
    """Merged with the function's own report, no record twice."""
    one, other = two
    running = busy(one, sqs("a", "b"), "b")
    other.gone("slow")
    other.file("bad", "d")
    assert sorted(reported(other.invoke(sqs("a", "b", "c", "d")))) == ["m-a", "m-b", "m-d"]
    one.file("go")
    one.gone("bad")
    assert reported(running.wait()) == []
    assert reported(other.invoke(sqs("a", "b", "d"))) == []
    assert one.effects() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_all_in_flight_ask_nobody(two):
    """The function is not given an empty batch."""
    one, other = two
    running = busy(one, sqs("a", "b"), "b")
    assert sorted(reported(other.invoke(sqs("a", "b")))) == ["m-a", "m-b"]
    one.file("go")
    assert reported(running.wait()) == []
    assert one.lines("batches") == ["a b"]


def test_a_function_that_raises_has_done_none(function):
    """Its error is passed on, or all are reported: either way all come again, and run."""
    one = function()
    one.file("raises")
    event = sqs("a", "b")
    assert redelivered(event, one.invoke(event)) == event
    one.gone("raises")
    assert redelivered(event, one.invoke(event)) is None
    assert one.effects() == {"a": 2, "b": 2}


def test_an_error_does_not_undo_what_was_done_before(function):
    """A batch of which some are done fails: those are not run again, whatever comes again."""
    one = function()
    assert reported(one.invoke(sqs("a"))) == []
    one.file("raises")
    event = sqs("a", "b")
    left = redelivered(event, one.invoke(event))
    one.gone("raises")
    assert "b" in json.dumps(left)
    assert redelivered(left, one.invoke(left)) is None
    assert one.effects() == {"a": 1, "b": 2}


ALL = ['{"batchItemFailures":[{"itemIdentifier":""}]}', '{"batchItemFailures":[{"itemIdentifier":null}]}',
       '{"batchItemFailures":[{"wrong":"m-a"}]}', '{"batchItemFailures":[{"itemIdentifier":"m-z"}]}', "not json",
       '{"batchItemFailures":[{"itemIdentifier":"m-a"}', '{"batchItemFailures":["m-a"]}']
NONE = ["", "null", "{}", '{"batchItemFailures":null}', '{"batchItemFailures":[]}', '{"statusCode":200}']


def test_a_report_that_the_service_does_not_understand_fails_the_batch(function):
    """As it does at AWS: all of it comes again, and none of it is taken for done."""
    one = function()
    for i, report in enumerate(ALL):
        one.file("report", report.replace("m-a", f"m-a{i}"))
        event = sqs(f"a{i}", f"b{i}")
        assert redelivered(event, one.invoke(event)) == event, report
        one.gone("report")
        assert redelivered(event, one.invoke(event)) is None, report
    assert set(one.effects().values()) == {2} and len(one.effects()) == 2 * len(ALL)


def test_an_empty_report_is_success(function):
    """In every spelling that AWS takes for one."""
    one = function()
    for i, report in enumerate(NONE):
        one.file("report", report)
        event = sqs(f"a{i}", f"b{i}")
        for _ in range(2):
            assert redelivered(event, one.invoke(event)) is None, report
    assert set(one.effects().values()) == {1} and len(one.effects()) == 2 * len(NONE)


def test_a_malformed_report_beside_those_in_flight_is_no_success(two):
    """Nothing of the batch may be lost by merging."""
    one, other = two
    running = busy(one, sqs("a"), "a")
    other.gone("slow")
    other.file("report", "not json")
    event = sqs("a", "b")
    assert redelivered(event, other.invoke(event)) == event
    one.gone("report")
    one.file("go")
    running.wait()
    assert redelivered(event, other.invoke(event)) is None
    assert one.effects() == {"a": 1, "b": 2}


def test_the_same_key_twice_in_a_batch_runs_once(function):
    """Two messages of one operation, sent twice by a producer."""
    one = function("batch", "--key", "Idempotency-Key")
    event = sqs("a=m-1", "a=m-2", "b=m-3")
    for record, key in zip(event["Records"], "aab"):
        record["messageAttributes"] = {"Idempotency-Key": {"stringValue": key, "dataType": "String"}}
    answer = one.invoke(event)
    left = redelivered(event, answer)
    assert one.effects() == {"a": 1, "b": 1}
    while left:  # the second may be in flight as long as the first is
        left = redelivered(left, one.invoke(left))
    assert one.effects() == {"a": 1, "b": 1}


def test_the_same_key_twice_shares_its_result(function):
    """Where the first one fails, the second is not taken for done."""
    one = function("batch", "--key", "/body/id", "--fingerprint", "off")
    one.file("bad", "a")
    event = sqs("a=m-1", "b=m-2", "a=m-3")
    answer = one.invoke(event)
    assert sorted(reported(answer)) == ["m-1", "m-3"]
    one.gone("bad")
    while left := redelivered(event, answer):
        event, answer = left, one.invoke(left)
    assert one.effects() == {"a": 1, "b": 1}


def test_the_same_key_of_two_owners_is_two_records(function):
    """And a record without an owner is reported."""
    one = function("batch", "--key", "/body/id", "--owner", "/body/owner")
    event = sqs("k=m-1", "k=m-2", "k=m-3")
    for record, owner in zip(event["Records"], "ab"):
        record["body"] = json.dumps({"id": "k", "owner": owner})
    assert reported(one.invoke(event)) == ["m-3"]
    assert one.effects() == {"k": 2}


def test_a_record_that_is_another_of_the_same_key_fails_alone(function):
    """A mismatch goes its way to the dead letters, the others run."""
    one = function()
    assert reported(one.invoke(sqs("a=m-1"))) == []
    assert reported(one.invoke(sqs("x=m-1", "b"))) == ["m-1"]
    assert one.effects() == {"a": 1, "b": 1}


def test_a_receipt_and_a_count_are_not_of_the_fingerprint(function):
    """They differ with each delivery."""
    one = function()
    event = sqs("a")
    assert reported(one.invoke(event)) == []
    event["Records"][0]["receiptHandle"] = "other"
    event["Records"][0]["attributes"]["ApproximateReceiveCount"] = "7"
    assert reported(one.invoke(event)) == []
    assert one.effects() == {"a": 1}


# ---- order --------------------------------------------------------------------------------------------


def test_a_group_waits_for_its_first(two):
    """FIFO: what follows a record in flight in its group is not run, and is reported with it."""
    one, other = two
    running = busy(one, sqs("a", groups="g"), "a")
    other.gone("slow")
    event = sqs("a", "b", "c", groups="ghg")
    answer = other.invoke(event)
    assert {"m-a", "m-c"} <= set(reported(answer))
    assert one.effects()["c"] == 0
    assert ("m-b" in reported(answer)) != (one.effects()["b"] == 1)
    one.file("go")
    running.wait()
    left = redelivered(event, answer)
    assert redelivered(left, other.invoke(left)) is None
    assert one.effects() == {"a": 1, "b": 1, "c": 1}
    order = [line.split()[0] for line in one.lines("effects")]
    assert order.index("a") < order.index("c")


def test_a_fifo_report_that_a_function_makes_is_kept(function):
    """A function that stops at the first failure reports the rest; all that it did is done."""
    one = function()
    one.file("bad", "b c")
    event = sqs("a", "b", "c", groups="ggg")
    assert reported(one.invoke(event)) == ["m-b", "m-c"]
    one.gone("bad")
    left = redelivered(event, one.invoke(event))
    assert left is None
    assert [line.split()[0] for line in one.lines("effects")] == ["a", "b", "c"]


def test_done_ones_in_the_middle_of_a_group_are_taken_out(function):
    one = function()
    assert reported(one.invoke(sqs("b", groups="g"))) == []
    event = sqs("a", "b", "c", groups="ggg")
    event["Records"][1] = sqs("b", groups="g")["Records"][0]
    assert reported(one.invoke(event)) == []
    assert one.lines("batches") == ["b", "a c"]


@pytest.mark.parametrize("make", [kinesis, dynamodb], ids=["kinesis", "dynamodb"])
def test_a_stream_keeps_its_order(two, make):
    """What follows a record in flight waits for it; the stream comes again from there, and nothing runs twice."""
    one, other = two
    event = make("a", "b", "c")
    part = {"Records": event["Records"][1:2]}
    running = busy(one, part, "b")
    other.gone("slow")
    answer = other.invoke(event)
    left = redelivered(event, answer)
    assert left is not None and identifiers(left)[0] in identifiers(event)[:2]
    assert one.effects()["c"] == 0
    one.file("go")
    running.wait()
    while left:
        left = redelivered(left, other.invoke(left))
    assert one.effects() == {"a": 1, "b": 1, "c": 1}
    order = [line.split()[0] for line in one.lines("effects")]
    assert order.index("b") < order.index("c")


# ---- without reports ------------------------------------------------------------------------------------


def test_without_reports_what_is_not_done_fails_the_invocation(function, redis):
    """--batch-report off: an answer means all of it, so one in flight is an error of the invocation."""
    one = function(store=redis.uri())
    other = function("plain", "--batch-report", "off", store=redis.uri())
    running = busy(one, sqs("a"), "a")
    event = sqs("a", "b")
    answer = other.invoke(event)
    assert answer.kind == "error" and answer.error_type.startswith("Hapax."), answer
    one.file("go")
    running.wait()
    assert other.invoke(event).kind == "response"
    assert one.effects() == {"a": 1, "b": 1}


def test_without_reports_a_return_is_success_of_all(function):
    one = function("plain", "--batch-report", "off")
    event = sqs("a", "b")
    for _ in range(2):
        assert one.invoke(event).kind == "response"
    assert one.effects() == {"a": 1, "b": 1}


def test_without_reports_an_error_is_a_failure_of_all(function):
    one = function("plain", "--batch-report", "off")
    event = sqs("a", "b")
    one.file("raises")
    assert one.invoke(event).error_type == "Unlucky"
    one.gone("raises")
    assert one.invoke(event).kind == "response"
    assert one.effects() == {"a": 2, "b": 2}


# ---- what goes wrong --------------------------------------------------------------------------------------


def test_a_store_that_is_away_fails_all_of_it(function, redis):
    """Nothing runs, and everything comes again."""
    with Proxy(redis.port) as proxy:
        one = function("batch", "--timeout", "300ms", store=f"redis://127.0.0.1:{proxy.port}")
        event = sqs("a", "b")
        proxy.refuse()
        assert redelivered(event, one.invoke(event)) == event
        assert one.effects() == {}
        proxy.listen()
        wait_until(lambda: redelivered(event, one.invoke(event)) is None, "the store being found again")
        assert one.effects() == {"a": 1, "b": 1}


def test_a_batch_whose_answer_was_lost_is_not_run_again(function):
    """Killed between storing and posting: all of it comes again, and is done."""
    one = function()
    event = sqs("a", "b", "c")
    one.file("bad", "b")
    with one.api.hold("response") as held:
        one.api.invoke(event)
        held.wait()
        one.sandbox.kill()
    one.gone("bad")
    one.sandbox.ready()
    assert redelivered(event, one.invoke(event)) is None
    assert one.effects() == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("policy, effects", [("rerun", 2), ("hold", 1)])
def test_a_batch_whose_function_died_amid_it(function, policy, effects):
    """Its result is unknown: it is run again once the lease is over, or left to an operator."""
    one = function("batch", "--on-expired", policy)
    event = sqs("a", "b")
    one.file("slow", "a")
    one.api.invoke(event, deadline_s=0.5)
    one.wait_lines("effects", 1)
    one.sandbox.kill()
    one.gone("slow")
    one.sandbox.ready()
    left, until = event, time.monotonic() + (60 if policy == "rerun" else 4)
    while left and time.monotonic() < until:
        left = redelivered(left, one.invoke(left))
    assert (left is None) == (policy == "rerun")
    assert one.effects()["a"] == effects and one.effects()["b"] == (1 if policy == "rerun" else 0)


def test_no_batch_is_too_long(function):
    """Ten thousand messages, SQS's most: run once, replayed, and halved."""
    one = function("many")

    def batch(numbers):
        return sqs(*(f"k{i}" for i in numbers))

    for _ in range(2):
        assert reported(one.invoke(batch(range(10000)))) == []
    assert reported(one.invoke(batch(range(5000, 15000)))) == []
    assert one.effects() == {"records-10000": 1, "records-5000": 1}


def test_records_over_the_most_are_reported(function):
    """Those behind the first ten thousand."""
    one = function("many")
    assert reported(one.invoke(sqs(*(f"k{i}" for i in range(10002))))) == ["m-k10000", "m-k10001"]
    assert one.effects() == {"records-10000": 1}


@pytest.mark.parametrize("make, pointer", [(sqs, "/body/id"), (kinesis, "/kinesis/data/id"),
                                           (dynamodb, "/dynamodb/Keys/id/S")], ids=SOURCES)
def test_a_pointer_goes_into_the_payload(function, make, pointer):
    """Two records of one id are one operation, whatever their source calls them."""
    one = function("batch", "--key", pointer, "--fingerprint", "off")
    event, left = make("a", "b", "a"), True
    answer = one.invoke(event)
    while left := redelivered(event, answer):
        event, answer = left, one.invoke(left)
    assert one.effects() == {"a": 1, "b": 1}


def test_what_looks_like_a_batch_and_is_none(function):
    """It is answered, by the function or by an error; nothing ends."""
    one = function("echo")
    for records in ([], None, [1, 2], {"a": 1}, [{"eventSource": "aws:sqs"}],
                    [{"eventSource": "aws:kinesis", "kinesis": []}]):
        assert one.invoke({"Records": records}).kind in ("response", "error"), records
    assert one.invoke(sqs("a")).kind == "response"


# ---- single events with an id -------------------------------------------------------------------------------


SINGLE = {
    "eventbridge": {"version": "0", "id": "e-1", "detail-type": "Order", "source": "shop", "account": "000000000000",
                    "time": "2026-01-01T00:00:00Z", "region": "eu-west-1", "resources": [], "detail": {"n": 1}},
    "sns": {"Records": [{"EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": "arn:aws:sns:x",
                         "Sns": {"Type": "Notification", "MessageId": "s-1", "TopicArn": "arn:aws:sns:t",
                                 "Message": "{\"n\":1}", "Timestamp": "2026-01-01T00:00:00Z", "Subject": None,
                                 "MessageAttributes": {}}}]},
    "cloudevent": {"specversion": "1.0", "id": "c-1", "source": "/shop", "type": "order", "data": {"n": 1}},
}


@pytest.mark.parametrize("kind", SINGLE)
def test_an_event_with_an_id_is_known_by_it(function, kind):
    """Without a word about keys: what its source calls it."""
    one = function("echo")
    first, again = one.invoke(SINGLE[kind]), one.cold().invoke(SINGLE[kind])
    bed.agree(first, again)
    assert len(one.lines("effects")) == 1
