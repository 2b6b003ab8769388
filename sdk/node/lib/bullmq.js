// SPDX-License-Identifier: Apache-2.0
// BullMQ: a processor that runs each job's operation once. bullmq.d.ts is the manual.
'use strict';

const { Refused, StoreDown } = require('./errors.js');

const AGAIN_MS = 1000; // to another try of a job whose door is away

function idempotent(hapax, options, handler) {
  return async function processor(job, token, signal) {
    const { DelayedError, UnrecoverableError } = require('bullmq');
    const set = { scope: job.queueName, what: `${job.queueName} ${job.name}`, fingerprint: job.data, ...options };
    for (const [name, value] of Object.entries(options)) {
      if (typeof value === 'function') set[name] = await value(job);
    }
    if (options.key === undefined) set.key = job.id;
    set.message = { attempts: job.attemptsMade, ...options.message };
    const told = await hapax.message(set, async (op) => {
      try {
        return await handler(job, op);
      } catch (error) {
        if (!(error instanceof UnrecoverableError)) throw error;
        throw new Refused(error.message, { cause: error });
      }
    }).catch((error) => { // nothing ran
      if (!(error instanceof StoreDown)) throw error;
      return { do: 'retry', afterMs: AGAIN_MS, error };
    });
    if (told.do === 'ack') return told.value;
    if (told.do === 'retry') {
      await job.moveToDelayed(Date.now() + told.afterMs, token);
      throw new DelayedError(told.error?.message);
    }
    const error = new UnrecoverableError(`${told.do}: ${told.reason}: ${told.line ?? told.error?.message}`);
    throw Object.assign(error, { cause: told.error });
  };
}

module.exports = { idempotent };
