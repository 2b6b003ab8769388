/* SPDX-License-Identifier: Apache-2.0
 *
 * A page is small: what was listed is to be resolved before much of it has changed.
 */
#include "bulk.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/time.h"
#include "print.h"
#include "report.h"
#include "store/types.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PAGE_MAX    100u
#define PROGRESS_US (2 * US_PER_S)

struct page {
    const struct bulk *bulk;
    struct hapax_store *store;
    /* What the page's records point to: the store's own memory ends with its next call. */
    struct hapax_arena arena;
    struct hapax_record records[PAGE_MAX];
    struct hapax_op ops[PAGE_MAX];
    size_t n;
    int64_t now_us; /* the store's clock */
    int64_t found, done, passed_over;
    int64_t next_us; /* when progress is told again */
    struct report_damage damage;
};

/* ---- what is printed ------------------------------------------------------------------- */

static const char *done_name(const struct hapax_op *act)
{
    static const char *const names[] = {[HAPAX_RESOLVE_COMPLETE] = "completed",
                                        [HAPAX_RESOLVE_FAIL] = "failed",
                                        [HAPAX_RESOLVE_FORGET] = "forgotten"};

    return names[act->resolve];
}

static const char *result_of(const struct page *page, const struct hapax_op *op)
{
    if (page->bulk->dry_run)
        return done_name(&page->bulk->act);
    if (op->error != HAPAX_ERR_NONE)
        return op->error == HAPAX_ERR_INDETERMINATE ? "not known" : "not done";
    return op->verdict == HAPAX_OK ? done_name(op) : "passed over";
}

static void put_row(struct page *page, size_t i)
{
    const char *result = result_of(page, &page->ops[i]);
    struct json json;

    if (page->bulk->args->json) {
        json_begin_at(&json, page->bulk->args->out);
        report_members(&json, &page->records[i], REPORT_LISTED, page->now_us);
        json_text(&json, page->bulk->dry_run ? "would_be" : "result", result);
        json_end(&json);
        return;
    }
    if (page->found == 0 && i == 0) {
        printf("%-11s  ", page->bulk->dry_run ? "WOULD BE" : "RESULT");
        report_row_head();
    }
    printf("%-11s  ", result);
    report_row(&page->records[i], page->now_us);
}

/* list: the last one. NULL: something failed, so that there may be more. */
static void put_sum(const struct page *page, const struct hapax_op *list)
{
    const struct bulk *bulk = page->bulk;
    const char *s = page->found == 1 ? "" : "s";
    struct json json;

    if (bulk->args->json) {
        json_begin_at(&json, bulk->args->out);
        json_number(&json, "found", page->found);
        json_number(&json, "resolved", page->done);
        json_number(&json, "passed_over", page->passed_over);
        json_bool(&json, "more", !list || list->more);
        json_bool(&json, "dry_run", bulk->dry_run);
        json_end(&json);
        return;
    }
    if (page->found == 0) {
        if (list && page->damage.places == 0)
            (void)fputs("hapax resolve: there are none\n", stderr);
    } else if (bulk->dry_run) {
        printf("%" PRId64 " operation%s would be resolved as %s; --dry-run changed nothing\n",
               page->found, s, done_name(&bulk->act));
    } else {
        printf("resolved %" PRId64 " of %" PRId64 " operation%s as %s", page->done, page->found, s,
               done_name(&bulk->act));
        if (page->passed_over > 0)
            printf("; passed over %" PRId64 ", which changed meanwhile", page->passed_over);
        putchar('\n');
    }
    if (list && list->more)
        (void)fprintf(stderr, "hapax resolve: there may be more; this is --limit %" PRId64 "\n",
                      bulk->limit);
}

static void put_progress(struct page *page)
{
    int64_t now_us = hapax__monotonic_us();

    if (now_us < page->next_us || page->bulk->args->json)
        return;
    page->next_us = now_us + PROGRESS_US;
    (void)fflush(stdout);
    (void)fprintf(stderr, "hapax resolve: %" PRId64 " found so far\n", page->found);
}

/* ---- a page ---------------------------------------------------------------------------- */

