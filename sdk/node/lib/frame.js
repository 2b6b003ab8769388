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
const META_MAX = 1 << 20;
const OUTCOME_MAX = 16 << 20; // of an outcome's body
const EMPTY = Buffer.alloc(0);

/** The parts of a frame, to be written one after the other. `meta` is an object, or undefined. */
function encode(kind, op, meta, body = EMPTY) {
  const text = meta === undefined ? '' : JSON.stringify(meta);
  const length = Buffer.byteLength(text);
  const head = Buffer.allocUnsafe(HEAD + length);
  head.writeUInt32BE(HEAD - 4 + length + body.length, 0);
  head.writeUInt8(kind, 4);
  head.writeUInt32BE(op, 5);
  head.writeUInt32BE(length, 9);
  head.write(text, HEAD);
  return [head, body];
}

/** Whether the door takes a frame of these parts; the connection would be over otherwise. */
function fits([head]) {
  return head.readUInt32BE(0) <= FRAME_MAX && head.readUInt32BE(9) <= META_MAX;
}

/** Takes the bytes of a stream in any pieces, and gives the frames that are whole. */
class Reader {
  #pieces = [];
  #size = 0;

  /** Returns a list of {kind, op, meta, body}. Throws where the bytes are no frames. */
  take(piece) {
    this.#pieces.push(piece);
    this.#size += piece.length;
    const frames = [];
    while (this.#size >= HEAD) {
      if (this.#pieces[0].length < HEAD) this.#join();
      const length = this.#pieces[0].readUInt32BE(0);
      const metaLength = this.#pieces[0].readUInt32BE(9);
      if (length > FRAME_MAX || metaLength > length - (HEAD - 4)) {
        throw new Error(`the door sent no frame: length ${length}, meta_len ${metaLength}`);
      }
      if (this.#size < 4 + length) break;
      if (this.#pieces[0].length < 4 + length) this.#join();
      frames.push(decode(this.#pieces[0].subarray(0, 4 + length), metaLength));
      this.#pieces[0] = this.#pieces[0].subarray(4 + length);
      this.#size -= 4 + length;
    }
    return frames;
  }

  #join() {
    this.#pieces = [Buffer.concat(this.#pieces)];
  }
}

function decode(bytes, metaLength) {
  const text = bytes.toString('utf8', HEAD, HEAD + metaLength);
  const meta = metaLength === 0 ? {} : JSON.parse(text);
  return {
    kind: bytes.readUInt8(4), op: bytes.readUInt32BE(5), meta, body: bytes.subarray(HEAD + metaLength),
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

module.exports = { KIND, FRAME_MAX, OUTCOME_MAX, EMPTY, encode, fits, Reader, text, bytesOf };
