/* SPDX-License-Identifier: Apache-2.0
 *
 * The SQS source and sink against a stand-in: test_sqs_source URI (tests/servers/sqs_server.mjs).
 * test_sqs.py has the cases that need the stand-in's faults.
 */
#include "../cases.h"
#include "sqs_bed.h"

#include <stdio.h>
/* behind what it needs */

static const char *uri;

/* Makes a queue with these bodies, one per character, and a source for it. */
static void open_with(struct bed *bed, const char *queue, const char *bodies, const char *more)
{
    open_sink(bed, uri);
    bed->sink->type->make(bed->sink, queue);
    for (; *bodies; bodies++) {
        char body[2] = {*bodies, '\0'};

        assert_int_equal(send_text(bed, queue, "g", body), HAPAX__SENT_OK);
    }
    open_source(bed, uri, queue, more);
}

/* Whether no message waits, by the queue's own count. The source asks for it every five seconds:
 * another count than 0 may be of a time when messages still waited. */
static bool is_empty(struct bed *bed)
{
    int64_t counted_us = hapax__monotonic_us() + 15000000;

    turn_until(bed, bed->source->lag == 0 || hapax__monotonic_us() > counted_us);
    return bed->source->lag == 0 && !bed->source->type->take(bed->source);
}

/* An acknowledged message is gone. A returned one comes again at once, a postponed one after its
 * time. So does one that is not released when the source is closed. */
CASE(each_release_does_what_it_says)
{
    struct hapax__delivered *hand[4], *again;
    struct bed bed;
    int64_t begun_us;

    open_with(&bed, "release", "1234", "");
    for (size_t i = 0; i < 4; i++)
        hand[i] = take(&bed);
    assert_false(hand[1]->message.redelivered);
    assert_true(hand[1]->message.time_us > 0 && is_text(hand[1]->message.from, "release"));
    release(&bed, hand[0], HAPAX__RELEASE_ACK);
    begun_us = hapax__monotonic_us();
    release(&bed, hand[2], HAPAX__RELEASE_RETURN);
    again = take(&bed);
    assert_true(is_text(again->message.body, "3") && again->message.redelivered);
    assert_true(hapax__monotonic_us() - begun_us < 25000000); /* a hidden message would take 30 s */
    release(&bed, again, HAPAX__RELEASE_ACK);
    begun_us = hapax__monotonic_us();
    bed.source->type->postpone(bed.source, hand[1], 1500);
    again = take(&bed);
    assert_true(is_text(again->message.body, "2") && again->message.redelivered);
    assert_true(hapax__monotonic_us() - begun_us >= 1900000); /* whole seconds */
    release(&bed, again, HAPAX__RELEASE_ACK);
    release(&bed, hand[3], HAPAX__RELEASE_RETURN);
    close_source(&bed); /* sends the releases that are left */
    open_source(&bed, uri, "release", "");
    again = take(&bed);
    assert_true(is_text(again->message.body, "4"));
    release(&bed, again, HAPAX__RELEASE_ACK);
    close_source(&bed);
    open_source(&bed, uri, "release", "");
    assert_true(is_empty(&bed));
    close_bed(&bed);
}

/* Plays a case with short times. It may fail because the process stands still for a moment, so it
 * is played again with messages that are hidden for longer. A real fault fails each time. */
static void at_some_pace(bool (*holds)(int hidden_s))
{
    static const int hidden_s[] = {2, 8};

    for (size_t i = 0; i < sizeof(hidden_s) / sizeof(hidden_s[0]); i++) {
        if (holds(hidden_s[i]))
            return;
        print_message("# not where they are hidden for %d s\n", hidden_s[i]);
    }
    assert_true(holds(20));
}

/* Whether no message came to the other source, and none came twice to the first. */
static bool in_hand_stays_hidden(int hidden_s)
{
    struct hapax__delivered *first, *next;
    struct bed bed, other;
    char queue[32], more[32];
    bool hidden = true;

    (void)snprintf(queue, sizeof(queue), "hidden-%d", hidden_s);
    (void)snprintf(more, sizeof(more), "&visibility=%ds", hidden_s);
    open_with(&bed, queue, "123456789abcdef", more);
    first = take(&bed);
    open_sink(&other, uri);
    open_source(&other, uri, queue, more);
    for (int i = 0; i < 6 * hidden_s; i++) {
        turn_for(&bed, 125000);
        turn_for(&other, 125000);
        hidden &= other.source->type->take(other.source) == NULL;
    }
    release(&bed, first, HAPAX__RELEASE_ACK);
    for (int i = 1; i < 15 && hidden; i++) {
        next = take(&bed);
        hidden &= !next->message.redelivered;
        release(&bed, next, HAPAX__RELEASE_ACK);
    }
    hidden &= bed.source->voided == 0;
    close_bed(&bed);
    hidden = hidden && is_empty(&other);
    close_bed(&other);
    return hidden;
}

/* No other consumer gets a message in hand, taken or not, for however long. */
CASE(what_is_in_hand_stays_hidden)
{
    at_some_pace(in_hand_stays_hidden);
}

/* Whether the second delivery was kept until it was released. */
static bool forgotten_is_voided(int hidden_s)
{
    struct hapax__delivered *first, *second;
    struct bed bed;
    char queue[32], more[32];
    bool empty;

    (void)snprintf(queue, sizeof(queue), "voided-%d", hidden_s);
    (void)snprintf(more, sizeof(more), "&visibility=%ds", hidden_s);
    open_with(&bed, queue, "1", more);
    first = take(&bed);
    (void)poll(NULL, 0, hidden_s * 1000 + 500); /* the process stands still */
    turn_until(&bed, first->voided);
    assert_int_equal(bed.source->voided, 1);
    second = take(&bed);
    assert_true(is_text(second->message.body, "1") && second->message.redelivered);
    release(&bed, first, HAPAX__RELEASE_ACK);
    release(&bed, second, HAPAX__RELEASE_ACK);
    empty = is_empty(&bed);
    close_bed(&bed);
    return empty;
}

