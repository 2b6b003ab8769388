/* SPDX-License-Identifier: Apache-2.0
 *
 * `check` on Redis: what each primary answers about its memory, its log, its replicas and its
 * clock, and each sentinel about its patience. The advice says what can be lost and what to set,
 * and whether Redis takes a write at all.
 *
 * The invariant: what Redis does not let us read (a managed Redis has no CONFIG, an ACL may deny
 * INFO) is reported as unread, and is neither a danger nor a failure. The check fails only where a
 * node cannot be reached, or refuses what every op needs. So most is read from INFO, which nearly
 * every Redis allows, and from CONFIG only what INFO does not have. Rejected: ACL DRYRUN for what
 * ops need. Few users may call it, and it knows nothing of -OOM, -READONLY and -MISCONF; a write
 * that is undone in the same step shows all of them.
 */
#include "redis.h"

#include "base/clock.h"
#include "base/span.h"
#include "base/time.h"

#include <openssl/evp.h>

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_SIZE    512u
#define VALUE_SIZE       128u
#define CLUSTER_PROBES   16u /* keys, spread over the slots */
#define SLOTS            16384
#define VERSION_MIN      7
#define SKEW_MAX_US      INT64_C(1000000)
#define REPLICA_LAG_S    10
#define REPLICA_LAG_SIZE (INT64_C(16) << 20)
#define REPLICAS_MAX     64
#define DOWN_AFTER_MS    2000

extern const char hapax__redis_check_lua[]; /* lua/check.lua */

struct checking {
    struct hapax__redis *redis;
    hapax_say *say;
    void *arg;
    size_t node;
    char name[HAPAX__REDIS_NAME_MAX + 9]; /* of the node; "": a line of no single node */
    const char *info; /* of the node; "": Redis does not let us read it */
    int64_t online; /* its replicas */
    bool any_replicas; /* some node has one */
    bool clock_known; /* of some node */
    int64_t least_us; /* This host's clock is ahead of some node's by least_us at most, */
    int64_t most_us; /* and of some node's by most_us at least. */
};

__attribute__((format(printf, 3, 4))) static void tell(struct checking *c, bool danger,
                                                       const char *format, ...)
{
    char line[LINE_MAX_SIZE];
    size_t len = 0;
    va_list args;

    if (c->name[0])
        len = (size_t)snprintf(line, sizeof(line), "%s: ", c->name);
    assert(len < sizeof(line));
    va_start(args, format);
    (void)vsnprintf(line + len, sizeof(line) - len, format, args);
    va_end(args);
    c->say(c->arg, danger, line);
}

/* ---- asking -------------------------------------------------------------------------- */

/* Runs one plain command, whose words are separated by single spaces. A NULL reply: text says
 * why. Of the errors only those come back that mean the node is gone. */
static enum hapax_error ask(struct checking *c, const char *command, struct hapax__resp **reply,
                            char text[HAPAX_TEXT_MAX])
{
    struct hapax_span words[4];
    struct hapax__redis_call call = {.args = words, .node = c->node};
    enum hapax_error error;

    for (const char *at = command; *at;) {
        size_t len = strcspn(at, " ");

        assert(call.argc < sizeof(words) / sizeof(words[0]));
        words[call.argc++] = (struct hapax_span){(const uint8_t *)at, len};
        at += len + (at[len] == ' ' ? 1 : 0);
    }
    *reply = NULL;
    text[0] = '\0';
    error = hapax__redis_route_run(c->redis->route, &call, 1, false, text);
    if (error == HAPAX_ERR_REFUSED)
        return HAPAX_ERR_NONE;
    if (error != HAPAX_ERR_NONE)
        return error;
    if (call.reply->type == HAPAX__RESP_ERROR)
        (void)snprintf(text, HAPAX_TEXT_MAX, "%.200s", call.reply->str);
    else
        *reply = call.reply;
    return HAPAX_ERR_NONE;
}

/* Reads one setting by CONFIG GET. False: we may not read it, or this server has no such
 * setting. */
static bool config(struct checking *c, const char *name, char out[VALUE_SIZE],
                   enum hapax_error *error, char text[HAPAX_TEXT_MAX])
{
    char command[64];
    struct hapax__resp *reply;

