/* SPDX-License-Identifier: Apache-2.0
 *
 * LIST, PURGE and expiry on the embedded store: what is stuck is found without looking at what is
 * finished, and what has expired goes, and nothing else.
 */
#include "../unit/record_v1.h"
#include "rocksdb_fixture.h"

#include "store/rocksdb/opened.h"

/* ---- LIST ---------------------------------------------------------------------------- */

#define LIST_STUCK 1000u

static uint32_t list_records = 1000000;

static void load(struct hapax_store *store, uint64_t from, uint64_t n, bool finish)
{
    static struct hapax_op ops[HAPAX_BATCH_MAX];
    static uint8_t bodies[HAPAX_BATCH_MAX][BODY_SIZE];

    for (uint64_t at = from; at < from + n;) {
        size_t len = from + n - at < HAPAX_BATCH_MAX ? from + n - at : HAPAX_BATCH_MAX;

        for (size_t i = 0; i < len; i++)
            ops[i] = claim_of(at + i, 1);
        assert_int_equal(hapax_store_run(store, ops, len), HAPAX_ERR_NONE);
        for (size_t i = 0; finish && i < len; i++)
            ops[i] = complete_of(at + i, 1, (struct hapax_span){bodies[i], 50});
        assert_int_equal(hapax_store_run(store, ops, len), HAPAX_ERR_NONE);
        at += len;
    }
}

/* Of this thread, which others may keep from the processor for as long again. */
static int64_t worked_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The stuck records among a million finished ones are listed in less than a second. */
static void stuck_records_are_found_among_a_million(void **state)
{
    struct fixture *f = *state;
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_OPEN, .limit = 300};
    uint32_t count = 0;
    int64_t begin_us, begin_work_us;

    close_store(f);
    open_store(f, "?sync=off");
    load(f->store, list_records, LIST_STUCK, false);
    load(f->store, 0, list_records, true);
    begin_us = monotonic_us();
    begin_work_us = worked_us();
    do {
        assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
        for (uint32_t i = 0; i < list.count; i++)
            assert_int_equal(list.records[i].state, HAPAX_STATE_STARTED);
        count += list.count;
        list.cursor = list.next_cursor;
    } while (list.more);
    assert_int_equal(count, LIST_STUCK);
    assert_in_range(worked_us() - begin_work_us, 0, 1000000);
    assert_in_range(monotonic_us() - begin_us, 0, 60000000);
    print_message("# listed %u of %u in %ld us\n", count, list_records,
                  (long)(monotonic_us() - begin_us));
}

/* How many ids the notes name that a crash would leave now. */
static size_t noted(const struct fixture *f)
{
    struct fixture crashed = {.path = "/tmp/hapax-rocksdb-XXXXXX"};
    char command[160];
    struct hapax__files *files;
    size_t ids = 0;

    assert_non_null(mkdtemp(crashed.path));
    snprintf(command, sizeof(command), "cp -r %s/db %s", f->path, crashed.path);
    assert_int_equal(system(command), 0);
    files = open_files(&crashed);
    for (unsigned note = 0; note < HAPAX__NOTES; note++) {
        const char key[] = {'o', 'p', 'e', 'n', 'e', 'd', (char)(note >> 8), (char)note};
        size_t len;
        uint8_t *value = get_raw(files, HAPAX__META, key, sizeof(key), &len);

        ids += value ? len / sizeof(struct hapax_id) : 0;
        rocksdb_free(value);
    }
    close_files(files);
    remove_tree(crashed.path);
    return ids;
}

/* Opening looks at what began lately, and not at what was put into `open` long ago. */
static void few_records_are_noted(void **state)
{
    struct fixture *f = *state;

    load(f->store, 0, UINT64_C(2) * HAPAX__OPENED_MAX, false);
    assert_in_range(noted(f), 1, HAPAX__OPENED_MAX);
    load(f->store, UINT64_C(2) * HAPAX__OPENED_MAX, UINT64_C(2) * HAPAX__OPENED_MAX, true);
    assert_in_range(noted(f), 1, HAPAX__OPENED_MAX);
}

