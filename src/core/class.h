/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that say what a response means for its operation: `409+retry-after` with the class not_run,
 * say. Doors ask their own rules first and the built-in ones last; the first rule that fits counts.
 * Here the policy chooses the built-in rules, and what follows a failure.
 */
#ifndef HAPAX_CORE_CLASS_H
#define HAPAX_CORE_CLASS_H

#include <hapax/hapax.h>

#define HAPAX__CLASS_TEXT_MAX 63

struct hapax__class_rule {
    uint16_t first; /* statuses */
    uint16_t last;
    enum hapax_class cls;
    char header[HAPAX__CLASS_TEXT_MAX + 1]; /* in lower case; empty: no condition */
    char value[HAPAX__CLASS_TEXT_MAX + 1]; /* in lower case; empty: the header alone counts */
};

/* Finds a header of the door's response by its name, in lower case. The value of the first one;
 * ptr NULL: the response has none of that name. */
typedef struct hapax_span hapax__header_finder(void *response, const char *name);

/* Reads a rule's condition: `409`, `4xx`, `409+retry-after` or `409+stripe-should-retry=true`, and
 * leaves the rule's class to the caller. False: the rule is undefined, and *why, a static text,
 * says what is allowed. */
bool hapax__class_rule_parse(struct hapax__class_rule *rule, struct hapax_span text,
                             const char **why);

/* The class of the first of n rules that fits; 0: none does. */
enum hapax_class hapax__class_by(const struct hapax__class_rule *rules, size_t n, int status,
                                 hapax__header_finder *find, void *response);

/* The same by the built-in rules of the policy; final where none fits. by_close: the response has
 * neither a length nor chunks, so it ended with its connection. Such a response may have been cut
 * off, which nobody sees. Where effects may not repeat, it is then unknown and not final. */
HAPAX__SHARED enum hapax_class hapax__class_of(const struct hapax_policy *policy, int status,
                                               bool by_close, hapax__header_finder *find,
                                               void *response);

/* What FAILED leads to: as the policy says, or its default for the policy's on_expired. Never 0. */
HAPAX__SHARED enum hapax_on_failed hapax__on_failed(const struct hapax_policy *policy);

#endif
