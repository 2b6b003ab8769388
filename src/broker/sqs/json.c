/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON as SQS speaks it. The tree is what yajl says, copied into an arena that is reset with the reply: a poll's reply is at
 * most ten messages, and each is copied out of it into a block of its own.
 *
 * Rejected: yajl's own tree, whose strings end at the first U+0000; json/walk.h, which sorts names and keeps no values.
 */
#include "json.h"

#include <assert.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

/* ---- writing ----------------------------------------------------------------------------- */

static char *room(struct hapax__sqs_text *text, size_t len)
{
    size_t size = text->size ? text->size : 1024;
    char *at;

    if (text->failed)
        return NULL;
    while (size - text->len < len + 1)
        size *= 2;
    if (size > text->size) {
        at = realloc(text->at, size);
        if (!at) {
            text->failed = true;
            return NULL;
        }
        text->at = at;
        text->size = size;
    }
    return text->at + text->len;
}

static void put_bytes(struct hapax__sqs_text *text, const void *bytes, size_t len)
{
    char *at = room(text, len);

    if (!at)
        return;
    memcpy(at, bytes, len);
    at[len] = '\0';
    text->len += len;
}

void hapax__sqs_put(struct hapax__sqs_text *text, const char *json)
{
    put_bytes(text, json, strlen(json));
}

void hapax__sqs_put_string(struct hapax__sqs_text *text, struct hapax_span span)
{
    size_t from = 0;
    char escaped[8];

    hapax__sqs_put(text, "\"");
    for (size_t i = 0; i < span.len; i++) {
        uint8_t c = span.ptr[i];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (i > from)
            put_bytes(text, span.ptr + from, i - from);
        from = i + 1;
        (void)snprintf(escaped, sizeof(escaped), c < 0x20 ? "\\u%04x" : "\\%c", c);
        hapax__sqs_put(text, escaped);
    }
    if (span.len > from)
        put_bytes(text, span.ptr + from, span.len - from);
    hapax__sqs_put(text, "\"");
}

void hapax__sqs_put_base64(struct hapax__sqs_text *text, struct hapax_span span)
{
    char *at;

    hapax__sqs_put(text, "\"");
    at = span.len <= INT32_MAX / 2 ? room(text, (span.len + 2) / 3 * 4) : NULL;
    if (!at)
        text->failed = true;
    else
        text->len += (size_t)EVP_EncodeBlock((unsigned char *)at, span.ptr, (int)span.len);
    hapax__sqs_put(text, "\"");
}

void hapax__sqs_put_number(struct hapax__sqs_text *text, int64_t number)
{
    char digits[24];

    (void)snprintf(digits, sizeof(digits), "%" PRId64, number);
    hapax__sqs_put(text, digits);
}

void hapax__sqs_text_clear(struct hapax__sqs_text *text)
{
    text->len = 0;
    text->failed = false;
}

void hapax__sqs_text_release(struct hapax__sqs_text *text)
{
    free(text->at);
    memset(text, 0, sizeof(*text));
}

/* ---- reading ----------------------------------------------------------------------------- */

struct reading {
    struct hapax_arena *arena;
    struct hapax__sqs_value *root;
    struct hapax__sqs_value *in[HAPAX__SQS_DEPTH_MAX]; /* the containers that are open */
    struct hapax__sqs_value *last[HAPAX__SQS_DEPTH_MAX]; /* and their last members */
    size_t depth, nodes;
    struct hapax_span name; /* of the next member */
};

static struct hapax__sqs_value *add(struct reading *r, enum hapax__sqs_type type, const void *text,
                                    size_t len)
{
    struct hapax__sqs_value *value =
        r->nodes++ < HAPAX__SQS_NODES_MAX ? hapax__arena_alloc(r->arena, sizeof(*value)) : NULL;

    if (!value)
        return NULL;
    memset(value, 0, sizeof(*value));
    value->type = type;
    value->name = r->name;
    r->name = (struct hapax_span){NULL, 0};
    value->text = hapax__arena_copy(r->arena, (struct hapax_span){text, len});
    if (len > 0 && !value->text.ptr)
        return NULL;
    if (r->depth == 0)
        r->root = value;
    else if (r->last[r->depth - 1])
        r->last[r->depth - 1]->next = value;
    else
        r->in[r->depth - 1]->first = value;
    if (r->depth > 0)
        r->last[r->depth - 1] = value;
    return value;
}

