/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's server against peers that behave badly. What is claimed each time:
 * the peer is told or closed, nobody else notices, and no memory is lost (the sanitizers see to
 * that).
 */
#include "../cases.h"
#include "keeper_bed.h"

#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND INT64_C(1000000)

/* The clock of deadlines is ahead by so much. A case moves it, instead of waiting with a patience
 * so short that it would end where the process stands still. */
static _Atomic int64_t ahead_us;

int64_t __real_hapax__monotonic_us(void);
int64_t __wrap_hapax__monotonic_us(void);

int64_t __wrap_hapax__monotonic_us(void)
{
    return __real_hapax__monotonic_us() + atomic_load(&ahead_us);
}

static void send_span(int fd, struct hapax_span span)
{
    assert_true(peer_send(fd, span.ptr, span.len));
}

static void free_span(struct hapax_span span)
{
    free((void *)(uintptr_t)span.ptr);
}

/* ---- malformed frames ---------------------------------------------------------------- */

/* Bytes that are no greeting are answered with a fault, not with memory for a long frame. */
CASE(garbage_is_faulted)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    static const uint8_t zeros[4];
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, http, sizeof(http) - 1));
    peer_faulted(fd, "is not within 1 to 64 here");
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, zeros, sizeof(zeros)));
    peer_faulted(fd, "a frame of 0 bytes");
    bed_still_serves(&bed);
    bed_close(&bed);
}

/* The version before is answered in it, and any other in this one, which its client leaves then. */
CASE(a_greeting_decides_the_version)
{
    static const struct {
        uint8_t says, spoken;
    } rows[] = {{1, 4}, {2, 4}, {3, 3}, {4, 4}, {5, 4}, {255, 4}};
    uint8_t hello[] = {0, 0, 0, 11, 1, 'h', 'p', 'x', 'k', 0, 0, 1, 0x40, 0, 0};
    struct hapax__hello welcome;
    struct hapax_span payload;
    struct bed bed;
    uint8_t kind;
    int fd;

    bed_open(&bed, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        hello[10] = rows[i].says;
        fd = peer_dial(bed.path);
        assert_true(peer_send(fd, hello, sizeof(hello)));
        assert_true(peer_read(fd, &kind, &payload));
        assert_int_equal(kind, HAPAX__FRAME_WELCOME);
        assert_true(hapax__frame_take_welcome(payload, &welcome));
        assert_int_equal(welcome.version, rows[i].spoken);
        free_span(payload);
        close(fd);
    }
    bed_close(&bed);
}

/* A longer greeting is read; another protocol, or no version at all, is turned away. */
CASE(a_greeting_is_of_this_protocol)
{
    static const uint8_t later[] = {0, 0, 0, 13, 1, 'h', 'p', 'x', 'k', 0, 9, 1, 0x40, 0, 0, 7, 7};
    static const uint8_t none[] = {0, 0, 0, 11, 1, 'h', 'p', 'x', 'k', 0, 0, 1, 0x40, 0, 0};
    static const uint8_t other[] = {0, 0, 0, 11, 1, 'h', 'p', 'x', 'x', 0, 1, 1, 0x40, 0, 0};
    static const uint8_t small[] = {0, 0, 0, 11, 1, 'h', 'p', 'x', 'k', 0, 1, 0, 0, 1, 0};
    static const uint8_t kind[] = {0, 0, 0, 5, 5, 0, 0, 0, 1};
    struct hapax__hello hello;
    struct hapax_span payload;
    struct bed bed;
    uint8_t got;
    int fd;

    bed_open(&bed, NULL);
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, later, sizeof(later)));
    assert_true(peer_read(fd, &got, &payload));
    assert_int_equal(got, HAPAX__FRAME_WELCOME);
    assert_true(hapax__frame_take_welcome(payload, &hello));
    assert_int_equal(hello.version, HAPAX__FRAME_VERSION);
    assert_int_equal(hello.batch_max, HAPAX_BATCH_MAX);
    assert_int_equal(hello.body_max, HAPAX_BODY_MAX);
    free_span(payload);
    assert_true(peer_send(fd, later, sizeof(later))); /* twice */
    peer_faulted(fd, "a frame of kind 1 has no place here");
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, none, sizeof(none)));
    peer_faulted(fd, "not of this protocol");
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, other, sizeof(other)));
    peer_faulted(fd, "not of this protocol");
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, small, sizeof(small)));
    peer_faulted(fd, "not of this protocol");
    fd = peer_dial(bed.path);
    assert_true(peer_send(fd, kind, sizeof(kind)));
    peer_faulted(fd, "a frame of kind 5 has no place here");
    bed_close(&bed);
}

