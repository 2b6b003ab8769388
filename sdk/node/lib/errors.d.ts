/** What this package throws. A `switch` over `error.constructor` or `instanceof` tells them apart. */
export class HapaxError extends Error {
  /** The door's answer (`in_flight`), or the end of the problem's type (`in-flight`). */
  code?: string;
  /** Seconds after which the same key may be asked again. Absent where time does not help. */
  retryAfter?: number;
  /** Of the record, where one was seen. */
  attempt?: number;
  /** Why, where the store failed: `unavailable`, `indeterminate`, `corrupt`, … */
  error?: string;
  /** The problem as the gate wrote it; from the client side alone. */
  problem?: Record<string, unknown>;
  /** The response that had the problem; from the client side alone. */
  response?: unknown;
  /** The value of the header `Idempotency-Key` that was sent; from the client side alone. */
  idempotencyKey?: string;
  /** How often the request was sent; from the client side alone. */
  tries?: number;
}

/** Another attempt runs, or was cut off less than a lease ago. Nothing ran. Ask again with the same key. */
export class InFlight extends HapaxError {
  /** Milliseconds since the other attempt's claim was renewed, where known. */
  silentMs?: number;
}
/** An earlier attempt's result is not known. Nothing ran. An operator decides, or a hook (`retryAfter`). */
export class Unknown extends HapaxError {}
/** The key was used for another request, or by another caller. Nothing ran. */
export class Mismatch extends HapaxError {
  /** In what: `fingerprint` or `caller`. */
  differs?: 'fingerprint' | 'caller';
}
/** The attempts are used up; `cause` is the last failure, where one was stored. Nothing ran. */
export class Failed extends HapaxError {}
/** The operation completed, and its result was not kept. Do not run it under another key. */
export class Gone extends HapaxError {}
/**
 * The key's time is over: the operation completed, and its result is no longer kept (policy `tombstone`); or the key was made
 * longer ago than results are kept (policy `keyExpires`). Nothing ran now.
 */
export class Expired extends HapaxError {}
/** There is no key, or no owner, or the key is malformed or too short (`code` says which). Nothing ran. */
export class BadKey extends HapaxError {}
/** The request, or the result, is over a limit. Of a request: nothing ran. */
export class TooLarge extends HapaxError {}
/** The owner of the key is over a limit. Nothing ran. */
export class Limited extends HapaxError {}
/** The store, or the door, cannot be reached, ends, or has no room. Nothing ran. */
export class StoreDown extends HapaxError {}
/** The service behind a gate gave no whole response; it may have had its effect. Client side alone. */
export class Upstream extends HapaxError {}
/** No answer came, and the operation may have had its effect. Ask again with the same key. */
export class Indeterminate extends HapaxError {}
/** The door refused a frame: a limit, an option that is none. `error` is its word, the message its text. */
export class Fault extends HapaxError {}
/** The claim is gone: another attempt may be running. The `reason` of `op.signal`; from `complete()`. */
export class ClaimLost extends HapaxError {}
/** A later attempt has written already. Roll back. */
export class StaleFence extends HapaxError {}

/**
 * For handlers to throw: surely nothing was done, so the next caller of the key runs. It counts once, for the call whose
 * handler threw it: where it passes on through the handler of another call, that one has failed. Throw a new one each time.
 */
export class NotRun extends HapaxError {
  constructor(message?: string, options?: { cause?: unknown });
}
/** For handlers of messages to throw: the message is hopeless; to the dead letters, no retry. */
export class Refused extends HapaxError {
  constructor(message?: string, options?: { cause?: unknown });
}
