/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares two records field by field, for tests: a memcmp() would look at padding, and could not
 * say what differs.
 */
#ifndef HAPAX_TESTS_RECORD_DIFF_H
#define HAPAX_TESTS_RECORD_DIFF_H

#include <hapax/store.h>
#include <string.h>

static inline bool same_bytes(struct hapax_span a, struct hapax_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* The name of the first field that differs; NULL: none does. */
static inline const char *outcome_diff(const struct hapax_outcome *a, const struct hapax_outcome *b)
{
    if (a->status != b->status)
        return "outcome.status";
    if (a->body_kept != b->body_kept)
        return "outcome.body_kept";
    if (!same_bytes(a->headers, b->headers))
        return "outcome.headers";
    return same_bytes(a->body, b->body) ? NULL : "outcome.body";
}

#define RECORD_DIFF_VALUE(field)                                                                   \
    if (a->field != b->field)                                                                      \
    return #field
#define RECORD_DIFF_BYTES(field)                                                                   \
    if (memcmp(&a->field, &b->field, sizeof(a->field)) != 0)                                       \
    return #field

static inline const char *record_diff(const struct hapax_record *a, const struct hapax_record *b)
{
    RECORD_DIFF_BYTES(id);
    RECORD_DIFF_VALUE(state);
    RECORD_DIFF_VALUE(hold);
    RECORD_DIFF_VALUE(stale);
    RECORD_DIFF_VALUE(ran);
    RECORD_DIFF_VALUE(reruns);
    RECORD_DIFF_VALUE(attempt);
    RECORD_DIFF_VALUE(spent);
    RECORD_DIFF_VALUE(fence);
    RECORD_DIFF_BYTES(mark);
    RECORD_DIFF_BYTES(fingerprint);
    RECORD_DIFF_BYTES(caller);
    RECORD_DIFF_BYTES(owner);
    if (!same_bytes(a->scope, b->scope))
        return "scope";
    if (!same_bytes(a->what, b->what))
        return "what";
    RECORD_DIFF_VALUE(created_us);
    RECORD_DIFF_VALUE(updated_us);
    RECORD_DIFF_VALUE(lease_until_us);
    RECORD_DIFF_VALUE(expires_us);
    RECORD_DIFF_VALUE(retention_ms);
    RECORD_DIFF_VALUE(resolved_us);
    if (!same_bytes(a->resolved_by, b->resolved_by))
        return "resolved_by";
    RECORD_DIFF_VALUE(replaced_state);
    RECORD_DIFF_VALUE(replaced_status);
    return outcome_diff(&a->outcome, &b->outcome);
}

#endif
