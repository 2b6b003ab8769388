/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames around the requests: greeting, info, fault, and the head that every frame has. A peer
 * of another version must still be told so in words: therefore HELLO and FAULT keep their layout in
 * every version, and a HELLO may be longer than this one knows.
 */
#include "frame.h"

#include "frame_parts.h"

#define MAGIC      "hpxk"
#define MAGIC_SIZE 4u

void hapax__frame_begin(struct hapax__writer *w, enum hapax__frame_kind kind, size_t size)
{
    assert(kind >= HAPAX__FRAME_HELLO && kind <= HAPAX__FRAME_FAULT);
    assert(size < HAPAX__FRAME_MAX);
    hapax__put_number(w, size + 1, 4);
    hapax__put_number(w, (uint64_t)kind, 1);
}

/* ---- greeting ------------------------------------------------------------------------ */

static void put_greeting(struct hapax__writer *w, const struct hapax__hello *hello)
{
    assert(hello->frame_max >= HAPAX__FRAME_LEAST);
    hapax__put(w, MAGIC, MAGIC_SIZE);
    hapax__put_number(w, hello->version, 2);
    hapax__put_number(w, hello->frame_max, 4);
}

void hapax__frame_put_hello(struct hapax__writer *w, const struct hapax__hello *hello)
{
    hapax__frame_begin(w, HAPAX__FRAME_HELLO, HAPAX__FRAME_HELLO_SIZE);
    put_greeting(w, hello);
}

void hapax__frame_put_welcome(struct hapax__writer *w, const struct hapax__hello *hello)
{
    assert(hello->batch_max >= 1 && hello->batch_max <= HAPAX_BATCH_MAX);
    hapax__frame_begin(w, HAPAX__FRAME_WELCOME, HAPAX__FRAME_WELCOME_SIZE);
    put_greeting(w, hello);
    hapax__put_number(w, hello->batch_max, 2);
    hapax__put_number(w, hello->body_max, 4);
    hapax__put_number(w, hello->pid, 4);
}

static bool take_greeting(struct hapax__reader *r, struct hapax__hello *out)
{
    struct hapax_span magic = hapax__take(r, MAGIC_SIZE);

    if (r->bad || memcmp(magic.ptr, MAGIC, MAGIC_SIZE) != 0)
        return false;
    out->version = hapax__take_u16(r);
    out->frame_max = hapax__take_u32(r);
    return out->version > 0 && out->frame_max >= HAPAX__FRAME_LEAST;
}

/* A later version may say more in its HELLO: what comes behind is left alone. */
bool hapax__frame_take_hello(struct hapax_span payload, struct hapax__hello *out)
{
    struct hapax__reader r = reader_of(payload);

    memset(out, 0, sizeof(*out));
    return take_greeting(&r, out) && !r.bad;
}

bool hapax__frame_take_welcome(struct hapax_span payload, struct hapax__hello *out)
{
    struct hapax__reader r = reader_of(payload);

    memset(out, 0, sizeof(*out));
    if (!take_greeting(&r, out))
        return false;
    out->batch_max = hapax__take_u16(&r);
    out->body_max = hapax__take_u32(&r);
    out->pid = hapax__take_u32(&r);
    return whole(&r) && out->batch_max >= 1 && out->batch_max <= HAPAX_BATCH_MAX;
}

/* ---- info, fault --------------------------------------------------------------------- */

size_t hapax__frame_info_size(const struct hapax__info *info)
{
    size_t size = HAPAX__FRAME_HEAD + 4 * 4 + 1 + info->scheme.len + 1;

    for (uint8_t i = 0; i < info->lines; i++)
        size += 1 + 2 + info->line[i].text.len;
    return size;
}

void hapax__frame_put_info(struct hapax__writer *w, const struct hapax__info *info)
{
    assert(info->lines <= HAPAX__FRAME_LINES_MAX && info->scheme.len <= UINT8_MAX);
    hapax__frame_begin(w, HAPAX__FRAME_INFO, hapax__frame_info_size(info) - HAPAX__FRAME_HEAD);
    hapax__put_number(w, info->seq, 4);
    hapax__put_number(w, info->pid, 4);
    hapax__put_number(w, info->queued, 4);
    hapax__put_number(w, info->clients, 4);
    put_span(w, info->scheme, 1);
    hapax__put_number(w, info->lines, 1);
    for (uint8_t i = 0; i < info->lines; i++) {
        assert(info->line[i].text.len <= HAPAX_TEXT_MAX);
        hapax__put_number(w, info->line[i].danger, 1);
        put_span(w, info->line[i].text, 2);
    }
}

bool hapax__frame_take_info(struct hapax_span payload, struct hapax__info *out)
{
    struct hapax__reader r = reader_of(payload);

    memset(out, 0, sizeof(*out));
    out->seq = hapax__take_u32(&r);
    out->pid = hapax__take_u32(&r);
    out->queued = hapax__take_u32(&r);
    out->clients = hapax__take_u32(&r);
    out->scheme = take_span(&r, 1);
    out->lines = hapax__take_u8(&r);
    if (r.bad || out->lines > HAPAX__FRAME_LINES_MAX)
        return false;
    for (uint8_t i = 0; i < out->lines; i++) {
        out->line[i].danger = take_flags(&r, 1);
        out->line[i].text = take_span(&r, 2);
        r.bad |= out->line[i].text.len > HAPAX_TEXT_MAX;
    }
    return whole(&r);
}

void hapax__frame_put_ask(struct hapax__writer *w, uint32_t seq)
{
    hapax__frame_begin(w, HAPAX__FRAME_ASK, HAPAX__FRAME_ASK_SIZE);
    hapax__put_number(w, seq, 4);
}

bool hapax__frame_take_ask(struct hapax_span payload, uint32_t *seq)
{
    struct hapax__reader r = reader_of(payload);

    *seq = hapax__take_u32(&r);
    return whole(&r);
}

void hapax__frame_put_fault(struct hapax__writer *w, enum hapax_error error, const char *text)
{
    struct hapax_span span = text_span(text);

    assert(error < HAPAX_ERR_NONE && error >= HAPAX_ERR_REFUSED);
    hapax__frame_begin(w, HAPAX__FRAME_FAULT, 1 + 1 + span.len);
    hapax__put_number(w, (uint64_t)-error, 1);
    put_span(w, span, 1);
}

bool hapax__frame_take_fault(struct hapax_span payload, enum hapax_error *error,
                             char text[HAPAX_TEXT_MAX])
{
    struct hapax__reader r = reader_of(payload);

    *error = (enum hapax_error) - (int)hapax__take_u8(&r);
    take_text(&r, text);
    return whole(&r) && *error < HAPAX_ERR_NONE && *error >= HAPAX_ERR_REFUSED;
}
