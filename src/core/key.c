/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads an Idempotency-Key header: an RFC 8941 Item whose bare item is a String, or a bare token
 * as most clients send it. `"k"` and `k` give the same bytes. Also makes keys of events (key.h).
 *
 * The invariant: a value is read whole or refused. Two readers of one header that disagree
 * about where the key ends are two operations, or one too few; so parameters are checked to
 * the letter although nothing uses them, and a comma outside quotes, which is how a proxy
 * joins repeated headers, is never part of a key. Rejected: passing what does not parse on as an
 * opaque key, which makes one key of a typo and another of its correction.
 */
#include "key.h"

#include "base/bytes.h"

#include <openssl/sha.h>

#define INTEGER_DIGITS_MAX  15 /* RFC 8941, section 3.3.1 */
#define WHOLE_DIGITS_MAX    12 /* section 3.3.2 */
#define FRACTION_DIGITS_MAX 3

static const char empty[] = "the key is empty";
static const char too_long[] = "the key is over 255 bytes";
static const char repeated[] =
    "a comma outside quotes: the header is repeated, or holds several keys";
static const char non_ascii[] = "the key holds a byte that is not ASCII";
static const char control[] = "the key holds a control character";
static const char bad_escape[] = "only \\\" and \\\\ may follow a backslash in a quoted key";
static const char unterminated[] = "the closing quote is missing";
static const char bad_parameter[] = "what follows the closing quote is no valid parameter";
static const char bare_space[] = "a space outside quotes";
static const char bare_parameter[] = "parameters may follow a quoted key only";
static const char bare_byte[] =
    "the key holds a character that must be quoted (bare: A-Z a-z 0-9 _ . : ~ + / = -)";

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_lower(uint8_t c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_alpha(uint8_t c)
{
    return is_lower(c) || (c >= 'A' && c <= 'Z');
}

/* Whether c is in the set, a C string. */
static bool is_of(uint8_t c, const char *set)
{
    return memchr(set, c, strlen(set)) != NULL;
}

static bool is_bare(uint8_t c)
{
    return is_alpha(c) || is_digit(c) || is_of(c, "_.:~+/=-");
}

/* The next byte, or 0 at the end: no grammar below takes a NUL. */
static uint8_t peek(const struct hapax__reader *r)
{
    return r->left > 0 ? *r->at : 0;
}

static bool accept(struct hapax__reader *r, uint8_t c)
{
    if (r->left == 0 || *r->at != c)
        return false;
    hapax__take(r, 1);
    return true;
}

/* ---- parameters (RFC 8941, section 3.1.2) ------------------------------------------ */

static size_t skip_digits(struct hapax__reader *r)
{
    size_t n = 0;

    for (; is_digit(peek(r)); n++)
        hapax__take(r, 1);
    return n;
}

static bool skip_number(struct hapax__reader *r)
{
    size_t whole;
    size_t fraction;

    accept(r, '-');
    whole = skip_digits(r);
    if (whole == 0)
        return false;
    if (!accept(r, '.'))
        return whole <= INTEGER_DIGITS_MAX;
    fraction = skip_digits(r);
    return whole <= WHOLE_DIGITS_MAX && fraction > 0 && fraction <= FRACTION_DIGITS_MAX;
}

static bool skip_token(struct hapax__reader *r)
{
    while (is_alpha(peek(r)) || is_digit(peek(r)) || is_of(peek(r), "!#$%&'*+-.^_`|~:/"))
        hapax__take(r, 1);
    return true;
}

static bool skip_bytes(struct hapax__reader *r)
{
    while (is_alpha(peek(r)) || is_digit(peek(r)) || is_of(peek(r), "+/="))
        hapax__take(r, 1);
    return accept(r, ':');
}

/* Reads what stands between quotes, the first of which is taken already. At most max bytes go to
 * out, which may be NULL; *len counts them all. NULL, or why it is no sf-string. */
static const char *take_string(struct hapax__reader *r, uint8_t *out, size_t max, size_t *len)
{
    *len = 0;
    while (r->left > 0) {
        uint8_t c = hapax__take_u8(r);

        if (c == '"')
            return NULL;
        if (c == '\\') {
            if (r->left == 0)
                return unterminated;
            c = hapax__take_u8(r);
            if (c != '"' && c != '\\')
                return bad_escape;
        }
        if (c >= 0x80)
            return non_ascii;
        if (c < 0x20 || c == 0x7f)
            return control;
        if (*len < max)
            out[*len] = c;
        ++*len;
    }
    return unterminated;
}

static bool skip_value(struct hapax__reader *r)
{
    uint8_t c = peek(r);
    size_t len;

    if (c == '-' || is_digit(c))
        return skip_number(r);
    if (is_alpha(c) || c == '*')
        return skip_token(r);
    if (accept(r, '"'))
        return take_string(r, NULL, 0, &len) == NULL;
    if (accept(r, ':'))
        return skip_bytes(r);
    if (accept(r, '?'))
        return accept(r, '0') || accept(r, '1');
    return false;
}

static bool skip_parameters(struct hapax__reader *r)
{
    while (accept(r, ';')) {
        while (accept(r, ' '))
            ;
        if (!is_lower(peek(r)) && peek(r) != '*')
            return false;
        while (is_lower(peek(r)) || is_digit(peek(r)) || is_of(peek(r), "_-.*"))
            hapax__take(r, 1);
        if (accept(r, '=') && !skip_value(r))
            return false;
    }
    return true;
}

/* ---- the key ----------------------------------------------------------------------- */

static const char *take_quoted(struct hapax__reader *r, uint8_t *out, size_t *len)
{
    const char *wrong = take_string(r, out, HAPAX_KEY_MAX, len);
    bool valid;

    if (wrong)
        return wrong;
    if (*len == 0)
        return empty;
    if (*len > HAPAX_KEY_MAX)
        return too_long;
    valid = skip_parameters(r);
    while (accept(r, ' ') || accept(r, '\t'))
        ;
    if (peek(r) == ',')
        return repeated;
    return valid && r->left == 0 ? NULL : bad_parameter;
}

static const char *wrong_bare(uint8_t c)
{
    switch (c) {
    case ',':
        return repeated;
    case ';':
        return bare_parameter;
    case ' ':
    case '\t':
        return bare_space;
    default:
        break;
    }
    if (c >= 0x80)
        return non_ascii;
    return c < 0x20 || c == 0x7f ? control : bare_byte;
}

static const char *take_bare(struct hapax__reader *r, uint8_t *out, size_t *len)
{
    *len = 0;
    while (r->left > 0) {
        uint8_t c = hapax__take_u8(r);

        if (!is_bare(c))
            return wrong_bare(c);
        if (*len == HAPAX_KEY_MAX)
            return too_long;
        out[(*len)++] = c;
    }
    return *len == 0 ? empty : NULL;
}

enum hapax_error hapax_key_parse(uint8_t out[HAPAX_KEY_MAX], size_t *len, struct hapax_span value,
                                 const char **why)
{
    struct hapax__reader r = {value.ptr, value.len, false};

    while (accept(&r, ' ') || accept(&r, '\t'))
        ;
    while (r.left > 0 && (r.at[r.left - 1] == ' ' || r.at[r.left - 1] == '\t'))
        r.left--;
    *why = accept(&r, '"') ? take_quoted(&r, out, len) : take_bare(&r, out, len);
    assert(!r.bad);
    if (*why)
        return HAPAX_ERR_INVALID;
    assert(r.left == 0 && *len >= 1 && *len <= HAPAX_KEY_MAX);
    return HAPAX_ERR_NONE;
}

/* ---- events ------------------------------------------------------------------------ */

static bool is_printable(struct hapax_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < 0x20 || text.ptr[i] > 0x7e)
            return false;
    }
    return true;
}

