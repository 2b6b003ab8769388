/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of an op whose holder dies before its reply arrives: a relay stands between this
 * process and the keeper of another, lets the op be applied, and ends the holder in place of a
 * reply (promise 22).
 */
#include "../cases.h"
#include "rocksdb_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

struct relay {
    char asked[96]; /* where the client connects */
    char real[96]; /* where the keeper listens by now */
    int listener;
    pid_t holder;
    atomic_bool cut; /* the next reply is not passed on */
    enum hapax_verdict meanwhile; /* what another's CLAIM was answered just before */
};

/* Whether there is no memory for answers. */
static bool keeps_fail;

bool __real_hapax__store_keep(struct hapax_store *store, struct hapax_op *op);
bool __wrap_hapax__store_keep(struct hapax_store *store, struct hapax_op *op);

bool __wrap_hapax__store_keep(struct hapax_store *store, struct hapax_op *op)
{
    return !keeps_fail && __real_hapax__store_keep(store, op);
}

static int socket_at(const char *path, bool listens)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd < 0)
        abort();
    if (listens ? bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 8) != 0
                : connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        abort();
    return fd;
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void end_holder(struct relay *relay)
{
    struct hapax_store *other;
    char text[HAPAX_TEXT_MAX], uri[128];
    struct hapax_op op = claim_of(1, 2);

    snprintf(uri, sizeof(uri), "unix:%s", relay->real);
    if (hapax_store_open(&other, uri, text) != HAPAX_ERR_NONE)
        abort();
    relay->meanwhile = run_one(other, &op);
    hapax_store_close(other);
    end_process(relay->holder);
    unlink(relay->asked);
}

/* False: that side has ended. */
static bool pass(int from, int to)
{
    static char bytes[1 << 16];
    ssize_t n = read(from, bytes, sizeof(bytes));

    return n > 0 && write(to, bytes, (size_t)n) == n;
}

static void *relay_main(void *arg)
{
    struct relay *relay = arg;
    int client = accept(relay->listener, NULL, NULL);
    int keeper = socket_at(relay->real, false);
    bool open = true;

    close(relay->listener);
    while (open) {
        struct pollfd fds[] = {{client, POLLIN, 0}, {keeper, POLLIN, 0}};

        poll(fds, 2, -1);
        if (fds[0].revents) {
            open = pass(client, keeper);
        } else if (atomic_load(&relay->cut)) {
            end_holder(relay);
            open = false;
        } else {
            open = pass(keeper, client);
        }
    }
    close(client);
    close(keeper);
    return NULL;
}

