/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP gate: the door between nginx and the flow of the core.
 *
 * Two things are kept apart. A context (ctx) belongs to a request and lives in its pool; it has one
 * phase. A call belongs to an operation: it embeds the flow, and outlives its request where the
 * flow has something left to do. Each points to the other until the request ends or the flow
 * has answered, whichever comes first; then both pointers are cut.
 *
 * The module decides nothing: what is to be done comes from hapax__flow_next(), and requests are
 * resumed by posted events only, so that no flow is driven from within another's event.
 */

#ifndef _NGX_HTTP_HAPAX_H_INCLUDED_
#define _NGX_HTTP_HAPAX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>
#include <openssl/evp.h>

#include "core/drive.h"
#include "core/key.h"
#include "core/token.h"
#include "json/json.h"
#include "lane/lane.h"
#include "base/clock.h"


/* r->buffered has four bits: ssi 1, sub 2, copy 4, image_filter 8 */
#define NGX_HTTP_HAPAX_BUFFERED     0x08

#define NGX_HTTP_HAPAX_BUCKETS      4096
#define NGX_HTTP_HAPAX_SLOTS        1024    /* NGX_MAX_PROCESSES */
#define NGX_HTTP_HAPAX_ANSWERS      13      /* of enum hapax_answer_kind, and 0 */
#define NGX_HTTP_HAPAX_TIMES        12      /* buckets of the histogram */

#define NGX_HTTP_HAPAX_OFF          0
#define NGX_HTTP_HAPAX_ON           1
#define NGX_HTTP_HAPAX_REQUIRED     2

/* parts of a fingerprint */
#define NGX_HTTP_HAPAX_FP_METHOD    0x01
#define NGX_HTTP_HAPAX_FP_URI       0x02
#define NGX_HTTP_HAPAX_FP_BODY      0x04
#define NGX_HTTP_HAPAX_FP_JSON      0x08
#define NGX_HTTP_HAPAX_FP_OFF       0x10
#define NGX_HTTP_HAPAX_FP_DEFAULT   0x20    /* none was set; the rest is ours */
#define NGX_HTTP_HAPAX_FP_PUSH      0x40    /* what a message says, without its envelope */

/* brokers that push, of hapax_push */
#define NGX_HTTP_HAPAX_PUSH_OFF     0
#define NGX_HTTP_HAPAX_PUSH_DAPR    1
#define NGX_HTTP_HAPAX_PUSH_KNATIVE 2
#define NGX_HTTP_HAPAX_PUSH_SNS     3


typedef struct ngx_http_hapax_store_s  ngx_http_hapax_store_t;
typedef struct ngx_http_hapax_call_s   ngx_http_hapax_call_t;
typedef struct ngx_http_hapax_ctx_s    ngx_http_hapax_ctx_t;


typedef enum {
    NGX_HTTP_HAPAX_READING = 0,     /* the body is being read */
    NGX_HTTP_HAPAX_ASKING,          /* suspended, until the flow says what next */
    NGX_HTTP_HAPAX_RECONCILING,     /* the hook is to be asked, or is */
    NGX_HTTP_HAPAX_GRANTED,         /* the content handler may begin */
    NGX_HTTP_HAPAX_RUNNING,         /* it may have begun; no response yet */
    NGX_HTTP_HAPAX_BUFFERING,       /* the response comes in and is buffered */
    NGX_HTTP_HAPAX_SAVING,          /* the handler's end is being stored */
    NGX_HTTP_HAPAX_SENDING,         /* answered; goes out with the next event */
    NGX_HTTP_HAPAX_ANSWERING,       /* a replay or a problem, made by us */
    NGX_HTTP_HAPAX_DROPPING,        /* answered otherwise; what still comes is dropped */
    NGX_HTTP_HAPAX_PASSING          /* no more to do */
} ngx_http_hapax_phase_e;


/* What is known of a handler's response. */
typedef enum {
    NGX_HTTP_HAPAX_WHOLE = 0,       /* its body is kept */
    NGX_HTTP_HAPAX_HEADER_ONLY,
    NGX_HTTP_HAPAX_STREAM           /* its body is not kept */
} ngx_http_hapax_response_e;


