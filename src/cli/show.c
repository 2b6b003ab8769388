/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax show: one operation's record, and its steps below it. The steps are found by the
 * operation's list of steps (door/step.h). Where the list lies follows from scope and key, so no
 * steps are shown where only an id is given.
 */
#include "cli.h"

#include "base/span.h"
#include "door/step.h"
#include "print.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

struct show_args {
    struct cli_args args;
    struct cli_operation operation;
    int64_t body_max;
};

static const struct cli_option options[] = {
    CLI_OPERATION_OPTIONS(struct show_args, operation),
    {"body-max", "SIZE", CLI_SIZE, offsetof(struct show_args, body_max), 0, HAPAX_BODY_MAX,
     "With --json: at most so much of a body (default all)"},
};

static void defaults(struct cli_args *args)
{
    ((struct show_args *)args)->body_max = HAPAX_BODY_MAX;
}

/* ---- steps --------------------------------------------------------------------------- */

/* What an operation's list of steps says, copied out of the store. */
struct steps {
    size_t n;
    struct {
        size_t len;
        uint8_t bytes[HAPAX_STEP_MAX];
    } names[HAPAX_STEPS_MAX];
    struct cli_names found[HAPAX_STEPS_MAX];
};

static struct hapax_span name_of(const struct steps *steps, size_t i)
{
    return (struct hapax_span){steps->names[i].bytes, steps->names[i].len};
}

static bool is_listed(const struct steps *steps, struct hapax_span name)
{
    for (size_t i = 0; i < steps->n; i++)
        if (hapax__same(name_of(steps, i), name))
            return true;
    return false;
}

/* Takes the name that a record of the list has, each once. */
static void take_name(struct steps *steps, const struct hapax_record *record)
{
    struct hapax_span name = record->outcome.body;
    struct hapax_digest ours;

    hapax__steps_fingerprint(&ours);
    if (record->state != HAPAX_STATE_COMPLETED || name.len == 0 || name.len > HAPAX_STEP_MAX ||
        memchr(name.ptr, ':', name.len) || memcmp(&record->fingerprint, &ours, sizeof(ours)) != 0 ||
        is_listed(steps, name))
        return;
    steps->names[steps->n].len = name.len;
    memcpy(steps->names[steps->n].bytes, name.ptr, name.len);
    steps->n++;
}

