// SPDX-License-Identifier: Apache-2.0
// Operations run by `hapax door`: index.d.ts is the manual. What is here turns functions, their
// arguments and results into what the door takes and gives, and nothing else.
'use strict';

const { Door } = require('./door.js');
const { EMPTY, bytesOf, text } = require('./frame.js');
const { exchange } = require('./http.js');
const { classOf } = require('./notrun.js');
const {
  BadKey, Expired, Failed, Gone, HapaxError, InFlight, Limited, Mismatch, Refused, StoreDown, TooLarge, Unknown,
} = require('./errors.js');

const BY_ANSWER = {
  in_flight: InFlight, unknown: Unknown, mismatch: Mismatch, failed: Failed, gone: Gone, expired: Expired,
  missing_key: BadKey, bad_key: BadKey, missing_owner: BadKey, too_large: TooLarge, limited: Limited,
  store_down: StoreDown,
};
// Outcomes are as sdk/cases/README.md says, so that programs of other languages can read them. These
// headers are this package's own: the name and code of an error; a result that is undefined.
const ERROR = 'Hapax-Node-Error';
const UNDEFINED = 'Hapax-Node-Undefined';

const json = {
  type: 'application/json',
  encode(value) {
    const text = JSON.stringify(value === undefined ? null : value);
    if (text === undefined) throw new TypeError(`the result is a ${typeof value}, which has no JSON`);
    return text;
  },
  decode: (body) => JSON.parse(body),
};
const bytes = {
  type: 'application/octet-stream',
  encode(value) {
    if (value instanceof Uint8Array) return value;
    throw new TypeError('with the codec "bytes" a handler returns a Buffer or Uint8Array');
  },
  decode: (body) => Buffer.from(body),
};
const CODECS = { json, bytes };

function codecOf(codec = json) {
  const found = typeof codec === 'string' ? CODECS[codec] : codec;
  if (typeof found?.encode !== 'function' || typeof found.decode !== 'function') {
    throw new TypeError('codec: "json", "bytes", or an object with encode and decode');
  }
  return found;
}

/** What a handler is given. */
class Op {
  #door;
  #call;
  #codec;
  stepped = false; // a step was begun: this attempt may have had an effect

  constructor(door, told, call, codec) {
    const { key } = told;
    this.id = told.id;
    this.attempt = told.attempt;
    this.fence = told.fence;
    this.stale = told.stale;
    this.key = key?.base64 === undefined ? key : bytesOf(key);
    this.token = told.token;
    this.traceparent = told.traceparent;
    this.#door = door;
    this.#call = call;
    this.#codec = codec;
  }

  get signal() {
    return this.#call.lost.signal;
  }

  get lost() {
    return this.signal.aborted;
  }

