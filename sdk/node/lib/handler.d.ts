/**
 * For handlers behind `hapax serve` or `hapax consume`, which claim and store: no door is needed. Here
 * a handler reads what it was told, and completes in its own transaction. `hapax lambda` tells a
 * function nothing of this.
 */
export interface Attempt {
  /** The operation's key; a Buffer where it is not UTF-8. Absent: not an operation. */
  key?: string | Buffer;
  /** Counted from 1. Absent: nobody stands before this handler, or the request has no key. */
  attempt?: number;
  /** Grows with each attempt. */
  fence?: number;
  /** With `--pass-token on`: a secret. */
  token?: string;
}

type HeadersLike = { get(name: string): string | null } | Record<string, unknown>;

/** Reads Idempotency-Key, -Attempt, -Fence and -Token (and Hapax-Key) of a request, or of its headers. */
export function attemptOf(request: { headers: HeadersLike } | HeadersLike): Attempt;

/**
 * A transaction: a client of pg on which BEGIN was said, the `tx` of Prisma's `$transaction()`, an
 * EntityManager of TypeORM, the `sql` of postgres.js' `begin()`. A pool is refused.
 */
export type Transaction =
  | { query(text: string, values: any[]): Promise<any> }
  | { $queryRawUnsafe(text: string, ...values: any[]): Promise<any> }
  | { unsafe(text: string, values: any[]): any };

/**
 * Completes the operation in the caller's transaction: its rows and the outcome are committed
 * together, or neither. Returns the outcome; undefined, and nothing done, where the request is no
 * operation.
 *
 * Throws ClaimLost where another attempt has the operation, or where this token has completed it
 * already, as in a transaction that is repeated after a lost reply to COMMIT: roll back. The gate
 * answers with what was committed, whatever the handler says then. Throws TypeError where the gate
 * gave no token. A body that is no text and no bytes is written as JSON.
 */
export function complete(
  tx: Transaction,
  request: Parameters<typeof attemptOf>[0] | string,
  status: number,
  body?: string | Uint8Array | object,
  headers?: Record<string, string> | Array<[string, string]>,
): Promise<{ status: number; body: Buffer | null } | undefined>;

/**
 * Lets only the latest attempt write to what `name` names: throws StaleFence where a higher fence
 * was here, and otherwise remembers this one, in the caller's transaction. The table is
 * `CREATE TABLE fences (name text PRIMARY KEY, fence bigint NOT NULL)`, or another of this form.
 */
export function checkFence(tx: Transaction, name: string, fence: number, options?: { table?: string }): Promise<void>;

/**
 * The key to hand to the next service for one step: `KEY:step`; where that has more than 255 bytes,
 * `sha256-` and its hash. The same as `hapax.key_derive()` and `hapax_key_derive()`.
 */
export function keyDerive(key: string, step: string): string;
export function keyDerive(key: string | Buffer, step: string): Buffer | string;
