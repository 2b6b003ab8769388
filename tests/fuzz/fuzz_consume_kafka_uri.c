/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka URIs, as people get them wrong: the input alone, and the input behind a password.
 * Claims: a URI that is taken is within its limits and has its topic and group, and one that is
 * refused has an error text. No error text contains the password.
 */
#include "fuzz_uri.h"

#include "broker/kafka/kafka.h"

static void read_as(const char *uri, enum hapax__kafka_role role, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax__kafka_uri out;
    enum hapax_error error = hapax__kafka_uri(&out, uri, role, text);

    if (error == HAPAX_ERR_NONE) {
        assert(out.conf && memchr(out.topic, '\0', sizeof(out.topic)));
        assert(out.partitions == -1 ||
               (out.partitions > 0 && out.partitions <= (int)HAPAX__KAFKA_PARTITIONS_MAX));
        assert(role == HAPAX__KAFKA_SINK || (out.topic[0] != '\0' && out.group[0] != '\0'));
        rd_kafka_conf_destroy(out.conf);
    } else {
        assert(error == HAPAX_ERR_INVALID && !out.conf);
        assert(text[0] != '\0' && memchr(text, '\0', sizeof(text)));
    }
    assert(!hidden || !strstr(text, hidden));
}

static void read_uri(const char *uri, const char *hidden)
{
    read_as(uri, HAPAX__KAFKA_SOURCE, hidden);
    read_as(uri, HAPAX__KAFKA_SINK, hidden);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_uri(data, size, "kafka://h:1/t?group=g&sasl.password=" PASSWORD, read_uri);
    return 0;
}
