/* SPDX-License-Identifier: Apache-2.0
 *
 * The RabbitMQ source and sink against a real broker: test_amqp_source URI; with `impatient` behind
 * it if the broker's consumer_timeout is a few seconds (tests/broker/test_amqp.py).
 */
#include "../unit/oom.h"
#include "amqp_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* behind what it needs */
#include <cmocka.h>
#include <sys/socket.h>

static const char *uri;
static amqp_connection_state_t admin;

static struct bed open_bed(const char *queue, uint32_t in_hand_max)
{
    struct bed bed = {.source = source_at(in_hand_max, "%s?queue=%s", uri, queue), .room = 100};

    turn_until(&bed, bed.source->connected);
    return bed;
}

static void close_bed(struct bed *bed)
{
    if (bed->source)
        bed->source->type->close(bed->source, PATIENCE_MS);
    if (bed->sink)
        bed->sink->type->close(bed->sink);
}

static void release(struct bed *bed, struct hapax__delivered *delivered, enum hapax__release how)
{
    bed->source->type->release(bed->source, delivered, how);
}

/* Ends the source's connection without the source. */
static void cut(struct hapax__source *source)
{
    struct pollfd fds[HAPAX__POLLFDS_MAX];
    int64_t due_us;

    assert_int_equal(source->type->watch(source, fds, &due_us), 1);
    assert_int_equal(shutdown(fds[0].fd, SHUT_RDWR), 0);
}

/* ---- releasing -------------------------------------------------------------------------- */

/* An acknowledged message is gone. A returned one comes again as redelivered. A rejected one goes
 * to the broker's own dead letters. One that is not released waits for the next consumer. */
static void each_release_does_what_it_says(void **state)
{
    amqp_table_entry_t arguments[] = {argument("x-dead-letter-exchange", ""),
                                      argument("x-dead-letter-routing-key", "release.rejected")};
    struct hapax__delivered *one, *two, *three, *four, *five;
    struct bed bed;

    make_queue(admin, "release.rejected", NULL, 0);
    make_queue(admin, "release", arguments, 2);
    for (const char *body = "1\0002\0003\0004\0"; *body; body += 2)
        put(admin, "release", body);
    bed = open_bed("release", 4);
    one = take(&bed);
    two = take(&bed);
    three = take(&bed);
    four = take(&bed);
    assert_true(is_text(one->message.body, "1") && is_text(four->message.body, "4"));
    assert_false(two->message.redelivered);
    assert_true(is_text(one->message.key, "release") && is_text(one->message.from, "release"));
    release(&bed, three, HAPAX__RELEASE_REJECT);
    release(&bed, two, HAPAX__RELEASE_RETURN);
    release(&bed, four, HAPAX__RELEASE_ACK); /* and not the messages below it */
    two = take(&bed);
    assert_true(is_text(two->message.body, "2") && two->message.redelivered);
    turn_until(&bed, waiting(admin, "release.rejected") == 1);
    put(admin, "release", "5");
    put(admin, "release", "6"); /* has room only once 4 is gone, too */
    five = take(&bed);
    three = take(&bed);
    assert_true(is_text(five->message.body, "5") && is_text(three->message.body, "6"));
    release(&bed, three, HAPAX__RELEASE_RETURN);
    assert_false(one->voided);
    cut(bed.source);
    turn_until(&bed, one->voided && two->voided && five->voided);
    assert_int_equal(bed.source->voided, 3);
    release(&bed, five, HAPAX__RELEASE_ACK);
    release(&bed, one, HAPAX__RELEASE_ACK); /* does nothing: the broker has it again */
    release(&bed, two, HAPAX__RELEASE_ACK);
    turn_until(&bed, bed.source->connected);
    assert_int_equal(bed.source->reconnects, 1);
    one = take(&bed);
    two = take(&bed);
    assert_true(is_text(one->message.body, "1") && one->message.redelivered);
    assert_true(is_text(two->message.body, "2"));
    release(&bed, take(&bed), HAPAX__RELEASE_ACK);
    release(&bed, take(&bed), HAPAX__RELEASE_ACK);
    release(&bed, one, HAPAX__RELEASE_ACK);
    release(&bed, two, HAPAX__RELEASE_ACK);
    close_bed(&bed); /* sends the acknowledgements that are left */
    assert_int_equal(waiting(admin, "release"), 0);
}

/* Whether a body's last digit is 3: such messages stay in hand. */
static bool is_kept(const struct hapax__delivered *delivered)
{
    struct hapax_span body = delivered->message.body;

    return body.ptr[body.len - 1] == '3';
}

