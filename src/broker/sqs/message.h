/* SPDX-License-Identifier: Apache-2.0
 *
 * An SQS message as a delivered message, and a letter as an entry of SendMessageBatch.
 *
 * Attributes are headers. Of these a copy has two more, where there is no attribute of that name
 * already: `message-id`, the first one's MessageId (read back as the message's id, so that a copy,
 * and a copy of it, is the same message), and `content-type`. MessageDeduplicationId is a header of
 * that name, but where it is only the hash of the body, as queues with ContentBasedDeduplication
 * make it, or that of a copy, which the sink made: those name no operation.
 *
 * SQS takes ten attributes. What does not fit, or is none (an empty value, a name that SQS does not
 * take), goes into one of them, HAPAX__SQS_PACKED, as a JSON object, first of all the consumer's
 * own headers; and is unpacked by who reads it.
 */
#ifndef HAPAX_BROKER_SQS_MESSAGE_H
#define HAPAX_BROKER_SQS_MESSAGE_H

#include "base/arena.h"
#include "broker/sink.h"
#include "broker/source.h"
#include "json/raw.h"
#include "json/write.h"

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
    struct hapax__sqs_delivery *before, *behind; /* in its list */
    enum hapax__sqs_list list;
    struct hapax__sqs_delivery *next_ready;
    bool ready; /* not taken yet */
    bool busy; /* in a call: neither freed nor told anything else */
    bool over; /* to be freed once it is not busy */
    enum hapax__sqs_list then; /* it was released while busy: the list it goes to */
    int seconds; /* that a call asks for, and */
    int later; /* CHANGED: is to ask for */
    int64_t received_us;
    int64_t until_us; /* visible to others again */
    int64_t extend_us; /* KEPT: to be asked for longer then */
};

/* Whether a reply is one JSON value, in UTF-8; *root is that value. */
bool hapax__sqs_read(struct hapax_span *root, struct hapax_span reply);

/* Reads a member of a reply's `Messages`. ordered: its group is its order. NULL: out of memory, or
 * no message. */
struct hapax__sqs_delivery *hapax__sqs_delivery(struct hapax_span message,
                                                struct hapax_arena *arena, struct hapax_span from,
                                                bool ordered);

/* Writes a letter as an entry with this Id, behind what is there. fifo: it goes to such a queue:
 * its group is its key, and its deduplication id is one of its content and history; `chance` stands
 * in where it has no id. *size: bytes as SQS counts them. NONE; TOO_BIG, INVALID: SQS would not
 * take it, *why (static) says what; NOMEM. */
enum hapax_error hapax__sqs_entry(struct hapax__json_out *out, size_t *size,
                                  const struct hapax__letter *letter, unsigned id, bool fifo,
                                  struct hapax_span chance, const char **why);

/* Whether SQS takes this as text: UTF-8 of the characters that XML knows, and not empty. */
bool hapax__sqs_is_text(struct hapax_span span);

/* ---- batches ------------------------------------------------------------------------------ */

#define HAPAX__SQS_BATCH_MAX 10u

enum hapax__sqs_kind {
    HAPAX__SQS_AGAIN = 0, /* neither done nor refused: to be asked again */
    HAPAX__SQS_DONE,
    HAPAX__SQS_NEVER /* refused, for what it is */
};

struct hapax__sqs_result {
    enum hapax__sqs_kind kind;
    char code[64]; /* NEVER: why, as SQS names it */
};

/* What became of entries "0" to "n-1", by the reply of their batch. What it does not name is AGAIN.
 * False: the reply cannot be read, and all are. */
bool hapax__sqs_batch(struct hapax__sqs_result out[HAPAX__SQS_BATCH_MAX], size_t n,
                      struct hapax_span reply);

#endif
