/* SPDX-License-Identifier: Apache-2.0
 *
 * The Kafka source and sink against librdkafka's mock cluster, which fails on demand; no real
 * broker does.
 */
#include "kafka_bed.h"

#include "../cases.h"
#include "broker/kafka/source.h"

#include <librdkafka/rdkafka.h>

#include <librdkafka/rdkafka_mock.h>

/* The numbers of requests in Kafka's protocol. */
#define PRODUCE       0
#define OFFSET_COMMIT 8
#define HEARTBEAT     12

/* The mock cluster answers a JOIN_GROUP a second before the member's session would end. If the
 * process stands still just then, the cluster drops the member, and never answers on that
 * connection. With a short poll interval the client gives up its request 3 s after that interval,
 * and joins by another connection. */
#define QUICK "&session.timeout.ms=6000&heartbeat.interval.ms=200&max.poll.interval.ms=6000"

static rd_kafka_t *owner;
static rd_kafka_mock_cluster_t *cluster;
static char broker[URI_MAX];
static size_t wanted;

static void keep(struct bed *bed, struct member *member, struct hapax__delivered *delivered)
{
    (void)bed;
    (void)member;
    (void)delivered;
}

static struct bed *bed_new(const char *topic, int n)
{
    struct bed *bed = calloc(1, sizeof(*bed));

    must(bed);
    bed->broker = broker;
    bed->handle = keep;
    must(!rd_kafka_mock_topic_create(cluster, topic, 1, 1));
    open_sink(bed, "?linger.ms=1");
    publish_and_wait(bed, topic, 0, n, 0);
    return bed;
}

static void bed_free(struct bed *bed)
{
    for (struct member *member = bed->members; member < bed->members + MEMBERS; member++)
        quit(member, CLOSE_MS);
    hapax__sink_kafka.close(bed->sink);
    free(bed);
}

static bool first_holds(struct bed *bed)
{
    return bed->members[0].kept_count >= wanted;
}

/* Waits until the first member holds all that is wanted; says where it stands if it does not. */
static void hold_all(struct bed *bed)
{
    const struct member *member = &bed->members[0];

    if (!spin(bed, first_holds, DEADLINE))
        fail_msg("holds %zu of %zu; %u voided, %s; \"%s\"", member->kept_count, wanted,
                 (unsigned)member->source->voided,
                 member->source->connected ? "connected" : "not connected", member->source->text);
}

static bool some_voided(struct bed *bed)
{
    return bed->members[0].source->voided > 0;
}

/* The group went on without us: everything is voided at once, nothing of it is committed, and all
 * comes again. */
CASE(a_lost_partition_is_voided_and_not_committed)
{
    struct bed *bed = bed_new("lost", 10);
    struct member *member;

    member = join(bed, "lost", QUICK, HAPAX_ORDER_KEY);
    wanted = 10;
    hold_all(bed);
    rd_kafka_mock_push_request_errors(cluster, HEARTBEAT, 1, RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID);
    assert_true(spin(bed, some_voided, DEADLINE));
    assert_int_equal(member->source->voided, 10);
    for (size_t i = 0; i < 10; i++)
        assert_true(member->kept[i]->voided);
    release_all(member, HAPAX__RELEASE_ACK);
    assert_int_equal(member->acked, 0);
    hold_all(bed);
    assert_int_equal(number_of(member->kept[0]), 0);
    bed_free(bed);
}

/* After a fatal error of the client nothing is due until the handlers end: otherwise the loop turns
 * without a pause for as long. Then a new client takes all again. */
CASE(a_broken_client_waits_for_what_is_lent)
{
    struct bed *bed = bed_new("fatal", 10);
    struct member *member = join(bed, "fatal", QUICK, HAPAX_ORDER_KEY);
    struct hapax__kafka_source *source;
    struct pollfd fds[HAPAX__POLLFDS_MAX];
    int64_t due_us = 0;

    wanted = 10;
    hold_all(bed);
    source = (struct hapax__kafka_source *)member->source;
    must(!rd_kafka_test_fatal_error(source->rk, RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID, "played"));
    assert_true(spin(bed, some_voided, DEADLINE));
    (void)member->source->type->watch(member->source, fds, &due_us);
    assert_true(due_us == INT64_MAX);
    release_all(member, HAPAX__RELEASE_RETURN);
    hold_all(bed);
    bed_free(bed);
}

static bool all_committed(struct bed *bed)
{
    return !hapax__kafka_uncommitted((struct hapax__kafka_source *)bed->members[0].source);
}

