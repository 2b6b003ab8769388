/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP gate: the door between nginx and the flow of the core.
 *
 * There are two objects. A context (ctx) belongs to a request, lives in its pool and has one phase.
 * A call belongs to an operation and embeds the flow. It outlives its request while the flow has
 * something left to do. Each points to the other until the request ends or the flow has answered,
 * whichever comes first. Then both pointers are cut.
 *
 * The module decides nothing: hapax__flow_next() says what to do next. Requests are resumed by
 * posted events only, so no flow is driven from within another's event.
 */

#ifndef _NGX_HTTP_HAPAX_H_INCLUDED_
#define _NGX_HTTP_HAPAX_H_INCLUDED_

/* SHA-256 whose state lies in the context: EVP would allocate twice for each request */
#define OPENSSL_SUPPRESS_DEPRECATED

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>
#include <openssl/sha.h>

#include "core/drive.h"
#include "core/class.h"
#include "core/key.h"
#include "core/owners.h"
#include "core/question.h"
#include "core/token.h"
#include "door/ask.h"
#include "http/traces.h"
#include "json/json.h"
#include "lane/lane.h"
#include "http/prometheus.h"
#include "store/keeper/link.h"
#include "store/seal.h"
#include "store/types.h"
#include "base/clock.h"
#include "base/span.h"
#include "base/tls.h"


/* r->buffered has four bits: ssi 1, sub 2, copy 4, image_filter 8 */
#define NGX_HTTP_HAPAX_BUFFERED     0x08

#define NGX_HTTP_HAPAX_BUCKETS      4096
#define NGX_HTTP_HAPAX_SLOTS        1024    /* NGX_MAX_PROCESSES */
#define NGX_HTTP_HAPAX_ZONES        64

/* what is done with a request, in this order: the lower of two goes */
#define NGX_HTTP_HAPAX_OFF          0
#define NGX_HTTP_HAPAX_SHADOW       1
#define NGX_HTTP_HAPAX_ON           2
#define NGX_HTTP_HAPAX_REQUIRED     3

/* parts of a fingerprint */
#define NGX_HTTP_HAPAX_FP_METHOD    0x01
#define NGX_HTTP_HAPAX_FP_URI       0x02
#define NGX_HTTP_HAPAX_FP_BODY      0x04
#define NGX_HTTP_HAPAX_FP_JSON      0x08
#define NGX_HTTP_HAPAX_FP_OFF       0x10
#define NGX_HTTP_HAPAX_FP_DEFAULT   0x20    /* not set: the default */
#define NGX_HTTP_HAPAX_FP_PUSH      0x40    /* a message without its envelope */
#define NGX_HTTP_HAPAX_FP_HOST      0x80
#define NGX_HTTP_HAPAX_FP_HEADER    0x100   /* those of fp_headers */

/* brokers that push, of hapax_push */
#define NGX_HTTP_HAPAX_PUSH_OFF     0
#define NGX_HTTP_HAPAX_PUSH_DAPR    1
#define NGX_HTTP_HAPAX_PUSH_KNATIVE 2
#define NGX_HTTP_HAPAX_PUSH_SNS     3


/* the pause after a store did not open; it doubles */
#define NGX_HTTP_HAPAX_OPEN_MIN_US  INT64_C(50000)
#define NGX_HTTP_HAPAX_OPEN_MAX_US  INT64_C(1000000)


typedef struct ngx_http_hapax_store_s  ngx_http_hapax_store_t;
typedef struct ngx_http_hapax_keeper_s ngx_http_hapax_keeper_t;
typedef struct ngx_http_hapax_call_s   ngx_http_hapax_call_t;
typedef struct ngx_http_hapax_ctx_s    ngx_http_hapax_ctx_t;
typedef struct ngx_http_hapax_loc_conf_s  ngx_http_hapax_loc_conf_t;