/* Messages are released in any order, and only those are gone: an acknowledgement of many never
 * includes a message in hand. The broker confirms no acknowledgement, and may not have read it when
 * the connection ends. All are known to be taken when as many other messages came, for which there
 * was no room before. */
static void acknowledging_many_spares_what_is_in_hand(void **state)
{
    enum { N = 300, KEPT = N / 10 };
    static struct hapax__delivered *hand[N];
    struct bed bed;
    unsigned random = 7;
    int kept = 0;
    char body[16];

    make_queue(admin, "many", NULL, 0);
    for (int i = 0; i < N; i++) {
        (void)snprintf(body, sizeof(body), "%d", i);
        put(admin, "many", body);
    }
    bed = open_bed("many", N);
    for (int i = 0; i < N; i++)
        hand[i] = take(&bed);
    for (int i = N - 1; i > 0; i--) {
        struct hapax__delivered *swapped = hand[i];
        int at = (int)((random = random * 1103515245 + 12345) >> 16) % (i + 1);

        hand[i] = hand[at];
        hand[at] = swapped;
    }
    for (int i = 0; i < N; i++) {
        if (!is_kept(hand[i])) {
            release(&bed, hand[i], HAPAX__RELEASE_ACK);
            hand[i] = NULL;
        }
        if (i % 17 == 0)
            turn(&bed);
    }
    for (int i = 0; i < N - KEPT; i++)
        put(admin, "many", "other");
    for (int i = 0; i < N; i++)
        if (!hand[i])
            hand[i] = take(&bed);
    cut(bed.source);
    turn_until(&bed, bed.source->reconnects == 1 && bed.source->connected);
    assert_int_equal(bed.source->voided, N);
    for (int i = 0; i < N; i++) {
        assert_true(hand[i]->voided);
        release(&bed, hand[i], HAPAX__RELEASE_ACK);
    }
    for (int i = 0; i < N; i++) {
        hand[i] = take(&bed);
        assert_true(hand[i]->message.redelivered);
        assert_true(is_kept(hand[i]) || is_text(hand[i]->message.body, "other"));
        kept += is_kept(hand[i]);
    }
    assert_int_equal(kept, KEPT);
    for (int i = 0; i < N; i++)
        release(&bed, hand[i], HAPAX__RELEASE_ACK);
    close_bed(&bed);
    assert_int_equal(waiting(admin, "many"), 0);
}

/* The prefetch limits the messages in hand, and the URI may lower it. */
static void no_more_than_the_prefetch_comes(void **state)
{
    struct hapax__delivered *hand[3];
    struct bed bed = {.source = source_at(5, "%s?queue=prefetch&prefetch=3", uri)};

    make_queue(admin, "prefetch", NULL, 0);
    for (int i = 0; i < 10; i++)
        put(admin, "prefetch", "x");
    for (int i = 0; i < 3; i++)
        hand[i] = take(&bed);
    turn_until(&bed, bed.source->lag >= 0);
    assert_int_equal(bed.source->lag, 7);
    assert_null(bed.source->type->take(bed.source));
    for (int i = 0; i < 3; i++)
        release(&bed, hand[i], HAPAX__RELEASE_ACK);
    release(&bed, take(&bed), HAPAX__RELEASE_ACK);
    close_bed(&bed);
    wait_for(admin, "prefetch", 6);
}

/* With at_once the prefetch grows only as the driver says: what it cannot take stays with the
 * broker. At most a step more comes. */
static void no_more_comes_than_at_once(void **state)
{
    enum { N = 200, STEP = 64 };
    struct hapax__delivered *hand[N];
    struct bed bed = {.source = source_at(N - 1, "%s?queue=steps", uri)};

    make_queue(admin, "steps", NULL, 0);
    for (int i = 0; i < N; i++)
        put(admin, "steps", "x");
    bed.source->at_once = 1;
    for (int i = 0; i < STEP; i++)
        hand[i] = take(&bed);
    turn_until(&bed, bed.source->lag == N - STEP);
    assert_false(bed.source->more);
    release(&bed, hand[0], HAPAX__RELEASE_ACK); /* another one comes for it */
    hand[0] = take(&bed);
    bed.source->at_once = N;
    for (int i = STEP; i < N - 1; i++)
        hand[i] = take(&bed);
    turn_until(&bed, bed.source->lag == 0);
    assert_false(bed.source->more);
    for (int i = 0; i < N - 1; i++)
        release(&bed, hand[i], HAPAX__RELEASE_ACK);
    close_bed(&bed);
    assert_int_equal(waiting(admin, "steps"), 0);
}