/* What a broker is told of a message, and makes of a response. */
typedef enum {
    NGX_HTTP_HAPAX_TELL_DONE = 0,   /* it is not delivered again */
    NGX_HTTP_HAPAX_TELL_RETRY,      /* it is delivered again */
    NGX_HTTP_HAPAX_TELL_DROP,       /* never again: dead letters, or nothing */
    NGX_HTTP_HAPAX_TELL_STORED      /* what the stored response says */
} ngx_http_hapax_tell_e;


/* The bytes of a buffered response. Its request and its call share them. */
typedef struct {
    ngx_uint_t                      refs;
    size_t                          len;
    size_t                          size;
    u_char                         *data;
} ngx_http_hapax_body_t;


/* A store and a secret; in a worker, also the lane over it. */
struct ngx_http_hapax_store_s {
    ngx_str_t                       uri;
    ngx_str_t                       shown;      /* in logs: without passwords */
    ngx_str_t                       secret;

    struct hapax__lane             *lane;
    ngx_connection_t               *connection;
    struct hapax__waiters           waiters;
    struct hapax__bucket           *buckets;
    ngx_queue_t                     calls;
    time_t                          logged;
};


struct ngx_http_hapax_call_s {
    struct hapax__flow              flow;
    struct hapax__job               job;
    struct hapax_policy             policy;
    ngx_http_hapax_store_t         *store;
    ngx_http_hapax_ctx_t           *ctx;        /* NULL: cut */
    ngx_http_hapax_body_t          *body;       /* of the outcome */
    u_char                         *headers;
    ngx_event_t                     timer;
    ngx_queue_t                     queue;
    int64_t                         submitted_us;
    uint8_t                         scope[HAPAX_SCOPE_MAX];
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
    EVP_MD_CTX                     *md;
    off_t                           received;   /* bytes of the request's body */

    ngx_http_handler_pt             content_handler;
    ngx_http_request_t             *hook;       /* NULL, or hapax_reconcile's that is out */
    ngx_http_hapax_body_t          *body;
    ngx_chain_t                    *rest;       /* of a response that is not kept */

    struct hapax_answer             answer;
    const char                     *why;        /* BAD_KEY: what is wrong with it */
    uint32_t                        attempt;
    uint64_t                        fence;
    int64_t                         since_us;
    int64_t                         waited_us;

    unsigned                        envelope:1;     /* the body is one, around a message */
    unsigned                        identified:1;
    unsigned                        failed:1;       /* out of memory: 500 */
    unsigned                        full:1;         /* hapax_held_max */
    unsigned                        hook_last:1;    /* its response came to its end */
    unsigned                        hook_over:1;    /* its body is over max_response */
};


typedef struct {
    ngx_str_t                       name;
    ngx_str_t                       value;
} ngx_http_hapax_setting_t;


typedef struct {
    ngx_uint_t                      first;      /* statuses */
    ngx_uint_t                      last;
    enum hapax_class                cls;
} ngx_http_hapax_class_t;


typedef struct {
    ngx_array_t                     stores;     /* ngx_http_hapax_store_t * */
    ngx_array_t                     locations;  /* void **: loc_conf, to be checked at the end */
    ngx_shm_zone_t                 *zone;
    size_t                          held_max;
} ngx_http_hapax_main_conf_t;


