// SPDX-License-Identifier: Apache-2.0
// The client side: one key per call, the same on each retry. client.d.ts is the manual.
//
// Each try sends the same bytes: a body is read once, before the first try. Otherwise a form would
// get another boundary each time, and the service would take the retry for another request. The
// response is read whole within its try, so that one that is cut off is asked for again.
'use strict';

const { randomUUID } = require('node:crypto');
const {
  BadKey, Expired, Failed, Gone, InFlight, Indeterminate, Limited, Mismatch, StoreDown, TooLarge, Unknown, Upstream,
} = require('./errors.js');

// By the last part of a problem's type (docs/problems).
const BY_PROBLEM = {
  'in-flight': InFlight,
  'unknown-outcome': Unknown,
  'fingerprint-mismatch': Mismatch,
  'caller-mismatch': Mismatch,
  'attempts-used-up': Failed,
  'response-not-kept': Gone,
  'expired-key': Expired,
  'missing-key': BadKey,
  'bad-key': BadKey,
  'missing-owner': BadKey,
  'request-too-large': TooLarge,
  'limit-reached': Limited,
  'store-unavailable': StoreDown,
  'refused-before': Upstream,
  'response-truncated': Upstream,
  'upstream-failed': Upstream,
  'upstream-timeout': Upstream,
  'upstream-unreachable': Upstream,
};

const HEADER = 'Idempotency-Key';
const BODY_MAX = 16 << 20;
const DEFAULTS = { tries: 5, timeout: 30000, pause: 500, pauseMax: 20000, retryAfterMax: 60000 };
const AGAIN = new Set([408, 425, 429, 500, 502, 503, 504]);
// The problems after which the same request may be sent again without a Retry-After.
const AGAIN_AFTER = new Set([
  'response-truncated', 'upstream-failed', 'upstream-timeout', 'upstream-unreachable',
]);

function settings(options) {
  const set = { ...DEFAULTS, ...options };
  for (const name of Object.keys(set)) {
    if (!(name in DEFAULTS)) throw new TypeError(`no option "${name}"`);
    const least = name === 'tries' || name === 'timeout' ? 1 : 0;
    if (!Number.isFinite(set[name]) || set[name] < least) {
      throw new TypeError(`${name}: ${set[name]} is no number of ${least} or more`);
    }
  }
  return set;
}

// A key as the header's value: a String of Structured Fields.
function quoted(key) {
  if (typeof key !== 'string' || !/^[\x20-\x7e]{1,255}$/.test(key)) {
    throw new TypeError('an idempotency key is a text of 1 to 255 printable ASCII characters');
  }
  return `"${key.replace(/["\\]/g, '\\$&')}"`;
}

function needsKey(method) {
  return method === 'POST' || method === 'PATCH';
}

// All of a body (what fetch takes for one), with the type that it gave itself.
async function frozen(body) {
  const whole = new Response(body);
  const parts = [];
  let size = 0;
  for await (const part of whole.body) {
    size += part.length;
    if (size > BODY_MAX) throw new RangeError(`the body is over ${BODY_MAX} bytes`);
    parts.push(part);
  }
  return { bytes: Buffer.concat(parts), type: whole.headers.get('content-type') };
}

// The problem of a gate, or undefined. `text` is what the response has for a body.
function problemOf(type, text) {
  if (!/^application\/(problem\+)?json/i.test(type || '')) return undefined;
  try {
    const members = JSON.parse(text);
    const code = members.error?.code ?? /[^:/]*$/.exec(members.type)[0];
    return Object.hasOwn(BY_PROBLEM, code) ? { ...members, code } : undefined;
  } catch {
    return undefined;
  }
}

// A Retry-After in ms, or undefined.
function retryAfter(value, now) {
  if (/^\d+$/.test(value ?? '')) return Number(value) * 1000;
  const at = Date.parse(value ?? '');
  return Number.isNaN(at) ? undefined : Math.max(0, at - now);
}

// How long to wait for another try, or undefined: none helps.
function pauseAfter(got, n, set) {
  if (got.status !== undefined && got.problem) {
    if (got.after === undefined && !AGAIN_AFTER.has(got.problem.code)) return undefined;
  } else if (got.status !== undefined && !AGAIN.has(got.status)) {
    const busy = got.status === 409 || got.status === 423;
    if (!busy || got.after === undefined) return undefined;
  }
  if (got.after !== undefined) {
    return got.after > set.retryAfterMax ? undefined : got.after + Math.random() * set.pause;
  }
  return Math.random() * Math.min(set.pauseMax, set.pause * 2 ** (n - 1));
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(over, ms);
    function over() {
      signal?.removeEventListener('abort', over);
      clearTimeout(timer);
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    }
    signal?.addEventListener('abort', over);
    if (signal?.aborted) over();
  });
}