/* ---- queues ---------------------------------------------------------------------------- */

/* A missing queue is refused by its name; declare=on makes it. */
static void a_missing_queue_is_refused_or_made(void **state)
{
    struct bed bed = {.source = source_at(5, "%s?queue=missing", uri)};

    turn_until(&bed, bed.error != HAPAX_ERR_NONE);
    assert_int_equal(bed.error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(bed.source->text, "queue \"missing\" does not exist"));
    assert_false(bed.source->connected);
    make_queue(admin, "missing", NULL, 0); /* found once it exists */
    turn_until(&bed, bed.source->connected);
    close_bed(&bed);

    bed = (struct bed){.source = source_at(5, "%s?queue=missing.made&declare=on", uri)};
    turn_until(&bed, bed.source->connected);
    put(admin, "missing.made", "x");
    release(&bed, take(&bed), HAPAX__RELEASE_ACK);
    close_bed(&bed);

    /* An existing queue of any type is used as it is. */
    bed = (struct bed){.source = source_at(5, "%s?queue=missing&declare=on&type=quorum", uri)};
    turn_until(&bed, bed.source->connected);
    close_bed(&bed);
}

/* A queue that is deleted under its consumer is refused, and the messages in hand are void. */
static void a_deleted_queue_is_refused(void **state)
{
    struct hapax__delivered *delivered;
    struct bed bed;

    make_queue(admin, "deleted", NULL, 0);
    put(admin, "deleted", "x");
    bed = open_bed("deleted", 5);
    delivered = take(&bed);
    delete_queue(admin, "deleted");
    turn_until(&bed, bed.error != HAPAX_ERR_NONE);
    assert_int_equal(bed.error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(bed.source->text, "queue \"deleted\" was deleted"));
    assert_true(delivered->voided);
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    close_bed(&bed);
}

/* A wrong password or vhost is refused, with a text that does not show the password. */
static void a_refused_login_is_told(void **state)
{
    struct hapax__amqp_uri at;
    char text[HAPAX_TEXT_MAX];
    struct bed bed = {0};

    assert_int_equal(hapax__amqp_uri(&at, uri, text), HAPAX_ERR_NONE);
    bed.source = source_at(5, "amqp://guest:Hu5h-Hu5h@%s:%u/?queue=q", at.host, at.port);
    turn_until(&bed, bed.error != HAPAX_ERR_NONE);
    assert_int_equal(bed.error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(bed.source->text, "refused the login"));
    assert_null(strstr(bed.source->text, "Hu5h"));
    close_bed(&bed);
    bed.source = source_at(5, "amqp://guest:guest@%s:%u/nowhere?queue=q", at.host, at.port);
    bed.error = HAPAX_ERR_NONE;
    turn_until(&bed, bed.error != HAPAX_ERR_NONE);
    assert_int_equal(bed.error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(bed.source->text, "nowhere"));
    close_bed(&bed);
}

/* The source waits for a broker that is away, with a text and without an error. */
static void a_broker_that_is_away_is_waited_for(void **state)
{
    struct bed bed = {.source = source_at(5, "amqp://127.0.0.1:1/?queue=q&timeout=500ms")};

    turn_until(&bed, bed.source->text[0] != '\0');
    assert_int_equal(bed.error, HAPAX_ERR_NONE);
    assert_non_null(strstr(bed.source->text, "cannot connect to RabbitMQ at 127.0.0.1:1"));
    close_bed(&bed);
}

/* ---- messages -------------------------------------------------------------------------- */

