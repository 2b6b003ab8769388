/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of owners (hapax_limit): what the gate keeps in shared memory about each of them. What the
 * limits are, and when one is reached, is the core's (core/limit.h, core/owners.h).
 *
 * Each worker writes its process id into the slot that it has, and its operations in flight name
 * that slot. The operations of a worker that died end when the next process takes the slot, or when
 * somebody meets the limit of what is in flight and finds that the process is gone.
 *
 * nginx takes the mutex away from a worker that died with it. Then the table may be half changed,
 * so it is laid out anew: all counts begin at zero. Operations of before have another generation,
 * and end nothing.
 */

#include "ngx_http_hapax.h"


#define NGX_HTTP_HAPAX_LOOK_SEC  1      /* how often somebody looks for dead workers */


/* in shared memory; what follows it is the table's */
typedef struct {
    struct hapax__owners         *owners;
    size_t                        size;         /* of the table */
    ngx_atomic_t                  changing;     /* a worker is in it */
    ngx_uint_t                    generation;
    time_t                        looked;       /* for dead workers */
    ngx_uint_t                    refused;
    ngx_http_hapax_refusal_t      refusals[NGX_HTTP_HAPAX_REFUSALS];
    ngx_pid_t                     workers[NGX_HTTP_HAPAX_SLOTS];
} ngx_http_hapax_table_t;


static ngx_http_hapax_table_t  *ngx_http_hapax_table;
static ngx_shmtx_t             *ngx_http_hapax_mutex;


/* Lays an empty table out in the memory behind the head. */

