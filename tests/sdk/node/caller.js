'use strict';
// Calls a gate by the client side: caller.js URL fetch|axios. Lines of JSON in: {path, form, key}; lines of JSON out.
const axios = require('axios');
const { axiosAdapter, retrying } = require('../../../sdk/node/lib/client.js');

const [url, kind] = process.argv.slice(2);
const send = {
  async fetch(path, body, idempotencyKey) {
    const { status, headers } = await retrying(fetch)(url + path, { method: 'POST', body, idempotencyKey });
    return { status, replayed: headers.get('idempotency-replayed') };
  },
  async axios(path, body, idempotencyKey) {
    const client = axios.create({ adapter: axiosAdapter(axios) });
    const { status, headers } = await client.post(url + path, body, { idempotencyKey });
    return { status, replayed: headers['idempotency-replayed'] };
  },
}[kind];

async function main() {
  for await (const line of require('node:readline').createInterface({ input: process.stdin })) {
    const { path, form, key } = JSON.parse(line);
    const body = new URLSearchParams({ amount: form });
    const told = await send(path, body, key).catch(({ name, code, differs, idempotencyKey }) =>
      ({ error: name, code, differs, key: idempotencyKey }));
    process.stdout.write(`${JSON.stringify(told)}\n`);
  }
}

main();
