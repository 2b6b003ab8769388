// SPDX-License-Identifier: Apache-2.0
// HTTP through the door, for the adapters: an exchange, the request and the response of Node's own
// server. Stored first, sent second: what a handler writes is kept here until its ANSWER came.
'use strict';

const { isAscii } = require('node:buffer');
const { EMPTY, bytesOf, text } = require('./frame.js');
const { Fault, HapaxError, Indeterminate, NotRun, StoreDown } = require('./errors.js');
const { classOf } = require('./notrun.js');

const BODY_MAX = 16 << 20;
const TEXT_MAX = 64 << 10; // of a body that is sent as a text
const SAFE = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];
const FRAMING = new Set(['content-length', 'transfer-encoding', 'trailer', 'connection', 'keep-alive']);
const ASCII = /^[\x00-\x7f]*$/;
const OURS = new Set(['idempotency-replayed', 'idempotency-recorded', 'idempotency-protected', 'idempotency-ttl']);

// The headers but those whose names are in a set; the same list where it has none of them.
function without(headers, names) {
  const isOther = ([name]) => !names.has(name.toLowerCase());
  return headers.every(isOther) ? headers : headers.filter(isOther);
}

// Most headers have texts of ASCII alone: one look tells so, and they stay as they are.
function isPlain(headers) {
  let all = '';
  for (const [name, value] of headers) {
    if (typeof name !== 'string' || typeof value !== 'string') return false;
    all += value;
  }
  return ASCII.test(all);
}

// A value of a header has one character for each byte; a TEXT stands for its bytes in UTF-8.
function wire(value) {
  const plain = String(value);
  return ASCII.test(plain) ? plain : text(Buffer.from(plain, 'latin1'));
}

function wired(headers) {
  if (headers === undefined || isPlain(headers)) return headers;
  return headers.map(([name, value]) => [name, wire(value)]);
}

function unwired(headers) {
  if (isPlain(headers)) return headers;
  return headers.map((pair) => pair.map((value) => bytesOf(value).toString('latin1')));
}

const hasBody = (status) => status !== 204 && status !== 304;

/** Hapax.http(): `meta` has the members of BEGIN that all calls have, `makeOp` makes an Op. */
async function exchange(door, options, meta, makeOp, handler) {
  if (meta.reconciles) throw new Fault('reconcile: HTTP has no such hook; use onExpired "hold"', { error: 'invalid' });
  const { request, body = EMPTY, fingerprint, select, signal } = options;
  let own;
  const hooks = {
    async run(told, call) {
      const op = makeOp(told, call);
      try {
        own = await handler(op);
      } catch (error) {
        own = { error };
        const how = classOf(error, op);
        return { meta: how === 'failed' ? { status: 500 } : { class: how } };
      }
      try {
        if ('error' in own) return { meta: { class: 'unknown' } };
        if (!hasBody(own.status)) own.body = EMPTY;
        const end = { status: own.status, headers: wired(without(own.headers, FRAMING)) };
        if (own.passed) end.body_kept = false;
        return { meta: end, body: own.body };
      } catch (error) { // it ran, and gave no response
        own = { error };
        return { meta: { class: 'unknown' } };
      }
    },
  };
  // Members are named one by one: an object made from another by "..." costs ten times as much.
  const { scope, key, key_header, what, traceparent, owner, caller, policy, reconciles } = meta;
  const { method, host, uri, headers: asked } = request;
  const answer = await door.call({
    scope, key, key_header, what, traceparent, owner, caller, policy, reconciles, body: select, as: 'http',
    fingerprint: fingerprint === undefined ? undefined : [fingerprint].flat().map(text),
    request: { method, host, uri, headers: wired(asked) }, nonce: undefined, in: undefined,
  }, body.subarray(0, BODY_MAX + 1), hooks, { outer: undefined, signal }); // more than that is refused as well
  const { status, own: mine, answer: code } = answer.meta;
  const more = unwired(answer.meta.headers ?? []);
  if (!mine) return { own: false, status, headers: more, body: answer.body, answer: code };
  if ('error' in own) throw own.error;
  const kept = without(own.headers, OURS);
  return {
    own: true, status: own.status, headers: more.length > 0 ? [...kept, ...more] : kept, body: own.body, answer: code,
    sent: own.sent,
  };
}

/** The options that are functions of the request. A hook is none: exchange() refuses it. */
function askedOf(options) {
  return Object.entries(options).filter(([name, value]) => typeof value === 'function' && name !== 'reconcile');
}

