/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax top: what is stuck, and what the doors do, on a terminal. A frame is printed whole, and
 * nothing but the cursor's way home and "erase" is used of the terminal.
 */
#include "board.h"

#include "print.h"
#include "report.h"

#include "base/clock.h"
#include "base/uri.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOME   "\033[H\033[J"
#define TWO_MS 1000 /* between the two readings of --once */

struct top_args {
    struct cli_args args;
    struct cli_texts watch;
    int64_t every_ms;
    bool once;
};

static const struct cli_option options[] = {
    {"watch", "URL", CLI_TEXTS, offsetof(struct top_args, watch), 0, 0,
     "A door's page of metrics, as http://127.0.0.1:9464/metrics. May be given several times"},
    {"every", "TIME", CLI_DURATION, offsetof(struct top_args, every_ms), 500, 3600000,
     "How often it looks (default 2s)"},
    {"once", NULL, CLI_FLAG, offsetof(struct top_args, once), 0, 0,
     "Print it once, and end: for scripts"},
};

static void defaults(struct cli_args *args)
{
    ((struct top_args *)args)->every_ms = 2000;
}

static void put_number(double value, double unit, const char *suffix)
{
    char text[32];

    if (value < 0)
        (void)snprintf(text, sizeof(text), "-");
    else
        (void)snprintf(text, sizeof(text), "%.1f%s", value * unit, suffix);
    printf("  %9s", text);
}

static void put_door(const struct watch *watch)
{
    static const char *const waits[] = {"in_flight", "consumer_in_hand", "door_in_hand",
                                        "relay_held"};
    char shown[HAPAX_TEXT_MAX];
    double all = watch_rate(watch, 0), fresh = watch_rate(watch, HAPAX_ANSWER_FRESH);
    double replay = watch_rate(watch, HAPAX_ANSWER_REPLAY), in_hand = -1;

    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]) && in_hand < 0; i++)
        in_hand = watch_figure(watch, waits[i]);
    put_number(all, 1, "");
    put_number(fresh, 1, "");
    put_number(replay, 1, "");
    put_number(all < 0 ? -1 : all - (fresh < 0 ? 0 : fresh) - (replay < 0 ? 0 : replay), 1, "");
    put_number(watch_within(watch, 0.5), 1000, "ms");
    put_number(watch_within(watch, 0.99), 1000, "ms");
    put_number(in_hand, 1, "");
    hapax__uri_shown(shown, watch->url);
    (void)fputs("  ", stdout);
    print_text(stdout, hapax_str(shown), false, 0);
    if (!watch->up)
        printf(": %s", watch->text);
    putchar('\n');
}

static void put_frame(const struct board *board)
{
    char now[PRINT_TIME_MAX];

    print_time(now, hapax__wall_us());
    printf("%s  %s\n\n", now, board->args->shown);
    if (board->error == HAPAX_ERR_NONE) {
        totals_table(&board->totals);
    } else {
        printf("the store: %s: ", hapax_error_name(board->error));
        print_text(stdout, hapax_str(board->text), false, 0);
        putchar('\n');
    }
    if (board->n > 0)
        printf("\n  %9s  %9s  %9s  %9s  %9s  %9s  %9s  %s\n", "ANSWERS/S", "FRESH", "REPLAY",
               "OTHER", "P50", "P99", "IN HAND", "DOOR");
    for (size_t i = 0; i < board->n; i++)
        put_door(&board->watches[i]);
    if (board->error != HAPAX_ERR_NONE || board->totals.oldest_n == 0)
        return;
    putchar('\n');
    report_row_head();
    for (uint32_t i = 0; i < board->totals.oldest_n; i++)
        report_row(&board->totals.oldest[i].record, board->totals.now_us);
}

static void put(const struct board *board, bool home)
{
    if (board->args->json) {
        board_json(board, stdout, false, 0);
    } else {
        if (home)
            (void)fputs(HOME, stdout);
        put_frame(board);
    }
    (void)fflush(stdout);
}

static void read_doors(struct board *board)
{
    for (size_t i = 0; i < board->n; i++)
        watch_take(&board->watches[i], watch_fetch(&board->watches[i]));
}

static enum cli_exit look(const struct top_args *top, struct board *board,
                          struct hapax_store *store, int signals)
{
    bool home = !top->once && isatty(STDOUT_FILENO);

    read_doors(board);
    if (board->n > 0 && cli_signals_wait(signals, TWO_MS) != 0)
        return CLI_DONE;
    do {
        read_doors(board);
        board_look(board, store);
        if (top->once && board->error != HAPAX_ERR_NONE)
            return cli_store_failed(&top->args, board->error, board->text);
        put(board, home);
    } while (!top->once && !ferror(stdout) && cli_signals_wait(signals, top->every_ms) == 0);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct top_args *top = (const struct top_args *)args;
    struct hapax_store *store;
    struct board *board;
    int signals = cli_signals_begin();
    enum cli_exit exit;

    if (signals < 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    exit = cli_open(&store, args, CLI_EXISTING);
    board = calloc(1, sizeof(*board));
    if (exit == CLI_DONE && !board)
        exit = cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    if (board && exit == CLI_DONE)
        exit = board_open(board, args, &top->watch, false);
    if (board && exit == CLI_DONE) {
        exit = look(top, board, store, signals);
        board_close(board);
    }
    free(board);
    hapax_store_close(store);
    close(signals);
    return exit;
}

const struct cli_command cli_top = {
    .name = "top",
    .summary = "watch what is stuck, and what the doors do",
    .synopsis = {"[--watch URL]... [--every TIME] [--once]"},
    .prose =
        "Shows how many operations are unfinished, by state, with the age of the oldest; how many "
        "answers each door gives a second, and how long they take; and the ten oldest operations "
        "that are unknown, or whose attempt seems to have died. Until Ctrl-C.\n\n"
        "At most 10000 operations are counted, for a second at most; \"+\" says that there may be "
        "more. A Redis or a DynamoDB is walked for this, which costs reads. P50 and P99 are of the "
        "messages, of the handlers or of the store, whichever the page has first. With --json each "
        "look is an object on a line.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax top --watch http://127.0.0.1:8080/hapax-status", "A gate and its store."},
                 {"hapax top --once --json", "For a script."}},
    .args_size = sizeof(struct top_args),
    .defaults = defaults,
    .run = run,
};
