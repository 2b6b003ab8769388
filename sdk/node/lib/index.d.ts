export * from './errors.js';

/** Bytes or text. A text stands for its bytes in UTF-8. */
export type Text = string | Uint8Array;
/** `0`, `500ms`, `30s`, `5m`, `24h`, `7d`. */
export type Duration = string;

/**
 * Policies, by their names everywhere (docs/nginx.md), in camel case. What is not set here is as the
 * door says for the scope. A name that is none, or a value over a limit, is a `Fault`.
 */
export interface Policies {
  /** What an attempt that died leaves behind: `rerun` the next caller runs; `hold` an operator decides. */
  onExpired?: 'rerun' | 'hold' | 'reconcile';
  /** What a handler's error leaves behind. `retry` under `rerun`, otherwise `hold`. */
  onFailed?: 'retry' | 'replay' | 'hold';
  onStoreError?: 'closed' | 'open';
  /** How long an attempt may go without a sign of life. */
  lease?: Duration;
  /** How long a handler may take. */
  runMax?: Duration;
  /** How long a result is kept. */
  retention?: Duration | 'forever';
  /** The same of a response with a status from 400 to 499. `0`, the default: as `retention`. */
  retention4xx?: Duration;
  /** How long it is kept that an attempt failed, or under `replay` the failure. `0`, the default: as `retention`. */
  retentionFailed?: Duration;
  /** After its retention the key of a completed operation is Expired for so long; `0`: it is a new key. */
  tombstone?: Duration;
  /** How long a repeat waits for an attempt in flight. */
  wait?: Duration;
  timeout?: Duration;
  saveWait?: Duration;
  /** After so many failed attempts: Failed. `0`, the default: no limit. */
  attemptsMax?: number;
  keyMin?: number;
  /** A key that says when it was made is Expired once that is longer ago than `retention`. */
  keyExpires?: boolean;
  ownerRequired?: boolean;
  maxRequest?: string;
  maxResponse?: string;
  rerunCompleted?: boolean;
  /** `op.token` for `complete()`. */
  passToken?: boolean;
  profile?: 'payments';
  /** Policies under their own names, as `{ key: 'optional' }`. */
  policy?: Record<string, string | number | boolean>;
}

/** How results are kept. What `encode` gave must come back from `decode`. */
export interface Codec<T = any> {
  encode(value: T): Uint8Array | string;
  decode(body: Buffer): T;
}
/** The default: JSON; `undefined` is `null`, with the header Hapax-Node-Undefined beside it. */
export const json: Codec;
/** A Buffer or Uint8Array as it is; repeats get a Buffer. */
export const bytes: Codec<Uint8Array>;

/** What a handler is given. */
export class Op {
  private constructor();
  /** The operation's id, 64 hex digits; absent without a key. */
  readonly id?: string;
  /** The key for the next service. In a step it is `KEY:step`. A Buffer where it is not UTF-8. */
  readonly key: string;
  /** Counted from 1. */
  readonly attempt: number;
  /** Grows with each attempt: what the handler writes to should refuse a smaller one. 0: unprotected. */
  readonly fence: number;
  /** An earlier attempt died, and may have had its effect. */
  readonly stale: boolean;
  /** With `passToken`: the right to complete this attempt. A secret. */
  readonly token?: string;
  /** Where this run stands among traces (W3C Trace Context), for what the handler calls; undefined: nowhere. */
  readonly traceparent?: string;
  /**
   * Aborted when the claim is lost (`reason` is a ClaimLost), or when the caller's signal is. Its
   * listeners run in the caller's async context, as handlers do.
   */
  readonly signal: AbortSignal;
  readonly lost: boolean;
  /**
   * Runs a part of the operation at most once for all its attempts; later attempts get its result.
   * The name has 1 to 64 bytes, no `:`, no `.` in front. Throws as `run` does,
   * and a Fault once the operation is over.
   */
  step<T>(
    name: string,
    handler: (op: Op) => T | Promise<T>,
    options?: { codec?: 'json' | 'bytes' | Codec; signal?: AbortSignal },
  ): Promise<T>;
}

/** What a reconcile hook says of an earlier attempt. Anything else, or an error: nobody can tell. */
export type Reconciled<T> = { happened: true; value: T } | { happened: false } | undefined;

interface Common extends Policies {
  /** Namespace of the key, 1 to 255 bytes; `default`. */
  scope?: string;
  /** What the operation is, for operators; no key, no secret. */
  what?: string;
  /** Where the caller stands among traces (W3C Trace Context); kept with the outcome. */
  traceparent?: string;
  /** Gives up waiting; once the handler runs, aborts `op.signal`. */
  signal?: AbortSignal;
}