/** Whether requests of this method are for the door. */
function isOperation(method, { methods }) {
  return methods ? methods.includes(method) : !SAFE.includes(method);
}

/** Whether a request has a key, or may have. Without one its body counts for nothing: the handler reads it itself. */
function isKeyed({ key, keyHeader }, header) {
  return (key ?? keyHeader ?? header ?? '') !== '';
}

/**
 * What a client is told where the door could not be asked, was lost, or refused what the handler gave
 * (`ran`), or where another operation broke the handler off; undefined: another error.
 */
function problemOf(error, ran) {
  let status, code, title, detail;
  const isUpstream = ran && error instanceof HapaxError && !(error instanceof NotRun);
  if (!ran && error instanceof StoreDown) {
    [status, code, title] = [503, 'store-unavailable', 'The operation cannot be protected now'];
    detail = 'Nothing was run for this request.';
  } else if (error instanceof Indeterminate || isUpstream) {
    [status, code, title] = [502, 'upstream-failed', 'The service gave no response'];
    detail = 'The operation may have had its effect. Ask again with the same key.';
    if (ran && error instanceof Fault) detail += ` The response cannot be kept: ${error.message}.`;
  } else {
    return undefined;
  }
  const members = { type: `urn:hapax:problem:${code}`, title, status, detail };
  const headers = [['Content-Type', 'application/problem+json'], ['Retry-After', '1']];
  return { own: false, status, headers, body: Buffer.from(JSON.stringify(members)) };
}

// ---- Node's own server ---------------------------------------------------------------------------

/** A request's body, or so much of it that it is over BODY_MAX. It is there to be read again afterwards. */
function readAll(req) {
  return new Promise((resolve, reject) => {
    const parts = [];
    let size = 0;
    const look = () => {
      for (let part; size <= BODY_MAX && (part = req.read()) !== null; parts.push(part)) size += part.length;
      if (size > BODY_MAX || req.complete) over(() => resolve(Buffer.concat(parts)));
    };
    const cut = (error) => over(() => reject(error ?? new Error('the request was cut off')));
    const empty = () => over(() => resolve(EMPTY));
    const over = (conclude) => {
      req.off('readable', look).off('error', cut).off('close', cut).off('end', empty);
      if (size > 0) req.unshift(Buffer.concat(parts)); // in this turn, before `end` is said
      conclude();
    };
    req.on('readable', look).on('error', cut).on('close', cut).on('end', empty);
  });
}

/** {body, select} of a request: of what a parser left, or, as a promise, of the bytes that nobody has read. */
function bodyOf(req, parsed) {
  const raw = req.rawBody ?? parsed;
  if (raw instanceof Uint8Array) return { body: raw };
  if (typeof raw === 'string') return { body: Buffer.from(raw) };
  const unread = req.readableFlowing === null && !req.readableEnded && !req.destroyed;
  const some = req.headers['transfer-encoding'] !== undefined || Number(req.headers['content-length']) > 0;
  if (unread) return some ? readAll(req).then((body) => ({ body })) : { body: EMPTY };
  return raw === undefined ? { body: EMPTY } : { body: Buffer.from(JSON.stringify(raw)), select: 'json' };
}

function pairsOf(flat) {
  const pairs = [];
  for (let i = 0; i < flat.length; i += 2) pairs.push([flat[i], flat[i + 1]]);
  return pairs;
}

// The headers that a response has set, as pairs.
function headersOf(res) {
  const pairs = [];
  for (const name of res.getRawHeaderNames()) {
    const value = res.getHeader(name);
    if (Array.isArray(value)) for (const one of value) pairs.push([name, String(one)]);
    else pairs.push([name, String(value)]);
  }
  return pairs;
}

function setHeaders(res, pairs) {
  for (const [name] of pairs) if (res.hasHeader(name)) res.removeHeader(name);
  for (const [name, value] of pairs) res.appendHeader(name, value);
}

// What a held response has of its own. All responses have the same functions, and keep them: with functions of
// its own, or with properties deleted again, V8 keeps a response as a table, and all of Node's code for it is slow.
const HELD = Symbol('hapax-sdk.held');
const METHODS = ['writeHead', 'write', 'end', 'flushHeaders', 'destroy'];

function held(response, name, words) {
  const by = response[HELD];
  return by.through ? by.original[name].apply(response, words) : by[name](...words);
}