static ngx_int_t
ngx_http_hapax_table_init(ngx_http_hapax_table_t *table)
{
    table->generation++;
    table->owners = hapax__owners_init(table + 1, table->size);

    return table->owners ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_hapax_limit_zone_init(ngx_shm_zone_t *zone, void *data)
{
    size_t                   size;
    ngx_slab_pool_t         *pool;
    ngx_http_hapax_table_t  *table;

    if (ngx_http_hapax_zone_kept(zone, data)) {
        return NGX_OK;
    }

    pool = (ngx_slab_pool_t *) zone->shm.addr;

    size = pool->pfree * ngx_pagesize;

    table = ngx_slab_alloc(pool, size);
    if (table == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(table, sizeof(ngx_http_hapax_table_t));
    table->size = size - sizeof(ngx_http_hapax_table_t);

    zone->data = table;
    pool->data = table;

    return ngx_http_hapax_table_init(table);
}


static ngx_http_hapax_table_t *
ngx_http_hapax_table_lock(void)
{
    ngx_shmtx_lock(ngx_http_hapax_mutex);

    if (ngx_http_hapax_table->changing) {
        (void) ngx_http_hapax_table_init(ngx_http_hapax_table);
    }

    ngx_http_hapax_table->changing = 1;
    ngx_memory_barrier();

    return ngx_http_hapax_table;
}


static void
ngx_http_hapax_table_unlock(void)
{
    ngx_memory_barrier();
    ngx_http_hapax_table->changing = 0;

    ngx_shmtx_unlock(ngx_http_hapax_mutex);
}


void
ngx_http_hapax_limit_worker_init(ngx_shm_zone_t *zone)
{
    ngx_pid_t               *worker;
    ngx_uint_t               slot;
    ngx_http_hapax_table_t  *table;

    ngx_http_hapax_table = zone->data;
    ngx_http_hapax_mutex = &((ngx_slab_pool_t *) zone->shm.addr)->mutex;

    slot = ngx_process_slot % NGX_HTTP_HAPAX_SLOTS;

    table = ngx_http_hapax_table_lock();
    worker = &table->workers[slot];

    if (*worker) {
        hapax__owners_end_all(table->owners, slot);
    }

    *worker = ngx_pid;

    ngx_http_hapax_table_unlock();
}


void
ngx_http_hapax_limit_worker_exit(void)
{
    ngx_http_hapax_table_t  *table;

    if (ngx_http_hapax_table == NULL) {
        return;
    }

    table = ngx_http_hapax_table_lock();
    table->workers[ngx_process_slot % NGX_HTTP_HAPAX_SLOTS] = 0;
    ngx_http_hapax_table_unlock();
}


/* Ends the operations of workers that died. 0: it did not look, since it has just done so. */

static ngx_int_t
ngx_http_hapax_limit_bury(ngx_http_hapax_table_t *table)
{
    ngx_uint_t  i;

    if (ngx_time() - table->looked < NGX_HTTP_HAPAX_LOOK_SEC) {
        return 0;
    }

    table->looked = ngx_time();

    for (i = 0; i < NGX_HTTP_HAPAX_SLOTS; i++) {
        if (table->workers[i] && kill(table->workers[i], 0) == -1
            && ngx_errno == NGX_ESRCH)
        {
            hapax__owners_end_all(table->owners, i);
            table->workers[i] = 0;
        }
    }

    return 1;
}


static struct hapax__over
ngx_http_hapax_limit_judge(ngx_http_hapax_table_t *table,
    struct hapax__usage *usage, const struct hapax__limits *limits,
    bool is_new, int64_t now_us)
{
    struct hapax__over  over;

    over = hapax__usage_judge(usage, limits, is_new, now_us);

    if (over.limit == HAPAX__LIMIT_IN_FLIGHT
        && ngx_http_hapax_limit_bury(table))
    {
        over = hapax__usage_judge(usage, limits, is_new, now_us);
    }

    return over;
}


/*
 * Whose limits they are where there is no owner: the scope's.  A location has
 * mostly one scope, and its digest costs more than all else about limits.
 */

static struct hapax_digest
ngx_http_hapax_limit_scope(ngx_http_hapax_loc_conf_t *conf,
    struct hapax_span scope)
{
    struct hapax_span              parts[2];
    ngx_http_hapax_limit_scope_t  *last;

    last = &conf->limit_scope;

    if (last->len != scope.len
        || ngx_memcmp(last->scope, scope.ptr, scope.len) != 0)
    {
        /* two parts, which no owner's digest is made of */
        parts[0] = hapax_str("scope");
        parts[1] = scope;
        hapax_digest(&last->digest, parts, 2);

        last->len = scope.len;
        ngx_memcpy(last->scope, scope.ptr, scope.len);
    }

    return last->digest;
}


void
ngx_http_hapax_limit_look(ngx_http_hapax_call_t *call,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request)
{
    struct hapax__usage     *usage;
    ngx_http_hapax_table_t  *table;

    if (conf->limits == NULL) {
        return;
    }

    call->limits = conf->limits;
    call->owner = conf->owner ? request->owner
                              : ngx_http_hapax_limit_scope(conf,
                                                           request->scope);

    table = ngx_http_hapax_table_lock();
    usage = hapax__owners_find(table->owners, &call->owner);

    if (usage) {
        request->over = ngx_http_hapax_limit_judge(table, usage, call->limits,
                                                   true, hapax__boot_us());
    }

    ngx_http_hapax_table_unlock();
}


ngx_int_t
ngx_http_hapax_limit_begin(ngx_http_hapax_call_t *call,
    struct hapax__over *over)
{
    bool                     is_new;
    int64_t                  now_us;
    struct hapax__usage     *usage;
    ngx_http_hapax_table_t  *table;

    if (call->limits == NULL || call->run) {
        return NGX_OK;
    }

    now_us = hapax__boot_us();
    is_new = hapax__flow_is_new(&call->flow);

    ngx_memzero(over, sizeof(struct hapax__over));

    table = ngx_http_hapax_table_lock();
    usage = hapax__owners_get(table->owners, call->limits, &call->owner,
                              now_us);

    if (usage) {
        *over = ngx_http_hapax_limit_judge(table, usage, call->limits, is_new,
                                           now_us);
    }

    if (usage && over->limit == HAPAX__LIMIT_NONE) {
        call->run = hapax__owners_begin(table->owners, usage, call->limits,
                                        is_new,
                                        ngx_process_slot % NGX_HTTP_HAPAX_SLOTS,
                                        now_us);
        call->generation = table->generation;
    }

    ngx_http_hapax_table_unlock();

    if (call->run) {
        return NGX_OK;
    }

    if (over->limit == HAPAX__LIMIT_NONE) {
        /* the table is full of what is in flight */
        over->limit = HAPAX__LIMIT_IN_FLIGHT;
        over->retry_after_ms = 1000;
    }

    return NGX_DECLINED;
}


/* Locks the table. NULL: it has no operation of this call, and is not locked. */

static ngx_http_hapax_table_t *
ngx_http_hapax_table_of(ngx_http_hapax_call_t *call)
{
    ngx_http_hapax_table_t  *table;

    if (call->run == NULL) {
        return NULL;
    }

    table = ngx_http_hapax_table_lock();

    if (call->generation == table->generation) {
        return table;
    }

    ngx_http_hapax_table_unlock();

    return NULL;
}


void
ngx_http_hapax_limit_stored(ngx_http_hapax_call_t *call)
{
    if (ngx_http_hapax_table_of(call)) {
        hapax__usage_stored(hapax__owners_usage(call->run), call->limits,
                            &call->flow.op, hapax__boot_us());
        ngx_http_hapax_table_unlock();
    }
}


void
ngx_http_hapax_limit_end(ngx_http_hapax_call_t *call)
{
    ngx_http_hapax_table_t  *table;

    table = ngx_http_hapax_table_of(call);

    if (table) {
        hapax__owners_end(table->owners, call->run);
        ngx_http_hapax_table_unlock();
    }

    call->run = NULL;
}


void
ngx_http_hapax_limit_refused(ngx_http_hapax_call_t *call)
{
    ngx_uint_t                 i;
    ngx_http_hapax_table_t    *table;
    ngx_http_hapax_refusal_t  *refusal, *oldest;

    table = ngx_http_hapax_table_lock();
    oldest = refusal = &table->refusals[0];

    for (i = 0; i < NGX_HTTP_HAPAX_REFUSALS; i++) {
        refusal = &table->refusals[i];

        if (refusal->times && refusal->limit == call->flow.limited
            && ngx_memcmp(&refusal->owner, &call->owner,
                          sizeof(struct hapax_digest))
               == 0)
        {
            break;
        }

        if (refusal->number < oldest->number) {
            oldest = refusal;
        }
    }

    if (i == NGX_HTTP_HAPAX_REFUSALS) {
        refusal = oldest;
        refusal->owner = call->owner;
        refusal->limit = call->flow.limited;
        refusal->times = 0;
    }

    refusal->times++;
    refusal->number = ++table->refused;
    refusal->last = ngx_time();

    ngx_http_hapax_table_unlock();
}


void
ngx_http_hapax_limit_refusals(
    ngx_http_hapax_refusal_t out[NGX_HTTP_HAPAX_REFUSALS])
{
    ngx_http_hapax_table_t  *table;

    ngx_memzero(out, NGX_HTTP_HAPAX_REFUSALS
                     * sizeof(ngx_http_hapax_refusal_t));

    if (ngx_http_hapax_table == NULL) {
        return;
    }

    table = ngx_http_hapax_table_lock();
    ngx_memcpy(out, table->refusals, sizeof(table->refusals));
    ngx_http_hapax_table_unlock();
}


void
ngx_http_hapax_limit_counts(uint64_t *known, uint64_t *forgotten)
{
    *known = 0;
    *forgotten = 0;

    if (ngx_http_hapax_table) {
        *known = hapax__owners_known(ngx_http_hapax_table->owners);
        *forgotten = hapax__owners_forgotten(ngx_http_hapax_table->owners);
    }
}