typedef enum {
    NGX_HTTP_HAPAX_READING = 0,     /* the body is being read */
    NGX_HTTP_HAPAX_ASKING,          /* waits for its flow's decision */
    NGX_HTTP_HAPAX_RECONCILING,     /* the hook is asked */
    NGX_HTTP_HAPAX_GRANTED,         /* the content handler may begin */
    NGX_HTTP_HAPAX_RUNNING,         /* the handler may have begun */
    NGX_HTTP_HAPAX_BUFFERING,       /* its response is being buffered */
    NGX_HTTP_HAPAX_SAVING,          /* its outcome is being stored */
    NGX_HTTP_HAPAX_SENDING,         /* the next event sends the response */
    NGX_HTTP_HAPAX_ANSWERING,       /* the gate answers by itself */
    NGX_HTTP_HAPAX_DROPPING,        /* the rest of its response is dropped */
    NGX_HTTP_HAPAX_PASSING          /* all passes from here on */
} ngx_http_hapax_phase_e;


/* How much of a handler's response is kept. */
typedef enum {
    NGX_HTTP_HAPAX_WHOLE = 0,       /* its body is kept */
    NGX_HTTP_HAPAX_HEADER_ONLY,
    NGX_HTTP_HAPAX_STREAM           /* its body is not kept */
} ngx_http_hapax_response_e;


/* What a broker is told of a message, and how a broker reads a response. */
typedef enum {
    NGX_HTTP_HAPAX_TELL_DONE = 0,   /* the message is not delivered again */
    NGX_HTTP_HAPAX_TELL_RETRY,      /* the message is delivered again */
    NGX_HTTP_HAPAX_TELL_DROP,       /* to the dead letters, if there are any */
    NGX_HTTP_HAPAX_TELL_STORED      /* the stored response, as it is */
} ngx_http_hapax_tell_e;


/* What a shadow keeps of a response, in the place of its body. */
typedef enum {
    NGX_HTTP_HAPAX_KEPT_NOTHING = 0,    /* it did not end */
    NGX_HTTP_HAPAX_KEPT_STATUS,         /* its body would not be kept */
    NGX_HTTP_HAPAX_KEPT_WHOLE           /* a digest of its body */
} ngx_http_hapax_kept_e;


/* A response as a shadow knows it. */
typedef struct {
    ngx_uint_t                      status;     /* 0: there is none */
    struct hapax_digest             body;
} ngx_http_hapax_seen_t;


/* The bytes of a buffered response. Its request and its call share them. */
typedef struct {
    ngx_uint_t                      refs;
    ngx_uint_t                      sent;       /* the request's; no outcome needs it */
    size_t                          len;
    size_t                          size;
    u_char                         *data;
} ngx_http_hapax_body_t;


/* A store, a secret and keys. A worker opens a lane over them, or speaks to their keeper itself. */
struct ngx_http_hapax_store_s {
    ngx_str_t                       uri;
    ngx_str_t                       shown;      /* the URI without passwords */
    ngx_str_t                       secret;
    ngx_str_t                       secret_old; /* data NULL: the secret is not being changed */
    const struct hapax__keys       *keys;       /* NULL: nothing is sealed */

    ngx_http_hapax_keeper_t        *keeper;     /* NULL: there is a lane */
    struct hapax__lane             *lane;
    ngx_connection_t               *connection;
    struct hapax__waiters           waiters;
    struct hapax__bucket           *buckets;
    ngx_queue_t                     calls;
    time_t                          logged;
    ngx_uint_t                      dead;       /* the breaker is open, as logged */
    int64_t                         dead_until_us; /* the breaker's, as counted */
};


/* Who asks a store: through a keeper's link, or a lane. */
typedef struct ngx_http_hapax_asker_s  ngx_http_hapax_asker_t;

struct ngx_http_hapax_asker_s {
    struct hapax__asking            asking;     /* to a keeper */
    struct hapax__job               job;        /* to a lane */
    struct hapax_op                *op;
    /* *op is answered. What the answer points to stays until this returns. */
    void                          (*told)(ngx_http_hapax_asker_t *asker);
};


/* A word in a store that lowers what locations say (hapax switch). */
typedef struct {
    ngx_http_hapax_store_t         *store;
    ngx_str_t                       scope;      /* empty: of the whole store */
    ngx_shm_zone_t                 *zone;       /* ngx_atomic_t: fence and word; 0: not known */
    ngx_http_hapax_asker_t          asker;
    struct hapax_op                 op;
    ngx_event_t                     timer;
    enum hapax_error                error;      /* of the last READ */
} ngx_http_hapax_switch_t;


