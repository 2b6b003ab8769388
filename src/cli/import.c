/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax import: the keys that a table of one's own has answered become operations that are
 * completed (docs/moving.md). Lines of JSON come in, and IMPORTs go out; the id, the fingerprint
 * and the caller are made as a door makes them, under the secret.
 *
 * Each line has the time at which it was answered. That is the record's, so the same line is the
 * same record whenever it is imported. Rejected: CSV, which has no one form for bytes and none for
 * headers; databases print JSON as well.
 */
#include "moving.h"

#include "base/base64.h"
#include "base/bytes.h"
#include "base/span.h"
#include "base/time.h"
#include "core/id.h"
#include "core/question.h"
#include "json/raw.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES ((ssize_t)48 << 20) /* a body of 16 MiB, escaped */
#define BATCH_BYTES    ((size_t)8 << 20) /* of lines, after which a batch is put */

struct import_args {
    struct cli_args args;
    int64_t retention_ms;
    bool dry_run;
};

static const struct cli_option options[] = {
    {"retention", "TIME", CLI_DURATION, offsetof(struct import_args, retention_ms), 1000,
     HAPAX_DURATION_MAX_MS, "How long a line without \"expires\" is kept (default 24h)"},
    {"dry-run", NULL, CLI_FLAG, offsetof(struct import_args, dry_run), 0, 0,
     "Read all lines and count them, and put none"},
};

struct importing {
    const struct import_args *args;
    struct moving moving;
    struct progress progress;
    struct hapax_arena arena; /* of the lines in the batch */
    struct cli_secret secret;
    FILE *file;
    uint64_t line, put; /* the last one read, and the last one whose batch was put */
    size_t bytes;
    int64_t now_us;
};

/* ---- a line ------------------------------------------------------------------------------ */

/* Says what is wrong with the line. False, as its callers are. */
static bool wrong(const struct importing *m, const char *what)
{
    (void)cli_fail(&m->args->args, CLI_USAGE, HAPAX_ERR_INVALID, "line %" PRIu64 ": %s", m->line,
                   what);
    return false;
}

/* Nothing where the line lacks the member, or has null. */
static bool take_text(struct importing *m, struct hapax_span *out, struct hapax_span line,
                      const char *name)
{
    struct hapax_span value;

    *out = (struct hapax_span){NULL, 0};
    if (!hapax__raw_member(&value, line, name) || hapax__raw_is_null(value))
        return true;
    if (!hapax__raw_is_string(value) || !hapax__raw_text(out, &m->arena, value))
        return wrong(m, "a name, or a key, is no string");
    return true;
}

/* A digest of 64 hex digits; without one it is any. */
static bool take_digest(struct importing *m, struct hapax_digest *out, bool *given,
                        struct hapax_span line, const char *name)
{
    struct hapax_span text;
    struct hapax_id id;
    char hex[PRINT_HEX_MAX];

    memset(out, HAPAX_ANY_BYTE, sizeof(*out));
    if (!take_text(m, &text, line, name))
        return false;
    *given = text.ptr != NULL;
    if (!*given)
        return true;
    (void)snprintf(hex, sizeof(hex), "%.*s", (int)text.len, (const char *)text.ptr);
    if (text.len != sizeof(hex) - 1 || !cli_id_read(&id, hex))
        return wrong(m, "\"fingerprint\" and \"caller\" are 64 hex digits");
    memcpy(out->bytes, id.bytes, sizeof(out->bytes));
    return true;
}

/* Seconds since 1970, as µs. */
static bool take_time(struct importing *m, int64_t *out, struct hapax_span line, const char *name)
{
    struct hapax_span value;
    int64_t seconds;

    *out = 0;
    if (!hapax__raw_member(&value, line, name) || hapax__raw_is_null(value))
        return true;
    if (!hapax__raw_number(&seconds, value) || seconds < 1 || seconds > INT64_C(1) << 33)
        return wrong(m, "a time is not a whole number of seconds since 1970");
    *out = seconds * US_PER_S;
    return true;
}

