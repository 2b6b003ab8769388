/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of what an event asks, as they were read (ask.c) and are used (asks.c).
 */
#ifndef HAPAX_DOOR_LAMBDA_ASKS_H
#define HAPAX_DOOR_LAMBDA_ASKS_H

#include "event.h"

#include "door/setting.h"

#define HAPAX__SOURCES_MAX 16u

enum source_kind {
    OF_HEADER = 1,
    OF_KEY_HEADER,
    OF_POINTERS,
    OF_EVENT_ID,
    OF_REQUEST_ID,
    OF_PAYLOAD
};

struct key_source {
    enum source_kind kind;
    struct hapax_span name;
    size_t first, count; /* of ask.pointers */
};

enum counts { COUNTS_NOTHING = 0, COUNTS_BYTES, COUNTS_JSON };

struct hapax__lambda_ask {
    struct key_source sources[HAPAX__SOURCES_MAX];
    size_t source_count;
    struct hapax__pointers pointers;
    bool method, uri;
    enum counts counts;
    enum hapax__json_select select;
    struct hapax__pointers selected;
    struct hapax_span scope;
    struct hapax_span step;
    size_t request_max;
};

#endif
