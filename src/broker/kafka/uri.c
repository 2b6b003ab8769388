/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads Kafka URIs. librdkafka knows the properties and checks their values. A table here names the
 * properties that this door owns: with another value they would lose messages (enable.auto.commit)
 * or load code (plugin.library.paths).
 *
 * The invariant: no text shows a secret. If a property's name looks like a secret's, librdkafka's
 * own text is not shown. No name behind such a property is shown either: a password that is not
 * percent-encoded may go on as the next parameter.
 *
 * Rejected: our own list of the properties that may be set. It would be out of date with the next
 * librdkafka.
 */
#include "kafka.h"

#include "base/fail.h"
#include "base/span.h"
#include "base/uri.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>

#define NAME_MAX_LEN 128u /* of a property */
#define SCRAM_MENDED 0x020601ff /* librdkafka 2.6.1 */

static const char scheme[] = "kafka://";

struct reading {
    struct hapax__uri_reading uri; /* first */
    struct hapax__kafka_uri *out;
    enum hapax__kafka_role role;
    bool secretive; /* what is read may be the end of a secret property */
    bool user, password, protocol, mechanism; /* given in the URI */
};

struct setting {
    const char *name, *value;
};

/* The defaults of each role. A URI may change them. */
static const struct setting source_settings[] = {
    {"auto.offset.reset", "earliest"}, /* a new group skips no message */
    {"queued.min.messages",
     "1000"}, /* and kbytes, per partition; handlers are slower than brokers */
    {"queued.max.messages.kbytes", "4096"},
    {"topic.metadata.refresh.interval.ms", "10000"}, /* so that a retry topic made later is seen */
    {"reconnect.backoff.max.ms", "5000"},
    {"client.id", "hapax"},
    {NULL, NULL},
};

static const struct setting sink_settings[] = {
    {"partitioner", "murmur2_random"}, /* as Java's producers place keys */
    {"message.timeout.ms", "60000"},
    {"topic.metadata.propagation.max.ms",
     "5000"}, /* a topic may be unknown for so long, then letters are refused */
    {"reconnect.backoff.max.ms", "5000"},
    {"client.id", "hapax"},
    {NULL, NULL},
};

/* What each role must have. */
static const struct setting source_owned[] = {
    {"enable.auto.commit", "false"},
    {"enable.auto.offset.store", "false"},
    {"partition.assignment.strategy", "cooperative-sticky"},
    {"enable.partition.eof",
     "true"}, /* it shows what is behind the last message, to be committed */
    {NULL, NULL},
};

static const struct setting sink_owned[] = {
    {"enable.idempotence", "true"},
    {"acks", "all"},
    {NULL, NULL},
};

static const char *const owned[] = {
    "bootstrap.servers",
    "metadata.broker.list",
    "group.id",
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "partition.assignment.strategy",
    "enable.idempotence",
    "acks",
    "request.required.acks",
    "transactional.id",
    "plugin.library.paths",
    "log.queue",
    "enable.gapless.guarantee",
    "offset.store.method",
};

static const char *const secret_words[] = {"password", "secret", "key",  "pem",
                                           "token",    "oauth",  "jaas", "username"};

static bool sounds_secret(const char *name)
{
    for (size_t i = 0; i < sizeof(secret_words) / sizeof(secret_words[0]); i++)
        if (strcasestr(name, secret_words[i]))
            return true;
    return false;
}

/* ---- properties ------------------------------------------------------------------------ */

static bool is_owned(const char *name)
{
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++)
        if (strcmp(name, owned[i]) == 0)
            return true;
    return false;
}

static enum hapax_error refuse_name(struct reading *r, const char *name, const char *why)
{
    if (r->secretive)
        return hapax__uri_wrong(&r->uri, "what follows a secret is no parameter; is it "
                                         "percent-encoded?");
    return hapax__uri_wrong(&r->uri, "\"%.64s\" %s", name, why);
}

static enum hapax_error set_property(struct reading *r, const char *name, const char *value)
{
    char said[HAPAX_TEXT_MAX] = "";
    bool secret = sounds_secret(name);
    rd_kafka_conf_res_t result;