static void put_all_kinds(void)
{
    amqp_table_entry_t nested[] = {argument("x", "y")};
    amqp_table_entry_t entries[12];
    amqp_basic_properties_t properties = {0};
    static const uint8_t kinds[] = {
        AMQP_FIELD_KIND_BOOLEAN, AMQP_FIELD_KIND_I8,    AMQP_FIELD_KIND_U8,
        AMQP_FIELD_KIND_I16,     AMQP_FIELD_KIND_U16,   AMQP_FIELD_KIND_I32,
        AMQP_FIELD_KIND_I64,     AMQP_FIELD_KIND_F64,   AMQP_FIELD_KIND_TIMESTAMP,
        AMQP_FIELD_KIND_BYTES,   AMQP_FIELD_KIND_TABLE, AMQP_FIELD_KIND_VOID};
    static const char *const names[] = {"t", "b", "B", "s", "u", "I", "l", "d", "T", "x", "F", "V"};

    memset(entries, 0, sizeof(entries));
    for (size_t i = 0; i < 12; i++) {
        entries[i].key = amqp_cstring_bytes(names[i]);
        entries[i].value.kind = kinds[i];
    }
    entries[0].value.value.boolean = 1;
    entries[1].value.value.i8 = -8;
    entries[2].value.value.u8 = 200;
    entries[3].value.value.i16 = -16;
    entries[4].value.value.u16 = 60000;
    entries[5].value.value.i32 = -32;
    entries[6].value.value.i64 = INT64_MIN;
    entries[7].value.value.f64 = 0.1;
    entries[8].value.value.u64 = 1700000000;
    entries[9].value.value.bytes = amqp_cstring_bytes("bytes");
    entries[10].value.value.table = (amqp_table_t){.num_entries = 1, .entries = nested};
    properties._flags = AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_CONTENT_TYPE_FLAG |
                        AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_TYPE_FLAG |
                        AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_CORRELATION_ID_FLAG |
                        AMQP_BASIC_PRIORITY_FLAG;
    properties.headers = (amqp_table_t){.num_entries = 12, .entries = entries};
    properties.content_type = amqp_cstring_bytes("text/plain");
    properties.message_id = amqp_cstring_bytes("id-1");
    properties.type = amqp_cstring_bytes("order");
    properties.timestamp = 1700000001;
    properties.correlation_id = amqp_cstring_bytes("c-1");
    properties.priority = 3;
    put_with(admin, "kinds", "body", 4, &properties);
}

static void assert_all_kinds(const struct hapax__delivered *delivered)
{
    const struct hapax_message *message = &delivered->message;
    static const char *const values[][2] = {{"t", "true"},
                                            {"b", "-8"},
                                            {"B", "200"},
                                            {"s", "-16"},
                                            {"u", "60000"},
                                            {"I", "-32"},
                                            {"l", "-9223372036854775808"},
                                            {"d", "0.1"},
                                            {"T", "1700000000"},
                                            {"x", "bytes"},
                                            {"amqp-correlation-id", "c-1"},
                                            {"amqp-priority", "3"},
                                            {"amqp-timestamp", "1700000001"}};

    assert_false(delivered->damaged);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        assert_true(is_text(header(delivered, values[i][0]), values[i][1]));
    assert_null(header(delivered, "F").ptr);
    assert_null(header(delivered, "V").ptr);
    assert_true(is_text(message->content_type, "text/plain") && is_text(message->id, "id-1"));
    assert_true(is_text(message->type, "order") && is_text(message->body, "body"));
    assert_int_equal(message->time_us, 1700000001 * INT64_C(1000000));
}

/* Headers of each kind with a text are shown, properties too, and a copy that is sent on has them
 * all. */
static void headers_of_every_kind_come_through_twice(void **state)
{
    struct hapax_message_header own = {hapax_str("hapax-reason"), hapax_str("failed")};
    struct hapax__delivered *delivered;
    struct hapax__letter letter = {.to = "kinds", .own = &own, .own_count = 1};
    struct bed bed;

    make_queue(admin, "kinds", NULL, 0);
    put_all_kinds();
    bed = open_bed("kinds", 5);
    bed.sink = sink_at(uri);
    delivered = take(&bed);
    assert_all_kinds(delivered);
    for (int i = 0; i < 2; i++) { /* the second already has a header of that name */
        struct hapax__delivered *copy;

        letter.body = delivered->message.body;
        letter.content_type = delivered->message.content_type;
        letter.id = delivered->message.id;
        letter.type = delivered->message.type;
        letter.headers = delivered->message.headers;
        letter.header_count = delivered->message.header_count;
        assert_int_equal(send_letter(&bed, &letter), HAPAX__SENT_OK);
        copy = take(&bed);
        assert_all_kinds(copy);
        assert_true(is_text(header(copy, "hapax-reason"), "failed"));
        assert_null(header(copy, "hapax-letter").ptr);
        assert_int_equal(copy->message.header_count, 13 + 1);
        release(&bed, delivered, HAPAX__RELEASE_ACK);
        delivered = copy;
    }
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    close_bed(&bed);
}

