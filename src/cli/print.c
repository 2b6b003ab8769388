/* SPDX-License-Identifier: Apache-2.0
 *
 * Text, times and JSON. The one rule: no foreign byte is printed as it is unless it is
 * part of a printable character of UTF-8, neither to people nor in JSON.
 */
#include "print.h"

#include "base/span.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- UTF-8 --------------------------------------------------------------------------- */

/* The character that the bytes begin with, and how many it takes; 0: they begin with none. */
static size_t decode(const uint8_t *at, size_t left, uint32_t *character)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    uint32_t value;

    if (len == 0 || at[0] > 0xf4 || len > left)
        return 0;
    value = len == 1 ? at[0] : at[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    if (value < least[len] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *character = value;
    return len;
}

bool print_is_utf8(struct hapax_span bytes)
{
    uint32_t character;

    for (size_t i = 0; i < bytes.len;) {
        size_t len = decode(bytes.ptr + i, bytes.len - i, &character);

        if (len == 0)
            return false;
        i += len;
    }
    return true;
}

/* ---- for people ---------------------------------------------------------------------- */

/* Characters that act on a terminal, or turn the order of what follows. */
static bool acts(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x061c || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

void print_text(FILE *out, struct hapax_span bytes, bool lines, int indent)
{
    uint32_t character;

    for (size_t i = 0; i < bytes.len;) {
        size_t len = decode(bytes.ptr + i, bytes.len - i, &character);

        if (lines && len == 1 && character == '\n') {
            if (i + 1 < bytes.len)
                fprintf(out, "\n%*s", indent, "");
        } else if (lines && len == 1 && character == '\t') {
            fputc('\t', out);
        } else if (len == 0 || acts(character)) {
            len = len > 0 ? len : 1;
            for (size_t k = 0; k < len; k++)
                fprintf(out, "\\x%02x", bytes.ptr[i + k]);
        } else {
            fwrite(bytes.ptr + i, 1, len, out);
        }
        i += len;
    }
}

void print_hex(char out[PRINT_HEX_MAX], const uint8_t bytes[32])
{
    *hapax__hex(out, bytes, 32) = '\0';
}

void print_age(char out[PRINT_AGE_MAX], int64_t us)
{
    static const struct {
        int64_t seconds;
        char name;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
    int64_t seconds = us / 1000000;
    size_t i;

    if (us < 0)
        us = 0;
    if (us < 1000000) {
        (void)snprintf(out, PRINT_AGE_MAX, "%" PRId64 "ms", us / 1000);
        return;
    }
    for (i = 0; seconds < units[i].seconds; i++)
        ;
    if (units[i].seconds == 1 || seconds % units[i].seconds < units[i + 1].seconds)
        (void)snprintf(out, PRINT_AGE_MAX, "%" PRId64 "%c", seconds / units[i].seconds,
                       units[i].name);
    else
        (void)snprintf(out, PRINT_AGE_MAX, "%" PRId64 "%c%" PRId64 "%c", seconds / units[i].seconds,
                       units[i].name, seconds % units[i].seconds / units[i + 1].seconds,
                       units[i + 1].name);
}

void print_time(char out[PRINT_TIME_MAX], int64_t us)
{
    time_t seconds = us / 1000000;
    struct tm tm;

    if (!gmtime_r(&seconds, &tm) ||
        strftime(out, PRINT_TIME_MAX, "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
        (void)snprintf(out, PRINT_TIME_MAX, "%" PRId64 " us", us);
}

/* ---- JSON ---------------------------------------------------------------------------- */

static void put_string(struct hapax_span text)
{
    uint32_t character;

    putchar('"');
    for (size_t i = 0; i < text.len;) {
        size_t len = decode(text.ptr + i, text.len - i, &character);

        if (len == 0)
            fputs("\\ufffd", stdout);
        else if (character == '"' || character == '\\')
            printf("\\%c", (int)character);
        else if (character < 0x10000 && acts(character))
            printf("\\u%04x", (unsigned)character);
        else
            fwrite(text.ptr + i, 1, len, stdout);
        i += len > 0 ? len : 1;
    }
    putchar('"');
}

static void put_name(struct json *json, const char *name, const char *suffix)
{
    printf("%s\"%s%s\": ", json->more ? ", " : "", name, suffix);
    json->more = true;
}

static void put_base64(struct hapax_span bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    putchar('"');
    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t n = bytes.len - i < 3 ? bytes.len - i : 3;
        uint32_t group = 0;

        for (size_t k = 0; k < 3; k++)
            group = group << 8 | (k < n ? bytes.ptr[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            putchar(k <= n ? digits[group >> (18 - 6 * k) & 63] : '=');
    }
    putchar('"');
}

void json_begin(struct json *json)
{
    json->more = false;
    putchar('{');
}

void json_end(struct json *json)
{
    json->more = false;
    puts("}");
}

void json_object_begin(struct json *json)
{
    fputs(json->more ? ", {" : "{", stdout);
    json->more = false;
}

void json_object_end(struct json *json)
{
    putchar('}');
    json->more = true;
}

void json_text(struct json *json, const char *name, const char *value)
{
    put_name(json, name, "");
    put_string(hapax_str(value));
}

void json_bytes(struct json *json, const char *name, struct hapax_span value)
{
    bool text = print_is_utf8(value);

    put_name(json, name, text ? "" : "_base64");
    if (text)
        put_string(value);
    else
        put_base64(value);
}

void json_hex(struct json *json, const char *name, const uint8_t bytes[32])
{
    char hex[PRINT_HEX_MAX];

    print_hex(hex, bytes);
    json_text(json, name, hex);
}

void json_number(struct json *json, const char *name, int64_t value)
{
    put_name(json, name, "");
    printf("%" PRId64, value);
}

void json_unsigned(struct json *json, const char *name, uint64_t value)
{
    put_name(json, name, "");
    printf("%" PRIu64, value);
}

void json_bool(struct json *json, const char *name, bool value)
{
    put_name(json, name, "");
    fputs(value ? "true" : "false", stdout);
}

void json_null(struct json *json, const char *name)
{
    put_name(json, name, "");
    fputs("null", stdout);
}

void json_array_begin(struct json *json, const char *name)
{
    put_name(json, name, "");
    putchar('[');
    json->more = false;
}

void json_item(struct json *json, struct hapax_span value)
{
    if (json->more)
        fputs(", ", stdout);
    json->more = true;
    put_string(value);
}

void json_array_end(struct json *json)
{
    putchar(']');
    json->more = true;
}