typedef struct {
    ngx_uint_t                      enable;
    ngx_uint_t                      push;
    ngx_uint_t                      methods;
    ngx_str_t                       uri;
    ngx_str_t                       secret;
    ngx_http_hapax_store_t         *store;
    ngx_str_t                       key_header;
    ngx_http_complex_value_t       *scope;
    ngx_http_complex_value_t       *caller;
    ngx_uint_t                      fingerprint;
    enum hapax__json_select         select;
    ngx_array_t                    *pointers;   /* struct hapax_span; of the fingerprint */
    ngx_array_t                    *key_from;   /* struct hapax_span */
    ngx_array_t                    *settings;   /* ngx_http_hapax_setting_t */
    ngx_array_t                    *classes;    /* ngx_http_hapax_class_t */
    ngx_array_t                    *hide;       /* ngx_str_t, in lower case */
    ngx_array_t                    *keep;       /* ngx_str_t, in lower case */
    ngx_uint_t                      in_flight_status;
    ngx_str_t                       problem_base;
    ngx_http_complex_value_t       *reconcile;
    struct hapax_policy             policy;
} ngx_http_hapax_loc_conf_t;


/* What one worker counts, in shared memory. A slot goes on counting with its next worker. */
typedef struct {
    ngx_atomic_t                    answers[NGX_HTTP_HAPAX_ANSWERS];
    ngx_atomic_t                    unrecorded;
    ngx_atomic_t                    store_errors;
    ngx_atomic_t                    told[NGX_HTTP_HAPAX_TELL_STORED];
    ngx_atomic_t                    times[NGX_HTTP_HAPAX_TIMES + 1];
    ngx_atomic_t                    time_us;
    ngx_atomic_t                    in_flight;
    ngx_atomic_t                    queued;
    ngx_atomic_t                    held;
} ngx_http_hapax_counts_t;


/* the module */

extern ngx_module_t  ngx_http_hapax_module;

ngx_http_hapax_ctx_t *ngx_http_hapax_get_ctx(ngx_http_request_t *r);
void ngx_http_hapax_cleanup(void *data);

/* configuration */

extern ngx_command_t  ngx_http_hapax_commands[];

void *ngx_http_hapax_create_main_conf(ngx_conf_t *cf);
char *ngx_http_hapax_init_main_conf(ngx_conf_t *cf, void *conf);
void *ngx_http_hapax_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_hapax_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);
ngx_int_t ngx_http_hapax_check_locations(ngx_conf_t *cf);

/* directives */

