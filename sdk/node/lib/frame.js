// SPDX-License-Identifier: Apache-2.0
// Frames of the door's protocol (docs/door.md): bytes to frames and back, and nothing of what they
// mean.
'use strict';

const KIND = {
  HELLO: 1, WELCOME: 2, BEGIN: 3, RESUME: 4, RUN: 5, RECONCILE: 6, END: 7, ANSWER: 8, BEAT: 9,
  LOST: 10, CANCEL: 11, FAULT: 12,
};
const HEAD = 13; // length, kind, op, meta_len
const FRAME_MAX = 17 << 20; // by its length field, of which the first 4 bytes are no part
const META_MAX = (1 << 20) - (8 << 10); // of what the door takes: 1 MiB, with room for the ticket of a RESUME
const SHARED = 64 << 10; // of a buffer for frames
const COPIED = 8 << 10; // of a body that is copied into it
const OUTCOME_MAX = 16 << 20; // of an outcome's body
const EMPTY = Buffer.alloc(0);

/** Whether the door takes a frame of these; the connection would be over otherwise. */
function fits(text, body) {
  if (3 * text.length + body.length < META_MAX) return true;
  const size = Buffer.byteLength(text);
  return size <= META_MAX && HEAD - 4 + size + body.length <= FRAME_MAX;
}

/** Takes frames, and gives the bytes of all of them. They share buffers: one for each costs more than its bytes. */
class Writer {
  #bytes = EMPTY;
  #from = 0; // where what was put and not taken begins, and ends
  #to = 0;
  #parts = []; // and what is before that

  get isEmpty() {
    return this.#from === this.#to && this.#parts.length === 0;
  }

  /** `text` is JSON, or empty. The body is kept as it is where it is large. */
  put(kind, op, text, body = EMPTY) {
    const copied = body.length <= COPIED ? body.length : 0;
    const most = HEAD + 3 * text.length + copied;
    if (this.#to + most > this.#bytes.length) this.#renew(most);
    const bytes = this.#bytes;
    const head = this.#to;
    const size = text === '' ? 0 : bytes.write(text, head + HEAD);
    bytes.writeUInt32BE(HEAD - 4 + size + body.length, head);
    bytes.writeUInt8(kind, head + 4);
    bytes.writeUInt32BE(op, head + 5);
    bytes.writeUInt32BE(size, head + 9);
    this.#to = head + HEAD + size;
    if (copied > 0) bytes.set(body, this.#to);
    this.#to += copied;
    if (copied < body.length) {
      this.#part();
      this.#parts.push(body);
    }
    return this;
  }

  /** Buffers, which are not written to again. */
  take() {
    this.#part();
    return this.#parts.splice(0);
  }

  #part() {
    if (this.#from < this.#to) this.#parts.push(this.#bytes.subarray(this.#from, this.#to));
    this.#from = this.#to;
  }

  #renew(size) {
    this.#part();
    this.#bytes = Buffer.allocUnsafeSlow(Math.max(size, SHARED));
    this.#from = this.#to = 0;
  }
}

/** Takes the bytes of a stream in any pieces, and gives the frames that are whole. */
class Reader {
  #pieces = []; // of a frame that is not whole
  #size = 0;
  #wanted = HEAD;

  /** Returns a list of {kind, op, meta, body}. Keeps nothing of the piece. Throws where the bytes are no frames. */
  take(piece) {
    let bytes = piece;
    if (this.#pieces.length > 0) {
      this.#pieces.push(Buffer.from(piece));
      this.#size += piece.length;
      if (this.#size < this.#wanted) return [];
      bytes = Buffer.concat(this.#pieces.splice(0));
    }
    const frames = [];
    let at = 0;
    this.#wanted = HEAD;
    while (bytes.length - at >= HEAD) {
      const length = bytes.readUInt32BE(at);
      const metaLength = bytes.readUInt32BE(at + 9);
      if (length > FRAME_MAX || metaLength > length - (HEAD - 4)) {
        throw new Error(`the door sent no frame: length ${length}, meta_len ${metaLength}`);
      }
      this.#wanted = 4 + length;
      if (bytes.length - at < 4 + length) break;
      frames.push(decode(bytes, at, at + HEAD + metaLength, at + 4 + length));
      at += 4 + length;
      this.#wanted = HEAD;
    }
    this.#size = bytes.length - at;
    if (this.#size > 0) this.#pieces.push(Buffer.from(bytes.subarray(at)));
    return frames;
  }
}

function decode(bytes, at, bodyAt, end) {
  const text = bytes.toString('utf8', at + HEAD, bodyAt);
  return {
    kind: bytes.readUInt8(at + 4), op: bytes.readUInt32BE(at + 5), meta: text === '' ? {} : JSON.parse(text),
    body: bodyAt === end ? EMPTY : Uint8Array.prototype.slice.call(bytes, bodyAt, end),
  };
}

/** A TEXT of bytes or a string, and the bytes of a TEXT. */
function text(value) {
  if (value instanceof Uint8Array) return { base64: Buffer.from(value).toString('base64') };
  return value === undefined || value === null ? undefined : String(value);
}

function bytesOf(text) {
  return typeof text === 'string' ? Buffer.from(text) : Buffer.from(text.base64, 'base64');
}

module.exports = { KIND, FRAME_MAX, OUTCOME_MAX, EMPTY, fits, Writer, Reader, text, bytesOf };
