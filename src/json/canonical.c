/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk over a document: writes its canonical form while yajl reads it.
 *
 * There is no tree. Members are written as they come; when an object closes, its members, canonical
 * themselves by then, are put in order. What is kept besides the text is the containers that are
 * open, HAPAX__JSON_DEPTH_MAX at most, and where each of their members lies.
 *
 * The invariant: nothing reaches the canonical form that two readers could read differently. yajl
 * is kind to half surrogate pairs (it reads '?'), encodings beyond UTF-8, \v and \f as white space,
 * and a string left open after the document, so the bytes are looked at before it sees them. It also
 * believes that memory never ends: its allocator here leaves by longjmp, and what it holds is in
 * an arena that goes as a whole.
 *
 * Rejected: a parser that gives numbers as doubles, which makes 1e17+0.01 of 1e17+0.02.
 */
#include "walk.h"

#include "base/arena.h"

#include <assert.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

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
    struct hapax_arena arena; /* yajl's */
    jmp_buf nomem;
    enum hapax__json_result result;
};

/* What a callback returns to end the walk. */
static int end_walk(struct walk *w, enum hapax__json_result result)
{
    w->result = result;
    return 0;
}

/* ---- looking at the bytes ---------------------------------------------------------- */

/* How many bytes the character at `at` has; 0: it is not UTF-8 (RFC 3629). */
static size_t utf8_len(const uint8_t *at, size_t left)
{
    uint8_t c = at[0];
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    size_t len;

    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return 0;
    len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (left < len)
        return 0;
    /* The second byte tells what is spelled too long, half a pair, or beyond U+10FFFF. */
    if (c == 0xe0)
        low = 0xa0;
    if (c == 0xf0)
        low = 0x90;
    if (c == 0xed)
        high = 0x9f;
    if (c == 0xf4)
        high = 0x8f;
    if (at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if (at[i] < 0x80 || at[i] > 0xbf)
            return 0;
    return len;
}

/* The code unit of an escape \uXXXX at `at`; -1: there is none. */
static long code_unit(const uint8_t *at, size_t left)
{
    long unit = 0;

    if (left < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    for (size_t i = 2; i < 6; i++) {
        uint8_t c = at[i];

        unit <<= 4;
        if (c >= '0' && c <= '9')
            unit |= c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            unit |= (c | 0x20) - 'a' + 10;
        else
            return -1;
    }
    return unit;
}

/* How many bytes the escape at `at` has, both halves of a pair together; 0: it is broken. */
static size_t escape_len(const uint8_t *at, size_t left)
{
    long unit;
    long second;

    if (left < 2)
        return 0;
    if (at[1] != 'u')
        return 2;
    unit = code_unit(at, left);
    if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff))
        return 0;
    if (unit < 0xd800 || unit > 0xdbff)
        return 6;
    second = code_unit(at + 6, left - 6);
    return second >= 0xdc00 && second <= 0xdfff ? 12 : 0;
}

