/* SPDX-License-Identifier: Apache-2.0
 *
 * Sinks without a broker: what they took and have not sent can be taken back.
 */
#include "../cases.h"
#include "broker/publish.h"

#include <stdlib.h>

/* More than a sink takes at once: a letter that was taken back leaves its place to others. */
#define LETTERS 3000

/* A letter waits in the sink while the broker is away. Once withdrawn it is neither sent nor
 * reaped. */
CASE(a_letter_that_waits_in_its_sink_is_taken_back)
{
    static const struct {
        const struct hapax__sink_type *type;
        const char *uri;
    } rows[] = {{&hapax__sink_amqp, "amqp://127.0.0.1:1"},
                {&hapax__sink_sqs, "sqs://r?endpoint=http://127.0.0.1:1"}};
    const struct hapax__letter letter = {.to = "q", .body = hapax_str("body")};

    (void)setenv("AWS_ACCESS_KEY_ID", "k", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hapax__publisher publisher;
        struct hapax__sink *sink;
        char text[HAPAX_TEXT_MAX];
        enum hapax__sent sent;

        assert_int_equal(rows[i].type->open(&sink, rows[i].uri, text), HAPAX_ERR_NONE);
        assert_int_equal(hapax__publisher_init(&publisher, sink, 1), HAPAX_ERR_NONE);
        for (int n = 0; n < LETTERS; n++) {
            struct hapax__publication publication = {0};

            hapax__publish(&publisher, &publication, &letter);
            hapax__publisher_pump(&publisher);
            assert_int_equal(publication.state, HAPAX__PUBLICATION_SENT);
            assert_true(hapax__publish_withdraw(&publisher, &publication));
            assert_false(rows[i].type->withdraw(sink, &publication));
        }
        assert_null(hapax__publisher_reap(&publisher, &sent));
        rows[i].type->close(sink);
        hapax__publisher_release(&publisher);
    }
}
