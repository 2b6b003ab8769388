/* SPDX-License-Identifier: Apache-2.0
 *
 * Damaged files under the embedded store: what is damaged is told and passed over, what is not
 * damaged goes on, and no acknowledged record is gone without a word (promise 12).
 */
#include "rocksdb_fixture.h"

#include <dirent.h>
#include <fcntl.h>

#define RECORDS 4000u

/* Operations [from, from + n), completed; all expired at once where retention_ms is short. */
static void load(struct hapax_store *store, uint64_t from, uint64_t n, int64_t retention_ms)
{
    static struct hapax_op ops[HAPAX_BATCH_MAX];
    static uint8_t bodies[HAPAX_BATCH_MAX][BODY_SIZE];

    for (uint64_t at = from; at < from + n;) {
        size_t len = from + n - at < HAPAX_BATCH_MAX ? from + n - at : HAPAX_BATCH_MAX;

        for (size_t i = 0; i < len; i++) {
            ops[i] = claim_of(at + i, 1);
            ops[i].retention_ms = retention_ms;
        }
        assert_int_equal(hapax_store_run(store, ops, len), HAPAX_ERR_NONE);
        for (size_t i = 0; i < len; i++)
            ops[i] = complete_of(at + i, 1, body_of(bodies[i], at + i));
        assert_int_equal(hapax_store_run(store, ops, len), HAPAX_ERR_NONE);
        at += len;
    }
}

/* The largest file of this kind. */
static long largest(const struct fixture *f, const char *ending, char out[512])
{
    char folder[128];
    struct dirent *entry;
    long most = -1;
    DIR *dir;

    snprintf(folder, sizeof(folder), "%s/db", f->path);
    dir = opendir(folder);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        char name[512];

        snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
        if (!strstr(entry->d_name, ending) || stat(name, &st) != 0 || st.st_size <= most)
            continue;
        most = st.st_size;
        snprintf(out, 512, "%s", name);
    }
    closedir(dir);
    assert_true(most > 0);
    return most;
}

/* Flips a byte in the middle of the largest file of records. The store is closed and opened. */
static void damage_a_block(struct fixture *f)
{
    char name[512];
    long size;
    uint8_t byte;
    int fd;

    reopen_store(f); /* the log becomes a file of records */
    close_store(f);
    size = largest(f, ".sst", name);
    fd = open(name, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, size / 2), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, size / 2), 1);
    close(fd);
    open_store(f, "");
}

struct advice {
    unsigned dangers;
    char text[2048];
};

static void note(void *arg, bool danger, const char *line)
{
    struct advice *advice = arg;
    size_t len = strlen(advice->text);

    if (!danger)
        return;
    advice->dangers++;
    snprintf(advice->text + len, sizeof(advice->text) - len, "%s\n", line);
}

static struct advice check(struct hapax_store *store)
{
    struct advice advice = {0};

    assert_int_equal(hapax_store_check(store, note, &advice), HAPAX_ERR_NONE);
    return advice;
}

static struct hapax_store *open_client(const struct fixture *f)
{
    struct hapax_store *client;
    char uri[160], text[HAPAX_TEXT_MAX];