enum hapax_error hapax__key_of_event(uint8_t out[HAPAX_KEY_MAX], size_t *len,
                                     struct hapax_span source, struct hapax_span id)
{
    const struct hapax_span names[] = {source, id};
    struct hapax__writer w = {out, HAPAX_KEY_MAX};
    struct hapax_digest digest;

    if (source.len == 0 || source.len > HAPAX__EVENT_NAME_MAX || id.len == 0 ||
        id.len > HAPAX__EVENT_NAME_MAX)
        return HAPAX_ERR_INVALID;
    if (source.len + 1 + id.len <= HAPAX_KEY_MAX && is_printable(source) && is_printable(id) &&
        memchr(source.ptr, ' ', source.len) == NULL) {
        hapax__put(&w, source.ptr, source.len);
        hapax__put(&w, " ", 1);
        hapax__put(&w, id.ptr, id.len);
    } else {
        hapax_digest(&digest, names, 2);
        *len = hapax__key_of_digest(out, digest.bytes);
        return HAPAX_ERR_NONE;
    }
    *len = HAPAX_KEY_MAX - w.left;
    assert(*len > 0);
    return HAPAX_ERR_NONE;
}

size_t hapax__key_of_digest(uint8_t out[HAPAX_KEY_MAX], const uint8_t digest[32])
{
    struct hapax__writer w = {out, HAPAX_KEY_MAX};

    hapax__put(&w, "sha256-", 7);
    hapax__put_hex(&w, digest, SHA256_DIGEST_LENGTH);
    assert(HAPAX_KEY_MAX - w.left == HAPAX__KEY_DIGEST_LEN);
    return HAPAX__KEY_DIGEST_LEN;
}

