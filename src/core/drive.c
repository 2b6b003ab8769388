/* SPDX-License-Identifier: Apache-2.0
 *
 * The event's own flow goes last: the answers of the others may point into the op that it was
 * told, or into its handler's outcome, and both can go away when the flow ends.
 */
#include "drive.h"

#include "waiters.h"

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
    struct hapax__waiters *waiters = flow->waiters;

    hapax__waiters_wake(flow);
    while ((flow = hapax__waiters_ready(waiters)))
        if (!drive_one(flow, door))
            return false;
    return true;
}
