/* SPDX-License-Identifier: Apache-2.0
 *
 * The Kafka source and sink against a real broker: test_kafka_source URI, run by
 * tests/servers/with.py kafka.
 */
#include "kafka_bed.h"

#include "broker/kafka/source.h"

#include "../cases.h"
#include "broker/kafka/kafka.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* A group loses members that are away for so long. */
#define QUICK "&session.timeout.ms=3000&heartbeat.interval.ms=500&max.poll.interval.ms=6000"

/* A member that is slow on a busy machine stays. A revoked partition waits for a quarter of the
 * poll interval. */
#define WAITING "&session.timeout.ms=12000&heartbeat.interval.ms=500&max.poll.interval.ms=12000"

static const char *broker, *self;

static void keep(struct bed *bed, struct member *member, struct hapax__delivered *delivered)
{
    (void)bed;
    (void)member;
    (void)delivered;
}

static int64_t first_us; /* when the first was taken; 0: none was */

static void ack(struct bed *bed, struct member *member, struct hapax__delivered *delivered)
{
    (void)bed;
    (void)delivered;
    if (first_us == 0)
        first_us = hapax__monotonic_us();
    release(member, member->kept_count - 1, HAPAX__RELEASE_ACK);
}

static struct bed *bed_new(const char *topic, int partitions)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    char more[64];

    must(bed);
    bed->broker = broker;
    bed->handle = keep;
    snprintf(more, sizeof(more), "?partitions=%d&linger.ms=1", partitions);
    open_sink(bed, more);
    if (topic)
        hapax__sink_kafka.make(bed->sink, topic);
    return bed;
}

static void bed_free(struct bed *bed)
{
    for (struct member *member = bed->members; member < bed->members + MEMBERS; member++)
        quit(member, CLOSE_MS);
    if (bed->sink)
        hapax__sink_kafka.close(bed->sink);
    free(bed);
}

/* What the broker keeps for a group. A client of the test's own asks. */
static int64_t committed(const char *topic, int partition)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    char uri[URI_MAX], text[HAPAX_TEXT_MAX];
    struct hapax__kafka_uri read;
    rd_kafka_t *rk;
    int64_t offset;

    snprintf(uri, sizeof(uri), "%s/%s?group=%s", broker, topic, topic);
    must(hapax__kafka_uri(&read, uri, HAPAX__KAFKA_SOURCE, text) == HAPAX_ERR_NONE);
    rk = rd_kafka_new(RD_KAFKA_CONSUMER, read.conf, text, sizeof(text));
    must(rk);
    rd_kafka_topic_partition_list_add(list, topic, partition);
    must(rd_kafka_committed(rk, list, 60000) == RD_KAFKA_RESP_ERR_NO_ERROR);
    offset = list->elems[0].offset;
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(rk);
    return offset;
}

static size_t wanted;

static bool first_holds(struct bed *bed)
{
    return bed->members[0].kept_count >= wanted;
}

static bool acked_all(struct bed *bed)
{
    size_t sum = 0;

    for (size_t i = 0; i < MEMBERS; i++)
        sum += bed->members[i].acked;
    return sum >= wanted;
}

/* ---- releasing ------------------------------------------------------------------------------ */

/* All messages that are done without a gap are committed, and no others; those come again. */
CASE(an_unreleased_message_keeps_the_commit_back)
{
    struct bed *bed = bed_new("released", 1);

    publish_and_wait(bed, "released", 0, 100, 0);
    join(bed, "released", "", HAPAX_ORDER_KEY);
    wanted = 100;
    assert_true(spin(bed, first_holds, DEADLINE));
    for (size_t i = 99; i > 60; i--)
        release(&bed->members[0], i, HAPAX__RELEASE_ACK);
    for (size_t i = 50; i > 0; i--)
        release(&bed->members[0], i - 1, HAPAX__RELEASE_ACK);
    quit(&bed->members[0], CLOSE_MS);
    assert_int_equal(committed("released", 0), 50);
    join(bed, "released", "", HAPAX_ORDER_KEY);
    wanted = 50;
    assert_true(spin(bed, first_holds, DEADLINE));
    assert_int_equal(bed->members[0].kept_count, 50);
    for (size_t i = 0; i < 50; i++)
        assert_int_equal(number_of(bed->members[0].kept[i]), (int)i + 50);
    release_all(&bed->members[0], HAPAX__RELEASE_ACK);
    quit(&bed->members[0], CLOSE_MS);
    assert_int_equal(committed("released", 0), 100);
    bed_free(bed);
}

