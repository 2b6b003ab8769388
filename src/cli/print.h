/* SPDX-License-Identifier: Apache-2.0
 *
 * Printing, on stdout but for failures, and for JSON that goes elsewhere (hapax web). Foreign bytes
 * (a scope, a header, a body) reach a terminal only as text: whatever could move its cursor or
 * change its state is shown as \xNN. JSON is valid whatever the bytes: what is not UTF-8 stands in
 * base64 under NAME_base64.
 */
#ifndef HAPAX_CLI_PRINT_H
#define HAPAX_CLI_PRINT_H

#include <hapax/hapax.h>
#include <stdint.h>
#include <stdio.h>

#define PRINT_AGE_MAX  48u
#define PRINT_TIME_MAX 40u
#define PRINT_HEX_MAX  65u

/* Foreign bytes, as text. Line breaks stay where `lines` is set, each followed by `indent`
 * spaces. */
void print_text(FILE *out, struct hapax_span bytes, bool lines, int indent);

void print_hex(char out[PRINT_HEX_MAX], const uint8_t bytes[32]);

/* A length of time as people write it, in at most two units: "850ms", "4m10s", "6d23h". */
void print_age(char out[PRINT_AGE_MAX], int64_t us);

/* "2026-01-31 12:00:00 UTC" */
void print_time(char out[PRINT_TIME_MAX], int64_t us);

/* ---- JSON: one object on one line --------------------------------------------------------- */

struct json {
    FILE *to;
    bool more; /* the next member needs a comma */
};

void json_begin(struct json *json); /* on stdout */
void json_begin_at(struct json *json, FILE *to); /* NULL: stdout */
void json_end(struct json *json); /* and a newline */

void json_text(struct json *json, const char *name, const char *value); /* UTF-8 */
void json_bytes(struct json *json, const char *name, struct hapax_span value);
void json_hex(struct json *json, const char *name, const uint8_t bytes[32]);
void json_number(struct json *json, const char *name, int64_t value);
void json_unsigned(struct json *json, const char *name, uint64_t value);
/* With 3 digits; null where the value is not finite. */
void json_decimal(struct json *json, const char *name, double value);
void json_bool(struct json *json, const char *name, bool value);
void json_null(struct json *json, const char *name);

/* An object within an array. */
void json_object_begin(struct json *json);
void json_object_end(struct json *json);

void json_array_begin(struct json *json, const char *name);
void json_item(struct json *json, struct hapax_span value); /* what is not UTF-8: U+FFFD */
void json_array_end(struct json *json);

#endif
