/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cases of the store tests stand on: ops made from a number, a folder of their own, and
 * the process each of them runs in. A case that hangs is ended with all it started, and one that is
 * left alone ends with whoever started it.
 */
#include "store_test.h"

#include "store/rotation/rotation.h"
#include "store/seal.h"
#include "store/types.h"

#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define KEYS            "k1 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define CASE_TIMEOUT_MS 300000
#define ROUND_MS                                                                                   \
    60000 /* of random histories on hybrid:, where a forced RESOLVE takes half a second */

/* ---- ops ----------------------------------------------------------------------------- */

uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t monotonic_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ---- a store whose secret is being changed ---------------------------------------------- */

#define OPS_MAX 256u

/* Has each op about one record be about two, as doors with two secrets do. */
struct rotated {
    struct hapax_store store;
    struct hapax_store *inner;
    struct hapax_identity old[OPS_MAX];
};

static void rename_all(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] ^= 0x5a;
}

static enum hapax_error rotated_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct rotated *r = (struct rotated *)store;
    enum hapax_error error;

    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == HAPAX_OP_LIST || ops[i].kind == HAPAX_OP_PURGE ||
            ops[i].kind == HAPAX_OP_IMPORT)
            continue;
        r->old[i] =
            (struct hapax_identity){ops[i].id, ops[i].owner, ops[i].fingerprint, ops[i].caller};
        rename_all((uint8_t *)&r->old[i], sizeof(r->old[i]));
        ops[i].old = &r->old[i];
    }
    error = hapax_store_run(r->inner, ops, n);
    for (size_t i = 0; i < n; i++)
        ops[i].old = NULL;
    return error == HAPAX_ERR_NONE
               ? error
               : hapax_store_fail(store, error, "%s", hapax_store_text(r->inner));
}

static enum hapax_error rotated_keys(struct hapax_store *store, const struct hapax__keys *keys)
{
    return hapax__store_keys(((struct rotated *)store)->inner, keys);
}

static enum hapax_error rotated_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    return hapax_store_check(((struct rotated *)store)->inner, say, arg);
}

static void rotated_close(struct hapax_store *store)
{
    hapax_store_close(((struct rotated *)store)->inner);
    free(store);
}

static enum hapax_error rotated_open(struct hapax_store **out, const char *uri,
                                     char text[HAPAX_TEXT_MAX])
{
    struct rotated *r = calloc(1, sizeof(*r));
    enum hapax_error error;

    CHECK(r, "out of memory");
    error = hapax_store_open(&r->inner, strchr(uri, ':') + 1, text);
    CHECK(error == HAPAX_ERR_NONE, "%s: %s", hapax_error_name(error), text);
    error = hapax__rotation_over(&r->inner);
    CHECK(error == HAPAX_ERR_NONE, "%s", hapax_store_text(r->inner));
    *out = &r->store;
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type rotated = {
    .scheme = "rotated",
    .batch_max = OPS_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = rotated_open,
    .run = rotated_run,
    .keys = rotated_keys,
    .check = rotated_check,
    .close = rotated_close,
};

/* ---- opening ------------------------------------------------------------------------- */

struct hapax_store *open_store(const struct suite *suite)
{
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX], uri[600];
    enum hapax_error error;

    hapax__store_add(&rotated);
    snprintf(uri, sizeof(uri), "%s%s", suite->rotated ? "rotated:" : "", suite->uri);
    error = hapax_store_open(&store, uri, text);
    CHECK(error == HAPAX_ERR_NONE, "%s: %s", hapax_error_name(error), text);
    if (suite->sealed)
        error = hapax_store_keys(store, hapax_str(KEYS));
    CHECK(error == HAPAX_ERR_NONE, "%s", hapax_store_text(store));
    return store;
}

