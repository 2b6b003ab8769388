// SPDX-License-Identifier: Apache-2.0
// Fastify: a preHandler hook. fastify.d.ts is the manual.
'use strict';

const { guard } = require('./http.js');

function idempotent(hapax, options = {}) {
  return function preHandler(request, reply, done) {
    const reply0 = ({ status, headers, body }) => {
      reply.code(status);
      for (const [name, value] of headers) reply.header(name, value);
      reply.send(body);
    };
    const at = { req: request.raw, res: reply.raw, subject: request, parsed: request.body };
    guard(hapax, options, at, { run: () => done(), reply: reply0 }).catch(done);
  };
}

module.exports = { idempotent };
