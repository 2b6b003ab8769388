/* SPDX-License-Identifier: Apache-2.0
 *
 * What DynamoDB's protocol adds to JSON: attributes with their types, and bytes in base64. A reply
 * is mostly one long base64 string, which is decoded where it stands.
 */
#include "dynamodb.h"

#include "base/base64.h"

static void put_name(struct hapax__json_out *out, const char *name)
{
    bool first = out->len > 0 && out->bytes[out->len - 1] == '{';

    hapax__json_put(out, first ? "\"" : ",\"");
    hapax__json_put(out, name);
}

void hapax__ddb_put_binary(struct hapax__json_out *out, const char *name, struct hapax_span bytes)
{
    put_name(out, name);
    hapax__json_put(out, "\":{\"B\":");
    hapax__json_put_base64(out, bytes);
    hapax__json_put(out, "}");
}

void hapax__ddb_put_numeric(struct hapax__json_out *out, const char *name, int64_t value)
{
    put_name(out, name);
    hapax__json_put(out, "\":{\"N\":\"");
    hapax__json_put_number(out, value);
    hapax__json_put(out, "\"}");
}

bool hapax__ddb_is_reply(struct hapax_span reply)
{
    struct hapax_span root;

    return hapax__raw_check(&root, reply) && hapax__raw_is_object(root);
}

bool hapax__ddb_find(struct hapax_span *out, struct hapax_span reply, const char *path)
{
    struct hapax_span root;

    return hapax__raw_check(&root, reply) && hapax__raw_member(out, root, path);
}

enum hapax__ddb_seen hapax__ddb_bytes(struct hapax_span *out, struct hapax_arena *arena,
                                      struct hapax_span value)
{
    struct hapax_span digits;
    uint8_t *bytes;
    size_t len;

    *out = (struct hapax_span){NULL, 0};
    if (!hapax__raw_is_string(value) || value.len > HAPAX__AWS_REPLY_MAX)
        return HAPAX__DDB_DAMAGED;
    /* Servers may write '/' as "\/" and '+' as "\u002b". */
    if (!hapax__raw_text(&digits, arena, value))
        return HAPAX__DDB_NOMEM;
    if (digits.len == 0)
        return HAPAX__DDB_FOUND;
    if (digits.len % 4 != 0)
        return HAPAX__DDB_DAMAGED;
    bytes = hapax__arena_alloc(arena, digits.len / 4 * 3);
    if (!bytes)
        return HAPAX__DDB_NOMEM;
    if (!hapax__base64_decode(bytes, &len, digits))
        return HAPAX__DDB_DAMAGED;
    *out = (struct hapax_span){bytes, len};
    return HAPAX__DDB_FOUND;
}
