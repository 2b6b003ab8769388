'use strict';
// A played door: a server on a socket that says what the test tells it to. It knows frames, and
// nothing of operations; the real door is met in the other files.
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { KIND, Reader, Writer } = require('../../../sdk/node/lib/frame.js');

const WELCOME = {
  version: 1, server: 'played', beat_ms: 10000, lease_ms: 30000, body_max: 1 << 24, frame_max: 17825792, ops_max: 4096,
};
const NAME = Object.fromEntries(Object.entries(KIND).map(([name, kind]) => [kind, name]));

/** The bytes of a frame; `meta` is an object, or undefined. */
function frameOf(kind, op, meta, body) {
  return Buffer.concat(new Writer().put(kind, op, meta === undefined ? '' : JSON.stringify(meta), body).take());
}

class PlayedDoor {
  constructor({ welcome = WELCOME, bytewise = false } = {}) {
    Object.assign(this, { welcome, bytewise, frames: [], waiting: [], sockets: [], connections: 0 });
    this.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'hapax-played-'));
    this.path = path.join(this.folder, 'door.sock');
    this.address = `unix:${this.path}`;
  }

  listen() {
    this.server = net.createServer((socket) => this.#connected(socket));
    return new Promise((resolve) => this.server.listen(this.path, resolve));
  }

  #connected(socket) {
    this.connections += 1;
    this.sockets.push(socket);
    const reader = new Reader();
    socket.on('error', () => {});
    if (this.turnAway) return socket.end(frameOf(KIND.FAULT, 0, this.turnAway));
    socket.on('data', (bytes) => {
      for (const frame of reader.take(bytes)) {
        if (frame.kind === KIND.HELLO) this.say('WELCOME', 0, this.welcome);
        else this.#heard({ ...frame, name: NAME[frame.kind], connection: this.connections });
      }
    });
  }

  #heard(frame) {
    if (frame.kind === KIND.BEAT) {
      this.beats = (this.beats ?? 0) + 1;
      this.onBeat?.();
      return;
    }
    this.frames.push(frame);
    this.waiting.shift()?.();
  }

  /** The next frame of a client, which must be of this kind. */
  async heard(name) {
    while (this.frames.length === 0) await new Promise((resolve) => this.waiting.push(resolve));
    const frame = this.frames.shift();
    if (frame.name !== name) throw new Error(`${frame.name} came, and not ${name}: ${JSON.stringify(frame.meta)}`);
    return frame;
  }

  say(kind, op, meta, body) {
    const bytes = frameOf(KIND[kind] ?? kind, op, meta, body);
    const socket = this.sockets.at(-1);
    if (!this.bytewise) return socket.write(bytes);
    socket.setNoDelay?.(true);
    for (const byte of bytes) socket.write(Buffer.of(byte));
    return true;
  }

  /** Ends the connections, as a door that is killed does; listens on if `again`. */
  async die(again = true) {
    if (!again) await this.deafen();
    for (const socket of this.sockets.splice(0)) socket.destroy();
  }

  deafen() {
    const closed = new Promise((resolve) => this.server.close(resolve));
    for (const socket of this.sockets) socket.destroy();
    return closed;
  }

  async end() {
    if (this.server?.listening) await this.deafen();
    fs.rmSync(this.folder, { recursive: true, force: true });
  }
}

const RUN = { id: 'ab'.repeat(32), attempt: 1, fence: 1750000000000000, stale: false, key: 'k', ticket: 'T1' };

module.exports = { PlayedDoor, RUN, frameOf };
