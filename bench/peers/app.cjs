'use strict';
// A service with one way to run each Idempotency-Key once: app.cjs WAY, $PORT, $STORE or $HAPAX_DOOR, and $EFFECTS. Prints its
// port. bench/peers.py starts it.
//
// POST /pay answers at once. POST /hold/NAME does so when the file $EFFECTS/NAME is there, /slow after 20 ms; both write
// the key to $EFFECTS/effects first, which is their effect.
const fs = require('node:fs');
const http = require('node:http');

const [, , way] = process.argv;
const { STORE, EFFECTS } = process.env;
const FILL = 'x'.repeat(170);
const wait = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
let count = 0;

/** The handler: what it gives is its result. */
async function pay(path, key) {
  count += 1;
  const receipt = `${process.pid}-${count}`;
  if (path !== '/pay') {
    fs.appendFileSync(`${EFFECTS}/effects`, `${key}\n`);
    if (path === '/slow') await wait(20);
    else while (!fs.existsSync(`${EFFECTS}/${path.slice(6)}`)) await wait(2);
  }
  return { receipt, fill: FILL };
}

function door() {
  return require('../../sdk/node').connect({ timeout: 60000 });
}

/** node-idempotency has its hooks for Fastify in a package that npm does not have; these call the core as those do. */
async function nodeIdempotency(app) {
  const { Idempotency, IdempotencyError } = require('@node-idempotency/core');
  const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');
  const adapter = new RedisStorageAdapter({ url: STORE });
  await adapter.connect();
  const core = new Idempotency(adapter, {});
  const asked = (request) => ({ headers: request.headers, body: request.body, path: request.url, method: request.method });
  app.addHook('preHandler', async (request, reply) => {
    let found;
    try {
      found = await core.onRequest(asked(request));
    } catch (error) {
      if (!(error instanceof IdempotencyError)) throw error;
      return reply.status(409).send({ error: error.message });
    }
    return found ? reply.status(found.additional.statusCode).header('idempotent-replayed', 'true').send(found.body) : undefined;
  });
  app.addHook('onSend', async (request, reply, payload) => {
    await core.onResponse(asked(request), { additional: { statusCode: reply.statusCode }, body: payload });
  });
}

async function fastify(use) {
  const app = require('fastify')();
  const preHandler = await use(app);
  app.post('/*', preHandler ? { preHandler } : {}, async (request, reply) => {
    reply.code(201);
    return pay(request.url, request.headers['idempotency-key']);
  });
  await app.listen({ port: Number(process.env.PORT ?? 0), host: '127.0.0.1' });
  return app.server;
}

async function express(use) {
  const app = require('express')();
  app.use(require('express').json());
  const isHit = await use(app);
  app.post('/*path', async (req, res) => {
    if (isHit?.(req)) return;
    res.status(201).json(await pay(req.url, req.headers['idempotency-key']));
  });
  app.use((error, req, res, next) => (res.headersSent ? next() : res.send({ error: error.message })));
  return listen(app);
}

async function expressIdempotency(app) {
  const { idempotency, getSharedIdempotencyService } = require('express-idempotency');
  const { default: RedisAdapter } = require('express-idempotency-redis-adapter');
  const dataAdapter = new RedisAdapter({ connectionConfig: { url: STORE } });
  await dataAdapter.connect();
  app.use(idempotency({ dataAdapter }));
  return (req) => getSharedIdempotencyService().isHit(req);
}

/** A function behind node:http: once(path, key, body) runs it. */
async function plain(once) {
  return listen(async (req, res) => {
    const parts = [];
    for await (const part of req) parts.push(part);
    let status = 201;
    let body;
    try {
      body = await once(req.url, req.headers['idempotency-key'], Buffer.concat(parts).toString());
    } catch (error) {
      status = 409;
      body = { error: `${error.name}: ${error.message}` };
    }
    res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
  });
}

async function powertools(persistenceStore) {
  const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
  const config = new IdempotencyConfig({ eventKeyJmesPath: 'key', throwOnNoIdempotencyKey: true });
  const handler = makeIdempotent(async (event) => pay(event.path, event.key), { persistenceStore, config });
  const context = { getRemainingTimeInMillis: () => 30000 };
  return plain((path, key, body) => {
    config.registerLambdaContext(context);
    return handler({ path, key, body }, context);
  });
}

const ways = {
  fastify: () => fastify(() => undefined),
  'fastify-node-idempotency': () => fastify(nodeIdempotency),
  'fastify-hapax': () => fastify(() => require('../../sdk/node/lib/fastify.js').idempotent(door())),
  express: () => express(() => undefined),
  'express-idempotency': () => express(expressIdempotency),
  'express-hapax': () => express((app) => { app.use(require('../../sdk/node/lib/express.js').idempotent(door())); }),
  http: () => plain(pay),
  'http-hapax': () => {
    const hx = door();
    return plain((path, key, body) => hx.run({ scope: 'pay', key, fingerprint: body }, () => pay(path, key)));
  },
  async 'powertools-redis'() {
    const { CachePersistenceLayer } = require('@aws-lambda-powertools/idempotency/cache');
    const { createClient } = require('@redis/client');
    const client = await createClient({ url: STORE }).connect();
    return powertools(new CachePersistenceLayer({ client }));
  },
  'powertools-dynamodb'() {
    const { DynamoDBPersistenceLayer } = require('@aws-lambda-powertools/idempotency/dynamodb');
    const clientConfig = { endpoint: STORE, region: 'eu-central-1' };
    return powertools(new DynamoDBPersistenceLayer({ tableName: 'powertools', clientConfig }));
  },
};

async function listen(app) {
  const server = http.createServer(app);
  server.keepAliveTimeout = 60000;
  await new Promise((resolve) => { server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', resolve); });
  return server;
}

process.env.POWERTOOLS_DEV ??= 'false';
process.env.AWS_LAMBDA_FUNCTION_NAME ??= 'pay';
process.once('SIGINT', () => process.exit());
ways[way]().then((server) => console.log(server.address().port));
