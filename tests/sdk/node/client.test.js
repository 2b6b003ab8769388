'use strict';
// The client side, with a played service: keys, tries, pauses, problems. The real gate is met in
// tests/sdk/test_node.py.
const assert = require('node:assert/strict');
const http = require('node:http');
const { Readable } = require('node:stream');
const { afterEach, test: plain } = require('node:test');
const sdk = require('../../../sdk/node');
const { axiosAdapter, retrying } = require('../../../sdk/node/lib/client.js');
const axios = require('axios');

const test = (name, body) => plain(name, { timeout: 60000 }, body);
const FAST = { pause: 1, pauseMax: 2 };
let server;

// A service that answers by the list of answers, the last one for all that follow.
async function service(...answers) {
  const seen = [];
  server = http.createServer(async (req, res) => {
    const parts = [];
    for await (const part of req) parts.push(part);
    seen.push({
      method: req.method, key: req.headers['idempotency-key'], type: req.headers['content-type'],
      body: Buffer.concat(parts), at: Date.now(),
    });
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer === 'cut') return req.socket.destroy();
    if (answer === 'half') {
      res.writeHead(200, { 'content-length': 10 });
      return res.write('half', () => req.socket.destroy());
    }
    if (answer === 'hang') return undefined;
    return res.writeHead(answer[0], answer[1]).end(answer[2]);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, seen };
}

afterEach(() => {
  server?.closeAllConnections();
  return new Promise((resolve) => (server ? server.close(resolve) : resolve()));
});

const problem = (code, status, headers = {}) =>
  [status, { 'content-type': 'application/problem+json', ...headers },
    JSON.stringify({ type: `urn:hapax:problem:${code}`, status, title: 'T', detail: 'D' })];

const senders = {
  fetch: (url, init, options = {}) => retrying(fetch, { ...FAST, ...options })(url, init).then(async (response) =>
    ({ status: response.status, text: await response.text() })),
  async axios(url, { method = 'GET', body, headers = {}, idempotencyKey, signal } = {}, options = {}) {
    const send = axios.create({ adapter: axiosAdapter(axios, { ...FAST, ...options }) });
    const answer = await send.request({ url, method, data: body, headers, idempotencyKey, signal, transformResponse: [], validateStatus: null });
    return { status: answer.status, text: String(answer.data) };
  },
};