/* A returned message comes again, marked; no message behind it does. */
CASE(a_returned_message_comes_again_alone)
{
    struct bed *bed = bed_new("returned", 1);
    struct member *member = &bed->members[0];

    publish_and_wait(bed, "returned", 0, 3, 0);
    join(bed, "returned", "", HAPAX_ORDER_KEY);
    wanted = 3;
    assert_true(spin(bed, first_holds, DEADLINE));
    release(member, 1, HAPAX__RELEASE_RETURN);
    assert_true(spin(bed, first_holds, DEADLINE));
    assert_int_equal(member->taken, 4);
    assert_int_equal(number_of(member->kept[2]), 1);
    assert_true(member->kept[2]->message.redelivered);
    release_all(member, HAPAX__RELEASE_ACK);
    quit(member, CLOSE_MS);
    assert_int_equal(committed("returned", 0), 3);
    bed_free(bed);
}

static void crash(const char *topic)
{
    struct bed *bed = bed_new(NULL, 1);

    join(bed, topic, QUICK, HAPAX_ORDER_KEY);
    wanted = 10;
    must(spin(bed, first_holds, DEADLINE));
    while (bed->members[0].kept_count > 0)
        release(&bed->members[0], 0, HAPAX__RELEASE_ACK);
    _exit(7);
}