    if (is_owned(name))
        return refuse_name(r, name, "is not to be set: the consumer sees to it");
    result = rd_kafka_conf_set(r->out->conf, name, value, said, sizeof(said));
    if (result == RD_KAFKA_CONF_UNKNOWN)
        return refuse_name(r, name, "is no parameter of ours and no property of librdkafka");
    if (result != RD_KAFKA_CONF_OK && (secret || r->secretive))
        return refuse_name(r, name, "has a value that librdkafka does not take");
    if (result != RD_KAFKA_CONF_OK)
        return hapax__uri_wrong(&r->uri, "%.200s", said);
    r->secretive = r->secretive || secret;
    r->user = r->user || strcmp(name, "sasl.username") == 0;
    r->password = r->password || strcmp(name, "sasl.password") == 0;
    r->protocol = r->protocol || strcmp(name, "security.protocol") == 0;
    r->mechanism = r->mechanism || strncmp(name, "sasl.mechanism", 14) == 0;
    return HAPAX_ERR_NONE;
}

static void set_own(struct reading *r, const char *name, const char *value)
{
    char said[HAPAX_TEXT_MAX];
    rd_kafka_conf_res_t result = rd_kafka_conf_set(r->out->conf, name, value, said, sizeof(said));

    assert(result == RD_KAFKA_CONF_OK);
}

static void set_all(struct reading *r, const struct setting *settings)
{
    for (; settings->name; settings++)
        set_own(r, settings->name, settings->value);
}

/* ---- parameters ------------------------------------------------------------------------ */