/* The index of unfinished records follows each state a record goes through. */
static void the_index_follows_the_states(void **state)
{
    struct fixture *f = *state;
    struct hapax_op fail = {.kind = HAPAX_OP_FAIL, .id = id_of(1), .token = {{1}}, .ran = true};
    struct hapax_op list = {.kind = HAPAX_OP_LIST};
    const uint32_t started = 1u << HAPAX_STATE_STARTED, failed = 1u << HAPAX_STATE_FAILED;

#define COUNT(bits)                                                                                \
    (list.states = (bits), assert_int_equal(run_one(f->store, &list), HAPAX_FOUND), list.count)

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(COUNT(started), 1);
    assert_int_equal(COUNT(failed), 0);
    assert_int_equal(run_one(f->store, &fail), HAPAX_OK);
    assert_int_equal(COUNT(started), 0);
    assert_int_equal(COUNT(failed), 1);
    assert_int_equal(claim(f->store, 1, 2), HAPAX_CLAIMED);
    assert_int_equal(COUNT(HAPAX_STATES_OPEN), 1);
    assert_int_equal(complete(f->store, 1, 2), HAPAX_OK);
    assert_int_equal(COUNT(HAPAX_STATES_OPEN), 0);
    assert_int_equal(COUNT(0), 1);
#undef COUNT
}

#define MANY UINT64_C(20000) /* over what of `open` is kept in memory, and what a walk sorts */

/* Lists, in order, and returns how many there are. */
static uint32_t list_all(struct hapax_store *store, uint32_t states)
{
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = states, .limit = 999};
    struct hapax_id last = {{0}};
    uint32_t count = 0;

    do {
        assert_int_equal(run_one(store, &list), HAPAX_FOUND);
        for (uint32_t i = 0; i < list.count; i++) {
            assert_true(memcmp(&list.records[i].id, &last, sizeof(last)) > 0);
            last = list.records[i].id;
        }
        count += list.count;
        list.cursor = list.next_cursor;
    } while (list.more);
    return count;
}

/* More unfinished records than are kept in memory are listed, each once and in order, whether their
 * entry is written or not; and so are those of a buffer that is not sorted. */
static void many_records_are_listed_in_order(void **state)
{
    struct fixture *f = *state;

    close_store(f);
    open_store(f, "?sync=off");
    load(f->store, 0, MANY, false);
    assert_int_equal(list_all(f->store, HAPAX_STATES_OPEN), MANY);
    assert_int_equal(list_all(f->store, 0), MANY);
    load(f->store, 0, MANY / 2, true);
    assert_int_equal(list_all(f->store, HAPAX_STATES_OPEN), MANY / 2);
    assert_int_equal(list_all(f->store, 0), MANY);
    reopen_store(f);
    assert_int_equal(list_all(f->store, HAPAX_STATES_OPEN), MANY / 2);
    assert_int_equal(list_all(f->store, 0), MANY);
    load(f->store, 0, MANY, true);
    assert_int_equal(list_all(f->store, HAPAX_STATES_OPEN), 0);
}

/* A sweep meets each record of a buffer that is not sorted. Where no records are left in such a
 * buffer, no op walks it from end to end. */
static void a_large_buffer_is_swept(void **state)
{
    static struct hapax_op ops[HAPAX_BATCH_MAX];
    struct fixture *f = *state;
    struct hapax_op purge = {.kind = HAPAX_OP_PURGE};
    int64_t deadline_us = monotonic_us() + 60000000;
    uint32_t purged = 0;

    close_store(f);
    open_store(f, "?sync=off");
    for (uint64_t at = 0; at < MANY; at += 1000) {
        for (size_t i = 0; i < 1000; i++) {
            ops[i] = claim_of(at + i, 1);
            ops[i].lease_ms = ops[i].retention_ms = 1;
        }
        assert_int_equal(hapax_store_run(f->store, ops, 1000), HAPAX_ERR_NONE);
    }
    do {
        assert_true(monotonic_us() < deadline_us);
        ops[0] = read_of(MANY - 1);
    } while (run_one(f->store, &ops[0]) != HAPAX_ABSENT);
    do {
        assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
        purged += purge.purged;
        purge.cursor = purge.next_cursor;
    } while (purge.more);
    assert_int_equal(purged, MANY);
    assert_int_equal(list_all(f->store, 0), 0);
    ops[0] = (struct hapax_op){.kind = HAPAX_OP_LIST};
    assert_int_equal(run_one(f->store, &ops[0]), HAPAX_FOUND);
    assert_true(ops[0].more);
    ops[0] = (struct hapax_op){.kind = HAPAX_OP_PURGE};
    assert_int_equal(run_one(f->store, &ops[0]), HAPAX_OK);
    assert_true(ops[0].more);
}

