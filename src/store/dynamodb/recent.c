/* SPDX-License-Identifier: Apache-2.0
 *
 * The records that this handle left `started`: a table with one entry per hash, in which the newer
 * record stays. An entry may be out of date. It does no harm then: a write on top of it fails its
 * condition, and is judged anew on the item that came back.
 */
#include "dynamodb.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS     4096u
#define BYTES_MAX 1024u /* of a record; one that is started has at most some 500 */

struct entry {
    struct hapax_id id;
    uint8_t v[HAPAX__DDB_V_LEN];
    size_t len;
    uint8_t bytes[];
};

struct hapax__ddb_recent {
    struct entry *slots[SLOTS];
};

struct hapax__ddb_recent *hapax__ddb_recent_new(void)
{
    return calloc(1, sizeof(struct hapax__ddb_recent));
}

/* The bytes hold a token. */
static void forget(struct entry **slot)
{
    if (*slot)
        explicit_bzero((*slot)->bytes, (*slot)->len);
    free(*slot);
    *slot = NULL;
}

void hapax__ddb_recent_free(struct hapax__ddb_recent *recent)
{
    for (size_t i = 0; recent && i < SLOTS; i++)
        forget(&recent->slots[i]);
    free(recent);
}

static size_t slot_of(const struct hapax_id *id)
{
    uint32_t hash;

    memcpy(&hash, id->bytes, sizeof(hash)); /* an id is a hash already */
    return hash % SLOTS;
}

bool hapax__ddb_recent_get(const struct hapax__ddb_recent *recent, struct hapax__ddb_item *out,
                           const struct hapax_id *id, struct hapax_arena *arena)
{
    const struct entry *entry = recent->slots[slot_of(id)];

    if (!entry || memcmp(&entry->id, id, sizeof(*id)) != 0)
        return false;
    memset(out, 0, sizeof(*out));
    memcpy(out->v, entry->v, sizeof(out->v));
    out->has_v = true;
    out->r = hapax__arena_copy(arena, (struct hapax_span){entry->bytes, entry->len});
    return out->r.ptr != NULL;
}

void hapax__ddb_recent_put(struct hapax__ddb_recent *recent, const struct hapax_id *id,
                           const struct hapax__ddb_item *item)
{
    struct entry **slot = &recent->slots[slot_of(id)];
    struct entry *entry;

    assert(item->chunks.count == 0);
    if (item->r.len == 0 || item->r.len > BYTES_MAX)
        return;
    entry = malloc(sizeof(*entry) + item->r.len);
    if (!entry) { /* this only makes it slower */
        hapax__ddb_recent_drop(recent, id);
        return;
    }
    entry->id = *id;
    memcpy(entry->v, item->v, sizeof(entry->v));
    entry->len = item->r.len;
    memcpy(entry->bytes, item->r.ptr, item->r.len);
    forget(slot);
    *slot = entry;
}

void hapax__ddb_recent_drop(struct hapax__ddb_recent *recent, const struct hapax_id *id)
{
    struct entry **slot = &recent->slots[slot_of(id)];

    if (*slot && memcmp(&(*slot)->id, id, sizeof(*id)) == 0)
        forget(slot);
}

void hapax__ddb_recent_seen(struct hapax__ddb_recent *recent, const struct hapax_id *id,
                            const struct hapax__ddb_item *item)
{
    const struct entry *entry = recent->slots[slot_of(id)];

    if (entry && (!item->has_v || memcmp(entry->v, item->v, sizeof(entry->v)) != 0))
        hapax__ddb_recent_drop(recent, id);
}