size_t hapax__key_of_bytes(uint8_t out[HAPAX_KEY_MAX], struct hapax_span bytes)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];

    if (bytes.len > HAPAX_KEY_MAX)
        return hapax__key_of_digest(out, SHA256(bytes.ptr, bytes.len, digest));
    if (bytes.len > 0)
        memcpy(out, bytes.ptr, bytes.len);
    return bytes.len;
}

bool hapax__key_quote(uint8_t out[HAPAX__KEY_QUOTED_MAX], size_t *len, struct hapax_span key)
{
    size_t n = 0;

    if (key.len == 0 || key.len > HAPAX_KEY_MAX || !is_printable(key))
        return false;
    out[n++] = '"';
    for (size_t i = 0; i < key.len; i++) {
        if (key.ptr[i] == '"' || key.ptr[i] == '\\')
            out[n++] = '\\';
        out[n++] = key.ptr[i];
    }
    out[n++] = '"';
    *len = n;
    return true;
}

#define UUID_LEN    36u
#define UUID_TIME   12u /* digits of its first 48 bits, the milliseconds */
#define TIME_DIGITS 10u /* of Unix seconds, from 2001 to 2286 */

static int hex_digit(uint8_t c)
{
    if (is_digit(c))
        return c - '0';
    c |= 0x20; /* A to F are a to f */
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The milliseconds of a UUID of version 7, variant 10; 0: the key is none. */
static int64_t uuid7_ms(struct hapax_span key)
{
    int64_t time = 0;
    size_t digits = 0;

    if (key.len != UUID_LEN || key.ptr[14] != '7' || !memchr("89abAB", key.ptr[19], 6))
        return 0;
    for (size_t i = 0; i < UUID_LEN; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;

        if (dash ? key.ptr[i] != '-' : hex_digit(key.ptr[i]) < 0)
            return 0;
        if (!dash && digits++ < UUID_TIME)
            time = time << 4 | hex_digit(key.ptr[i]);
    }
    return time;
}

int64_t hapax__key_made_ms(struct hapax_span key)
{
    int64_t time = uuid7_ms(key);

    if (time > 0)
        return time;
    if (key.len < TIME_DIGITS + 2 || key.ptr[0] != 't' || key.ptr[1] == '0' ||
        key.ptr[TIME_DIGITS + 1] != '-')
        return 0;
    for (size_t i = 1; i <= TIME_DIGITS; i++) {
        if (!is_digit(key.ptr[i]))
            return 0;
        time = time * 10 + (key.ptr[i] - '0');
    }
    return time * 1000;
}
