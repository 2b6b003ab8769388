// SPDX-License-Identifier: Apache-2.0
// The connection to `hapax door`, and the calls on it, by docs/door.md. No decision about an
// operation is made here: what a call's hooks gave is sent, and the door's answer is handed over.
'use strict';

const net = require('node:net');
const { randomBytes } = require('node:crypto');
const { KIND, EMPTY, FRAME_MAX, OUTCOME_MAX, encode, fits, Reader } = require('./frame.js');
const { ClaimLost, Fault, Indeterminate, StoreDown, TooLarge } = require('./errors.js');
const { version } = require('../package.json');

const AGAIN_MS = 50; // between two attempts to connect
const CUT = { status: 502 }; // the response of HTTP whose class is unknown

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
 * RUN and RECONCILE, never reject, and give {meta, body} for END.
 */
class Call {
  #lost;
  told = undefined; // the members of the last RUN or RECONCILE
  end = undefined; // the frame END, once the hook has ended
  over = undefined; // why this call will get no ANSWER, once its hook has ended

  constructor(meta, body, hooks, outer) {
    this.meta = { ...meta, nonce: newNonce(), ...(outer && { in: outer.number }) };
    this.body = body;
    this.hooks = hooks;
    this.answer = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
  }

  /** Aborted when the claim is lost. Few handlers ask, so it is made for those that do. */
  get lost() {
    return (this.#lost ??= new AbortController());
  }
}

class Door {
  #path;
  #calls = new Map(); // by op; a step stands behind its operation
  #last = 0; // the op given last
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