/* Reads all records of the list in one batch. */
static enum cli_exit read_list(struct steps *steps, struct hapax_store *store,
                               const struct show_args *show)
{
    char indexes[HAPAX_STEPS_MAX][HAPAX__STEP_INDEX_SIZE];
    struct hapax_span names[HAPAX_STEPS_MAX];
    struct hapax_op *ops = calloc(HAPAX_STEPS_MAX, sizeof(*ops));
    enum hapax_error error;
    enum cli_exit exit;

    steps->n = 0;
    if (!ops)
        return cli_fail(&show->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    for (unsigned i = 0; i < HAPAX_STEPS_MAX; i++) {
        hapax__step_index(indexes[i], i + 1);
        names[i] = hapax_str(indexes[i]);
    }
    exit = cli_step_names(steps->found, names, HAPAX_STEPS_MAX, &show->args, &show->operation);
    for (size_t i = 0; i < HAPAX_STEPS_MAX; i++) {
        ops[i].kind = HAPAX_OP_READ;
        cli_name(&ops[i], &steps->found[i]);
    }
    if (exit == CLI_DONE) {
        error = hapax_store_run(store, ops, HAPAX_STEPS_MAX);
        if (error != HAPAX_ERR_NONE)
            exit = cli_store_failed(&show->args, error, hapax_store_text(store));
    }
    for (size_t i = 0; i < HAPAX_STEPS_MAX && exit == CLI_DONE; i++)
        if (ops[i].verdict == HAPAX_FOUND)
            take_name(steps, &ops[i].record);
    free(ops);
    for (size_t i = 0; i < steps->n; i++)
        names[i] = name_of(steps, i);
    return exit == CLI_DONE
               ? cli_step_names(steps->found, names, steps->n, &show->args, &show->operation)
               : exit;
}

static void put_members(struct json *json, const struct hapax_op *op, int64_t body_max)
{
    char repeat[REPORT_REPEAT_MAX];

    if (op->verdict == HAPAX_FOUND) {
        report_members(json, &op->record, body_max, op->now_us);
        report_repeat(repeat, &op->record, op->now_us);
        json_text(json, "repeat", repeat);
        json_number(json, "now_us", op->now_us);
    } else {
        json_hex(json, "id", op->id.bytes);
        json_text(json, "state", hapax_state_name(HAPAX_STATE_ABSENT));
    }
}

/* A step whose record is gone while it is still listed has nothing to show to people. */
static void put_steps(const struct steps *steps, const struct hapax_op *ops, struct json *json,
                      int64_t body_max)
{
    if (json)
        json_array_begin(json, "steps");
    else if (steps->n > 0)
        report_step_head();
    for (size_t i = 0; i < steps->n; i++) {
        if (json) {
            json_object_begin(json);
            json_bytes(json, "step", name_of(steps, i));
            put_members(json, &ops[i], body_max);
            json_object_end(json);
        } else if (ops[i].verdict == HAPAX_FOUND) {
            report_step(&ops[i].record, name_of(steps, i), ops[i].now_us);
        }
    }
    if (json)
        json_array_end(json);
}

/* ---- the operation -------------------------------------------------------------------- */

/* Says what may be wrong with the question: of a key, a hash alone is stored. */
static void put_absent(const struct show_args *show)
{
    const struct cli_operation *operation = &show->operation;

    (void)fprintf(stderr, "hapax show: no such operation in \"%s\"", show->args.shown);
    if (!operation->id)
        (void)fprintf(stderr,
                      ": looked for the key in the scope \"%s\"%s (--scope, --owner and "
                      "HAPAX_SECRET_FILE have to be those of the service%s)",
                      operation->scope ? operation->scope : "default",
                      operation->owner ? ", of that owner" : "",
                      strpbrk(show->args.operand, "\"'") ? "; quotes are no part of a key" : "");
    (void)fputc('\n', stderr);
}

/* Prints the operation, ops[0], and its steps behind it. `steps` NULL: it was not asked for by a
 * key, or is a step. */
static enum cli_exit put_all(const struct hapax_op *ops, const struct steps *steps,
                             const struct show_args *show)
{
    const struct cli_args *args = &show->args;
    struct json json;

    if (args->json) {
        json_begin_at(&json, args->out);
        put_members(&json, &ops[0], show->body_max);
        if (steps)
            put_steps(steps, ops + 1, &json, show->body_max);
        else
            json_null(&json, "steps");
        json_end(&json);
    } else {
        if (ops[0].verdict == HAPAX_FOUND)
            report_record(&ops[0].record, ops[0].now_us);
        else
            put_absent(show);
        if (steps)
            put_steps(steps, ops + 1, NULL, 0);
    }
    return ops[0].verdict == HAPAX_FOUND ? CLI_DONE : CLI_NO;
}

/* Reads them at one moment, so that what is printed is whole or not begun. */
static enum cli_exit show_all(const struct cli_names *names, const struct steps *steps,
                              struct hapax_store *store, const struct show_args *show)
{
    const struct cli_args *args = &show->args;
    size_t n = 1 + (steps ? steps->n : 0);
    struct hapax_op *ops = calloc(n, sizeof(*ops));
    enum hapax_error error;
    enum cli_exit exit;

    if (!ops)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        ops[i].kind = HAPAX_OP_READ;
        cli_name(&ops[i], i == 0 ? names : &steps->found[i - 1]);
    }
    error = hapax_store_run(store, ops, n);
    exit = error != HAPAX_ERR_NONE ? cli_store_failed(args, error, hapax_store_text(store))
                                   : put_all(ops, steps, show);
    free(ops);
    return exit;
}

static enum cli_exit run(struct cli_args *args)
{
    struct show_args *show = (struct show_args *)args;
    bool whole = args->operand && !show->operation.step;
    struct hapax_store *store;
    struct cli_names names;
    struct steps steps;
    enum cli_exit exit;

    exit = cli_open_operation(&store, &names, args, &show->operation);
    if (exit == CLI_DONE && whole)
        exit = read_list(&steps, store, show);
    if (exit == CLI_DONE)
        exit = show_all(&names, whole ? &steps : NULL, store, show);
    cli_close(args, store);
    return exit;
}

const struct cli_command cli_show = {
    .name = "show",
    .summary = "print what is known of an operation",
    .synopsis = {"[--owner O] [--scope S] [--step NAME] KEY", "--id HEX"},
    .prose = "Prints the record of one operation: what it is, its state, its attempts, its times, "
             "and the outcome that repeats are answered with; and the steps of the operation, if "
             "it has any, in the order in which they were first run.\n\n"
             "KEY is the key as the client sends it, with or without the quotes of its header. "
             "Keys are not stored, only what they hash to, so scope and owner have to be the same "
             "as in the service. With --id no steps are shown. Exit status 1: there is no such "
             "operation.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .operand = "KEY",
    .examples = {{"hapax show --scope cards order-1", "The operation order-1 of the scope cards."},
                 {"hapax show --json order-1 | jq -r .body", "The answer that was stored."},
                 {"hapax show --step charge order-1", "What is known of one step."}},
    .args_size = sizeof(struct show_args),
    .defaults = defaults,
    .run = run,
};