static bool is_name(const char *s)
{
    size_t len = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

    return len > 0 && s[len] == '\0' && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

static const struct hapax__uri_option uri_options[] = {
    {"group", HAPAX__URI_TEXT, HAPAX__URI_FIELD(struct hapax__kafka_uri, group), 1,
     HAPAX__KAFKA_TOPIC_MAX,
     "\"group\" is not 1 to 249 of A-Z a-z 0-9 . _ - (topics are named after it)",
     .allows = is_name},
    {"partitions", HAPAX__URI_NUMBER, HAPAX__URI_FIELD(struct hapax__kafka_uri, partitions), 1,
     HAPAX__KAFKA_PARTITIONS_MAX, "\"partitions\" is not 1 to 10000"},
};

static enum hapax_error read_property(struct hapax__uri_reading *uri,
                                      const struct hapax__uri_parameter *p)
{
    struct reading *r = (struct reading *)uri;
    char name[NAME_MAX_LEN + 1], value[HAPAX__KAFKA_VALUE_MAX + 1];

    if (!hapax__uri_decode(name, sizeof(name), p->name, p->name_len) || name[0] == '\0')
        return hapax__uri_wrong(
            uri, "a parameter's name is empty, longer than 128 bytes, or badly encoded");
    if (!hapax__uri_decode(value, sizeof(value), p->value, p->value_len))
        return refuse_name(r, name, "has a value longer than 8192 bytes, or badly encoded");
    return set_property(r, name, value);
}

/* Takes user and password from the environment if the URI has none. Then sets what a user
 * implies. */
static enum hapax_error set_login(struct reading *r)
{
    const char *user = r->user ? NULL : getenv("HAPAX_KAFKA_USER");
    const char *password = r->password ? NULL : getenv("HAPAX_KAFKA_PASSWORD");

    if (user && user[0] != '\0') {
        set_own(r, "sasl.username", user);
        r->user = true;
    }
    if (password && password[0] != '\0')
        set_own(r, "sasl.password", password);
    if (r->user && !r->protocol)
        set_own(r, "security.protocol", "sasl_ssl");
    if (r->user && !r->mechanism)
        set_own(r, "sasl.mechanisms", "PLAIN");
    return HAPAX_ERR_NONE;
}

/* ---- the URI ----------------------------------------------------------------------------- */

static enum hapax_error read_brokers(struct reading *r, const char *at, size_t len)
{
    char brokers[HAPAX__KAFKA_BROKERS_MAX + 1];

    if (memchr(at, '@', len))
        return hapax__uri_wrong(
            &r->uri, "a user and a password do not stand before the hosts; they are sasl.username "
                     "and sasl.password");
    if (len == 0 || len > HAPAX__KAFKA_BROKERS_MAX)
        return hapax__uri_wrong(&r->uri,
                                "the brokers are not 1 to 2048 bytes of HOST:PORT[,HOST:PORT]");
    for (size_t i = 0; i < len; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:,[]", at[i]))
            return hapax__uri_wrong(&r->uri, "the brokers are not HOST:PORT[,HOST:PORT]");
    memcpy(brokers, at, len);
    brokers[len] = '\0';
    set_own(r, "bootstrap.servers", brokers);
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_topic(struct reading *r, const char *at, size_t len)
{
    char *topic = r->out->topic;

    if (len == 0)
        return HAPAX_ERR_NONE;
    if (!hapax__uri_decode(topic, sizeof(r->out->topic), at, len) || !is_name(topic))
        return hapax__uri_wrong(&r->uri, "the topic is not 1 to 249 of A-Z a-z 0-9 . _ -");
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_source(struct reading *r)
{
    const struct hapax__kafka_uri *out = r->out;

    if (r->role != HAPAX__KAFKA_SOURCE)
        return HAPAX_ERR_NONE;
    if (out->topic[0] == '\0')
        return hapax__uri_wrong(&r->uri, "it names no topic: kafka://HOST:PORT/TOPIC?group=GROUP");
    if (out->group[0] == '\0')
        return hapax__uri_wrong(&r->uri, "it names no group: kafka://HOST:PORT/TOPIC?group=GROUP");
    if (strlen(out->topic) + strlen(out->group) + strlen("..parked") > HAPAX__KAFKA_TOPIC_MAX)
        return hapax__uri_wrong(&r->uri,
                                "TOPIC.GROUP.parked would be longer than 249 bytes, Kafka's limit");
    set_own(r, "group.id", out->group);
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_uri(struct reading *r, const char *uri)
{
    struct hapax__uri_split split;
    enum hapax_error error;

    hapax__uri_split(&split, &r->uri, uri + strlen(scheme));
    error = read_brokers(r, split.hosts, split.hosts_len);
    if (error == HAPAX_ERR_NONE)
        error = read_topic(r, split.path, split.path_len);
    if (error == HAPAX_ERR_NONE)
        error = hapax__uri_query(&r->uri, split.query);
    if (error == HAPAX_ERR_NONE)
        error = set_login(r);
    return error != HAPAX_ERR_NONE ? error : check_source(r);
}

enum hapax_error hapax__kafka_uri(struct hapax__kafka_uri *out, const char *uri,
                                  enum hapax__kafka_role role, char text[HAPAX_TEXT_MAX])
{
    struct reading r = {.uri = {.what = "Kafka",
                                .text = text,
                                .out = out,
                                .options = uri_options,
                                .option_count = sizeof(uri_options) / sizeof(uri_options[0]),
                                .other = read_property},
                        .out = out,
                        .role = role};
    bool source = role == HAPAX__KAFKA_SOURCE;
    enum hapax_error error;

    memset(out, 0, sizeof(*out));
    out->partitions = -1;
    if (!hapax__text_begins(uri, scheme))
        return hapax__uri_wrong(&r.uri, "it does not begin with kafka://");
    out->conf = rd_kafka_conf_new();
    if (!out->conf)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    set_all(&r, source ? source_settings : sink_settings);
    set_all(&r, source ? source_owned : sink_owned);
    /* The default since librdkafka 2.0; earlier, any host with a certificate would do. */
    set_own(&r, "ssl.endpoint.identification.algorithm", "https");
    error = read_uri(&r, uri);
    if (error != HAPAX_ERR_NONE) {
        rd_kafka_conf_destroy(out->conf);
        memset(out, 0, sizeof(*out));
    }
    return error;
}

enum hapax_error hapax__kafka_begin(struct hapax__kafka_uri *out, int *wake, const char *uri,
                                    enum hapax__kafka_role role, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax__kafka_uri(out, uri, role, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    *wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (*wake >= 0)
        return HAPAX_ERR_NONE;
    rd_kafka_conf_destroy(out->conf);
    memset(out, 0, sizeof(*out));
    return hapax__fail(text, HAPAX_ERR_NOMEM, "no descriptor: %s", strerror(errno));
}

/* librdkafka before 2.6.1 repeats its nonce in SCRAM's last message (its pull request 4895). Kafka
 * 4 takes that for a wrong password. */
const char *hapax__kafka_login_refused(const rd_kafka_conf_t *conf)
{
    char mechanism[64] = "";
    size_t size = sizeof(mechanism);

    (void)rd_kafka_conf_get(conf, "sasl.mechanisms", mechanism, &size);
    if (hapax__text_begins(mechanism, "SCRAM") && rd_kafka_version() < SCRAM_MENDED)
        return "the broker does not accept the login; Kafka 4's SCRAM needs librdkafka 2.6.1";
    return "the broker does not accept the login";
}
