/* SPDX-License-Identifier: Apache-2.0
 *
 * The secret of a store is changed while doors are at work (docs/rotation.md). The records under
 * the old secret are the old half of a move, those under the new one the new half (pair.h). Doors
 * with the old secret alone are its O doors, doors with both its M doors, those with the new one
 * alone its N doors. There is no copy: what O doors left comes over with the next request for it,
 * or expires.
 *
 * How far it is stands in the record with the check value of the store's secret (bind.c), so that
 * no door opens the store which may not be there:
 *
 *   BEGUN   the value of the old secret     O and M doors. A second record, whose id is made of
 *                                           this value, has the value of the new secret.
 *   BOTH    a value of both secrets         M doors alone. The record was created after the last
 *                                           O door, so what is older may be in the old half alone.
 *   ENDED   the value of the new secret     M and N doors
 *
 * Rejected: a field in each record that says by which secret it was named. All stores and the
 * keeper's protocol would have to know it. Rejected: BEGUN until ENDED, without BOTH. A door with
 * the old secret could come back unseen, and nothing in the store would say when the last one was.
 */
#ifndef HAPAX_STORE_ROTATION_ROTATION_H
#define HAPAX_STORE_ROTATION_ROTATION_H

#include "core/question.h"

enum hapax__rotation { HAPAX__ROTATION_BEGUN, HAPAX__ROTATION_BOTH, HAPAX__ROTATION_ENDED };

/* "begun", "both", "ended". Static. */
const char *hapax__rotation_name(enum hapax__rotation at);

/* As hapax_store_bind(), for a program with both secrets; begins the rotation of a store that is
 * bound to the old one. *at: how far it is. INVALID: the two are one, or the new one is empty.
 * REFUSED: the store was first used with neither of the two, or is on its way to another one. Other
 * errors are those of hapax_store_run(). May be repeated. */
enum hapax_error hapax__rotation_bind(struct hapax_store *store,
                                      const struct hapax__secrets *secrets,
                                      enum hapax__rotation *at);

/* As a READ finds it, with an operator's rights; nothing is begun. *since_us: when it came there,
 * by the store's clock; 0: the store was never used. REFUSED: as above. */
enum hapax_error hapax__rotation_read(struct hapax_store *store,
                                      const struct hapax__secrets *secrets,
                                      enum hapax__rotation *at, int64_t *since_us);

/* Whether a store with this check value may be opened with these secrets. */
bool hapax__rotation_is(const struct hapax_digest *value, const struct hapax__secrets *secrets);

/* Has the rotation go on, from BEGUN to BOTH or from BOTH to ENDED, with an operator's rights. It
 * is the caller's to know that the store is ready for it. REFUSED, as the text says: it is
 * elsewhere; or it went on to BOTH, and a door with the new secret alone has come in meanwhile; or
 * one with the old secret alone may have come in on the way to ENDED, so it is at BOTH again, since
 * now. An interrupted one is repeated. Where the store judges op by op, one to ENDED may leave it
 * at BEGUN. */
enum hapax_error hapax__rotation_step(struct hapax_store *store,
                                      const struct hapax__secrets *secrets,
                                      enum hapax__rotation to);

/* Gives a rotation up that has only begun, with an operator's rights: another new secret may
 * follow. REFUSED: it is further on. */
enum hapax_error hapax__rotation_back(struct hapax_store *store,
                                      const struct hapax__secrets *secrets);

/* Whether the record is the second one of a rotation. */
bool hapax__is_rotation(const struct hapax_record *record);

/* Puts a handle over *store for which each op with an identity under the old secret is about both
 * its records; *store becomes that handle, and closes with it. On failure *store is as it was. */
enum hapax_error hapax__rotation_over(struct hapax_store **store);

/* Frees a handle that hapax__rotation_over() has put over a store, and gives that store; another
 * handle comes back as it is. */
struct hapax_store *hapax__rotation_under(struct hapax_store *store);

/* Binds *store: to the secret, or to both and then with a handle over it. On failure *store is to
 * be closed, and its text says why. UNSUPPORTED: a move: store, while the secret is changed. */
enum hapax_error hapax__store_bind(struct hapax_store **store,
                                   const struct hapax__secrets *secrets);

#endif