struct ngx_http_hapax_call_s {
    struct hapax__flow              flow;
    ngx_http_hapax_asker_t          asker;
    struct hapax_policy             policy;
    ngx_http_hapax_store_t         *store;
    ngx_http_hapax_ctx_t           *ctx;        /* NULL: cut */
    ngx_http_hapax_body_t          *body;       /* of the outcome */
    u_char                         *headers;    /* of the outcome */
    ngx_event_t                     timer;
    ngx_queue_t                     queue;
    struct hapax__traced            traced;
    const struct hapax__limits     *limits;     /* NULL: none */
    struct hapax_digest             owner;      /* whose limits: or a scope's */
    struct hapax__owners_run       *run;        /* while it counts as in flight */
    ngx_uint_t                      generation; /* of the table that has it */

    /* of a shadow, once its request has them, or is gone */
    ngx_uint_t                      logged;     /* what would have become of it */
    enum hapax_class                ended;      /* 0: the response has not ended */
    ngx_http_hapax_kept_e           kept;
    ngx_http_hapax_seen_t           own;
    ngx_http_hapax_seen_t           first;      /* what would have been replayed */

    uint8_t                         scope[HAPAX_SCOPE_MAX];
    uint8_t                         what[HAPAX_WHAT_MAX];
};


struct ngx_http_hapax_ctx_s {
    ngx_http_request_t             *request;
    ngx_http_hapax_call_t          *call;       /* NULL: none, or cut */
    ngx_http_hapax_phase_e          phase;
    ngx_http_hapax_response_e       response;
    ngx_event_t                     wake;

    enum hapax__key_given           given;
    size_t                          key_len;
    uint8_t                         key[HAPAX_KEY_MAX];
    struct hapax_id                 id;
    SHA256_CTX                      sha256;     /* of the request's body, while it is read */
    off_t                           received;   /* bytes of the request's body */

    ngx_http_handler_pt             content_handler;
    ngx_http_request_t             *hook;       /* the subrequest, while it runs */
    ngx_http_hapax_body_t          *body;
    ngx_chain_t                    *rest;       /* of a response that is not kept */
    ngx_queue_t                     reader;     /* among those whose client reads */
    size_t                          unread;     /* bytes; 0: not among them */

    char                            trace[HAPAX_TRACE_MAX]; /* of the run; "": none */
    struct hapax_answer             answer;
    const char                     *why;        /* BAD_KEY: what is wrong */
    enum hapax__limit               limited;    /* LIMITED: by what */
    uint32_t                        attempt;
    uint64_t                        fence;
    int64_t                         since_us;
    int64_t                         waited_us;

    /* of the location that met the request: redirects do not change it */
    ngx_http_hapax_loc_conf_t      *conf;

    /* of a shadow */
    ngx_http_hapax_seen_t           own;
    ngx_http_hapax_seen_t           first;      /* what would have been replayed */
    SHA256_CTX                      response_sha256;
    size_t                          responded;  /* bytes of the response's body */
    unsigned                        would;      /* enum hapax__would; 0: not known */

    ngx_http_upstream_t            *led_by;         /* whose X-Accel-Redirect came last */

    unsigned                        shadow:1;       /* it is only watched */
    unsigned                        watching:1;     /* and its response is waited for */
    unsigned                        hashing:1;      /* the body goes into sha256 */
    unsigned                        envelope:1;     /* the body wraps a message */
    unsigned                        identified:1;
    unsigned                        failed:1;       /* out of memory: 500 */
    unsigned                        full:1;         /* hapax_held_max */
    unsigned                        hook_last:1;    /* its response has ended */
    unsigned                        hook_over:1;    /* its body is over max_response */
    unsigned                        error_page:1;   /* an error was sent on to another location */
    /* a service was asked, and then the request was sent on to another location */
    unsigned                        elsewhere:1;
    unsigned                        refused:1;      /* the other location might ask two servers */
    unsigned                        half_read:1;    /* its body could not be read to its end */
    unsigned                        led:1;          /* an upstream's own answer led here */
    unsigned                        as_patch:1;     /* r->method has the bit of PATCH too */
};


