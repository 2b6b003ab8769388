/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands on a store that is played: it notes what it is asked, and answers each of its records
 * with an error of the test's choice, which no real store gives on demand.
 */
#include "../cases.h"
#include "cli/cli.h"
#include "cli/print.h"
#include "store/types.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORDS   2u
#define LISTS_MAX 4u
#define PATH_SIZE 64u
#define TEXT_SIZE 4096u

static struct {
    struct hapax_record records[RECORDS]; /* what every LIST finds */
    enum hapax_error errors[RECORDS]; /* of other ops about a record; NONE: the op is done */
    struct hapax_digest owners[LISTS_MAX]; /* whom each LIST was about */
    size_t lists;
    /* Which LIST, counted from 1, fails; finds nothing; says that there are more; passes over a
     * damaged place; lets the trail take no line from then on. 0: none. */
    size_t fails, finds_none, goes_on, passes_over, seals;
    int trail;
} play;

/* ---- the store ------------------------------------------------------------------------- */

static void list(struct hapax_store *store, struct hapax_op *op)
{
    assert_true(play.lists < LISTS_MAX);
    play.owners[play.lists++] = op->owner;
    if (play.lists == play.seals)
        assert_int_equal(fcntl(play.trail, F_ADD_SEALS, F_SEAL_GROW), 0);
    if (play.lists == play.fails) {
        op->error = HAPAX_ERR_UNAVAILABLE;
        return;
    }
    op->more = play.lists == play.goes_on;
    op->next_cursor = play.records[RECORDS - 1].id;
    op->damaged = play.lists == play.passes_over;
    op->records = hapax_store_memory(store, sizeof(play.records));
    assert_non_null(op->records);
    memcpy(op->records, play.records, sizeof(play.records));
    op->count = play.lists == play.finds_none ? 0 : RECORDS;
    op->now_us = 1;
    op->verdict = HAPAX_FOUND;
}

static void answer(struct hapax_store *store, struct hapax_op *op)
{
    if (op->kind == HAPAX_OP_LIST) {
        list(store, op);
        return;
    }
    for (size_t i = 0; i < RECORDS; i++) {
        if (memcmp(&op->id, &play.records[i].id, sizeof(op->id)) != 0)
            continue;
        op->error = play.errors[i];
        op->verdict = op->error == HAPAX_ERR_NONE ? HAPAX_OK : HAPAX_NO_VERDICT;
        return;
    }
    op->verdict = HAPAX_ABSENT; /* the check value of the secret */
}

static enum hapax_error play_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    enum hapax_error first = HAPAX_ERR_NONE;

    for (size_t i = 0; i < n; i++) {
        answer(store, &ops[i]);
        if (first == HAPAX_ERR_NONE && ops[i].verdict == HAPAX_NO_VERDICT)
            first = ops[i].error;
    }
    return first;
}

static void play_close(struct hapax_store *store)
{
    free(store);
}

static enum hapax_error play_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX]);

static const struct hapax_store_type type = {.scheme = "play",
                                             .batch_max = HAPAX_BATCH_MAX,
                                             .body_max = 100,
                                             .serial = true,
                                             .open = play_open,
                                             .run = play_run,
                                             .close = play_close};

static enum hapax_error play_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    (void)uri;
    (void)text;
    *out = calloc(1, sizeof(**out));
    assert_non_null(*out);
    (*out)->type = &type;
    return HAPAX_ERR_NONE;
}

static int begin(void **state)
{
    static bool known;

    if (!known)
        hapax__store_add(&type);
    known = true;
    memset(&play, 0, sizeof(play));
    for (size_t i = 0; i < RECORDS; i++) {
        memset(&play.records[i].id, (int)i + 1, sizeof(play.records[i].id));
        play.records[i].state = HAPAX_STATE_FAILED;
        play.records[i].scope = hapax_str("default");
        play.records[i].attempt = 1;
        play.records[i].updated_us = 1;
    }
    return 0;
}

/* ---- the commands ---------------------------------------------------------------------- */

struct done {
    enum cli_exit exit;
    char text[TEXT_SIZE]; /* what it printed */
};