/* A message with more headers than the limit is damaged; the messages behind it are not. */
static void too_many_headers_are_told(void **state)
{
    static amqp_table_entry_t entries[HAPAX__HEADERS_READ_MAX + 1];
    static char names[HAPAX__HEADERS_READ_MAX + 1][8];
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG};
    struct hapax__delivered *delivered;
    struct bed bed;

    make_queue(admin, "headers", NULL, 0);
    for (size_t i = 0; i <= HAPAX__HEADERS_READ_MAX; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%zu", i);
        entries[i] = argument(names[i], "v");
    }
    properties.headers =
        (amqp_table_t){.num_entries = HAPAX__HEADERS_READ_MAX + 1, .entries = entries};
    put_with(admin, "headers", "many", 4, &properties);
    properties.headers.num_entries--;
    put_with(admin, "headers", "full", 4, &properties);
    bed = open_bed("headers", 5);
    delivered = take(&bed);
    assert_true(delivered->damaged && is_text(delivered->message.body, "many"));
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    delivered = take(&bed);
    assert_true(!delivered->damaged && is_text(delivered->message.body, "full"));
    assert_true(is_text(header(delivered, names[HAPAX__HEADERS_READ_MAX - 1]), "v"));
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    close_bed(&bed);
}

/* A body of 10 MB goes out and comes in whole, and so does an empty one. */
static void large_and_empty_bodies_are_whole(void **state)
{
    size_t len = 10000000;
    uint8_t *body = malloc(len);
    struct hapax__letter letter = {.to = "large", .body = {body, len}};
    struct hapax__delivered *delivered;
    struct bed bed;

    assert_non_null(body);
    for (size_t i = 0; i < len; i++)
        body[i] = (uint8_t)(i * 2654435761u >> 13);
    make_queue(admin, "large", NULL, 0);
    bed = open_bed("large", 5);
    bed.sink = sink_at(uri);
    assert_int_equal(send_letter(&bed, &letter), HAPAX__SENT_OK);
    assert_int_equal(send_text(&bed, "large", "", 0), HAPAX__SENT_OK);
    delivered = take(&bed);
    assert_int_equal(delivered->message.body.len, len);
    assert_memory_equal(delivered->message.body.ptr, body, len);
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    delivered = take(&bed);
    assert_int_equal(delivered->message.body.len, 0);
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    close_bed(&bed);
    free(body);
}

/* ---- letters --------------------------------------------------------------------------- */

/* A letter is OK if a queue has it. It is refused if there is no queue, the queue is full, or AMQP
 * cannot carry it. Each of several letters under way gets its own answer and its own text. */
static void each_letter_gets_its_own_answer(void **state)
{
    amqp_table_entry_t full[] = {argument_number("x-max-length", 1),
                                 argument("x-overflow", "reject-publish")};
    struct hapax__letter letter = {.body = hapax_str("x")};
    struct one {
        enum hapax__sent sent;
        char to[32];
    } each[40], *one;
    struct bed bed = {.sink = sink_at(uri)};
    char expected[HAPAX_TEXT_MAX];
    size_t reaped = 0;
    void *tag;

    make_queue(admin, "letters", NULL, 0);
    make_queue(admin, "letters.full", full, 2);
    turn_until(&bed, bed.sink->connected);
    for (size_t i = 0; i < 40; i++) {
        snprintf(each[i].to, sizeof(each[i].to), i % 2 ? "letters.none.%zu" : "letters", i / 2);
        letter.tag = &each[i];
        letter.to = each[i].to;
        assert_true(bed.sink->type->send(bed.sink, &letter));
    }
    while (reaped < 40) {
        enum hapax__sent result = HAPAX__SENT_NOTHING;

        turn_until(&bed, (result = bed.sink->type->reap(bed.sink, &tag)) != HAPAX__SENT_NOTHING);
        one = tag;
        one->sent = result;
        snprintf(expected, sizeof(expected), "there is no queue \"%s\"", one->to);
        assert_string_equal(bed.sink->why, result == HAPAX__SENT_OK ? "" : expected);
        reaped++;
    }
    for (size_t i = 0; i < 40; i++)
        assert_int_equal(each[i].sent, i % 2 ? HAPAX__SENT_REFUSED : HAPAX__SENT_OK);
    assert_int_equal(waiting(admin, "letters"), 20);
    assert_int_equal(send_text(&bed, "letters.full", "1", 0), HAPAX__SENT_OK);
    turn_until(&bed, send_text(&bed, "letters.full", "2", 0) == HAPAX__SENT_REFUSED);
    assert_non_null(strstr(bed.sink->why, "letters.full"));
    close_bed(&bed);
}

/* make() makes a missing queue and leaves an existing one; a letter for it waits until then. A
 * queue that is deleted later is made again for the next letter. */
