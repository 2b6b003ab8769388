/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include "base/span.h"
#include "lane/census.h"

struct hapax__page_place cli_metrics_place(const struct cli_metrics *metrics)
{
    return (struct hapax__page_place){metrics->address, metrics->anywhere};
}

enum cli_exit cli_metrics_failed(const struct cli_args *args, enum hapax_error error,
                                 const char *text)
{
    return cli_fail(args, error == HAPAX_ERR_NOMEM ? CLI_UNREACHED : CLI_USAGE, error, "--%s",
                    text);
}

struct hapax__census *cli_census_open(const char *uri)
{
    struct hapax__census *census = NULL;
    struct hapax_store *store = NULL;
    char text[HAPAX_TEXT_MAX];

    /* Each handle of `memory:` is a store of its own. */
    if (hapax__text_begins(uri, "memory:"))
        return NULL;
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        store = NULL;
    if (hapax__census_open(&census, store, uri) != HAPAX_ERR_NONE)
        hapax_store_close(store);
    return census;
}