/* ---- expiry -------------------------------------------------------------------------- */

static bool stored(struct fixture *f, enum hapax__family family, uint64_t n)
{
    struct hapax__files *files = open_files(f);
    struct hapax_id id = id_of(n);
    size_t len;
    uint8_t *value = get_raw(files, family, id.bytes, sizeof(id), &len);
    bool found = value != NULL;

    rocksdb_free(value);
    close_files(files);
    return found;
}

/* Leaves a claim (1) and a completion (3) whose retention is over, beside a live claim (2) and a
 * completion (4). */
static void make_expired(struct fixture *f)
{
    struct hapax_op ops[3] = {claim_of(1, 1), claim_of(3, 1),
                              complete_of(3, 1, (struct hapax_span){NULL, 0})};
    int64_t deadline_us = monotonic_us() + 60000000;

    assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    assert_int_equal(claim(f->store, 4, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 4, 1), HAPAX_OK);
    for (size_t i = 0; i < 2; i++)
        ops[i].lease_ms = ops[i].retention_ms = 5;
    assert_int_equal(hapax_store_run(f->store, ops, 3), HAPAX_ERR_NONE);
    assert_int_equal(ops[2].verdict, HAPAX_OK);
    do {
        assert_true(monotonic_us() < deadline_us);
        ops[0] = read_of(1);
        ops[1] = read_of(3);
        hapax_store_run(f->store, ops, 2);
    } while (ops[0].verdict != HAPAX_ABSENT || ops[1].verdict != HAPAX_ABSENT);
}

/* When files are merged, what has expired goes, and nothing else; and only as far as the clock that
 * judged last has come. */
static void the_filter_drops_what_has_expired(void **state)
{
    struct fixture *f = *state;
    struct hapax_op op = read_of(4);
    struct hapax__files *files;

    make_expired(f);
    run_one(f->store, &op);
    close_store(f);
    for (int round = 0; round < 2; round++) {
        files = open_files(f);
        atomic_store(&files->judged_us, round == 0 ? 0 : op.now_us);
        rocksdb_compact_range_cf(files->db, files->family[HAPAX__RECORDS], NULL, 0, NULL, 0);
        close_files(files);
        assert_int_equal(stored(f, HAPAX__RECORDS, 1), round == 0);
        assert_int_equal(stored(f, HAPAX__RECORDS, 3), round == 0);
    }
    open_store(f, "");
    assert_int_equal(claim(f->store, 2, 2), HAPAX_IN_FLIGHT);
    assert_true(is_completed(f->store, 4));
    assert_int_equal(claim(f->store, 1, 2), HAPAX_CLAIMED);
}

/* PURGE removes expired records, from the index too, within its limit, and never a live claim. */
static void purge_never_removes_a_live_claim(void **state)
{
    struct fixture *f = *state;
    struct hapax_op purge = {.kind = HAPAX_OP_PURGE, .limit = 1};

    make_expired(f);
    assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
    assert_int_equal(purge.purged, 1);
    assert_true(purge.more);
    purge.cursor = purge.next_cursor;
    assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
    assert_int_equal(purge.purged, 1);
    assert_false(purge.more);
    assert_int_equal(claim(f->store, 2, 2), HAPAX_IN_FLIGHT);
    assert_true(is_completed(f->store, 4));
    close_store(f);
    assert_false(stored(f, HAPAX__RECORDS, 1));
    assert_false(stored(f, HAPAX__OPEN, 1));
    assert_false(stored(f, HAPAX__RECORDS, 3));
    assert_true(stored(f, HAPAX__OPEN, 2));
}