static void queues_are_made_where_they_are_not_there(void **state)
{
    amqp_table_entry_t arguments[] = {argument_number("x-max-length", 7)};
    struct bed bed = {.sink = sink_at(uri)};

    make_queue(admin, "made.before", arguments, 1);
    bed.sink->type->make(bed.sink, "made");
    bed.sink->type->make(bed.sink, "made.before");
    bed.sink->type->make(bed.sink, "amq.not-ours");
    assert_int_equal(send_text(&bed, "made", "1", 0), HAPAX__SENT_OK);
    assert_int_equal(send_text(&bed, "made.before", "1", 0), HAPAX__SENT_OK);
    assert_int_equal(send_text(&bed, "amq.not-ours", "1", 0), HAPAX__SENT_REFUSED);
    assert_non_null(strstr(bed.sink->why, "cannot use queue \"amq.not-ours\""));
    assert_int_equal(waiting(admin, "made"), 1);
    delete_queue(admin, "made");
    assert_int_equal(send_text(&bed, "made", "2", 0), HAPAX__SENT_REFUSED);
    assert_int_equal(send_text(&bed, "made", "3", 0), HAPAX__SENT_OK);
    assert_int_equal(waiting(admin, "made"), 1);
    close_bed(&bed);
}

/* Letters beyond the limit are put off. None is lost or answered twice. */
static void letters_under_way_are_bounded(void **state)
{
    struct hapax__letter letter = {.to = "bounded", .body = hapax_str("x")};
    struct bed bed = {.sink = sink_at(uri)};
    size_t sent = 0, reaped = 0;
    void *tag;

    make_queue(admin, "bounded", NULL, 0);
    while (bed.sink->type->send(bed.sink, &letter))
        sent++;
    assert_int_equal(sent, 1024);
    while (reaped < sent) {
        turn(&bed);
        for (enum hapax__sent result;
             (result = bed.sink->type->reap(bed.sink, &tag)) != HAPAX__SENT_NOTHING; reaped++)
            assert_int_equal(result, HAPAX__SENT_OK);
    }
    assert_true(bed.sink->type->send(bed.sink, &letter));
    assert_int_equal(waiting(admin, "bounded"), 1024);
    close_bed(&bed);
}

/* More letters that close the channel than the sink remembers as suspects: the next one of them is
 * still found among others, and they go through. */
static void a_letter_that_closes_the_channel_is_found_after_any_number(void **state)
{
    static char tags[1030 + 8];
    struct hapax_message_header cc = {hapax_str("CC"), hapax_str("x")};
    struct hapax__letter letter = {.to = "closing", .body = hapax_str("x"), .own = &cc};
    struct bed bed = {.sink = sink_at(uri)};
    size_t first = sizeof(tags) - 8, ended = 0, lost = 0;

    make_queue(admin, "closing", NULL, 0);
    letter.own_count = 1;
    for (size_t i = 0; i < first; i++) {
        letter.tag = &tags[i];
        assert_int_equal(send_letter(&bed, &letter), HAPAX__SENT_REFUSED);
    }
    for (size_t i = first; i < sizeof(tags); i++) {
        letter.tag = &tags[i];
        letter.own_count = i == first + 3;
        assert_true(bed.sink->type->send(bed.sink, &letter));
    }
    while (ended < 8) {
        enum hapax__sent result;
        void *tag;

        turn_until(&bed, (result = bed.sink->type->reap(bed.sink, &tag)) != HAPAX__SENT_NOTHING);
        letter.tag = tag;
        letter.own_count = tag == &tags[first + 3];
        if (result != HAPAX__SENT_LOST) {
            assert_int_equal(result, letter.own_count ? HAPAX__SENT_REFUSED : HAPAX__SENT_OK);
            ended++;
            continue;
        }
        assert_in_range(++lost, 1, 50);
        assert_true(bed.sink->type->send(bed.sink, &letter));
    }
    close_bed(&bed);
}

/* A letter under way when the connection ends is LOST, not forgotten. A letter not sent yet goes
 * over the next connection. */
static void a_lost_connection_loses_no_answer(void **state)
{
    static uint8_t body[1 << 20];
    struct hapax__letter letter = {.to = "lost", .body = {body, sizeof(body)}};
    struct bed bed = {.sink = sink_at(uri)};
    struct pollfd fds[HAPAX__POLLFDS_MAX];
    size_t reaped = 0, lost = 0;
    int64_t due_us;
    void *tag;

    make_queue(admin, "lost", NULL, 0);
    turn_until(&bed, bed.sink->connected);
    for (int i = 0; i < 50; i++)
        assert_true(bed.sink->type->send(bed.sink, &letter));
    turn(&bed);
    assert_int_equal(bed.sink->type->watch(bed.sink, fds, &due_us), 1);
    assert_int_equal(shutdown(fds[0].fd, SHUT_RDWR), 0);
    while (reaped < 50) {
        turn(&bed);
        for (enum hapax__sent result;
             (result = bed.sink->type->reap(bed.sink, &tag)) != HAPAX__SENT_NOTHING; reaped++) {
            assert_true(result == HAPAX__SENT_OK || result == HAPAX__SENT_LOST);
            lost += result == HAPAX__SENT_LOST;
        }
    }
    assert_in_range(lost, 1, 50); /* mostly a few; all, if the broker was fast */
    assert_true(waiting(admin, "lost") >= 50 - lost);
    close_bed(&bed);
}

