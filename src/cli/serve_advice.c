/* SPDX-License-Identifier: Apache-2.0
 *
 * What the settings of hapax serve promise, and which of them are dangerous.
 */
#include "serve.h"

#include "base/uri.h"

#include <string.h>

void serve_door(struct cli_door *door, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;

    *door = (struct cli_door){
        .policy = &conf->policy,
        .mode = strcmp(args->mode, "on") == 0 ? NULL : args->mode,
        .on_percent = args->on_percent,
        .differs = args->classes.n > 0 || args->locations.n > 0,
        .owner = args->owner,
        .caller = args->caller,
        .scope = args->scope,
        .apart = args->push ? "keys are the broker's"
                            : "callers are told apart by their credentials (Authorization, Cookie, "
                              "X-Api-Key and the like)",
        .risk = args->push ? NULL
                           : "no --owner: tenants who are told apart by something else than "
                             "credentials (a host, a path, a header) share keys, and are given one "
                             "another's answers; name what says whose key it is",
        .classes = &args->classes,
    };
}

/* Warns of each of these words in a location, whatever the server's own policy is. */
static void advise_locations(const struct cli_advice *to, const struct serve_args *args)
{
    static const char *const words[] = {
        "on_store_error=open", "on-store-error=open", "on_expired=rerun",   "on-expired=rerun",
        "on_failed=retry",     "on-failed=retry",     "rerun_completed=on", "rerun-completed=on"};

    for (size_t i = 0; i < args->locations.n; i++)
        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
            if (strstr(args->locations.items[i], words[k]))
                cli_advise(to, CLI_WARNING,
                           "--location \"%.100s\": %s lets an effect happen twice there; keep it "
                           "to what may be repeated",
                           args->locations.items[i], words[k]);
}

static void advise_addresses(const struct cli_advice *to, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;
    bool near = hapax__host_is_near(conf->listen.host, strlen(conf->listen.host));

    cli_advise_wire(to, CLI_WARNING, "upstream", args->upstream);
    cli_advise_wire(to, CLI_WARNING, "auth-request", args->auth_request);
    cli_advise_wire(to, CLI_WARNING, "reconcile", args->reconcile);
    if (!near && !args->tls_cert)
        cli_advise(to, CLI_WARNING,
                   "--listen %s without --tls-cert: whoever can listen on the way reads keys, "
                   "credentials and answers; give it a certificate, or listen at 127.0.0.1 behind "
                   "what has one",
                   args->listen);
    if (args->status && !hapax__host_is_near(conf->status.host, strlen(conf->status.host)))
        cli_advise(to, CLI_WARNING,
                   "--status %s: whoever reaches that address reads how many requests there are "
                   "and how they end; use 127.0.0.1",
                   args->status);
    if (!args->status && near)
        cli_advise(to, CLI_WARNING,
                   "/hapax-status is open to this machine: if requests of others come through a "
                   "program here (a proxy, a tunnel), it is open to them; set --status "
                   "127.0.0.1:8081");
}

void serve_advise(const struct cli_advice *to, const struct serve_conf *conf)
{
    struct cli_door door;

    serve_door(&door, conf);
    cli_advise_door(to, &door);
    advise_locations(to, conf->args);
    advise_addresses(to, conf);
}
