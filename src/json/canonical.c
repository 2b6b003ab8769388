/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk over a document: writes its canonical form while raw.h reads it.
 *
 * There is no tree. Members are written as they come; when an object closes, its members, canonical
 * themselves by then, are put in order. What is kept besides the text is the containers that are
 * open, HAPAX__JSON_DEPTH_MAX at most, and where each of their members lies.
 *
 * The invariant: nothing reaches the canonical form that two readers could read differently. The
 * reader checks the grammar; this file refuses bytes that are not UTF-8, half surrogate pairs and
 * names that come twice.
 *
 * Rejected: a parser that gives numbers as doubles, which makes 1e17+0.01 of 1e17+0.02.
 */
#include "walk.h"

#include "base/utf8.h"
#include "json/raw.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_DIGITS_MAX    21 /* of a number written without an exponent */
#define EXPONENT_DIGITS_MAX 18 /* as it is spelled: a body has too few digits to shift it far */
#define EXPONENT_MAX        INT64_C(99999999999999999) /* in canonical form */

struct bytes {
    uint8_t *ptr;
    size_t len;
    size_t size;
};

struct member { /* offsets in out; a canonical form is far below 4 GB */
    uint32_t begin;
    uint32_t name_len; /* quotes and all */
    uint32_t end; /* after its comma */
    bool dropped;
};

struct frame { /* a container that is open */
    bool object;
    size_t begin;
    size_t members; /* where its members begin */
    size_t index; /* of an array's next element */
};

struct walk {
    struct hapax__selection *selection;
    struct bytes out;
    struct bytes scratch;
    struct member *members;
    size_t members_len;
    size_t members_size;
    struct frame frames[HAPAX__JSON_DEPTH_MAX];
    size_t depth;
    struct bytes text; /* of a string with escapes: its bytes */
    enum hapax__json_result result;
};

/* Ends the walk with a result. */
static bool end_walk(struct walk *w, enum hapax__json_result result)
{
    w->result = result;
    return false;
}

/* ---- writing ----------------------------------------------------------------------- */

static bool reserve(struct bytes *bytes, size_t more)
{
    size_t size = bytes->size > 0 ? bytes->size : 256;
    uint8_t *ptr;

    assert(more <= UINT32_MAX && bytes->len <= UINT32_MAX);
    while (size - bytes->len < more)
        size *= 2;
    if (size == bytes->size)
        return true;
    ptr = realloc(bytes->ptr, size);
    if (!ptr)
        return false;
    bytes->ptr = ptr;
    bytes->size = size;
    return true;
}

static bool put(struct bytes *bytes, const void *from, size_t len)
{
    if (!reserve(bytes, len))
        return false;
    memcpy(bytes->ptr + bytes->len, from, len);
    bytes->len += len;
    return true;
}

/* The canonical spelling of the character that an escape stands for. */
static bool put_escaped(struct bytes *bytes, uint32_t c)
{
    static const char hex[] = "0123456789abcdef";
    uint8_t text[6] = {'\\', 'u', '0', '0'};

    if (c == '"' || c == '\\') {
        text[1] = (uint8_t)c;
        return put(bytes, text, 2);
    }
    if (c >= 0x20)
        return put(bytes, text, hapax__utf8_write(text, c));
    text[4] = (uint8_t)hex[c >> 4];
    text[5] = (uint8_t)hex[c & 15];
    return put(bytes, text, 6);
}