/* ---- delays ---------------------------------------------------------------------------- */

/* Sends three letters, the longest delay first. Whether they came in the order of their delays. */
static bool delays_in_order(struct bed *bed, const char *queue)
{
    static const int64_t delays_ms[3] = {0, 300, 1500}, least_us[3] = {0, 1000000, 2000000};
    static const char *const bodies[3] = {"0", "1", "2"};
    int64_t sent_us[3];
    bool ordered = true;

    for (int i = 2; i >= 0; i--) {
        sent_us[i] = hapax__monotonic_us();
        assert_int_equal(send_text(bed, queue, bodies[i], delays_ms[i]), HAPAX__SENT_OK);
    }
    for (int i = 0; i < 3; i++) {
        struct hapax__delivered *delivered = take(bed);
        int which = delivered->message.body.ptr[0] - '0';

        assert_in_range(which, 0, 2);
        assert_true(hapax__monotonic_us() - sent_us[which] >= least_us[which]);
        ordered = ordered && which == i;
        assert_true(is_text(delivered->message.from, queue));
        assert_true(is_text(delivered->message.key, queue));
        release(bed, delivered, HAPAX__RELEASE_ACK);
    }
    return ordered;
}

/* A broker that is slow between two letters lets the longer delay come first: then plays it
 * again. */
static void delays_of(const char *queue, const char *type)
{
    struct bed bed = {.source = source_at(10, "%s?queue=%s", uri, queue), .room = 10};
    char where[512];
    int tries = 1;

    make_queue(admin, queue, NULL, 0);
    (void)snprintf(where, sizeof(where), "%s?type=%s", uri, type);
    bed.sink = sink_at(where);
    turn_until(&bed, bed.source->connected);
    while (!delays_in_order(&bed, queue))
        assert_true(++tries <= 6);
    close_bed(&bed);
}

/* A delayed letter comes back to its queue, not before its time. A longer delay does not hinder a
 * shorter one. */
static void delayed_letters_come_back_in_time(void **state)
{
    delays_of("delays", "quorum");
    delays_of("delays.classic", "classic");
}

/* A retry queue with other arguments is refused by its name; so is a delay to a missing queue. */
static void a_retry_queue_of_another_making_is_refused(void **state)
{
    struct bed bed = {.sink = sink_at(uri)};

    make_queue(admin, "foreign", NULL, 0);
    make_queue(admin, "foreign.retry.4", NULL, 0);
    assert_int_equal(send_text(&bed, "foreign", "x", 4000), HAPAX__SENT_REFUSED);
    assert_non_null(
        strstr(bed.sink->why, "cannot use queue \"foreign.retry.4\": it is there with other"));
    assert_int_equal(send_text(&bed, "foreign", "x", 1000), HAPAX__SENT_OK);
    assert_int_equal(send_text(&bed, "foreign.none", "x", 1000), HAPAX__SENT_REFUSED);
    assert_non_null(strstr(bed.sink->why, "foreign.none"));
    close_bed(&bed);
}

/* ---- memory -------------------------------------------------------------------------- */

/* Takes and returns one message, and sends one delayed letter. False: no memory to begin. */
static bool work_once(void)
{
    struct hapax_consumer consumer = {.in_hand_max = 5};
    struct bed bed = {0};
    char where[512], text[HAPAX_TEXT_MAX];
    bool opened;

    (void)snprintf(where, sizeof(where), "%s?queue=memory", uri);
    consumer.from = where;
    opened = hapax__source_amqp.open(&bed.source, &consumer, text) == HAPAX_ERR_NONE &&
             hapax__sink_amqp.open(&bed.sink, where, text) == HAPAX_ERR_NONE;
    if (opened) {
        struct hapax__delivered *delivered = take(&bed);

        assert_true(is_text(delivered->message.body, "x"));
        while (send_text(&bed, "memory.other", "y", 1000) != HAPAX__SENT_OK)
            assert_true(oom_count() > 0);
        release(&bed, delivered, HAPAX__RELEASE_RETURN);
    } else {
        assert_non_null(strstr(text, "out of memory"));
    }
    close_bed(&bed);
    return opened;
}