export interface RunOptions<T = any> extends Common {
  /** 1 to 255 bytes. */
  key: Text;
  /**
   * Whose key it is: each owner has keys of its own. An owner or a caller that is given and empty,
   * null or undefined is refused with BadKey.
   */
  owner?: Text;
  /** Who asks; the same key from another caller is a Mismatch. */
  caller?: Text | Text[];
  /** What the request is: bytes, or anything with a JSON form. The same key with another one is a Mismatch. */
  fingerprint?: unknown;
  codec?: 'json' | 'bytes' | Codec;
  /** With `onExpired: 'reconcile'`: finds out whether an attempt that died had its effect. */
  reconcile?: (op: Op) => Reconciled<T> | Promise<Reconciled<T>>;
}

type Of<A extends unknown[], V> = V | ((...args: A) => V);

export interface OnceOptions<A extends unknown[] = any[], T = any> extends Common {
  /** A text is one key for all calls. It names no argument. */
  key: Of<A, Text>;
  owner?: Of<A, Text>;
  caller?: Of<A, Text | Text[]>;
  /** Default: the arguments as JSON. `false`: none. */
  fingerprint?: (...args: A) => unknown;
  codec?: 'json' | 'bytes' | Codec;
  reconcile?: (...args: [...A, Op]) => Reconciled<T> | Promise<Reconciled<T>>;
}

export interface MessageOptions<T = any> extends RunOptions<T> {
  message?: {
    /** How many attempts may have run before, as far as the queue tells. */
    attempts?: number;
    /** The pauses between retries; `1s` and `5m`. */
    retry_min?: Duration;
    retry_max?: Duration;
    unknown?: 'park' | 'dead';
    /** What the last answer for this message said. */
    again?: unknown;
  };
}

/** What becomes of a message. */
export interface Told<T> {
  do: 'ack' | 'retry' | 'dead' | 'park';
  /** With `retry`: milliseconds. */
  afterMs?: number;
  reason?: string;
  /** The reason for people. */
  line?: string;
  again?: unknown;
  answer: string;
  value?: T;
  error?: unknown;
}

export type Headers = Array<[name: string, value: string]>;

export interface Exchange {
  status: number;
  headers: Headers;
  body: Buffer;
}

export interface HttpOptions extends Common {
  request: { method: string; host?: string; uri: string; headers: Headers };
  body?: Uint8Array;
  /** What of the body counts for the fingerprint: `body`, `json`, `+/POINTER …`, `-/POINTER …`, `off`. */
  select?: string;
  /** More parts of the fingerprint, at most 16. */
  fingerprint?: Text | Text[];
  key?: Text;
  owner?: Text;
  caller?: Text | Text[];
}

/** A door. One for each process is enough; it connects when it is first needed. */
export class Hapax {
  private constructor();
  readonly address: string;

  /**
   * Runs the handler once for a key, and gives every repeat its result. What the handler returns is
   * the result, whatever it is; what it throws is thrown here and ends the attempt as failed, or,
   * where it is a NotRun of its own and no step was begun, as not run. Once `op.signal` is aborted,
   * its reason, or an AbortError, ends it as unknown: the handler was cut off. A result that the
   * codec cannot encode ends it as unknown, too, and the codec's error is thrown.
   *
   * Throws InFlight, Mismatch, Unknown, Failed, Gone, Expired, BadKey, TooLarge, StoreDown, Indeterminate, Fault;
   * a TypeError where there is no key.
   */
  run<T>(options: RunOptions<T>, handler: (op: Op) => T | Promise<T>): Promise<T>;

  /** The function whose calls are operations: the handler gets the arguments, and the op behind them. */
  once<A extends unknown[], T>(
    options: OnceOptions<A, T>,
    handler: (...args: [...A, Op]) => T | Promise<T>,
  ): (...args: A) => Promise<T>;

  /**
   * As `run`, for a message of a queue: says what becomes of the message. One without a key is dead, unless the policy `key`
   * says otherwise. Throws where nobody can say.
   */
  message<T>(options: MessageOptions<T>, handler: (op: Op) => T | Promise<T>): Promise<Told<T>>;

  /**
   * One exchange of HTTP, for adapters. The result is to be sent as it is. A handler that throws has failed, as with the
   * status 500, unless it ends as not run or unknown (`run`). Where a part of a response is all that there is, the
   * handler returns the error: the result is unknown, and the error is thrown.
   */
  http(options: HttpOptions, handler: (op: Op) => Promise<Exchange | { error: unknown }>): Promise<Exchange & { own: boolean; answer: string }>;

  /** Takes no more operations; resolves when those in hand are over. */
  close(): Promise<void>;
}

/**
 * A door: `unix:PATH`, otherwise $HAPAX_DOOR, otherwise unix:/run/hapax/door.sock. `timeout`: how
 * long to look for a door that is not there, in milliseconds; 10000.
 */
export function connect(address?: string, options?: { timeout?: number }): Hapax;
export function connect(options: { timeout?: number }): Hapax;
