/* SPDX-License-Identifier: Apache-2.0
 *
 * What a function gave, as an outcome: its response, or its error.
 *
 * The invariants: an HTTP response has the class that it has at the HTTP door. A response of which
 * the integration would make a 502 has failed. Set-Cookie, Date and their like are not stored.
 */
#include "base/base64.h"
#include "lines.h"
#include "reply.h"
#include "json/raw.h"

#include "door/attempt.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char error_line[] = "Lambda-Runtime-Function-Error-Type: ";

void hapax__response_release(struct hapax__response *response)
{
    free(response->headers);
    free(response->body);
    memset(response, 0, sizeof(*response));
}

/* ---- headers --------------------------------------------------------------------------- */

static void put_line(FILE *out, struct hapax_span name, struct hapax_span value)
{
    struct hapax_span bytes[2] = {name, value};
    uint8_t *memory[2] = {NULL, NULL};

    for (int i = 0; i < 2; i++) {
        if (!hapax__raw_is_string(bytes[i]))
            continue;
        memory[i] = malloc(bytes[i].len);
        if (memory[i])
            bytes[i] = (struct hapax_span){memory[i], hapax__raw_unescape(memory[i], bytes[i])};
        else
            bytes[i].len = 0;
    }
    if (hapax__line_is_whole(bytes[0], bytes[1]) && hapax__line_is_kept(bytes[0])) {
        (void)fwrite(bytes[0].ptr, 1, bytes[0].len, out);
        (void)fputs(": ", out);
        (void)fwrite(bytes[1].ptr, 1, bytes[1].len, out);
        (void)fputs("\r\n", out);
    }
    free(memory[0]);
    free(memory[1]);
}

static bool has_name(struct hapax_span lists, struct hapax_span name)
{
    struct hapax_span other, value;
    struct hapax__raw_walk walk;

    hapax__raw_begin(&walk, lists);
    while (hapax__raw_next(&walk, &other, &value)) {
        struct hapax__line line = {.name = other};

        if (hapax__line_is(&line, name))
            return true;
    }
    return false;
}

/* Writes all header lines. A name that is in both forms is taken from the lists. */
static void put_lines(FILE *out, struct hapax_span root)
{
    struct hapax_span single, lists, name, value, item, none;
    struct hapax__raw_walk walk, list;

    (void)hapax__raw_member(&single, root, "headers");
    (void)hapax__raw_member(&lists, root, "multiValueHeaders");
    if (!hapax__raw_is_object(lists))
        lists.len = 0;
    if (hapax__raw_is_object(single)) {
        hapax__raw_begin(&walk, single);
        while (hapax__raw_next(&walk, &name, &value))
            if (!hapax__raw_is_null(value) && !hapax__raw_is_object(value) &&
                !hapax__raw_is_array(value) && !has_name(lists, name))
                put_line(out, name, value);
    }
    hapax__raw_begin(&walk, lists);
    while (hapax__raw_next(&walk, &name, &value)) {
        hapax__raw_begin(&list, hapax__raw_is_array(value) ? value : (struct hapax_span){NULL, 0});
        while (hapax__raw_next(&list, &none, &item))
            if (!hapax__raw_is_object(item) && !hapax__raw_is_array(item) &&
                !hapax__raw_is_null(item))
                put_line(out, name, item);
    }
}

/* ---- responses ------------------------------------------------------------------------- */

static bool take_body(struct hapax__response *response, struct hapax_span root)
{
    struct hapax_span body, base64;
    size_t len;

    response->outcome.body = (struct hapax_span){NULL, 0};
    if (!hapax__raw_member(&body, root, "body") || hapax__raw_is_null(body))
        return true;
    if (!hapax__raw_is_string(body)) {
        response->outcome.body = body;
        return true;
    }
    response->body = malloc(body.len);
    if (!response->body)
        return false;
    len = hapax__raw_unescape(response->body, body);
    if (hapax__raw_member(&base64, root, "isBase64Encoded") && base64.ptr[0] == 't')
        (void)hapax__base64_decode(response->body, &len, (struct hapax_span){response->body, len});
    response->outcome.body = (struct hapax_span){response->body, len};
    return true;
}

