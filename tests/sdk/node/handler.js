'use strict';
// Completes an operation in a transaction of pg, as a handler behind the gate does: handler.js DSN. Lines of JSON in:
// {how, headers, name, fail}; lines of JSON out. `prisma` is a transaction that is asked as Prisma's is, on pg.
const { Pool } = require('pg');
const { attemptOf, checkFence, complete } = require('../../../sdk/node/lib/handler.js');

const pool = new Pool({ connectionString: process.argv[2] });

class PlayedPrisma {
  constructor(client) {
    this.client = client;
  }

  async $queryRawUnsafe(text, ...values) {
    try {
      return (await this.client.query(text, values)).rows;
    } catch (error) {
      throw Object.assign(new Error(error.message), { code: 'P2010', meta: { code: error.code, message: error.message } });
    }
  }
}

const TX = {
  pg: (client) => client,
  prisma: (client) => new PlayedPrisma(client),
  typeorm: (client) => ({ query: async (text, values) => (await client.query(text, values)).rows }),
};

async function pay({ how, headers, name, fail, body = 'receipt', token }) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const tx = TX[how](client);
    await client.query('INSERT INTO payments (amount) VALUES (5)');
    const { attempt, fence } = attemptOf(headers);
    if (name) await checkFence(tx, name, fence);
    const outcome = await complete(tx, token ?? { headers }, 201, body, { Location: '/payments/1' });
    if (fail) throw new Error('it fails after complete()');
    await client.query('COMMIT');
    return { attempt, outcome: outcome && { status: outcome.status, body: outcome.body.toString() } };
  } catch (error) {
    await client.query('ROLLBACK');
    return { error: error.name, text: error.message };
  } finally {
    client.release();
  }
}

async function main() {
  await complete(pool, 'token', 201).then(() => { throw new Error('a pool was taken'); }, (e) => {
    if (!/pool/.test(e.message)) throw e;
  });
  for await (const line of require('node:readline').createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await pay(JSON.parse(line)))}\n`);
  }
  await pool.end();
}

main();