/* Wherever memory runs out, the message is still there, the letter can be sent again, and nothing
 * leaks. */
static void memory_that_runs_out_loses_nothing(void **state)
{
    uint64_t n = 1;

    make_queue(admin, "memory", NULL, 0);
    make_queue(admin, "memory.other", NULL, 0);
    put(admin, "memory", "x");
    for (bool reached = true; reached; n++) {
        int64_t live = oom_live();

        oom_fail_at(n, false);
        (void)work_once();
        reached = oom_count() >= n;
        oom_fail_at(0, false);
        assert_int_equal(oom_live(), live);
    }
    assert_true(n > 5);
    wait_for(admin, "memory", 1);
}

/* ---- load ------------------------------------------------------------------------------ */

/* A hundred thousand messages pass through the source and are acknowledged. */
static void a_hundred_thousand_pass(void **state)
{
    enum { N = 100000 };
    struct bed bed;
    int64_t begin_us;
    int taken = 0;

    make_queue(admin, "load", NULL, 0);
    for (int i = 0; i < N; i++)
        put(admin, "load", "a message of some forty bytes, as many are");
    bed = open_bed("load", 256);
    begin_us = hapax__monotonic_us();
    while (taken < N) {
        struct hapax__delivered *delivered;

        turn(&bed);
        for (; (delivered = bed.source->type->take(bed.source)) != NULL; taken++)
            release(&bed, delivered, HAPAX__RELEASE_ACK);
    }
    print_message("# %d messages taken and acknowledged, %.0f/s\n", N,
                  (double)N * 1e6 / (double)(hapax__monotonic_us() - begin_us));
    close_bed(&bed);
    assert_int_equal(waiting(admin, "load"), 0);
}

/* ---- the broker's patience ----------------------------------------------------------------- */

/* The broker takes back a message that is in hand for too long: the delivery is void, the channel
 * is opened again, and the message comes once more. */
static void the_consumer_timeout_is_survived(void **state)
{
    struct hapax__delivered *delivered, *again;
    struct bed bed;

    make_queue(admin, "impatient", NULL, 0);
    put(admin, "impatient", "x");
    bed = open_bed("impatient", 5);
    delivered = take(&bed);
    turn_until(&bed, delivered->voided);
    assert_int_equal(bed.source->voided, 1);
    assert_int_equal(bed.source->reconnects, 1);
    assert_non_null(strstr(bed.source->text, "timed out"));
    again = take(&bed);
    assert_true(again->message.redelivered && is_text(again->message.body, "x"));
    release(&bed, delivered, HAPAX__RELEASE_ACK);
    release(&bed, again, HAPAX__RELEASE_ACK);
    close_bed(&bed);
    assert_int_equal(waiting(admin, "impatient"), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_release_does_what_it_says),
        cmocka_unit_test(acknowledging_many_spares_what_is_in_hand),
        cmocka_unit_test(no_more_than_the_prefetch_comes),
        cmocka_unit_test(no_more_comes_than_at_once),
        cmocka_unit_test(a_missing_queue_is_refused_or_made),
        cmocka_unit_test(a_deleted_queue_is_refused),
        cmocka_unit_test(a_refused_login_is_told),
        cmocka_unit_test(a_broker_that_is_away_is_waited_for),
        cmocka_unit_test(headers_of_every_kind_come_through_twice),
        cmocka_unit_test(too_many_headers_are_told),
        cmocka_unit_test(large_and_empty_bodies_are_whole),
        cmocka_unit_test(each_letter_gets_its_own_answer),
        cmocka_unit_test(queues_are_made_where_they_are_not_there),
        cmocka_unit_test(letters_under_way_are_bounded),
        cmocka_unit_test(a_letter_that_closes_the_channel_is_found_after_any_number),
        cmocka_unit_test(a_lost_connection_loses_no_answer),
        cmocka_unit_test(delayed_letters_come_back_in_time),
        cmocka_unit_test(a_retry_queue_of_another_making_is_refused),
        cmocka_unit_test(memory_that_runs_out_loses_nothing),
        cmocka_unit_test(a_hundred_thousand_pass),
    };
    const struct CMUnitTest impatient[] = {cmocka_unit_test(the_consumer_timeout_is_survived)};
    int failed;

    must(argc >= 2);
    uri = argv[1];
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    admin = admin_open(uri);
    failed = argc > 2 && strcmp(argv[2], "impatient") == 0
                 ? cmocka_run_group_tests(impatient, NULL, NULL)
                 : cmocka_run_group_tests(tests, NULL, NULL);
    admin_close(admin);
    return failed;
}
