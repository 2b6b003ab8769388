/* SPDX-License-Identifier: Apache-2.0 */
#include "board.h"

#include "print.h"

#include <curl/curl.h>
#include <stdio.h>

enum cli_exit board_open(struct board *board, const struct cli_args *args,
                         const struct cli_texts *urls, bool keep)
{
    char text[HAPAX_TEXT_MAX];

    *board = (struct board){.args = args};
    if (urls->n > WATCH_MAX)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--watch is given more than %u times",
                        WATCH_MAX);
    if (urls->n > 0 && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "libcurl does not start");
    for (size_t i = 0; i < urls->n; i++) {
        enum hapax_error error = watch_open(&board->watches[i], urls->items[i], keep, text);

        if (error != HAPAX_ERR_NONE) {
            board_close(board);
            return cli_store_failed(args, error, text);
        }
        board->n++;
    }
    return CLI_DONE;
}

void board_close(struct board *board)
{
    for (size_t i = 0; i < board->n; i++)
        watch_close(&board->watches[i]);
    board->n = 0;
}

void board_look(struct board *board, struct hapax_store *store)
{
    if (!store)
        return;
    board->error = totals_read(&board->totals, store);
    (void)snprintf(board->text, sizeof(board->text), "%s",
                   board->error == HAPAX_ERR_NONE ? "" : hapax_store_text(store));
}

void board_json(const struct board *board, FILE *out, bool points, int64_t since_us)
{
    struct json json;

    json_begin_at(&json, out);
    json_text(&json, "store", board->args->shown);
    if (board->error == HAPAX_ERR_NONE) {
        totals_members(&json, &board->totals);
    } else {
        json_text(&json, "error", hapax_error_name(board->error));
        json_text(&json, "text", board->text);
    }
    json_array_begin(&json, "watch");
    for (size_t i = 0; i < board->n; i++) {
        json_object_begin(&json);
        watch_members(&json, &board->watches[i], points, since_us);
        json_object_end(&json);
    }
    json_array_end(&json);
    json_end(&json);
}
