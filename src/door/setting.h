/* SPDX-License-Identifier: Apache-2.0
 *
 * What the settings `key` and `fingerprint` have in common at the doors that take them as text: words, and JSON Pointers
 * among them. What is read points into the setting.
 */
#ifndef HAPAX_DOOR_SETTING_H
#define HAPAX_DOOR_SETTING_H

#include "json/json.h"

/* JSON Pointers of one setting, or of one source of keys. */
struct hapax__pointers {
    struct hapax_span at[HAPAX__JSON_POINTERS_MAX];
    size_t n;
};

/* Takes what stands before the next `by` off *rest, without the spaces around it; it may be empty. False: there is no more. */
bool hapax__setting_word(struct hapax_span *word, struct hapax_span *rest, uint8_t by);

/* INVALID; text says `SETTING "WORD": why`, of a long word its beginning. */
enum hapax_error hapax__setting_refuse(char text[HAPAX_TEXT_MAX], const char *setting,
                                       struct hapax_span word, const char *why);

/* Adds the pointers of a list parted by spaces. INVALID: one is none, or they are too many; text names the setting. */
enum hapax_error hapax__setting_pointers(struct hapax__pointers *pointers, struct hapax_span rest,
                                         const char *setting, char text[HAPAX_TEXT_MAX]);

/* Whether a word of a fingerprint is a pointer, with + or - before it or neither. */
bool hapax__setting_selects(struct hapax_span word);

/* Adds such a word's pointer; *select is what the first one said. INVALID: as above, or some are to count and others not. */
enum hapax_error hapax__setting_select(struct hapax__pointers *pointers,
                                       enum hapax__json_select *select, struct hapax_span word,
                                       char text[HAPAX_TEXT_MAX]);

#endif
