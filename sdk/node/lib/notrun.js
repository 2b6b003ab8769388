// SPDX-License-Identifier: Apache-2.0
// The class of what a handler threw (docs/door.md, END). What a NotRun is, errors.d.ts says.
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

/**
 * The class of what a handler threw. Once its signal is aborted, the signal's reason, and the errors that Node and axios
 * make of it, say that the handler was cut off: nobody can tell what it did.
 */
function classOf(error, op) {
  const nothing = didNothing(error, op); // a NotRun that is the reason has counted by this, too
  const { aborted, reason } = op.signal;
  if (aborted && (error === reason || /^(Abort|Canceled)Error$/.test(error?.name))) return 'unknown';
  return nothing ? 'not_run' : 'failed';
}

module.exports = { classOf };