typedef struct {
    ngx_str_t                       name;
    ngx_str_t                       value;
} ngx_http_hapax_setting_t;


/* Locations that are counted together: hapax_zone. The first, without a name, is all others. */
typedef struct {
    ngx_str_t                       name;
    ngx_shm_zone_t                 *shm;
    struct hapax__counts           *counts;     /* this worker's; NULL: none */
} ngx_http_hapax_zone_t;


typedef struct {
    ngx_array_t                     stores;     /* ngx_http_hapax_store_t * */
    ngx_array_t                     locations;  /* void **, checked at the end */
    ngx_array_t                     switches;   /* ngx_http_hapax_switch_t * */
    ngx_http_hapax_zone_t           zones[NGX_HTTP_HAPAX_ZONES];
    ngx_uint_t                      nzones;
    ngx_shm_zone_t                 *zone;
    ngx_shm_zone_t                 *limit_zone; /* NULL: there are no limits */
    size_t                          limit_zone_size;
    ngx_uint_t                      limits;     /* hapax_limit is used */
    size_t                          held_max;
    ngx_str_t                       traces;     /* with a NUL; NULL: none */
    ngx_str_t                       events;     /* "-": standard output; NULL: none */
    ngx_open_file_t                *events_file;
    ngx_fd_t                        events_output; /* of "-" */
} ngx_http_hapax_main_conf_t;


/* A scope that has limits of its own, since there is no owner. Each worker writes its copy. */
typedef struct {
    struct hapax_digest             digest;     /* of the table's owner */
    size_t                          len;        /* 0: there is none yet */
    u_char                          scope[HAPAX_SCOPE_MAX];
} ngx_http_hapax_limit_scope_t;


struct ngx_http_hapax_loc_conf_s {
    ngx_uint_t                      enable;
    ngx_http_complex_value_t       *mode;       /* says of each request; NULL: enable does */
    /* of the store, and of the scope if that is the same for all requests; or NULL */
    ngx_http_hapax_switch_t        *switches[2];
    ngx_uint_t                      push;
    ngx_uint_t                      methods;
    ngx_str_t                       uri;
    ngx_str_t                       secret;
    ngx_str_t                       secret_old; /* data NULL: the secret is not being changed */
    struct hapax__keys             *keys;
    ngx_http_hapax_store_t         *store;
    ngx_http_hapax_zone_t          *zone;
    ngx_str_t                       key_header;
    ngx_http_complex_value_t       *scope;
    ngx_http_complex_value_t       *owner;
    ngx_http_complex_value_t       *caller;
    ngx_uint_t                      one_caller; /* "hapax_caller none" */
    ngx_uint_t                      fingerprint;
    enum hapax__json_select         select;
    ngx_array_t                    *pointers;   /* struct hapax_span: fingerprint */
    ngx_array_t                    *fp_headers; /* ngx_str_t, in lower case */
    ngx_array_t                    *key_from;   /* struct hapax_span */
    ngx_array_t                    *settings;   /* ngx_http_hapax_setting_t */
    ngx_array_t                    *classes;    /* struct hapax__class_rule */
    ngx_array_t                    *hide;       /* ngx_str_t, in lower case */
    ngx_array_t                    *keep;       /* ngx_str_t, in lower case */
    ngx_uint_t                      in_flight_status;
    ngx_str_t                       problem_base;
    ngx_str_t                       problem_template;   /* empty: rfc9457 */
    ngx_http_complex_value_t       *reconcile;
    struct hapax__limits           *limits;
    ngx_http_hapax_limit_scope_t    limit_scope;    /* of the last request */
    struct hapax_policy             policy;
};


typedef struct {
    ngx_uint_t                      problems;   /* types of problems are paths of this server */
} ngx_http_hapax_srv_conf_t;


/* What a worker counts besides its flows, in shared memory. The next worker of a slot goes on from
 * that. */