static void faulted(const struct bed *bed, const void *bytes, size_t len, const char *text)
{
    int fd = peer_greet(bed->path);

    assert_true(peer_send(fd, bytes, len));
    peer_faulted(fd, text);
}

/* Nothing of a frame that is malformed anywhere runs, and the connection ends with its fault. */
CASE(a_malformed_request_runs_nothing)
{
    static const uint8_t oversized[] = {1, 0x40, 0, 1};
    static const uint8_t empty[] = {0, 0, 0, 11, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    static const uint8_t many[] = {0, 0, 0, 11, 3, 0, 0, 0, 1, 0, 0, 0, 0, 4, 1};
    static const uint8_t no_kind[] = {0, 0, 0, 1, 77};
    static const uint8_t short_ask[] = {0, 0, 0, 2, 5, 1};
    struct hapax_op ops[2] = {bed_op(HAPAX_OP_CLAIM, 1, 1), bed_op(HAPAX_OP_FAIL, 2, 1)};
    struct hapax_span good = peer_request(1, ops, 2);
    uint8_t *bad = malloc(good.len + 1);
    struct bed bed;

    assert_non_null(bad);
    bed_open(&bed, NULL);
    faulted(&bed, oversized, sizeof(oversized), "a frame of 20971521 bytes");
    faulted(&bed, empty, sizeof(empty), "has not 1 to 1024 ops");
    faulted(&bed, many, sizeof(many), "has not 1 to 1024 ops");
    faulted(&bed, no_kind, sizeof(no_kind), "a frame of kind 77");
    faulted(&bed, short_ask, sizeof(short_ask), "a question is malformed");
    memcpy(bad, good.ptr, good.len);
    bad[14] = 3; /* one op more than there are */
    faulted(&bed, bad, good.len, "op 3 of a request is malformed");
    bad[14] = 1;
    faulted(&bed, bad, good.len, "bytes behind its last op");
    bad[14] = 2;
    bad[good.len - 12] = 2; /* body_kept is neither 0 nor 1 */
    bad[good.len - 9] = 2;
    faulted(&bed, bad, good.len, "op 2 of a request is malformed");
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 0);
    bed_still_serves(&bed);
    bed_close(&bed);
    free(bad);
    free_span(good);
}

/* One bad op costs its own answer and neither its neighbours nor the connection. */
CASE(a_bad_op_is_answered_by_itself)
{
    struct hapax_op ops[5];
    struct peer_frame *frames = NULL;
    struct hapax_span request;
    struct bed bed;
    uint8_t *kind;
    int fd;

    bed_open(&bed, NULL);
    for (unsigned i = 0; i < 5; i++)
        ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    ops[1].lease_ms = 0;
    memset(&ops[2].token, 0, sizeof(ops[2].token));
    ops[4] = bed_op(HAPAX_OP_READ, 0, 1);
    request = peer_request(9, ops, 5);
    kind = (uint8_t *)(uintptr_t)request.ptr + 15;
    for (unsigned i = 0; i < 3; i++)
        kind += hapax__frame_op_size(&ops[i]);
    kind[4] = 200; /* of the fourth, which thereby is of no known kind */
    fd = peer_greet(bed.path);
    send_span(fd, request);
    assert_true(peer_answers(fd, 9, ops, 5, &frames));
    assert_int_equal(ops[0].verdict, HAPAX_CLAIMED);
    assert_int_equal(ops[1].error, HAPAX_ERR_INVALID);
    assert_int_equal(ops[2].error, HAPAX_ERR_INVALID);
    assert_int_equal(ops[3].error, HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(ops[4].verdict, HAPAX_FOUND);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 2);
    free_span(request);
    close(fd);
    peer_free(frames);
    bed_close(&bed);
}