/* A refused commit is made again, and released messages do not come again. */
CASE(a_refused_commit_is_made_again)
{
    struct bed *bed = bed_new("commits", 10);
    struct member *member;

    member = join(bed, "commits", QUICK, HAPAX_ORDER_KEY);
    wanted = 10;
    hold_all(bed);
    rd_kafka_mock_push_request_errors(
        cluster, OFFSET_COMMIT, 3, RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS, RD_KAFKA_RESP_ERR__TRANSPORT);
    while (member->kept_count > 4)
        release(member, 0, HAPAX__RELEASE_ACK);
    assert_true(spin(bed, all_committed, DEADLINE));
    quit(member, CLOSE_MS);
    member = join(bed, "commits", QUICK, HAPAX_ORDER_KEY);
    wanted = 4;
    hold_all(bed);
    assert_int_equal(number_of(member->kept[0]), 6);
    assert_int_equal(member->kept_count, 4);
    bed_free(bed);
}

static bool first_is_assigned(struct bed *bed)
{
    return ((struct hapax__kafka_source *)bed->members[0].source)->assigned;
}

/* The first letters of a retry topic are older than its assignment. A group that begins its own
 * topic at the end reads them all the same. The mock makes any topic that is asked for; with the
 * error the topic is not there. */
CASE(a_retry_topic_is_read_from_its_beginning)
{
    static const char retry[] = "reset.reset.retry";
    struct bed *bed = bed_new("reset", 1);

    rd_kafka_mock_topic_set_error(cluster, retry, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    join(bed, "reset", QUICK "&auto.offset.reset=latest&topic.metadata.refresh.interval.ms=3000",
         HAPAX_ORDER_NONE);
    must(spin(bed, first_is_assigned, DEADLINE));
    rd_kafka_mock_topic_set_error(cluster, retry, RD_KAFKA_RESP_ERR_NO_ERROR);
    publish_and_wait(bed, retry, 1, 10, 0);
    wanted = 10;
    hold_all(bed);
    for (size_t i = 0; i < wanted; i++)
        assert_true(number_of(bed->members[0].kept[i]) > 0);
    bed_free(bed);
}

/* A connection that breaks while letters are under way loses, doubles and reorders none of them. */
CASE(letters_survive_a_broken_connection)
{
    struct bed *bed = bed_new("broken", 1);
    struct member *member;

    rd_kafka_mock_push_request_errors(cluster, PRODUCE, 2, RD_KAFKA_RESP_ERR__TRANSPORT,
                                      RD_KAFKA_RESP_ERR__TRANSPORT);
    publish_and_wait(bed, "broken", 1, 199, 1);
    member = join(bed, "broken", "", HAPAX_ORDER_KEY);
    publish_and_wait(bed, "broken", 200, 1, 1); /* behind any second copy */
    wanted = 201;
    hold_all(bed);
    assert_int_equal(member->kept_count, 201);
    for (size_t i = 0; i < 201; i++)
        assert_int_equal(number_of(member->kept[i]), (int)i);
    bed_free(bed);
}

/* A letter that the broker refuses for good is REFUSED, and not sent for ever. */
CASE(a_letter_that_may_not_be_written_is_refused)
{
    struct bed *bed = bed_new("denied", 1);

    rd_kafka_mock_push_request_errors(cluster, PRODUCE, 1,
                                      RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    publish(bed, "denied", 1, 1, 0);
    assert_true(spin(bed, all_reported, DEADLINE));
    assert_int_equal(bed->refused, 1);
    bed_free(bed);
}

/* While the broker is gone for good, source and sink close within their time. */
CASE(closing_without_a_broker_ends)
{
    struct bed *bed = bed_new("gone", 10);
    int64_t began_us;

    join(bed, "gone", "", HAPAX_ORDER_KEY);
    wanted = 10;
    hold_all(bed);
    rd_kafka_mock_broker_set_down(cluster, 1);
    publish(bed, "gone", 10, 10, 0);
    release_all(&bed->members[0], HAPAX__RELEASE_ACK);
    began_us = hapax__monotonic_us();
    quit(&bed->members[0], 2000);
    hapax__sink_kafka.close(bed->sink);
    assert_true(hapax__monotonic_us() - began_us < 60 * SECONDS); /* it ends */
    rd_kafka_mock_broker_set_up(cluster, 1);
    free(bed);
}

int main(void)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[HAPAX_TEXT_MAX];
    int failed;

    rd_kafka_conf_set_log_cb(conf, NULL);
    owner = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    must(owner);
    cluster = rd_kafka_mock_cluster_new(owner, 1);
    must(cluster);
    snprintf(broker, sizeof(broker), "kafka://%s", rd_kafka_mock_cluster_bootstraps(cluster));
    failed = cases_run(NULL, NULL);
    rd_kafka_mock_cluster_destroy(cluster);
    rd_kafka_destroy(owner);
    return failed;
}