typedef struct {
    struct hapax__lane_counts       lane;
    ngx_atomic_t                    limited[HAPAX__LIMITS];
    ngx_atomic_t                    told[NGX_HTTP_HAPAX_TELL_STORED];
    ngx_atomic_t                    dead;       /* until this boot time; of all: how many */
    ngx_atomic_t                    in_flight;
    ngx_atomic_t                    queued;
    ngx_atomic_t                    held;
    ngx_atomic_t                    unread;
    ngx_atomic_t                    traces_sent;
    ngx_atomic_t                    traces_dropped;
    ngx_atomic_t                    events_dropped;
} ngx_http_hapax_counts_t;


/* the module */

extern ngx_module_t  ngx_http_hapax_module;

ngx_http_hapax_ctx_t *ngx_http_hapax_get_ctx(ngx_http_request_t *r);
void ngx_http_hapax_cleanup(void *data);

/* configuration */

extern ngx_command_t  ngx_http_hapax_commands[];    /* in ngx_http_hapax_directives.c */

void *ngx_http_hapax_create_main_conf(ngx_conf_t *cf);
void *ngx_http_hapax_create_srv_conf(ngx_conf_t *cf);
char *ngx_http_hapax_init_main_conf(ngx_conf_t *cf, void *conf);
void *ngx_http_hapax_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_hapax_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);
ngx_int_t ngx_http_hapax_check_locations(ngx_conf_t *cf);
/* Returns the name of a directive by which a request may go to two servers in a location; NULL:
 * there is none. */
const char *ngx_http_hapax_runs_twice(void **loc_conf);

/* lanes and calls */

ngx_int_t ngx_http_hapax_lane_open(ngx_http_hapax_store_t *store, ngx_log_t *log);
void ngx_http_hapax_lane_close(ngx_http_hapax_store_t *store);
void ngx_http_hapax_lane_log(ngx_http_hapax_store_t *store, ngx_log_t *log,
    enum hapax_error error);

/* Begins a flow for a request that was identified and is in ASKING. ERROR: out of memory, or the
 * lane cannot be opened. */
ngx_int_t ngx_http_hapax_call_begin(ngx_http_hapax_ctx_t *ctx, ngx_http_hapax_loc_conf_t *conf,
    struct hapax__flow_request *request);
/* Reports how the handler, or the hook, has ended. The call must own what the outcome points to. */
void ngx_http_hapax_call_ended(ngx_http_hapax_call_t *call, enum hapax_class cls,
    const struct hapax_outcome *outcome);
/* The request has ended: cuts the pointers, and lets the flow finish without it. */
void ngx_http_hapax_call_cut(ngx_http_hapax_ctx_t *ctx);
/* Lets flows go on after an event. The call may be gone afterwards. */
void ngx_http_hapax_call_drive(ngx_http_hapax_call_t *call);

/* Speaks to the store's keeper in this worker's events. DECLINED: the store is none that a keeper
 * serves, or its URI is wrong. ERROR: out of memory. */
ngx_int_t ngx_http_hapax_keeper_open(ngx_http_hapax_store_t *store);
void ngx_http_hapax_keeper_close(ngx_http_hapax_store_t *store);
/* The text of the last failure. */
const char *ngx_http_hapax_keeper_text(ngx_http_hapax_store_t *store);
/* Sends an asker's op, and what it borrows. DECLINED: the op has its error already. */
ngx_int_t ngx_http_hapax_keeper_put(ngx_http_hapax_store_t *store,
    struct hapax__asking *asking);
/* The op of an asker's asking is answered. */
void ngx_http_hapax_asking_told(struct hapax__asking *asking);

/* Asks the store, by its keeper or its lane; asker->told() when the op is answered. deadline_us: as
 * of a job. DECLINED: the op has its error already. */
ngx_int_t ngx_http_hapax_ask(ngx_http_hapax_store_t *store, ngx_http_hapax_asker_t *asker,
    int64_t deadline_us);

/* Makes a store that opens when it is first used, in the lane's thread, and again after failures.
 * NULL: out of memory; text says so. */
struct hapax_store *ngx_http_hapax_late_open(ngx_http_hapax_store_t *store,
    char text[HAPAX_TEXT_MAX]);

/* switches */

