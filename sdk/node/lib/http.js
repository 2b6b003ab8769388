// SPDX-License-Identifier: Apache-2.0
// HTTP through the door, for the adapters: an exchange, the request and the response of Node's own
// server. Stored first, sent second: what a handler writes is kept here until its ANSWER came.
'use strict';

const { CUT } = require('./door.js');
const { EMPTY, bytesOf, text } = require('./frame.js');
const { Fault, Indeterminate, NotRun, StoreDown } = require('./errors.js');

const BODY_MAX = 16 << 20;
const SAFE = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];
const FRAMING = /^(content-length|transfer-encoding|connection|keep-alive)$/i;
const ASCII = /^[\x00-\x7f]*$/;
const OURS = /^idempotency-(replayed|recorded|protected|ttl)$/i;

// A value of a header has one character for each byte; a TEXT stands for its bytes in UTF-8.
function wire(value) {
  const plain = String(value);
  return ASCII.test(plain) ? plain : text(Buffer.from(plain, 'latin1'));
}

const wired = (headers) => headers?.map(([name, value]) => [name, wire(value)]);
const unwired = (headers) =>
  headers.map((pair) => pair.map((value) => (typeof value === 'string' && ASCII.test(value) ? value : bytesOf(value).toString('latin1'))));

/** Hapax.http(): `meta` has the members of BEGIN that all calls have, `makeOp` makes an Op. */
async function exchange(door, options, meta, makeOp, handler) {
  const { request, body = EMPTY, fingerprint, select, signal } = options;
  let own;
  const hooks = {
    async run(...told) {
      try {
        own = await handler(makeOp(...told));
        const { status, headers, body: given, passed } = own;
        const meta = { status, headers: wired(headers.filter(([name]) => !FRAMING.test(name))) };
        return { meta: passed ? { ...meta, body_kept: false } : meta, body: given };
      } catch (error) {
        own = { error };
        return { meta: error instanceof NotRun ? { status: 503, headers: [['Retry-After', '1']] } : CUT };
      }
    },
  };
  const parts = fingerprint === undefined ? undefined : [fingerprint].flat().map(text);
  const asked = {
    ...meta, fingerprint: parts, body: select, as: 'http', request: { ...request, headers: wired(request.headers) },
  };
  const answer = await door.call(asked, body, hooks, { signal });
  const { status, headers, own: mine, answer: code } = answer.meta;
  if (!mine) return { own: false, status, headers: unwired(headers), body: answer.body, answer: code };
  if (own.error) throw own.error;
  const kept = own.headers.filter(([name]) => !OURS.test(name));
  return { ...own, own: true, headers: [...kept, ...unwired(headers ?? [])], answer: code };
}

/** Whether requests of this method are for the door. */
function isOperation(method, { methods }) {
  return methods ? methods.includes(method) : !SAFE.includes(method);
}

/**
 * What a client is told where the door could not be asked, was lost, or refused what the handler gave
 * (`ran`); undefined: another error.
 */