/* ---- partial input, partial output --------------------------------------------------- */

/* Where frames begin and end has nothing to do with how their bytes arrive. */
CASE(a_request_may_come_byte_by_byte_or_many_at_once)
{
    enum { ROUNDS = 50 };
    struct peer_frame *frames = NULL;
    struct hapax_op ops[ROUNDS];
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    fd = peer_greet(bed.path);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct hapax_span request;

        ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
        request = peer_request(i, &ops[i], 1);
        if (i == 0)
            for (size_t at = 0; at < request.len; at++)
                assert_true(peer_send(fd, request.ptr + at, 1));
        else
            send_span(fd, request);
        free_span(request);
    }
    shutdown(fd, SHUT_WR); /* who says no more may still listen */
    for (unsigned i = 0; i < ROUNDS; i++) {
        assert_true(peer_answers(fd, i, &ops[i], 1, &frames));
        assert_int_equal(ops[i].verdict, HAPAX_CLAIMED);
    }
    peer_free(frames);
    peer_ends(fd);
    bed_close(&bed);
}

/* A frame of which only a part came is nothing. */
CASE(a_client_that_dies_within_a_frame_did_nothing)
{
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_span request = peer_request(1, &op, 1);
    struct bed bed;

    bed_open(&bed, NULL);
    for (size_t len = 0; len < request.len; len += 7) {
        int fd = peer_greet(bed.path);

        assert_true(peer_send(fd, request.ptr, len));
        close(fd);
    }
    AWAIT(bed_ask(&bed).clients == 1);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 0);
    free_span(request);
    bed_close(&bed);
}

/* Half a greeting, half a frame, and one byte now and then: none holds its place for ever. */
CASE(half_a_frame_is_not_waited_for)
{
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_span request = peer_request(1, &op, 1);
    struct bed bed;
    int silent, half, slow, idle;

    bed_open(&bed, NULL);
    silent = peer_dial(bed.path);
    idle = peer_greet(bed.path);
    half = peer_greet(bed.path);
    assert_true(peer_send(half, request.ptr, request.len - 1));
    slow = peer_greet(bed.path);
    for (size_t at = 0; peer_send(slow, request.ptr + at, 1); at++) {
        assert_true(at + 2 < request.len);
        ahead_us += SECOND; /* of 30 */
        bed_still_serves(&bed); /* so the server has looked */
    }
    close(slow);
    peer_ends(silent);
    peer_ends(half);
    AWAIT(bed_ask(&bed).clients == 2); /* who has nothing to say may stay */
    close(idle);
    free_span(request);
    bed_close(&bed);
}

static unsigned clients_a_second_later(const struct bed *bed)
{
    ahead_us += SECOND;
    return bed_ask(bed).clients;
}

/* Answers that nobody reads wait within bounds, then not at all; others are served meanwhile. */
CASE(a_client_that_never_reads_is_dropped)
{
    struct hapax_store *client;
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1), reads[200];
    uint8_t *body = calloc(1, 1 << 20);
    struct hapax_span request;
    struct bed bed;
    int fd;

    assert_non_null(body);
    bed_open(&bed, NULL);
    client = bed_client(&bed, "");
    assert_int_equal(hapax_store_run(client, &op, 1), HAPAX_ERR_NONE);
    op = bed_op(HAPAX_OP_COMPLETE, 1, 1);
    op.outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, 1 << 20}};
    assert_int_equal(hapax_store_run(client, &op, 1), HAPAX_ERR_NONE);
    for (unsigned i = 0; i < 200; i++)
        reads[i] = bed_op(HAPAX_OP_READ, 1, 1);
    request = peer_request(1, reads, 200);
    fd = peer_greet(bed.path);
    send_span(fd, request);
    bed_still_serves(&bed);
    AWAIT(clients_a_second_later(&bed) == 2);
    /* It never came to judge them all: who does not read is not worked for. */
    assert_true(hapax__plan_counts(&bed.plan).ops < 200);
    close(fd);
    hapax_store_close(client);
    free_span(request);
    free(body);
    bed_close(&bed);
}