void run_op(struct hapax_store *store, struct hapax_op *op)
{
    static const struct hapax_mark none;
    enum hapax_error error = hapax_store_run(store, op, 1);

    CHECK(error == HAPAX_ERR_NONE, "op %d: %s: %s", (int)op->kind, hapax_error_name(error),
          hapax_store_text(store));
    CHECK(op->error == HAPAX_ERR_NONE && op->verdict != HAPAX_NO_VERDICT, "op %d", (int)op->kind);
    CHECK(memcmp(&op->record.mark, &none, sizeof(none)) == 0, "an answer shows a mark");
    CHECK(op->now_us > 0 || op->scrub, "an answer has no time");
}

struct hapax_op op_of(const struct suite *suite, enum hapax_op_kind kind, unsigned n, unsigned who)
{
    struct hapax_op op = {.kind = kind, .lease_ms = 30000, .retention_ms = 3600000};
    uint64_t state = suite->seed;

    for (const char *c = suite->scope; *c; c++)
        state = state * 31 + (uint8_t)*c;
    state += n * UINT64_C(1000003);
    for (size_t i = 0; i < sizeof(op.id); i++)
        op.id.bytes[i] = (uint8_t)next_random(&state);
    memset(&op.token, 0x77, sizeof(op.token));
    memcpy(&op.token, &who, sizeof(who));
    memset(&op.fingerprint, 0xf1, sizeof(op.fingerprint));
    memset(&op.caller, 0xc1, sizeof(op.caller));
    op.scope = hapax_str(suite->scope);
    op.on_expired = HAPAX_EXPIRED_RERUN;
    op.outcome.status = 200;
    op.outcome.body_kept = true;
    op.outcome.headers = hapax_str("Content-Type: text/plain\r\n");
    op.outcome.body = hapax_str("done");
    return op;
}

void wait_until(struct hapax_store *store, const struct suite *suite, int64_t store_us)
{
    int64_t deadline_ms = monotonic_ms() + 20000;
    struct hapax_op op;

    do {
        op = op_of(suite, HAPAX_OP_READ, 999999, 0);
        run_op(store, &op);
        CHECK(monotonic_ms() < deadline_ms, "the store's clock stands at %" PRId64, op.now_us);
    } while (op.now_us < store_us);
}

/* ---- the folder ---------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void make_folder(struct suite *suite)
{
    const char *at = strstr(suite->asked, "@tmp");

    suite->folder[0] = '\0';
    snprintf(suite->uri, sizeof(suite->uri), "%s", suite->asked);
    if (!at)
        return;
    snprintf(suite->folder, sizeof(suite->folder), "/tmp/hapax-store.XXXXXX");
    CHECK(mkdtemp(suite->folder) != NULL, "mkdtemp");
    snprintf(suite->uri, sizeof(suite->uri), "%.*s%s/s%s", (int)(at - suite->asked), suite->asked,
             suite->folder, at + 4);
}

void remove_folder(const struct suite *suite)
{
    if (suite->folder[0])
        nftw(suite->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- the process --------------------------------------------------------------------- */

int wait_for(pid_t pid, int64_t timeout_ms, bool group)
{
    int64_t deadline_ms = monotonic_ms() + timeout_ms;
    struct timespec pause = {0, 2000000};
    int status = -1;

    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);

        if (got == pid)
            return status;
        if (monotonic_ms() > deadline_ms) {
            printf("# process %d took over %" PRId64 " ms\n", (int)pid, timeout_ms);
            kill(group ? -pid : pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nanosleep(&pause, NULL);
    }
}

bool run_alone(const struct suite *suite, const struct test_case *test, int inherited)
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (inherited >= 0)
            close(inherited);
        test->run(suite);
        fflush(stdout);
        exit(0);
    }
    setpgid(pid, pid);
    status = wait_for(pid,
                      CASE_TIMEOUT_MS + 1000 * (int64_t)suite->seconds +
                          (suite->hinted ? ROUND_MS * (int64_t)suite->rounds : 0),
                      true);
    kill(-pid, SIGKILL);
    if (status > 0 && WIFSIGNALED(status))
        printf("# ended by signal %d\n", WTERMSIG(status));
    return status == 0;
}