/* A sweep makes a dead claim under hold unknown, within its limit, and moves it in the index as
 * well; so it stays when the store is opened again. */
static void a_sweep_moves_dead_claims_in_the_index(void **state)
{
    struct fixture *f = *state;
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = 1u << HAPAX_STATE_UNKNOWN};
    struct hapax_op purge = {.kind = HAPAX_OP_PURGE, .limit = 2}, held;

    make_expired(f);
    for (uint64_t n = 5; n < 8; n++) {
        held = claim_of(n, 1);
        held.lease_ms = n < 7 ? 1 : held.lease_ms;
        held.on_expired = HAPAX_EXPIRED_HOLD;
        assert_int_equal(run_one(f->store, &held), HAPAX_CLAIMED);
        for (struct hapax_op op = held; n < 7 && op.now_us < held.record.lease_until_us;) {
            op = read_of(n);
            run_one(f->store, &op);
        }
    }
    for (unsigned page = 0; page < 2; page++) {
        assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
        assert_int_equal(purge.purged + purge.expired_claims, 2);
        assert_int_equal(purge.more, page == 0);
        purge.cursor = purge.next_cursor;
    }
    close_store(f);
    open_store(f, "");
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 2);
    assert_true(list.records[0].stale && list.records[0].state == HAPAX_STATE_UNKNOWN);
    list.states = 1u << HAPAX_STATE_STARTED;
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 2); /* 2 and 7, which live */
    purge = (struct hapax_op){.kind = HAPAX_OP_PURGE};
    assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
    assert_int_equal(purge.purged + purge.expired_claims, 0);
    assert_int_equal(complete(f->store, 5, 1), HAPAX_OK);
}

/* An entry of the index whose record the filter dropped is passed over by LIST and removed by
 * PURGE. */
static void purge_removes_what_the_filter_left(void **state)
{
    struct fixture *f = *state;
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_OPEN};
    struct hapax_op purge = {.kind = HAPAX_OP_PURGE};
    struct hapax_id id = id_of(9);
    struct hapax__files *files;

    close_store(f);
    files = open_files(f);
    put_raw(files, HAPAX__OPEN, id.bytes, sizeof(id), "\1\0\0\0\0\0\0\0\1", HAPAX__OPEN_SIZE);
    close_files(files);
    open_store(f, "");
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 0);
    assert_int_equal(run_one(f->store, &purge), HAPAX_OK);
    assert_int_equal(purge.purged, 0);
    close_store(f);
    assert_false(stored(f, HAPAX__OPEN, 9));
}

/* Such an entry hides no claim that came later: its state is that of the record that is gone. */
static void what_the_filter_left_hides_no_claim(void **state)
{
    struct fixture *f = *state;
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = 1u << HAPAX_STATE_STARTED};
    struct hapax_op ops[2] = {claim_of(1, 1)}, op;
    int64_t deadline_us = monotonic_us() + 60000000;
    struct hapax__files *files;

    ops[0].lease_ms = ops[0].retention_ms = 5;
    ops[1] = (struct hapax_op){.kind = HAPAX_OP_FAIL, .id = id_of(1), .token = {{1}}, .ran = true};
    assert_int_equal(hapax_store_run(f->store, ops, 2), HAPAX_ERR_NONE);
    assert_int_equal(ops[1].verdict, HAPAX_OK);
    do {
        assert_true(monotonic_us() < deadline_us);
        op = read_of(1);
    } while (run_one(f->store, &op) != HAPAX_ABSENT);
    close_store(f);
    files = open_files(f);
    atomic_store(&files->judged_us, op.now_us);
    rocksdb_compact_range_cf(files->db, files->family[HAPAX__RECORDS], NULL, 0, NULL, 0);
    close_files(files);
    assert_false(stored(f, HAPAX__RECORDS, 1));
    assert_true(stored(f, HAPAX__OPEN, 1));
    open_store(f, "");
    assert_int_equal(claim(f->store, 1, 2), HAPAX_CLAIMED);
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 1);
    reopen_store(f);
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 1);
}