static int begin(struct reading *r, enum hapax__sqs_type type)
{
    struct hapax__sqs_value *value = r->depth < HAPAX__SQS_DEPTH_MAX ? add(r, type, NULL, 0) : NULL;

    if (!value)
        return 0;
    r->in[r->depth] = value;
    r->last[r->depth++] = NULL;
    return 1;
}

static int on_map(void *arg)
{
    return begin(arg, HAPAX__SQS_OBJECT);
}

static int on_array(void *arg)
{
    return begin(arg, HAPAX__SQS_ARRAY);
}

static int on_end(void *arg)
{
    struct reading *r = arg;

    assert(r->depth > 0);
    r->depth--;
    return 1;
}

static int on_name(void *arg, const unsigned char *name, size_t len)
{
    struct reading *r = arg;

    r->name = hapax__arena_copy(r->arena, (struct hapax_span){name, len});
    return len == 0 || r->name.ptr;
}

static int on_string(void *arg, const unsigned char *text, size_t len)
{
    return add(arg, HAPAX__SQS_STRING, text, len) != NULL;
}

static int on_number(void *arg, const char *text, size_t len)
{
    return add(arg, HAPAX__SQS_LITERAL, text, len) != NULL;
}

static int on_boolean(void *arg, int value)
{
    return add(arg, HAPAX__SQS_LITERAL, value ? "true" : "false", value ? 4 : 5) != NULL;
}

static int on_null(void *arg)
{
    return add(arg, HAPAX__SQS_LITERAL, "null", 4) != NULL;
}

const struct hapax__sqs_value *hapax__sqs_parse(struct hapax_arena *arena, struct hapax_span json)
{
    static const yajl_callbacks callbacks = {.yajl_null = on_null,
                                             .yajl_boolean = on_boolean,
                                             .yajl_number = on_number,
                                             .yajl_string = on_string,
                                             .yajl_start_map = on_map,
                                             .yajl_map_key = on_name,
                                             .yajl_end_map = on_end,
                                             .yajl_start_array = on_array,
                                             .yajl_end_array = on_end};
    struct reading reading = {.arena = arena};
    yajl_handle parser = yajl_alloc(&callbacks, NULL, &reading);
    bool read;

    if (!parser)
        return NULL;
    read = json.len > 0 && yajl_parse(parser, json.ptr, json.len) == yajl_status_ok &&
           yajl_complete_parse(parser) == yajl_status_ok;
    yajl_free(parser);
    return read ? reading.root : NULL;
}

const struct hapax__sqs_value *hapax__sqs_get(const struct hapax__sqs_value *in, const char *name)
{
    size_t len = strlen(name);

    if (!in || in->type != HAPAX__SQS_OBJECT)
        return NULL;
    for (const struct hapax__sqs_value *value = in->first; value; value = value->next)
        if (value->name.len == len && memcmp(value->name.ptr, name, len) == 0)
            return value;
    return NULL;
}

struct hapax_span hapax__sqs_get_text(const struct hapax__sqs_value *in, const char *name)
{
    const struct hapax__sqs_value *value = hapax__sqs_get(in, name);

    return value && value->type == HAPAX__SQS_STRING ? value->text : (struct hapax_span){NULL, 0};
}

bool hapax__sqs_base64(struct hapax_span *out, struct hapax_arena *arena, struct hapax_span text)
{
    size_t padding = 0;
    uint8_t *bytes;
    int len;

    *out = (struct hapax_span){NULL, 0};
    if (text.len == 0)
        return true;
    if (text.len % 4 != 0 || text.len > INT32_MAX)
        return false;
    while (padding < 2 && text.ptr[text.len - 1 - padding] == '=')
        padding++;
    bytes = hapax__arena_alloc(arena, text.len / 4 * 3);
    if (!bytes)
        return false;
    len = EVP_DecodeBlock(bytes, text.ptr, (int)text.len);
    if (len < 0 || (size_t)len < padding)
        return false;
    *out = (struct hapax_span){bytes, (size_t)len - padding};
    return true;
}
