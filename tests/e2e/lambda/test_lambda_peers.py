"""hapax lambda between peers that keep to HTTP in ways of their own: reports as streams, posts that come twice, answers
before the event was read, paths with queries. Whatever they do, what is told was stored, and nothing that failed is
taken for done.
"""
import contextlib
import json

import pytest

import lambda_bed as bed
from lambda_bed import Function, agree, kinesis, reported, sqs


@pytest.fixture
def function(hapax):
    with contextlib.ExitStack() as stack:
        def start(name, *options, store="memory:", **more):
            return stack.enter_context(Function(hapax, store, name, *options, **more))

        yield start


@pytest.mark.parametrize("make", [sqs, kinesis])
def test_a_report_that_is_a_stream_is_a_report(function, make):
    """What it names comes again, and runs."""
    one = function("streamed_report")
    one.file("bad", "b")
    event = make("a", "b")
    assert reported(one.invoke(event)) == bed.identifiers(event)[1:]
    one.gone("bad")
    assert reported(one.invoke(event)) == []
    assert one.effects() == {"a": 1, "b": 1}


def test_a_stream_whose_trailers_are_an_error_has_done_no_record(function):
    one = function("streamed_report")
    one.file("breaks")
    answer = one.invoke(sqs("a"))
    assert (answer.kind, answer.error_type) == ("error", "Unlucky")
    one.gone("breaks")
    assert reported(one.invoke(sqs("a"))) == []
    assert one.effects() == {"a": 2}


def test_an_answer_that_is_posted_again_is_stored_before_it_is_told(function):
    one = function("posts_again", "--key", "/id")
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_an_event_may_be_answered_before_it_was_read(function):
    """Its memory stays until it has been sent, or cannot be."""
    one = function("hasty", "--key", "/id")
    for i in range(3):
        assert one.invoke(json.dumps({"id": f"k{i}", "fill": "x" * (5 << 20)}).encode()).error_type == "TooLong"


def test_a_query_behind_a_path_changes_nothing(function):
    one = function("queries", "--key", "/id")
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_an_error_that_was_too_long_to_be_kept_is_no_success(function):
    """Of an event whose sender takes any answer for its being done."""
    one = function("fail", "--on-failed", "replay", "--max-response", "8")
    one.file("fails")
    event = {"version": "0", "id": "e-1", "detail-type": "Order", "source": "shop", "detail": {}}
    assert [one.invoke(event).kind, one.invoke(event).kind] == ["error", "error"]
    assert one.effects() == {"e-1": 1}


def test_a_report_may_spell_an_identifier_with_escapes(function):
    """It names the record all the same, and only that one."""
    one = function("batch")
    one.file("report", '{"batchItemFailures":[{"itemIdentifier":"m\\u002db"}]}')
    assert reported(one.invoke(sqs("a", "b"))) == ["m-b"]
    one.file("report", '{"batchItemFailures":[]}')
    assert reported(one.invoke(sqs("a", "b"))) == []
    assert one.effects() == {"a": 1, "b": 2}


def test_a_post_that_did_not_arrive_says_the_same_when_it_comes_again(function):
    """The service is away while the first one is posted; what is told then is what is stored."""
    one = function("insists", "--key", "/id")
    one.api.reset("response", times=2)  # by the connection that is kept, and by a new one
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1} and one.lines("posted") != ["insists 0"]


def test_a_second_post_does_not_overtake_the_first(function):
    """The service is slow to take the first one. What it takes in the end is what is stored."""
    one = function("impatiently", "--key", "/id")
    held = one.api.hold("response")
    invocation = one.begin({"id": "k"})
    held.wait()
    one.file("posted-first")
    one.wait_lines("posted", 1)
    invocation.finished.wait(0.3)  # by the second one, if it went past
    held.go()
    agree(invocation.wait(), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}
    one.api.misuse.clear()  # the second answer to an invocation that is over