char *ngx_http_hapax_set_enable(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_store(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_secret(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_key_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_methods(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_fingerprint(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_key_from(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_class(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_in_flight_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_set_push(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_hapax_refused(ngx_conf_t *cf, ngx_command_t *cmd, ngx_str_t *value,
    const char *allowed);
char *ngx_http_hapax_set_policy(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* lanes and calls */

ngx_int_t ngx_http_hapax_lane_open(ngx_http_hapax_store_t *store, ngx_log_t *log);
void ngx_http_hapax_lane_close(ngx_http_hapax_store_t *store);
void ngx_http_hapax_lane_log(ngx_http_hapax_store_t *store, ngx_log_t *log,
    enum hapax_error error);

/* Begins a flow for a request that was identified and waits in ASKING. */
ngx_int_t ngx_http_hapax_call_begin(ngx_http_hapax_ctx_t *ctx, ngx_http_hapax_loc_conf_t *conf,
    struct hapax__flow_request *request);
/* The handler, or the hook, ended so. What the outcome points to is the call's already. */
void ngx_http_hapax_call_ended(ngx_http_hapax_call_t *call, enum hapax_class cls,
    const struct hapax_outcome *outcome);
/* The request is gone. */
void ngx_http_hapax_call_cut(ngx_http_hapax_ctx_t *ctx);

/* A store that opens when it is first used, in the lane's thread, and again after failures. */
struct hapax_store *ngx_http_hapax_late_open(ngx_http_hapax_store_t *store,
    char text[HAPAX_TEXT_MAX]);

/* requests */

ngx_int_t ngx_http_hapax_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_hapax_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in);
void ngx_http_hapax_wake_handler(ngx_event_t *ev);
/* With the request's body: which operation it is. DECLINED: the answer needs no store; ctx->given
 * and request->too_large say why. */
ngx_int_t ngx_http_hapax_identify(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request);

/* headers */

/* Whether a name is this one, whether with '-' or '_'. */
ngx_int_t ngx_http_hapax_header_named(ngx_str_t *given, ngx_str_t *name);
/* The next of a list; NULL: that was the last. Start with its first part and *i 0. */
ngx_table_elt_t *ngx_http_hapax_header_next(ngx_list_part_t **part, ngx_uint_t *i);
/* Adds one. name NULL: the caller sets it. */
ngx_table_elt_t *ngx_http_hapax_header(ngx_list_t *list, const char *name, u_char *value,
    size_t len);
/* The last header of that name, whether with '-' or '_'. *n: how many there are. *exact: the last
 * is spelled exactly so. */
ngx_table_elt_t *ngx_http_hapax_find_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_uint_t *n, ngx_uint_t *exact);

extern ngx_http_request_body_filter_pt  ngx_http_hapax_next_request_body_filter;

/* responses */

extern ngx_http_output_header_filter_pt  ngx_http_hapax_next_header_filter;
extern ngx_http_output_body_filter_pt    ngx_http_hapax_next_body_filter;

ngx_int_t ngx_http_hapax_header_filter(ngx_http_request_t *r);
ngx_int_t ngx_http_hapax_body_filter(ngx_http_request_t *r, ngx_chain_t *in);

/* The subrequest of hapax_reconcile ended. */
ngx_int_t ngx_http_hapax_hook_done(ngx_http_request_t *sr, void *data, ngx_int_t rc);

ngx_http_hapax_body_t *ngx_http_hapax_body_create(void);
ngx_int_t ngx_http_hapax_body_append(ngx_http_hapax_body_t *body, u_char *data, size_t len,
    size_t max);
void ngx_http_hapax_body_drop(ngx_http_hapax_body_t *body);

/* outcomes: what a response means; its status and headers as lines, and back */

enum hapax_class ngx_http_hapax_class(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf);
u_char *ngx_http_hapax_headers_write(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    ngx_uint_t with_length, size_t *len);
ngx_int_t ngx_http_hapax_headers_read(ngx_http_request_t *r, struct hapax_span headers);
ngx_int_t ngx_http_hapax_location_absolute(ngx_http_request_t *r);

/* answers */

ngx_int_t ngx_http_hapax_answer_handler(ngx_http_request_t *r);
/* Sets status, headers and *body of what is answered instead of a handler's response. */
ngx_int_t ngx_http_hapax_answer_fill(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body);
/* The headers by which a handler's own response is marked. */
ngx_int_t ngx_http_hapax_answer_mark(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx);
ngx_int_t ngx_http_hapax_answer_truncated(ngx_http_request_t *r, ngx_str_t *body);

/* brokers that push */

/* Looks at the headers of a message: its key, or that the body is an envelope which has it. */
ngx_int_t ngx_http_hapax_push_begin(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf);
ngx_int_t ngx_http_hapax_push_key(ngx_http_hapax_ctx_t *ctx, struct hapax_span body);
enum hapax__json_result ngx_http_hapax_push_fingerprint(struct hapax_digest *out,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body);
/* The scope where none is set: who is subscribed. */
ngx_int_t ngx_http_hapax_push_scope(ngx_http_request_t *r, ngx_str_t *scope);
/* What a broker makes of a response. */
ngx_http_hapax_tell_e ngx_http_hapax_push_of(ngx_uint_t push, ngx_uint_t status,
    struct hapax_span body);
/* What the gate's own answer is for the broker; counts and logs it. STORED: a replay as it is. */
ngx_http_hapax_tell_e ngx_http_hapax_push_tell(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf);

/* counting */

extern ngx_http_hapax_counts_t  *ngx_http_hapax_counts;
extern size_t                    ngx_http_hapax_buffered;

ngx_int_t ngx_http_hapax_zone_init(ngx_shm_zone_t *zone, void *data);
void ngx_http_hapax_count_answer(enum hapax_answer_kind kind);
void ngx_http_hapax_count_told(ngx_http_hapax_tell_e tell);
void ngx_http_hapax_count_time(int64_t us);
void ngx_http_hapax_count_buffered(ssize_t change);
char *ngx_http_hapax_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_HTTP_HAPAX_H_INCLUDED_ */
