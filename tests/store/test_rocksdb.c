/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedded store beside what every store must do (store_test): its files, its holder, its
 * clock, what it makes of damage. Its walks are in test_rocksdb_walk.c; what disks and kills do to
 * it in test_rocksdb_crash.c.
 */
#include "rocksdb_fixture.h"

#include "base/clock.h"
#include "core/record.h"
#include "store/keeper/keeper.h"
#include "store/rocksdb/files.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *self; /* how this program was started */

/* ---- opening ------------------------------------------------------------------------- */

static enum hapax_error open_fails(struct fixture *f, const char *uri)
{
    struct hapax_store *store = NULL;
    enum hapax_error error = hapax_store_open(&store, uri, f->text);

    assert_null(store);
    assert_int_not_equal(error, HAPAX_ERR_NONE);
    assert_non_null(strstr(f->text, "cannot open store \"rocksdb:"));
    return error;
}

/* A store closed and opened again has every record, with its lease, attempt and fence. */
static void a_reopened_store_has_its_records(void **state)
{
    struct fixture *f = *state;
    struct hapax_op mine = claim_of(1, 1), other = claim_of(1, 2), next = claim_of(3, 1);

    assert_int_equal(run_one(f->store, &mine), HAPAX_CLAIMED);
    assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 2, 1), HAPAX_OK);
    reopen_store(f);
    assert_int_equal(run_one(f->store, &other), HAPAX_IN_FLIGHT);
    assert_int_equal(other.record.attempt, 1);
    assert_int_equal(other.record.lease_until_us, mine.record.lease_until_us);
    assert_true(other.now_us > mine.now_us);
    assert_true(is_completed(f->store, 2));
    assert_int_equal(run_one(f->store, &next), HAPAX_CLAIMED);
    assert_true(next.record.fence > mine.record.fence);
}

/* A URI with anything unknown in it is refused, and told what is known. */
static void a_wrong_uri_is_refused(void **state)
{
    static const char *const wrong[] = {
        "?sync=maybe", "?color=red", "?sync",   "?mode=9", "?mode=0066",
        "?mode=1777",  "?sync=off&", "?group=", "?",       "?group=no-such-group-here"};
    struct fixture *f = *state;
    char uri[128];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(uri, sizeof(uri), "rocksdb:%s%s", f->path, wrong[i]);
        assert_int_equal(open_fails(f, uri), HAPAX_ERR_INVALID);
    }
    assert_int_equal(open_fails(f, "rocksdb:"), HAPAX_ERR_INVALID);
    snprintf(uri, sizeof(uri), "rocksdb:%s?color=red", f->path);
    open_fails(f, uri);
    assert_non_null(strstr(f->text, "sync=off, group=NAME, mode=0660"));
}

static unsigned mode_of(const char *folder, const char *name)
{
    char path[128];
    struct stat st;

    snprintf(path, sizeof(path), "%s%s", folder, name);
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

/* A group is let in where it is named: to the socket, through the folder, and no further. */
static void a_group_reaches_the_keeper_alone(void **state)
{
    struct fixture *f = *state;
    char query[32];

    close_store(f);
    snprintf(query, sizeof(query), "?group=%u", (unsigned)getgid());
    open_store(f, query);
    assert_int_equal(mode_of(f->path, "/keeper.sock"), 0660);
    assert_int_equal(mode_of(f->path, ""), 0710);
    assert_int_equal(mode_of(f->path, "/db"), 0700);
}

/* A path that cannot hold a store is refused with its reason, and nothing is left there. */
static void an_unusable_path_is_refused(void **state)
{
    struct fixture *f = *state;
    char uri[256], path[128];
    FILE *file;

    snprintf(uri, sizeof(uri), "rocksdb:%s/none/store", f->path);
    assert_int_equal(open_fails(f, uri), HAPAX_ERR_INVALID);
    assert_non_null(strstr(f->text, "folder above it does not exist"));

    snprintf(path, sizeof(path), "%s/file", f->path);
    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    snprintf(uri, sizeof(uri), "rocksdb:%s", path);
    assert_int_equal(open_fails(f, uri), HAPAX_ERR_INVALID);
    assert_non_null(strstr(f->text, "it is not a folder"));

    snprintf(uri, sizeof(uri), "rocksdb:%s/%0100d", f->path, 1);
    assert_int_equal(open_fails(f, uri), HAPAX_ERR_INVALID);
    assert_non_null(strstr(f->text, "limit of 107"));
}

/* In a child, since root may write anywhere. */
static int open_as_nobody(const char *uri)
{
    struct hapax_store *store = NULL;
    char text[HAPAX_TEXT_MAX];

    if (getuid() == 0 && setuid(65534) != 0)
        return 2;
    hapax_rocksdb_use();
    return hapax_store_open(&store, uri, text) == HAPAX_ERR_REFUSED &&
                   strstr(text, "Permission denied")
               ? 0
               : 1;
}

static pid_t start(const char *mode, const char *uri, int out)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (out >= 0)
        dup2(out, STDOUT_FILENO);
    execl(self, self, mode, uri, (char *)NULL);
    _exit(127);
}