/* Finds the switch of a store, or of a scope in it, or makes it. NULL: out of memory. */
ngx_http_hapax_switch_t *ngx_http_hapax_switch_find(ngx_conf_t *cf, ngx_http_hapax_store_t *store,
    ngx_str_t *scope);
/* Begins to look at them, and ends that. */
void ngx_http_hapax_switches_open(ngx_http_hapax_main_conf_t *hmcf);
void ngx_http_hapax_switches_close(ngx_http_hapax_main_conf_t *hmcf);
/* The last word that is known; 0: none. */
ngx_uint_t ngx_http_hapax_switch_word(ngx_http_hapax_switch_t *s);
/* The mode, as far as the switches of the location leave it. */
ngx_uint_t ngx_http_hapax_switch_lower(ngx_http_hapax_loc_conf_t *conf, ngx_uint_t mode);
/* The lowest word of all. */
ngx_uint_t ngx_http_hapax_switch_lowest(ngx_http_hapax_main_conf_t *hmcf);

/* limits */

ngx_int_t ngx_http_hapax_limit_zone_init(ngx_shm_zone_t *zone, void *data);
void ngx_http_hapax_limit_worker_init(ngx_shm_zone_t *zone);
void ngx_http_hapax_limit_worker_exit(void);
/* Before the flow begins: tells it of a limit that was reached. */
void ngx_http_hapax_limit_look(ngx_http_hapax_call_t *call, ngx_http_hapax_loc_conf_t *conf,
    struct hapax__flow_request *request);
/* Before the handler or the hook: counts the operation. DECLINED: *over says which limit is
 * reached, and nothing is counted. */
ngx_int_t ngx_http_hapax_limit_begin(ngx_http_hapax_call_t *call, struct hapax__over *over);
/* After each op: counts what it has stored. */
void ngx_http_hapax_limit_stored(ngx_http_hapax_call_t *call);
void ngx_http_hapax_limit_end(ngx_http_hapax_call_t *call);

#define NGX_HTTP_HAPAX_REFUSALS  8

/* Who was refused of late, and why. */
typedef struct {
    struct hapax_digest             owner;
    enum hapax__limit               limit;
    ngx_uint_t                      times;      /* 0: nobody */
    ngx_uint_t                      number;     /* of the last refusal, among all */
    time_t                          last;
} ngx_http_hapax_refusal_t;

/* Notes that the call was refused. */
void ngx_http_hapax_limit_refused(ngx_http_hapax_call_t *call);
/* Those who were refused last, in no order. */
void ngx_http_hapax_limit_refusals(ngx_http_hapax_refusal_t out[NGX_HTTP_HAPAX_REFUSALS]);
/* How many owners are known, and how many were forgotten. */
void ngx_http_hapax_limit_counts(uint64_t *known, uint64_t *forgotten);

/* requests */

ngx_int_t ngx_http_hapax_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_hapax_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in);
void ngx_http_hapax_wake_handler(ngx_event_t *ev);
/* Fills *request once the body was read. DECLINED: the answer needs no store; ctx->given and
 * request->too_large say why. */
ngx_int_t ngx_http_hapax_identify(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request);

/* Whether the request is known by what is in its body, and not by the body's digest alone. */
ngx_uint_t ngx_http_hapax_needs_body(ngx_http_hapax_ctx_t *ctx, ngx_http_hapax_loc_conf_t *conf);
/* Decides about a request that needs no store: the flow has the answer, and is over. Returns
 * whether the handler runs. */
ngx_uint_t ngx_http_hapax_decide_alone(struct hapax__flow *flow, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t too_large);

/* The key is given, and no key. The text `why` is not copied. */
void ngx_http_hapax_bad_key(ngx_http_hapax_ctx_t *ctx, const char *why);

/* headers */

/* Whether two names are equal, where '_' counts as '-'. */
ngx_int_t ngx_http_hapax_header_named(ngx_str_t *given, ngx_str_t *name);
/* Returns the next header of a list, NULL at the end. Start with its first part, and *i 0. */
ngx_table_elt_t *ngx_http_hapax_header_next(ngx_list_part_t **part, ngx_uint_t *i);
/* Adds a header, and copies neither name nor value. name NULL: the caller sets the key. */
ngx_table_elt_t *ngx_http_hapax_header(ngx_list_t *list, const char *name, u_char *value,
    size_t len);
