// SPDX-License-Identifier: Apache-2.0
// What a NotRun counts for; errors.d.ts is its manual.
'use strict';

const { NotRun } = require('./errors.js');

const counted = new WeakSet();

/**
 * Whether a handler's error says that surely nothing was done. A NotRun counts once: its call throws it to the caller, and
 * that may be the handler of another call, which may have had an effect. Once a step was begun the attempt may have had
 * one, whatever its error says.
 */
function didNothing(error, op) {
  if (!(error instanceof NotRun)) return false;
  const isFirst = !counted.has(error);
  counted.add(error);
  return isFirst && !op.stepped;
}

module.exports = { didNothing };
