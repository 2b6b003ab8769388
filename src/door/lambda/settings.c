/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of struct hapax_lambda.
 */
#include "event.h"

#include "base/fail.h"

#include <string.h>

#define KEPT_MAX      (6u << 20) /* Lambda's limit of a request, and of a response */
#define NAMESPACE_MAX 255u /* CloudWatch's */

void hapax_lambda_init(struct hapax_lambda *lambda)
{
    memset(lambda, 0, sizeof(*lambda));
    hapax_policy_init(&lambda->policy);
    lambda->policy.max_request = KEPT_MAX;
    lambda->policy.max_response = KEPT_MAX;
    lambda->batch_report = true;
    lambda->concurrency = 1;
    lambda->stop_fd = -1;
}

static bool is_namespace(const char *text)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/#:";
    size_t len = strlen(text);

    return len > 0 && len <= NAMESPACE_MAX && strspn(text, allowed) == len &&
           strncmp(text, "AWS/", 4) != 0;
}

enum hapax_error hapax_lambda_check(const struct hapax_lambda *lambda, char text[HAPAX_TEXT_MAX])
{
    struct hapax__ask ask;
    enum hapax_error error = hapax_policy_check(&lambda->policy, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (lambda->policy.on_expired == HAPAX_EXPIRED_RECONCILE)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "on_expired is reconcile, and there is no hook to ask");
    if (lambda->policy.owner_required && !lambda->owner)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "owner is missing, and owner_required is on, as profile=payments sets "
                           "it: name the pointer that says whose key it is");
    if (lambda->concurrency < 1 || lambda->concurrency > HAPAX_LAMBDA_CONCURRENCY_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "concurrency of %u is not 1 to %u",
                           lambda->concurrency, HAPAX_LAMBDA_CONCURRENCY_MAX);
    if (lambda->emf && !is_namespace(lambda->emf))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "emf \"%.100s\" is no namespace of CloudWatch: 1 to 255 letters, digits "
                           "and ._-/#: that do not begin with AWS/",
                           lambda->emf);
    return hapax__event_ask_read(&ask, lambda, text);
}
