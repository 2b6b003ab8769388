/* SPDX-License-Identifier: Apache-2.0
 *
 * See log.h. Rejected: a thread that syncs. The caller that waits has nothing else to do, and so an
 * op alone costs no change of threads.
 */
#include "log.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool hapax__log_init(struct hapax__log *log,
                     bool (*sync)(void *arg, uint64_t mark, char why[HAPAX_TEXT_MAX]), void *arg)
{
    memset(log, 0, sizeof(*log));
    log->sync = sync;
    log->arg = arg;
    if (pthread_mutex_init(&log->mutex, NULL) != 0)
        return false;
    if (pthread_cond_init(&log->change, NULL) == 0)
        return true;
    pthread_mutex_destroy(&log->mutex);
    return false;
}

void hapax__log_release(struct hapax__log *log)
{
    assert(!log->syncing);
    pthread_cond_destroy(&log->change);
    pthread_mutex_destroy(&log->mutex);
}

void hapax__log_write(struct hapax__log *log)
{
    pthread_mutex_lock(&log->mutex);
    assert(!log->writing);
    while (log->wanted)
        pthread_cond_wait(&log->change, &log->mutex);
    log->writing = true;
    pthread_mutex_unlock(&log->mutex);
}

uint64_t hapax__log_wrote(struct hapax__log *log, uint64_t mark, bool durable)
{
    uint64_t number;

    pthread_mutex_lock(&log->mutex);
    log->writing = false;
    if (log->wanted)
        pthread_cond_broadcast(&log->change);
    number = ++log->written;
    log->mark = mark;
    if (durable)
        log->synced = number;
    pthread_mutex_unlock(&log->mutex);
    return number;
}

uint64_t hapax__log_unsynced(struct hapax__log *log, uint64_t number)
{
    bool synced;

    pthread_mutex_lock(&log->mutex);
    synced = number <= log->synced;
    pthread_mutex_unlock(&log->mutex);
    return synced ? 0 : number;
}

uint64_t hapax__log_last(struct hapax__log *log)
{
    uint64_t number;

    pthread_mutex_lock(&log->mutex);
    number = log->written;
    pthread_mutex_unlock(&log->mutex);
    return number;
}

/* Under the mutex, which is free during the sync. */
static void sync_log(struct hapax__log *log)
{
    uint64_t to = log->written, mark = log->mark;
    char why[HAPAX_TEXT_MAX] = "";
    bool synced;

    log->syncing = true;
    if (log->wanted) {
        log->wanted = false;
        pthread_cond_broadcast(&log->change);
    }
    pthread_mutex_unlock(&log->mutex);
    synced = log->sync(log->arg, mark, why);
    pthread_mutex_lock(&log->mutex);
    log->syncing = false;
    if (!log->failed && synced)
        log->synced = to;
    if (!log->failed && !synced) {
        log->failed = true;
        log->lost = log->written;
        snprintf(log->why, sizeof(log->why), "%s", why);
    }
    pthread_cond_broadcast(&log->change);
}

/* A number up to `lost` may have been synced before the loss: to doubt it costs a repeat. */
enum hapax_error hapax__log_wait(struct hapax__log *log, uint64_t number, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;

    if (number == 0)
        return error;
    pthread_mutex_lock(&log->mutex);
    assert(number <= log->written);
    while (number > log->lost && number > log->synced && !log->failed) {
        if (!log->syncing && !log->writing) {
            sync_log(log);
            continue;
        }
        if (!log->syncing)
            log->wanted = true;
        pthread_cond_wait(&log->change, &log->mutex);
    }
    if (number <= log->lost || number > log->synced) {
        error = HAPAX_ERR_INDETERMINATE;
        snprintf(text, HAPAX_TEXT_MAX, "cannot write: %.200s", log->why);
    }
    pthread_mutex_unlock(&log->mutex);
    return error;
}

void hapax__log_fail(struct hapax__log *log, const char *why)
{
    pthread_mutex_lock(&log->mutex);
    while (log->syncing)
        pthread_cond_wait(&log->change, &log->mutex);
    log->writing = log->wanted = false;
    if (!log->failed)
        snprintf(log->why, sizeof(log->why), "%s", why);
    log->failed = true;
    log->lost = log->written;
    pthread_cond_broadcast(&log->change);
    pthread_mutex_unlock(&log->mutex);
}

bool hapax__log_failed(struct hapax__log *log, char why[HAPAX_TEXT_MAX])
{
    bool failed;

    pthread_mutex_lock(&log->mutex);
    failed = log->failed;
    if (failed)
        snprintf(why, HAPAX_TEXT_MAX, "%s", log->why);
    pthread_mutex_unlock(&log->mutex);
    return failed;
}

void hapax__log_begin_again(struct hapax__log *log)
{
    pthread_mutex_lock(&log->mutex);
    assert(!log->syncing);
    log->failed = false;
    log->lost = log->synced = log->written;
    pthread_mutex_unlock(&log->mutex);
}
