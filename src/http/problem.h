/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems: what a door that speaks HTTP answers by itself, where the handler did not run or its
 * response does not count. The HTTP door and the Lambda door have their texts from here.
 *
 * A problem is the JSON of RFC 9457 with a member `error` (type, code, message), which SDKs look
 * for; or it has the shape of a template. A template is JSON with variables:
 *
 *   $type $title $detail $instance $code $message $error_type    in strings
 *   $status                                                      a number, in strings or alone
 *   $original_status                                             the same; null where there is none
 *   $since                                                       in strings; empty: not known
 *
 * `$$` is a dollar. Values are escaped as JSON asks.
 */
#ifndef HAPAX_HTTP_PROBLEM_H
#define HAPAX_HTTP_PROBLEM_H

#include "json/write.h"

#include <hapax/hapax.h>

#define HAPAX__PROBLEM_TEMPLATE_MAX 4096u
#define HAPAX__PROBLEM_BASE         "urn:hapax:problem:"
#define HAPAX__PROBLEM_PATH         "/hapax-problems/" /* where the HTTP door serves the pages */
#define HAPAX__INSTANCE_BASE        "urn:hapax:operation:"

struct hapax__problem {
    int status;
    int grpc; /* the status for a gRPC client */
    const char *slug; /* the last part of the type; `code` in `error` */
    const char *error_type; /* `type` in `error` */
    const char *name; /* the type of an error of a Lambda function, after "Hapax." */
    const char *title;
    const char *detail; /* one or more whole sentences */
};

/* Problems that no answer of a flow is: of doors that have a service behind them. */
extern const struct hapax__problem hapax__problem_full, /* hapax_held_max */
    hapax__problem_truncated, /* a response that began and did not end */
    hapax__problem_failed, /* no response; the operation may have had its effect */
    hapax__problem_timeout, /* the same, after too long a time */
    hapax__problem_unreachable; /* no response, and surely nothing was run */

/* One page. Texts are borrowed. */
struct hapax__problem_page {
    const struct hapax__problem *problem;
    int status;
    struct hapax_span base; /* stands before the slug in `type` */
    const struct hapax_id *id; /* NULL: the request is no operation */
    const char *why; /* the reason, added to the detail; NULL: none */
    uint32_t key_min; /* bad-key: the key has fewer bytes, which is added, too; 0: it has enough */
    int original_status; /* of the response that is stored; 0: none */
    int64_t since_s; /* in-flight: the attempt's last sign of life, in Unix seconds; 0: not known */
};

/* The page of an answer that is not the handler's and not a stored response. now_s: Unix seconds.
 * The caller sets base, id and why. */
HAPAX__SHARED struct hapax__problem_page hapax__problem_page_of(const struct hapax_answer *answer,
                                                                int64_t now_s);

/* Puts a page. An empty template is that of RFC 9457. Other templates must have been checked. */
HAPAX__SHARED void hapax__problem_put(struct hapax__json_out *out, struct hapax_span template,
                                      const struct hapax__problem_page *page);

/* Puts the title and the detail as one text, without quotes: printable ASCII without '%', so also a
 * grpc-message. */
void hapax__problem_put_message(struct hapax__json_out *out,
                                const struct hapax__problem_page *page);

/* The page of docs/problems about a problem. False: there is none of that slug. */
bool hapax__problem_find(struct hapax_span *page, struct hapax_span slug);

/* The template of a name: "rfc9457" (empty), "stripe". False: there is none of that name. */
bool hapax__problem_template_named(struct hapax_span *template, const char *name);

/* Checks a template: its size, its variables, and that it gives JSON. INVALID: text says what is
 * wrong. NOMEM. */
enum hapax_error hapax__problem_template_check(struct hapax_span template,
                                               char text[HAPAX_TEXT_MAX]);

#endif
