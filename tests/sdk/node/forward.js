'use strict';
// What stands in the place of a gate: a service of a framework that hands each request on to an API, behind the
// middleware: forward.js FRAMEWORK, and $HAPAX_DOOR. Prints its port. A line of JSON on stdin is the API's port, and is
// said back.
const http = require('node:http');
const { connect } = require('../../../sdk/node');

let api;
const hx = connect({ timeout: 20000 });
const DROPPED = ['connection', 'date', 'keep-alive', 'transfer-encoding', 'content-length'];

/** What the API answers: {status, headers, body}. */
function asked(method, path, headers, body) {
  return new Promise((resolve, reject) => {
    const { connection, ...kept } = headers;
    void connection;
    const options = { port: api, host: '127.0.0.1', method, path, headers: { ...kept, 'content-length': body.length }, agent: false };
    http.request(options, async (response) => {
      const parts = [];
      for await (const part of response) parts.push(part);
      const pairs = [];
      for (let i = 0; i < response.rawHeaders.length; i += 2) pairs.push(response.rawHeaders.slice(i, i + 2));
      resolve({
        status: response.statusCode, body: Buffer.concat(parts),
        headers: pairs.filter(([name]) => !DROPPED.includes(name.toLowerCase())),
      });
    }).on('error', reject).end(body);
  });
}

async function bytesOf(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

async function forward(req, res) {
  const { status, headers, body } = await asked(req.method, req.originalUrl, req.headers, await bytesOf(req));
  res.writeHead(status, headers.flat());
  for (const byte of body) res.write(Buffer.of(byte));
  res.end();
}

const frameworks = {
  express() {
    const { idempotent } = require('../../../sdk/node/lib/express.js');
    return require('express')().use(idempotent(hx), forward);
  },

  async fastify() {
    const { idempotent } = require('../../../sdk/node/lib/fastify.js');
    const app = require('fastify')();
    app.removeAllContentTypeParsers();
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => done(null, body));
    app.all('/*', { preHandler: idempotent(hx) }, async (request, reply) => {
      const { status, headers, body } = await asked(request.method, request.url, request.headers, request.body ?? Buffer.alloc(0));
      reply.code(status);
      for (const [name, value] of headers) reply.header(name, value);
      return reply.send(body);
    });
    await app.ready();
    return app.routing;
  },

  async nest() {
    require('reflect-metadata');
    const { All, Controller, Module, Req, Res } = require('@nestjs/common');
    const { NestFactory } = require('@nestjs/core');
    const { Idempotent, IdempotentInterceptor } = require('../../../sdk/node/lib/nest.js');
    class Forward {
      all(req, res) { return forward(req, res); }
    }
    Req()(Forward.prototype, 'all', 0);
    Res()(Forward.prototype, 'all', 1);
    All('*path')(Forward.prototype, 'all', Object.getOwnPropertyDescriptor(Forward.prototype, 'all'));
    Controller()(Forward);
    Idempotent()(Forward);
    class Root {}
    Module({ controllers: [Forward] })(Root);
    const app = await NestFactory.create(Root, { logger: ['error'], bodyParser: false });
    app.useGlobalInterceptors(new IdempotentInterceptor(hx));
    await app.init();
    return app.getHttpAdapter().getInstance();
  },

  hono() {
    const { Hono } = require('hono');
    const { idempotent } = require('../../../sdk/node/lib/hono.js');
    const app = new Hono();
    app.use(idempotent(hx));
    app.all('/*', async (c) => {
      const given = Object.fromEntries(c.req.raw.headers);
      const { status, headers, body } = await asked(c.req.method, new URL(c.req.url).pathname, given, Buffer.from(await c.req.arrayBuffer()));
      return new Response(status === 204 ? null : body, { status, headers });
    });
    return async (req, res) => {
      const headers = new Headers();
      for (let i = 0; i < req.rawHeaders.length; i += 2) headers.append(req.rawHeaders[i], req.rawHeaders[i + 1]);
      const body = ['GET', 'HEAD'].includes(req.method) ? undefined : await bytesOf(req);
      const answer = await app.fetch(new Request(`http://${req.headers.host}${req.url}`, { method: req.method, headers, body }));
      res.writeHead(answer.status, [...answer.headers].flat()).end(Buffer.from(await answer.arrayBuffer()));
    };
  },
};

async function main() {
  const server = http.createServer(await frameworks[process.argv[2]]());
  require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
    ({ api } = JSON.parse(line));
    console.log(line);
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
}

main();
