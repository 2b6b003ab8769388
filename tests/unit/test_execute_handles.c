/* SPDX-License-Identifier: Apache-2.0
 *
 * Several handles on one store, as several processes would have them: a keeper in this process
 * shares a memory store, and each handle speaks to it over the socket.
 */
#include "execute_bed.h"

#include "../cases.h"
#include "store/keeper/keeper.h"

#include <hapax/store.h>
#include <unistd.h>

#define HANDLES     4
#define PER_HANDLE  4
#define KEYS_RACED  50
#define OPERATOR_BY "tester"

struct shop {
    struct hapax__keeper_server *server;
    char dir[64];
    char path[96];
    char uri[128];
};

static void shop_open(struct shop *shop)
{
    struct hapax__keeper_options options = {0};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];

    snprintf(shop->dir, sizeof(shop->dir), "/tmp/hapax-handles-XXXXXX");
    assert_non_null(mkdtemp(shop->dir));
    snprintf(shop->path, sizeof(shop->path), "%s/sock", shop->dir);
    snprintf(shop->uri, sizeof(shop->uri), "unix:%s", shop->path);
    options.path = shop->path;
    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__keeper_serve(&shop->server, store, &options, text), HAPAX_ERR_NONE);
}

static void shop_close(struct shop *shop)
{
    hapax__keeper_stop(shop->server);
    assert_int_equal(rmdir(shop->dir), 0);
}

static void bed_at(struct bed *bed, const struct shop *shop)
{
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax_open(&bed->h, shop->uri, NULL, text), HAPAX_ERR_NONE);
    hapax_policy_init(&bed->policy);
    bed->policy.wait_ms = bed->policy.timeout_ms = bed->policy.save_wait_ms = WAIT_MS;
}

/* ---- secrets ------------------------------------------------------------------------- */

/* A store is for one secret, and it is the one that hashes the keys. */
CASE(another_secret_than_the_first_is_refused)
{
    static const char *const secrets[] = {"first", "second", "", "first"};
    struct script script;
    struct shop shop;

    shop_open(&shop);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    for (int i = 0; i < 4; i++) {
        char secret[16], text[HAPAX_TEXT_MAX];
        struct hapax_options options = {0};
        enum hapax_error error;
        struct bed bed;

        snprintf(secret, sizeof(secret), "%s", secrets[i]);
        options.secret = hapax_str(secret);
        error = hapax_open(&bed.h, shop.uri, &options, text);
        memset(secret, 'x', sizeof(secret)); /* it was copied */
        if (i == 1 || i == 2) {
            assert_int_equal(error, HAPAX_ERR_REFUSED);
            assert_null(bed.h);
            assert_non_null(strstr(text, "secret"));
            continue;
        }
        assert_int_equal(error, HAPAX_ERR_NONE);
        hapax_policy_init(&bed.policy);
        expect(&bed, "k", &script, i == 0 ? HAPAX_ANSWER_FRESH : HAPAX_ANSWER_REPLAY, "ran");
        assert_int_equal(hapax_close(bed.h, WAIT_MS), 0);
    }
    shop_close(&shop);
}

/* ---- races --------------------------------------------------------------------------- */

struct racer {
    struct bed *bed;
    struct script *scripts; /* one per key */
    pthread_barrier_t *start;
    pthread_t thread;
    unsigned fresh;
};

static void *racer_main(void *arg)
{
    struct racer *racer = arg;

    for (unsigned i = 0; i < KEYS_RACED; i++) {
        struct hapax_answer answer;
        char key[32];

        snprintf(key, sizeof(key), "key %u", i);
        pthread_barrier_wait(racer->start);
        answer = execute(racer->bed, key, &racer->scripts[i]);
        must(answer.kind == HAPAX_ANSWER_FRESH || answer.kind == HAPAX_ANSWER_REPLAY);
        must(body_is(&answer, racer->scripts[i].body));
        racer->fresh += answer.kind == HAPAX_ANSWER_FRESH;
        hapax_answer_release(&answer);
    }
    return NULL;
}

