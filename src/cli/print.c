/* SPDX-License-Identifier: Apache-2.0
 *
 * Text, times and JSON. The one rule: no foreign byte is printed as it is unless it is
 * part of a printable character of UTF-8, neither to people nor in JSON.
 */
#include "print.h"

#include "base/span.h"
#include "base/utf8.h"
#include "json/write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- for people ---------------------------------------------------------------------- */

void print_text(FILE *out, struct hapax_span bytes, bool lines, int indent)
{
    uint32_t character;

    for (size_t i = 0; i < bytes.len;) {
        size_t len = hapax__utf8_read(&character, bytes.ptr + i, bytes.len - i);

        if (lines && len == 1 && character == '\n') {
            if (i + 1 < bytes.len)
                fprintf(out, "\n%*s", indent, "");
        } else if (lines && len == 1 && character == '\t') {
            fputc('\t', out);
        } else if (len == 0 || hapax__json_acts(character)) {
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

static void put_string(FILE *to, struct hapax_span text)
{
    struct hapax__json_out out = {.to = to};

    hapax__json_put_shown(&out, text);
}

static void put_name(struct json *json, const char *name, const char *suffix)
{
    fprintf(json->to, "%s\"%s%s\": ", json->more ? ", " : "", name, suffix);
    json->more = true;
}

void json_begin_at(struct json *json, FILE *to)
{
    *json = (struct json){.to = to ? to : stdout};
    fputc('{', json->to);
}

void json_begin(struct json *json)
{
    json_begin_at(json, stdout);
}

void json_end(struct json *json)
{
    json->more = false;
    fputs("}\n", json->to);
}

void json_object_begin(struct json *json)
{
    fputs(json->more ? ", {" : "{", json->to);
    json->more = false;
}

void json_object_end(struct json *json)
{
    fputc('}', json->to);
    json->more = true;
}

void json_text(struct json *json, const char *name, const char *value)
{
    put_name(json, name, "");
    put_string(json->to, hapax_str(value));
}

void json_bytes(struct json *json, const char *name, struct hapax_span value)
{
    struct hapax__json_out out = {.to = json->to};
    bool text = hapax__is_utf8(value);

    put_name(json, name, text ? "" : "_base64");
    if (text)
        hapax__json_put_shown(&out, value);
    else
        hapax__json_put_base64(&out, value);
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
    fprintf(json->to, "%" PRId64, value);
}

void json_unsigned(struct json *json, const char *name, uint64_t value)
{
    put_name(json, name, "");
    fprintf(json->to, "%" PRIu64, value);
}

void json_decimal(struct json *json, const char *name, double value)
{
    if (!isfinite(value)) {
        json_null(json, name);
        return;
    }
    put_name(json, name, "");
    fprintf(json->to, "%.3f", value);
}

void json_bool(struct json *json, const char *name, bool value)
{
    put_name(json, name, "");
    fputs(value ? "true" : "false", json->to);
}

void json_null(struct json *json, const char *name)
{
    put_name(json, name, "");
    fputs("null", json->to);
}

void json_array_begin(struct json *json, const char *name)
{
    put_name(json, name, "");
    fputc('[', json->to);
    json->more = false;
}

void json_item(struct json *json, struct hapax_span value)
{
    if (json->more)
        fputs(", ", json->to);
    json->more = true;
    put_string(json->to, value);
}

void json_array_end(struct json *json)
{
    fputc(']', json->to);
    json->more = true;
}
