/* SPDX-License-Identifier: Apache-2.0
 *
 * What the keeper's client says when connections, replies and keepers are lost. Losses are made by
 * a relay between client and server, which forwards bytes until it is told to cut; and by keepers
 * that are ended or stopped. /
 */
#include "../cases.h"
#include "keeper_bed.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static enum hapax_error run_one(struct hapax_store *store, struct hapax_op *op)
{
    return hapax_store_run(store, op, 1);
}

static struct hapax_op outcome_op(enum hapax_op_kind kind, unsigned n, unsigned who,
                                  struct hapax_span body)
{
    struct hapax_op op = bed_op(kind, n, who);

    op.outcome = (struct hapax_outcome){201, true, hapax_str("A: b\r\n"), body};
    return op;
}

/* ---- the relay ----------------------------------------------------------------------- */

/* Stands at `path` and forwards to the keeper, in a thread. Each connection is told by `plan` what
 * becomes of it, the last entry serving for all that come after. */
enum relay_plan {
    FORWARD, /* both ways, to the end */
    SWALLOW_REPLY, /* forwards the request, waits for its reply, cuts without passing it on */
    CUT_REQUEST /* cuts when the request begins to come */
};

struct relay {
    char path[96];
    char uri[112];
    const char *to;
    int listener;
    int stop[2];
    const enum relay_plan *plan;
    size_t plans;
    atomic_uint connections;
    pthread_t thread;
};

static bool readable(int fd, int stop)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = stop, .events = POLLIN}};

    while (poll(fds, 2, -1) < 0)
        must(errno == EINTR);
    return !fds[1].revents;
}

/* One piece from one side to the other. False: the end. */
static bool forward(int from, int to)
{
    static _Thread_local char bytes[65536];
    ssize_t got = recv(from, bytes, sizeof(bytes), 0);

    return got > 0 && peer_send(to, bytes, (size_t)got);
}

static void serve_one(struct relay *relay, int client, enum relay_plan plan)
{
    struct pollfd fds[3] = {{.fd = client, .events = POLLIN},
                            {.fd = peer_dial(relay->to), .events = POLLIN},
                            {.fd = relay->stop[0], .events = POLLIN}};
    unsigned replies = 0, requests = 0; /* the greeting is the first of both */
    bool on = true;

    while (on) {
        while (poll(fds, 3, -1) < 0)
            must(errno == EINTR);
        if (fds[2].revents)
            break;
        if (fds[0].revents) {
            on = !(plan == CUT_REQUEST && ++requests == 2) && forward(client, fds[1].fd);
        } else if (fds[1].revents) {
            on = !(plan == SWALLOW_REPLY && ++replies == 2) && forward(fds[1].fd, client);
        }
    }
    close(fds[1].fd);
    close(client);
}

static void *relay_main(void *arg)
{
    struct relay *relay = arg;

    while (readable(relay->listener, relay->stop[0])) {
        int client = accept(relay->listener, NULL, NULL);
        size_t which = relay->connections < relay->plans ? relay->connections : relay->plans - 1;

        must(client >= 0);
        relay->connections++;
        serve_one(relay, client, relay->plan[which]);
        /* The plan is over: nobody is there to repeat to. */
        if (relay->connections == relay->plans && relay->plan[which] != FORWARD)
            break;
    }
    close(relay->listener);
    unlink(relay->path);
    return NULL;
}

static struct hapax_store *relay_open(struct relay *relay, const struct bed *bed,
                                      const enum relay_plan *plan, size_t plans, const char *query)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[HAPAX_TEXT_MAX], uri[160];
    struct hapax_store *store;

    snprintf(relay->path, sizeof(relay->path), "%s/relay.sock", bed->folder);
    snprintf(uri, sizeof(uri), "unix:%s%s", relay->path, query);
    relay->to = bed->path;
    relay->plan = plan;
    relay->plans = plans;
    relay->connections = 0;
    memcpy(address.sun_path, relay->path, sizeof(relay->path));
    relay->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(relay->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(relay->listener, 8), 0);
    assert_int_equal(pipe(relay->stop), 0);
    assert_int_equal(pthread_create(&relay->thread, NULL, relay_main, relay), 0);
    assert_int_equal(hapax_store_open(&store, uri, text), HAPAX_ERR_NONE);
    return store;
}

static void relay_close(struct relay *relay)
{
    close(relay->stop[1]);
    pthread_join(relay->thread, NULL);
    close(relay->stop[0]);
}

/* ---- losses -------------------------------------------------------------------------- */

