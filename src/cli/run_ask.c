/* SPDX-License-Identifier: Apache-2.0
 *
 * What hapax run is asked: its options, what exit statuses mean, and the request.
 *
 * The command's stdin is /dev/null, or with --stdin what was read before and is compared: a command
 * must not act on what is no part of its request. Rejected: our own stdin. A repeat with another
 * input would be given the first output, and a loop `while read` would lose its lines to the
 * command.
 */
#include "run.h"

#include "base/units.h"
#include "door/call.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TEXT(option, placeholder, field, text)                                                     \
    CLI_TEXT_OPTION(struct run_args, field, option, placeholder, text)
#define FLAG(option, field, text)                                                                  \
    {                                                                                              \
        .name = option, .kind = CLI_FLAG, .at = offsetof(struct run_args, field), .about = text    \
    }

/* The policies come last. */
const struct cli_option run_options[] = {
    TEXT("scope", "S", scope, "The scope of KEY (default \"default\")"),
    TEXT("owner", "O", owner, "Whose key it is: each owner's keys are its own"),
    TEXT("fingerprint", "TEXT", fingerprint,
         "What is compared in a repeat (default: the command's words)"),
    FLAG("stdin", input, "Read stdin first, compare it too, and hand it on (default: it has none)"),
    FLAG("live", live, "Print the output as it comes and keep none: repeats print nothing"),
    {"class", "RULE", CLI_TEXTS, offsetof(struct run_args, classes), 0, 0,
     "What exit statuses mean, as \"1 final\" or \"3-5 75 not_run\""},
    {"in-flight-exit", "N", CLI_NUMBER, offsetof(struct run_args, in_flight), 0, 255,
     "Exit status while another runs it (default 122; with 0 nothing is said)"},
    TEXT("reconcile", "SCRIPT", reconcile,
         "Asked by --on-expired reconcile, by sh: 0 it happened, 1 it did not"),
    FLAG("verbose", verbose, "Say on stderr what became of it, a replay too"),
    CLI_TELLING_OPTIONS(struct run_args, telling),
    CLI_POLICY_OPTIONS(struct run_args, policies, "24h", "0: not at all",
                       "The command failed: retry, replay or hold (default: by --on-expired)",
                       "After so many it is not run again (default 0: no limit)"),
};
static_assert(sizeof(run_options) / sizeof(run_options[0]) == RUN_OPTIONS, "all of them");

/* ---- settings ---------------------------------------------------------------------------- */

static enum cli_exit invalid(const struct run_args *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum cli_exit invalid(const struct run_args *args, const char *format, ...)
{
    char text[HAPAX_TEXT_MAX];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "%s", text);
}

/* N or N-M */
static bool read_statuses(struct run_rule *rule, const char *word, size_t len)
{
    const char *dash = memchr(word, '-', len);
    size_t first = dash ? (size_t)(dash - word) : len;
    uint64_t from, to;

    if (!hapax__number_parse(&from, word, first, 255))
        return false;
    to = from;
    if (dash && !hapax__number_parse(&to, dash + 1, len - first - 1, 255))
        return false;
    rule->first = (int)from;
    rule->last = (int)to;
    return from <= to;
}

/* The class that a text ends with; 0: none. *len: of what stands before it. */
static enum hapax_class read_class(size_t *len, const char *text)
{
    static const char *const words[] = {"final", "not_run", "failed", "unknown"};
    const char *last = strrchr(text, ' ');

    for (unsigned i = 0; last && i < 4; i++)
        if (strcmp(last + 1, words[i]) == 0) {
            *len = (size_t)(last - text);
            return (enum hapax_class)(HAPAX_CLASS_FINAL + i);
        }
    return (enum hapax_class)0;
}

static bool read_rules(struct running *r, const char *text)
{
    size_t len = 0;
    enum hapax_class cls = read_class(&len, text);
    size_t before = r->rule_count;

    for (size_t at = 0; cls && at < len;) {
        size_t word = strcspn(text + at, " ");

        if (word > len - at)
            word = len - at;
        if (word > 0) {
            if (r->rule_count == RUN_RULES_MAX ||
                !read_statuses(&r->rules[r->rule_count], text + at, word))
                return false;
            r->rules[r->rule_count++].cls = cls;
        }
        at += word + 1;
    }
    return r->rule_count > before;
}

static enum cli_exit read_classes(struct running *r)
{
    const struct cli_texts *classes = &r->args->classes;

