/* SPDX-License-Identifier: Apache-2.0
 *
 * Several requests under way on one connection: what the client's link does with them, against a
 * keeper that the test plays byte by byte, and what the server does with them. The link does not
 * block and takes the time as an argument, so both ends of a play are in one thread.
 */
#include "../cases.h"
#include "base/arena.h"
#include "base/time.h"
#include "keeper_bed.h"
#include "store/keeper/connection.h"
#include "store/keeper/link.h"
#include "store/types.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SECOND 8u /* so many ops that wait make a second request */
#define MANY   128u

/* ---- a played keeper ----------------------------------------------------------------- */

struct play {
    char folder[32];
    char path[64];
    int listener;
    int fd; /* of the connection that was accepted last */
    uint16_t batch_max, version;
    int64_t now_us;
    struct hapax_arena arena;
    struct hapax__link link;
    struct hapax_op ops[MANY];
    struct hapax__asking askings[MANY];
};

/* A request as the played keeper reads it. */
struct came {
    struct hapax_span payload;
    struct hapax__request head;
    struct hapax_op ops[MANY];
};

/* Accepts a connection, and greets its client. */
static void *greet(void *arg)
{
    struct play *play = arg;
    struct timeval wait = {.tv_sec = WAIT_MS / 1000};
    struct hapax__hello hello = {.version = play->version,
                                 .frame_max = HAPAX__FRAME_MAX,
                                 .batch_max = play->batch_max,
                                 .body_max = HAPAX_BODY_MAX,
                                 .pid = 1};
    uint8_t bytes[HAPAX__FRAME_HEAD + HAPAX__FRAME_WELCOME_SIZE], kind;
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax_span payload;

    play->fd = accept4(play->listener, NULL, NULL, SOCK_CLOEXEC);
    must(play->fd >= 0);
    must(setsockopt(play->fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0);
    must(peer_read(play->fd, &kind, &payload));
    must(kind == HAPAX__FRAME_HELLO);
    free((void *)(uintptr_t)payload.ptr);
    hapax__frame_put_welcome(&w, &hello);
    must(peer_send(play->fd, bytes, sizeof(bytes)));
    return NULL;
}

static void play_accept(struct play *play)
{
    hapax__link_turn(&play->link, play->now_us, false);
    (void)greet(play);
    hapax__link_turn(&play->link, play->now_us, true);
    assert_int_equal(play->link.phase, HAPAX__LINK_UP);
}

/* A link that is connected to a played keeper. */
static struct play *play_open(void)
{
    struct play *play = calloc(1, sizeof(*play));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[HAPAX_TEXT_MAX];

    assert_non_null(play);
    memcpy(play->folder, "/tmp/hapax-pipe-XXXXXX", sizeof("/tmp/hapax-pipe-XXXXXX"));
    assert_non_null(mkdtemp(play->folder));
    snprintf(play->path, sizeof(play->path), "%s/keeper.sock", play->folder);
    memcpy(address.sun_path, play->path, sizeof(play->path));
    play->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(play->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(play->listener, 8), 0);
    play->batch_max = HAPAX_BATCH_MAX;
    play->version = HAPAX__FRAME_VERSION;
    play->now_us = 1000 * US_PER_MS;
    assert_int_equal(hapax__link_init(&play->link, play->path, 10000, text), HAPAX_ERR_NONE);
    play->link.arena = &play->arena;
    hapax__link_connect(&play->link, play->now_us);
    play_accept(play);
    return play;
}

/* Nobody listens from now on. */
static void play_leave(struct play *play)
{
    close(play->listener);
    play->listener = -1;
    unlink(play->path);
}

static void play_close(struct play *play)
{
    close(play->fd);
    if (play->listener >= 0)
        play_leave(play);
    hapax__link_release(&play->link);
    hapax__arena_release(&play->arena);
    assert_int_equal(rmdir(play->folder), 0);
    free(play);
}

/* Puts the CLAIMs of the ids from..from+n, and turns. */
static void put(struct play *play, unsigned from, unsigned n)
{
    for (unsigned i = from; i < from + n; i++) {
        if (play->ops[i].kind == 0)
            play->ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
        hapax__op_preset(&play->ops[i]);
        play->askings[i] = (struct hapax__asking){.op = &play->ops[i]};
        hapax__link_put(&play->link, &play->askings[i]);
    }
    hapax__link_turn(&play->link, play->now_us, false);
}

/* Reads the next request: the ops on the ids from..from+n in this order. */
static struct came *come(struct play *play, unsigned from, unsigned n)
{
    struct came *came = calloc(1, sizeof(*came));
    struct hapax__reader r;
    uint8_t kind;

    assert_non_null(came);
    assert_true(peer_read(play->fd, &kind, &came->payload));
    assert_int_equal(kind, HAPAX__FRAME_REQUEST);
    r = (struct hapax__reader){came->payload.ptr, came->payload.len, false};
    assert_true(hapax__frame_take_request(&r, &came->head));
    assert_int_equal(came->head.count, n);
    for (unsigned i = 0; i < n; i++) {
        assert_true(hapax__frame_take_op(&r, &came->ops[i]));
        assert_memory_equal(&came->ops[i].id, &play->ops[from + i].id, sizeof(struct hapax_id));
        assert_memory_equal(&came->ops[i].token, &play->ops[from + i].token,
                            sizeof(struct hapax_token));
    }
    return came;
}

static void nothing_comes(struct play *play)
{
    char byte;

    assert_int_equal(recv(play->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
    assert_int_equal(errno, EAGAIN);
}

static void came_free(struct came *came)
{
    free((void *)(uintptr_t)came->payload.ptr);
    free(came);
}

/* Makes the reply to a request, of the answers in its ops, and frees it. Returns the length. */
static size_t make_reply(uint8_t *bytes, size_t size, struct came *came)
{
    struct hapax__frame_reply head = {.seq = came->head.seq, .count = came->head.count};
    const size_t head_size = HAPAX__FRAME_HEAD + HAPAX__FRAME_REPLY_SIZE;
    struct hapax__writer w = {bytes + head_size, size - head_size};
    struct hapax__writer head_w = {bytes, head_size};

    for (unsigned i = 0; i < came->head.count; i++)
        hapax__frame_put_answer(&w, &came->ops[i], came->ops[i].error ? "not now" : "");
    hapax__frame_put_reply(&head_w, &head, (size_t)(w.at - bytes) - head_size);
    came_free(came);
    return (size_t)(w.at - bytes);
}

/* Answers a request: CLAIMED, or this error. Frees the request. */
static void answer(struct play *play, struct came *came, enum hapax_error error)
{
    uint8_t bytes[65536];

    for (unsigned i = 0; i < came->head.count; i++) {
        struct hapax_op *op = &came->ops[i];

        op->error = error;
        op->verdict = error != HAPAX_ERR_NONE ? HAPAX_NO_VERDICT : HAPAX_CLAIMED;
        op->record = (struct hapax_record){
            .id = op->id, .state = HAPAX_STATE_STARTED, .attempt = 1, .scope = op->scope};
    }
    assert_true(peer_send(play->fd, bytes, make_reply(bytes, sizeof(bytes), came)));
}

/* The ops on the ids from..from+n come back, with a verdict or with this error. */
static void taken(struct play *play, unsigned from, unsigned n, enum hapax_error error)
{
    for (unsigned i = from; i < from + n; i++) {
        struct hapax__asking *asking = hapax__link_take(&play->link);

        assert_ptr_equal(asking, &play->askings[i]);
        assert_int_equal(asking->op->error, error);
        assert_int_equal(asking->op->verdict,
                         error == HAPAX_ERR_NONE ? HAPAX_CLAIMED : HAPAX_NO_VERDICT);
    }
}

static void none_taken(struct play *play)
{
    assert_null(hapax__link_take(&play->link));
}

static void turn(struct play *play)
{
    hapax__link_turn(&play->link, play->now_us, true);
}

/* The connection breaks, and the link notices. */
static void cut(struct play *play)
{
    close(play->fd);
    play->fd = -1;
    turn(play);
}

/* Turns until the link has given up, as time goes by. */
static void wait_in_vain(struct play *play)
{
    for (int i = 0; i < 20000 && play->link.queued > 0; i++) {
        play->now_us += US_PER_MS;
        hapax__link_turn(&play->link, play->now_us, true);
    }
    assert_int_equal(play->link.queued, 0);
}

/* ---- the link ------------------------------------------------------------------------ */

/* Another request goes out once enough ops wait for it: the more requests are out, the more. There
 * is never a fifth. */
CASE(four_requests_go_out_and_no_fifth)
{
    static const unsigned waited[] = {1, SECOND, 2 * SECOND, 3 * SECOND};
    struct play *play = play_open();
    struct came *came[4], *fifth;
    unsigned at = 0;

    for (unsigned i = 0; i < 4; at += waited[i++]) {
        if (i > 0) {
            put(play, at, waited[i] - 1);
            nothing_comes(play);
        }
        put(play, at + waited[i] - 1, 1);
        came[i] = come(play, at, waited[i]);
    }
    put(play, at, 4 * SECOND);
    nothing_comes(play);
    answer(play, came[0], HAPAX_ERR_NONE);
    turn(play);
    taken(play, 0, 1, HAPAX_ERR_NONE);
    fifth = come(play, at, 4 * SECOND);
    for (unsigned i = 1, from = 1; i < 4; from += waited[i++]) {
        answer(play, came[i], HAPAX_ERR_NONE);
        turn(play);
        taken(play, from, waited[i], HAPAX_ERR_NONE);
    }
    answer(play, fifth, HAPAX_ERR_NONE);
    turn(play);
    taken(play, at, 4 * SECOND, HAPAX_ERR_NONE);
    play_close(play);
}

/* Answers to two requests that came at once are given out one request at a time, so that their
 * memory can be used again in between. */
CASE(a_turn_takes_the_answers_of_one_request)
{
    struct play *play = play_open();
    struct came *first, *second;

    put(play, 0, 1);
    put(play, 1, SECOND);
    first = come(play, 0, 1);
    second = come(play, 1, SECOND);
    answer(play, first, HAPAX_ERR_NONE);
    answer(play, second, HAPAX_ERR_NONE);
    turn(play);
    taken(play, 0, 1, HAPAX_ERR_NONE);
    none_taken(play);
    assert_true(play->link.paused);
    assert_int_equal(hapax__link_wake_us(&play->link), 0);
    assert_false(hapax__link_halfway(&play->link));
    hapax__arena_reset(&play->arena);
    hapax__link_turn(&play->link, play->now_us, false);
    taken(play, 1, SECOND, HAPAX_ERR_NONE);
    assert_memory_equal(play->ops[SECOND].record.scope.ptr, play->ops[SECOND].scope.ptr,
                        play->ops[SECOND].scope.len);
    assert_false(play->link.paused);
    play_close(play);
}

/* A batch's answers stay as they are until its end, although those to others come with them and
 * another batch is begun in between. */
CASE(begun_batches_keep_their_own_outcomes)
{
    static const unsigned from[] = {0, 1, 1 + SECOND}, n[] = {1, SECOND, 2 * SECOND};
    struct play *play = play_open();
    struct hapax_store *store;
    uint8_t bytes[32768];
    char uri[80], text[HAPAX_TEXT_MAX];
    size_t len = 0;
    pthread_t peer;

    close(play->fd);
    assert_int_equal(pthread_create(&peer, NULL, greet, play), 0);
    (void)snprintf(uri, sizeof(uri), "unix:%s", play->path);
    assert_int_equal(hapax_store_open(&store, uri, text), HAPAX_ERR_NONE);
    assert_int_equal(pthread_join(peer, NULL), 0);
    for (unsigned i = 0; i < 60; i++)
        play->ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    for (unsigned b = 0; b < 3; b++)
        assert_true(hapax_store_begin(store, &play->ops[from[b]], n[b]));
    for (unsigned b = 0; b < 3; b++) {
        struct came *came = come(play, from[b], n[b]);

        for (unsigned i = 0; i < n[b]; i++) {
            struct hapax_op *op = &came->ops[i];

            op->verdict = HAPAX_COMPLETED;
            op->error = HAPAX_ERR_NONE;
            op->record = (struct hapax_record){
                .id = op->id,
                .state = HAPAX_STATE_COMPLETED,
                .attempt = 1,
                .scope = op->scope,
                .outcome = {200, true, hapax_str(""), {op->id.bytes, sizeof(op->id.bytes)}}};
        }
        len += make_reply(bytes + len, sizeof(bytes) - len, came);
    }
    assert_true(peer_send(play->fd, bytes, len));
    for (unsigned b = 0; b < 3; b++) {
        assert_int_equal(hapax_store_end(store, &play->ops[from[b]], n[b], text), HAPAX_ERR_NONE);
        if (b == 0)
            assert_true(hapax_store_begin(store, &play->ops[40], 1));
        for (unsigned i = from[b]; i < from[b] + n[b]; i++) {
            assert_int_equal(play->ops[i].verdict, HAPAX_COMPLETED);
            assert_memory_equal(play->ops[i].record.outcome.body.ptr, play->ops[i].id.bytes,
                                sizeof(play->ops[i].id.bytes));
        }
    }
    answer(play, come(play, 40, 1), HAPAX_ERR_NONE);
    assert_int_equal(hapax_store_end(store, &play->ops[40], 1, text), HAPAX_ERR_NONE);
    hapax_store_close(store);
    play_close(play);
}

/* What was sent before a break is sent again in its order, and "unavailable" said of the repeat is
 * not believed. What waited goes after it. */
CASE(a_break_repeats_both_in_order)
{
    struct play *play = play_open();
    struct came *first, *second;

    put(play, 0, 1);
    put(play, 1, SECOND);
    put(play, 20, SECOND);
    came_free(come(play, 0, 1));
    cut(play);
    play_accept(play);
    first = come(play, 0, 1);
    second = come(play, 1, SECOND);
    nothing_comes(play);
    answer(play, first, HAPAX_ERR_NONE);
    answer(play, second, HAPAX_ERR_UNAVAILABLE);
    turn(play);
    turn(play);
    taken(play, 0, 1, HAPAX_ERR_NONE);
    taken(play, 1, SECOND, HAPAX_ERR_INDETERMINATE);
    answer(play, come(play, 20, SECOND), HAPAX_ERR_UNAVAILABLE); /* which is believed */
    turn(play);
    taken(play, 20, SECOND, HAPAX_ERR_UNAVAILABLE);
    play_close(play);
}

/* A break between the two replies repeats the second request alone. */
CASE(what_was_answered_is_not_repeated)
{
    struct play *play = play_open();

    put(play, 0, 1);
    put(play, 1, SECOND);
    answer(play, come(play, 0, 1), HAPAX_ERR_NONE);
    turn(play);
    cut(play);
    taken(play, 0, 1, HAPAX_ERR_NONE);
    play_accept(play);
    answer(play, come(play, 1, SECOND), HAPAX_ERR_NONE);
    turn(play);
    taken(play, 1, SECOND, HAPAX_ERR_NONE);
    play_close(play);
}

/* With two requests out and nobody to repeat them to, both may have been applied; what waited for
 * its turn surely was not. */
CASE(two_out_are_indeterminate_and_what_waits_is_unavailable) /* promise 10 */
{
    struct play *play = play_open();

    put(play, 0, 1);
    put(play, 1, SECOND);
    put(play, 20, SECOND);
    play_leave(play);
    cut(play);
    wait_in_vain(play);
    taken(play, 0, 1 + SECOND, HAPAX_ERR_INDETERMINATE);
    taken(play, 20, SECOND, HAPAX_ERR_UNAVAILABLE);
    play_close(play);
}

/* The keeper is exchanged amid two requests for one that is too new, or too old: its client sends
 * it nothing, and says both versions, and which program to exchange. */
static void is_sent_nothing(uint16_t version, const char *text)
{
    struct play *play = play_open();

    put(play, 0, 1);
    put(play, 1, SECOND);
    put(play, 20, SECOND);
    cut(play);
    play->version = version;
    hapax__link_turn(&play->link, play->now_us, true);
    play->now_us += 1000 * US_PER_MS;
    hapax__link_turn(&play->link, play->now_us, false);
    (void)greet(play);
    hapax__link_turn(&play->link, play->now_us, true);
    taken(play, 0, 1 + SECOND, HAPAX_ERR_INDETERMINATE);
    taken(play, 20, SECOND, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(play->link.error, HAPAX_ERR_UNSUPPORTED);
    assert_non_null(strstr(play->link.text, text));
    play_close(play);
}

CASE(a_keeper_of_another_version_is_sent_nothing) /* promise 31 */
{
    is_sent_nothing(5, "another version, 5, and this program 3 and 4 (use a newer Hapax)");
    is_sent_nothing(2, "another version, 2, and this program 3 and 4 (restart the keeper with");
}

/* Sets up one op of each kind that the version before does not know, and returns how many. */
static unsigned put_newer(struct play *play, unsigned at)
{
    static const enum hapax_op_kind kinds[] = {HAPAX_OP_CLAIM, HAPAX_OP_COMPLETE, HAPAX_OP_FAIL,
                                               HAPAX_OP_RESOLVE, HAPAX_OP_IMPORT};

    for (unsigned i = 0; i < 5; i++) {
        struct hapax_op *op = &play->ops[at + i];

        *op = bed_op(kinds[i], at + i, 1);
        op->says_kept = op->kind == HAPAX_OP_CLAIM;
        op->kept_ms = op->kind == HAPAX_OP_FAIL;
        op->tombstone_ms = op->kind == HAPAX_OP_COMPLETE;
        op->if_updated_us = op->kind == HAPAX_OP_RESOLVE;
        if (op->kind == HAPAX_OP_IMPORT) /* it has none */
            op->token = (struct hapax_token){{0}};
    }
    return 5;
}

/* The keeper is exchanged for one of the version before. */
static void play_older(struct play *play)
{
    cut(play);
    play->version = HAPAX__FRAME_OLDEST;
    hapax__link_connect(&play->link, play->now_us);
    play_accept(play);
}

/* A keeper of the version before is asked what it knows. An op that needs more is not sent, and its
 * error says so; the ops around it run, and the connection stays. */
CASE(an_older_keeper_is_asked_what_it_knows) /* promise 31 */
{
    struct play *play = play_open();
    unsigned newer = put_newer(play, 0), n = newer + 2;

    play_older(play);
    put(play, 0, n);
    taken(play, 0, newer, HAPAX_ERR_UNSUPPORTED);
    none_taken(play);
    assert_non_null(strstr(play->link.text, "speaks version 3, in which this cannot be asked"));
    answer(play, come(play, newer, 2), HAPAX_ERR_NONE);
    turn(play);
    taken(play, newer, 2, HAPAX_ERR_NONE);
    put(play, 0, newer); /* nothing but these */
    taken(play, 0, newer, HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(play->link.queued, 0);
    assert_int_equal(hapax__link_wake_us(&play->link), INT64_MAX);
    nothing_comes(play);
    put(play, n, 1); /* it stands */
    answer(play, come(play, n, 1), HAPAX_ERR_NONE);
    turn(play);
    taken(play, n, 1, HAPAX_ERR_NONE);
    play_close(play);
}

/* The older keeper is gone, and nothing was read since: the newer one in its place is asked. */
CASE(a_newer_keeper_in_its_place_is_asked)
{
    struct play *play = play_open();
    unsigned newer = put_newer(play, 0);

    play_older(play);
    put(play, 0, newer);
    taken(play, 0, newer, HAPAX_ERR_UNSUPPORTED);
    close(play->fd);
    play->version = HAPAX__FRAME_VERSION;
    put(play, 0, newer);
    none_taken(play);
    play_accept(play);
    answer(play, come(play, 0, newer), HAPAX_ERR_CORRUPT); /* an answer to each kind */
    turn(play);
    taken(play, 0, newer, HAPAX_ERR_CORRUPT);
    play_close(play);
}

/* What was sent to a newer keeper, and cannot be repeated to the older one in its place, may have
 * been applied. What waited behind it was not. */
CASE(what_an_older_keeper_cannot_be_repeated_is_indeterminate)
{
    struct play *play = play_open();
    unsigned newer = put_newer(play, 0);

    put(play, 0, newer + 1);
    came_free(come(play, 0, newer + 1));
    (void)put_newer(play, 20);
    put(play, 20, newer);
    play_older(play);
    taken(play, 0, newer, HAPAX_ERR_INDETERMINATE);
    answer(play, come(play, newer, 1), HAPAX_ERR_NONE);
    turn(play);
    taken(play, newer, 1, HAPAX_ERR_NONE);
    taken(play, 20, newer, HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(play->link.queued, 0);
    play_close(play);
}

/* The same where the time is over on a connection that stands. */
CASE(late_answers_leave_both_indeterminate)
{
    struct play *play = play_open();

    put(play, 0, 1);
    put(play, 1, SECOND);
    put(play, 20, SECOND);
    play_leave(play);
    wait_in_vain(play);
    taken(play, 0, 1 + SECOND, HAPAX_ERR_INDETERMINATE);
    taken(play, 20, SECOND, HAPAX_ERR_UNAVAILABLE);
    play_close(play);
}

/* Puts a second request that no socket takes as a whole. */
static void put_long(struct play *play, struct hapax_span body)
{
    for (unsigned i = 1; i <= SECOND; i++)
        play->ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    play->ops[1] = bed_op(HAPAX_OP_COMPLETE, 1, 1);
    play->ops[1].outcome = (struct hapax_outcome){201, true, hapax_str(""), body};
    put(play, 0, 1);
    put(play, 1, SECOND);
    assert_true(hapax__link_writes(&play->link));
}

/* A second request of which only a part was written surely was not applied, whatever became of the
 * first. */
CASE(half_a_second_request_is_unavailable)
{
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    struct play *play = play_open();

    assert_non_null(body);
    put_long(play, (struct hapax_span){body, HAPAX_BODY_MAX});
    play_leave(play);
    cut(play);
    wait_in_vain(play);
    taken(play, 0, 1, HAPAX_ERR_INDETERMINATE);
    taken(play, 1, SECOND, HAPAX_ERR_UNAVAILABLE);
    play_close(play);
    free(body);
}

/* The reply to the first request is taken while the second is still being written. */
CASE(a_reply_comes_while_the_next_request_is_written)
{
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    struct play *play = play_open();

    assert_non_null(body);
    put_long(play, (struct hapax_span){body, HAPAX_BODY_MAX});
    answer(play, come(play, 0, 1), HAPAX_ERR_NONE);
    turn(play);
    taken(play, 0, 1, HAPAX_ERR_NONE);
    assert_true(hapax__link_writes(&play->link));
    play_leave(play);
    cut(play);
    wait_in_vain(play);
    taken(play, 1, SECOND, HAPAX_ERR_UNAVAILABLE);
    play_close(play);
    free(body);
}

/* A FORGET of either request is left out of the repeats, and the others are not. */
CASE(a_forget_of_a_second_request_is_not_repeated)
{
    struct play *play = play_open();

    play->ops[0] = bed_op(HAPAX_OP_RESOLVE, 0, 1);
    play->ops[1] = bed_op(HAPAX_OP_RESOLVE, 1, 1);
    play->ops[0].resolve = play->ops[1].resolve = HAPAX_RESOLVE_FORGET;
    put(play, 0, 1);
    put(play, 1, SECOND);
    cut(play);
    taken(play, 0, 2, HAPAX_ERR_INDETERMINATE);
    none_taken(play);
    play_accept(play);
    answer(play, come(play, 2, SECOND - 1), HAPAX_ERR_NONE);
    turn(play);
    taken(play, 2, SECOND - 1, HAPAX_ERR_NONE);
    play_close(play);
}

/* Where a keeper that came anew takes fewer ops at a time, the rest of the first request still goes
 * before the second. */
CASE(no_request_overtakes_the_rest_of_another)
{
    struct play *play = play_open();

    put(play, 0, 10);
    put(play, 10, SECOND);
    cut(play);
    play->batch_max = 4;
    play_accept(play);
    for (unsigned i = 0; i < 18; i += i == 8 ? 2 : 4) {
        struct came *came = come(play, i, i == 8 ? 2 : 4);

        if (i < 8)
            nothing_comes(play);
        answer(play, came, HAPAX_ERR_NONE);
        turn(play);
        taken(play, i, i == 8 ? 2 : 4, HAPAX_ERR_NONE);
    }
    play_close(play);
}

/* ---- the server ---------------------------------------------------------------------- */

static void send_ops(int fd, uint32_t seq, const struct hapax_op *ops, uint16_t n)
{
    struct hapax_span request = peer_request(seq, ops, n);

    assert_true(peer_send(fd, request.ptr, request.len));
    free((void *)(uintptr_t)request.ptr);
}

/* Four requests of a client are in hand at a time, and the next is not read before. Answers come in
 * the order of the requests. */
CASE(four_requests_are_in_hand)
{
    struct hapax_op ops[15];
    struct peer_frame *frames = NULL;
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    for (unsigned i = 0; i < 15; i++)
        ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    fd = peer_greet(bed.path);
    send_ops(fd, 1, ops, 1);
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    for (uint16_t i = 2, at = 1; i <= 5; at = (uint16_t)(at + i++))
        send_ops(fd, i, ops + at, i);
    AWAIT(hapax__lane_queued(bed.server->lane) == 10);
    close(peer_greet(bed.path)); /* by then the server has looked at all that came */
    assert_int_equal(hapax__lane_queued(bed.server->lane), 10);
    hapax__plan_go(&bed.plan);
    for (uint16_t i = 1, at = 0; i <= 5; at = (uint16_t)(at + i++))
        assert_true(peer_answers(fd, i, ops + at, i, &frames));
    for (unsigned i = 0; i < 15; i++)
        assert_int_equal(ops[i].verdict, HAPAX_CLAIMED);
    peer_free(frames);
    close(fd);
    bed_close(&bed);
}

/* A malformed request is faulted after what is in hand was answered. */
CASE(a_fault_comes_after_the_reply)
{
    static const uint8_t no_kind[] = {0, 0, 0, 1, 77};
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct peer_frame *frames = NULL;
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    fd = peer_greet(bed.path);
    send_ops(fd, 1, &op, 1);
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    assert_true(peer_send(fd, no_kind, sizeof(no_kind)));
    close(peer_greet(bed.path));
    hapax__plan_go(&bed.plan);
    assert_true(peer_answers(fd, 1, &op, 1, &frames));
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    peer_faulted(fd, "a frame of kind 77");
    peer_free(frames);
    bed_close(&bed);
}

/* ---- the client and a lane ----------------------------------------------------------- */

#define JOBS (1 + SECOND)

static void submit(struct hapax__lane *lane, struct hapax__job *jobs, unsigned from, unsigned n)
{
    for (unsigned i = from; i < from + n; i++) {
        jobs[i] = (struct hapax__job){.op = bed_op(HAPAX_OP_CLAIM, i, 1)};
        jobs[i].next = i + 1 < from + n ? &jobs[i + 1] : NULL;
    }
    assert_null(hapax__lane_submit_all(lane, &jobs[from]));
}

/* All jobs come back as granted claims; those that a loss left without a verdict when they are
 * repeated. */
static void collect(struct hapax__lane *lane, unsigned n)
{
    int64_t until_ms = bed_now_ms() + WAIT_MS;

    while (n > 0) {
        struct hapax__job *job = hapax__lane_reap(lane);
        struct hapax__job *next;

        must(bed_now_ms() < until_ms);
        if (!job)
            bed_pause();
        for (; job; job = next) {
            next = job->next;
            if (job->op.error != HAPAX_ERR_NONE) {
                assert_true(job->op.error == HAPAX_ERR_UNAVAILABLE ||
                            job->op.error == HAPAX_ERR_INDETERMINATE);
                assert_true(hapax__lane_submit(lane, job));
                continue;
            }
            assert_int_equal(job->op.verdict, HAPAX_CLAIMED);
            assert_int_equal(job->op.record.attempt, 1);
            free(job->memory);
            n--;
        }
    }
}

/* A lane over a keeper sends its next batch while the one before is with the keeper; and whatever
 * befalls the keeper meanwhile, each claim is granted once. */
CASE(a_lane_has_two_batches_with_a_keeper)
{
    struct hapax__job jobs[2 * JOBS];
    struct hapax__lane *lane;
    struct bed bed;

    bed_open(&bed, NULL);
    assert_int_equal(hapax__lane_open(&lane, bed_client(&bed, "?timeout=60s"), 64), HAPAX_ERR_NONE);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    submit(lane, jobs, 0, 1);
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    submit(lane, jobs, 1, SECOND);
    AWAIT(hapax__lane_queued(bed.server->lane) == JOBS);
    hapax__plan_go(&bed.plan);
    collect(lane, JOBS);
    for (unsigned round = 0; round < 20; round++) {
        submit(lane, jobs, 0, 1);
        submit(lane, jobs, 1, SECOND);
        hapax__keeper_stop(bed.server);
        submit(lane, jobs, JOBS, SECOND);
        bed_serve(&bed, NULL);
        collect(lane, JOBS + SECOND);
    }
    assert_null(hapax__lane_close(lane));
    bed_close(&bed);
}