    snprintf(uri, sizeof(uri), "unix:%s/keeper.sock", f->path);
    if (hapax_store_open(&client, uri, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    return client;
}

static bool within(const struct hapax_op *op, const struct hapax_id *id)
{
    return memcmp(id, &op->damaged_from, sizeof(*id)) > 0 &&
           memcmp(id, &op->damaged_to, sizeof(*id)) <= 0;
}

/* Lists all; returns how many are shown. *place: the answer that passed over something. */
static uint32_t list_all(struct hapax_store *store, struct hapax_op *place)
{
    struct hapax_op list = {.kind = HAPAX_OP_LIST};
    unsigned places = 0;
    uint32_t shown = 0;

    do {
        assert_int_equal(run_one(store, &list), HAPAX_FOUND);
        shown += list.count;
        places += list.damaged;
        if (list.damaged)
            *place = list;
        list.cursor = list.next_cursor;
    } while (list.more);
    assert_int_equal(places, 1);
    return shown;
}

/* One damaged block: its records are CORRUPT, and no others are; LIST shows all others and tells
 * which ids it has passed over; check, which knew nothing before, calls it a danger. All of it also
 * through the keeper. */
static void a_damaged_block_is_told_and_passed_over(void **state)
{
    struct fixture *f = *state;
    struct hapax_op place = {0};
    struct hapax_store *client;
    uint32_t corrupt = 0;

    load(f->store, 0, RECORDS, 24 * LEASE_MS);
    damage_a_block(f);
    client = open_client(f);
    assert_int_equal(check(client).dangers, check(f->store).dangers);
    assert_null(strstr(check(client).text, "damaged"));
    for (uint64_t n = 0; n < RECORDS; n++) {
        struct hapax_op op = read_of(n);

        if (run_one(n % 2 ? client : f->store, &op) == HAPAX_FOUND)
            continue;
        assert_int_equal(op.error, HAPAX_ERR_CORRUPT);
        assert_non_null(strstr(hapax_store_text(n % 2 ? client : f->store), "cannot read record"));
        corrupt++;
    }
    assert_in_range(corrupt, 1, 40);
    assert_non_null(strstr(check(client).text, "its files are damaged"));
    assert_non_null(strstr(check(f->store).text, "its files are damaged"));
    assert_int_equal(list_all(client, &place), RECORDS - corrupt);
    assert_int_equal(list_all(f->store, &place), RECORDS - corrupt);
    for (uint64_t n = 0; n < RECORDS; n++) {
        struct hapax_id id = id_of(n);

        if (!within(&place, &id))
            assert_true(is_completed(f->store, n));
        else
            corrupt--;
    }
    assert_int_equal(corrupt, 0);
    hapax_store_close(client);
}

/* PURGE passes over a damaged block and drops what has expired on both sides of it. */
static void purge_goes_on_behind_a_damaged_block(void **state)
{
    struct fixture *f = *state;
    struct hapax_op purge = {.kind = HAPAX_OP_PURGE}, place = {0};
    struct hapax_op late = claim_of(RECORDS, 1);
    uint32_t purged = 0, left;
    unsigned places = 0;

    load(f->store, 0, RECORDS, 24 * LEASE_MS);
    load(f->store, RECORDS + 1, 1000, 1);
    damage_a_block(f);
    do {
        assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
        purged += purge.purged;
        places += purge.damaged;
        if (purge.damaged)
            place = purge;
        purge.cursor = purge.next_cursor;
    } while (purge.more);
    assert_int_equal(places, 1);
    left = 0;
    for (uint64_t n = 1; n <= 1000; n++) {
        struct hapax_id id = id_of(RECORDS + n);

        left += within(&place, &id);
    }
    assert_int_equal(purged, 1000 - left);
    assert_in_range(left, 0, 40);
    assert_int_equal(run_one(f->store, &late), HAPAX_CLAIMED);
}

/* When a damaged block is to be merged, one batch of writes at most has no verdict; repeated, it
 * has. Writes then go on, and check says that nothing is merged any more. */
static void a_damaged_block_fails_one_write_at_most(void **state)
{
    struct fixture *f = *state;
    int64_t deadline_us = monotonic_us() + 60000000;
    unsigned failed = 0;
    uint64_t n = RECORDS;

    load(f->store, 0, RECORDS, 24 * LEASE_MS);
    damage_a_block(f);
    for (int i = 0; i < 3; i++) { /* a fourth file of the first level has them merged */
        load(f->store, n, 100, 24 * LEASE_MS);
        n += 100;
        reopen_store(f);
    }
    while (!strstr(check(f->store).text, "no longer merged")) {
        assert_true(monotonic_us() < deadline_us);
        failed += claim(f->store, n++, 1) == HAPAX_NO_VERDICT;
    }
    for (int i = 0; i < 300; i++)
        failed += claim(f->store, n++, 1) == HAPAX_NO_VERDICT;
    assert_int_equal(failed, 1);
    assert_non_null(strstr(check(f->store).text, "its files are damaged"));
}

/* A damaged record that is forgotten through the keeper is answered well. */
static void a_damaged_record_is_forgotten_through_the_keeper(void **state)
{
    struct fixture *f = *state;
    struct hapax_op place = {0};
    struct hapax_store *client;
    uint32_t shown;

    load(f->store, 0, RECORDS, 24 * LEASE_MS);
    damage_a_block(f);
    client = open_client(f);
    shown = list_all(client, &place);
    assert_true(shown < RECORDS);
    for (uint64_t n = 0; n < RECORDS; n++) {
        struct hapax_op forget = {.kind = HAPAX_OP_RESOLVE,
                                  .id = id_of(n),
                                  .token = {{7}},
                                  .resolve = HAPAX_RESOLVE_FORGET,
                                  .force = true};

        if (!within(&place, &forget.id))
            continue;
        if (run_one(client, &forget) != HAPAX_OK)
            fail_msg("%s", hapax_store_text(client));
        assert_int_equal(claim(client, n, 2), HAPAX_CLAIMED);
    }
    hapax_store_close(client);
}

/* Cuts the log to its half, as no crash can leave a log that was synced. */
static void cut_the_log(struct fixture *f)
{
    char name[512];
    long size;

    close_store(f);
    size = largest(f, ".log", name);
    assert_int_equal(truncate(name, size / 2), 0);
}

/* A log without its end does not open: acknowledged records are gone. Without the mark it does. */
static void a_cut_log_does_not_open(void **state)
{
    struct fixture *f = *state;
    char mark[128];

    load(f->store, 0, 500, 24 * LEASE_MS);
    cut_the_log(f);
    assert_int_equal(hapax_store_open(&f->store, f->uri, f->text), HAPAX_ERR_CORRUPT);
    assert_non_null(strstr(f->text, "its log is cut"));
    assert_non_null(strstr(f->text, "hapax.mark"));
    snprintf(mark, sizeof(mark), "%s/db/hapax.mark", f->path);
    assert_int_equal(unlink(mark), 0);
    open_store(f, "");
    assert_int_equal(claim(f->store, 1000, 1), HAPAX_CLAIMED);
    reopen_store(f);
    assert_int_equal(claim(f->store, 1000, 2), HAPAX_IN_FLIGHT);
}

/* Leaves a store without sync, closed, whose log a power cut took the end of. */
static void cut_an_unsynced_log(struct fixture *f)
{
    close_store(f);
    open_store(f, "?sync=off");
    load(f->store, 0, 500, 24 * LEASE_MS);
    cut_the_log(f);
}

/* Without sync a power cut may take the end of the log: the store opens, and check says it. */
static void a_cut_log_is_told_where_sync_is_off(void **state)
{
    struct fixture *f = *state;

    cut_an_unsynced_log(f);
    open_store(f, "?sync=off");
    assert_non_null(strstr(check(f->store).text, "writes before it was opened are lost"));
    reopen_store(f);
    assert_non_null(strstr(check(f->store).text, "writes before it was opened are lost"));
    assert_int_equal(claim(f->store, 1000, 1), HAPAX_CLAIMED);
    load(f->store, 0, 500, 24 * LEASE_MS);
    reopen_store(f);
    assert_null(strstr(check(f->store).text, "are lost"));
}

/* The same store, looked at by a process that syncs: it still opens afterwards. */
static void a_look_with_sync_keeps_a_cut_log_open(void **state)
{
    struct fixture *f = *state;

    cut_an_unsynced_log(f);
    open_store(f, "");
    assert_non_null(strstr(check(f->store).text, "writes before it was opened are lost"));
    reopen_store(f);
    assert_int_equal(claim(f->store, 1000, 1), HAPAX_CLAIMED);
}

/* A mark that is damaged itself, or is of no known size, keeps no store from being opened. */
static void a_damaged_mark_stops_nothing(void **state)
{
    static const size_t sizes[] = {0, 5, 9, 17, 100};
    struct fixture *f = *state;
    uint8_t bytes[100];
    char mark[128];

    memset(bytes, 0xff, sizeof(bytes));
    snprintf(mark, sizeof(mark), "%s/db/hapax.mark", f->path);
    for (uint64_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        FILE *file;

        assert_int_equal(claim(f->store, i, 1), HAPAX_CLAIMED);
        close_store(f);
        file = fopen(mark, "w");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, sizes[i], file), sizes[i]);
        assert_int_equal(fclose(file), 0);
        open_store(f, "");
        assert_int_equal(claim(f->store, i, 2), HAPAX_IN_FLIGHT);
    }
}

