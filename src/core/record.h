/* SPDX-License-Identifier: Apache-2.0
 *
 * The stored form of a record: versioned and checksummed. The checksum covers the id as well, so
 * that a value under a wrong key is as corrupt as one with a flipped bit. RocksDB keeps
 * records in this form and the keeper sends them in it; docs/keeper.md has the layout.
 */
#ifndef HAPAX_CORE_RECORD_H
#define HAPAX_CORE_RECORD_H

#include <hapax/store.h>

#define HAPAX__RECORD_VERSION 2u /* written; version 1 is read, too */

/* The bytes hapax__record_encode() will write. */
HAPAX__SHARED size_t hapax__record_size(const struct hapax_record *record);

/* Writes exactly hapax__record_size() bytes. */
HAPAX__SHARED void hapax__record_encode(uint8_t *out, const struct hapax_record *record);

/* Reads a record; its spans borrow from bytes. CORRUPT: checksum, length or a value out of range;
 * UNSUPPORTED: a version this build does not know. Neither is ever to be read as "absent". */
HAPAX__SHARED enum hapax_error
hapax__record_decode(struct hapax_record *out, const struct hapax_id *id, struct hapax_span bytes);

/* Reads a record without its id and without the checksum: for the filter that sees every record
 * that is merged. What it says may be damaged. False: not a record of a version that is read. */
HAPAX__SHARED bool hapax__record_peek(struct hapax_record *out, struct hapax_span bytes);

#endif