/* Handles know nothing of each other: what keeps them apart is the store alone. */
CASE(handles_racing_on_one_store_run_each_key_once)
{
    static struct script scripts[KEYS_RACED];
    struct racer racers[HANDLES * PER_HANDLE];
    struct bed beds[HANDLES];
    pthread_barrier_t start;
    struct shop shop;
    unsigned fresh = 0;

    shop_open(&shop);
    pthread_barrier_init(&start, NULL, HANDLES * PER_HANDLE);
    for (int i = 0; i < KEYS_RACED; i++)
        script_init(&scripts[i], HAPAX_CLASS_FINAL, 200, "ran");
    for (int i = 0; i < HANDLES; i++)
        bed_at(&beds[i], &shop);
    for (int i = 0; i < HANDLES * PER_HANDLE; i++) {
        racers[i] = (struct racer){.bed = &beds[i % HANDLES], .scripts = scripts, .start = &start};
        assert_int_equal(pthread_create(&racers[i].thread, NULL, racer_main, &racers[i]), 0);
    }
    for (int i = 0; i < HANDLES * PER_HANDLE; i++) {
        assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
        fresh += racers[i].fresh;
    }
    assert_int_equal(fresh, KEYS_RACED);
    for (int i = 0; i < KEYS_RACED; i++)
        assert_int_equal(scripts[i].runs, 1);
    for (int i = 0; i < HANDLES; i++)
        assert_int_equal(hapax_close(beds[i].h, WAIT_MS), 0);
    pthread_barrier_destroy(&start);
    shop_close(&shop);
}

/* ---- an operator --------------------------------------------------------------------- */

static void resolve(const struct shop *shop, const char *key, enum hapax_resolve how)
{
    struct hapax_span none = {NULL, 0};
    struct hapax_op op = {.kind = HAPAX_OP_RESOLVE, .resolve = how, .force = true};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];

    must(hapax_id(&op.id, hapax_str("default"), hapax_str(key), none, none) == HAPAX_ERR_NONE);
    op.token.bytes[0] = 1;
    op.by = hapax_str(OPERATOR_BY);
    op.outcome.status = 200;
    op.outcome.body_kept = true;
    op.outcome.body = hapax_str("of the operator");
    must(hapax_store_open(&store, shop->uri, text) == HAPAX_ERR_NONE);
    must(hapax_store_run(store, &op, 1) == HAPAX_ERR_NONE && op.verdict == HAPAX_OK);
    hapax_store_close(store);
}

struct overruled {
    const struct shop *shop;
    const char *key;
    enum hapax_resolve how;
};

static enum hapax_class run_overruled(struct hapax_attempt *attempt, void *arg)
{
    const struct overruled *overruled = arg;
    int64_t until_ms = now_ms() + WAIT_MS;

    must(!hapax_attempt_lost(attempt));
    resolve(overruled->shop, overruled->key, overruled->how);
    while (!hapax_attempt_lost(attempt)) {
        struct timespec moment = {0, 1000000};

        must(now_ms() < until_ms);
        nanosleep(&moment, NULL);
    }
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str("of the handler")) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

/* What an operator says stands: completed, it is everybody's answer; forgotten, ours is passed on
 * and marked, and the next one runs. */
CASE(an_operator_overrules_a_handler_that_runs)
{
    static const char *const keys[] = {"completed", "forgotten"};
    struct shop shop;
    struct bed bed;

    shop_open(&shop);
    bed_at(&bed, &shop);
    bed.policy.lease_ms = 300;
    for (int i = 0; i < 2; i++) {
        struct overruled overruled = {&shop, keys[i], HAPAX_RESOLVE_COMPLETE};
        struct hapax_request request = request_of(keys[i]);
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];
        struct script script;

        if (i == 1)
            overruled.how = HAPAX_RESOLVE_FORGET;
        script_init(&script, HAPAX_CLASS_FINAL, 200, "of the next");
        assert_int_equal(hapax_execute(bed.h, &bed.policy, &request, run_overruled, NULL,
                                       &overruled, &answer, text),
                         HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, i == 0 ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_FRESH);
        assert_int_equal(answer.recorded, i == 0);
        assert_true(body_is(&answer, i == 0 ? "of the operator" : "of the handler"));
        hapax_answer_release(&answer);
        expect(&bed, keys[i], &script, i == 0 ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_FRESH,
               i == 0 ? "of the operator" : "of the next");
    }
    assert_int_equal(hapax_close(bed.h, WAIT_MS), 0);
    shop_close(&shop);
}