/* Refuses what yajl would let pass. What else is wrong yajl will find. */
static bool plain(struct hapax_span body)
{
    bool string = false;

    for (size_t i = 0; i < body.len;) {
        const uint8_t *at = body.ptr + i;
        size_t len;

        if (*at < 0x20 && *at != '\t' && *at != '\n' && *at != '\r')
            return false;
        if (string && *at == '\\')
            len = escape_len(at, body.len - i);
        else
            len = utf8_len(at, body.len - i);
        if (len == 0)
            return false;
        if (*at == '"')
            string = !string;
        i += len;
    }
    return !string;
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

static size_t spelled_len(const uint8_t *s, size_t len)
{
    size_t n = len + 2;

    for (size_t i = 0; i < len; i++) {
        n += s[i] == '"' || s[i] == '\\';
        n += s[i] < 0x20 ? 5 : 0;
    }
    return n;
}

static bool put_string(struct bytes *bytes, const uint8_t *s, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    size_t spelled = spelled_len(s, len);
    uint8_t *at;

    if (!reserve(bytes, spelled))
        return false;
    at = bytes->ptr + bytes->len;
    *at++ = '"';
    for (size_t i = 0; i < len; i++) {
        if (s[i] < 0x20) {
            memcpy(at, "\\u00", 4);
            at[4] = (uint8_t)hex[s[i] >> 4];
            at[5] = (uint8_t)hex[s[i] & 15];
            at += 6;
            continue;
        }
        if (s[i] == '"' || s[i] == '\\')
            *at++ = '\\';
        *at++ = s[i];
    }
    *at++ = '"';
    bytes->len += spelled;
    assert(at == bytes->ptr + bytes->len);
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

/* Takes apart a number that yajl has checked. False: its exponent is too large to hold. */
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
static int leave_value(struct walk *w, size_t begin, enum hapax__json_type type,
                       struct hapax_span text)
{
    struct hapax__json_value value = {type, {w->out.ptr + begin, w->out.len - begin}, text};
    bool dropped = hapax__selection_leave(w->selection, w->depth, &value);
    struct frame *frame = innermost(w);
    struct member *member;

    if (dropped && (!frame || !frame->object)) {
        w->out.len = begin;
        return 1;
    }
    if (!frame)
        return 1;
    if (!put(&w->out, ",", 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    if (frame->object) {
        assert(w->members_len > frame->members);
        member = &w->members[w->members_len - 1];
        member->end = (uint32_t)w->out.len;
        member->dropped = dropped; /* its name still counts as there: it must not come twice */
    }
    return 1;
}

static int literal(struct walk *w, enum hapax__json_type type, const char *text)
{
    size_t begin = w->out.len;

    enter_value(w);
    if (!put(&w->out, text, strlen(text)))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, type, (struct hapax_span){NULL, 0});
}

static int on_null(void *arg)
{
    return literal(arg, HAPAX__JSON_NULL, "null");
}

static int on_boolean(void *arg, int value)
{
    return literal(arg, HAPAX__JSON_LITERAL, value ? "true" : "false");
}

static int on_number(void *arg, const char *text, size_t len)
{
    struct walk *w = arg;
    size_t begin = w->out.len;
    size_t first;
    size_t end;
    struct number number;

    enter_value(w);
    if (!split_number(&number, (struct hapax_span){(const uint8_t *)text, len}))
        return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    trim_number(&number, &first, &end);
    if (number.exponent > EXPONENT_MAX || number.exponent < -EXPONENT_MAX)
        return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    if (!put_number(&w->out, &number, first, end))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, HAPAX__JSON_LITERAL, (struct hapax_span){NULL, 0});
}

static int on_string(void *arg, const unsigned char *text, size_t len)
{
    struct walk *w = arg;
    size_t begin = w->out.len;

    enter_value(w);
    if (!put_string(&w->out, text, len))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, HAPAX__JSON_STRING, (struct hapax_span){text, len});
}

/* ---- containers -------------------------------------------------------------------- */

static int open_container(struct walk *w, bool object)
{
    enter_value(w);
    if (w->depth == HAPAX__JSON_DEPTH_MAX)
        return end_walk(w, HAPAX__JSON_NOT_CANONICAL);
    w->frames[w->depth++] = (struct frame){object, w->out.len, w->members_len, 0};
    if (!put(&w->out, object ? "{" : "[", 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return 1;
}

/* The bracket takes the place of the last comma. */
static int close_container(struct walk *w, const char *bracket)
{
    size_t begin = innermost(w)->begin;

    if (w->out.len > begin + 1)
        w->out.len--;
    w->depth--;
    if (!put(&w->out, bracket, 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return leave_value(w, begin, HAPAX__JSON_CONTAINER, (struct hapax_span){NULL, 0});
}

static int on_array(void *arg)
{
    return open_container(arg, false);
}

static int on_array_end(void *arg)
{
    return close_container(arg, "]");
}

static int on_object(void *arg)
{
    return open_container(arg, true);
}

static int on_name(void *arg, const unsigned char *name, size_t len)
{
    struct walk *w = arg;
    struct member *members = w->members;
    size_t begin = w->out.len;

    if (w->members_len == w->members_size) {
        size_t size = w->members_size > 0 ? 2 * w->members_size : 32;

        members = realloc(members, size * sizeof(*members));
        if (!members)
            return end_walk(w, HAPAX__JSON_NOMEM);
        w->members = members;
        w->members_size = size;
    }
    if (!put_string(&w->out, name, len))
        return end_walk(w, HAPAX__JSON_NOMEM);
    members[w->members_len++] =
        (struct member){(uint32_t)begin, (uint32_t)(w->out.len - begin), 0, false};
    hapax__selection_name(w->selection, w->depth, (struct hapax_span){name, len});
    if (!put(&w->out, ":", 1))
        return end_walk(w, HAPAX__JSON_NOMEM);
    return 1;
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

static int on_object_end(void *arg)
{
    struct walk *w = arg;
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

/* ---- yajl -------------------------------------------------------------------------- */

/* A block knows its size, for realloc. */
union block {
    size_t size;
    max_align_t align;
};

static void *yajl_malloc_or_leave(void *arg, size_t size)
{
    struct walk *w = arg;
    union block *block;

    assert(size <= UINT32_MAX); /* a body is at most HAPAX_BODY_MAX */
    block = hapax__arena_alloc(&w->arena, sizeof(*block) + size);
    if (!block)
        longjmp(w->nomem, 1);
    block->size = size;
    return block + 1;
}

static void *yajl_realloc_or_leave(void *arg, void *old, size_t size)
{
    void *fresh = yajl_malloc_or_leave(arg, size);

    if (old) {
        size_t kept = ((union block *)old)[-1].size;

        memcpy(fresh, old, kept < size ? kept : size);
    }
    return fresh;
}

static void yajl_free_later(void *arg, void *block)
{
    (void)arg;
    (void)block;
}

/* Sets w->result. Owns nothing, for it may be left by longjmp. */
static void parse(struct walk *w, struct hapax_span body)
{
    static const yajl_callbacks callbacks = {
        .yajl_null = on_null,
        .yajl_boolean = on_boolean,
        .yajl_number = on_number,
        .yajl_string = on_string,
        .yajl_start_map = on_object,
        .yajl_map_key = on_name,
        .yajl_end_map = on_object_end,
        .yajl_start_array = on_array,
        .yajl_end_array = on_array_end,
    };
    yajl_alloc_funcs memory = {yajl_malloc_or_leave, yajl_realloc_or_leave, yajl_free_later, w};
    yajl_handle yajl;
    yajl_status status;

    if (setjmp(w->nomem)) {
        w->result = HAPAX__JSON_NOMEM;
        return;
    }
    yajl = yajl_alloc(&callbacks, &memory, w);
    assert(yajl);
    status = yajl_parse(yajl, body.ptr, body.len);
    if (status == yajl_status_ok)
        status = yajl_complete_parse(yajl);
    yajl_free(yajl);
    if (status == yajl_status_error)
        w->result = HAPAX__JSON_NOT_CANONICAL;
    assert((status == yajl_status_ok) == (w->result == HAPAX__JSON_OK));
}

enum hapax__json_result hapax__json_walk(uint8_t **out, size_t *len, struct hapax_span body,
                                         struct hapax__selection *selection)
{
    struct walk w;

    *out = NULL;
    *len = 0;
    hapax__selection_begin(selection);
    if (body.len > HAPAX_BODY_MAX || !plain(body))
        return HAPAX__JSON_NOT_CANONICAL;
    memset(&w, 0, sizeof(w));
    w.selection = selection;
    parse(&w, body);
    hapax__arena_release(&w.arena);
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