/* The winner of a claim hears that it won, whatever became of the first reply. */
CASE(a_lost_reply_does_not_strand_the_winner)
{
    static const enum relay_plan plan[] = {SWALLOW_REPLY, SWALLOW_REPLY, SWALLOW_REPLY, FORWARD};
    struct hapax_op ops[3] = {bed_op(HAPAX_OP_CLAIM, 1, 1), bed_op(HAPAX_OP_CLAIM, 1, 2),
                              outcome_op(HAPAX_OP_COMPLETE, 1, 1, hapax_str("made"))};
    struct hapax_store *client;
    struct relay relay;
    struct bed bed;

    bed_open(&bed, NULL);
    client = relay_open(&relay, &bed, plan, 4, "");
    assert_int_equal(hapax_store_run(client, ops, 3), HAPAX_ERR_NONE);
    assert_int_equal(relay.connections, 4);
    assert_int_equal(hapax__plan_counts(&bed.plan).applied, 12);
    assert_int_equal(ops[0].verdict, HAPAX_COMPLETED); /* its own, completed by the first try */
    assert_int_equal(ops[1].verdict, HAPAX_COMPLETED);
    assert_int_equal(ops[2].verdict, HAPAX_OK);
    assert_int_equal(ops[2].record.attempt, 1);
    assert_memory_equal(ops[0].record.outcome.body.ptr, "made", 4);
    ops[0] = bed_op(HAPAX_OP_CLAIM, 2, 1);
    assert_int_equal(run_one(client, &ops[0]), HAPAX_ERR_NONE);
    assert_int_equal(ops[0].verdict, HAPAX_CLAIMED);
    hapax_store_close(client);
    relay_close(&relay);
    bed_close(&bed);
}

/* What was sent once, and whose repeat finds nobody, may have been applied; what is asked after
 * that, and finds nobody, surely was not. */
