'use strict';
// A service of each framework with the same routes: app.js FRAMEWORK, and $HAPAX_DOOR. Prints its port. A line on stdin
// lets what waits at /slow go on.
const { randomBytes } = require('node:crypto');
const { once } = require('node:events');
const { createGzip } = require('node:zlib');
const { StoreDown, connect } = require('../../../sdk/node');

const hx = connect({ timeout: Number(process.env.HAPAX_TIMEOUT ?? 20000) });
const OPTIONS = {
  scope: (request) => header(request, 'x-scope') ?? 'app',
  onExpired: (request) => header(request, 'x-on-expired'),
  lease: process.env.HAPAX_LEASE,
  ...(process.env.HAPAX_RECONCILE && { reconcile: () => ({ happened: false }) }),
};
const effects = {};
let waiting = [];

function header(request, name) {
  const headers = request.req?.raw?.headers ?? request.headers;
  return (headers.get ? headers.get(name) : headers[name]) ?? undefined;
}

process.stdin.on('data', () => {
  for (const go of waiting.splice(0)) go();
});

/** What each route does: the number of its effect in, {status, headers, body} out. */
async function act(path, key, op, body) {
  effects[`${path} ${key}`] = (effects[`${path} ${key}`] ?? 0) + 1;
  const number = effects[`${path} ${key}`];
  const route = path.split('?')[0];
  if (route === '/slow') await new Promise((resolve) => { waiting.push(resolve); });
  const told = { number, body, key: op?.key, attempt: op?.attempt, fenced: op?.fence > 0 };
  const json = { 'Content-Type': 'application/json', 'X-Number': String(number), 'Set-Cookie': ['a=1', 'b=2'] };
  switch (route) {
    case '/fail': return { status: 500, headers: json, body: Buffer.from(JSON.stringify(told)) };
    case '/busy': return { status: 503, headers: { ...json, 'Retry-After': '1' }, body: Buffer.from('busy') };
    case '/empty': return { status: 204, headers: { 'X-Number': String(number) }, body: Buffer.alloc(0) };
    case '/none': return { status: 204, headers: { 'Content-Length': '4' }, body: Buffer.from('none') };
    case '/unchanged': return { status: 304, headers: { 'Content-Length': '4' }, body: Buffer.from('none') };
    case '/bytes': return { status: 200, headers: { 'Content-Type': 'application/x', 'X-Latin': 'caf\u00e9' }, body: Buffer.from([0xff, 0, number]) };
    case '/large': return { status: 200, headers: { 'Content-Type': 'application/x' }, body: Buffer.alloc(2 << 20, number) };
    case '/left':
    case '/huge': return { status: 200, headers: { 'Content-Type': 'application/x' }, body: randomBytes(17 << 20) };
    case '/odd': return { status: 200, headers: Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`X-${i}`, 'x'])), body: Buffer.from('odd') };
    case '/throw': throw new Error('it broke');
    default: return { status: 201, headers: { ...json, Location: `/payments/${number}` }, body: Buffer.from(JSON.stringify(told)) };
  }
}

const keyOf = (headers) => headers['idempotency-key'] ?? '-';
const textOf = (body) => (Buffer.isBuffer(body) ? body.toString() : body);

/**
 * On Node's own response: /stream writes in parts, /destroy breaks off, /nested does so by what another operation said, /part
 * throws after a part, /late goes on after its end, /left begins when its client is gone.
 */
async function write(path, req, res, body) {
  if (path === '/left' && !res.destroyed) await once(res, 'close');
  const { status, headers, body: bytes } = await act(path, keyOf(req.headers), req.hapax, textOf(body));
  if (path === '/destroy') return void res.destroy();
  if (path === '/nested') return void res.destroy(new StoreDown('the mail'));
  if (path === '/part') {
    res.write('a part');
    throw new Error('it broke');
  }
  if (path !== '/stream') res.writeHead(status, headers).end(bytes);
  if (path === '/late') {
    res.statusCode = 500;
    res.setHeader('X-Number', 'late').setHeader('X-Late', 'yes').removeHeader('Location');
  }
  if (path !== '/stream') return;
  res.statusCode = status;
  res.statusMessage = 'In Parts';
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
  for (const byte of bytes) res.write(Buffer.of(byte));
  res.end();
}

