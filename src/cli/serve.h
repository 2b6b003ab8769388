/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax serve, in three parts: serve.c opens the store and watches nginx, serve_conf.c reads the
 * options and writes nginx's configuration, serve_nginx.c finds nginx, tries it and starts it.
 */
#ifndef HAPAX_CLI_SERVE_H
#define HAPAX_CLI_SERVE_H

#include "advice.h"
#include "metrics.h"
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
    const char *owner;
    const char *caller;
    const char *fingerprint;
    const char *methods;
    const char *push;
    const char *mode; /* on, shadow or off */
    int64_t on_percent; /* 0: all keys are as `mode` says */
    const char *auth_request;
    const char *reconcile;
    const char *problem_template;
    const char *problem_base;
    const char *tls_cert;
    const char *tls_key;
    const char *client_ca;
    const char *status;
    struct cli_metrics metrics;
    const char *user;
    const char *nginx;
    const char *module;
    struct cli_texts classes;
    struct cli_texts locations;
    struct cli_texts cors;
    int64_t workers; /* 0: one per processor */
    int64_t drain_ms;
    int64_t max_body; /* -1: the largest max_request */
    const char *limit;
    int64_t limit_requests; /* 0: none */
    int64_t limit_connections; /* 0: none */
    const char *access_log; /* NULL: none; text or json */
    struct cli_telling telling;
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
    char owner_header[64]; /* of --owner auth:NAME, as in a variable's name; empty: none */
    struct serve_address listen;
    struct serve_address status; /* all zero: the page is at `listen` */
    struct hapax_policy policy; /* of the server; locations may differ */
    int64_t longest_ms; /* what an operation may take, where it may take longest */
    int64_t answer_wait_ms; /* the longest that a response waits for the store */
    size_t max_request; /* the largest */
    char store[SERVE_URI_MAX]; /* as the workers reach it */
    char problem_template[PATH_MAX]; /* a name, or a file's absolute path; empty: none */
    uint8_t template_bytes[4096]; /* HAPAX__PROBLEM_TEMPLATE_MAX */
    struct hapax_span template; /* what is in it; empty: rfc9457 */
    char tls_cert[PATH_MAX]; /* absolute; empty: none */
    char tls_key[PATH_MAX];
    char client_ca[PATH_MAX];
    char upstream_ca[PATH_MAX];
    char events[PATH_MAX]; /* absolute, or "-"; empty: none */
    const char *folder; /* of what nginx writes; NULL: nginx's own */
    bool on_trial; /* listen at a socket in the folder instead */
    const char *user; /* whom workers run as; NULL: as nginx itself has it */
    const char *group;
    const char *module;
    const char *secret, *keys; /* files; NULL: none */
    const char *secret_old; /* the same, or "none" */
    unsigned version; /* 1.22.1 is 1022001; 0: not known */
};

/* Reads and checks all options. A wrong one is printed, and CLI_USAGE is returned. */
enum cli_exit serve_conf_read(struct serve_conf *conf, const struct serve_args *args);

/* On trial, before a line that an option made: this, the option, a tab, and its value. */
#define SERVE_MARK "#--"

/* Writes the configuration: for nginx as this process's child or, where folder is NULL, for an
 * nginx of the user's. */
void serve_conf_write(FILE *out, const struct serve_conf *conf);

/* Makes a path absolute, for a process with another working folder. Links in the path stay links.
 * False: errno says why. */
bool serve_absolute(char out[PATH_MAX], const char *path);

/* The same for a file that nginx reads anew at each reload, when a link may lead to another file.
 * False, too, if the file cannot be read, or cannot be found again, as a pipe. */
bool serve_file_name(char out[PATH_MAX], const char *path);

/* Writes an address as in a URL, IPv6 in brackets: "[::1]:8080". */
void serve_address_text(char out[SERVE_NAME_MAX + 16], const struct serve_address *address);

/* ---- advice -------------------------------------------------------------------------------- */

/* What all doors have of it. Borrows from conf. */
void serve_door(struct cli_door *door, const struct serve_conf *conf);

/* Says what the settings promise, and which are dangerous. */
void serve_advise(const struct cli_advice *to, const struct serve_conf *conf);

/* ---- metrics ---------------------------------------------------------------------------- */

struct serve_metrics;

/* Serves the page of --metrics: what the workers count, which nginx tells at FOLDER/metrics.sock,
 * what the keeper counts, and the census of the store. keeper: this process is one. conf is
 * borrowed until the close. *out is NULL without --metrics. */
enum cli_exit serve_metrics_open(struct serve_metrics **out, const struct serve_conf *conf,
                                 bool keeper);
uint16_t serve_metrics_port(const struct serve_metrics *metrics);

void serve_metrics_close(struct serve_metrics *metrics); /* NULL: does nothing */

/* ---- nginx ------------------------------------------------------------------------------ */

struct serve_nginx {
    char program[PATH_MAX];
    char module[PATH_MAX];
    unsigned version; /* 0: there is no nginx */
    pid_t master; /* and its process group; 0: not started */
};

/* Finds nginx and the module, and looks at the version. */
enum cli_exit serve_nginx_find(struct serve_nginx *nginx, const struct serve_args *args);

/* Lets nginx check the configuration FOLDER/nginx.conf, which is on trial. If nginx refuses it,
 * prints why, and of which option. */
enum cli_exit serve_nginx_try(const struct serve_nginx *nginx, const struct serve_args *args,
                              const char *folder);

/* Starts nginx as a child. It ends when this process ends, even by SIGKILL. */
enum cli_exit serve_nginx_start(struct serve_nginx *nginx, const struct serve_args *args,
                                const char *folder);

/* Whether nginx has ended by itself; *status is waitpid()'s. Processes that it left are killed. */
bool serve_nginx_ended(struct serve_nginx *nginx, int *status);

#define SERVE_TAKEN_MAX 16u

/* Sockets that are bound to the address, and do not listen: nginx can have it, and nobody else. */
struct serve_taken {
    int fds[SERVE_TAKEN_MAX];
    size_t n;
};

/* Takes the address for nginx; port 0 becomes a free one. Nobody listens there yet: a probe that
 * meets an open port takes the gate for ready. The sockets are added to *taken, which begins as
 * zero; on CLI_DONE it is yours to release. */
enum cli_exit serve_address_take(struct serve_taken *taken, const struct serve_args *args,
                                 struct serve_address *address);
void serve_address_release(struct serve_taken *taken);

/* Whether somebody accepts connections there. */
bool serve_address_accepts(const struct serve_address *address);

#endif