/* Writes a string, given with its quotes, in its canonical spelling. */
static bool put_string(struct walk *w, struct hapax_span string)
{
    const uint8_t *at = string.ptr + 1, *end = string.ptr + string.len - 1;

    if (!reserve(&w->out, string.len) || !put(&w->out, "\"", 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    while (at < end) {
        const uint8_t *slash = memchr(at, '\\', (size_t)(end - at));
        struct hapax_span plain = {at, (size_t)((slash ? slash : end) - at)};
        uint32_t character;

        if (!hapax__is_utf8(plain))
            return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
        if (!put(&w->out, plain.ptr, plain.len))
            return end_walk(w, HAPAX__JSON_NOMEM);
        at += plain.len;
        if (at == end)
            break;
        at += hapax__raw_escape(&character, at, end);
        if (character >= 0xd800 && character <= 0xdfff)
            return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
        if (!put_escaped(&w->out, character))
            return end_walk(w, HAPAX__JSON_NOMEM);
    }
    return put(&w->out, "\"", 1) || end_walk(w, HAPAX__JSON_NOMEM);
}

/* The bytes that a string stands for; they last until the next string. */
static bool unescape(struct walk *w, struct hapax_span *text, struct hapax_span string)
{
    *text = (struct hapax_span){string.ptr + 1, string.len - 2};
    if (!memchr(string.ptr, '\\', string.len))
        return true;
    w->text.len = 0;
    if (!reserve(&w->text, string.len))
        return end_walk(w, HAPAX__JSON_NOMEM);
    *text = (struct hapax_span){w->text.ptr, hapax__raw_unescape(w->text.ptr, string)};
    return true;
}

/* ---- numbers ----------------------------------------------------------------------- */

struct number {
    bool negative;
    struct hapax_span whole; /* digits before the point */
    struct hapax_span fraction; /* and after it */
    int64_t exponent;
};

static struct hapax_span digits(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *begin = *at;

    while (*at < end && **at >= '0' && **at <= '9')
        ++*at;
    return (struct hapax_span){begin, (size_t)(*at - begin)};
}

/* Takes apart a number of the reader. False: its exponent is too large to hold. */
static bool split_number(struct number *number, struct hapax_span text)
{
    const uint8_t *at = text.ptr;
    const uint8_t *end = at + text.len;
    struct hapax_span exponent;
    bool negative = false;

    *number = (struct number){0};
    number->negative = *at == '-';
    at += number->negative;
    number->whole = digits(&at, end);
    assert(number->whole.len > 0);
    if (at < end && *at == '.') {
        at++;
        number->fraction = digits(&at, end);
    }
    if (at == end)
        return true;
    assert(*at == 'e' || *at == 'E');
    at++;
    if (*at == '+' || *at == '-')
        negative = *at++ == '-';
    exponent = digits(&at, end);
    assert(at == end && exponent.len > 0);
    for (; exponent.len > 0 && *exponent.ptr == '0'; exponent.len--)
        exponent.ptr++;
    if (exponent.len > EXPONENT_DIGITS_MAX)
        return false;
    for (size_t i = 0; i < exponent.len; i++)
        number->exponent = number->exponent * 10 + (exponent.ptr[i] - '0');
    if (negative)
        number->exponent = -number->exponent;
    return true;
}

static uint8_t digit_at(const struct number *number, size_t i)
{
    if (i < number->whole.len)
        return number->whole.ptr[i];
    return number->fraction.ptr[i - number->whole.len];
}

/* Finds the digits from the first to the last that is not 0, [*begin, *end), and makes the exponent
 * that of the last. */
static void trim_number(struct number *number, size_t *begin, size_t *end)
{
    *begin = 0;
    *end = number->whole.len + number->fraction.len;
    number->exponent -= (int64_t)number->fraction.len;
    while (*begin < *end && digit_at(number, *begin) == '0')
        ++*begin;
    for (; *begin < *end && digit_at(number, *end - 1) == '0'; number->exponent++)
        --*end;
}

static bool put_number(struct bytes *bytes, const struct number *number, size_t begin, size_t end)
{
    int64_t exponent = number->exponent;
    char text[24];
    int len;

    if (begin == end)
        return put(bytes, "0", 1);
    if (!reserve(bytes, end - begin + 1 + sizeof(text)))
        return false;
    if (number->negative)
        bytes->ptr[bytes->len++] = '-';
    for (size_t i = begin; i < end; i++)
        bytes->ptr[bytes->len++] = digit_at(number, i);
    if (exponent >= 0 && (int64_t)(end - begin) + exponent <= WHOLE_DIGITS_MAX) {
        memset(bytes->ptr + bytes->len, '0', (size_t)exponent);
        bytes->len += (size_t)exponent;
        return true;
    }
    len = snprintf(text, sizeof(text), "e%" PRId64, exponent);
    assert(len > 0 && (size_t)len < sizeof(text));
    return put(bytes, text, (size_t)len);
}

/* ---- values ------------------------------------------------------------------------ */

static struct frame *innermost(struct walk *w)
{
    return w->depth > 0 ? &w->frames[w->depth - 1] : NULL;
}

static void enter_value(struct walk *w)
{
    struct frame *frame = innermost(w);

    if (frame && !frame->object)
        hapax__selection_index(w->selection, w->depth, frame->index++);
}

/* Ends a value whose canonical form begins at `begin`: shows it to the selection, and takes it
 * out again or puts its comma. */
static bool leave_value(struct walk *w, size_t begin, enum hapax__json_type type,
                        struct hapax_span text)
{
    struct hapax__json_value value = {type, {w->out.ptr + begin, w->out.len - begin}, text};
    bool dropped = hapax__selection_leave(w->selection, w->depth, &value);
    struct frame *frame = innermost(w);
    struct member *member;

    if (dropped && (!frame || !frame->object)) {
        w->out.len = begin;
        return true;
    }
    if (!frame)
        return true;
    if (!put(&w->out, ",", 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    if (frame->object) {
        assert(w->members_len > frame->members);
        member = &w->members[w->members_len - 1];
        member->end = (uint32_t)w->out.len;
        member->dropped = dropped; /* its name still counts as there: it must not come twice */
    }
    return true;
}

static bool on_word(struct walk *w, struct hapax_span word)
{
    size_t begin = w->out.len;

    enter_value(w);
    if (!put(&w->out, word.ptr, word.len))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, word.ptr[0] == 'n' ? HAPAX__JSON_NULL : HAPAX__JSON_LITERAL,
                       (struct hapax_span){NULL, 0});
}

static bool on_number(struct walk *w, struct hapax_span text)
{
    size_t begin = w->out.len;
    size_t first;
    size_t end;
    struct number number;

    enter_value(w);
    if (!split_number(&number, text))
        return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    trim_number(&number, &first, &end);
    if (number.exponent > EXPONENT_MAX || number.exponent < -EXPONENT_MAX)
        return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    if (!put_number(&w->out, &number, first, end))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, HAPAX__JSON_LITERAL, (struct hapax_span){NULL, 0});
}

static bool on_string(struct walk *w, struct hapax_span string)
{
    size_t begin = w->out.len;
    struct hapax_span text = {NULL, 0};

    enter_value(w);
    return put_string(w, string) && (!w->selection->found || unescape(w, &text, string)) &&
           leave_value(w, begin, HAPAX__JSON_STRING, text);
}

/* ---- containers -------------------------------------------------------------------- */

static bool open_container(struct walk *w, bool object)
{
    enter_value(w);
    if (w->depth == HAPAX__JSON_DEPTH_MAX)
        return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    w->frames[w->depth++] = (struct frame){object, w->out.len, w->members_len, 0};
    return put(&w->out, object ? "{" : "[", 1) || end_walk(w, HAPAX__JSON_NOMEM);
}

/* The bracket takes the place of the last comma. */
static bool close_container(struct walk *w, const char *bracket)
{
    size_t begin = innermost(w)->begin;

    if (w->out.len > begin + 1)
        w->out.len--;
    w->depth--;
    if (!put(&w->out, bracket, 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, HAPAX__JSON_CONTAINER, (struct hapax_span){NULL, 0});
}

static bool on_name(struct walk *w, struct hapax_span name)
{
    struct member *members = w->members;
    size_t begin = w->out.len;
    struct hapax_span text;

    if (w->members_len == w->members_size) {
        size_t size = w->members_size > 0 ? 2 * w->members_size : 32;

        members = realloc(members, size * sizeof(*members));
        if (!members)
            return end_walk(w, HAPAX__JSON_NOMEM);
        w->members = members;
        w->members_size = size;
    }
    if (!put_string(w, name))
        return false;
    members[w->members_len++] =
        (struct member){(uint32_t)begin, (uint32_t)(w->out.len - begin), 0, false};
    if (w->selection->n > 0) {
        if (!unescape(w, &text, name))
            return false;
        hapax__selection_name(w->selection, w->depth, text);
    }
    return put(&w->out, ":", 1) || end_walk(w, HAPAX__JSON_NOMEM);
}

/* By the bytes between the quotes. */
static int compare_names(const void *a, const void *b, void *arg)
{
    const struct member *x = a;
    const struct member *y = b;
    const uint8_t *out = arg;
    uint32_t least = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp(out + x->begin + 1, out + y->begin + 1, least - 2);

    return order != 0 ? order : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

/* Puts the members that are left in their order. */
static bool rewrite(struct walk *w, size_t begin, const struct member *members, size_t n)
{
    w->scratch.len = 0;
    for (size_t i = 0; i < n; i++) {
        const struct member *m = &members[i];

        if (!m->dropped && !put(&w->scratch, w->out.ptr + m->begin, m->end - m->begin))
            return false;
    }
    assert(begin + w->scratch.len <= w->out.len);
    if (w->scratch.len > 0)
        memcpy(w->out.ptr + begin, w->scratch.ptr, w->scratch.len);
    w->out.len = begin + w->scratch.len;
    return true;
}

static bool close_object(struct walk *w)
{
    const struct frame *frame = innermost(w);
    size_t n = w->members_len - frame->members;
    struct member *members = n > 0 ? &w->members[frame->members] : NULL;
    bool ordered = true;
    bool whole = true;

    for (size_t i = 0; i < n; i++) {
        ordered &= i == 0 || compare_names(&members[i - 1], &members[i], w->out.ptr) < 0;
        whole &= !members[i].dropped;
    }
    if (!ordered) {
        qsort_r(members, n, sizeof(*members), compare_names, w->out.ptr);
        for (size_t i = 1; i < n; i++)
            if (compare_names(&members[i - 1], &members[i], w->out.ptr) == 0)
                return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    }
    if ((!ordered || !whole) && !rewrite(w, frame->begin + 1, members, n))
        return end_walk(w, HAPAX__JSON_NOMEM);
    w->members_len = frame->members;
    return close_container(w, "}");
}

/* ---- the walk ---------------------------------------------------------------------- */

/* False: the walk is over, and w->result set. */
static bool on_token(struct walk *w, enum hapax__raw_token token, struct hapax_span text)
{
    switch (token) {
    case HAPAX__RAW_OBJECT:
    case HAPAX__RAW_ARRAY:
        return open_container(w, token == HAPAX__RAW_OBJECT);
    case HAPAX__RAW_OBJECT_END:
        return close_object(w);
    case HAPAX__RAW_ARRAY_END:
        return close_container(w, "]");
    case HAPAX__RAW_NAME:
        return on_name(w, text);
    case HAPAX__RAW_STRING:
        return on_string(w, text);
    case HAPAX__RAW_NUMBER:
        return on_number(w, text);
    case HAPAX__RAW_WORD:
        return on_word(w, text);
    case HAPAX__RAW_END:
        return end_walk(w, HAPAX__JSON_OK);
    case HAPAX__RAW_BAD:
        break;
    }
    return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
}

enum hapax__json_result hapax__json_walk(uint8_t **out, size_t *len, struct hapax_span body,
                                         struct hapax__selection *selection)
{
    struct hapax__raw_reader reader;
    enum hapax__raw_token token;
    struct hapax_span text;
    struct walk w;

    *out = NULL;
    *len = 0;
    hapax__selection_begin(selection);
    if (body.len > HAPAX_BODY_MAX)
        return HAPAX__JSON_NOT_CANONICAL;
    memset(&w, 0, sizeof(w));
    w.selection = selection;
    hapax__raw_open(&reader, body);
    do {
        token = hapax__raw_read(&reader, &text);
    } while (on_token(&w, token, text));
    free(w.text.ptr);
    free(w.scratch.ptr);
    free(w.members);
    if (w.result != HAPAX__JSON_OK) {
        free(w.out.ptr);
        return w.result;
    }
    assert(w.depth == 0 && w.members_len == 0 && w.out.ptr);
    *out = w.out.ptr;
    *len = w.out.len;
    return HAPAX__JSON_OK;
}

enum hapax__json_result hapax__json_canonical(uint8_t **out, size_t *len, struct hapax_span body)
{
    struct hapax__selection selection = {0};

    return hapax__json_walk(out, len, body, &selection);
}
