/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gives temporary keys over HTTP: STS, a container's agent, an instance's metadata. Each asks, waits, and keeps nothing.
 */
#ifndef HAPAX_AWS_GIVERS_H
#define HAPAX_AWS_GIVERS_H

#include "endpoint.h"
#include "sign.h"

struct hapax__aws_given {
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

/* All: NONE; REFUSED (it said no, or the setting is wrong), UNAVAILABLE (it did not answer), NOMEM. text has no secret in
 * it. out is whole only on NONE, but holds secrets at any time. */

/* AssumeRoleWithWebIdentity, with what is in the file now. */
enum hapax_error hapax__aws_web_identity(struct hapax__aws_given *out,
                                         const struct hapax__aws_sts *sts,
                                         const struct hapax__aws_role *role, const char *token_file,
                                         char text[HAPAX_TEXT_MAX]);

/* AssumeRole, by the keys of another. */
enum hapax_error hapax__aws_assume_role(struct hapax__aws_given *out,
                                        const struct hapax__aws_sts *sts,
                                        const struct hapax__aws_role *role,
                                        const struct hapax__aws_keys *keys, int64_t now_s,
                                        char text[HAPAX_TEXT_MAX]);

/* The agent of ECS or EKS. relative: the path at 169.254.170.2; else full: a URL, https: or of a host that may be asked
 * without it. token_file goes before token; both may be NULL. */
enum hapax_error hapax__aws_container(struct hapax__aws_given *out, const char *relative,
                                      const char *full, const char *token, const char *token_file,
                                      const char *ca, char text[HAPAX_TEXT_MAX]);

/* Whether keys may be asked for at a container's full URL. */
bool hapax__aws_container_may(const char *url);

/* Instance metadata, version 2 only. endpoint: NULL for EC2's own. REFUSED also where there is no such service. */
enum hapax_error hapax__aws_instance(struct hapax__aws_given *out, const char *endpoint,
                                     char text[HAPAX_TEXT_MAX]);

/* Whether keys are such that a header can hold them: bytes 0x21 to 0x7e, none of them missing but the token. */
bool hapax__aws_keys_check(const struct hapax__aws_keys *keys);

#endif