    (void)snprintf(command, sizeof(command), "CONFIG GET %s", name);
    *error = ask(c, command, &reply, text);
    if (*error != HAPAX_ERR_NONE || !reply)
        return false;
    if (reply->type != HAPAX__RESP_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != HAPAX__RESP_STRING)
        return false;
    (void)snprintf(out, VALUE_SIZE, "%s", reply->element[1]->str);
    return true;
}

/* The value of a line `field:value` of INFO. */
static bool info(const char *text, const char *field, char *out, size_t size)
{
    size_t field_len = strlen(field);

    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n' ? 1 : 0;
        if (strncmp(line, field, field_len) == 0 && line[field_len] == ':') {
            const char *value = line + field_len + 1;
            size_t len = strcspn(value, "\r\n");

            if (len >= size)
                len = size - 1;
            memcpy(out, value, len);
            out[len] = '\0';
            return true;
        }
    }
    return false;
}

static bool info_number(const char *text, const char *field, int64_t *out)
{
    char value[VALUE_SIZE];
    char *end;

    if (!info(text, field, value, sizeof(value)))
        return false;
    *out = strtoll(value, &end, 10);
    return end != value;
}

/* ---- version, memory ----------------------------------------------------------------- */

static void check_version(struct checking *c)
{
    char version[VALUE_SIZE], valkey[VALUE_SIZE];

    if (!info(c->info, "redis_version", version, sizeof(version)))
        return;
    if (info(c->info, "valkey_version", valkey, sizeof(valkey)))
        tell(c, false, "valkey %s, which says to be like redis %s; one node of 8.1.1 was tried",
             valkey, version);
    else if (strtol(version, NULL, 10) < VERSION_MIN)
        tell(c, true, "redis %s is older than what this is tested with; use %d.0 or later", version,
             VERSION_MIN);
    else
        tell(c, false, "redis %s", version);
}

static void check_memory(struct checking *c)
{
    char policy[VALUE_SIZE];
    int64_t limit;
    bool drops;

    if (!info_number(c->info, "maxmemory", &limit) ||
        !info(c->info, "maxmemory_policy", policy, sizeof(policy)))
        return;
    drops = strcmp(policy, "noeviction") != 0;
    if (limit > 0 && drops)
        tell(c, true,
             "maxmemory-policy %s: when its memory is full it drops records, and their operations "
             "run again; set maxmemory-policy noeviction",
             policy);
    else if (limit > 0)
        tell(c, false,
             "maxmemory %" PRId64 " MiB, noeviction: when it is full new operations are refused "
             "and no record is dropped",
             limit >> 20);
    else
        tell(c, false, "no maxmemory, so nothing is dropped%s%s%s", drops ? "; " : "",
             drops ? "before you set one, set maxmemory-policy noeviction in place of " : "",
             drops ? policy : "");
}

/* ---- what a restart keeps ------------------------------------------------------------ */

static enum hapax_error check_snapshots(struct checking *c)
{
    char text[HAPAX_TEXT_MAX], save[VALUE_SIZE];
    enum hapax_error error;
    bool known = config(c, "save", save, &error, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (known && save[0] == '\0')
        tell(c, true,
             "no append-only file and no snapshots: a restart forgets everything, and operations "
             "run again; set appendonly yes and appendfsync always");
    else
        tell(c, true,
             "no append-only file: a restart forgets what was written since the last snapshot%s%s%s"
             ", and those operations run again; set appendonly yes and appendfsync always",
             known ? " (save " : "", known ? save : "", known ? ")" : "");
    return HAPAX_ERR_NONE;
}

static void tell_fsync(struct checking *c, const char *fsync)
{
    if (strcmp(fsync, "always") == 0)
        tell(c, false, "appendonly yes, appendfsync always: what is answered is on disk");
    else if (strcmp(fsync, "everysec") == 0)
        tell(c, true,
             "appendfsync everysec: a crash of the machine or a power cut loses the last second or "
             "two, and those operations run again; set appendfsync always");
    else
        tell(
            c, true,
            "appendfsync %s: a crash of the machine or a power cut loses what was not written yet, "
            "half a minute and more, and those operations run again; set appendfsync always",
            fsync);
}

static enum hapax_error check_log(struct checking *c)
{
    char text[HAPAX_TEXT_MAX], value[VALUE_SIZE];
    enum hapax_error error;