/** In the shape of express-session and on-headers: `end` acts once and later, and a header is set as late as can be. */
function session(req, res, next) {
  const { writeHead, end } = res;
  let [heads, ended] = [0, false];
  res.writeHead = (...words) => {
    res.setHeader('X-Heads', String(heads += 1));
    return writeHead.apply(res, words);
  };
  res.end = (...words) => {
    if (!ended) setImmediate(() => end.apply(res, words));
    ended = true;
    return res;
  };
  next();
}

/** In the shape of compression: all that is written goes through a stream. */
function zip(req, res, next) {
  if (!req.headers['x-zip']) return next();
  const { write, end } = res;
  const stream = createGzip({ level: 1 }).on('data', (part) => write.call(res, part)).on('end', () => end.call(res));
  let ended = false;
  res.setHeader('Content-Encoding', 'gzip');
  res.write = (chunk, encoding) => ended || stream.write(chunk, encoding);
  res.end = (chunk, encoding) => {
    if (!ended) stream.end(chunk, encoding);
    ended = true;
    return res;
  };
  return next();
}

const frameworks = {
  async express() {
    const express = require('express');
    const { idempotent } = require('../../../sdk/node/lib/express.js');
    const app = express();
    app.disable('x-powered-by');
    app.use((req, res, next) => { res.setHeader('X-Before', 'yes'); next(); });
    // Before the parsers, behind them, and both paths see the same body.
    app.use(idempotent(hx, OPTIONS));
    app.use(express.json(), express.text({ type: 'text/*' }), express.raw({ type: 'application/x' }));
    app.get('/effects', (req, res) => res.json(effects));
    app.post('/json', async (req, res) => res.status(201).json(await told(req)));
    app.use((req, res, next) => write(req.url, req, res, req.body).catch(next));
    app.use((error, req, res, next) => (res.headersSent ? next(error) : res.status(500).send('it threw')));
    return listen(app);
  },

  // The middleware stands behind the parsers, and before others that wrap the response.
  async parsed() {
    const express = require('express');
    const { idempotent } = require('../../../sdk/node/lib/express.js');
    const app = express();
    app.disable('x-powered-by');
    app.use((req, res, next) => { res.setHeader('X-Before', 'yes'); next(); });
    app.use(express.json(), express.text({ type: 'text/*' }), express.raw({ type: 'application/x' }));
    app.use(idempotent(hx, OPTIONS), session, zip);
    app.get('/effects', (req, res) => res.json(effects));
    app.post('/json', async (req, res) => res.status(201).json(await told(req)));
    app.use((req, res, next) => write(req.url, req, res, req.body).catch(next));
    app.use((error, req, res, next) => (res.headersSent ? next(error) : res.status(500).send('it threw')));
    return listen(app);
  },

  async fastify() {
    const { idempotent } = require('../../../sdk/node/lib/fastify.js');
    const app = require('fastify')();
    app.addHook('onRequest', async (request, reply) => { reply.header('X-Before', 'yes'); });
    app.addContentTypeParser('application/x', { parseAs: 'buffer' }, (request, body, done) => done(null, body));
    app.setErrorHandler((error, request, reply) => reply.code(500).send('it threw'));
    app.get('/effects', async () => effects);
    const preHandler = idempotent(hx, OPTIONS);
    app.post('/json', { preHandler }, async (request, reply) => reply.code(201).send(await told(request)));
    app.post('/*', { preHandler }, async (request, reply) => {
      const path = request.url;
      const { status, headers, body } = await act(path, keyOf(request.headers), request.hapax, textOf(request.body));
      if (path === '/destroy') {
        reply.hijack();
        return void reply.raw.destroy();
      }
      reply.code(status).headers(headers);
      return reply.send(path === '/stream' ? require('node:stream').Readable.from(Array.from(body, (b) => Buffer.of(b))) : body);
    });
    await app.listen({ port: 0, host: '127.0.0.1' });
    return app.server.address().port;
  },

  async nest() {
    require('reflect-metadata');
    const { Controller, Get, Module, Post, Req, Res } = require('@nestjs/common');
    const { NestFactory } = require('@nestjs/core');
    const { Idempotent, IdempotentInterceptor } = require('../../../sdk/node/lib/nest.js');
    const express = require('express');
    class App {
      effects() { return effects; }

      json(req) { return told(req); }

      all(req, res) { return write(req.url, req, res, req.body).catch(() => res.status(500).send('it threw')); }
    }
    const mark = (name, ...marks) => {
      for (const one of marks) one(App.prototype, name, Object.getOwnPropertyDescriptor(App.prototype, name));
    };
    Req()(App.prototype, 'json', 0);
    Req()(App.prototype, 'all', 0);
    Res()(App.prototype, 'all', 1);
    mark('effects', Get('effects'));
    mark('json', Post('json'), Idempotent({ scope: OPTIONS.scope }));
    mark('all', Post('*path'), Idempotent(OPTIONS));
    Controller()(App);
    class Root {}
    Module({ controllers: [App] })(Root);
    const app = await NestFactory.create(Root, { logger: ['error'], bodyParser: false });
    app.getHttpAdapter().getInstance().disable('x-powered-by');
    app.use((req, res, next) => { res.setHeader('X-Before', 'yes'); next(); });
    app.use(express.json(), express.text({ type: 'text/*' }), express.raw({ type: 'application/x' }));
    app.useGlobalInterceptors(new IdempotentInterceptor(hx, OPTIONS));
    await app.listen(0, '127.0.0.1');
    return app.getHttpServer().address().port;
  },

  async hono() {
    const { Hono } = require('hono');
    const { idempotent } = require('../../../sdk/node/lib/hono.js');
    const app = new Hono();
    app.use(async (c, next) => { await next(); c.header('X-Before', 'yes'); });
    app.onError((error, c) => c.text('it threw', 500));
    app.get('/effects', (c) => c.json(effects));
    app.use(idempotent(hx, OPTIONS));
    app.post('/json', async (c) => c.json(await told({ headers: c.req.header(), hapax: c.get('hapax'), body: await c.req.json() }), 201));
    app.post('/*', async (c) => {
      const path = new URL(c.req.url).pathname + new URL(c.req.url).search;
      const { status, headers, body } = await act(path, keyOf(c.req.header()), c.get('hapax'), await c.req.text());
      const broken = new ReadableStream({ pull: (at) => at.error(new StoreDown('the mail')) });
      const given = path === '/nested' ? broken : body;
      const response = new Response([204, 304].includes(status) ? null : given, { status });
      for (const [name, value] of Object.entries(headers)) for (const one of [value].flat()) response.headers.append(name, one);
      return response;
    });
    return listen(async (req, res) => {
      const parts = [];
      for await (const part of req) parts.push(part);
      const body = parts.length > 0 ? Buffer.concat(parts) : undefined;
      const headers = new Headers();
      for (let i = 0; i < req.rawHeaders.length; i += 2) headers.append(req.rawHeaders[i], req.rawHeaders[i + 1]);
      const asked = new Request(`http://${req.headers.host}${req.url}`, { method: req.method, headers, body });
      const response = await app.fetch(asked);
      res.writeHead(response.status, [...response.headers].flat()).end(Buffer.from(await response.arrayBuffer()));
    });
  },
};

/** The route that is written as the framework's users write theirs. */
async function told(request) {
  const { body } = await act('/json', keyOf(request.headers), request.hapax, request.body);
  return JSON.parse(body);
}

async function listen(app) {
  const server = require('node:http').createServer(app);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server.address().port;
}

frameworks[process.argv[2]]().then(console.log);
