// SPDX-License-Identifier: Apache-2.0
// The errors of this package; errors.d.ts is their manual. One class for each answer that
// is no outcome, whether a door gave the answer or a gate wrote it as a problem.
'use strict';

class HapaxError extends Error {
  constructor(message, { cause, ...more } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    Object.assign(this, more);
  }

  get name() {
    return this.constructor.name;
  }
}

class InFlight extends HapaxError {}
class Unknown extends HapaxError {}
class Mismatch extends HapaxError {}
class Failed extends HapaxError {}
class Gone extends HapaxError {}
class Expired extends HapaxError {}
class BadKey extends HapaxError {}
class TooLarge extends HapaxError {}
class Limited extends HapaxError {}
class StoreDown extends HapaxError {}
class Upstream extends HapaxError {}
class Indeterminate extends HapaxError {}
class Fault extends HapaxError {}
class ClaimLost extends HapaxError {}
class StaleFence extends HapaxError {}
class NotRun extends HapaxError {}
class Refused extends HapaxError {}

module.exports = {
  HapaxError, InFlight, Unknown, Mismatch, Failed, Gone, Expired, BadKey, TooLarge, Limited, StoreDown,
  Upstream, Indeterminate, Fault, ClaimLost, StaleFence, NotRun, Refused,
};
