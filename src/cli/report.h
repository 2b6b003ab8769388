/* SPDX-License-Identifier: Apache-2.0
 *
 * A record, printed: for people or as JSON, the same fields under the same names.
 */
#ifndef HAPAX_CLI_REPORT_H
#define HAPAX_CLI_REPORT_H

#include <hapax/store.h>

#define REPORT_REPEAT_MAX 200u

/* Times are shown against now_us, the store's clock. */
void report_record(const struct hapax_record *record, int64_t now_us);

struct json;

/* The members of a record, in an object. body_max: at most so many bytes of the body;
 * REPORT_LISTED: the record is of a LIST, which has no bodies. */
#define REPORT_LISTED (-1)
void report_members(struct json *json, const struct hapax_record *record, int64_t body_max,
                    int64_t now_us);

/* What the next request with this key will get. */
void report_repeat(char out[REPORT_REPEAT_MAX], const struct hapax_record *record, int64_t now_us);

/* A step, on one line below its operation: state, attempt, status, times. */
void report_step_head(void);
void report_step(const struct hapax_record *record, struct hapax_span name, int64_t now_us);

/* What a LIST or a PURGE has passed over since it is damaged. */
struct report_damage {
    unsigned places;
    struct hapax_id last; /* where the last place ends */
};

/* Counts the place that an answer tells of, if any, and says on stderr where it is. */
void report_damage(struct report_damage *damage, const char *command, const struct hapax_op *op);

void report_row_head(void);
void report_row(const struct hapax_record *record, int64_t now_us);

#endif
