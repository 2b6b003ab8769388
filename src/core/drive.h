/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver: after an event, it lets flows go on. Every door drives its flows with it, and so does
 * the simulator: the order that is simulated is the order that runs.
 */
#ifndef HAPAX_CORE_DRIVE_H
#define HAPAX_CORE_DRIVE_H

#include "flow.h"

/* What a door does for its flows. */
struct hapax__flow_door {
    /* The time of the flow's clock, now. */
    int64_t (*now_us)(const struct hapax__flow *flow);

    /* Does what the flow says next. It may report back at once, for example by hapax__flow_told()
     * after ASK. After PAUSE and END the driver leaves the flow alone, so END may free it. False:
     * something failed that ends the whole drive. */
    bool (*act)(struct hapax__flow *flow, enum hapax__flow_do what, int64_t now_us);
};

/* Call this after each event to a flow (begin, told, handled, died, reconciled, stop, timer). It
 * drives all flows that the event made ready, in their order, and the event's own flow after them,
 * each until PAUSE or END, and goes on until no flow is ready. The memory that an answered op
 * points into must stay until this returns. False: act() returned false; some flows may not have
 * been driven. */
bool hapax__flow_drive(struct hapax__flow *flow, const struct hapax__flow_door *door);

#endif
