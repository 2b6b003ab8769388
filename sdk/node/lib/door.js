// SPDX-License-Identifier: Apache-2.0
// The connection to `hapax door`, and the calls on it, by docs/door.md. No decision about an
// operation is made here: what a call's hooks gave is sent, and the door's answer is handed over.
'use strict';

const { AsyncResource } = require('node:async_hooks');
const net = require('node:net');
const { randomBytes } = require('node:crypto');
const { KIND, EMPTY, FRAME_MAX, OUTCOME_MAX, fits, Writer, Reader } = require('./frame.js');
const { ClaimLost, Fault, Indeterminate, StoreDown, TooLarge } = require('./errors.js');
const { version } = require('../package.json');

const AGAIN_MS = 50; // between two attempts to connect
const READ_SIZE = 64 << 10;
const UNKNOWN = { text: '{"class":"unknown"}', body: EMPTY }; // of END
// The connection and its beat outlive the call that begins them. In that call's async context they would keep what
// AsyncLocalStorage has there.
const NOBODYS = new AsyncResource('HapaxDoor');

function pathOf(address) {
  const path = /^unix:(.+)$/.exec(address)?.[1];
  if (!path) throw new TypeError(`"${address}" is no address of a door: unix:PATH`);
  return path;
}

// Random bytes are asked for many nonces at a time.
let random = '';

function newNonce() {
  if (random === '') random = randomBytes(2048).toString('hex');
  const nonce = random.slice(0, 32);
  random = random.slice(32);
  return nonce;
}

/**
 * One operation or step. `hooks.run(told, call)` and `hooks.reconcile(told, call)` get the members of
 * RUN and RECONCILE, and give {meta, body} for END; where one rejects that is `unknown`. They run in the async
 * context of the call (AsyncLocalStorage), not in that of the call that opened the connection.
 */
class Call extends AsyncResource {
  #lost;