static int status_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* A folder one may not write in is refused with the system's reason. */
static void an_unwritable_path_is_refused(void **state)
{
    struct fixture *f = *state;

    snprintf(f->uri, sizeof(f->uri), "rocksdb:%s/store", f->path);
    assert_int_equal(chmod(f->path, 0555), 0);
    assert_int_equal(status_of(start("nobody", f->uri, -1)), 0);
    assert_int_equal(chmod(f->path, 0700), 0);
}

/* Two handles of one process share one database, and see each other's writes. */
static void handles_of_one_process_share_the_database(void **state)
{
    struct fixture *f = *state;
    struct hapax_store *second;

    assert_int_equal(hapax_store_open(&second, f->uri, f->text), HAPAX_ERR_NONE);
    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(claim(second, 1, 2), HAPAX_IN_FLIGHT);
    close_store(f);
    assert_int_equal(complete(second, 1, 1), HAPAX_OK);
    assert_int_equal(hapax__rocksdb_holder(f->path), getpid());
    hapax_store_close(second);
    assert_int_equal(hapax__rocksdb_holder(f->path), 0);
}

/* One process cannot have one database both with and without sync. */
static void handles_agree_on_sync(void **state)
{
    struct fixture *f = *state;
    char uri[128];

    snprintf(uri, sizeof(uri), "rocksdb:%s?sync=off", f->path);
    assert_int_equal(open_fails(f, uri), HAPAX_ERR_REFUSED);
    assert_non_null(strstr(f->text, "sync=on"));
}

/* ---- holders ------------------------------------------------------------------------- */

/* Holds the store until it is killed. */
static int hold(const char *uri)
{
    struct hapax_store *store = NULL;
    char text[HAPAX_TEXT_MAX];

    hapax_rocksdb_use();
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        return 1;
    if (write(STDOUT_FILENO, "h", 1) != 1)
        return 1;
    for (;;)
        pause();
}

static pid_t start_holder(struct fixture *f, const char *mode)
{
    int out[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(out), 0);
    snprintf(f->uri, sizeof(f->uri), "rocksdb:%s", f->path);
    pid = start(mode, f->uri, out[1]);
    close(out[1]);
    assert_int_equal(read(out[0], &byte, 1), 1);
    close(out[0]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(status_of(pid), -SIGKILL);
}

/* Who opens a path that another process holds is served by that process. */
static void a_held_path_leads_to_its_keeper(void **state)
{
    struct fixture *f = *state;
    pid_t pid = start_holder(f, "hold");

    assert_int_equal(hapax__rocksdb_holder(f->path), pid);
    open_store(f, "");
    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 1, 1), HAPAX_OK);
    assert_int_equal(hapax__rocksdb_holder(f->path), pid);
    close_store(f);
    end(pid);
    assert_int_equal(hapax__rocksdb_holder(f->path), 0);
    open_store(f, "");
    assert_true(is_completed(f->store, 1));
}

/* When the holder is killed, a handle it served takes its place, with all that was acknowledged,
 * and serves others. */