    if (config(c, "appendfsync", value, &error, text))
        tell_fsync(c, value);
    else if (error == HAPAX_ERR_NONE)
        tell(
            c, false,
            "appendonly yes, but cannot look at appendfsync (%s); unless it is \"always\", a crash "
            "of the machine loses the last moments",
            text[0] ? text : "there is none");
    if (error != HAPAX_ERR_NONE)
        return error;
    if (config(c, "no-appendfsync-on-rewrite", value, &error, text) && strcmp(value, "yes") == 0)
        tell(c, true,
             "no-appendfsync-on-rewrite yes: while its file is rewritten, a crash of the machine "
             "loses all since then; set it to no");
    if (info(c->info, "aof_last_write_status", value, sizeof(value)) && strcmp(value, "ok") != 0)
        tell(c, true, "its append-only file cannot be written; its log says why");
    return error;
}

static enum hapax_error check_persistence(struct checking *c)
{
    int64_t log;

    if (!info_number(c->info, "aof_enabled", &log))
        return HAPAX_ERR_NONE;
    return log ? check_log(c) : check_snapshots(c);
}

/* ---- replicas ------------------------------------------------------------------------ */

/* The value of `field=` in a line of a replica: ip=…,port=…,state=…,offset=…,lag=… */
static void part(const char *line, const char *field, char *out, size_t size)
{
    size_t len = strlen(field);

    out[0] = '\0';
    for (const char *at = line; at; at = strchr(at, ',')) {
        at += *at == ',' ? 1 : 0;
        if (strncmp(at, field, len) == 0 && at[len] == '=') {
            (void)snprintf(out, size, "%.*s", (int)strcspn(at + len + 1, ","), at + len + 1);
            return;
        }
    }
}

static void check_replica(struct checking *c, const char *line, int64_t primary_offset)
{
    char ip[VALUE_SIZE], port[16], state[32], offset[32], lag[32];
    int64_t behind, lag_s;
    bool online;

    part(line, "ip", ip, sizeof(ip));
    part(line, "port", port, sizeof(port));
    part(line, "state", state, sizeof(state));
    part(line, "offset", offset, sizeof(offset));
    part(line, "lag", lag, sizeof(lag));
    behind = primary_offset - strtoll(offset, NULL, 10);
    lag_s = strtoll(lag, NULL, 10);
    online = strcmp(state, "online") == 0;
    c->online += online ? 1 : 0;
    if (!online)
        tell(c, false, "replica %.64s:%s is not online yet (%s)", ip, port, state);
    else if (behind > REPLICA_LAG_SIZE || lag_s > REPLICA_LAG_S)
        tell(c, true,
             "replica %.64s:%s is behind, by %" PRId64 " bytes, and last heard of %" PRId64
             " s ago: if it takes over, what it lacks is lost",
             ip, port, behind, lag_s);
    else
        tell(c, false,
             "replica %.64s:%s is behind by %" PRId64 " bytes, heard of %" PRId64 " s ago", ip,
             port, behind > 0 ? behind : 0, lag_s);
}

static void check_wait(struct checking *c)
{
    uint32_t wait = c->redis->uri.wait;

    if (wait > c->online)
        tell(c, true,
             "wait=%" PRIu32 ", but %" PRId64 " of its replicas are online: no operation can be "
             "claimed or completed; add replicas, or set a smaller wait",
             wait, c->online);
    else if (wait > 0 && wait < c->online)
        tell(c, false,
             "wait=%" PRIu32 " of %" PRId64 " replicas: what is acknowledged is lost only if "
             "another takes over, one that does not hold it",
             wait, c->online);
    else if (wait > 0)
        tell(c, false,
             "wait=%" PRIu32 " of %" PRId64 " replicas: what is acknowledged is on each; while one "
             "is away, nothing is",
             wait, c->online);
}

/* A primary of a cluster that is cut off stops by itself. One under sentinels, or under another
 * that fails it over, does not. With `wait`, what such a primary takes does not count. */
static void tell_least_replicas(struct checking *c, const char *least)
{
    const struct hapax__redis_uri *uri = &c->redis->uri;

    if (strcmp(least, "0") != 0)
        tell(c, false,
             "min-replicas-to-write %s: cut off from its replicas it takes writes for "
             "min-replicas-max-lag, and no longer",
             least);
    else if (uri->wait > 0)
        tell(c, false,
             "min-replicas-to-write 0: cut off from its replicas it goes on taking writes; with "
             "wait they count for nothing, and 1 would refuse them at once");
    else if (uri->kind == HAPAX__REDIS_CLUSTER)
        tell(c, false,
             "min-replicas-to-write 0: cut off from the other nodes it takes writes for "
             "cluster-node-timeout, and no longer");
    else
        tell(c, true,
             "min-replicas-to-write 0: cut off from its replicas it goes on taking writes, which "
             "are lost when another has taken over; set it to 1, and min-replicas-max-lag to a few "
             "seconds");
}

static enum hapax_error check_replicas(struct checking *c)
{
    char role[VALUE_SIZE], line[VALUE_SIZE * 2], field[32], text[HAPAX_TEXT_MAX];
    int64_t count = 0, offset = 0;
    enum hapax_error error;

