/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads replies: the name of an error, and what it means for the call. Functions of bytes, without
 * state.
 */
#ifndef HAPAX_AWS_ANSWER_H
#define HAPAX_AWS_ANSWER_H

#include <hapax/hapax.h>

enum hapax__aws_meaning {
    HAPAX__AWS_DONE = 1, /* 200 */
    HAPAX__AWS_NO, /* and trying again says the same */
    HAPAX__AWS_LATER, /* surely not applied: throttled */
    HAPAX__AWS_KEYS, /* surely not applied: the keys or the signature are not taken */
    HAPAX__AWS_DOUBT /* may have been applied */
};

/* name: from hapax__aws_error_name(). service: only DynamoDB means a rate by
 * LimitExceededException. */
enum hapax__aws_meaning hapax__aws_meaning_of(int status, const char *name, const char *service);

/* Writes the error's name, without its namespace and what follows it
 * ("com.amazonaws.sqs#QueueDoesNotExist:http://…"). It stands in the header x-amzn-errortype or,
 * where `type` is empty, in __type or code of the body. "": there is none. */
void hapax__aws_error_name(char *out, size_t size, const char *type, struct hapax_span body);

/* Copies a string member of a JSON object; of several of this name the first. False, and out is "":
 * json is no object, or the member is not there, is no string, holds a NUL, or does not fit. */
bool hapax__aws_json_string(char *out, size_t size, struct hapax_span json, const char *name);

/* Copies the text of the first element of this name in an XML document, which is how STS answers.
 * False, and out is "": it is not there, does not fit, or holds elements, references or a NUL. */
bool hapax__aws_xml_text(char *out, size_t size, struct hapax_span xml, const char *name);

/* Seconds since 1970 of "2015-08-30T12:36:00Z", with or without fractions; -1: it is none. */
int64_t hapax__aws_time(const char *text);

/* CRC-32 (IEEE 802.3), which DynamoDB sends along in x-amz-crc32. */
uint32_t hapax__aws_crc32(struct hapax_span bytes);

#endif