static pid_t start_holder(struct fixture *f)
{
    int ready[2];
    char byte = 1;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (hapax_store_open(&f->store, f->uri, f->text) != HAPAX_ERR_NONE ||
            write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

/* Opens a handle whose holder is another process, with the relay between them. */
static void begin_relay(struct fixture *f, struct relay *relay, pthread_t *thread)
{
    snprintf(f->uri, sizeof(f->uri), "rocksdb:%s", f->path);
    snprintf(relay->asked, sizeof(relay->asked), "%s/keeper.sock", f->path);
    snprintf(relay->real, sizeof(relay->real), "%s/real.sock", f->path);
    relay->holder = start_holder(f);
    assert_int_equal(rename(relay->asked, relay->real), 0);
    relay->listener = socket_at(relay->asked, true);
    assert_int_equal(pthread_create(thread, NULL, relay_main, relay), 0);
    assert_int_equal(hapax_store_open(&f->store, f->uri, f->text), HAPAX_ERR_NONE);
}

/* The forget was applied and another has claimed since: repeated at the takeover it would remove a
 * live claim, and the handler would run twice. */
CASE_WITH(a_forget_is_not_repeated_at_a_takeover, make_folder, drop_store)
{
    struct fixture *f = *state;
    struct relay relay = {.meanwhile = HAPAX_NO_VERDICT};
    struct hapax_op forget = {.kind = HAPAX_OP_RESOLVE,
                              .id = id_of(1),
                              .token = {{9}},
                              .resolve = HAPAX_RESOLVE_FORGET,
                              .force = true};
    pthread_t thread;

    begin_relay(f, &relay, &thread);
    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    atomic_store(&relay.cut, true);
    assert_int_equal(hapax_store_run(f->store, &forget, 1), HAPAX_ERR_INDETERMINATE);
    pthread_join(thread, NULL);
    assert_int_equal(relay.meanwhile, HAPAX_CLAIMED);
    assert_int_equal(claim(f->store, 1, 3), HAPAX_IN_FLIGHT);
}

/* The claim was applied, and this process has no memory for the repeat's answer: the error of the
 * repeat says nothing of the claim (promise 10). */
CASE_WITH(a_repeat_that_fails_leaves_the_op_in_doubt, make_folder, drop_store)
{
    struct fixture *f = *state;
    struct relay relay = {.meanwhile = HAPAX_NO_VERDICT};
    struct hapax_op op = claim_of(1, 1);
    pthread_t thread;

    begin_relay(f, &relay, &thread);
    keeps_fail = true;
    atomic_store(&relay.cut, true);
    assert_int_equal(hapax_store_run(f->store, &op, 1), HAPAX_ERR_INDETERMINATE);
    keeps_fail = false;
    pthread_join(thread, NULL);
    assert_int_equal(relay.meanwhile, HAPAX_IN_FLIGHT);
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(run_one(f->store, &op), HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
}

static void note_sync(void *arg, bool danger, const char *line)
{
    (void)danger;
    if (strstr(line, "sync is off"))
        *(bool *)arg = false;
}

static pid_t holder_with(struct fixture *f, const char *options)
{
    snprintf(f->uri, sizeof(f->uri), "rocksdb:%s%s", f->path, options);
    return start_holder(f);
}

/* Kills a holder with these options, lets a client with others take over, and looks how that one
 * serves the path. `before`: of another holder, whom the client met first; NULL: none. */
static void take_over(struct fixture *f, const char *before, const char *of_holder,
                      const char *of_client, unsigned mode, gid_t gid, bool sync)
{
    char name[128];
    struct stat st;
    bool synced = true;
    pid_t holder = holder_with(f, before ? before : of_holder);

    open_store(f, of_client);
    if (before) {
        end_process(holder);
        holder = holder_with(f, of_holder);
        assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    }
    end_process(holder);
    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    snprintf(name, sizeof(name), "%s/keeper.sock", f->path);
    assert_int_equal(stat(name, &st), 0);
    assert_int_equal(st.st_mode & 0777, mode);
    assert_int_equal(st.st_gid, gid);
    assert_int_equal(hapax_store_check(f->store, note_sync, &synced), HAPAX_ERR_NONE);
    assert_int_equal(synced, sync);
}

/* Who may connect, and what a power cut takes, does not change with the holder. */
CASE_WITH(a_takeover_serves_as_the_holder_did, make_folder, drop_store)
{
    gid_t gid = geteuid() == 0 ? 12345 : getegid();
    struct fixture *f = *state;
    struct hapax_store *second;
    char options[64];

    snprintf(options, sizeof(options), "?sync=off&mode=0640&group=%u", gid);
    take_over(f, NULL, options, "", 0640, gid, false);
    assert_int_equal(hapax_store_open(&second, f->uri, f->text), HAPAX_ERR_NONE);
    hapax_store_close(second);
}

/* The same of a holder that syncs, and a client that would not. */
CASE_WITH(a_takeover_syncs_as_the_holder_did, make_folder, drop_store)
{
    take_over(*state, NULL, "", "?sync=off&mode=0666", 0600, getegid(), true);
}

/* The last holder counts, whom the client has met without opening the store anew. */
CASE_WITH(a_takeover_serves_as_the_last_holder_did, make_folder, drop_store)
{
    take_over(*state, "?sync=off&mode=0600", "?mode=0666", "", 0666, getegid(), true);
}

/* A path is free once its holder has closed it, though a child of the holder lives on. */
CASE_WITH(a_forked_child_holds_no_path, make_folder, drop_store)
{
    struct fixture *f = *state;
    int end[2];
    char none;
    pid_t pid;

    assert_int_equal(pipe(end), 0);
    open_store(f, "");
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(end[1]);
        _exit(read(end[0], &none, 1) == 0 ? 0 : 1);
    }
    reopen_store(f);
    close(end[1]);
    close(end[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

int main(void)
{
    hapax_rocksdb_use();
    return cases_run(NULL, NULL);
}