static void a_dead_holder_is_replaced(void **state)
{
    struct fixture *f = *state;
    pid_t pid = start_holder(f, "hold");

    open_store(f, "");
    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 1, 1), HAPAX_OK);
    end(pid);
    assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    assert_int_equal(hapax__rocksdb_holder(f->path), getpid());
    assert_true(is_completed(f->store, 1));
    assert_int_equal(status_of(start("ask", f->uri, -1)), 0);
}

/* In a child: whether operation 1 is there. */
static int ask(const char *uri)
{
    struct hapax_store *store = NULL;
    char text[HAPAX_TEXT_MAX];
    bool there;

    hapax_rocksdb_use();
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        return 1;
    there = is_completed(store, 1);
    hapax_store_close(store);
    return there ? 0 : 2;
}

/* A holder that is stopped does not answer: the refusal says which process it is. */
static void a_silent_holder_is_named(void **state)
{
    struct fixture *f = *state;
    pid_t pid = start_holder(f, "lock");
    char want[64];

    snprintf(want, sizeof(want), "held by process %d", (int)pid);
    assert_int_equal(open_fails(f, f->uri), HAPAX_ERR_REFUSED);
    assert_non_null(strstr(f->text, want));
    assert_non_null(strstr(f->text, "keeper does not answer"));
    end(pid);
    open_store(f, "");
}

/* Opens the database, but serves nobody. */
static int lock_only(const char *uri)
{
    struct hapax__database *database;
    struct hapax__database_options options = {.path = uri + strlen("rocksdb:"), .sync = true};
    char text[HAPAX_TEXT_MAX];
    pid_t holder;

    hapax_rocksdb_use();
    if (hapax__database_join(&database, &options, &holder, text) != HAPAX_ERR_NONE)
        return 1;
    if (write(STDOUT_FILENO, "l", 1) != 1)
        return 1;
    for (;;)
        pause();
}

/* ---- the clock ----------------------------------------------------------------------- */

#define DAY_US (INT64_C(86400) * 1000000)

/* Makes the last persisted reading: `ahead_us` from the wall clock, in this boot or another. */
static void set_mark(struct fixture *f, int64_t ahead_us, bool this_boot)
{
    struct hapax__clock_mark mark = hapax__clock_machine();
    uint8_t bytes[HAPAX__CLOCK_SIZE];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax__files *files = open_files(f);

    mark.boot_id[0] ^= this_boot ? 0 : 1;
    hapax__put_number(&w, (uint64_t)(mark.clock_us + ahead_us), 8);
    hapax__put_number(&w, (uint64_t)mark.boot_us, 8);
    hapax__put(&w, mark.boot_id, sizeof(mark.boot_id));
    put_raw(files, HAPAX__META, "clock", 5, bytes, sizeof(bytes));
    close_files(files);
}

/* Claims, lets `move` happen while the store is closed, and says whether the claim is still live
 * and the next fence higher. */
static void claim_over(struct fixture *f, int64_t ahead_us, bool this_boot)
{
    struct hapax_op mine = claim_of(1, 1), other = claim_of(1, 2), next = claim_of(2, 1);

    assert_int_equal(run_one(f->store, &mine), HAPAX_CLAIMED);
    close_store(f);
    set_mark(f, ahead_us, this_boot);
    open_store(f, "");
    assert_int_equal(run_one(f->store, &other), HAPAX_IN_FLIGHT);
    assert_int_equal(run_one(f->store, &next), HAPAX_CLAIMED);
    assert_true(next.record.fence > mine.record.fence);
}

/* The store's clock is a day ahead of the wall clock, as after setting that back by a day: it goes
 * on from where it was, in this boot and in the next. */
static void a_wall_clock_set_back_ends_no_lease(void **state)
{
    struct fixture *f = *state;

    close_store(f);
    set_mark(f, DAY_US, false);
    open_store(f, "");
    claim_over(f, DAY_US + 1000000, false);
}

