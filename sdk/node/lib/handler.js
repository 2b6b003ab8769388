// SPDX-License-Identifier: Apache-2.0
// For handlers behind a gate or a consumer, without a door. handler.d.ts is the manual.
'use strict';

const { createHash } = require('node:crypto');
const { ClaimLost, StaleFence } = require('./errors.js');

const KEY_MAX = 255;
const STEP_MAX = 64;

function headerOf(request, name) {
  const headers = request.headers ?? request;
  if (typeof headers.get === 'function') return headers.get(name) ?? undefined;
  const found = Object.keys(headers).find((one) => one.toLowerCase() === name);
  const value = found === undefined ? undefined : headers[found];
  return Array.isArray(value) ? value[0] : value;
}

// The key that the value of an Idempotency-Key says; the gate has looked at its form.
function unquoted(value) {
  const inner = /^\s*"((?:[^"\\]|\\.)*)"/.exec(value)?.[1];
  return inner === undefined ? value.trim() : inner.replace(/\\(.)/g, '$1');
}

// Percent-decoded; bytes that are not UTF-8 come back as a Buffer.
function decoded(value) {
  const raw = value.replace(/%([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
  const bytes = Buffer.from(raw, 'latin1');
  const text = bytes.toString('utf8');
  return Buffer.from(text, 'utf8').equals(bytes) ? text : bytes;
}

function number(value, name) {
  if (value === undefined) return undefined;
  if (!/^\d{1,16}$/.test(value) || !Number.isSafeInteger(Number(value))) {
    throw new TypeError(`the header ${name} is no number`);
  }
  return Number(value);
}

function attemptOf(request) {
  const plain = headerOf(request, 'hapax-key');
  const quoted = headerOf(request, 'idempotency-key');
  const key = plain !== undefined ? decoded(plain) : quoted === undefined ? undefined : unquoted(quoted);
  return {
    key,
    attempt: number(headerOf(request, 'idempotency-attempt'), 'Idempotency-Attempt'),
    fence: number(headerOf(request, 'idempotency-fence'), 'Idempotency-Fence'),
    token: headerOf(request, 'idempotency-token'),
  };
}

function keyDerive(key, step) {
  const bytes = Buffer.from(key);
  const name = Buffer.from(step);
  if (bytes.length < 1 || bytes.length > KEY_MAX) throw new RangeError(`a key has 1 to ${KEY_MAX} bytes`);
  if (name.length < 1 || name.length > STEP_MAX) throw new RangeError(`a step has 1 to ${STEP_MAX} bytes`);
  if (step.includes(':')) throw new RangeError(`the step "${step}" has a ':'`);
  const whole = Buffer.concat([bytes, Buffer.from(':'), name]);
  if (whole.length > KEY_MAX) return `sha256-${createHash('sha256').update(whole).digest('hex')}`;
  return Buffer.isBuffer(key) ? whole : whole.toString();
}

// Runs a statement in the caller's transaction, whichever driver that is of; gives the rows.
async function query(tx, statement, values) {
  if (typeof tx?.$queryRawUnsafe === 'function') {
    if (typeof tx.$transaction === 'function') {
      throw new TypeError('a client of Prisma is no transaction: give the tx of $transaction()');
    }
    return tx.$queryRawUnsafe(statement, ...values);
  }
  if (typeof tx?.totalCount === 'number' && typeof tx.connect === 'function') {
    throw new TypeError('a pool is no transaction: give the client on which BEGIN was said');
  }
  if (typeof tx?.query === 'function') {
    const answer = await tx.query(statement, values);
    return answer.rows ?? answer;
  }
  if (typeof tx?.unsafe === 'function') return tx.unsafe(statement, values);
  throw new TypeError('tx: a client of pg, a transaction of Prisma, TypeORM or postgres.js');
}

// The SQLSTATE of an error: of pg and postgres.js; of Prisma's engine; of Prisma's adapters.
function sqlState(error) {
  const { code, meta } = error ?? {};
  return meta?.driverAdapterError?.cause?.originalCode ?? meta?.code ?? code;
}

async function complete(tx, request, status, body = '', headers = {}) {
  const { token, attempt } = typeof request === 'string' ? { token: request } : attemptOf(request);
  if (token === undefined) {
    if (attempt === undefined) return undefined; // nobody claimed: there is nothing to complete
    throw new TypeError('the gate gave no Idempotency-Token: it needs --pass-token on');
  }
  const bytes = typeof body === 'string' || body instanceof Uint8Array ? Buffer.from(body)
    : Buffer.from(JSON.stringify(body));
  const pairs = Array.isArray(headers) ? headers : Object.entries(headers);
  const values = [token, status, pairs.flat().map(String), bytes];
  try {
    const [row] = await query(tx, 'SELECT status, body FROM hapax.complete($1::text, $2::integer,'
      + ' hapax.headers(VARIADIC $3::text[]), $4::bytea)', values);
    return { status: row.status, body: row.body === null ? null : Buffer.from(row.body) };
  } catch (error) {
    if (sqlState(error) !== 'HX001') throw error;
    throw new ClaimLost('the claim is lost, or the operation is completed already: roll back', { cause: error });
  }
}

async function checkFence(tx, name, fence, { table = 'fences' } = {}) {
  if (!/^[a-z_]\w*(\.[a-z_]\w*)?$/i.test(table)) throw new TypeError(`"${table}" is no name of a table`);
  if (!Number.isSafeInteger(fence)) throw new TypeError(`the fence ${fence} is no whole number`);
  const rows = await query(tx, `INSERT INTO ${table} AS f (name, fence) VALUES ($1::text, $2::bigint)`
    + ' ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE f.fence <= excluded.fence'
    + ' RETURNING 1 AS kept', [name, fence]);
  if (rows.length === 0) throw new StaleFence(`a later attempt has written to "${name}": roll back`);
}

module.exports = { attemptOf, complete, checkFence, keyDerive };