/* The bytes that go out without waiting, of len at most. */
static size_t send_some(int fd, const uint8_t *bytes, size_t len)
{
    size_t at = 0;

    while (at < len) {
        ssize_t sent = send(fd, bytes + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0)
            break;
        at += (size_t)sent;
    }
    return at;
}

/* Long requests wait for memory with only their head read; short ones pass them. */
CASE(long_requests_share_a_bounded_memory)
{
    enum { PEERS = 16, STARTED = 1 << 20 };
    struct hapax_op op = bed_op(HAPAX_OP_COMPLETE, 1, 1);
    struct peer_frame *frames = NULL;
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    struct hapax_span request;
    struct bed bed;
    int fds[PEERS];
    size_t sent = 0;

    assert_non_null(body);
    bed_open(&bed, NULL);
    op.outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, HAPAX_BODY_MAX}};
    request = peer_request(1, &op, 1);
    /* 15 of them are within 256 MiB, and what they send is taken from the socket. */
    for (unsigned i = 0; i < PEERS - 1; i++) {
        fds[i] = peer_greet(bed.path);
        assert_true(peer_send(fds[i], request.ptr, STARTED));
    }
    fds[PEERS - 1] = peer_greet(bed.path);
    for (unsigned i = 0; i < 30; i++) { /* each time the server has had its turn */
        sent += send_some(fds[PEERS - 1], request.ptr + sent, STARTED - sent);
        bed_still_serves(&bed);
    }
    assert_true(sent < STARTED);
    close(fds[0]); /* and the last is let in */
    for (unsigned i = PEERS - 2; i < PEERS; i++) {
        size_t from = i == PEERS - 1 ? sent : STARTED;

        assert_true(peer_send(fds[i], request.ptr + from, request.len - from));
        assert_true(peer_answers(fds[i], 1, &op, 1, &frames));
        assert_int_equal(op.verdict, HAPAX_LOST);
    }
    for (unsigned i = 1; i < PEERS; i++)
        close(fds[i]);
    peer_free(frames);
    free_span(request);
    free(body);
    bed_close(&bed);
}

/* What a client asked for is done, whether or not it is there to hear of it. */
CASE(jobs_of_a_client_that_is_gone_still_finish)
{
    struct hapax_op ops[20];
    struct hapax_span request;
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    for (unsigned i = 0; i < 20; i++)
        ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    request = peer_request(1, ops, 20);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    fd = peer_greet(bed.path);
    send_span(fd, request);
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    close(fd);
    close(peer_greet(bed.path)); /* by then the server knows that the first is gone */
    hapax__plan_go(&bed.plan);
    AWAIT(hapax__plan_counts(&bed.plan).applied == 20);
    AWAIT(bed_ask(&bed).clients == 1);
    free_span(request);
    bed_close(&bed);
}

/* ---- bounds -------------------------------------------------------------------------- */

/* One client too many is told so, and there is room again when another leaves. */
CASE(too_many_clients_are_told_so)
{
    struct hapax__keeper_options options = {.clients_max = 3};
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    struct bed bed;
    int fds[3];

    bed_open(&bed, &options);
    for (unsigned i = 0; i < 3; i++)
        fds[i] = peer_greet(bed.path);
    assert_int_equal(hapax_store_open(&store, bed.uri, text), HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "it serves 3 clients already"));
    close(fds[0]);
    AWAIT(hapax_store_open(&store, bed.uri, text) == HAPAX_ERR_NONE);
    hapax_store_close(store);
    close(fds[1]);
    close(fds[2]);
    bed_close(&bed);
}