static struct done run(struct cli_args *args)
{
    FILE *out = stdout, *err = stderr, *file;
    struct done done = {.text = ""};

    file = fmemopen(done.text, sizeof(done.text) - 1, "w");
    assert_non_null(file);
    stdout = stderr = file;
    done.exit = args->command->run(args);
    stdout = out;
    stderr = err;
    (void)fclose(file);
    cli_args_free(args);
    return done;
}

/* A file in memory, which only we can read, and its path. */
static int file_with(char path[PATH_SIZE], const char *text)
{
    int fd = memfd_create("commands", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, 0600), 0);
    (void)snprintf(path, PATH_SIZE, "/proc/self/fd/%d", fd);
    return fd;
}

#define OPTIONS 3u

/* Runs a command with up to so many options, and reads its trail. A flag's value is NULL. */
static struct done act(const struct cli_command *command, const char *const options[OPTIONS][2],
                       char trail[TEXT_SIZE])
{
    struct cli_args *args = cli_args_new(command);
    char path[PATH_SIZE];
    struct done done;
    ssize_t len;

    assert_non_null(args);
    args->store = args->shown = "play:";
    play.trail = file_with(path, "");
    assert_int_equal(cli_give(args, "audit", path), CLI_DONE);
    for (size_t i = 0; i < OPTIONS && options[i][0]; i++)
        assert_int_equal(cli_give(args, options[i][0], options[i][1]), CLI_DONE);
    done = run(args);
    len = pread(play.trail, trail, TEXT_SIZE - 1, 0);
    assert_true(len >= 0);
    trail[len] = '\0';
    close(play.trail);
    return done;
}

static struct done erase(const char *what, const char *name, char trail[TEXT_SIZE])
{
    const char *const options[OPTIONS][2] = {{what, name}};

    return act(&cli_erase, options, trail);
}

static struct done resolve(const char *owner, char trail[TEXT_SIZE])
{
    const char *const options[OPTIONS][2] = {
        {"state", "failed"}, {"forget", NULL}, {owner ? "owner" : NULL, owner}};

    return act(&cli_resolve, options, trail);
}

/* The secret of the store is being changed, from "old" to "new". */
struct rotation {
    int now_fd, old_fd;
};

static void rotation_begin(struct rotation *rotation)
{
    char path[PATH_SIZE];

    rotation->now_fd = file_with(path, "new");
    assert_int_equal(setenv("HAPAX_SECRET_FILE", path, 1), 0);
    rotation->old_fd = file_with(path, "old");
    assert_int_equal(setenv("HAPAX_SECRET_OLD_FILE", path, 1), 0);
}

static void rotation_end(const struct rotation *rotation)
{
    assert_int_equal(unsetenv("HAPAX_SECRET_FILE"), 0);
    assert_int_equal(unsetenv("HAPAX_SECRET_OLD_FILE"), 0);
    close(rotation->now_fd);
    close(rotation->old_fd);
}

static unsigned times(const char *text, const char *word)
{
    unsigned n = 0;

    for (text = strstr(text, word); text; text = strstr(text + 1, word))
        n++;
    return n;
}

static void digest_of(struct hapax_digest *out, char hex[PRINT_HEX_MAX], const char *secret)
{
    assert_int_equal(hapax_owner(out, hapax_str("ann"), hapax_str(secret)), HAPAX_ERR_NONE);
    print_hex(hex, out->bytes);
}

/* ---- the cases ------------------------------------------------------------------------- */

/* Meanwhile a program with both secrets may bring an outcome from the old half into the new one.
 * The two lines of the trail name one owner. */
CASE_WITH(an_erasure_asks_the_old_half_of_a_rotation_first, begin, NULL)
{
    char now_hex[PRINT_HEX_MAX], old_hex[PRINT_HEX_MAX], trail[TEXT_SIZE];
    struct hapax_digest now, old;
    struct rotation rotation;
    struct done done;

    digest_of(&now, now_hex, "new");
    digest_of(&old, old_hex, "old");
    rotation_begin(&rotation);
    done = erase("owner", "ann", trail);
    rotation_end(&rotation);
    assert_int_equal(done.exit, CLI_DONE);
    assert_int_equal(play.lists, 2);
    assert_memory_equal(&play.owners[0], &old, sizeof(old));
    assert_memory_equal(&play.owners[1], &now, sizeof(now));
    assert_int_equal(times(trail, now_hex), 2);
    assert_int_equal(times(trail, old_hex), 0);
}