  async step(name, handler, options = {}) {
    const codec = options.codec === undefined ? this.#codec : codecOf(options.codec);
    this.stepped = true;
    const outer = this.#call;
    const hooks = callHooks(this.#door, codec, handler);
    return outcomeOf(await this.#door.call({ step: name }, EMPTY, hooks, { signal: this.signal, ...options, outer }), hooks);
  }
}

// ---- handlers, and what they gave ----------------------------------------------------------------

function valueEnd(value, codec) {
  const headers = [['Content-Type', codec.type ?? bytes.type]];
  if (value === undefined) headers.push([UNDEFINED, '1']);
  return { meta: { class: 'final', status: 200, headers }, body: Buffer.from(codec.encode(value)) };
}

// Hooks of a call whose handler returns a value. `own` is what it gave.
function callHooks(door, codec, handler, reconcile) {
  const hooks = {
    codec,
    own: undefined,
    async run(told, call) {
      const op = new Op(door, told, call, codec);
      let value;
      try {
        value = await handler(op);
      } catch (error) {
        hooks.own = { error };
        return errorEnd(error, op);
      }
      try {
        hooks.own = { value };
        return valueEnd(value, codec);
      } catch (error) { // it has run, and has no outcome that can be kept
        hooks.own = { error };
        return { meta: { class: 'unknown' } };
      }
    },
    async reconcile(told, call) {
      try {
        const found = await reconcile(new Op(door, told, call, codec));
        if (found?.happened === false) return { meta: { class: 'not_run' } };
        if (found?.happened !== true) return { meta: { class: 'unknown' } };
        hooks.own = { value: found.value };
        return valueEnd(found.value, codec);
      } catch {
        return { meta: { class: 'unknown' } };
      }
    },
  };
  return hooks;
}

function errorEnd(error, op) {
  const how = classOf(error, op);
  if (how !== 'failed') return { meta: { class: how } };
  const { name, message, code } = error instanceof Error ? error : { name: 'Error', message: String(error) };
  const says = String(message ?? ''); // some libraries leave null or an object there
  const headers = [['Content-Type', 'text/plain']];
  try {
    const more = JSON.stringify({ name, code });
    if (/^[\x20-\x7e]{1,1000}$/.test(more)) headers.push([ERROR, more]);
  } catch { // a code without a form in JSON is not kept
  }
  const meta = error instanceof Refused ? { refuse: says } : { class: 'failed' };
  return { meta: { ...meta, status: 500, headers }, body: Buffer.from(says) };
}

// The error that an outcome is, or undefined.
function storedError({ status, headers = [] }, body) {
  if (!(status >= 400)) return undefined;
  const more = headers.find(([name]) => name === ERROR)?.[1];
  return Object.assign(new Error(body.toString()), more && JSON.parse(more));
}

// The value of an ANSWER; throws what it says besides.
function outcomeOf({ meta, body }, { codec, own }) {
  if (meta.own) {
    if ('error' in own) throw own.error;
    return own.value;
  }
  if (meta.answer === 'replay' || meta.answer === 'fresh' || meta.answer === 'bypass') {
    const error = storedError(meta, body);
    if (error) throw error;
    if (meta.headers?.some(([name]) => name === UNDEFINED)) return undefined;
    try {
      return codec.decode(body);
    } catch (cause) {
      throw new HapaxError(`the stored result cannot be read: ${cause.message}`, { cause, code: meta.answer });
    }
  }
  throw errorOf(meta, body);
}

function errorOf(meta, body) {
  const { answer, differs, attempt, error, text: says, retry_after_ms: ms, silent_ms: silent } = meta;
  const Class = BY_ANSWER[answer] ?? HapaxError;
  const more = { code: answer, differs, attempt, error };
  if (ms !== undefined) more.retryAfter = Math.ceil(ms / 1000);
  if (silent !== undefined) more.silentMs = silent;
  if (Class === Failed) more.cause = storedError(meta, body);
  return new Class(says ?? answer, more);
}

// ---- what is asked -------------------------------------------------------------------------------

const OWN = new Set([
  'scope', 'key', 'keyHeader', 'owner', 'caller', 'fingerprint', 'what', 'traceparent', 'codec', 'signal',
  'reconcile', 'policy', 'message', 'request', 'body', 'select', 'methods',
]);

// Every other option is a policy: onExpired is on_expired, retention4xx retention_4xx. Whether there is one the door says.
function policyOf(options) {
  const policy = { ...options.policy };
  for (const name of Object.keys(options)) {
    if (OWN.has(name) || options[name] === undefined) continue;
    policy[name.replace(/[A-Z]|(?<=[a-z])\d/g, (letter) => `_${letter.toLowerCase()}`)] = options[name];
  }
  return policy;
}

// An owner, or a part of a caller. What is named and not there is nobody's, as the empty text is: the
// door refuses it.
const named = (value) => text(value ?? '');

// The members of BEGIN; `body` and those after it have others written to them.
function metaOf(options, body, as, message) {
  const { scope, key, keyHeader, owner, caller, what, traceparent, reconcile } = options;
  return {
    scope, key: text(key), key_header: keyHeader, what, traceparent,
    owner: 'owner' in options ? named(owner) : undefined,
    caller: 'caller' in options ? [caller].flat().map(named) : undefined,
    policy: policyOf(options), reconciles: reconcile !== undefined, body, as, message, nonce: undefined, in: undefined,
  };
}

// What says what the request is: what of the body counts, and the body.
function fingerprintOf(value) {
  if (value === undefined || value === false) return ['off', EMPTY];
  if (value instanceof Uint8Array) return ['body', value];
  return ['json', Buffer.from(JSON.stringify(value))];
}

class Hapax {
  #door;

  constructor(address, { timeout = 10000 } = {}) {
    if (!(timeout >= 0)) throw new TypeError(`timeout: ${timeout} is no number of milliseconds`);
    this.#door = new Door(address, timeout);
  }

  get address() {
    return this.#door.address;
  }

  async run(options, handler) {
    if ((options.key ?? '').length === 0 && options.policy?.key === undefined) {
      throw new TypeError('no key: an operation without one would run unprotected');
    }
    const [print, body] = fingerprintOf(options.fingerprint);
    const hooks = callHooks(this.#door, codecOf(options.codec), handler, options.reconcile);
    const { signal } = options;
    return outcomeOf(await this.#door.call(metaOf(options, print), body, hooks, { signal }), hooks);
  }

  once(options, handler) {
    const hapax = this;
    return function once(...args) {
      const set = { ...options };
      for (const name of ['key', 'owner', 'caller', 'fingerprint', 'what', 'signal']) {
        if (typeof set[name] === 'function') set[name] = set[name].apply(this, args);
      }
      if (options.fingerprint === undefined) set.fingerprint = args;
      if (set.reconcile) set.reconcile = (op) => options.reconcile.call(this, ...args, op);
      return hapax.run(set, (op) => handler.call(this, ...args, op));
    };
  }

  async message(options, handler) {
    const [print, body] = fingerprintOf(options.fingerprint);
    const hooks = callHooks(this.#door, codecOf(options.codec), handler, options.reconcile);
    const asked = metaOf(options, print, 'message', options.message ?? {});
    asked.policy.key ??= 'required'; // otherwise a message without a key would run unprotected
    const answer = await this.#door.call(asked, body, hooks, { signal: options.signal });
    const { do: what, after_ms: afterMs, reason, line, again, answer: code } = answer.meta;
    const told = { do: what, afterMs, reason, line, again, answer: code };
    try {
      told.value = outcomeOf(answer, hooks);
    } catch (error) {
      told.error = error;
    }
    return told;
  }

  /** One exchange of HTTP; for adapters (http.js). `meta` is what meta(options) gives, if that is known. */
  http(options, handler, meta = metaOf(options)) {
    return exchange(this.#door, options, meta, (told, call) => new Op(this.#door, told, call, json), handler);
  }

  meta(options) {
    return metaOf(options);
  }

  close() {
    return this.#door.close();
  }
}

function connect(address, options) {
  if (typeof address === 'object') [address, options] = [undefined, address];
  return new Hapax(address ?? (process.env.HAPAX_DOOR || 'unix:/run/hapax/door.sock'), options);
}

module.exports = { connect, Hapax, Op, json, bytes, ...require('./errors.js') };