static bool take_headers(struct importing *m, struct hapax_span *out, struct hapax_span line)
{
    struct hapax_span object, name, value;
    struct hapax__raw_walk walk;
    uint8_t *to;

    *out = (struct hapax_span){NULL, 0};
    if (!hapax__raw_member(&object, line, "headers") || hapax__raw_is_null(object))
        return true;
    if (!hapax__raw_is_object(object))
        return wrong(m, "\"headers\" is no object");
    to = hapax__arena_alloc(&m->arena, object.len + 1); /* "":"", is longer than `: ` CR LF */
    if (!to)
        return wrong(m, "out of memory");
    out->ptr = to;
    hapax__raw_begin(&walk, object);
    while (hapax__raw_next(&walk, &name, &value)) {
        struct hapax_span text[2];

        if (!hapax__raw_is_string(value) || !hapax__raw_text(&text[0], &m->arena, name) ||
            !hapax__raw_text(&text[1], &m->arena, value) || !hapax__is_field_name(text[0]) ||
            !hapax__is_field_value(text[1]))
            return wrong(m, "\"headers\" has what is no header");
        memcpy(to + out->len, text[0].ptr, text[0].len);
        out->len += text[0].len;
        memcpy(to + out->len, ": ", 2);
        out->len += 2;
        if (text[1].len > 0)
            memcpy(to + out->len, text[1].ptr, text[1].len);
        out->len += text[1].len;
        memcpy(to + out->len, "\r\n", 2);
        out->len += 2;
    }
    return out->len <= HAPAX_HEADERS_MAX || wrong(m, "\"headers\" are over 65536 bytes");
}

/* A string is its characters; an object or an array its own JSON, as it stands in the line. */
static bool take_body(struct importing *m, struct hapax_span *out, struct hapax_span line)
{
    struct hapax_span value, text;
    uint8_t *to;

    if (hapax__raw_member(&value, line, "body") && !hapax__raw_is_null(value)) {
        if (!hapax__raw_is_string(value))
            *out = value;
        else if (!hapax__raw_text(out, &m->arena, value))
            return wrong(m, "out of memory");
    } else {
        if (!take_text(m, &text, line, "body_base64"))
            return false;
        to = hapax__arena_alloc(&m->arena, text.len + 1);
        *out = (struct hapax_span){to, 0};
        if (!to || !hapax__base64_decode(to, &out->len, text))
            return wrong(m, "\"body_base64\" is not base64");
    }
    return out->len <= HAPAX_BODY_MAX || wrong(m, "the body is over 16 MiB");
}

static bool take_outcome(struct importing *m, struct hapax_outcome *out, struct hapax_span line)
{
    struct hapax_span value;
    int64_t status = 0;

    if (!hapax__raw_member(&value, line, "status") || !hapax__raw_number(&status, value) ||
        status < 0 || status > 999)
        return wrong(m, "\"status\" is not a number up to 999");
    *out = (struct hapax_outcome){.status = (int)status, .body_kept = true};
    return take_headers(m, &out->headers, line) && take_body(m, &out->body, line);
}

/* Whose record it is: the id, and what is compared. */
static bool take_names(struct importing *m, struct hapax_record *record, struct hapax_span line)
{
    const struct hapax__secrets secrets = {.now = {m->secret.bytes, m->secret.len}};
    struct hapax__flow_request request = {.scope = hapax_str("default")};
    struct hapax_span key, owner, scope, step, what;
    bool fingerprint, caller;

    if (!take_text(m, &key, line, "key") || !take_text(m, &owner, line, "owner") ||
        !take_text(m, &scope, line, "scope") || !take_text(m, &step, line, "step") ||
        !take_text(m, &what, line, "what") ||
        !take_digest(m, &request.fingerprint, &fingerprint, line, "fingerprint") ||
        !take_digest(m, &request.caller, &caller, line, "caller"))
        return false;
    if (scope.ptr)
        request.scope = scope;
    if ((owner.ptr && owner.len == 0) ||
        hapax__identify(&request, owner, key, step, &secrets) != HAPAX_ERR_NONE)
        return wrong(m,
                     "\"key\", \"scope\" and \"owner\" have 1 to 255 bytes, \"step\" at most 64");
    record->id = request.id;
    record->owner = request.owner;
    record->scope = request.scope;
    record->fingerprint = request.fingerprint;
    record->caller = request.caller;
    if (!fingerprint)
        memset(&record->fingerprint, HAPAX_ANY_BYTE, sizeof(record->fingerprint));
    if (!caller)
        memset(&record->caller, HAPAX_ANY_BYTE, sizeof(record->caller));
    record->what.ptr = hapax__arena_alloc(&m->arena, HAPAX_WHAT_MAX);
    if (!record->what.ptr)
        return wrong(m, "out of memory");
    record->what.len = hapax_what((uint8_t *)(uintptr_t)record->what.ptr, &what, 1);
    return true;
}