/* Root may look at the store of a user that an older version made. Its user can open it still. */
static void the_mark_is_the_folder_owners(void **state)
{
    struct fixture *f = *state;
    char folder[128], mark[160];
    struct stat st;

    if (geteuid() != 0)
        skip();
    close_store(f);
    snprintf(folder, sizeof(folder), "%s/db", f->path);
    snprintf(mark, sizeof(mark), "%s/hapax.mark", folder);
    assert_int_equal(unlink(mark), 0);
    assert_int_equal(chown(folder, 65534, (gid_t)-1), 0);
    open_store(f, "");
    assert_int_equal(stat(mark, &st), 0);
    assert_int_equal(st.st_uid, 65534);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_store, drop_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_damaged_block_is_told_and_passed_over),
        CASE(purge_goes_on_behind_a_damaged_block),
        CASE(a_damaged_block_fails_one_write_at_most),
        CASE(a_damaged_record_is_forgotten_through_the_keeper),
        CASE(a_cut_log_does_not_open),
        CASE(a_cut_log_is_told_where_sync_is_off),
        CASE(a_look_with_sync_keeps_a_cut_log_open),
        CASE(a_damaged_mark_stops_nothing),
        CASE(the_mark_is_the_folder_owners),
    };

    hapax_rocksdb_use();
    return cmocka_run_group_tests_name("rocksdb_damage", tests, NULL, NULL);
}
