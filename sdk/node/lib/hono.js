// SPDX-License-Identifier: Apache-2.0
// Hono, and whatever else has a fetch Request and Response. hono.d.ts is the manual.
'use strict';

const { askedOf, isKeyed, isOperation, problemOf } = require('./http.js');

function idempotent(hapax, options = {}) {
  return async (c, next) => {
    const { req } = c;
    if (!isOperation(req.method, options)) return next();
    const set = { ...options };
    for (const [name, value] of askedOf(options)) set[name] = await value(c);
    const url = new URL(req.url);
    if (isKeyed(set, req.header('idempotency-key'))) set.body = Buffer.from(await req.arrayBuffer());
    set.request = {
      method: req.method, host: req.header('host') ?? url.host, uri: url.pathname + url.search,
      headers: [...req.raw.headers],
    };
    let answer;
    let ran = false;
    try {
      answer = await hapax.http(set, async (op) => {
        ran = true;
        c.set('hapax', op);
        await next();
        const { status, headers } = c.res;
        if (op.id === undefined) return { status, headers: [], body: Buffer.alloc(0), sent: true };
        try {
          return { status, headers: [...headers], body: Buffer.from(await c.res.arrayBuffer()) };
        } catch (error) {
          return { error: error ?? new Error('the response was cut off') };
        }
      });
    } catch (error) {
      answer = problemOf(error, ran);
      if (!answer) throw error;
    }
    if (answer.sent) return undefined;
    const { status, headers, body } = answer;
    const response = new Response([101, 204, 205, 304].includes(status) ? null : body, { status });
    for (const [name, value] of headers) response.headers.append(name, value);
    response.headers.delete('content-length');
    c.res = undefined; // otherwise Hono keeps the headers of what it had
    c.res = response;
    return undefined;
  };
}

module.exports = { idempotent };
