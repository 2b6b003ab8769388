/* SPDX-License-Identifier: Apache-2.0
 *
 * URIs of PostgreSQL, DynamoDB and hybrid stores, as people get them wrong; redis_uri has those of
 * Redis. As in hapax_store_open(), the scheme says who reads it.
 * Claims: a URI is taken, within its limits, or refused with a text. No text and no URI as it is
 * shown contains the password.
 */
#include "fuzz_uri.h"

#include "store/dynamodb/dynamodb.h"
#include "store/hybrid/hybrid.h"
#include "store/postgres/link.h"

static void told(enum hapax_error error, const char text[HAPAX_TEXT_MAX], const char *hidden)
{
    if (error == HAPAX_ERR_NONE)
        return;
    assert(text[0] != '\0' && memchr(text, '\0', HAPAX_TEXT_MAX));
    assert(!hidden || !strstr(text, hidden));
}

static void read_postgres(const char *uri, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax__pg_uri pg;
    enum hapax_error error = hapax__pg_uri(&pg, uri, text);

    told(error, text, hidden);
    if (error != HAPAX_ERR_NONE)
        return;
    assert(pg.hosts >= 1 && pg.timeout_ms >= 10 && pg.timeout_ms <= 60000);
    hapax__pg_uri_release(&pg);
}

static void read_hybrid(const char *uri, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax__hybrid_parts parts;
    enum hapax_error error = hapax__hybrid_parts(&parts, uri, text);

    told(error, text, hidden);
    assert(error != HAPAX_ERR_NONE || (parts.redis_count >= 1 && parts.postgres));
    hapax__hybrid_parts_release(&parts);
}

static void read_uri(const char *uri, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "", shown[HAPAX_TEXT_MAX];
    struct hapax__ddb_uri ddb;
    enum hapax_error error;

    hapax_store_shown(shown, uri);
    assert(strlen(shown) < sizeof(shown) && (!hidden || !strstr(shown, hidden)));
    if (strncmp(uri, "postgres://", 11) == 0 || strncmp(uri, "postgresql://", 13) == 0)
        read_postgres(uri, hidden);
    if (strncmp(uri, "hybrid:", 7) == 0)
        read_hybrid(uri, hidden);
    if (strncmp(uri, "dynamodb:", 9) != 0)
        return;
    error = hapax__ddb_uri(&ddb, uri, text);
    told(error, text, hidden);
    assert(error != HAPAX_ERR_NONE || (ddb.region[0] && strlen(ddb.table) >= 3));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_uri(data, size, "postgres://u:" PASSWORD "@", read_uri);
    fuzz_uri(data, size, "hybrid:redis://:" PASSWORD "@", read_uri);
    return 0;
}
