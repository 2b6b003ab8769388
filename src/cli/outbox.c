/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of an outbox that a relay put aside: lists them for operators, without keys and
 * payloads, and puts them back.
 */
#include "outbox.h"

#include "base/clock.h"
#include "print.h"
#include "relay/relay.h"

#include <inttypes.h>

static enum cli_exit open_outbox(struct hapax__outbox *outbox, const struct cli_args *args,
                                 const char *uri)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error = hapax__outbox_open(outbox, uri, text);

    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_store_failed(args, error, text);
}

static void put_row(const struct cli_args *args, const struct hapax__outbox_aside *row,
                    int64_t now_us)
{
    char age[PRINT_AGE_MAX];
    struct json json;

    if (args->json) {
        json_begin_at(&json, args->out);
        json_number(&json, "seq", row->seq);
        json_bytes(&json, "topic", row->topic);
        json_bytes(&json, "aggregate", row->aggregate);
        json_number(&json, "tries", row->tries);
        json_bytes(&json, "error", row->error);
        json_number(&json, "size", row->size);
        json_number(&json, "created_us", row->created_us);
        json_number(&json, "ended_us", row->ended_us);
        json_end(&json);
        return;
    }
    print_age(age, now_us > row->ended_us ? now_us - row->ended_us : 0);
    printf("%-10" PRId64 " %-8s %5" PRId64 " %8" PRId64 "  ", row->seq, age, row->tries, row->size);
    print_text(stdout, row->topic, false, 0);
    (void)fputs("  ", stdout);
    print_text(stdout, row->aggregate, false, 0);
    (void)fputs("  ", stdout);
    print_text(stdout, row->error, false, 0);
    (void)putchar('\n');
}

static enum cli_exit list_all(struct hapax__outbox *outbox, const struct cli_args *args,
                              int64_t limit)
{
    static struct hapax__outbox_aside page[HAPAX__RELAY_BATCH_MAX];
    int64_t n = 0, after = 0, now_us = hapax__wall_us();
    PGresult *rows;
    size_t count;

    do {
        enum hapax_error error = hapax__outbox_aside(outbox, &after, &rows, page, &count);

        if (error != HAPAX_ERR_NONE)
            return cli_store_failed(args, error, outbox->link.text);
        if (n == 0 && count > 0 && !args->json)
            printf("%-10s %-8s %5s %8s  %s\n", "SEQ", "AGE", "TRIES", "SIZE",
                   "TOPIC  AGGREGATE  ERROR");
        for (size_t i = 0; i < count && n < limit; i++, n++)
            put_row(args, &page[i], now_us);
        PQclear(rows);
    } while (after > 0 && n < limit && !ferror(stdout));
    if (n == 0 && !args->json)
        (void)fputs("hapax list: there are none\n", stderr);
    return CLI_DONE;
}

enum cli_exit outbox_list(const struct cli_args *args, const char *uri, int64_t limit)
{
    struct hapax__outbox outbox;
    enum cli_exit exit = open_outbox(&outbox, args, uri);

    if (exit == CLI_DONE)
        exit = list_all(&outbox, args, limit);
    hapax__outbox_close(&outbox);
    return exit;
}

static void print_put_back(const struct cli_args *args, int64_t total, bool at_least)
{
    struct json json;

    if (args->json) {
        json_begin_at(&json, args->out);
        json_number(&json, "put_back", total);
        json_bool(&json, "at_least", at_least);
        json_end(&json);
    } else {
        printf("put back: %s%" PRId64 "\n", at_least ? "at least " : "", total);
    }
}

static enum cli_exit put_all_back(struct hapax__outbox *outbox, const struct cli_args *args,
                                  const char *key)
{
    int64_t after = 0, count, total = 0;
    enum hapax_error error;
    bool at_least = false;

    do {
        count = 0;
        error = hapax__outbox_put_back(outbox, key, &after, &count);
        total += count;
        at_least |= outbox->lost;
    } while (error == HAPAX_ERR_NONE && after > 0);
    if (error == HAPAX_ERR_NONE || total > 0 || at_least)
        print_put_back(args, total, at_least);
    if (error == HAPAX_ERR_UNAVAILABLE && total > 0) /* "surely not" is true of the rest alone */
        error = HAPAX_ERR_INDETERMINATE;
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, outbox->link.text);
    return total > 0 || at_least || !key ? CLI_DONE : CLI_NO;
}

enum cli_exit outbox_put_back(const struct cli_args *args, const char *uri, const char *key)
{
    struct hapax__outbox outbox;
    enum cli_exit exit = open_outbox(&outbox, args, uri);

    if (exit == CLI_DONE)
        exit = put_all_back(&outbox, args, key);
    hapax__outbox_close(&outbox);
    return exit;
}