/* A consumer dies after a release and before the commit: all its messages come again. */
CASE(a_crash_before_the_commit_delivers_again)
{
    struct bed *bed = bed_new("crashed", 1);
    int status = 0;
    pid_t pid;

    publish_and_wait(bed, "crashed", 0, 10, 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl(self, self, broker, "crash", "crashed", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 7);
    join(bed, "crashed", QUICK, HAPAX_ORDER_KEY);
    wanted = 10;
    assert_true(spin(bed, first_holds, DEADLINE));
    assert_int_equal(number_of(bed->members[0].kept[0]), 0);
    bed_free(bed);
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Key, headers, position and order arrive as they were sent. A header of ours replaces the
 * message's own. */
CASE(a_letter_arrives_as_it_was_sent)
{
    const struct hapax_message_header headers[] = {{hapax_str("content-type"), hapax_str("a/b")},
                                                   {hapax_str("hapax-due"), hapax_str("1")},
                                                   {hapax_str("hapax-base"), hapax_str("1")}};
    const struct hapax_message_header own[] = {{hapax_str("hapax-base"), hapax_str("2")}};
    const struct hapax__letter letter = {.to = "letters",
                                         .body = hapax_str("0"),
                                         .content_type = hapax_str("c/d"),
                                         .id = hapax_str("m1"),
                                         .key = hapax_str("k"),
                                         .headers = headers,
                                         .header_count = 3,
                                         .own = own,
                                         .own_count = 1};
    struct bed *bed = bed_new("letters", 1);
    const struct hapax_message *m;

    send_letter(bed, &letter);
    publish_and_wait(bed, "letters", 1, 1, 0);
    join(bed, "letters", "", HAPAX_ORDER_DEFAULT);
    wanted = 2;
    assert_true(spin(bed, first_holds, DEADLINE));
    m = &bed->members[0].kept[0]->message;
    assert_int_equal(m->header_count, 3);
    assert_memory_equal(m->content_type.ptr, "a/b", 3);
    assert_memory_equal(m->id.ptr, "m1", 2);
    assert_memory_equal(m->key.ptr, "k", 1);
    assert_int_equal(m->position.len, strlen("letters/0/0"));
    assert_memory_equal(m->position.ptr, "letters/0/0", strlen("letters/0/0"));
    for (size_t i = 0; i < m->header_count; i++) {
        const struct hapax_message_header *header = &m->headers[i];

        if (header->name.len == strlen("hapax-base") &&
            memcmp(header->name.ptr, "hapax-base", header->name.len) == 0)
            assert_memory_equal(header->value.ptr, "2", 1);
    }
    assert_true(m->time_us > INT64_C(1600000000) * 1000000);
    assert_int_equal(bed->members[0].kept[0]->order.len, 5);
    assert_int_equal(bed->members[0].kept[1]->order.len, 0);
    bed_free(bed);
}

#define DELAY_MS INT64_C(1500)

static int64_t delayed_since_us;

static void take_delayed(struct bed *bed, struct member *member, struct hapax__delivered *delivered)
{
    (void)member;
    (void)bed;
    must(hapax__monotonic_us() - delayed_since_us >= DELAY_MS * 1000 - 20000); /* two clocks */
    must(delivered->message.position.len == strlen("delayed/0/0"));
    must(memcmp(delivered->message.position.ptr, "delayed/0/0", strlen("delayed/0/0")) == 0);
    must(delivered->message.from.len == strlen("delayed"));
}

/* A delayed letter comes by the retry topic, not before its time, with its first position, and as a
 * message of its topic. */
CASE(a_delayed_letter_comes_when_it_is_due)
{
    struct bed *bed = bed_new("delayed", 1);
    const struct hapax_message *m;
    struct hapax__letter letter = {.to = "delayed.delayed"};

    publish_and_wait(bed, "delayed", 0, 1, 0);
    join(bed, "delayed", "&topic.metadata.refresh.interval.ms=500", HAPAX_ORDER_NONE);
    wanted = 1;
    assert_true(spin(bed, first_holds, DEADLINE));
    assert_int_equal(bed->members[0].kept[0]->order.len, 0);
    /* The first letter makes the retry topic known, so that nothing else delays the second. */
    for (int round = 0; round < 2; round++) {
        m = &bed->members[0].kept[0]->message;
        letter.body = m->body;
        letter.headers = m->headers;
        letter.header_count = m->header_count;
        letter.delay_ms = round == 0 ? 1 : DELAY_MS;
        delayed_since_us = hapax__monotonic_us();
        send_letter(bed, &letter);
        assert_true(spin(bed, all_reported, DEADLINE));
        assert_int_equal(bed->ok, 2 + round);
        release(&bed->members[0], 0, HAPAX__RELEASE_ACK);
        bed->handle = round == 0 ? keep : take_delayed;
        assert_true(spin(bed, first_holds, DEADLINE));
    }
    release(&bed->members[0], 0, HAPAX__RELEASE_ACK);
    bed_free(bed);
}

/* A message that was put back into the topic keeps its first position, with the order NONE too: it
 * is the same message. */
CASE(a_message_that_was_put_back_has_its_first_position)
{
    const struct hapax_message_header header = {hapax_str("hapax-position"), hapax_str("t/0/5")};
    const struct hapax__letter letter = {
        .to = "back", .body = hapax_str("0"), .headers = &header, .header_count = 1};
    struct bed *bed = bed_new("back", 1);
    const struct hapax_message *m;

    send_letter(bed, &letter);
    join(bed, "back", "", HAPAX_ORDER_NONE);
    wanted = 1;
    assert_true(spin(bed, first_holds, DEADLINE));
    m = &bed->members[0].kept[0]->message;
    assert_int_equal(m->position.len, 5);
    assert_memory_equal(m->position.ptr, "t/0/5", 5);
    assert_int_equal(m->header_count, 1);
    assert_int_equal(m->headers[0].value.len, 5);
    assert_memory_equal(m->headers[0].value.ptr, "t/0/5", 5);
    bed_free(bed);
}

/* ---- the group ------------------------------------------------------------------------------ */

#define STORM 3000

static uint8_t seen[STORM];

static void ack_later(struct bed *bed, struct member *member, struct hapax__delivered *delivered)
{
    static unsigned draw = 1;

    (void)bed;
    seen[number_of(delivered)]++;
    draw = draw * 1103515245u + 12345u;
    if (member->kept_count > 20)
        release(member, (draw >> 16) % member->kept_count, HAPAX__RELEASE_ACK);
}

static void ack_seen(struct bed *bed, struct member *member, struct hapax__delivered *delivered)
{
    (void)bed;
    seen[number_of(delivered)]++;
    release(member, member->kept_count - 1, HAPAX__RELEASE_ACK);
}

static bool release_a_few(struct bed *bed)
{
    for (size_t i = 0; i < MEMBERS; i++)
        for (int few = 0; few < 3 && bed->members[i].kept_count > 0; few++)
            release(&bed->members[i], bed->members[i].kept_count / 2, HAPAX__RELEASE_ACK);
    return false;
}

static bool all_seen(struct bed *bed)
{
    (void)release_a_few(bed);
    for (int i = 0; i < STORM; i++)
        if (seen[i] == 0)
            return false;
    return true;
}

/* Second copies too. */
static bool all_taken(struct bed *bed)
{
    (void)release_a_few(bed);
    for (size_t i = 0; i < MEMBERS; i++)
        if (bed->members[i].source &&
            (bed->members[i].kept_count > 0 || bed->members[i].source->lag != 0))
            return false;
    return true;
}

struct leaver {
    struct hapax__source *source;
    pthread_t thread;
    _Atomic bool left;
};

static struct leaver leaver;

static void *close_apart(void *arg)
{
    struct leaver *one = arg;

    hapax__source_kafka.close(one->source, CLOSE_MS);
    one->left = true;
    return NULL;
}

static bool has_left(struct bed *bed)
{
    (void)release_a_few(bed);
    return leaver.left;
}

/* Quits while the other members go on, as those of other processes do. A join that is under way
 * ends only when each member took part, and no commit is sent before. */
static bool quit_beside(struct bed *bed, struct member *member)
{
    bool left;

    release_all(member, HAPAX__RELEASE_ACK);
    leaver.source = member->source;
    leaver.left = false;
    member->source = NULL;
    must(pthread_create(&leaver.thread, NULL, close_apart, &leaver) == 0);
    left = spin(bed, has_left, DEADLINE);
    must(pthread_join(leaver.thread, NULL) == 0);
    return left;
}

/* Members come and go in good order under traffic: no message is lost, and none comes twice. */
CASE(members_that_come_and_go_lose_and_repeat_nothing)
{
    struct bed *bed = bed_new("storm", 6);
    unsigned voided = 0, twice = 0;

    memset(seen, 0, sizeof(seen));
    bed->handle = ack_later;
    for (int round = 0; round < 6; round++) {
        struct member *member = &bed->members[round % 3];

        if (member->source) {
            spin(bed, release_a_few, SECONDS);
            assert_true(quit_beside(bed, member));
        }
        join(bed, "storm", "", HAPAX_ORDER_KEY);
        publish(bed, "storm", round * STORM / 6, STORM / 6, 50);
        spin(bed, release_a_few, SECONDS + SECONDS / 2);
    }
    bed->handle = ack_seen;
    assert_true(spin(bed, all_seen, DEADLINE));
    assert_true(spin(bed, all_taken, DEADLINE));
    for (int i = 0; i < STORM; i++)
        twice += seen[i] > 1;
    for (size_t i = 0; i < MEMBERS; i++)
        voided += bed->members[i].source ? (unsigned)bed->members[i].source->voided : 0;
    if (twice > 0)
        fprintf(stderr, "# %u came twice, %u were voided\n", twice, voided);
    assert_true(twice <= voided);
    assert_int_equal(twice, 0);
    for (size_t i = 0; i < MEMBERS; i++)
        release_all(&bed->members[i], HAPAX__RELEASE_ACK);
    bed_free(bed);
}

static bool both_hold(struct bed *bed)
{
    return bed->members[0].kept_count > 0 && bed->members[1].kept_count > 0;
}

static bool both_assigned(struct bed *bed)
{
    return bed->members[1].source->connected;
}

static bool some_voided(struct bed *bed)
{
    return bed->members[0].source->voided > 0;
}

/* A revoked partition waits for its messages for a while. Then they are voided, and go to the new
 * owner. */
CASE(a_slow_handler_delays_a_revocation_and_then_loses_its_message)
{
    struct bed *bed = bed_new("slow", 2);
    size_t voided = 0;

    publish_and_wait(bed, "slow", 0, 40, 20);
    join(bed, "slow", WAITING, HAPAX_ORDER_KEY);
    wanted = 40;
    assert_true(spin(bed, first_holds, DEADLINE));
    join(bed, "slow", WAITING, HAPAX_ORDER_KEY);
    assert_true(spin(bed, some_voided, DEADLINE));
    for (size_t i = 0; i < 40; i++)
        voided += bed->members[0].kept[i]->voided;
    assert_true(voided > 0 && voided < 40);
    assert_int_equal(bed->members[0].source->voided, voided);
    assert_true(spin(bed, both_hold, DEADLINE));
    wanted = 40 - voided;
    release_all(&bed->members[0], HAPAX__RELEASE_ACK);
    assert_int_equal(bed->members[0].acked, 40 - voided);
    bed_free(bed);
}

static bool first_leaves(struct bed *bed)
{
    return ((struct hapax__kafka_source *)bed->members[0].source)->leaving != NULL;
}

/* A message released while a revocation waits is committed, and does not come to the new owner. */
CASE(what_is_released_during_a_revocation_is_committed)
{
    struct bed *bed = bed_new("revoked", 2);

    publish_and_wait(bed, "revoked", 0, 40, 20);
    join(bed, "revoked", "", HAPAX_ORDER_KEY);
    wanted = 40;
    assert_true(spin(bed, first_holds, DEADLINE));
    join(bed, "revoked", "", HAPAX_ORDER_KEY);
    assert_true(spin(bed, first_leaves, DEADLINE));
    release_all(&bed->members[0], HAPAX__RELEASE_ACK);
    assert_true(spin(bed, both_assigned, DEADLINE));
    spin(bed, NULL, SECONDS);
    assert_int_equal(bed->members[0].source->voided, 0);
    assert_int_equal(bed->members[1].taken, 0);
    bed_free(bed);
}

/* A loop that takes nothing for longer than max.poll.interval.ms keeps its partitions, and goes on
 * at once. */
CASE(a_loop_without_room_stays_in_the_group)
{
    struct bed *bed = bed_new("full", 1);
    struct member *member = &bed->members[0];
    int64_t began_us;

    publish_and_wait(bed, "full", 0, 3000, 0);
    join(bed, "full",
         "&session.timeout.ms=6000&heartbeat.interval.ms=500&max.poll.interval.ms=6000",
         HAPAX_ORDER_KEY);
    member->room = 10;
    wanted = 10;
    assert_true(spin(bed, first_holds, DEADLINE));
    spin(bed, NULL, 9 * SECONDS);
    assert_int_equal(member->taken, 10);
    assert_int_equal(member->source->voided, 0);
    release_all(member, HAPAX__RELEASE_ACK);
    bed->handle = ack;
    member->room = 1000;
    wanted = 3000;
    began_us = hapax__monotonic_us();
    assert_true(spin(bed, acked_all, DEADLINE));
    print_message("# full: 2990 messages in %lld ms after the pause\n",
                  (long long)(hapax__monotonic_us() - began_us) / 1000);
    assert_int_equal(member->taken, 3000);
    bed_free(bed);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static bool is_refused(struct bed *bed)
{
    return bed->members[0].error == HAPAX_ERR_REFUSED;
}

CASE(a_missing_topic_is_refused)
{
    struct bed *bed = bed_new(NULL, 1);

    join(bed, "nowhere", "", HAPAX_ORDER_KEY);
    assert_true(spin(bed, is_refused, DEADLINE));
    assert_non_null(strstr(bed->members[0].source->text, "nowhere"));
    assert_non_null(strstr(bed->members[0].source->text, "there is no such topic"));
    bed_free(bed);
}

/* A missing topic, an invalid name and a body over the limit are REFUSED; other letters go on. */
CASE(letters_that_cannot_be_are_refused)
{
    struct bed *bed = bed_new("there", 1);
    uint8_t *big = calloc(1, 2 << 20);
    const struct hapax__letter letters[] = {{.to = "not.there", .body = hapax_str("1")},
                                            {.to = "no topic", .body = hapax_str("1")},
                                            {.to = "there", .body = {big, 2 << 20}},
                                            {.to = "there", .body = hapax_str("1")}};

    for (size_t i = 0; i < 4; i++)
        send_letter(bed, &letters[i]);
    assert_true(spin(bed, all_reported, DEADLINE));
    assert_int_equal(bed->ok, 1);
    assert_int_equal(bed->refused, 3);
    bed_free(bed);
    free(big);
}

/* ---- speed, and a broker that dies ----------------------------------------------------------- */

#define MANY 100000

CASE(a_hundred_thousand_messages)
{
    struct bed *bed = bed_new("many", 4);
    int64_t began_us = hapax__monotonic_us(), sent_us;

    publish_and_wait(bed, "many", 0, MANY, 1000);
    sent_us = hapax__monotonic_us();
    bed->handle = ack;
    join(bed, "many", "", HAPAX_ORDER_KEY);
    print_message("# %d letters: %.0f/s\n", MANY, MANY * 1e6 / (double)(sent_us - began_us));
    first_us = 0;
    wanted = MANY;
    assert_true(spin(bed, acked_all, DEADLINE));
    print_message("# %d messages: %.0f/s\n", MANY,
                  MANY * 1e6 / (double)(hapax__monotonic_us() - first_us));
    assert_int_equal(bed->members[0].taken, MANY);
    bed_free(bed);
}

static bool away(struct bed *bed)
{
    return !bed->members[0].source->connected;
}

/* The broker is killed by kill -9: the source reports that, comes back by itself, and loses
 * nothing. */
CASE(a_broker_that_is_killed_is_waited_for)
{
    const char *pid = getenv("HAPAX_SERVER_PID");
    struct bed *bed = bed_new("killed", 2);

    if (!pid)
        skip();
    publish_and_wait(bed, "killed", 0, 500, 50);
    bed->handle = ack;
    join(bed, "killed", "", HAPAX_ORDER_KEY);
    wanted = 500;
    assert_true(spin(bed, acked_all, DEADLINE));
    assert_true(bed->members[0].source->connected);
    assert_int_equal(kill((pid_t)strtol(pid, NULL, 10), SIGKILL), 0);
    publish(bed, "killed", 500, 500, 50);
    assert_true(spin(bed, away, DEADLINE));
    assert_int_equal(bed->members[0].error, HAPAX_ERR_NONE);
    wanted = 1000;
    assert_true(spin(bed, acked_all, 2 * DEADLINE));
    assert_true(spin(bed, all_reported, DEADLINE));
    assert_int_equal(bed->ok, 1000);
    assert_true(bed->members[0].source->connected);
    /* Once, unless the new broker is slow to answer. */
    assert_in_range(bed->members[0].source->reconnects, 1, 10);
    bed_free(bed);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    self = argv[0];
    broker = argv[1];
    if (argc == 4 && strcmp(argv[2], "crash") == 0)
        crash(argv[3]);
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    return cases_run(NULL, NULL);
}
