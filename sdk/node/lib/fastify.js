// SPDX-License-Identifier: Apache-2.0
// Fastify: a preHandler hook. fastify.d.ts is the manual.
'use strict';

const { guard, send } = require('./http.js');

function idempotent(hapax, options = {}) {
  return function preHandler(request, reply, done) {
    // An answer is sent as it was stored. Other hooks would change it a second time.
    const answer = (stored) => {
      reply.hijack();
      for (const [name, value] of Object.entries(reply.getHeaders())) reply.raw.setHeader(name, value);
      send(reply.raw, stored);
    };
    const at = { req: request.raw, res: reply.raw, subject: request, parsed: request.body };
    guard(hapax, options, at, { run: () => done(), reply: answer }).catch(done);
  };
}

module.exports = { idempotent };
