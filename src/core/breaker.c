/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"

void hapax__breaker_init(struct hapax__breaker *breaker)
{
    *breaker = (struct hapax__breaker){.heard_us = -1};
}

void hapax__breaker_heard(struct hapax__breaker *breaker, int64_t now_us)
{
    breaker->open = false;
    breaker->vain = 0;
    breaker->heard_us = now_us;
}

void hapax__breaker_failed(struct hapax__breaker *breaker, int64_t begun_us, int64_t now_us)
{
    if (breaker->heard_us >= begun_us)
        return;
    breaker->failed_us = now_us;
    if (breaker->open || ++breaker->vain < 2)
        return;
    breaker->open = true;
    breaker->probe_us = now_us;
}

int64_t hapax__breaker_until(const struct hapax__breaker *breaker)
{
    return breaker->open ? breaker->failed_us + HAPAX__DEAD_US : 0;
}

bool hapax__breaker_refuses(const struct hapax__breaker *breaker, int64_t now_us)
{
    return now_us < hapax__breaker_until(breaker);
}

bool hapax__breaker_probes(struct hapax__breaker *breaker, int64_t now_us)
{
    if (now_us < breaker->probe_us)
        return false;
    breaker->probe_us = now_us + HAPAX__PROBE_US;
    return true;
}