    for (size_t i = 0; i < classes->n; i++)
        if (!read_rules(r, classes->items[i]))
            return invalid(r->args,
                           "--class \"%.100s\" is not statuses from 0 to 255 and one of final, "
                           "not_run, failed and unknown, as \"3-5 75 not_run\"; %u at most",
                           classes->items[i], RUN_RULES_MAX);
    return CLI_DONE;
}

enum cli_exit run_read(struct running *r, const char *key)
{
    const struct run_args *args = r->args;
    bool asks;
    char text[HAPAX_TEXT_MAX];
    enum cli_exit exit;

    hapax_policy_init(&r->policy);
    r->policy.run_max_ms = INT64_C(24) * 3600 * 1000;
    r->policy.key = HAPAX_KEY_REQUIRED;
    exit = cli_policies_set(&r->policy, &args->args, &run_options[RUN_OPTIONS - CLI_POLICIES],
                            args->policies, CLI_POLICIES);
    if (exit == CLI_DONE)
        exit = read_classes(r);
    if (exit != CLI_DONE)
        return exit;
    if ((args->scope && !*args->scope) || (args->owner && !*args->owner))
        return invalid(args, "--scope and --owner have 1 to 255 bytes");
    if (args->live && args->args.json)
        return invalid(args, "--live and --json do not go together: both print on stdout");
    asks = r->policy.on_expired == HAPAX_EXPIRED_RECONCILE;
    if (asks != (args->reconcile != NULL))
        return invalid(args, asks ? "--on-expired is reconcile, and there is no --reconcile SCRIPT"
                                  : "--reconcile is given, and nobody asks: --on-expired is not "
                                    "reconcile");
    r->request.scope = hapax_str(args->scope);
    r->request.owner = hapax_str(args->owner);
    r->request.trace = hapax_str(getenv("TRACEPARENT"));
    r->request.key = hapax_str(key);
    hapax_digest(&r->request.caller, NULL, 0); /* nobody: the owner tells keys apart */
    if (hapax__call_check(&r->policy, &r->request, false, asks, text) != HAPAX_ERR_NONE)
        return invalid(args, "%s", text);
    return CLI_DONE;
}

/* ---- the request ------------------------------------------------------------------------- */

/* Reads stdin to its end: *bytes is the caller's. */
static enum cli_exit read_stdin(const struct running *r, uint8_t **bytes, size_t *len)
{
    size_t most = r->policy.max_request;
    ssize_t got = 1;

    *bytes = malloc(most + 1);
    if (!*bytes)
        return cli_fail(&r->args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    while (*len <= most && (got = read(0, *bytes + *len, most + 1 - *len)) > 0)
        *len += (size_t)got;
    if (got < 0)
        return invalid(r->args, "cannot read stdin: %s", strerror(errno));
    if (*len > most)
        return invalid(r->args, "stdin is longer than max-request, which is %zu bytes", most);
    return CLI_DONE;
}

/* A file with the bytes, at its beginning; -1: errno says why. */
static int file_of(const uint8_t *bytes, size_t len)
{
    int fd = memfd_create("stdin", MFD_CLOEXEC);
    size_t done = 0;
    ssize_t put = 1;

    while (fd >= 0 && done < len && (put = write(fd, bytes + done, len - done)) > 0)
        done += (size_t)put;
    if (fd >= 0 && (put <= 0 || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static enum cli_exit make_fingerprint(struct running *r, const uint8_t *input, size_t len)
{
    const struct run_args *args = r->args;
    struct hapax_span *parts;
    size_t n = 0, words = 0;

    while (args->args.words[words])
        words++;
    parts = calloc(words + 1, sizeof(*parts));
    if (!parts)
        return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    parts[n++] = (struct hapax_span){input, len};
    if (args->fingerprint)
        parts[n++] = hapax_str(args->fingerprint);
    for (size_t i = 0; i < words && !args->fingerprint; i++)
        parts[n++] = hapax_str(args->args.words[i]);
    hapax_digest(&r->request.fingerprint, parts, n);
    free(parts);
    /* Not its arguments, which may be secrets. */
    r->request.what = hapax_str(args->args.words[0]);
    return CLI_DONE;
}

enum cli_exit run_ask(struct running *r)
{
    uint8_t *input = NULL;
    size_t len = 0;
    enum cli_exit exit = r->args->input ? read_stdin(r, &input, &len) : CLI_DONE;

    if (exit == CLI_DONE)
        exit = make_fingerprint(r, input, len);
    if (exit == CLI_DONE && r->args->input) {
        r->input = file_of(input, len);
        if (r->input < 0)
            exit = cli_fail(&r->args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "cannot keep stdin: %s",
                            strerror(errno));
    }
    if (input)
        explicit_bzero(input, len);
    free(input);
    return exit;
}
