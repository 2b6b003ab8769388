/* SPDX-License-Identifier: Apache-2.0
 *
 * Which users a Redis needs, as lines of ACL SETUSER: of doors, of operators, and for hapax check.
 * Each has the commands and keys that it uses with this URI, and no others.
 *
 * A script runs with the rights of whoever calls it. So Redis cannot tell a completion from another
 * write: whoever may complete an operation may change each record whose id is known. What a door
 * lacks is all that finds records (SCAN). Nothing is sent from here: whoever may make users is not
 * whoever runs Hapax.
 */
#include "base/fail.h"
#include "redis.h"

#include <stdio.h>
#include <string.h>

#define LINE_SIZE 640u

/* What every connection asks, and every call of lua/machine.lua. */
#define OPS "+ping +client|setname +evalsha +script|load +time +get +set +setrange"
/* What the script asks when it lists, and forgets. */
#define WALK "+scan +getrange +strlen +exists +unlink +info"

struct user {
    const char *name;
    const char *keys; /* behind the prefix */
    const char *commands;
    bool checks;
};

static const struct user users[] = {
    {"hapax-door", "*", OPS, false},
    {"hapax-operator", "*", OPS " " WALK, false},
    {"hapax-check", "check:*", OPS " " WALK " +config|get", true},
};

enum hapax_error hapax__redis_rights(const char *uri, const char *use, const char *role, bool print,
                                     hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis_uri read;
    enum hapax_error error = hapax__redis_uri(&read, uri, text);
    char line[LINE_SIZE];

    if (error == HAPAX_ERR_NONE && (use || role || !print))
        error = hapax__fail(text, HAPAX_ERR_INVALID,
                            "the users of a Redis are made by its ACL, not by --role: --print-acl "
                            "prints the lines");
    for (size_t i = 0; i < sizeof(users) / sizeof(users[0]) && error == HAPAX_ERR_NONE; i++) {
        bool cluster = read.kind == HAPAX__REDIS_CLUSTER;

        (void)snprintf(line, sizeof(line),
                       "ACL SETUSER %s reset on >PASSWORD resetchannels ~%s%s %s%s%s%s%s%s",
                       users[i].name, read.prefix, users[i].keys, users[i].commands,
                       read.wait > 0 ? " +wait" : "", read.db > 0 ? " +select" : "",
                       read.kind == HAPAX__REDIS_SENTINEL ? " +role" : "",
                       cluster ? " +cluster|slots +asking" : "",
                       cluster && users[i].checks ? " +cluster|info" : "");
        say(arg, false, line);
    }
    if (error == HAPAX_ERR_NONE && read.kind == HAPAX__REDIS_SENTINEL)
        say(arg, false,
            "ACL SETUSER hapax-sentinel reset on >PASSWORD resetchannels +ping +client|setname "
            "+sentinel|get-master-addr-by-name +sentinel|master");
    explicit_bzero(&read, sizeof(read)); /* the URI has passwords */
    return error;
}