    c->online = 0;
    if (info(c->info, "role", role, sizeof(role)) && strcmp(role, "master") != 0)
        tell(c, true,
             "it is a replica, and takes no writes: name the primary, or use redis+sentinel:// or "
             "redis+cluster://");
    (void)info_number(c->info, "master_repl_offset", &offset);
    if (!info_number(c->info, "connected_slaves", &count))
        return HAPAX_ERR_NONE;
    for (int64_t i = 0; i < count && i < REPLICAS_MAX; i++) {
        (void)snprintf(field, sizeof(field), "slave%" PRId64, i);
        if (info(c->info, field, line, sizeof(line)))
            check_replica(c, line, offset);
    }
    c->any_replicas = c->any_replicas || count > 0;
    if (count == 0 && c->redis->uri.kind != HAPAX__REDIS_NODE)
        tell(c, false, "no replicas: when it is gone, so are its records until it is back");
    check_wait(c);
    if (count > 0 && config(c, "min-replicas-to-write", line, &error, text))
        tell_least_replicas(c, line);
    return HAPAX_ERR_NONE;
}

/* ---- clocks -------------------------------------------------------------------------- */

static void tell_clock(struct checking *c, int64_t ahead_us, int64_t doubt_us)
{
    bool behind = ahead_us < 0;
    int64_t off_us = behind ? -ahead_us : ahead_us;

    if (off_us - doubt_us > SKEW_MAX_US)
        tell(c, true,
             "its clock is %.1f s %s this host's: after a failover to another clock leases end "
             "that much early or late, and an operation may run twice; set the clocks by NTP",
             (double)off_us / 1e6, behind ? "behind" : "ahead of");
    else
        tell(c, false, "its clock is within %.1f ms of this host's",
             (double)(off_us + doubt_us) / 1e3);
}

/* The server read its clock between *begin_us and *end_us of ours. *theirs_us is 0 where we may not
 * look, or see nonsense; text says which. */
static enum hapax_error read_clock(struct checking *c, int64_t *theirs_us, int64_t *begin_us,
                                   int64_t *end_us, char text[HAPAX_TEXT_MAX])
{
    struct hapax__resp *reply;
    enum hapax_error error;

    *theirs_us = 0;
    *begin_us = hapax__wall_us();
    error = ask(c, "TIME", &reply, text);
    *end_us = hapax__wall_us();
    if (error == HAPAX_ERR_NONE && reply && reply->type == HAPAX__RESP_ARRAY &&
        reply->elements == 2 && reply->element[0]->type == HAPAX__RESP_STRING &&
        reply->element[1]->type == HAPAX__RESP_STRING)
        *theirs_us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
                     strtoll(reply->element[1]->str, NULL, 10);
    return error;
}

/* The middle of our two readings is taken, and half the way is the doubt. */
static enum hapax_error check_clock(struct checking *c)
{
    char text[HAPAX_TEXT_MAX];
    int64_t begin_us, end_us, theirs_us, ahead_us, doubt_us;
    enum hapax_error error = read_clock(c, &theirs_us, &begin_us, &end_us, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (theirs_us == 0) {
        tell(c, false, "cannot look at its clock (%s)", text[0] ? text : "TIME gives nonsense");
        return HAPAX_ERR_NONE;
    }
    ahead_us = theirs_us - (begin_us + end_us) / 2;
    doubt_us = (end_us - begin_us) / 2;
    tell_clock(c, ahead_us, doubt_us);
    if (!c->clock_known || ahead_us + doubt_us < c->least_us)
        c->least_us = ahead_us + doubt_us;
    if (!c->clock_known || ahead_us - doubt_us > c->most_us)
        c->most_us = ahead_us - doubt_us;
    c->clock_known = true;
    return HAPAX_ERR_NONE;
}

/* ---- a cluster's own view ------------------------------------------------------------ */

static enum hapax_error check_cluster(struct checking *c)
{
    char text[HAPAX_TEXT_MAX], state[VALUE_SIZE];
    int64_t covered = 0;
    struct hapax__resp *reply;
    enum hapax_error error = ask(c, "CLUSTER INFO", &reply, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (!reply || reply->type != HAPAX__RESP_STRING) {
        tell(c, false, "cannot look at its cluster (%s)", text[0] ? text : "no CLUSTER INFO");
        return HAPAX_ERR_NONE;
    }
    if (info(reply->str, "cluster_state", state, sizeof(state)) && strcmp(state, "ok") != 0)
        tell(c, true, "cluster_state is \"%s\": some or all operations are refused", state);
    if (info_number(reply->str, "cluster_slots_ok", &covered) && covered < SLOTS)
        tell(c, true, "%" PRId64 " of %d slots are served: operations in the others are refused",
             covered, SLOTS);
    return HAPAX_ERR_NONE;
}

/* ---- one node ------------------------------------------------------------------------ */

/* Copies INFO into the handle's memory, since the next call overwrites the reply. */
static enum hapax_error read_info(struct checking *c)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax__resp *reply;
    enum hapax_error error = ask(c, "INFO", &reply, text);
    char *copy;

