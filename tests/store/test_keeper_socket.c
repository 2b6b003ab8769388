/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's socket file: who may take its place, who may come in by it, and what is left when
 * the keeper ends. /
 */
#include "../cases.h"
#include "keeper_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY     65534u
#define SOME_GROUP 65533u

/* A socket file nobody listens on, as a killed keeper leaves it. */
static void leave_stale(const struct bed *bed)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, bed->path, sizeof(bed->path));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
}

static enum hapax_error serve_again(const char *path, const char *group, char text[HAPAX_TEXT_MAX])
{
    struct hapax__keeper_options options = {.path = path, .group = group};
    struct hapax__keeper_server *server;
    struct hapax_store *store;
    enum hapax_error error;

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    error = hapax__keeper_serve(&server, store, &options, text);
    if (error == HAPAX_ERR_NONE) {
        hapax__keeper_stop(server);
        return error;
    }
    assert_null(server);
    assert_true(text[0] >= 'a' && text[0] <= 'z');
    hapax_store_close(store); /* still ours */
    return error;
}

/* Two keepers at one path would each answer some of the clients. */
CASE(a_second_keeper_is_refused_with_the_pid_of_the_first)
{
    char text[HAPAX_TEXT_MAX], pid[32];
    struct bed bed;

    bed_open(&bed, NULL);
    assert_int_equal(serve_again(bed.path, NULL, text), HAPAX_ERR_REFUSED);
    snprintf(pid, sizeof(pid), "process %ld ", (long)getpid());
    assert_non_null(strstr(text, pid));
    bed_still_serves(&bed);
    bed_close(&bed);
}

