/* SPDX-License-Identifier: Apache-2.0
 *
 * SQS URIs, as people get them wrong: the input alone, and the input behind an endpoint with a
 * password. Claims: a URI that is taken is within its limits, and one that is refused has an error
 * text. No error text contains the password.
 */
#include "fuzz_uri.h"

#include "broker/sqs/uri.h"

static void read_uri(const char *uri, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax__sqs_uri out;
    enum hapax_error error = hapax__sqs_uri(&out, uri, text);
    const char *why;

    if (error == HAPAX_ERR_NONE) {
        assert(out.region[0] != '\0' && memchr(out.region, '\0', sizeof(out.region)));
        assert(memchr(out.queue, '\0', sizeof(out.queue)));
        assert(out.queue[0] == '\0' || hapax__sqs_name_check(out.queue, &why));
        assert(memchr(out.endpoint, '\0', sizeof(out.endpoint)) && !strchr(out.endpoint, '@'));
        assert(strlen(out.account) == 0 || strlen(out.account) == 12);
        assert(memchr(out.profile, '\0', sizeof(out.profile)));
        assert(out.wait_s >= 0 && out.wait_s <= 20);
        assert(out.visibility_s >= 2 && out.visibility_s <= HAPAX__SQS_VISIBILITY_MAX_S);
    } else {
        assert(error == HAPAX_ERR_INVALID);
        assert(text[0] != '\0' && memchr(text, '\0', sizeof(text)));
    }
    if (hidden)
        assert(!strstr(text, hidden));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_uri(data, size, "sqs://r/q?endpoint=http://u:" PASSWORD "@", read_uri);
    return 0;
}