    c->info = "";
    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(&c->redis->base, error, "%s", text);
    /* With sentinels the name is known only now. */
    (void)snprintf(c->name, sizeof(c->name), "%s",
                   hapax__redis_route_name(c->redis->route, c->node));
    if (!reply || reply->type != HAPAX__RESP_STRING) {
        tell(c, false, "cannot look at its version, memory, log and replicas (%s)",
             text[0] ? text : "INFO gives nonsense");
        return HAPAX_ERR_NONE;
    }
    copy = hapax_store_memory(&c->redis->base, (size_t)reply->len + 1);
    if (!copy)
        return hapax_store_fail(&c->redis->base, HAPAX_ERR_NOMEM, "out of memory for a reply");
    memcpy(copy, reply->str, (size_t)reply->len);
    copy[reply->len] = '\0';
    c->info = copy;
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_node(struct checking *c)
{
    enum hapax_error error = read_info(c);

    if (error != HAPAX_ERR_NONE)
        return error;
    check_version(c);
    check_memory(c);
    error = check_persistence(c);
    if (error == HAPAX_ERR_NONE)
        error = check_replicas(c);
    if (error == HAPAX_ERR_NONE && c->redis->uri.kind == HAPAX__REDIS_CLUSTER)
        error = check_cluster(c);
    if (error == HAPAX_ERR_NONE)
        error = check_clock(c);
    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(&c->redis->base, error, "node \"%s\" was lost while it was asked",
                                c->name);
    return HAPAX_ERR_NONE;
}

/* ---- the whole ----------------------------------------------------------------------- */

static void check_encryption(struct checking *c)
{
    const struct hapax__redis_uri *uri = &c->redis->uri;
    const struct hapax__redis_address *far = hapax__redis_far(uri);

    if (uri->tls && !uri->tls_verify)
        tell(c, true,
             "tls_verify=off: whoever stands between can read and change all; name the "
             "certificates' authority with tls_ca");
    if (far && !uri->tls)
        tell(c, true,
             "not encrypted on the way to \"%.255s\": whoever can listen there reads passwords "
             "and outcomes; use rediss",
             far->host);
}

static void check_login(struct checking *c)
{
    const struct hapax__redis_uri *uri = &c->redis->uri;
    bool near = !hapax__redis_far(uri);

    if (hapax__redis_login(uri))
        return;
    tell(c, !near,
         near ? "no password: each process of this machine can change and forge records"
              : "no password: whoever reaches it can change and forge records; give Hapax a user "
                "of its own (ACL SETUSER), and switch the others off");
}

static void check_deployment(struct checking *c)
{
    const struct hapax__redis_uri *uri = &c->redis->uri;
    int64_t apart_us = c->most_us - c->least_us;

    c->name[0] = '\0';
    check_encryption(c);
    check_login(c);
    if (uri->wait == 0 && (c->any_replicas || uri->kind != HAPAX__REDIS_NODE))
        tell(c, true,
             "no wait: a failover loses what had not reached the replica that takes over, and "
             "those operations run again; add wait=1 to the URI, which makes that rare");
    if (c->clock_known && apart_us > SKEW_MAX_US)
        tell(
            c, true,
            "the clocks of its nodes are %.1f s or more apart: leases end early or late by as much "
            "where a slot or a primary moves; set the clocks by NTP",
            (double)apart_us / 1e6);
}

/* ---- sentinels ----------------------------------------------------------------------- */

static bool down_after(const struct hapax__resp *reply, int64_t *out)
{
    if (reply->type != HAPAX__RESP_ARRAY)
        return false;
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        const struct hapax__resp *name = reply->element[i], *value = reply->element[i + 1];

        if (name->type == HAPAX__RESP_STRING && value->type == HAPAX__RESP_STRING &&
            strcmp(name->str, "down-after-milliseconds") == 0) {
            *out = strtoll(value->str, NULL, 10);
            return *out > 0;
        }
    }
    return false;
}

static void tell_down_after(struct checking *c, int64_t ms)
{
    tell(c, ms < DOWN_AFTER_MS, "down-after-milliseconds %" PRId64 "%s", ms,
         ms < DOWN_AFTER_MS ? ": sentinels as hasty as that make a second primary beside the first "
                              "now and then, and what one of the two took is lost; set 2000 or more"
                            : "");
}

/* A sentinel that is away is a danger only where too few others are left. */
static enum hapax_error check_sentinels(struct checking *c)
{
    const struct hapax__redis_uri *uri = &c->redis->uri;