const HOLDING = {
  writeHead(...words) { return held(this, 'writeHead', words); },
  write(...words) { return held(this, 'write', words); },
  end(...words) { return held(this, 'end', words); },
  flushHeaders(...words) { return held(this, 'flushHeaders', words); },
  destroy(...words) { return held(this, 'destroy', words); },
};

function says(name) {
  return {
    configurable: true,
    get() {
      for (let by = this[HELD]; by; by = by.inner) if (!by.through && by[name]) return true;
      return Reflect.get(Object.getPrototypeOf(this), name, this);
    },
  };
}

const SAYING = { headersSent: says('headersSent'), writableEnded: says('writableEnded') };

/**
 * Keeps what is written to a response. resolve({status, headers, body}) is called once the handler
 * ended it; resolve({error}) where the handler destroyed it. send(answer) sends what it is given,
 * send() cuts the response. A body over 16 MiB is passed on at once: resolve() gets none of it then,
 * and an error where the client did not get it whole.
 */
class Held {
  #res;
  #before;
  #parts = [];
  #size = 0;
  #given = undefined; // of a response that is passed on, all but its body
  through = false; // what is written goes to the client
  headersSent = false; // as the handler is told
  writableEnded = false;
  passed = false;
  inner = undefined; // who holds the same response after this one

  constructor(res, resolve) {
    this.#res = res;
    this.#before = headersOf(res);
    this.resolve = resolve;
    res.once('close', () => this.#closed());
    const { writeHead, write, end, flushHeaders, destroy } = res;
    this.original = { writeHead, write, end, flushHeaders, destroy };
    if (res[HELD]) {
      this.#nest(res[HELD]);
    } else {
      res[HELD] = this;
      res.writeHead = HOLDING.writeHead;
      res.write = HOLDING.write;
      res.end = HOLDING.end;
      res.flushHeaders = HOLDING.flushHeaders;
      res.destroy = HOLDING.destroy;
      Object.defineProperties(res, SAYING);
    }
  }

  // Another middleware holds the response already.
  #nest(outer) {
    while (outer.inner) outer = outer.inner;
    outer.inner = this;
    for (const name of METHODS) {
      this.#res[name] = (...words) => (this.through ? this.original[name].apply(this.#res, words) : this[name](...words));
    }
  }

  writeHead(status, ...more) {
    this.#res.statusCode = status;
    if (typeof more[0] === 'string') this.#res.statusMessage = more.shift();
    const given = more[0] ?? {};
    if (Array.isArray(given)) {
      setHeaders(this.#res, (Array.isArray(given[0]) ? given : pairsOf(given)).filter(([, value]) => value !== undefined));
    } else {
      for (const name of Object.keys(given)) if (given[name] !== undefined) this.#res.setHeader(name, given[name]);
    }
    this.headersSent = true;
    return this.#res;
  }

  flushHeaders() {
    this.#head();
  }

  // As Node before the first byte: what wraps writeHead has its say, and that is stored.
  #head() {
    if (!this.headersSent) this.#res.writeHead(this.#res.statusCode);
    this.headersSent = true;
  }

  write(chunk, encoding, told) {
    if (typeof encoding === 'function') [encoding, told] = [undefined, encoding];
    const part = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk);
    this.#head();
    if (this.writableEnded) return false;
    this.#parts.push(part);
    this.#size += part.length;
    if (this.#size > BODY_MAX) this.#passOn();
    if (told) process.nextTick(told);
    return true;
  }