/* What was surely not forgotten ends it, also where before that no reply came. */
CASE_WITH(an_erasure_is_broken_off_by_any_op_that_was_not_applied, begin, NULL)
{
    char trail[TEXT_SIZE];
    struct done done;

    play.errors[0] = HAPAX_ERR_INDETERMINATE;
    play.errors[1] = HAPAX_ERR_UNAVAILABLE;
    done = erase("scope", "default", trail);
    assert_int_equal(done.exit, CLI_UNREACHED);
    assert_int_equal(times(done.text, "hapax erase: unavailable\n"), 1);
    assert_int_equal(times(trail, "broken off: erased 0, left 1"), 1);
}

/* It is not left as one that cannot be read, which would end the copy with CLI_NO. */
CASE_WITH(a_copy_ends_where_a_record_behind_a_damaged_one_is_not_to_be_had, begin, NULL)
{
    struct cli_args *args = cli_args_new(&cli_copy);
    struct done done;

    assert_non_null(args);
    assert_int_equal(cli_give(args, "from", "play:"), CLI_DONE);
    assert_int_equal(cli_give(args, "to", "memory:"), CLI_DONE);
    play.errors[0] = HAPAX_ERR_CORRUPT;
    play.errors[1] = HAPAX_ERR_UNAVAILABLE;
    done = run(args);
    assert_int_equal(done.exit, CLI_UNREACHED);
    assert_int_equal(times(done.text, "hapax copy: unavailable\n"), 1);
    assert_int_equal(times(done.text, ": cannot be read\n"), 1);
}

CASE_WITH(a_resolve_of_many_that_cannot_list_does_not_say_that_there_are_none, begin, NULL)
{
    char trail[TEXT_SIZE];
    struct done done;

    play.fails = 1;
    done = resolve(NULL, trail);
    assert_int_equal(done.exit, CLI_UNREACHED);
    assert_int_equal(times(done.text, "hapax resolve: unavailable\n"), 1);
    assert_int_equal(times(done.text, "there are none"), 0);
}

/* The audit file takes the lines of the first page, and no more. */
CASE_WITH(a_resolve_of_many_says_what_was_done_before_its_trail_was_full, begin, NULL)
{
    char trail[TEXT_SIZE];
    struct done done;

    play.goes_on = 1;
    play.seals = 2;
    done = resolve(NULL, trail);
    assert_int_equal(done.exit, CLI_UNREACHED);
    assert_int_equal(times(done.text, "not done, since the audit file"), 1);
    assert_int_equal(times(done.text, "resolved 2 of 2 operations as forgotten\n"), 1);
    assert_int_equal(times(trail, "\"end\": \"ok\""), 2);
}

/* It may hold records of whom was erased. */
CASE_WITH(an_erasure_counts_a_damaged_place_as_left, begin, NULL)
{
    char trail[TEXT_SIZE];
    struct done done;

    play.passes_over = 1;
    done = erase("scope", "default", trail);
    assert_int_equal(done.exit, CLI_UNREACHED);
    assert_int_equal(times(trail, "done: erased 2, left 1"), 1);
}

/* Where the first secret knows none of the owner's, and the other does. */
CASE_WITH(a_resolve_of_many_has_one_sum_of_both_secrets, begin, NULL)
{
    char trail[TEXT_SIZE];
    struct rotation rotation;
    struct done done;

    play.finds_none = 1;
    rotation_begin(&rotation);
    done = resolve("ann", trail);
    rotation_end(&rotation);
    assert_int_equal(done.exit, CLI_DONE);
    assert_int_equal(play.lists, 2);
    assert_int_equal(times(done.text, "there are none"), 0);
    assert_int_equal(times(done.text, "resolved 2 of 2 operations as forgotten\n"), 1);
}