/* The wall clock jumps a day ahead within one boot: the store's clock does not follow it. */
static void a_wall_clock_set_forth_ends_no_lease(void **state)
{
    struct fixture *f = *state;

    close_store(f);
    set_mark(f, -DAY_US, true);
    open_store(f, "");
    claim_over(f, -DAY_US + 1000000, true);
}

static int64_t clock_after(const struct hapax__clock_mark *last,
                           const struct hapax__clock_mark *now)
{
    struct hapax__clock clock;

    hapax__clock_start(&clock, last, now, now->clock_us);
    return hapax__clock_at(&clock, now->boot_us);
}

/* Every pair of a persisted reading and a later start, a day back and forth, in one boot and over
 * two: the clock never runs backwards, and within one boot it runs as fast as boot time. */
static void the_clock_never_runs_backwards(void **state)
{
    const int64_t wall_us = INT64_C(1700000000) * 1000000;
    const int64_t jumps[] = {-DAY_US, -1, 0, 1, DAY_US};

    for (size_t i = 0; i < sizeof(jumps) / sizeof(jumps[0]); i++) {
        struct hapax__clock_mark last = {wall_us, 5000000, {7}};
        struct hapax__clock_mark same = {wall_us + jumps[i], 6000000, {7}};
        struct hapax__clock_mark next = {wall_us + jumps[i], 1000000, {8}};

        assert_int_equal(clock_after(&last, &same), wall_us + 1000000);
        assert_true(clock_after(&last, &next) > wall_us);
        if (jumps[i] > 0)
            assert_int_equal(clock_after(&last, &next), wall_us + jumps[i]);
    }
}

/* ---- damage -------------------------------------------------------------------------- */

static void change_record(struct fixture *f, uint64_t n, size_t at, uint8_t flip)
{
    struct hapax__files *files = open_files(f);
    struct hapax_id id = id_of(n);
    size_t len;
    uint8_t *value = get_raw(files, HAPAX__RECORDS, id.bytes, sizeof(id), &len);

    assert_non_null(value);
    assert_true(at < len);
    value[at] ^= flip;
    put_raw(files, HAPAX__RECORDS, id.bytes, sizeof(id), value, len);
    rocksdb_free(value);
    close_files(files);
}

/* A damaged record is CORRUPT for every op that needs it, never absent; the others of the batch are
 * answered. LIST and PURGE pass over it, and name it. */
static void a_damaged_record_is_never_absent(void **state)
{
    struct fixture *f = *state;
    struct hapax_op ops[3] = {claim_of(1, 2), claim_of(2, 2), claim_of(3, 2)};
    struct hapax_op list = {.kind = HAPAX_OP_LIST}, purge = {.kind = HAPAX_OP_PURGE};
    uint32_t shown = 0;
    unsigned damaged = 0;

    for (uint64_t n = 1; n <= 3; n++)
        assert_int_equal(claim(f->store, n, 1), HAPAX_CLAIMED);
    close_store(f);
    change_record(f, 2, 60, 0x10);
    open_store(f, "");
    hapax_store_run(f->store, ops, 3);
    assert_int_equal(ops[0].verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(ops[1].verdict, HAPAX_NO_VERDICT);
    assert_int_equal(ops[1].error, HAPAX_ERR_CORRUPT);
    assert_int_equal(ops[2].verdict, HAPAX_IN_FLIGHT);
    assert_non_null(strstr(hapax_store_text(f->store), "it is damaged"));
    do {
        list.cursor = list.next_cursor;
        assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
        shown += list.count;
        damaged += list.damaged;
        if (!list.damaged)
            continue;
        assert_memory_equal(&list.damaged_from, &ops[1].id, sizeof(ops[1].id));
        assert_memory_equal(&list.damaged_to, &ops[1].id, sizeof(ops[1].id));
    } while (list.more);
    assert_int_equal(damaged, 1);
    assert_int_equal(shown, 2);
    assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
    assert_true(purge.damaged && purge.more);
    assert_memory_equal(&purge.damaged_to, &ops[1].id, sizeof(ops[1].id));
    assert_int_equal(run_one(f->store, &ops[1]), HAPAX_NO_VERDICT);
}

/* An operator can forget a damaged record, by force; then the operation runs again. */
static void a_damaged_record_can_be_forgotten(void **state)
{
    struct fixture *f = *state;
    struct hapax_op forget = {
        .kind = HAPAX_OP_RESOLVE, .id = id_of(1), .token = {{7}}, .resolve = HAPAX_RESOLVE_FORGET};
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_OPEN};

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    close_store(f);
    change_record(f, 1, 60, 0x10);
    open_store(f, "");
    assert_int_equal(hapax_store_run(f->store, &forget, 1), HAPAX_ERR_CORRUPT);
    forget.force = true;
    assert_int_equal(run_one(f->store, &forget), HAPAX_OK);
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 0);
    assert_int_equal(claim(f->store, 1, 2), HAPAX_CLAIMED);
}