  end(chunk, encoding, told) {
    if (typeof chunk === 'function') [chunk, told] = [undefined, chunk];
    if (typeof encoding === 'function') [encoding, told] = [undefined, encoding];
    if (chunk !== undefined && chunk !== null) this.write(chunk, encoding);
    if (told) this.#res.once('finish', told);
    if (this.passed) return this.original.end.call(this.#res);
    this.#head();
    this.writableEnded = true;
    const body = this.#parts.length === 1 ? this.#parts[0] : Buffer.concat(this.#parts);
    this.resolve({ status: this.#res.statusCode, headers: headersOf(this.#res), body });
    return this.#res;
  }

  destroy(error) {
    this.resolve({ error: error ?? new Error('the handler destroyed its response') });
    return this.#res;
  }

  // An error handler that finds a part written destroys the connection, and not the response.
  #closed() {
    const { socket } = this.#res.req;
    if (this.passed) {
      this.resolve(this.#res.writableFinished ? this.#given : { error: new Error('the response was cut off') });
    } else if (this.headersSent && !this.writableEnded && !socket.readableEnded && !socket.errored) {
      this.destroy();
    }
  }

  #passOn() {
    this.#given = { status: this.#res.statusCode, headers: headersOf(this.#res), body: EMPTY, passed: true };
    this.passed = true;
    this.#res.statusMessage = undefined;
    if (this.#res.destroyed) this.#closed(); // its client has left: there will be no event
    this.through = true;
    for (const part of this.#parts.splice(0)) this.original.write.call(this.#res, part);
  }

  /**
   * Sends an answer in place of what was written, if anything was; without one cuts the response. Middlewares behind the guard
   * have had their say, and some have it once: the functions are those from before them.
   */
  send(answer) {
    if (this.passed) return;
    this.through = true;
    if (!answer) return void this.original.destroy.call(this.#res);
    for (const name of this.#res.getHeaderNames()) this.#res.removeHeader(name);
    this.#res.statusMessage = undefined; // no record keeps it
    if (answer.own) {
      setHeaders(this.#res, answer.headers);
      finish(this.#res, answer, this.original);
    } else {
      setHeaders(this.#res, this.#before);
      send(this.#res, answer, this.original);
    }
  }
}

/** Writes an answer of exchange() to a response; the headers that are set stay, but for its own. */
function send(res, answer, by = res) {
  setHeaders(res, without(answer.headers, FRAMING));
  finish(res, answer, by);
}

function finish(res, { status, body }, { writeHead, end }) {
  res.statusCode = status;
  // It is sent whole. A proxy may read a message with chunks and a length as two.
  for (const name of ['Transfer-Encoding', 'Trailer', 'Content-Length']) if (res.hasHeader(name)) res.removeHeader(name);
  if (hasBody(status)) res.setHeader('Content-Length', body.length);
  writeHead.call(res, status);
  // Node writes head and body at once where the body is a text.
  if (body.length <= TEXT_MAX && isAscii?.(body)) end.call(res, body.toString('latin1'), 'latin1');
  else end.call(res, body);
}

/** From now on nothing that is written to a response has an effect. */
function mute(res) {
  for (const name of ['writeHead', 'write', 'end', 'flushHeaders', 'setHeader', 'appendHeader', 'removeHeader']) {
    res[name] = () => res;
  }
}

/**
 * One request. run() lets the handler run. reply(answer) answers where nothing ran. What an option
 * is a function of is `subject`. Sets subject.hapax to the handler's Op.
 */
async function guard(hapax, options, { req, res, subject, parsed }, { run, reply }) {
  if (!isOperation(req.method, options)) return run();
  const { asked, meta } = planOf(hapax, options);
  const set = asked.length > 0 ? { ...options } : { fingerprint: options.fingerprint, signal: options.signal };
  for (const [name, value] of asked) set[name] = await value(subject);
  const given = asked.length > 0 ? set : options;
  const conclude = (answer) => {
    req.resume(); // of a long request there is more to come, which nobody reads
    reply(answer);
  };
  let held;
  try {
    const found = isKeyed(given, req.headers['idempotency-key']) ? bodyOf(req, parsed) : { body: EMPTY };
    const { body, select } = found instanceof Promise ? await found : found;
    set.body = body;
    set.select = given.select || select;
    set.request = {
      method: req.method, host: req.headers.host, uri: req.originalUrl ?? req.url, headers: pairsOf(req.rawHeaders),
    };
    const answer = await hapax.http(set, (op) => {
      subject.hapax = op;
      if (op.id === undefined) {
        const sent = new Promise((resolve) => res.once('close', resolve));
        run();
        return sent.then(() => ({ status: res.statusCode, headers: [], body: EMPTY, sent: true }));
      }
      return new Promise((resolve) => {
        held = new Held(res, resolve);
        run();
      });
    }, meta);
    if (held) held.send(answer);
    else if (!answer.sent) conclude(answer);
  } catch (error) {
    const problem = problemOf(error, held !== undefined);
    if (held) held.send(problem);
    else if (problem) conclude(problem);
    else throw error;
  }
}

const plans = new WeakMap(); // by options

// Which options are functions of the request, and, where none is, what of BEGIN is the same for all requests.
function planOf(hapax, options) {
  let plan = plans.get(options);
  if (!plan) {
    const asked = askedOf(options);
    plan = { asked, meta: asked.length > 0 ? undefined : hapax.meta(options) };
    plans.set(options, plan);
  }
  return plan;
}

module.exports = { askedOf, exchange, guard, isKeyed, isOperation, mute, problemOf, send };
