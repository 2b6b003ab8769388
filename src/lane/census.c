/* SPDX-License-Identifier: Apache-2.0
 *
 * A census fails as a whole: what a store that went away half-way has answered is not shown.
 *
 * Rejected: a count for each scrape. Whoever scrapes would set what the store has to do. Rejected:
 * counters that the stores keep with each write. Each claim and each completion would pay for them.
 */
#include "census.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/time.h"
#include "http/prometheus.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_MIN_US (1 * US_PER_S)
#define RETRY_MAX_US (10 * US_PER_S) /* after a census that failed */
#define PAUSE_TIMES  100 /* as long as the census was */
/* Of a certificate that ends within this time it is looked whether the server has a new one. */
#define CERT_SOON_US (INT64_C(14) * 24 * 3600 * US_PER_S)
#define CERT_LOOK_US (10 * US_PER_S) /* between two looks */

struct hapax__census {
    struct hapax_store *store; /* the thread's; NULL: to be opened */
    const char *uri;
    int64_t opened_us; /* by the boot clock */
    pthread_t thread;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool closing;
    bool unfit; /* the store cannot be counted */
    struct hapax__census_found found;
};

bool hapax__census_fits(const struct hapax_store *store)
{
    return !store->type->forgets && !store->type->unlisted;
}

static enum hapax__census_state state_of(const struct hapax_record *record, int64_t now_us)
{
    switch (record->state) {
    case HAPAX_STATE_UNKNOWN:
        return HAPAX__CENSUS_UNKNOWN;
    case HAPAX_STATE_FAILED:
        return HAPAX__CENSUS_FAILED;
    default:
        return record->lease_until_us > now_us ? HAPAX__CENSUS_STARTED : HAPAX__CENSUS_OVER;
    }
}

/* Adds the operations of one state. False: the store did not answer. */
static bool add_state(struct hapax__census_found *found, struct hapax_store *store,
                      enum hapax_state state)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .states = 1u << state};
    unsigned lists = 0, seen = 0;

    do {
        if (hapax_store_run(store, &op, 1) != HAPAX_ERR_NONE)
            return false;
        for (uint32_t i = 0; i < op.count; i++) {
            const struct hapax_record *record = &op.records[i];
            enum hapax__census_state as = state_of(record, op.now_us);
            int64_t age_us = op.now_us - record->created_us;

            found->n[as]++;
            if (age_us > found->oldest_us[as])
                found->oldest_us[as] = age_us;
        }
        seen += op.count;
        op.cursor = op.next_cursor;
        lists++;
    } while (op.more && seen < HAPAX__CENSUS_MAX && lists < HAPAX__CENSUS_MAX / HAPAX_LIST_MAX);
    found->whole &= !op.more;
    return true;
}

/* False: the store cannot be opened. */
static bool have_store(struct hapax__census *census)
{
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];

    if (census->store)
        return true;
    if (hapax_store_open(&store, census->uri, text) != HAPAX_ERR_NONE)
        return false;
    census->store = store;
    census->opened_us = hapax__boot_us();
    return true;
}

/* A connection shows the certificate that its server had when it began. */
static void look_again(struct hapax__census *census, const struct hapax_vitals *vitals)
{
    int64_t end_us = vitals->server_cert_us;

    if (!census->store || !census->uri || end_us == HAPAX_NOT_KNOWN ||
        end_us - hapax__wall_us() > CERT_SOON_US ||
        hapax__boot_us() - census->opened_us < CERT_LOOK_US)
        return;
    hapax_store_close(census->store);
    census->store = NULL;
}

/* What a certificate said holds on while there is no connection: the server is away, or was refused
 * since its certificate is over, which no other figure tells. */
static enum hapax_error measure(struct hapax__census *census, struct hapax_vitals *vitals)
{
    const struct hapax_vitals *before = &census->found.vitals; /* which this thread alone writes */
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;

    *vitals = (struct hapax_vitals)HAPAX_VITALS_INIT;
    if (have_store(census))
        error = hapax_store_measure(census->store, vitals);
    if (vitals->server_cert_us == HAPAX_NOT_KNOWN)
        vitals->server_cert_us = before->server_cert_us;
    if (vitals->client_cert_us == HAPAX_NOT_KNOWN)
        vitals->client_cert_us = before->client_cert_us;
    return error;
}