    for (size_t k = 0; uri->kind == HAPAX__REDIS_SENTINEL && k < uri->host_count; k++) {
        char text[HAPAX_TEXT_MAX] = "";
        const char *name;
        struct hapax__resp *reply;
        int64_t ms;
        enum hapax_error error =
            hapax__redis_route_sentinel(c->redis->route, k, &reply, &name, text);

        if (error == HAPAX_ERR_NOMEM)
            return hapax_store_fail(&c->redis->base, error, "%s", text);
        (void)snprintf(c->name, sizeof(c->name), "%s", name);
        if (error != HAPAX_ERR_NONE)
            tell(c, false, "cannot look at this sentinel (%s)", text);
        else if (down_after(reply, &ms))
            tell_down_after(c, ms);
        else
            tell(c, false, "cannot look at this sentinel (%.200s)",
                 reply->type == HAPAX__RESP_ERROR ? reply->str : "SENTINEL MASTER gives nonsense");
        hapax__resp_free(reply);
    }
    return HAPAX_ERR_NONE;
}

/* ---- a write ------------------------------------------------------------------------- */

static void script_init(struct hapax__redis_script *script)
{
    uint8_t sha[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    int good;

    script->text = hapax__redis_check_lua;
    good = EVP_Digest(script->text, strlen(script->text), sha, &len, EVP_sha1(), NULL);
    assert(good == 1 && len == 20);
    (void)good;
    *hapax__hex(script->sha, sha, len) = '\0';
}

static enum hapax_error check_write(struct checking *c)
{
    struct hapax__redis *redis = c->redis;
    size_t n = redis->uri.kind == HAPAX__REDIS_CLUSTER ? CLUSTER_PROBES : 1;
    struct hapax__redis_call calls[CLUSTER_PROBES] = {{0}};
    char keys[CLUSTER_PROBES][HAPAX__REDIS_PREFIX_MAX + 16], text[HAPAX_TEXT_MAX];
    struct hapax_span args[CLUSTER_PROBES][2];
    struct hapax__redis_script script;
    enum hapax_error error;

    script_init(&script);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(keys[i], sizeof(keys[i]), "%scheck:%zu", redis->uri.prefix, i);
        args[i][0] = hapax_str("1");
        args[i][1] = hapax_str(keys[i]);
        calls[i] = (struct hapax__redis_call){
            .script = &script, .args = args[i], .argc = 2, .key = args[i][1]};
    }
    text[0] = '\0';
    error = hapax__redis_route_run(redis->route, calls, n, true, text);
    if (strstr(text, "user executing the script")) /* it may not run a command of the script */
        error = HAPAX_ERR_REFUSED;
    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(&redis->base, error, "%s", text);
    for (size_t i = 0; i < n; i++) {
        if (calls[i].reply->type == HAPAX__RESP_ERROR)
            return hapax_store_fail(&redis->base, HAPAX_ERR_REFUSED, "cannot write: %.200s",
                                    calls[i].reply->str);
        if (!calls[i].replicated) {
            tell(c, true,
                 "wait=%" PRIu32 ": too few replicas acknowledged a write in time, so operations "
                 "are neither claimed nor completed",
                 redis->uri.wait);
            break;
        }
    }
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_list(struct checking *c)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax__resp *reply;
    enum hapax_error error;

    c->node = 0;
    error = ask(c, "SCAN 0 COUNT 1", &reply, text);
    if (error == HAPAX_ERR_NONE && !reply)
        tell(c, false, "cannot list: SCAN is refused (%s)", text);
    return error;
}

enum hapax_error hapax__redis_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct checking c = {.redis = (struct hapax__redis *)store, .say = say, .arg = arg};
    char text[HAPAX_TEXT_MAX] = "";
    enum hapax_error error = HAPAX_ERR_NONE;
    size_t nodes = hapax__redis_route_nodes(c.redis->route, &error, text);

