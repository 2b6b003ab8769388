/* SPDX-License-Identifier: Apache-2.0
 *
 * What an error reply means for its command.
 */
#ifndef HAPAX_STORE_REDIS_RESULT_H
#define HAPAX_STORE_REDIS_RESULT_H

#include "reader.h"

enum hapax__redis_result {
    HAPAX__REDIS_RESULT_ERROR, /* the command was carried out, or began to be */
    HAPAX__REDIS_RESULT_MOVED,
    HAPAX__REDIS_RESULT_ASK,
    HAPAX__REDIS_RESULT_SCRIPT, /* the script is not there */
    HAPAX__REDIS_RESULT_AGAIN, /* the same node will take the command later */
    HAPAX__REDIS_RESULT_ELSEWHERE, /* this node is not the primary, or not yet */
    HAPAX__REDIS_RESULT_UNAVAILABLE, /* the node takes no such command now */
    HAPAX__REDIS_RESULT_REFUSED
};

/* script: the command is a script. Only ERROR leaves it open whether the command was carried
 * out. */
enum hapax__redis_result hapax__redis_result(const struct hapax__resp *reply, bool script);

#endif