/* Takes what a LIST found. The library's own records are no operations. */
static enum cli_exit take(struct page *page, const struct hapax_op *list)
{
    hapax__arena_reset(&page->arena);
    page->n = 0;
    page->now_us = list->now_us;
    for (uint32_t i = 0; i < list->count; i++) {
        struct hapax_record *record = &page->records[page->n];

        if (cli_is_own(&list->records[i]))
            continue;
        assert(page->n < PAGE_MAX);
        *record = list->records[i];
        record->scope = hapax__arena_copy(&page->arena, record->scope);
        record->what = hapax__arena_copy(&page->arena, record->what);
        record->resolved_by = hapax__arena_copy(&page->arena, record->resolved_by);
        if ((record->scope.len > 0 && !record->scope.ptr) ||
            (record->what.len > 0 && !record->what.ptr) ||
            (record->resolved_by.len > 0 && !record->resolved_by.ptr))
            return cli_fail(page->bulk->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
        page->n++;
    }
    return CLI_DONE;
}

/* Each op has a token of its own: a repeat is then known for one. */
static enum cli_exit make_ops(struct page *page)
{
    for (size_t i = 0; i < page->n; i++) {
        struct hapax_op *op = &page->ops[i];

        *op = page->bulk->act;
        op->id = page->records[i].id;
        op->if_attempt = page->records[i].attempt;
        op->if_updated_us = page->records[i].updated_us;
        if (getrandom(op->token.bytes, sizeof(op->token.bytes), 0) != sizeof(op->token.bytes))
            return cli_fail(page->bulk->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                            "cannot get random bytes");
    }
    return CLI_DONE;
}

/* Runs the ops; returns the first error among them. */
static enum hapax_error ask(struct page *page)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    (void)hapax_store_run(page->store, page->ops, page->n);
    for (size_t i = 0; i < page->n; i++) {
        hapax__ask_again(page->store, &page->ops[i]);
        if (error == HAPAX_ERR_NONE)
            error = page->ops[i].error;
    }
    return error;
}

static enum cli_exit resolve_page(struct page *page)
{
    const struct bulk *bulk = page->bulk;
    enum hapax_error error = HAPAX_ERR_NONE;
    enum cli_exit exit = make_ops(page);

    for (size_t i = 0; i < page->n && exit == CLI_DONE && !bulk->dry_run; i++)
        exit = audit_asked(bulk->audit, &page->ops[i], &page->records[i], HAPAX_ERR_NONE);
    if (exit != CLI_DONE) {
        put_sum(page, NULL);
        return exit;
    }
    if (!bulk->dry_run)
        error = ask(page);
    for (size_t i = 0; i < page->n; i++) {
        const struct hapax_op *op = &page->ops[i];

        put_row(page, i);
        if (bulk->dry_run)
            continue;
        audit_answered(bulk->audit, op);
        page->done += op->error == HAPAX_ERR_NONE && op->verdict == HAPAX_OK;
        page->passed_over += op->error == HAPAX_ERR_NONE && op->verdict != HAPAX_OK;
    }
    page->found += (int64_t)page->n;
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    put_sum(page, NULL);
    return cli_store_failed(bulk->args, error, hapax_store_text(page->store));
}

/* ---- all of them ----------------------------------------------------------------------- */

/* All of one owner. *list: the last LIST. */
static enum cli_exit walk_owner(struct page *page, struct hapax_op *list)
{
    enum hapax_error error;
    enum cli_exit exit;

    do {
        int64_t left = page->bulk->limit - page->found;

        list->limit = left < (int64_t)PAGE_MAX ? (uint32_t)left : PAGE_MAX;
        error = hapax_store_run(page->store, list, 1);
        if (error != HAPAX_ERR_NONE) {
            put_sum(page, NULL);
            return cli_store_failed(page->bulk->args, error, hapax_store_text(page->store));
        }
        report_damage(&page->damage, "resolve", list);
        list->cursor = list->next_cursor;
        exit = take(page, list);
        if (exit == CLI_DONE)
            exit = resolve_page(page);
        else
            put_sum(page, NULL);
        put_progress(page);
    } while (exit == CLI_DONE && list->more && page->found < page->bulk->limit);
    return exit;
}

static enum cli_exit walk(struct page *page)
{
    const struct bulk *bulk = page->bulk;
    struct hapax_op list = bulk->list;
    enum cli_exit exit = CLI_DONE;
    size_t i;

    for (i = 0; i < bulk->owners_n && exit == CLI_DONE && page->found < bulk->limit; i++) {
        list = bulk->list;
        list.owner = bulk->owners[i];
        exit = walk_owner(page, &list);
    }
    if (exit != CLI_DONE)
        return exit;
    list.more = list.more || i < bulk->owners_n;
    put_sum(page, &list);
    if (page->damage.places == 0)
        return CLI_DONE;
    return cli_fail(page->bulk->args, CLI_UNREACHED, HAPAX_ERR_CORRUPT,
                    "%u damaged places were passed over (\"hapax check\" says more)",
                    page->damage.places);
}

enum cli_exit bulk_resolve(const struct bulk *bulk, struct hapax_store *store)
{
    struct page *page = calloc(1, sizeof(*page));
    enum cli_exit exit;

    if (!page)
        return cli_fail(bulk->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    page->bulk = bulk;
    page->store = store;
    page->next_us = hapax__monotonic_us() + PROGRESS_US;
    exit = walk(page);
    hapax__arena_release(&page->arena);
    free(page);
    return exit;
}