    if (nodes == 0)
        return hapax_store_fail(store, error, "%s", text);
    for (c.node = 0; c.node < nodes; c.node++) {
        error = check_node(&c);
        if (error != HAPAX_ERR_NONE)
            return error;
    }
    error = check_sentinels(&c);
    if (error != HAPAX_ERR_NONE)
        return error;
    check_deployment(&c);
    error = check_list(&c);
    return error == HAPAX_ERR_NONE ? check_write(&c) : error;
}

/* ---- vitals --------------------------------------------------------------------------- */

static void keep_most(int64_t *most, int64_t value)
{
    if (*most == HAPAX_NOT_KNOWN || value > *most)
        *most = value;
}

static void measure_replica(const char *line, int64_t primary_offset, struct hapax_vitals *out)
{
    char offset[32], lag[32];
    int64_t behind;

    part(line, "offset", offset, sizeof(offset));
    part(line, "lag", lag, sizeof(lag));
    behind = hapax__most(primary_offset - strtoll(offset, NULL, 10), 0);
    keep_most(&out->lag_bytes, behind);
    keep_most(&out->silent_us, behind > 0 ? strtoll(lag, NULL, 10) * US_PER_S : 0);
}

static enum hapax_error measure_replicas(struct checking *c, struct hapax_vitals *out)
{
    char line[VALUE_SIZE * 2], field[32], text[HAPAX_TEXT_MAX];
    int64_t count = 0, offset = 0;
    struct hapax__resp *reply;
    enum hapax_error error = ask(c, "INFO replication", &reply, text);

    if (error != HAPAX_ERR_NONE || !reply || reply->type != HAPAX__RESP_STRING ||
        !info_number(reply->str, "connected_slaves", &count))
        return error;
    (void)info_number(reply->str, "master_repl_offset", &offset);
    for (int64_t i = 0; i < count && i < REPLICAS_MAX; i++) {
        (void)snprintf(field, sizeof(field), "slave%" PRId64, i);
        if (info(reply->str, field, line, sizeof(line)))
            measure_replica(line, offset, out);
    }
    out->replicas = (out->replicas == HAPAX_NOT_KNOWN ? 0 : out->replicas) + count;
    return HAPAX_ERR_NONE;
}

static enum hapax_error measure_clock(struct checking *c, struct hapax_vitals *out)
{
    char text[HAPAX_TEXT_MAX];
    int64_t theirs_us, begin_us, end_us, ahead_us;
    enum hapax_error error = read_clock(c, &theirs_us, &begin_us, &end_us, text);

    if (error != HAPAX_ERR_NONE || theirs_us == 0)
        return error;
    ahead_us = hapax__outside(theirs_us, begin_us, end_us);
    if (out->clock_ahead_us == HAPAX_NOT_KNOWN || llabs(ahead_us) > llabs(out->clock_ahead_us))
        out->clock_ahead_us = ahead_us;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__redis_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct checking c = {.redis = (struct hapax__redis *)store};
    char text[HAPAX_TEXT_MAX] = "";
    enum hapax_error error = HAPAX_ERR_NONE;
    size_t nodes = hapax__redis_route_nodes(c.redis->route, &error, text);

    for (c.node = 0; c.node < nodes && error == HAPAX_ERR_NONE; c.node++) {
        error = measure_clock(&c, out);
        if (error == HAPAX_ERR_NONE)
            error = measure_replicas(&c, out);
    }
    hapax__redis_route_ends(c.redis->route, &out->server_cert_us, &out->client_cert_us);
    if (error == HAPAX_ERR_NONE)
        return error;
    return hapax_store_fail(store, error, "%s", text[0] ? text : "a node was lost while asked");
}