static bool take_times(struct importing *m, struct hapax_record *record, struct hapax_span line)
{
    if (!take_time(m, &record->created_us, line, "created") ||
        !take_time(m, &record->expires_us, line, "expires"))
        return false;
    if (record->created_us == 0)
        return wrong(m, "\"created\" is missing: when it was answered");
    if (record->expires_us == 0)
        record->expires_us = record->created_us + m->args->retention_ms * US_PER_MS;
    /* rounded up: a record that is there for longer than its retention is a tombstone */
    record->retention_ms = (record->expires_us - record->created_us + US_PER_MS - 1) / US_PER_MS;
    if (record->retention_ms < 1 || record->retention_ms > HAPAX_DURATION_MAX_MS)
        return wrong(m, "\"expires\" is before \"created\", or over ten years after it");
    record->updated_us = record->created_us;
    return true;
}

/* Another response under the same key and second gets another fence, so it is no repeat; the same
 * one gets the same. A fence stays within its second, and so below that of whatever follows when
 * the record has expired: of a million such lines one is taken for a repeat. */
static void set_fence(struct hapax_record *record)
{
    const struct hapax_outcome *outcome = &record->outcome;
    const uint8_t status[] = {(uint8_t)(outcome->status >> 8), (uint8_t)outcome->status};
    const struct hapax_span parts[] = {
        {record->fingerprint.bytes, sizeof(record->fingerprint.bytes)},
        {record->caller.bytes, sizeof(record->caller.bytes)},
        {status, sizeof(status)},
        outcome->headers,
        outcome->body,
    };
    struct hapax_digest digest;
    struct hapax__reader r = {digest.bytes, sizeof(digest.bytes), false};

    hapax_digest(&digest, parts, sizeof(parts) / sizeof(parts[0]));
    record->fence = (uint64_t)record->created_us + hapax__take_u64(&r) % US_PER_S;
}

static bool take_line(struct importing *m, struct hapax_span text)
{
    struct hapax_record record = {.state = HAPAX_STATE_COMPLETED, .attempt = 1};
    struct hapax_span line;

    if (!hapax__raw_check(&line, text) || !hapax__raw_is_object(line))
        return wrong(m, "it is no JSON object");
    if (!take_names(m, &record, line) || !take_times(m, &record, line) ||
        !take_outcome(m, &record.outcome, line))
        return false;
    set_fence(&record);
    if (record.expires_us <= m->now_us)
        m->moving.expired++;
    else if (m->args->dry_run)
        m->moving.put[record.state]++;
    else
        moving_add(&m->moving, &record);
    return true;
}

/* ---- the file ---------------------------------------------------------------------------- */

static enum cli_exit flush(struct importing *m)
{
    enum cli_exit exit = moving_put(&m->moving, &m->progress);

    hapax__arena_reset(&m->arena);
    m->bytes = 0;
    if (exit == CLI_DONE)
        m->put = m->line;
    progress_tell(&m->progress, 0, (uint64_t)moving_sum(&m->moving), "imported");
    return exit;
}

static enum cli_exit take_file(struct importing *m)
{
    enum cli_exit exit = CLI_DONE;
    char *text = NULL;
    size_t size = 0;
    ssize_t len;

    while (exit == CLI_DONE && (len = getline(&text, &size, m->file)) >= 0) {
        struct hapax_span line = {(const uint8_t *)text, (size_t)len};

        m->line++;
        if (strspn(text, " \t\r\n") == (size_t)len)
            continue;
        line = hapax__arena_copy(&m->arena, line);
        if (len > LINE_MAX_BYTES || !line.ptr ? !wrong(m, "it is over 48 MiB")
                                              : !take_line(m, line))
            exit = CLI_USAGE;
        m->bytes += (size_t)len;
        if (exit == CLI_DONE && (m->moving.n == MOVING_BATCH || m->bytes > BATCH_BYTES))
            exit = flush(m);
    }
    /* Also where the line is too long for the memory, of which ferror() says nothing. */
    if (exit == CLI_DONE && (ferror(m->file) || !feof(m->file)))
        exit = cli_fail(&m->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE, "cannot read: %s",
                        strerror(errno));
    free(text);
    return exit == CLI_DONE ? flush(m) : exit;
}

