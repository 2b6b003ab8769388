/* SPDX-License-Identifier: Apache-2.0 */
#include "owners.h"

#include <assert.h>
#include <string.h>
#include <sys/queue.h>

#define RUNS_PER_OWNER 2 /* operations in flight, on the average of a full table */
#define LOOKS_MAX      64 /* for an owner to forget */

struct owner {
    struct hapax__usage usage; /* first: owner_of() */
    struct hapax_digest digest;
    TAILQ_ENTRY(owner) age;
    LIST_ENTRY(owner) bucket; /* or in the list of those that are free */
};

struct hapax__owners_run {
    struct owner *owner; /* NULL: free */
    uint32_t worker;
    SLIST_ENTRY(hapax__owners_run) free;
};

LIST_HEAD(owner_list, owner);

struct hapax__owners {
    TAILQ_HEAD(owner_ages, owner) ages; /* last looked at: the last */
    struct owner_list unused;
    SLIST_HEAD(run_list, hapax__owners_run) unused_runs;
    struct hapax__owners_run *runs;
    size_t runs_count;
    struct owner_list *buckets;
    size_t buckets_count;
    uint64_t known;
    uint64_t forgotten;
};

struct hapax__owners *hapax__owners_init(void *memory, size_t len)
{
    const size_t each = sizeof(struct owner) + sizeof(struct owner_list) +
                        RUNS_PER_OWNER * sizeof(struct hapax__owners_run);
    struct hapax__owners *owners = memory;
    size_t count = len > sizeof(*owners) ? (len - sizeof(*owners)) / each : 0;
    struct owner *all;

    if (count == 0)
        return NULL;
    memset(memory, 0, sizeof(*owners) + count * each);
    TAILQ_INIT(&owners->ages);
    all = (struct owner *)(owners + 1);
    for (size_t i = 0; i < count; i++)
        LIST_INSERT_HEAD(&owners->unused, &all[count - 1 - i], bucket);
    owners->buckets = (struct owner_list *)(all + count);
    owners->buckets_count = count;
    owners->runs = (struct hapax__owners_run *)(owners->buckets + count);
    owners->runs_count = RUNS_PER_OWNER * count;
    for (size_t i = 0; i < owners->runs_count; i++)
        SLIST_INSERT_HEAD(&owners->unused_runs, &owners->runs[owners->runs_count - 1 - i], free);
    return owners;
}

static struct owner_list *bucket_of(struct hapax__owners *owners, const struct hapax_digest *digest)
{
    uint64_t hash;

    memcpy(&hash, digest->bytes, sizeof(hash));
    return &owners->buckets[hash % owners->buckets_count];
}

static struct owner *owner_of(struct hapax__usage *usage)
{
    return (struct owner *)usage;
}

static void look_at(struct hapax__owners *owners, struct owner *owner)
{
    TAILQ_REMOVE(&owners->ages, owner, age);
    TAILQ_INSERT_TAIL(&owners->ages, owner, age);
}

struct hapax__usage *hapax__owners_find(struct hapax__owners *owners,
                                        const struct hapax_digest *digest)
{
    struct owner *owner;

    LIST_FOREACH (owner, bucket_of(owners, digest), bucket)
        if (memcmp(&owner->digest, digest, sizeof(*digest)) == 0) {
            look_at(owners, owner);
            return &owner->usage;
        }
    return NULL;
}

/* The owner to forget. NULL: the oldest ones have operations in flight. They count as looked at, so
 * that the next call looks at others. */
static struct owner *oldest(struct hapax__owners *owners)
{
    for (int i = 0; i < LOOKS_MAX; i++) {
        struct owner *owner = TAILQ_FIRST(&owners->ages);

        if (owner->usage.in_flight == 0)
            return owner;
        look_at(owners, owner);
    }
    return NULL;
}

/* Takes the owner to forget out of the table. NULL: there is none. */
static struct owner *forget_one(struct hapax__owners *owners, const struct hapax__limits *limits,
                                int64_t now_us)
{
    struct owner *owner = oldest(owners);

    if (!owner)
        return NULL;
    owners->forgotten += !hapax__usage_is_empty(&owner->usage, limits, now_us);
    owners->known--;
    TAILQ_REMOVE(&owners->ages, owner, age);
    LIST_REMOVE(owner, bucket);
    return owner;
}

struct hapax__usage *hapax__owners_get(struct hapax__owners *owners,
                                       const struct hapax__limits *limits,
                                       const struct hapax_digest *digest, int64_t now_us)
{
    struct hapax__usage *usage = hapax__owners_find(owners, digest);
    struct owner *owner;

    if (usage)
        return usage;
    owner = LIST_FIRST(&owners->unused);
    if (owner)
        LIST_REMOVE(owner, bucket);
    else
        owner = forget_one(owners, limits, now_us);
    if (!owner)
        return NULL;
    memset(owner, 0, sizeof(*owner));
    owner->digest = *digest;
    owners->known++;
    LIST_INSERT_HEAD(bucket_of(owners, digest), owner, bucket);
    TAILQ_INSERT_TAIL(&owners->ages, owner, age);
    return &owner->usage;
}

struct hapax__owners_run *hapax__owners_begin(struct hapax__owners *owners,
                                              struct hapax__usage *usage,
                                              const struct hapax__limits *limits, bool is_new,
                                              uint32_t worker, int64_t now_us)
{
    struct hapax__owners_run *run = SLIST_FIRST(&owners->unused_runs);

    if (!run)
        return NULL;
    SLIST_REMOVE_HEAD(&owners->unused_runs, free);
    run->owner = owner_of(usage);
    run->worker = worker;
    hapax__usage_begin(usage, limits, is_new, now_us);
    return run;
}

struct hapax__usage *hapax__owners_usage(struct hapax__owners_run *run)
{
    return &run->owner->usage;
}

void hapax__owners_end(struct hapax__owners *owners, struct hapax__owners_run *run)
{
    assert(run->owner);
    hapax__usage_end(&run->owner->usage);
    run->owner = NULL;
    SLIST_INSERT_HEAD(&owners->unused_runs, run, free);
}

void hapax__owners_end_all(struct hapax__owners *owners, uint32_t worker)
{
    for (size_t i = 0; i < owners->runs_count; i++)
        if (owners->runs[i].owner && owners->runs[i].worker == worker)
            hapax__owners_end(owners, &owners->runs[i]);
}

uint64_t hapax__owners_known(const struct hapax__owners *owners)
{
    return owners->known;
}

uint64_t hapax__owners_forgotten(const struct hapax__owners *owners)
{
    return owners->forgotten;
}