CASE(sent_once_is_indeterminate_and_never_sent_is_unavailable)
{
    static const enum relay_plan plan[] = {SWALLOW_REPLY};
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_store *client;
    struct relay relay;
    struct bed bed;

    bed_open(&bed, NULL);
    client = relay_open(&relay, &bed, plan, 1, "?timeout=2s"); /* within which the first is sent */
    assert_int_equal(run_one(client, &op), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(hapax__plan_counts(&bed.plan).applied, 1);
    op = bed_op(HAPAX_OP_CLAIM, 2, 1);
    assert_int_equal(run_one(client, &op), HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(op.error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(hapax__plan_counts(&bed.plan).applied, 1);
    hapax_store_close(client);
    relay_close(&relay);
    bed_close(&bed);
}

/* "Unavailable" said of a repeat says nothing of what was sent before it. */
CASE(an_unavailable_repeat_is_indeterminate)
{
    static const enum relay_plan plan[] = {SWALLOW_REPLY, FORWARD};
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_store *client;
    struct relay relay;
    struct bed bed;

    bed_open(&bed, NULL);
    client = relay_open(&relay, &bed, plan, 2, "");
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 2, 1);
    assert_int_equal(run_one(client, &op), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 2);
    assert_int_equal(hapax__plan_counts(&bed.plan).applied, 1);
    assert_int_equal(run_one(client, &op), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
    hapax_store_close(client);
    relay_close(&relay);
    bed_close(&bed);
}

/* A FORGET has no token left to be known by: its repeat could remove another's record. */
CASE(a_forget_is_not_repeated)
{
    static const enum relay_plan plan[] = {SWALLOW_REPLY, FORWARD};
    struct hapax_op ops[2] = {bed_op(HAPAX_OP_RESOLVE, 1, 2), bed_op(HAPAX_OP_READ, 9, 1)};
    struct hapax_op claim = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_store *client;
    struct relay relay;
    struct bed bed;

    bed_open(&bed, NULL);
    client = bed_client(&bed, "");
    assert_int_equal(run_one(client, &claim), HAPAX_ERR_NONE);
    hapax_store_close(client);
    client = relay_open(&relay, &bed, plan, 2, "");
    ops[0].resolve = HAPAX_RESOLVE_FORGET;
    ops[0].force = true;
    assert_int_equal(hapax_store_run(client, ops, 2), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(ops[0].error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(ops[1].verdict, HAPAX_ABSENT);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 4); /* claim; forget and read; read */
    hapax_store_close(client);
    relay_close(&relay);
    bed_close(&bed);
}

/* A request that came in part ran in no part, and is repeated as a whole. */
CASE(a_request_cut_short_is_sent_anew)
{
    static const enum relay_plan plan[] = {CUT_REQUEST, FORWARD};
    struct hapax_op op;
    struct hapax_store *client;
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    struct relay relay;
    struct bed bed;

    assert_non_null(body);
    bed_open(&bed, NULL);
    client = relay_open(&relay, &bed, plan, 2, "");
    op = outcome_op(HAPAX_OP_COMPLETE, 1, 1, (struct hapax_span){body, HAPAX_BODY_MAX});
    assert_int_equal(run_one(client, &op), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_LOST);
    assert_int_equal(relay.connections, 2);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 1);
    hapax_store_close(client);
    relay_close(&relay);
    free(body);
    bed_close(&bed);
}

/* Another keeper over the same records goes on where the first ended. */
CASE(a_restarted_keeper_is_found_again)
{
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_store *client;
    struct bed bed;

    bed_open(&bed, NULL);
    client = bed_client(&bed, "");
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(run_one(client, &op), HAPAX_ERR_NONE);
        assert_int_equal(op.verdict, HAPAX_CLAIMED);
        assert_int_equal(op.record.attempt, 1);
        hapax__keeper_stop(bed.server);
        bed_serve(&bed, NULL);
    }
    hapax_store_close(client);
    bed_close(&bed);
}

/* A process that the keeper's forked has copies of its sockets: a client is told of the end all the
 * same, and does not wait in vain for an answer from nobody. */
CASE(a_fork_of_the_keeper_keeps_no_client_waiting)
{
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_store *client;
    struct bed bed;
    int end[2]; /* the fork ends with this process, whatever becomes of the case */
    char none;
    pid_t pid;

    assert_int_equal(pipe(end), 0);
    bed_open(&bed, NULL);
    client = bed_client(&bed, "?timeout=20s"); /* which would be over in vain */
    assert_int_equal(run_one(client, &op), HAPAX_ERR_NONE);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(end[1]);
        _exit(read(end[0], &none, 1) == 0 ? 0 : 1);
    }
    hapax__keeper_stop(bed.server);
    bed_serve(&bed, NULL);
    assert_int_equal(run_one(client, &op), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
    close(end[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(end[0]);
    hapax_store_close(client);
    bed_close(&bed);
}

/* A late reply is not taken for the answer to what was asked later. */
CASE(a_late_reply_answers_nothing_else)
{
    struct hapax_op claim = bed_op(HAPAX_OP_CLAIM, 1, 1), read = bed_op(HAPAX_OP_READ, 2, 1);
    struct hapax_store *client;
    struct bed bed;

    bed_open(&bed, NULL);
    client = bed_client(&bed, "?timeout=2s"); /* within which it is sent */
    hapax__plan_set(&bed.plan, HAPAX__DELAY_REPLY, 1, 1);
    assert_int_equal(run_one(client, &claim), HAPAX_ERR_INDETERMINATE);
    assert_non_null(strstr(hapax_store_text(client), "no answer in time"));
    hapax__plan_go(&bed.plan);
    hapax_store_close(client);
    client = bed_client(&bed, "?timeout=20s");
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    assert_int_equal(run_one(client, &read), HAPAX_ERR_NONE);
    assert_int_equal(read.verdict, HAPAX_ABSENT);
    assert_int_equal(run_one(client, &claim), HAPAX_ERR_NONE);
    assert_int_equal(claim.verdict, HAPAX_CLAIMED);
    assert_int_equal(claim.record.attempt, 1);
    hapax_store_close(client);
    bed_close(&bed);
}

/* A keeper that is stopped, and not dead, is waited for no longer than was said. */
CASE(a_stopped_keeper_is_indeterminate)
{
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    char folder[] = "/tmp/hapax-keeper-XXXXXX", uri[96], path[64], text[HAPAX_TEXT_MAX];
    struct hapax__keeper_options options = {.path = path};
    struct hapax_store *client, *other, *held;
    struct hapax__keeper_server *server;
    int status;
    pid_t pid;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/keeper.sock", folder);
    snprintf(uri, sizeof(uri), "unix:%s?timeout=1s", path);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        must(hapax_store_open(&held, "memory:", text) == HAPAX_ERR_NONE);
        must(hapax__keeper_serve(&server, held, &options, text) == HAPAX_ERR_NONE);
        for (;;)
            pause();
    }
    AWAIT(hapax_store_open(&client, uri, text) == HAPAX_ERR_NONE);
    AWAIT(run_one(client, &op) == HAPAX_ERR_NONE);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    op = bed_op(HAPAX_OP_CLAIM, 2, 1);
    assert_int_equal(run_one(client, &op), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(run_one(client, &op), HAPAX_ERR_UNAVAILABLE); /* it takes no greeting */
    assert_int_equal(hapax_store_open(&other, uri, text), HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "it does not greet"));
    assert_int_equal(kill(pid, SIGCONT), 0);
    AWAIT(run_one(client, &op) == HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    hapax_store_close(client);
    assert_int_equal(unlink(path), 0); /* it could not */
    assert_int_equal(rmdir(folder), 0);
}