// Tries until there is an answer that another try would not change. once() makes one try and gives
// {status, after, problem} besides what it needs itself, or {error} where there was no answer.
async function tryAgain(once, key, set, signal) {
  for (let n = 1; ; n++) {
    const got = await once();
    if (signal?.aborted && got.error) throw got.error;
    const pause = n < set.tries ? pauseAfter(got, n, set) : undefined;
    if (pause === undefined) return conclude(got, key, n);
    await sleep(pause, signal);
  }
}

function conclude(got, key, tries) {
  if (got.status === undefined) {
    throw new Indeterminate(`no answer after ${tries} tries: ${got.error.message}`, {
      cause: got.error, idempotencyKey: key, tries,
    });
  }
  if (got.problem) {
    const { code, status, detail, title, error } = got.problem;
    throw new BY_PROBLEM[code](detail ?? error?.message ?? title ?? code, {
      code, status: status ?? got.status, problem: got.problem, response: got.response,
      idempotencyKey: key, tries,
      ...(got.after === undefined ? {} : { retryAfter: Math.ceil(got.after / 1000) }),
      ...(code.endsWith('-mismatch') ? { differs: code.slice(0, -'-mismatch'.length) } : {}),
    });
  }
  return got.response;
}

function retrying(fetch = globalThis.fetch, options = {}) {
  const set = settings(options);

  return async function send(input, init = {}) {
    const { idempotencyKey, ...rest } = init;
    const asked = new Request(input, { duplex: 'half', ...rest });
    let key = asked.headers.get(HEADER);
    if (idempotencyKey !== undefined) key = quoted(idempotencyKey);
    if (key === null && !needsKey(asked.method)) return fetch(input, rest);
    key ??= quoted(randomUUID());

    const headers = new Headers(asked.headers);
    headers.set(HEADER, key);
    const body = asked.body ? (await frozen(asked.body)).bytes : undefined;
    const { signal } = asked;
    const { method, redirect, credentials, integrity, keepalive, mode, cache, referrer } = asked;
    const plain = { method, redirect, credentials, integrity, keepalive, mode, cache, referrer };
    const every = { ...plain, ...rest, method, headers, body };
    if (body === undefined) delete every.body;

    return tryAgain(() => once(fetch, asked.url, every, signal, set.timeout), key, set, signal);
  };
}

async function once(fetch, url, every, signal, timeout) {
  const stop = new AbortController();
  const onAbort = () => stop.abort(signal.reason);
  signal.addEventListener('abort', onAbort);
  if (signal.aborted) onAbort();
  const timer = setTimeout(() => stop.abort(new Error(`no answer within ${timeout} ms`)), timeout);
  try {
    const response = await fetch(url, { ...every, signal: stop.signal });
    const type = response.headers.get('content-type');
    const whole = /^text\/event-stream/i.test(type ?? '') ? '' : await response.clone().text();
    return {
      response,
      status: response.status,
      after: retryAfter(response.headers.get('retry-after'), Date.now()),
      problem: response.ok ? undefined : problemOf(type, whole),
    };
  } catch (error) {
    return { error };
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
  }
}

function axiosAdapter(axios, options = {}) {
  const set = settings(options);

  return async function adapter(config) {
    const send = axios.getAdapter(axios.defaults.adapter, config);
    const method = (config.method ?? 'get').toUpperCase();
    let key = config.headers.get(HEADER);
    if (config.idempotencyKey !== undefined) key = quoted(config.idempotencyKey);
    if (!key && !needsKey(method)) return send(config);
    key ||= quoted(randomUUID());

    const every = { ...config, headers: config.headers.concat({ [HEADER]: key }) };
    every.timeout ||= set.timeout;
    if (config.data !== undefined && config.data !== null) {
      const { bytes, type } = await frozen(config.data);
      every.data = bytes;
      if (type?.startsWith('multipart/')) every.headers.setContentType(type);
    }
    let last;
    const tried = async () => {
      last = undefined;
      try {
        return ofAxios(await send({ ...every, headers: every.headers.concat() }));
      } catch (error) {
        last = error;
        // A response without data was cut off.
        return error.response?.data === undefined ? { error } : ofAxios(error.response);
      }
    };
    const response = await tryAgain(tried, key, set, config.signal);
    if (last) throw last; // as axios says it: its validateStatus refuses the status
    return response;
  };
}

function ofAxios(response) {
  const { status, headers, data } = response;
  const text = typeof data === 'string' ? data : Buffer.isBuffer(data) ? data.toString() : '';
  return {
    response,
    status,
    after: retryAfter(headers.get('retry-after'), Date.now()),
    problem: status < 400 ? undefined : problemOf(headers.get('content-type'), text),
  };
}

module.exports = { retrying, axiosAdapter };
