/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's shared files, ~/.aws/credentials and ~/.aws/config: sections of names and values.
 */
#ifndef HAPAX_AWS_PROFILE_H
#define HAPAX_AWS_PROFILE_H

#include <hapax/hapax.h>

#define HAPAX__AWS_FILE_MAX (1u << 20) /* bytes of a shared file */

enum hapax__aws_kind {
    HAPAX__AWS_CREDENTIALS = 1, /* [NAME] */
    HAPAX__AWS_CONFIG /* [profile NAME], or [default] */
};

enum hapax__aws_found {
    HAPAX__AWS_FOUND = 1,
    HAPAX__AWS_ABSENT,
    HAPAX__AWS_TOO_LONG /* for size; out is "" */
};

/* Whether a file has a section of the profile. */
bool hapax__aws_profile_exists(struct hapax_span file, enum hapax__aws_kind kind,
                               const char *profile);

/* Reads a value of a profile from the last line that sets it, without the space around it and a
 * comment (" #") behind it. An empty value is ABSENT. Passed over: lines that begin with space,
 * since they belong to the value above, and lines that are not "name = value". name: in lower case;
 * the file may have any case. */
enum hapax__aws_found hapax__aws_profile_value(char *out, size_t size, struct hapax_span file,
                                               enum hapax__aws_kind kind, const char *profile,
                                               const char *name);

/* Reads a whole file of at most max bytes. *out is yours, ends with a NUL that len does not count,
 * and is wiped and freed by hapax__aws_file_free(). Returns 0 or an errno; EFBIG: it is over max. A
 * FIFO does not block the call. */
int hapax__aws_file_read(struct hapax_span *out, const char *path, size_t max);

void hapax__aws_file_free(struct hapax_span *file);

#endif
