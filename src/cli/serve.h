/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax serve, in three parts: serve.c opens the store and watches nginx, serve_conf.c reads the
 * options and writes nginx's configuration, serve_nginx.c finds nginx, tries it and starts it.
 */
#ifndef HAPAX_CLI_SERVE_H
#define HAPAX_CLI_SERVE_H

#include "policies.h"

#define SERVE_POLICIES (CLI_POLICIES + 1)
#define SERVE_NAME_MAX 255u
#define SERVE_URI_MAX  (PATH_MAX + 64)

struct serve_args {
    struct cli_args args;
    const char *upstream;
    const char *upstream_ca;
    const char *listen;
    const char *scope;
    const char *key_header;
    const char *key_from;
    const char *caller;
    const char *fingerprint;
    const char *methods;
    const char *push;
    const char *auth_request;
    const char *reconcile;
    const char *tls_cert;
    const char *tls_key;
    const char *nginx;
    const char *module;
    struct cli_texts classes;
    struct cli_texts locations;
    int64_t workers; /* 0: one per processor */
    bool access_log;
    bool config_only;
    const char *policies[SERVE_POLICIES]; /* in the order of options; NULL: the default */
};

/* The options of the policies come last, in the order of policies[]. */
extern const struct cli_option serve_options[];
extern const size_t serve_option_count;

/* ---- the configuration ----------------------------------------------------------------- */

struct serve_address {
    char host[SERVE_NAME_MAX + 1]; /* IPv6 without its brackets */
    char port[6];
    bool v6;
};

struct serve_url {
    struct serve_address at;
    bool tls;
    char path[1024]; /* as it came; empty: none */
};

/* What the configuration is made of. Texts are borrowed. */
struct serve_conf {
    const struct serve_args *args;
    struct serve_url upstream;
    struct serve_url auth_request; /* all zero: none */
    struct serve_url reconcile;
    struct serve_address listen;
    struct hapax_policy policy; /* of the server; locations may differ */
    char store[SERVE_URI_MAX]; /* as the workers reach it */
    char tls_cert[PATH_MAX]; /* absolute; empty: none */
    char tls_key[PATH_MAX];
    char upstream_ca[PATH_MAX];
    const char *folder; /* of what nginx writes; NULL: nginx's own */
    const char *user; /* whom workers run as; NULL: whoever starts nginx */
    const char *group;
    const char *module;
    const char *secret; /* a file; NULL: none */
    unsigned version; /* 1.22.1 is 1022001; 0: not known */
};

/* Reads and checks all options. A wrong one is printed, and CLI_USAGE is returned. */
enum cli_exit serve_conf_read(struct serve_conf *conf, const struct serve_args *args);

/* Writes the configuration: for nginx as this process's child or, where folder is NULL, for an
 * nginx of the user's. */
void serve_conf_write(FILE *out, const struct serve_conf *conf);

/* Writes an address as in a URL, IPv6 in brackets: "[::1]:8080". */
void serve_address_text(char out[SERVE_NAME_MAX + 16], const struct serve_address *address);

/* ---- nginx ------------------------------------------------------------------------------ */

struct serve_nginx {
    char program[PATH_MAX];
    char module[PATH_MAX];
    unsigned version; /* 0: there is no nginx */
    pid_t master; /* and its process group; 0: not started */
};

/* Finds nginx and the module, and looks at the version. */
enum cli_exit serve_nginx_find(struct serve_nginx *nginx, const struct serve_args *args);

/* Lets nginx check the configuration FOLDER/nginx.conf, and prints nginx's line if it refuses. */
enum cli_exit serve_nginx_try(const struct serve_nginx *nginx, const struct serve_args *args,
                              const char *folder);

/* Starts nginx as a child. It ends when this process ends, even by SIGKILL. */
enum cli_exit serve_nginx_start(struct serve_nginx *nginx, const struct serve_args *args,
                                const char *folder);

/* Whether nginx has ended by itself; *status is waitpid()'s. Processes that it left are killed. */
bool serve_nginx_ended(struct serve_nginx *nginx, int *status);

/* Whether nginx can have the address: binds it, and releases it again. */
enum cli_exit serve_address_try(const struct serve_args *args, const struct serve_address *address);

/* Whether somebody accepts connections there. */
bool serve_address_accepts(const struct serve_address *address);

#endif