/* A record of a version that is not known is UNSUPPORTED, and stays as it is. */
static void a_record_of_unknown_version_is_unsupported(void **state) /* promise 31 */
{
    struct fixture *f = *state;
    struct hapax_op op = claim_of(1, 2);

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    close_store(f);
    change_record(f, 1, 0, 0x40);
    open_store(f, "");
    assert_int_equal(run_one(f->store, &op), HAPAX_NO_VERDICT);
    assert_int_equal(op.error, HAPAX_ERR_UNSUPPORTED);
    close_store(f);
    change_record(f, 1, 0, 0x40);
    open_store(f, "");
    assert_int_equal(claim(f->store, 1, 2), HAPAX_IN_FLIGHT);
}

/* A database of a format that is not known is not touched. */
static void an_unknown_format_is_refused(void **state)
{
    struct fixture *f = *state;
    struct hapax__files *files;

    close_store(f);
    files = open_files(f);
    put_raw(files, HAPAX__META, "format", 6, "\0\0\0\7", 4);
    close_files(files);
    assert_int_equal(open_fails(f, f->uri), HAPAX_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->text, "format 7"));
}

/* A log damaged in its middle is CORRUPT: the acknowledged records behind the damage are not
 * dropped in silence. */
static void a_damaged_log_does_not_open(void **state)
{
    struct fixture *f = *state;
    char command[256];

    for (uint64_t n = 0; n < 50; n++)
        assert_int_equal(claim(f->store, n, 1), HAPAX_CLAIMED);
    close_store(f);
    snprintf(command, sizeof(command),
             "for l in %s/db/*.log; do printf XXXX | dd of=$l bs=1 seek=4000 conv=notrunc; done "
             "2>/dev/null",
             f->path);
    assert_int_equal(system(command), 0);
    assert_int_equal(open_fails(f, f->uri), HAPAX_ERR_CORRUPT);
}

/* ---- sync=off ------------------------------------------------------------------------ */

static void note(void *arg, bool danger, const char *line)
{
    unsigned *seen = arg;

    assert_true(strlen(line) > 0);
    *seen |= danger && strstr(line, "sync is off") ? 1u : 0;
    *seen |= strstr(line, "records") ? 2u : 0;
    *seen |= strstr(line, "MiB are free") ? 4u : 0;
}

/* Without sync the store works, and check says that it is dangerous. */
static void check_says_that_sync_is_off(void **state)
{
    struct fixture *f = *state;
    unsigned seen = 0;

    assert_int_equal(hapax_store_check(f->store, note, &seen), HAPAX_ERR_NONE);
    assert_int_equal(seen, 6);
    close_store(f);
    open_store(f, "?sync=off");
    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 1, 1), HAPAX_OK);
    assert_int_equal(hapax_store_check(f->store, note, &seen), HAPAX_ERR_NONE);
    assert_int_equal(seen, 7);
    reopen_store(f);
    assert_true(is_completed(f->store, 1));
}