/* Returns the last header of that name, where '_' counts as '-', or NULL. *n: how many there are.
 * *exact: the last one is spelled exactly so. */
ngx_table_elt_t *ngx_http_hapax_find_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_uint_t *n, ngx_uint_t *exact);

extern ngx_http_request_body_filter_pt  ngx_http_hapax_next_request_body_filter;

/* responses */

extern ngx_http_output_header_filter_pt  ngx_http_hapax_next_header_filter;
extern ngx_http_output_body_filter_pt    ngx_http_hapax_next_body_filter;

ngx_int_t ngx_http_hapax_header_filter(ngx_http_request_t *r);
ngx_int_t ngx_http_hapax_body_filter(ngx_http_request_t *r, ngx_chain_t *in);

/* Whether the response is one that does not end by itself. */
ngx_int_t ngx_http_hapax_is_stream(ngx_http_request_t *r);

/* Called by nginx when the subrequest of hapax_reconcile ends. */
ngx_int_t ngx_http_hapax_hook_done(ngx_http_request_t *sr, void *data, ngx_int_t rc);

ngx_http_hapax_body_t *ngx_http_hapax_body_create(void);
ngx_int_t ngx_http_hapax_body_append(ngx_http_hapax_body_t *body, u_char *data, size_t len,
    size_t max);
void ngx_http_hapax_body_drop(ngx_http_hapax_body_t *body);
/* The client's turn: the body is no longer buffered, as soon as no outcome needs it. */
void ngx_http_hapax_body_sent(ngx_http_hapax_body_t *body);

/* readers: requests whose whole answer is in memory, until the client has read it */

void ngx_http_hapax_readers_init(void);
/* Adds a request whose answer has that many bytes. Over hapax_held_max the connections that have
 * not been read from for longest are closed, as by send_timeout. */
void ngx_http_hapax_reader_add(ngx_http_hapax_ctx_t *ctx, size_t len);
/* The client has read something. */
void ngx_http_hapax_reader_reads(ngx_http_hapax_ctx_t *ctx);
void ngx_http_hapax_reader_remove(ngx_http_hapax_ctx_t *ctx);

/* shadows: requests that are only watched */

/* Begins to watch a request whose key was looked for. */
ngx_int_t ngx_http_hapax_shadow_begin(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx);
/* The same for one that is judged without its body, and without a store. */
void ngx_http_hapax_shadow_alone(ngx_http_hapax_ctx_t *ctx, ngx_uint_t too_large);
/* A part of its body was read and saved: perhaps the last one. */
void ngx_http_hapax_shadow_read(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx);
/* Its flow says RUN, RECONCILE, ABANDON or ANSWER. */
void ngx_http_hapax_shadow_act(ngx_http_hapax_call_t *call, enum hapax__flow_do what);
/* Its response passes by. */
void ngx_http_hapax_shadow_header(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx);
void ngx_http_hapax_shadow_body(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx, ngx_chain_t *in);
/* The request has ended. */
void ngx_http_hapax_shadow_cut(ngx_http_hapax_ctx_t *ctx);
/* A call of a shadow begins (1) or ends (-1). */
void ngx_http_hapax_shadow_count(ngx_int_t change);
ngx_int_t ngx_http_hapax_mode_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data);
ngx_int_t ngx_http_hapax_shadow_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data);

/* outcomes */

/* Returns 0 if an upstream was to be asked, and no byte of the request was sent to one. */
ngx_int_t ngx_http_hapax_was_sent(ngx_http_request_t *r);
/* Judges a response by the location in which the request was met. */
enum hapax_class ngx_http_hapax_class(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx);
/* Whether the upstream's answer leads to another location. */
ngx_uint_t ngx_http_hapax_is_accel(ngx_http_upstream_t *u);
/* Whether half of the upstream's response would look whole. */
bool ngx_http_hapax_ends_by_close(ngx_http_request_t *r);
/* trace: of the run that gave the response; "": none */
u_char *ngx_http_hapax_headers_write(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    ngx_uint_t with_length, const char *trace, size_t *len);
ngx_int_t ngx_http_hapax_headers_read(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    struct hapax_span headers);
ngx_int_t ngx_http_hapax_location_absolute(ngx_http_request_t *r);