static struct hapax__census_found count(struct hapax__census *census)
{
    static const enum hapax_state states[] = {HAPAX_STATE_UNKNOWN, HAPAX_STATE_STARTED,
                                              HAPAX_STATE_FAILED};
    struct hapax__census_found found = {.whole = true};
    int64_t since_us = hapax__boot_us();
    enum hapax_error error = measure(census, &found.vitals);
    bool fits = census->store && hapax__census_fits(census->store);

    found.up = fits ? error != HAPAX_ERR_UNAVAILABLE : error == HAPAX_ERR_NONE;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]) && fits && found.up; i++)
        found.up = add_state(&found, census->store, states[i]);
    found.us = hapax__boot_us() - since_us + 1;
    return found;
}

int64_t hapax__census_pause_us(const struct hapax__census_found *found)
{
    int64_t pause_us = hapax__most(found->us * PAUSE_TIMES, PAUSE_MIN_US);

    return found->up ? pause_us : hapax__least(pause_us, RETRY_MAX_US);
}

/* Under the lock: waits until it is time again, or to close. */
static void pause_after(struct hapax__census *census, const struct hapax__census_found *found)
{
    struct timespec until = hapax__timespec(hapax__monotonic_us() + hapax__census_pause_us(found));

    while (!census->closing &&
           pthread_cond_timedwait(&census->wake, &census->lock, &until) != ETIMEDOUT)
        ;
}

static void *census_main(void *arg)
{
    struct hapax__census *census = arg;

    pthread_setname_np(pthread_self(), "hapax-census");
    pthread_mutex_lock(&census->lock);
    while (!census->closing) {
        struct hapax__census_found found;
        bool unfit;

        pthread_mutex_unlock(&census->lock);
        found = count(census);
        unfit = census->store && !hapax__census_fits(census->store);
        look_again(census, &found.vitals);
        pthread_mutex_lock(&census->lock);
        if (found.up)
            census->found = found;
        census->found.up = found.up;
        census->found.vitals = found.vitals;
        census->unfit |= unfit;
        pause_after(census, &found);
    }
    pthread_mutex_unlock(&census->lock);
    return NULL;
}

static void census_free(struct hapax__census *census)
{
    pthread_cond_destroy(&census->wake);
    pthread_mutex_destroy(&census->lock);
    free(census);
}

enum hapax_error hapax__census_open(struct hapax__census **out, struct hapax_store *store,
                                    const char *uri)
{
    struct hapax__census *census = calloc(1, sizeof(*census));

    *out = NULL;
    if (!census)
        return HAPAX_ERR_NOMEM;
    census->store = store;
    census->uri = uri;
    census->opened_us = hapax__boot_us();
    census->unfit = store && !hapax__census_fits(store);
    census->found.vitals = (struct hapax_vitals)HAPAX_VITALS_INIT;
    pthread_mutex_init(&census->lock, NULL);
    hapax__cond_init(&census->wake);
    if (!hapax__thread_start(&census->thread, census_main, census)) {
        census_free(census);
        return HAPAX_ERR_NOMEM;
    }
    *out = census;
    return HAPAX_ERR_NONE;
}

void hapax__census_page(FILE *out, struct hapax__census *census)
{
    struct hapax__census_found found;
    bool unfit;

    if (!census)
        return;
    pthread_mutex_lock(&census->lock);
    found = census->found;
    unfit = census->unfit;
    pthread_mutex_unlock(&census->lock);
    if (!unfit)
        hapax__page_census(out, &found);
    hapax__page_vitals(out, &found.vitals);
}

void hapax__census_close(struct hapax__census *census)
{
    if (!census)
        return;
    pthread_mutex_lock(&census->lock);
    census->closing = true;
    pthread_cond_broadcast(&census->wake);
    pthread_mutex_unlock(&census->lock);
    pthread_join(census->thread, NULL);
    hapax_store_close(census->store);
    census_free(census);
}