/* A lane that is full refuses the op, and the op was surely not applied. */
CASE(what_the_lane_has_no_room_for_is_unavailable)
{
    enum { PEERS = 40, OPS = 128 };
    static struct hapax_op ops[PEERS][OPS];
    struct peer_frame *frames = NULL;
    unsigned refused = 0;
    int fds[PEERS];
    struct bed bed;

    bed_open(&bed, NULL);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    for (unsigned p = 0; p < PEERS; p++) {
        struct hapax_span request;

        for (unsigned i = 0; i < OPS; i++)
            ops[p][i] = bed_op(HAPAX_OP_CLAIM, p * OPS + i, 1);
        request = peer_request(p, ops[p], OPS);
        fds[p] = peer_greet(bed.path);
        send_span(fds[p], request);
        free_span(request);
        if (p == 0)
            assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    }
    /* The last peers are answered while the lane is held: none of theirs had room. */
    assert_true(peer_answers(fds[PEERS - 1], PEERS - 1, ops[PEERS - 1], OPS, &frames));
    hapax__plan_go(&bed.plan);
    for (unsigned p = 0; p < PEERS; p++) {
        if (p < PEERS - 1)
            assert_true(peer_answers(fds[p], p, ops[p], OPS, &frames));
        for (unsigned i = 0; i < OPS; i++) {
            refused += ops[p][i].error == HAPAX_ERR_UNAVAILABLE;
            assert_true(ops[p][i].error == HAPAX_ERR_UNAVAILABLE ||
                        ops[p][i].verdict == HAPAX_CLAIMED);
        }
        close(fds[p]);
    }
    assert_true(refused >= OPS);
    assert_int_equal(hapax__plan_counts(&bed.plan).applied, PEERS * OPS - refused);
    peer_free(frames);
    bed_close(&bed);
}

/* Without descriptors nobody is let in, nor is the processor burnt; later they are. */
CASE(a_keeper_out_of_descriptors_recovers)
{
    struct rlimit limit, none;
    struct bed bed;
    int fd, next;

    bed_open(&bed, NULL);
    next = dup(0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = (rlim_t)next + 1;
    close(next);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    fd = peer_dial(bed.path); /* takes the last one */
    assert_int_equal(fd, next);
    poll(NULL, 0, 1200); /* it looks each second */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    bed_still_serves(&bed);
    close(fd);
    bed_close(&bed);
}

/* The end waits for who reads its answer, not for who does not. */
CASE(a_stop_does_not_wait_for_ever)
{
    struct hapax_op ops[200];
    struct hapax_span request;
    struct hapax_store *client;
    uint8_t *body = calloc(1, 1 << 20);
    int64_t began_ms;
    struct bed bed;
    int fd;

    assert_non_null(body);
    bed_open(&bed, NULL);
    client = bed_client(&bed, "");
    ops[0] = bed_op(HAPAX_OP_CLAIM, 1, 1);
    ops[1] = bed_op(HAPAX_OP_COMPLETE, 1, 1);
    ops[1].outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, 1 << 20}};
    assert_int_equal(hapax_store_run(client, ops, 2), HAPAX_ERR_NONE);
    for (unsigned i = 0; i < 200; i++)
        ops[i] = bed_op(HAPAX_OP_READ, 1, 1);
    request = peer_request(1, ops, 200);
    fd = peer_greet(bed.path);
    send_span(fd, request);
    AWAIT(hapax__plan_counts(&bed.plan).ops > 2);
    began_ms = bed_now_ms();
    hapax__keeper_stop(bed.server);
    bed.server = NULL;
    assert_true(bed_now_ms() - began_ms < 30000);
    close(fd);
    hapax_store_close(client);
    free_span(request);
    free(body);
    bed_close(&bed);
}