/* answers */

ngx_int_t ngx_http_hapax_answer_handler(ngx_http_request_t *r);
/* Sets status, headers and *body of the gate's own answer. */
ngx_int_t ngx_http_hapax_answer_fill(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body);
/* Adds the headers that mark a handler's own response. */
ngx_int_t ngx_http_hapax_answer_mark(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx);
/* Sends the header that was set, and a body as its whole. */
ngx_int_t ngx_http_hapax_send_whole(ngx_http_request_t *r, ngx_str_t *body);

/* problems */

struct hapax__problem_page;

/* Sets status, headers and *body of a problem. The caller sets problem, status, why and
 * original_status of the page. */
ngx_int_t ngx_http_hapax_say(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    struct hapax__problem_page *page, ngx_str_t *body);
/* The same in the place of a response that was cut off, and of nginx's own 502 and 504. */
ngx_int_t ngx_http_hapax_say_truncated(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body);
ngx_int_t ngx_http_hapax_say_failed(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body);

char *ngx_http_hapax_set_template(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
/* Serves the pages below HAPAX__PROBLEM_PATH, in every server that names them in its answers. */
ngx_int_t ngx_http_hapax_problems_phase(ngx_http_request_t *r);
char *ngx_http_hapax_set_problems(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* brokers that push */

/* Reads the headers of a message: finds the key, or that the body is an envelope with the key. */
ngx_int_t ngx_http_hapax_push_begin(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf);
ngx_int_t ngx_http_hapax_push_key(ngx_http_hapax_ctx_t *ctx, struct hapax_span body);
enum hapax__json_result ngx_http_hapax_push_fingerprint(struct hapax_digest *out,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body);
/* The default scope: the subscriber, as host and path. */
ngx_int_t ngx_http_hapax_push_scope(ngx_http_request_t *r, ngx_str_t *scope);
/* How a broker reads a response. */
ngx_http_hapax_tell_e ngx_http_hapax_push_of(ngx_uint_t push, ngx_uint_t status,
    struct hapax_span body);
/* What the gate's own answer means for the broker. Counts it, and logs it unless it is DONE. */
ngx_http_hapax_tell_e ngx_http_hapax_push_tell(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf);

/* traces and events */

ngx_int_t ngx_http_hapax_traces_init(ngx_cycle_t *cycle, ngx_http_hapax_main_conf_t *hmcf);
void ngx_http_hapax_traces_open(ngx_http_hapax_main_conf_t *hmcf, ngx_log_t *log);
void ngx_http_hapax_traces_close(void);
/* Before the flow begins. */
void ngx_http_hapax_traces_begin(ngx_http_hapax_ctx_t *ctx, ngx_http_hapax_call_t *call);
/* The flow gives its answer. */
void ngx_http_hapax_traces_answer(ngx_http_hapax_call_t *call);
char *ngx_http_hapax_set_events(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
ngx_int_t ngx_http_hapax_traces_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data);

/* counting */

extern ngx_http_hapax_counts_t  *ngx_http_hapax_counts;
/* the bytes of responses that this worker buffers */
extern size_t                    ngx_http_hapax_buffered;

/* Adds n to a field of ngx_http_hapax_counts_t, in the slot of this worker. */
#define ngx_http_hapax_count(field, n)                                        \
    if (ngx_http_hapax_counts) {                                              \
        (void) ngx_atomic_fetch_add(&ngx_http_hapax_counts->field, n);        \
    }

/* Whether the zone has its data already: a reload goes on counting. Sets zone->data. */
ngx_uint_t ngx_http_hapax_zone_kept(ngx_shm_zone_t *zone, void *data);
ngx_int_t ngx_http_hapax_zone_init(ngx_shm_zone_t *zone, void *data);
ngx_int_t ngx_http_hapax_zone_init_flows(ngx_shm_zone_t *zone, void *data);
void ngx_http_hapax_count_buffered(ssize_t change);
char *ngx_http_hapax_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_HTTP_HAPAX_H_INCLUDED_ */