for (const [kind, send] of Object.entries(senders)) {
  // One key per call, in quotes, and another for the next call.
  test(`${kind}: each call has a key of its own, and each try of it the same`, async () => {
    const { url, seen } = await service([503], 'cut', 'half', [201, {}, 'made']);
    assert.deepEqual(await send(url, { method: 'POST', body: 'x' }), { status: 201, text: 'made' });
    await send(url, { method: 'POST', body: 'x' });
    assert.equal(seen.length, 5);
    assert.match(seen[0].key, /^"[0-9a-f-]{36}"$/);
    assert.equal(new Set(seen.slice(0, 4).map(({ key }) => key)).size, 1);
    assert.notEqual(seen[4].key, seen[0].key);
    assert.ok(seen.every(({ body }) => body.toString() === 'x'));
  });

  // A key of the caller's is sent as it is.
  test(`${kind}: a key of one's own`, async () => {
    const { url, seen } = await service([200, {}, '']);
    await send(url, { method: 'DELETE', idempotencyKey: 'a"b\\c' });
    await send(url, { method: 'POST', headers: { 'Idempotency-Key': 'mine' } });
    assert.deepEqual(seen.map(({ key }) => key), ['"a\\"b\\\\c"', 'mine']);
    for (const bad of ['', 'ä', 'x'.repeat(256), 5]) {
      await assert.rejects(send(url, { method: 'POST', idempotencyKey: bad }), TypeError);
    }
    assert.equal(seen.length, 2);
  });

  // What changes nothing needs no key and no other try.
  test(`${kind}: a GET is sent once, without a key`, async () => {
    const { url, seen } = await service([503, {}, 'busy']);
    assert.deepEqual(await send(url), { status: 503, text: 'busy' });
    assert.deepEqual(seen.map(({ key }) => key), [undefined]);
  });

  // Which statuses are asked again.
  test(`${kind}: what is asked again`, async () => {
    for (const [answer, times] of [
      [[400], 1], [[402], 1], [[409], 1], [[422], 1], [[501], 1], [[408], 3], [[425], 3], [[429], 3], [[500], 3],
      [[502], 3], [[503], 3], [[504], 3], [[409, { 'retry-after': '0' }], 3], [[423, { 'retry-after': '0' }], 3],
      [[503, { 'retry-after': '3600' }], 1], [[503, { 'retry-after': new Date(0).toUTCString() }], 3],
    ]) {
      const { url, seen } = await service(answer);
      assert.equal((await send(url, { method: 'POST' }, { tries: 3 })).status, answer[0]);
      assert.equal(seen.length, times, JSON.stringify(answer));
      server.close();
    }
  });

  // Retry-After is waited for.
  test(`${kind}: Retry-After`, async () => {
    const { url, seen } = await service([429, { 'retry-after': '1' }], [200]);
    await send(url, { method: 'POST' });
    assert.ok(seen[1].at - seen[0].at >= 990);
  });

  // Problems are errors by name, and the page of each says whether it is asked again.
  test(`${kind}: problems`, async () => {
    for (const [code, status, name, times, headers] of [
      ['in-flight', 409, 'InFlight', 3, { 'retry-after': '0' }],
      ['unknown-outcome', 409, 'Unknown', 1],
      ['unknown-outcome', 409, 'Unknown', 3, { 'retry-after': '0' }],
      ['fingerprint-mismatch', 422, 'Mismatch', 1],
      ['caller-mismatch', 422, 'Mismatch', 1],
      ['attempts-used-up', 500, 'Failed', 1],
      ['response-not-kept', 410, 'Gone', 1],
      ['expired-key', 410, 'Expired', 1],
      ['missing-key', 400, 'BadKey', 1],
      ['bad-key', 400, 'BadKey', 1],
      ['missing-owner', 400, 'BadKey', 1],
      ['request-too-large', 413, 'TooLarge', 1],
      ['limit-reached', 429, 'Limited', 1],
      ['limit-reached', 429, 'Limited', 3, { 'retry-after': '0' }],
      ['store-unavailable', 503, 'StoreDown', 3, { 'retry-after': '0' }],
      ['store-unavailable', 503, 'StoreDown', 1],
      ['upstream-failed', 502, 'Upstream', 3],
      ['upstream-timeout', 504, 'Upstream', 3],
      ['upstream-unreachable', 502, 'Upstream', 3],
      ['response-truncated', 502, 'Upstream', 3],
    ]) {
      const { url, seen } = await service(problem(code, status, headers));
      await assert.rejects(send(url, { method: 'POST', idempotencyKey: 'k' }, { tries: 3 }), (e) => {
        assert.deepEqual([e.name, e.code, e.status, e.message, e.idempotencyKey], [name, code, status, 'D', '"k"']);
        assert.equal(e.retryAfter, headers ? 0 : undefined);
        assert.equal(e.differs, { 'fingerprint-mismatch': 'fingerprint', 'caller-mismatch': 'caller' }[code]);
        return e instanceof sdk.HapaxError;
      });
      assert.equal(seen.length, times, code);
      server.close();
    }
  });

  // A problem of Stripe's shape is one, too; a problem of another service is a response.
  test(`${kind}: problems of other shapes`, async () => {
    const json = { 'content-type': 'application/json' };
    const stripe = await service([422, json, JSON.stringify({ error: { code: 'fingerprint-mismatch', message: 'M' } })]);
    await assert.rejects(send(stripe.url, { method: 'POST' }), { name: 'Mismatch', message: 'M' });
    server.close();
    for (const text of ['{"type":"urn:x:no-money"}', '{"type":7}', 'null', '[', '{"error":"x"}']) {
      const { url } = await service([422, json, text]);
      assert.deepEqual(await send(url, { method: 'POST' }), { status: 422, text });
      server.close();
    }
  });

  // No answer: the error has the key, to ask again with.
  test(`${kind}: no answer`, async () => {
    const { url, seen } = await service('cut');
    await assert.rejects(send(url, { method: 'POST' }, { tries: 2 }), (e) => {
      assert.deepEqual([e.name, e.tries, e.idempotencyKey], ['Indeterminate', 2, seen[0].key]);
      return e.cause instanceof Error;
    });
    assert.equal(seen.length, 2);
  });

  // A try that hangs is given up, and the next one has the same key.
  test(`${kind}: a try that hangs`, async () => {
    const { url, seen } = await service('hang', [200, {}, 'at last']);
    assert.deepEqual(await send(url, { method: 'POST' }, { timeout: 1000 }), { status: 200, text: 'at last' });
    assert.equal(seen[0].key, seen[1].key);
  });

  // The caller's signal ends a try, and a pause.
  test(`${kind}: a signal`, async () => {
    for (const answer of ['hang', [503, { 'retry-after': '50' }]]) {
      const { url, seen } = await service(answer);
      const stop = new AbortController();
      const sent = send(url, { method: 'POST', signal: stop.signal });
      const refused = assert.rejects(sent, (e) => e.message === 'enough' || e.code === 'ERR_CANCELED');
      while (seen.length === 0) await new Promise(setImmediate);
      setTimeout(() => stop.abort(new Error('enough')), 20);
      await refused;
      server.close();
      server.closeAllConnections();
    }
  });

  // A form has the same boundary in each try, and a stream the same bytes: a fingerprint sees no other request.
  test(`${kind}: each try has the same bytes`, async () => {
    const form = new FormData();
    form.set('amount', '5');
    for (const body of [form, Readable.toWeb(Readable.from([Buffer.from('a'), Buffer.from('b')])), Buffer.from([0, 255])]) {
      const { url, seen } = await service([500], [200]);
      await send(url, { method: 'POST', body });
      assert.equal(seen.length, 2);
      assert.deepEqual(seen[0].body, seen[1].body);
      assert.equal(seen[0].type, seen[1].type);
      if (body === form) assert.ok(seen[0].body.includes(seen[0].type.split('boundary=')[1]));
      assert.ok(seen[0].body.length > 1);
      server.close();
    }
    const much = new ReadableStream({ pull: (stream) => stream.enqueue(new Uint8Array(1 << 20)) }); // without an end
    await assert.rejects(send('http://127.0.0.1:1/', { method: 'POST', body: much }), RangeError);
  });
}

