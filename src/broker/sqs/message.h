/* SPDX-License-Identifier: Apache-2.0
 *
 * An SQS message as a delivered message, and a letter as an entry of SendMessageBatch.
 *
 * Attributes are headers. A copy has two more, unless it has attributes of these names already.
 * `message-id` is the MessageId of the first message, and is read back as the message's id: so a
 * copy of a copy is still the same message. `content-type` is the other. MessageDeduplicationId is
 * shown as a header of that name, if it names an operation. An id does not if it is only the hash
 * of the body, as queues with ContentBasedDeduplication make it, or if the sink made it for a copy.
 *
 * SQS takes ten attributes. Other headers are packed into one attribute, HAPAX__SQS_PACKED, as a
 * JSON object: headers beyond ten, empty values, and names that SQS does not take. The consumer's
 * own headers are packed first. The reader unpacks them.
 */
#ifndef HAPAX_BROKER_SQS_MESSAGE_H
#define HAPAX_BROKER_SQS_MESSAGE_H

#include "base/arena.h"
#include "broker/sink.h"
#include "broker/source.h"
#include "json/raw.h"
#include "json/write.h"

#include <sys/queue.h>

#define HAPAX__SQS_PACKED         "hapax-headers"
#define HAPAX__SQS_ATTRIBUTES_MAX 10u
#define HAPAX__SQS_MESSAGE_MAX    (1u << 20) /* bytes of body and attributes, and of a batch */

enum hapax__sqs_list {
    HAPAX__SQS_NO_LIST = 0,
    HAPAX__SQS_KEPT,
    HAPAX__SQS_URGENT,
    HAPAX__SQS_ACKED,
    HAPAX__SQS_CHANGED,
    HAPAX__SQS_LISTS
};

/* A delivery with all its bytes in one block: free() frees it. */
struct hapax__sqs_delivery {
    struct hapax__delivered shown;
    struct hapax_span receipt;

    /* the source's own */
    TAILQ_ENTRY(hapax__sqs_delivery) link; /* in its list */
    enum hapax__sqs_list list;
    TAILQ_ENTRY(hapax__sqs_delivery) ready_link;
    bool ready; /* not taken yet */
    bool busy; /* in a call: not freed, and in no other call */
    bool over; /* to be freed once it is not busy */
    /* Released while busy: the list it goes to. */
    enum hapax__sqs_list then;
    /* Of visibility, for the call under way. */
    int seconds;
    /* CHANGED: of visibility, for the next call. */
    int later;
    int64_t received_us;
    int64_t until_us; /* then visible to others again */
    /* KEPT: when to hide it longer. */
    int64_t extend_us;
};

/* Reads a reply, which must be one JSON value in UTF-8. *root is that value. */
bool hapax__sqs_read(struct hapax_span *root, struct hapax_span reply);

/* Reads a member of a reply's `Messages`. ordered: the message's group is its order. NULL: out of
 * memory, or it is no message. */
struct hapax__sqs_delivery *hapax__sqs_delivery(struct hapax_span message,
                                                struct hapax_arena *arena, struct hapax_span from,
                                                bool ordered);

/* Appends a letter to `out`, as an entry with this Id. fifo: the queue's kind; the letter's group
 * is its key, and its deduplication id is a hash of content and history. `chance` replaces the id
 * of a letter without one. *size: bytes as SQS counts them. TOO_BIG, INVALID: SQS would not take
 * the letter; *why is a static text. NOMEM. */
enum hapax_error hapax__sqs_entry(struct hapax__json_out *out, size_t *size,
                                  const struct hapax__letter *letter, unsigned id, bool fifo,
                                  struct hapax_span chance, const char **why);

/* Whether SQS takes this as text: UTF-8 of characters that XML has, and not empty. */
bool hapax__sqs_is_text(struct hapax_span span);

/* ---- batches ------------------------------------------------------------------------------ */

#define HAPAX__SQS_BATCH_MAX 10u

enum hapax__sqs_kind {
    HAPAX__SQS_AGAIN = 0, /* neither done nor refused: send it again */
    HAPAX__SQS_DONE,
    HAPAX__SQS_NEVER /* refused for good */
};

struct hapax__sqs_result {
    enum hapax__sqs_kind kind;
    char code[64]; /* of an entry that failed: SQS's name of the reason */
};

/* Reads the results of entries "0" to "n-1" from the reply to their batch. An entry without a
 * result is AGAIN. False: the reply cannot be read, and all entries are AGAIN. */
bool hapax__sqs_batch(struct hapax__sqs_result out[HAPAX__SQS_BATCH_MAX], size_t n,
                      struct hapax_span reply);

#endif