/* A database of the version before: its records are read, listed, completed, and written anew. */
static void records_of_version_1_are_read(void **state)
{
    struct fixture *f = *state;
    struct hapax_op list = {.kind = HAPAX_OP_LIST};
    struct hapax_op op = read_of(1);
    uint8_t bytes[RECORD_V1_MAX];
    struct hapax__files *files;
    struct hapax_record record;
    size_t size;

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(run_one(f->store, &op), HAPAX_FOUND);
    record = op.record;
    memcpy(record.mark.bytes, claim_of(1, 1).token.bytes, sizeof(record.mark));
    record.scope = hapax_str("test");
    size = record_v1(bytes, &record);
    close_store(f);
    files = open_files(f);
    put_raw(files, HAPAX__RECORDS, record.id.bytes, sizeof(record.id), (const char *)bytes, size);
    close_files(files);
    open_store(f, "");
    assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.records[0].what.len, 0);
    assert_int_equal(complete(f->store, 1, 1), HAPAX_OK);
    assert_true(is_completed(f->store, 1));
}

static void keep_line(void *arg, bool danger, const char *line)
{
    char(*lines)[512] = arg;
    size_t len = strlen(*lines);

    (void)danger;
    snprintf(*lines + len, sizeof(*lines) - len, "%s\n", line);
}

/* check counts what LIST shows: not what has expired, nor the library's own record. */
static void a_few_records_are_counted(void **state)
{
    struct fixture *f = *state;
    char lines[512] = "";

    assert_int_equal(hapax_store_bind(f->store, hapax_str(NULL)), HAPAX_ERR_NONE);
    for (uint64_t n = 1; n <= 3; n++)
        assert_int_equal(claim(f->store, n, 1), HAPAX_CLAIMED);
    assert_int_equal(hapax_store_check(f->store, keep_line, &lines), HAPAX_ERR_NONE);
    assert_true(strncmp(lines, "3 records\n", 10) == 0 || strstr(lines, "\n3 records\n"));
}

/* Many are counted in part. What a buffer that is not sorted holds twice counts once, and what has
 * expired does not count. */
static void many_records_are_counted_roughly(void **state)
{
    struct fixture *f = *state;
    struct hapax_op op;
    int64_t deadline_us = monotonic_us() + 60000000;
    char lines[512] = "";
    const char *about;
    double count;

    close_store(f);
    open_store(f, "?sync=off");
    load(f->store, 0, MANY, true);
    for (uint64_t n = MANY; n < 2 * MANY; n++) {
        op = claim_of(n, 1);
        op.lease_ms = op.retention_ms = 1;
        assert_int_equal(run_one(f->store, &op), HAPAX_CLAIMED);
    }
    do {
        assert_true(monotonic_us() < deadline_us);
        op = read_of(2 * MANY - 1);
    } while (run_one(f->store, &op) != HAPAX_ABSENT);
    assert_int_equal(hapax_store_check(f->store, keep_line, &lines), HAPAX_ERR_NONE);
    about = strstr(lines, "about ");
    assert_non_null(about);
    count = strtod(about + strlen("about "), NULL);
    assert_true(count > 0.85 * (double)MANY && count < 1.15 * (double)MANY);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_store, drop_store)

/* test_rocksdb_walk [RECORDS] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(stuck_records_are_found_among_a_million),
        CASE(few_records_are_noted),
        CASE(the_index_follows_the_states),
        CASE(the_filter_drops_what_has_expired),
        CASE(purge_never_removes_a_live_claim),
        CASE(a_sweep_moves_dead_claims_in_the_index),
        CASE(purge_removes_what_the_filter_left),
        CASE(what_the_filter_left_hides_no_claim),
        CASE(records_of_version_1_are_read),
        CASE(a_few_records_are_counted),
        CASE(many_records_are_counted_roughly),
        CASE(many_records_are_listed_in_order),
        CASE(a_large_buffer_is_swept),
    };

    if (argc > 1)
        list_records = (uint32_t)strtoul(argv[1], NULL, 10);
    hapax_rocksdb_use();
    return cmocka_run_group_tests_name("rocksdb_walk", tests, NULL, NULL);
}