/* A keeper that was killed leaves its file; nobody else's file is taken for one. */
CASE(only_a_stale_socket_is_replaced)
{
    char text[HAPAX_TEXT_MAX], file[96];
    struct stat info;
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    hapax__keeper_stop(bed.server);
    leave_stale(&bed);
    assert_int_equal(stat(bed.path, &info), 0);
    bed_serve(&bed, NULL);
    bed_still_serves(&bed);
    snprintf(file, sizeof(file), "%s/notes", bed.folder);
    fd = open(file, O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_int_equal(serve_again(file, NULL, text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "no socket"));
    assert_int_equal(unlink(file), 0);
    bed_close(&bed);
}

/* A file that somebody else put in its place is not the keeper's to remove. */
CASE(a_keeper_removes_its_own_file_only)
{
    struct stat info;
    struct bed bed;
    int fd;

    bed_open(&bed, NULL);
    assert_int_equal(unlink(bed.path), 0);
    fd = open(bed.path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    hapax__keeper_stop(bed.server);
    bed.server = NULL;
    assert_int_equal(stat(bed.path, &info), 0);
    assert_int_equal(unlink(bed.path), 0);
    bed_close(&bed);
}

/* What cannot be is refused by name, and leaves nothing behind. */
CASE(wrong_options_are_named)
{
    char text[HAPAX_TEXT_MAX], path[160], uri[200];
    struct hapax_store *store;
    struct bed bed;

    bed_open(&bed, NULL);
    snprintf(path, sizeof(path), "%s/%0107d", bed.folder, 1);
    assert_int_equal(serve_again(path, NULL, text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "over the limit of 107"));
    snprintf(uri, sizeof(uri), "unix:%s", path);
    assert_int_equal(hapax_store_open(&store, uri, text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "over the limit of 107"));
    assert_int_equal(serve_again("", NULL, text), HAPAX_ERR_INVALID);
    assert_int_equal(serve_again("/tmp/hapax-no-such-folder/sock", NULL, text),
                     HAPAX_ERR_UNAVAILABLE);
    snprintf(path, sizeof(path), "%s/two.sock", bed.folder);
    assert_int_equal(serve_again(path, "no-such-group-here", text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "no group \"no-such-group-here\""));
    assert_int_equal(serve_again(path, NULL, text), HAPAX_ERR_NONE);
    assert_int_equal(access(path, F_OK), -1);
    bed_close(&bed);
}

/* A group with thousands of members. */
#define LARGE_GROUP "hapax-large-group"

int __real_getgrnam_r(const char *name, struct group *group, char *buffer, size_t size,
                      struct group **found);
int __wrap_getgrnam_r(const char *name, struct group *group, char *buffer, size_t size,
                      struct group **found);

int __wrap_getgrnam_r(const char *name, struct group *group, char *buffer, size_t size,
                      struct group **found)
{
    if (strcmp(name, LARGE_GROUP) != 0)
        return __real_getgrnam_r(name, group, buffer, size, found);
    *found = NULL;
    if (size < 100000)
        return ERANGE;
    *group = (struct group){.gr_gid = getegid()};
    *found = group;
    return 0;
}

/* A group is found however long its line is. */
CASE(a_group_may_have_many_members)
{
    struct hapax__keeper_options large = {.group = LARGE_GROUP};
    struct bed bed;

    bed_open(&bed, &large);
    bed_still_serves(&bed);
    bed_close(&bed);
}

struct starter {
    const char *path;
    pthread_barrier_t *line;
    struct hapax__keeper_server *server;
    struct hapax_store *store;
    enum hapax_error error;
    pthread_t thread;
};

static void *start_main(void *arg)
{
    struct starter *starter = arg;
    struct hapax__keeper_options options = {.path = starter->path};
    char text[HAPAX_TEXT_MAX];

    must(hapax_store_open(&starter->store, "memory:", text) == HAPAX_ERR_NONE);
    pthread_barrier_wait(starter->line);
    starter->error = hapax__keeper_serve(&starter->server, starter->store, &options, text);
    return NULL;
}

/* Of several that find the same stale file at once, one becomes the keeper. */
CASE(keepers_that_start_at_once_leave_one)
{
    enum { STARTERS = 8, ROUNDS = 60 };
    struct starter starters[STARTERS];
    pthread_barrier_t line;
    struct bed bed;

    bed_open(&bed, NULL);
    hapax__keeper_stop(bed.server);
    bed.server = NULL;
    assert_int_equal(pthread_barrier_init(&line, NULL, STARTERS), 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned served = 0;

        leave_stale(&bed);
        for (unsigned i = 0; i < STARTERS; i++) {
            starters[i] = (struct starter){.path = bed.path, .line = &line};
            assert_int_equal(pthread_create(&starters[i].thread, NULL, start_main, &starters[i]),
                             0);
        }
        for (unsigned i = 0; i < STARTERS; i++) {
            pthread_join(starters[i].thread, NULL);
            served += starters[i].error == HAPAX_ERR_NONE;
            assert_true(starters[i].error == HAPAX_ERR_NONE ||
                        starters[i].error == HAPAX_ERR_REFUSED);
        }
        assert_int_equal(served, 1);
        bed_still_serves(&bed);
        for (unsigned i = 0; i < STARTERS; i++) {
            if (starters[i].error != HAPAX_ERR_NONE)
                hapax_store_close(starters[i].store);
            hapax__keeper_stop(starters[i].server);
        }
    }
    pthread_barrier_destroy(&line);
    bed_close(&bed);
}

static unsigned mode_of(const struct bed *bed, gid_t *gid)
{
    struct stat info;

    assert_int_equal(stat(bed->path, &info), 0);
    *gid = info.st_gid;
    return info.st_mode & 07777u;
}

/* Whether a process of this user, and of this group besides, gets an answer. */
static bool lets_in(const struct bed *bed, uid_t uid, gid_t group, const char *why)
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        char text[HAPAX_TEXT_MAX];
        struct hapax_store *store;

        if (setgroups(1, &group) != 0 || setgid(uid) != 0 || setuid(uid) != 0)
            _exit(9);
        if (hapax_store_open(&store, bed->uri, text) == HAPAX_ERR_NONE)
            _exit(0);
        _exit(strstr(text, why) ? 1 : 8);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    return WEXITSTATUS(status) == 0;
}

/* The file's mode is one door, the peer's credentials are the other. Only root can be others, so
 * the second is looked at when root runs this. */
CASE(only_the_permitted_get_in)
{
    struct hapax__keeper_options open_to_all = {.mode = 0666};
    struct hapax__keeper_options grouped = {.group = "65533"};
    mode_t before = umask(0); /* must not matter */
    struct bed bed;
    gid_t gid;

    bed_open(&bed, NULL);
    assert_int_equal(mode_of(&bed, &gid), 0600);
    hapax__keeper_stop(bed.server);
    umask(077);
    bed_serve(&bed, &open_to_all);
    umask(before);
    assert_int_equal(mode_of(&bed, &gid), 0666);
    if (geteuid() == 0) {
        assert_int_equal(chmod(bed.folder, 0711), 0);
        assert_false(lets_in(&bed, NOBODY, SOME_GROUP, "not permitted for uid 65534"));
        hapax__keeper_stop(bed.server);
        bed_serve(&bed, &grouped);
        assert_int_equal(mode_of(&bed, &gid), 0660);
        assert_int_equal(gid, SOME_GROUP);
        assert_true(lets_in(&bed, NOBODY, SOME_GROUP, ""));
        assert_false(lets_in(&bed, NOBODY, NOBODY, "no permission"));
        assert_true(lets_in(&bed, 0, 0, ""));
    }
    bed_close(&bed);
}

/* ---- a door's rights ----------------------------------------------------------------- */

/* An op of the request that the caller of this number makes. */
static struct hapax_op asked(enum hapax_op_kind kind, unsigned n, unsigned who, unsigned caller)
{
    struct hapax_op op = bed_op(kind, n, who);

    memset(op.fingerprint.bytes, 0xf1, sizeof(op.fingerprint.bytes));
    memset(op.caller.bytes, (int)caller, sizeof(op.caller.bytes));
    op.outcome = (struct hapax_outcome){200, true, hapax_str(""), hapax_str("receipt")};
    return op;
}

static bool run_as(struct hapax_store *store, struct hapax_op op, enum hapax_verdict verdict,
                   const char *body)
{
    hapax_store_run(store, &op, 1);
    return op.verdict == verdict && op.record.outcome.body.len == strlen(body) &&
           (op.record.outcome.status != 0) == (strlen(body) > 0);
}

static bool refused(struct hapax_store *store, struct hapax_op op)
{
    return hapax_store_run(store, &op, 1) == HAPAX_ERR_REFUSED && op.error == HAPAX_ERR_REFUSED &&
           strstr(hapax_store_text(store), "rights of a door");
}

/* What a process of the group gets. 0: what a door gets, no more and no less. */
static int what_a_door_gets(const struct bed *bed)
{
    static const enum hapax_op_kind operators[] = {HAPAX_OP_LIST, HAPAX_OP_PURGE, HAPAX_OP_RESOLVE};
    const gid_t group = SOME_GROUP;
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    if (setgroups(1, &group) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0 ||
        hapax_store_open(&store, bed->uri, text) != HAPAX_ERR_NONE)
        return 1;
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
        if (!refused(store, asked(operators[i], 1, 3, 1)))
            return 2;
    /* All of an operation of its own. */
    if (!run_as(store, asked(HAPAX_OP_CLAIM, 2, 1, 1), HAPAX_CLAIMED, "") ||
        !run_as(store, asked(HAPAX_OP_RENEW, 2, 1, 1), HAPAX_OK, "") ||
        !run_as(store, asked(HAPAX_OP_READ, 2, 1, 1), HAPAX_FOUND, "") ||
        !run_as(store, asked(HAPAX_OP_COMPLETE, 2, 1, 1), HAPAX_OK, "receipt") ||
        !run_as(store, asked(HAPAX_OP_CLAIM, 3, 1, 1), HAPAX_CLAIMED, "") ||
        !run_as(store, asked(HAPAX_OP_FAIL, 3, 1, 1), HAPAX_OK, ""))
        return 3;
    /* The outcome for the same request, by whatever op. */
    if (!run_as(store, asked(HAPAX_OP_CLAIM, 1, 2, 1), HAPAX_COMPLETED, "receipt") ||
        !run_as(store, asked(HAPAX_OP_READ, 1, 2, 1), HAPAX_FOUND, "receipt") ||
        !run_as(store, asked(HAPAX_OP_FAIL, 1, 2, 1), HAPAX_LOST, "receipt"))
        return 4;
    /* And for no other. */
    if (!refused(store, asked(HAPAX_OP_READ, 1, 2, 2)) ||
        !refused(store, bed_op(HAPAX_OP_READ, 1, 2)) ||
        !run_as(store, asked(HAPAX_OP_CLAIM, 1, 2, 2), HAPAX_MISMATCH, "") ||
        !run_as(store, asked(HAPAX_OP_RENEW, 1, 2, 2), HAPAX_LOST, "") ||
        !run_as(store, asked(HAPAX_OP_COMPLETE, 1, 2, 2), HAPAX_LOST, "") ||
        !run_as(store, asked(HAPAX_OP_FAIL, 1, 2, 2), HAPAX_LOST, ""))
        return 5;
    return 0;
}

/* The group's members run operations, and learn nothing of those of others: they neither list nor
 * resolve, and read no record but by its request. The keeper's own user does all of it. */
CASE(the_group_has_the_rights_of_a_door)
{
    struct hapax__keeper_options grouped = {.group = "65533"};
    struct hapax_store *own;
    struct bed bed;
    int status;
    pid_t pid;

    if (geteuid() != 0)
        skip();
    bed_open(&bed, &grouped);
    assert_int_equal(chmod(bed.folder, 0711), 0);
    own = bed_client(&bed, "");
    assert_true(run_as(own, asked(HAPAX_OP_CLAIM, 1, 1, 1), HAPAX_CLAIMED, ""));
    assert_true(run_as(own, asked(HAPAX_OP_COMPLETE, 1, 1, 1), HAPAX_OK, "receipt"));
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(what_a_door_gets(&bed));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(run_as(own, bed_op(HAPAX_OP_READ, 1, 2), HAPAX_FOUND, "receipt"));
    assert_true(run_as(own, asked(HAPAX_OP_COMPLETE, 1, 2, 2), HAPAX_LOST, "receipt"));
    assert_true(run_as(own, bed_op(HAPAX_OP_LIST, 0, 0), HAPAX_FOUND, ""));
    assert_true(run_as(own, bed_op(HAPAX_OP_PURGE, 0, 0), HAPAX_OK, ""));
    hapax_store_close(own);
    bed_close(&bed);
}
