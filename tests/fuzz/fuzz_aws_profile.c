/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's shared files, and replies with keys, as any bytes. Claims: a value that is found is within
 * its room and ends with a NUL. A value that is not found leaves "". The same bytes give the same.
 */
#include "fuzz.h"

#include "aws/answer.h"
#include "aws/profile.h"

#include <assert.h>
#include <string.h>

#define SIZE 24

static void check_out(const char out[SIZE], bool found)
{
    assert(memchr(out, '\0', SIZE));
    assert(found || out[0] == '\0');
}

static void read_profile(struct hapax_span file, enum hapax__aws_kind kind, const char *profile)
{
    static const char *const names[] = {"aws_access_key_id", "region", "a"};
    bool exists = hapax__aws_profile_exists(file, kind, profile);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char out[SIZE], again[SIZE];
        enum hapax__aws_found found =
            hapax__aws_profile_value(out, SIZE, file, kind, profile, names[i]);

        check_out(out, found == HAPAX__AWS_FOUND);
        assert(found == HAPAX__AWS_ABSENT || exists);
        assert(found != HAPAX__AWS_FOUND || (out[0] != '\0' && !strchr(out, '\n')));
        assert(hapax__aws_profile_value(again, SIZE, file, kind, profile, names[i]) == found);
        assert(strcmp(out, again) == 0);
    }
}

static void read_reply(struct hapax_span reply)
{
    char out[SIZE];

    check_out(out, hapax__aws_json_string(out, SIZE, reply, "a"));
    check_out(out, hapax__aws_json_string(out, SIZE, reply, "AccessKeyId"));
    check_out(out, hapax__aws_xml_text(out, SIZE, reply, "AccessKeyId"));
    hapax__aws_error_name(out, SIZE, "", reply);
    check_out(out, true);
    for (const char *c = out; *c; c++)
        assert(*c > ' ' && *c < 0x7f);
    assert(hapax__aws_time(out) >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span bytes = {data, size};

    read_profile(bytes, HAPAX__AWS_CREDENTIALS, "default");
    read_profile(bytes, HAPAX__AWS_CONFIG, "default");
    read_profile(bytes, HAPAX__AWS_CONFIG, "a b");
    read_reply(bytes);
    return 0;
}
