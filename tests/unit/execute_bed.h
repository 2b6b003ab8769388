/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the C door share: a handle over a memory store that fails on purpose, a handler
 * that does as it is told and counts, and callers in threads of their own. A claim that breaks in
 * another thread than cmocka's aborts the test: see must().
 */
#ifndef HAPAX_TESTS_EXECUTE_BED_H
#define HAPAX_TESTS_EXECUTE_BED_H

#include <hapax/hapax.h>

#include "../store/faulty.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "../must.h"

#define WAIT_MS 60000 /* no event of a test takes longer, on any machine */

struct bed {
    struct hapax__plan plan;
    struct hapax *h;
    struct hapax_policy policy;
};

/* The policy is the default but for its waits: each is as long as a test may take. */
static inline void bed_open_with(struct bed *bed, const struct hapax_options *options)
{
    char text[HAPAX_TEXT_MAX];

    hapax__plan_init(&bed->plan);
    hapax__faulty_use(&bed->plan);
    assert_int_equal(hapax_open(&bed->h, "faulty:memory:", options, text), HAPAX_ERR_NONE);
    hapax_policy_init(&bed->policy);
    bed->policy.wait_ms = bed->policy.timeout_ms = bed->policy.save_wait_ms = WAIT_MS;
}

static inline void bed_open(struct bed *bed)
{
    bed_open_with(bed, NULL);
}

/* Everything is stored in the end, or the test is wrong. */
static inline void bed_close(struct bed *bed)
{
    assert_int_equal(hapax_close(bed->h, WAIT_MS), 0);
    hapax__plan_release(&bed->plan);
}

static inline int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void wait_for(sem_t *sem)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    while (sem_timedwait(sem, &until) != 0)
        must(errno == EINTR);
}

/* ---- the handler --------------------------------------------------------------------- */

struct script {
    enum hapax_class cls;
    int status;
    const char *headers;
    const char *body;
    atomic_uint runs;
    atomic_uint at_once;
    bool gated; /* posts entered, then waits for go */
    sem_t entered;
    sem_t go;
    uint32_t number; /* what the last attempt saw */
    uint64_t fence;
    bool stale;
};

static inline void script_init(struct script *script, enum hapax_class cls, int status,
                               const char *body)
{
    memset(script, 0, sizeof(*script));
    script->cls = cls;
    script->status = status;
    script->body = body;
    sem_init(&script->entered, 0, 0);
    sem_init(&script->go, 0, 0);
}

static inline enum hapax_class play(struct hapax_attempt *attempt, void *arg)
{
    struct script *script = arg;

    must(atomic_fetch_add(&script->at_once, 1) == 0);
    atomic_fetch_add(&script->runs, 1);
    script->number = hapax_attempt_number(attempt);
    script->fence = hapax_attempt_fence(attempt);
    script->stale = hapax_attempt_stale(attempt);
    if (script->gated) {
        sem_post(&script->entered);
        wait_for(&script->go);
    }
    must(hapax_attempt_outcome(attempt, script->status, hapax_str(script->headers),
                               hapax_str(script->body)) == HAPAX_ERR_NONE);
    atomic_fetch_sub(&script->at_once, 1);
    return script->cls;
}

/* ---- callers ------------------------------------------------------------------------- */

static inline struct hapax_request request_of(const char *key)
{
    struct hapax_request request;

    memset(&request, 0, sizeof(request));
    request.key = hapax_str(key);
    return request;
}

static inline struct hapax_answer execute(struct bed *bed, const char *key, struct script *script)
{
    struct hapax_request request = request_of(key);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    must(hapax_execute(bed->h, &bed->policy, &request, play, NULL, script, &answer, text) ==
         HAPAX_ERR_NONE);
    return answer;
}

static inline bool body_is(const struct hapax_answer *answer, const char *body)
{
    size_t len = strlen(body);

    return answer->outcome.body.len == len &&
           (len == 0 || memcmp(answer->outcome.body.ptr, body, len) == 0);
}

/* Executes and sees what comes. */
static inline void expect(struct bed *bed, const char *key, struct script *script,
                          enum hapax_answer_kind kind, const char *body)
{
    struct hapax_answer answer = execute(bed, key, script);

    assert_string_equal(hapax_answer_name(answer.kind), hapax_answer_name(kind));
    assert_true(body_is(&answer, body));
    hapax_answer_release(&answer);
}

struct caller { /* one that executes in a thread of its own */
    struct bed *bed;
    struct hapax_policy policy;
    const char *key;
    struct script *script;
    struct hapax_answer answer;
    pthread_t thread;
};

static inline void *caller_main(void *arg)
{
    struct caller *caller = arg;
    struct hapax_request request = request_of(caller->key);
    char text[HAPAX_TEXT_MAX];

    must(hapax_execute(caller->bed->h, &caller->policy, &request, play, NULL, caller->script,
                       &caller->answer, text) == HAPAX_ERR_NONE);
    return NULL;
}

static inline void caller_start(struct caller *caller, struct bed *bed, const char *key,
                                struct script *script)
{
    caller->bed = bed;
    caller->policy = bed->policy;
    caller->key = key;
    caller->script = script;
    assert_int_equal(pthread_create(&caller->thread, NULL, caller_main, caller), 0);
}

static inline void caller_join(struct caller *caller)
{
    assert_int_equal(pthread_join(caller->thread, NULL), 0);
}

#endif