  /** Sends BEGIN, drives the hooks; returns {meta, body} of ANSWER. Rejects with a HapaxError. */
  async call(meta, body, hooks, { outer, signal } = {}) {
    signal?.throwIfAborted();
    if (this.#closed && !outer) throw new StoreDown('this connection to the door is closed');
    const call = new Call(meta, body, hooks, outer);
    do this.#last = (this.#last % 0xffffffff) + 1;
    while (this.#calls.has(this.#last));
    call.number = this.#last;
    const frame = encode(KIND.BEGIN, call.number, call.meta, body);
    if (!fits(frame)) throw new TooLarge(`the request is over ${FRAME_MAX} bytes, or its members over 1 MiB`);
    this.#calls.set(call.number, call);
    const cancel = () => this.#cancel(call, signal.reason);
    signal?.addEventListener('abort', cancel);
    try {
      if (this.#calls.size === 1) this.#wake();
      if (this.#socket) this.#write(frame);
      else this.#open();
      return await call.answer;
    } finally {
      signal?.removeEventListener('abort', cancel);
      this.#calls.delete(call.number);
      if (this.#calls.size === 0) this.#rest();
    }
  }

  /** Takes no more operations; resolves when those in hand are over and the connection is. */
  close() {
    this.#closed ??= new Promise((resolve) => { this.ended = resolve; });
    if (this.#calls.size === 0) this.#rest();
    return this.#closed;
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
      this.#socket?.end();
      this.ended();
    }
  }

  #beats() {
    if (!this.#socket || this.#beat) return;
    this.#beat = setInterval(() => this.#send(KIND.BEAT, 0), this.#socket.beatMs);
  }

  #send(kind, op, meta, body) {
    if (this.#socket) this.#write(encode(kind, op, meta, body));
  }

  // Frames of one turn of the event loop leave together: a system call costs more than a frame.
  #write(parts) {
    const socket = this.#socket;
    if (socket.writableCorked === 0) {
      socket.cork();
      setImmediate(() => socket.uncork());
    }
    for (const part of parts) if (part.length > 0) socket.write(part);
  }

  // ---- connecting ------------------------------------------------------------------------------

  async #open() {
    if (this.#opening) return;
    this.#opening = true;
    this.#trouble ??= Date.now();
    const until = this.#trouble + this.timeout;
    while (!this.#socket && this.#calls.size > 0) {
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
      const socket = net.createConnection({ path: this.#path });
      const reader = new Reader();
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
        if (socket.writable) for (const part of encode(KIND.HELLO, 0, hello)) socket.write(part);
      }));
      socket.on('data', (bytes) => {
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
      });
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
    if (this.#calls.size === 0) this.#rest();
    else this.#beats();
    for (const call of this.#calls.values()) this.#again(call);
  }

  // The connection is over; calls in hand go on at the next one. A door that ends again and again
  // without a word about any call does not get the whole time again.
  #gone() {
    this.#socket = null;
    clearInterval(this.#beat);
    this.#beat = null;
    if (Date.now() - this.#greeted > this.timeout) this.#trouble = undefined;
    if (this.#calls.size > 0) this.#open();
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
    for (const call of this.#calls.values()) {
      if (call.told) {
        this.#leave(call, cause);
      } else {
        const text = `the door at ${this.address} cannot be had: ${cause.message}; nothing ran`;
        call.reject(cause instanceof Fault ? cause : new StoreDown(text, { cause }));
      }
    }
  }

  // What a call is told on a new connection.
  #again(call) {
    if (call.over) return;
    if (call.cancelled && !call.told) {
      call.reject(call.cancelled.reason);
    } else if (!call.told) {
      this.#send(KIND.BEGIN, call.number, call.meta, call.body);
    } else if (call.told.ticket) {
      const { as, message, request, reconciles, in: outer } = call.meta;
      const meta = { ticket: call.told.ticket, in: outer, reconciles, as, message };
      if (request) meta.request = { ...request, headers: undefined };
      this.#send(KIND.RESUME, call.number, meta);
      if (call.end) this.#write(call.end);
    } else {
      call.alone = true; // unprotected: nothing waits for its END
      this.#ended(call);
    }
  }

  // No ANSWER will come to a call that runs: its hook is told, and its caller once the hook ended.
  #leave(call, cause) {
    if (call.told.ticket) call.lost.abort(new ClaimLost('the door is gone', { cause }));
    call.over = new Indeterminate(
      `the operation's result is not known: ${cause.message}; ask again with the same key`, { cause });
    this.#ended(call);
  }

  #ended(call) {
    if (!call.end) return;
    if (call.alone || (call.over && !call.told.ticket)) {
      call.resolve({ meta: { answer: 'bypass', own: true, recorded: false }, body: EMPTY });
    } else if (call.over) {
      call.reject(call.over);
    } else if (this.#socket) {
      this.#write(call.end);
    }
  }

  #cancel(call, reason) {
    if (call.told) return call.lost.abort(reason);
    call.cancelled = { reason };
    if (this.#socket) this.#send(KIND.CANCEL, call.number, {});
    else call.reject(reason);
  }

  // ---- frames ----------------------------------------------------------------------------------

  #frame({ kind, op, meta, body }) {
    this.#trouble = undefined;
    const call = this.#calls.get(op);
    if (!call) return;
    if (kind === KIND.RUN || kind === KIND.RECONCILE) {
      this.#run(call, kind, meta);
    } else if (kind === KIND.ANSWER) {
      if (call.cancelled) call.reject(call.cancelled.reason);
      else call.resolve({ meta, body });
    } else if (kind === KIND.LOST) {
      call.lost.abort(new ClaimLost('the claim is lost: another attempt may be running'));
    } else if (kind === KIND.FAULT) {
      this.#fault(call, meta);
    }
  }

  #fault(call, meta) {
    const fault = faultOf(meta);
    if (meta.kind === KIND.RESUME) this.#leave(call, fault);
    else if (meta.kind === KIND.BEGIN || meta.kind === KIND.END) call.reject(fault);
  }

  async #run(call, kind, told) {
    call.told = told;
    call.body = undefined; // BEGIN is not sent again
    call.end = undefined;
    const hook = kind === KIND.RUN ? call.hooks.run : call.hooks.reconcile;
    let end = { meta: { class: 'not_run' } };
    if (!call.cancelled) end = await hook(told, call);
    // A body over every limit is not kept: its caller gets it, and repeats get Gone.
    if (end.body?.length > OUTCOME_MAX) end = { meta: { ...end.meta, body_kept: false } };
    call.end = encode(KIND.END, call.number, end.meta, end.body);
    if (!fits(call.end)) {
      call.end = encode(KIND.END, call.number, call.meta.as === 'http' ? CUT : { class: 'unknown' });
    }
    this.#ended(call);
  }
}

function faultOf({ error, text }) {
  return new Fault(text ?? `the door refused a frame: ${error}`, { error });
}

module.exports = { CUT, Door };
