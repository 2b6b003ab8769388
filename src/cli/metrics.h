/* SPDX-License-Identifier: Apache-2.0
 *
 * --metrics HOST:PORT of the commands that run on.
 */
#ifndef HAPAX_CLI_METRICS_H
#define HAPAX_CLI_METRICS_H

#include "cli.h"
#include "http/pages.h"

struct cli_metrics {
    const char *address; /* NULL: no page */
    bool anywhere;
};

/* Rows of a command's table of options, for its field of struct cli_metrics. */
#define CLI_METRICS_OPTIONS(type, field)                                                           \
    CLI_TEXT_OPTION(type, field.address, "metrics", "HOST:PORT",                                   \
                    "Serve /metrics and /health there (default: nowhere)"),                        \
    {                                                                                              \
        "metrics-public", NULL, CLI_FLAG, offsetof(type, field.anywhere), 0, 0,                    \
            "That address may be one that other machines reach"                                    \
    }

/* Where to serve; `address` must be set. */
struct hapax__page_place cli_metrics_place(const struct cli_metrics *metrics);

/* Prints why the page could not be opened. */
enum cli_exit cli_metrics_failed(const struct cli_args *args, enum hapax_error error,
                                 const char *text);

struct hapax__census;

/* Opens a second handle of the store to count its unfinished operations and to ask for its vitals
 * (lane/census.h). NULL: a page does without. uri must live as long as the census. */
struct hapax__census *cli_census_open(const char *uri);

#endif
