/* SPDX-License-Identifier: Apache-2.0
 *
 * The credentials sources that hand out temporary keys over HTTP: STS, a container's agent, and an
 * instance's metadata. Each function asks, waits, and keeps nothing.
 */
#ifndef HAPAX_AWS_KEYS_H
#define HAPAX_AWS_KEYS_H

#include "endpoint.h"
#include "sign.h"

struct hapax__aws_temporary {
    struct hapax__aws_keys keys;
    int64_t expires_s; /* since 1970; 0: never */
};

struct hapax__aws_role {
    const char *arn;
    const char *session; /* NULL: a name of ours */
    const char *external_id; /* NULL: none */
    const char *duration_s; /* NULL: STS's own */
};

struct hapax__aws_sts {
    struct hapax__aws_endpoint endpoint;
    const char *region;
    const char *ca; /* NULL: the system's */
};

/* All of them return NONE, REFUSED (the source said no, or a setting is wrong), UNAVAILABLE (the
 * source did not answer) or NOMEM. text holds no secret. *out is whole only on NONE, but may hold
 * secrets after any result. */

/* AssumeRoleWithWebIdentity, with the token that is in the file now. */
enum hapax_error hapax__aws_web_identity(struct hapax__aws_temporary *out,
                                         const struct hapax__aws_sts *sts,
                                         const struct hapax__aws_role *role, const char *token_file,
                                         char text[HAPAX_TEXT_MAX]);

/* AssumeRole, signed with `keys`. */
enum hapax_error hapax__aws_assume_role(struct hapax__aws_temporary *out,
                                        const struct hapax__aws_sts *sts,
                                        const struct hapax__aws_role *role,
                                        const struct hapax__aws_keys *keys, int64_t now_s,
                                        char text[HAPAX_TEXT_MAX]);

/* The agent of ECS or EKS. relative: a path at 169.254.170.2. full is used where relative is NULL:
 * a URL that hapax__aws_container_may() allows. token_file goes before token; both may be NULL. */
enum hapax_error hapax__aws_container(struct hapax__aws_temporary *out, const char *relative,
                                      const char *full, const char *token, const char *token_file,
                                      const char *ca, char text[HAPAX_TEXT_MAX]);

/* Whether a container's full URL may be asked for keys: https:, or http: at this machine or one of
 * AWS's agents. */
bool hapax__aws_container_may(const char *url);

/* Instance metadata, version 2 only. endpoint: NULL for EC2's own. Also REFUSED where there is no
 * such service. */
enum hapax_error hapax__aws_instance(struct hapax__aws_temporary *out, const char *endpoint,
                                     char text[HAPAX_TEXT_MAX]);

/* Whether a header can hold the keys: bytes 0x21 to 0x7e. Only the token may be empty. */
bool hapax__aws_keys_check(const struct hapax__aws_keys *keys);

#endif
