/* SPDX-License-Identifier: Apache-2.0 */
#include "told.h"

const char *hapax__traced_name(enum hapax__traced_door door)
{
    static const char *const names[] = {
        [HAPAX__TRACED_HTTP] = "http",       [HAPAX__TRACED_MESSAGE] = "message",
        [HAPAX__TRACED_LAMBDA] = "lambda",   [HAPAX__TRACED_SOCKET] = "socket",
        [HAPAX__TRACED_COMMAND] = "command", [HAPAX__TRACED_RELAY] = "relay",
    };

    return names[door];
}

const char *hapax__class_name(enum hapax_class cls)
{
    static const char *const names[] = {"", "final", "not_run", "failed", "unknown"};

    return names[cls];
}