static bool take_http(struct hapax__response *response, const struct hapax_policy *policy,
                      struct hapax_span root, int64_t status)
{
    const struct hapax_span none = {NULL, 0};
    size_t len = 0;
    FILE *out;

    /* These are set even if there is no memory for the rest. */
    response->outcome.status = (int)status;
    response->cls = hapax_class_of_response(policy, (int)status, none);
    out = open_memstream(&response->headers, &len);
    if (!out)
        return false;
    put_lines(out, root);
    if (fclose(out) != 0 || !take_body(response, root))
        return false;
    response->cls = hapax_class_of_response(policy, (int)status,
                                            (struct hapax_span){(uint8_t *)response->headers, len});
    if (len > HAPAX_HEADERS_MAX) {
        response->outcome.body_kept = false;
        len = 0;
    }
    response->outcome.headers = (struct hapax_span){(uint8_t *)response->headers, len};
    return true;
}

/* Reads a status: a number, or a string that holds one. The integrations take both. */
static bool read_status(int64_t *status, struct hapax_span value)
{
    if (hapax__raw_is_string(value))
        value = (struct hapax_span){value.ptr + 1, value.len - 2};
    return hapax__raw_number(status, value) && *status >= 100 && *status <= 999;
}

bool hapax__response_read(struct hapax__response *response, const struct hapax_policy *policy,
                          enum hapax_lambda_kind kind, struct hapax_span text)
{
    struct hapax_span root, value;
    int64_t status;

    memset(response, 0, sizeof(*response));
    response->cls = HAPAX_CLASS_FINAL;
    response->outcome = (struct hapax_outcome){.body_kept = true, .body = text};
    if (!hapax__event_is_http(kind))
        return true;
    if (hapax__raw_check(&root, text) && hapax__raw_is_object(root) &&
        hapax__raw_member(&value, root, "statusCode")) {
        if (read_status(&status, value))
            return take_http(response, policy, root, status);
        response->cls = HAPAX_CLASS_FAILED;
        return true;
    }
    /* An HTTP API makes any JSON the body of a 200; the others answer 502. */
    if (kind != HAPAX_LAMBDA_HTTP) {
        response->cls = HAPAX_CLASS_FAILED;
        return true;
    }
    response->outcome.status = 200;
    response->outcome.headers = hapax_str("Content-Type: application/json\r\n");
    return true;
}

/* ---- errors ---------------------------------------------------------------------------- */

bool hapax__response_error(struct hapax__response *response, struct hapax_span type,
                           struct hapax_span text)
{
    size_t len = 0;
    FILE *out;

    memset(response, 0, sizeof(*response));
    response->cls = HAPAX_CLASS_FAILED;
    response->outcome = (struct hapax_outcome){.status = 500, .body_kept = true, .body = text};
    out = open_memstream(&response->headers, &len);
    if (!out)
        return false;
    if (type.len > 200 || !hapax__line_is_whole(hapax_str("x"), type))
        type.len = 0;
    (void)fprintf(out, "Content-Type: application/json\r\n%s%.*s\r\n", error_line,
                  type.len > 0 ? (int)type.len : 9,
                  type.len > 0 ? (const char *)type.ptr : "Unhandled");
    if (fclose(out) != 0)
        return false;
    response->outcome.headers = (struct hapax_span){(uint8_t *)response->headers, len};
    return true;
}

bool hapax__outcome_is_error(char *type, size_t size, const struct hapax_outcome *outcome)
{
    struct hapax_span name = hapax_str("Lambda-Runtime-Function-Error-Type");
    struct hapax__lines lines;
    size_t i;

    hapax__lines_read(&lines, outcome->headers, false);
    i = hapax__lines_first(&lines, name);
    if (i == lines.n)
        return false;
    (void)snprintf(type, size, "%.*s", (int)lines.at[i].value.len,
                   (const char *)lines.at[i].value.ptr);
    return true;
}