/* Without a turn for longer than a message is hidden, other consumers may have it. So it is voided,
 * and released without a call. */
CASE(what_is_forgotten_is_voided)
{
    at_some_pace(forgotten_is_voided);
}

/* The messages of a group have one order, and come again in it. */
CASE(a_group_is_given_back_in_its_order)
{
    struct hapax__delivered *hand[5];
    struct bed bed;

    open_with(&bed, "group.fifo", "12345", "");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++) {
            char body[2] = {(char)('1' + i), '\0'};

            hand[i] = take(&bed);
            assert_true(is_text(hand[i]->message.body, body) && is_text(hand[i]->order, "g"));
        }
        if (round == 2)
            break;
        bed.source->type->postpone(bed.source, hand[0], 1000);
        for (int i = 4; i > 0; i--) /* released in any order */
            release(&bed, hand[i], HAPAX__RELEASE_RETURN);
    }
    for (int i = 0; i < 5; i++)
        release(&bed, hand[i], HAPAX__RELEASE_ACK);
    assert_true(is_empty(&bed));
    close_bed(&bed);
}

/* A copy has all of the message. It and a copy of it are known by the same id. */
CASE(a_copy_has_all_of_it)
{
    struct hapax_message_header own = {hapax_str("hapax-reason"), hapax_str("failed")};
    struct hapax_message_header headers[] = {{hapax_str("plain"), hapax_str("text")},
                                             {hapax_str("empty"), hapax_str("")},
                                             {hapax_str("bytes"), {(const uint8_t *)"\0\xff", 2}}};
    struct hapax__letter letter = {.to = "copy",
                                   .body = hapax_str("a \"body\" \xc3\xa9\n"),
                                   .id = hapax_str("first"),
                                   .content_type = hapax_str("text/plain"),
                                   .headers = headers,
                                   .header_count = 3};
    struct bed bed;

    open_with(&bed, "copy", "", "");
    turn_until(&bed, bed.source->connected || bed.error != HAPAX_ERR_NONE);
    assert_int_equal(send_letter(&bed, &letter), HAPAX__SENT_OK);
    for (int i = 0; i < 2; i++) {
        struct hapax__delivered *one = take(&bed);
        const struct hapax_message *message = &one->message;

        assert_true(is_text(message->id, "first") && is_text(message->content_type, "text/plain"));
        assert_true(is_text(header(one, "plain"), "text") && header(one, "bytes").len == 2);
        assert_true(header(one, "empty").ptr && header(one, "empty").len == 0);
        assert_int_equal(message->header_count, 5 + (size_t)i);
        letter = (struct hapax__letter){.to = "copy",
                                        .body = message->body,
                                        .id = message->id,
                                        .content_type = message->content_type,
                                        .headers = message->headers,
                                        .header_count = message->header_count,
                                        .own = &own,
                                        .own_count = 1};
        if (i == 0)
            assert_int_equal(send_letter(&bed, &letter), HAPAX__SENT_OK);
        release(&bed, one, HAPAX__RELEASE_ACK);
    }
    close_bed(&bed);
}

/* A missing queue is refused by its name, and found once it exists. Letters to it are refused,
 * unless it may be made. */
CASE(a_missing_queue_is_refused_or_made)
{
    struct bed bed;

    open_sink(&bed, uri);
    open_source(&bed, uri, "missing", "");
    turn_until(&bed, bed.error != HAPAX_ERR_NONE);
    assert_int_equal(bed.error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(bed.source->text, "queue \"missing\" does not exist"));
    assert_int_equal(send_text(&bed, "missing", "", "1"), HAPAX__SENT_REFUSED);
    assert_non_null(strstr(bed.sink->why, "there is no such queue"));
    assert_int_equal(send_text(&bed, "no.name", "", "1"), HAPAX__SENT_REFUSED);
    bed.sink->type->close(bed.sink); /* the sink would remember it for five seconds */
    bed.sink = sink_at(uri);
    bed.sink->type->make(bed.sink, "missing");
    assert_int_equal(send_text(&bed, "missing", "", "1"), HAPAX__SENT_OK);
    release(&bed, take(&bed), HAPAX__RELEASE_ACK);
    close_bed(&bed);
}

/* No more messages are asked for than there is room for. What comes without room is returned. */
CASE(no_more_comes_than_there_is_room_for)
{
    struct hapax__delivered *hand[10];
    struct bed bed;

    open_with(&bed, "room", "123456789abcdefghij", "&visibility=2s");
    bed.room = 10;
    for (size_t i = 0; i < 10; i++) {
        hand[i] = take(&bed);
        bed.room--;
    }
    bed.room = 0;
    turn_for(&bed, 500000);
    assert_null(bed.source->type->take(bed.source));
    for (size_t i = 0; i < 10; i++)
        release(&bed, hand[i], HAPAX__RELEASE_ACK);
    bed.room = 40;
    for (size_t i = 10; i < 19; i++)
        release(&bed, take(&bed), HAPAX__RELEASE_ACK);
    close_bed(&bed);
}

int main(int argc, char **argv)
{
    must(argc == 2);
    uri = argv[1];
    return cases_run(NULL, NULL);
}