  /** `meta` is from now on the call's. */
  constructor(meta, body, hooks, { outer, signal }) {
    super('HapaxCall');
    meta.nonce = newNonce();
    if (outer) meta.in = outer.number;
    this.number = 0; // of its frames
    this.meta = meta;
    this.text = JSON.stringify(meta);
    this.body = body;
    this.hooks = hooks;
    this.signal = signal;
    this.cancel = undefined; // what hears of its abort
    this.told = undefined; // the members of the last RUN or RECONCILE
    this.end = undefined; // what END says, once the hook has ended: {text, body}
    this.over = undefined; // why this call will get no ANSWER, once its hook has ended
    this.cancelled = undefined; // what its caller gets in place of the ANSWER, in an object
    this.alone = false; // unprotected, and its connection is gone: nothing waits for its END
    this.resolve = this.reject = undefined;
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** Aborted when the claim is lost. Few handlers ask, so it is made for those that do. */
  get lost() {
    return (this.#lost ??= new AbortController());
  }

  lose(reason) {
    this.runInAsyncScope(() => this.lost.abort(reason));
  }
}

class Door {
  #path;
  // Calls in hand, by the low bits of their number; at least half of it is undefined. No Map: its old tables would keep
  // calls that are over until the next full collection.
  #slots = new Array(16).fill(undefined);
  #count = 0; // of calls in hand
  #last = 0; // the newest call's number. None is given again before 2^32 are: frames about a call that is over may come
  #socket = null; // greeted
  #opening = false;
  #trouble = undefined; // since when there is no door, or none that said a word about a call
  #greeted = 0; // when the last WELCOME came
  #beat = null;
  #closed = null; // the promise of close()

  constructor(address, timeout) {
    this.address = address;
    this.#path = pathOf(address);
    this.timeout = timeout;
  }

  /** Sends BEGIN, drives the hooks; gives {meta, body} of ANSWER. Throws or rejects with a HapaxError. */
  call(meta, body, hooks, more = {}) {
    const { outer, signal } = more;
    signal?.throwIfAborted();
    if (this.#closed && !outer) throw new StoreDown('this connection to the door is closed');
    if (outer && this.#find(outer.number) !== outer) {
      throw new Fault('a step of an operation that is over', { error: 'invalid' });
    }
    const call = new Call(meta, body, hooks, more);
    if (!fits(call.text, body)) {
      throw new TooLarge(`the request is over ${FRAME_MAX} bytes, or its members are too long`);
    }
    this.#put(call);
    if (signal) {
      call.cancel = () => this.#cancel(call, signal.reason);
      signal.addEventListener('abort', call.cancel);
    }
    if (this.#count === 1) this.#wake();
    if (this.#socket) this.#send(KIND.BEGIN, call.number, call.text, body);
    else NOBODYS.runInAsyncScope(this.#open, this);
    return call.answer;
  }

  // The call in hand that has this number.
  #find(number) {
    const call = this.#slots[number & (this.#slots.length - 1)];
    return call?.number === number ? call : undefined;
  }

  // Gives a call the next number whose slot nobody has.
  #put(call) {
    let mask = this.#slots.length - 1;
    if (2 * this.#count > mask) {
      const old = this.#slots;
      this.#slots = new Array(2 * old.length).fill(undefined);
      mask = this.#slots.length - 1;
      for (const one of old) if (one) this.#slots[one.number & mask] = one;
    }
    do this.#last = (this.#last + 1) >>> 0 || 1;
    while (this.#slots[this.#last & mask]);
    call.number = this.#last;
    this.#slots[call.number & mask] = call;
    this.#count += 1;
  }

  // The call is over: its caller gets the answer, or the error.
  #conclude(call, answer, error) {
    if (this.#find(call.number) !== call) return;
    call.signal?.removeEventListener('abort', call.cancel);
    this.#slots[call.number & (this.#slots.length - 1)] = undefined;
    this.#count -= 1;
    if (error === undefined) call.resolve(answer);
    else call.reject(error);
    if (this.#count === 0) this.#rest();
  }

  /** Takes no more operations; resolves when those in hand are over and the connection is. */
  close() {
    this.#closed ??= new Promise((resolve) => { this.ended = resolve; });
    if (this.#count === 0) this.#rest();
    return this.#closed;
  }

  // In order: a step stands behind its operation.
  #inHand() {
    const age = ({ number }) => (number - this.#last - 1) >>> 0;
    return this.#slots.filter(Boolean).sort((one, other) => age(one) - age(other));
  }

  // The first call: from now on the process lives as long as a call is in hand, and beats.
  #wake() {
    this.#socket?.ref();
    this.#beats();
  }

  #rest() {
    clearInterval(this.#beat);
    this.#beat = null;
    this.#socket?.unref();
    if (this.#closed) {
      if (this.#socket) {
        flush(this.#socket);
        this.#socket.end();
      }
      this.ended();
    }
  }

  #beats() {
    if (!this.#socket || this.#beat) return;
    this.#beat = NOBODYS.runInAsyncScope(setInterval, null, () => this.#send(KIND.BEAT, 0), this.#socket.beatMs);
  }

  // Frames of one turn of the event loop leave together: a system call costs more than a frame.
  #send(kind, op, text = '', body = EMPTY) {
    const socket = this.#socket;
    if (!socket) return;
    if (socket.frames.isEmpty) setImmediate(flush, socket);
    socket.frames.put(kind, op, text, body);
  }

  // ---- connecting ------------------------------------------------------------------------------

  async #open() {
    if (this.#opening) return;
    this.#opening = true;
    this.#trouble ??= Date.now();
    const until = this.#trouble + this.timeout;
    while (!this.#socket && this.#count > 0) {
      try {
        await this.#greet(until);
      } catch (error) {
        if (error instanceof Fault || Date.now() + AGAIN_MS >= until) {
          this.#giveUp(error);
          break;
        }
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
    this.#opening = false;
  }

  /** Connects, and waits for WELCOME. Rejects with Fault where this client is turned away. */
  #greet(until) {
    return new Promise((resolve, reject) => {
      const onread = { buffer: Buffer.allocUnsafeSlow(READ_SIZE), callback: (size, bytes) => read(bytes.subarray(0, size)) };
      const socket = net.createConnection({ path: this.#path, onread });
      const reader = new Reader();
      socket.frames = new Writer();
      const timer = setTimeout(() => fail(new Error('no WELCOME came')), until - Date.now()).unref();
      const fail = (error) => {
        clearTimeout(timer);
        socket.destroy();
        if (this.#socket === socket) this.#broken(error);
        else reject(error);
      };
      socket.on('error', (error) => {
        if (this.#socket !== socket) fail(error); // otherwise `close` says it
      });
      socket.on('close', () => {
        if (this.#socket === socket) this.#gone();
        else fail(new Error('the door closed the connection'));
      });
      // The door may have said already why it turns this client away: that is read first.
      socket.once('connect', () => setImmediate(() => {
        const hello = { hapax: 1, client: `node/${version}`, pid: process.pid };
        socket.frames.put(KIND.HELLO, 0, JSON.stringify(hello));
        flush(socket);
      }));
      const read = (bytes) => {
        try {
          for (const frame of reader.take(bytes)) {
            const fault = frame.op === 0 && frame.kind === KIND.FAULT ? faultOf(frame.meta) : undefined;
            if (this.#socket !== socket && fault?.error === 'unavailable') throw new Error(fault.message);
            if (fault) throw fault;
            if (this.#socket === socket) {
              this.#frame(frame);
            } else if (frame.kind === KIND.WELCOME) {
              this.#welcome(socket, frame.meta);
              clearTimeout(timer);
              resolve();
            }
          }
        } catch (error) {
          fail(error);
        }
        return true;
      };
    });
  }

  #welcome(socket, meta) {
    if (meta.version !== 1) {
      const text = `the door speaks version ${meta.version}, and this package version 1`;
      throw new Fault(text, { error: 'unsupported' });
    }
    this.#socket = socket;
    this.#greeted = Date.now();
    socket.beatMs = meta.beat_ms;
    if (this.#count === 0) this.#rest();
    else this.#beats();
    for (const call of this.#inHand()) this.#again(call);
    // Not before: the door would end an operation whose steps it does not know yet.
    for (const call of this.#inHand()) this.#ended(call);
  }

  // The connection is over; calls in hand go on at the next one. A door that ends again and again
  // without a word about any call does not get the whole time again.
  #gone() {
    this.#socket = null;
    clearInterval(this.#beat);
    this.#beat = null;
    if (Date.now() - this.#greeted > this.timeout) this.#trouble = undefined;
    if (this.#count > 0) this.#open();
  }

  // One of the two broke the protocol: another connection would repeat that.
  #broken(error) {
    this.#socket = null;
    clearInterval(this.#beat);
    this.#beat = null;
    this.#giveUp(error instanceof Fault ? error : new Fault(error.message, { error: 'invalid' }));
  }

  #giveUp(cause) {
    this.#trouble = undefined;
    for (const call of this.#inHand()) {
      if (call.told) {
        this.#leave(call, cause);
      } else {
        const text = `the door at ${this.address} cannot be had: ${cause.message}; nothing ran`;
        this.#conclude(call, undefined, cause instanceof Fault ? cause : new StoreDown(text, { cause }));
      }
    }
  }

  // What a new connection is told of a call, but for its end.
  #again(call) {
    if (call.over) return;
    if (call.cancelled && !call.told) {
      this.#conclude(call, undefined, call.cancelled.reason);
    } else if (!call.told) {
      this.#send(KIND.BEGIN, call.number, call.text, call.body);
    } else if (call.told.ticket) {
      const { as, message, request, reconciles, in: outer } = call.meta;
      const meta = { ticket: call.told.ticket, in: outer, reconciles, as, message };
      if (request) meta.request = { ...request, headers: undefined };
      this.#send(KIND.RESUME, call.number, JSON.stringify(meta));
    } else {
      call.alone = true;
    }
  }

  // No ANSWER will come to a call that runs: its hook is told, and its caller once the hook ended.
  #leave(call, cause) {
    if (call.told.ticket) call.lose(new ClaimLost('the door is gone', { cause }));
    call.over = new Indeterminate(
      `the operation's result is not known: ${cause.message}; ask again with the same key`, { cause });
    this.#ended(call);
  }

  #ended(call) {
    if (!call.end || this.#find(call.number) !== call) return;
    if (call.alone || (call.over && !call.told.ticket)) {
      this.#conclude(call, { meta: { answer: 'bypass', own: true, recorded: false }, body: EMPTY });
    } else if (call.over) {
      this.#conclude(call, undefined, call.over);
    } else {
      this.#send(KIND.END, call.number, call.end.text, call.end.body);
    }
  }

  #cancel(call, reason) {
    if (call.told) return call.lose(reason);
    call.cancelled = { reason };
    if (this.#socket) this.#send(KIND.CANCEL, call.number, '{}');
    else this.#conclude(call, undefined, reason);
  }

  // ---- frames ----------------------------------------------------------------------------------

  #frame({ kind, op, meta, body }) {
    this.#trouble = undefined;
    const call = this.#find(op);
    if (!call) return;
    if (kind === KIND.RUN || kind === KIND.RECONCILE) {
      this.#run(call, kind, meta);
    } else if (kind === KIND.ANSWER) {
      if (call.cancelled) this.#conclude(call, undefined, call.cancelled.reason);
      else this.#conclude(call, { meta, body });
    } else if (kind === KIND.LOST) {
      call.lose(new ClaimLost('the claim is lost: another attempt may be running'));
    } else if (kind === KIND.FAULT) {
      this.#fault(call, meta);
    }
  }

  #fault(call, meta) {
    const fault = faultOf(meta);
    const { kind, error } = meta;
    const passes = error === 'unavailable' || error === 'nomem'; // the door ends, or has no room
    if (kind === KIND.RESUME || (passes && call.told)) {
      this.#leave(call, fault);
    } else if (kind === KIND.BEGIN && passes) {
      const text = `${fault.message}; nothing ran`;
      this.#conclude(call, undefined, new StoreDown(text, { cause: fault, code: 'store_down', error }));
    } else if (kind === KIND.BEGIN || kind === KIND.END) {
      this.#conclude(call, undefined, fault);
    }
  }

  async #run(call, kind, told) {
    call.told = told;
    call.text = call.body = undefined; // BEGIN is not sent again
    call.end = undefined;
    const hook = kind === KIND.RUN ? call.hooks.run : call.hooks.reconcile;
    // Where the call was given up. An earlier attempt, of which RECONCILE asks, may have had its effect.
    let end = { meta: { class: kind === KIND.RUN ? 'not_run' : 'unknown' } };
    try {
      if (!call.cancelled) end = await call.runInAsyncScope(hook, call.hooks, told, call);
      // A body over every limit is not kept: its caller gets it, and repeats get Gone.
      if (end.body?.length > OUTCOME_MAX) end = { meta: { ...end.meta, body_kept: false } };
      call.end = { text: JSON.stringify(end.meta), body: end.body ?? EMPTY };
      if (!fits(call.end.text, call.end.body)) call.end = UNKNOWN;
    } catch (error) { // it may have run, and how it ended cannot be said
      call.cancelled = { reason: error };
      call.end = UNKNOWN;
    }
    this.#ended(call);
  }
}

function flush(socket) {
  if (!socket.writable) return;
  socket.cork();
  for (const part of socket.frames.take()) socket.write(part);
  socket.uncork();
}

function faultOf({ error, text }) {
  return new Fault(text ?? `the door refused a frame: ${error}`, { error });
}

module.exports = { Door };
