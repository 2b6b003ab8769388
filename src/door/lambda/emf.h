/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of the Lambda door as lines of CloudWatch's embedded metric format: a sandbox cannot be
 * scraped, and its stdout is read.
 */
#ifndef HAPAX_DOOR_LAMBDA_EMF_H
#define HAPAX_DOOR_LAMBDA_EMF_H

#include "core/counts.h"

#include <hapax/lambda.h>

/* Counts as of the last line. */
struct hapax__emf_told {
    struct hapax__counts counts;
    struct hapax_lambda_stats stats;
};

/* Gives lambda->emf_line what was counted since the last line. Writes nothing where nothing was, or
 * where the settings name no namespace. counts NULL: the store is not open yet. Any thread may call
 * this. */
void hapax__emf_tell(const struct hapax_lambda *lambda, const struct hapax__counts *counts,
                     const struct hapax_lambda_stats *stats, struct hapax__emf_told *told);

#endif
