/* SPDX-License-Identifier: Apache-2.0
 *
 * The event's own flow goes last: the answers of the others may point into the op that the flow was
 * told, or into its handler's outcome, and both can go away when the flow ends.
 */
#include "drive.h"

static bool drive_one(struct hapax__flow *flow, const struct hapax__flow_door *door)
{
    enum hapax__flow_do what;

    do {
        int64_t now_us = door->now_us(flow);

        what = hapax__flow_next(flow, now_us);
        if (!door->act(flow, what, now_us))
            return false;
    } while (what != HAPAX__FLOW_PAUSE && what != HAPAX__FLOW_END);
    return true;
}

bool hapax__flow_drive(struct hapax__flow *flow, const struct hapax__flow_door *door)
{
    struct hapax__waiters *table = flow->waiter.table;
    struct hapax__waiter *ready;

    hapax__waiters_wake(&flow->waiter);
    while ((ready = hapax__waiters_ready(table)))
        if (!drive_one(hapax__flow_of(ready), door))
            return false;
    return true;
}