function problemOf(error, ran) {
  let status, code, title, detail;
  if (error instanceof StoreDown) {
    [status, code, title] = [503, 'store-unavailable', 'The operation cannot be protected now'];
    detail = 'Nothing was run for this request.';
  } else if (error instanceof Indeterminate || (ran && error instanceof Fault)) {
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

/** All of a request's body, which is there to be read again afterwards. */
function readAll(req) {
  return new Promise((resolve, reject) => {
    const parts = [];
    let size = 0;
    const look = () => {
      for (let part; (part = req.read()) !== null && size <= BODY_MAX; parts.push(part)) size += part.length;
      if (size > BODY_MAX) over(() => reject(new RangeError(`the request is over ${BODY_MAX} bytes`)));
      else if (req.complete) over(() => resolve(Buffer.concat(parts)));
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

/** {body, select} of a request: of what a parser left, or of the bytes that nobody has read. */
async function bodyOf(req, parsed) {
  const raw = req.rawBody ?? parsed;
  if (raw instanceof Uint8Array) return { body: raw };
  if (typeof raw === 'string') return { body: Buffer.from(raw) };
  const unread = req.readableFlowing === null && !req.readableEnded && !req.destroyed;
  const some = req.headers['transfer-encoding'] !== undefined || Number(req.headers['content-length']) > 0;
  if (unread) return { body: some ? await readAll(req) : EMPTY };
  return raw === undefined ? { body: EMPTY } : { body: Buffer.from(JSON.stringify(raw)), select: 'json' };
}

function pairsOf(flat) {
  const pairs = [];
  for (let i = 0; i < flat.length; i += 2) pairs.push([flat[i], flat[i + 1]]);
  return pairs;
}

// The headers that a response has set, as pairs.
function headersOf(res) {
  return res.getRawHeaderNames().flatMap((name) => [res.getHeader(name)].flat().map((value) => [name, String(value)]));
}

function setHeaders(res, pairs) {
  for (const [name] of pairs) res.removeHeader(name);
  for (const [name, value] of pairs) res.appendHeader(name, value);
}

const METHODS = ['writeHead', 'write', 'end', 'flushHeaders', 'destroy'];

/**
 * Keeps what is written to a response. `response` becomes {status, headers, body} once the handler
 * ended it; rejects where the handler destroyed it. send(answer) sends what it is given, send()
 * cuts the response. A body over 16 MiB is passed on at once: `response` has none of it then, and
 * rejects where the client did not get it whole.
 */
class Held {
  #res;
  #before;
  #parts = [];
  #size = 0;
  #through = false; // what is written goes to the client

  constructor(res) {
    this.#res = res;
    this.#before = headersOf(res);
    this.original = Object.fromEntries(METHODS.map((name) => [name, res[name]]));
    this.response = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.response.catch(() => {});
    for (const name of METHODS) {
      res[name] = (...words) => (this.#through ? this.original[name].apply(res, words) : this[name](...words));
    }
  }

  #say(name, value) {
    Object.defineProperty(this.#res, name, { value, configurable: true, writable: true });
  }

  writeHead(status, ...more) {
    this.#res.statusCode = status;
    if (typeof more[0] === 'string') this.#res.statusMessage = more.shift();
    const given = more[0] ?? {};
    const pairs = !Array.isArray(given) ? Object.entries(given).flatMap(([n, v]) => [v].flat().map((one) => [n, one]))
      : Array.isArray(given[0]) ? given : pairsOf(given);
    setHeaders(this.#res, pairs.filter(([, value]) => value !== undefined));
    this.#say('headersSent', true);
    return this.#res;
  }

  flushHeaders() {
    this.#say('headersSent', true);
  }

  write(chunk, encoding, told) {
    if (typeof encoding === 'function') [encoding, told] = [undefined, encoding];
    const part = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk);
    this.#say('headersSent', true);
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
    if (this.passed) return this.#res.end();
    this.#say('headersSent', true);
    this.#say('writableEnded', true);
    this.resolve({ status: this.#res.statusCode, headers: headersOf(this.#res), body: Buffer.concat(this.#parts) });
    return this.#res;
  }

  destroy(error) {
    this.reject(error ?? new Error('the handler destroyed its response'));
    return this.#res;
  }

  #passOn() {
    const given = { status: this.#res.statusCode, headers: headersOf(this.#res), body: EMPTY, passed: true };
    this.passed = true;
    this.#res.once('close', () => {
      if (this.#res.writableFinished) this.resolve(given);
      else this.reject(new Error('the response was cut off'));
    });
    this.#open();
    for (const part of this.#parts.splice(0)) this.#res.write(part);
  }

  #open() {
    this.#through = true;
    for (const name of ['headersSent', 'writableEnded']) delete this.#res[name];
  }

  /** Sends an answer in place of what was written, if anything was; without one cuts the response. */
  send(answer) {
    if (this.passed) return;
    this.#open();
    if (!answer) {
      this.#res.destroy();
      return;
    }
    if (!answer.own) {
      for (const name of this.#res.getHeaderNames()) this.#res.removeHeader(name);
      setHeaders(this.#res, this.#before);
      this.#res.statusMessage = undefined;
    }
    send(this.#res, answer);
  }
}

/** Writes an answer of exchange() to a response; the headers that are set stay, but for its own. */
function send(res, { status, headers, body }) {
  res.statusCode = status;
  setHeaders(res, headers.filter(([name]) => !FRAMING.test(name)));
  if (status !== 204 && status !== 304) res.setHeader('Content-Length', body.length);
  res.end(body);
}

/** From now on nothing that is written to a response has an effect. */
function mute(res) {
  for (const name of ['writeHead', 'write', 'end', 'flushHeaders', 'setHeader', 'appendHeader', 'removeHeader']) {
    res[name] = () => res;
  }
}

/**
 * One request. run(held) lets the handler run: `held` keeps its response, and is undefined where
 * there is no key and so nothing to keep. reply(answer) answers where nothing ran. What an option
 * is a function of is `subject`. Sets subject.hapax to the handler's Op.
 */
async function guard(hapax, options, { req, res, subject, parsed }, { run, reply }) {
  if (!isOperation(req.method, options)) return run();
  const set = { ...options };
  for (const [name, value] of Object.entries(options)) {
    if (typeof value === 'function') set[name] = await value(subject);
  }
  let held;
  try {
    Object.assign(set, await bodyOf(req, parsed), set.select && { select: set.select });
    set.request = {
      method: req.method, host: req.headers.host, uri: req.originalUrl ?? req.url, headers: pairsOf(req.rawHeaders),
    };
    const answer = await hapax.http(set, async (op) => {
      subject.hapax = op;
      if (op.id === undefined) {
        const sent = new Promise((resolve) => res.once('close', resolve));
        run();
        await sent;
        return { status: res.statusCode, headers: [], body: EMPTY, sent: true };
      }
      held = new Held(res);
      run(held);
      return held.response;
    });
    if (held) held.send(answer);
    else if (!answer.sent) reply(answer);
  } catch (error) {
    const problem = problemOf(error, held !== undefined);
    if (held) held.send(problem);
    else if (problem) reply(problem);
    else throw error;
  }
}

module.exports = { exchange, guard, isOperation, mute, problemOf, send };