/* ---- the command ------------------------------------------------------------------------- */

/* Ties the store to the secret, as a door does, and asks its clock. */
static enum cli_exit open_store(struct importing *m, struct cli_args *args)
{
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    enum cli_exit exit = cli_secret_read(&m->secret, args);
    enum hapax_error error = HAPAX_ERR_NONE;

    if (exit == CLI_DONE)
        exit = cli_open(&m->moving.to, args, CLI_EXISTING);
    if (exit != CLI_DONE)
        return exit;
    if (!m->args->dry_run)
        error = hapax_store_bind(m->moving.to, (struct hapax_span){m->secret.bytes, m->secret.len});
    if (error == HAPAX_ERR_NONE)
        error = hapax_store_run(m->moving.to, &op, 1);
    m->now_us = op.now_us;
    return error == HAPAX_ERR_NONE ? CLI_DONE
                                   : cli_store_failed(args, error, hapax_store_text(m->moving.to));
}

static enum cli_exit import(struct importing *m, struct cli_args *args)
{
    enum cli_exit exit;

    if (!args->operand)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "say which FILE; -: standard input");
    m->file = strcmp(args->operand, "-") == 0 ? stdin : fopen(args->operand, "re");
    if (!m->file)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot read \"%s\": %s", args->operand,
                        strerror(errno));
    exit = open_store(m, args);
    if (exit == CLI_DONE)
        exit = take_file(m);
    progress_end(&m->progress);
    if (exit != CLI_DONE && !m->args->dry_run && m->put > 0)
        (void)fprintf(stderr,
                      "hapax import: lines 1 to %" PRIu64 " are done, and may be given again\n",
                      m->put);
    if (m->now_us > 0)
        moving_report(&m->moving, m->args->dry_run ? "would import" : "imported");
    return exit == CLI_DONE && m->moving.otherwise + m->moving.left > 0 ? CLI_NO : exit;
}

static enum cli_exit run(struct cli_args *args)
{
    struct importing *m = calloc(1, sizeof(*m));
    enum cli_exit exit;

    if (!m)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    m->args = (const struct import_args *)args;
    m->moving.args = args;
    progress_begin(&m->progress, args);
    exit = import(m, args);
    if (m->file && m->file != stdin)
        (void)fclose(m->file);
    hapax_store_close(m->moving.to);
    hapax__arena_release(&m->arena);
    explicit_bzero(&m->secret, sizeof(m->secret));
    free(m);
    return exit;
}

static void defaults(struct cli_args *args)
{
    ((struct import_args *)args)->retention_ms = INT64_C(24) * 60 * 60 * 1000;
}

const struct cli_command cli_import = {
    .name = "import",
    .summary = "bring along the keys that a table of yours has answered",
    .synopsis = {"FILE [--retention TIME] [--dry-run]"},
    .prose =
        "Reads lines of JSON, one for each key, and puts an operation that is completed for each: "
        "its repeats get the response of the line. {\"key\": \"k-17\", \"status\": 201, "
        "\"created\": 1795449600} is a line. Further members: \"owner\", \"scope\" (default "
        "\"default\"), \"step\"; \"headers\", an object of names and strings; \"body\", a string, "
        "or JSON as it is to be sent, or \"body_base64\"; \"expires\", in seconds since 1970 as "
        "\"created\"; \"what\", for operators; \"fingerprint\" and \"caller\", of 64 hex digits. A "
        "line without one of these two answers any request, or any caller, that has the key. See "
        "docs/moving.md.\n\n"
        "HAPAX_SECRET_FILE and HAPAX_KEYS_FILE are those of the doors. A key that the store has "
        "already is left as it is there: the command may be given again. A line that is wrong ends "
        "it, with its number; --dry-run finds such lines first.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .operand = "FILE",
    .examples = {{"hapax import keys.jsonl --dry-run", "Whether each line can be read."},
                 {"set -o pipefail; psql shop -v ON_ERROR_STOP=1 -Atf keys.sql | hapax import -",
                  "All keys of a table, as docs/moving.md selects them."}},
    .args_size = sizeof(struct import_args),
    .defaults = defaults,
    .run = run,
};