/* Where a process may have many descriptors, files stay open; the others of it keep half. */
static void files_stay_open_as_far_as_descriptors_go(void **state)
{
    static const int rows[][2] = {{1024, 512}, {4096, 2048}, {20000, 4096}};
    struct rlimit before, limit;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hapax__files files;

        limit = (struct rlimit){(rlim_t)rows[i][0], before.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            continue; /* this process may not have so many */
        hapax__files_init(&files);
        assert_int_equal(rocksdb_options_get_max_open_files(files.options[0]), rows[i][1]);
        hapax__files_release(&files);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* ---- batches ------------------------------------------------------------------------- */

/* Ops on one id in one batch are judged one after the other, each on what the one before left. */
static void one_batch_holds_one_id_several_times(void **state)
{
    struct fixture *f = *state;
    uint8_t body[BODY_SIZE];
    struct hapax_op ops[6] = {claim_of(1, 1), claim_of(1, 2), complete_of(1, 1, body_of(body, 1)),
                              claim_of(1, 2), read_of(1),     read_of(2)};
    const enum hapax_verdict want[6] = {HAPAX_CLAIMED,   HAPAX_IN_FLIGHT, HAPAX_OK,
                                        HAPAX_COMPLETED, HAPAX_FOUND,     HAPAX_ABSENT};

    assert_int_equal(hapax_store_run(f->store, ops, 6), HAPAX_ERR_NONE);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(ops[i].verdict, want[i]);
    assert_memory_equal(ops[3].record.outcome.body.ptr, body, BODY_SIZE);
    reopen_store(f);
    assert_true(is_completed(f->store, 1));
}

/* The largest bodies go in, come out, and many of them in one batch are written in turns. */
static void the_largest_bodies_are_kept(void **state)
{
    struct fixture *f = *state;
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    struct hapax_op ops[6];

    assert_non_null(body);
    fill(body, 4096, 7);
    for (uint64_t i = 0; i < 3; i++) {
        ops[i] = claim_of(i, 1);
        ops[3 + i] = complete_of(i, 1, (struct hapax_span){body, HAPAX_BODY_MAX});
    }
    assert_int_equal(hapax_store_run(f->store, ops, 6), HAPAX_ERR_NONE);
    reopen_store(f);
    for (uint64_t i = 0; i < 3; i++) {
        ops[0] = read_of(i);
        assert_int_equal(run_one(f->store, ops), HAPAX_FOUND);
        assert_int_equal(ops[0].record.outcome.body.len, HAPAX_BODY_MAX);
        assert_memory_equal(ops[0].record.outcome.body.ptr, body, HAPAX_BODY_MAX);
    }
    free(body);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_store, drop_store)
#define BARE(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_store)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_reopened_store_has_its_records),
        BARE(a_wrong_uri_is_refused),
        CASE(a_group_reaches_the_keeper_alone),
        BARE(an_unusable_path_is_refused),
        BARE(an_unwritable_path_is_refused),
        CASE(handles_of_one_process_share_the_database),
        CASE(handles_agree_on_sync),
        BARE(a_held_path_leads_to_its_keeper),
        BARE(a_dead_holder_is_replaced),
        BARE(a_silent_holder_is_named),
        CASE(a_wall_clock_set_back_ends_no_lease),
        CASE(a_wall_clock_set_forth_ends_no_lease),
        BARE(the_clock_never_runs_backwards),
        CASE(a_damaged_record_is_never_absent),
        CASE(a_damaged_record_can_be_forgotten),
        CASE(a_record_of_unknown_version_is_unsupported),
        CASE(an_unknown_format_is_refused),
        CASE(a_damaged_log_does_not_open),
        CASE(check_says_that_sync_is_off),
        BARE(files_stay_open_as_far_as_descriptors_go),
        CASE(one_batch_holds_one_id_several_times),
        CASE(the_largest_bodies_are_kept),
    };

    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "nobody") == 0)
        return open_as_nobody(argv[2]);
    if (argc == 3 && strcmp(argv[1], "hold") == 0)
        return hold(argv[2]);
    if (argc == 3 && strcmp(argv[1], "ask") == 0)
        return ask(argv[2]);
    if (argc == 3 && strcmp(argv[1], "lock") == 0)
        return lock_only(argv[2]);
    hapax_rocksdb_use();
    return cmocka_run_group_tests_name("rocksdb", tests, NULL, NULL);
}