// A Request of fetch's own is taken, too.
test('fetch: a Request', async () => {
  const { url, seen } = await service([500], [200]);
  await retrying(fetch, FAST)(new Request(url, { method: 'POST', body: 'x', headers: { 'content-type': 'text/x' } }));
  assert.deepEqual(seen.map(({ method, body, type }) => [method, body.toString(), type]), Array(2).fill(['POST', 'x', 'text/x']));
});

// The response is fetch's own: its address and its stream are there, and a stream of events is not read ahead.
test('fetch: the response', async () => {
  const { url } = await service([200, { 'content-type': 'application/json' }, '{"a":1}']);
  const response = await retrying()(url, { method: 'POST' });
  assert.equal(response.url, url);
  assert.deepEqual(await response.json(), { a: 1 });
});

// axios refuses statuses by its own rule, with its own error.
test('axios: an AxiosError stays one', async () => {
  const { url, seen } = await service([402, { 'content-type': 'application/json' }, '{"no":"money"}']);
  const send = axios.create({ adapter: axiosAdapter(axios, FAST) });
  await assert.rejects(send.post(url, { a: 1 }), (e) => axios.isAxiosError(e) && e.response.data.no === 'money');
  assert.deepEqual([seen.length, seen[0].body.toString(), seen[0].type], [1, '{"a":1}', 'application/json']);
});

// An option that is none, or no number, is said at once.
test('options', () => {
  assert.throws(() => retrying(fetch, { retries: 3 }), /no option "retries"/);
  assert.throws(() => retrying(fetch, { tries: 0 }), /tries: 0/);
  assert.throws(() => axiosAdapter(axios, { pause: -1 }), /pause: -1/);
});
