'use strict';
// What a handler behind a gate or a consumer reads, and the keys that it derives. complete() and checkFence() meet
// PostgreSQL in tests/sdk/test_node.py.
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { attemptOf, checkFence, complete, keyDerive } = require('../../../sdk/node/lib/handler.js');

const TOLD = { 'idempotency-key': '"k"', 'idempotency-attempt': '2', 'idempotency-fence': '1750000000000001', 'idempotency-token': 't' };

// The same from Node's request, from fetch's, and from headers in any spelling.
test('attemptOf reads every kind of request', () => {
  const attempt = { key: 'k', attempt: 2, fence: 1750000000000001, token: 't' };
  assert.deepEqual(attemptOf({ headers: TOLD }), attempt);
  assert.deepEqual(attemptOf(new Request('http://x/', { headers: TOLD })), attempt);
  assert.deepEqual(attemptOf(TOLD), attempt);
  assert.deepEqual(attemptOf({ 'Idempotency-Key': ['"k"'], 'Idempotency-Attempt': '2' }).attempt, 2);
  assert.deepEqual(attemptOf({}), { key: undefined, attempt: undefined, fence: undefined, token: undefined });
});

// A key is what the gate took for it, and Hapax-Key is percent-decoded.
test('keys', () => {
  for (const [value, key] of [['"k"', 'k'], ['k', 'k'], [' "a b";v=1 ', 'a b'], ['"a\\"b\\\\c"', 'a"b\\c'], ['a:b', 'a:b']]) {
    assert.equal(attemptOf({ 'idempotency-key': value }).key, key);
  }
  assert.equal(attemptOf({ 'hapax-key': 'a%20%C3%A4%25', 'idempotency-key': '"sha256-…"' }).key, 'a ä%');
  assert.deepEqual(attemptOf({ 'hapax-key': '%ff%00' }).key, Buffer.from([0xff, 0]));
});

// A client's own text in a header that should be the gate's is an error, and no number.
test('what is no number is refused', () => {
  for (const bad of ['', '-1', '1.5', 'x', '1e3', '99999999999999999']) {
    assert.throws(() => attemptOf({ 'idempotency-fence': bad }), TypeError);
  }
});

// As hapax_key_derive(); the long one's hash is checked against hapax.key_derive() in tests/sdk/test_node.py.
test('keyDerive', () => {
  assert.equal(keyDerive('order-17', 'charge'), 'order-17:charge');
  assert.equal(keyDerive('k'.repeat(250), 'abcd').length, 255);
  assert.match(keyDerive('k'.repeat(250), 'abcde'), /^sha256-[0-9a-f]{64}$/);
  assert.deepEqual(keyDerive(Buffer.from([0xff]), 's'), Buffer.from([0xff, 0x3a, 0x73]));
  for (const [key, step] of [['', 's'], ['k', ''], ['k'.repeat(256), 's'], ['k', 's'.repeat(65)], ['k', 'a:b'], ['ä'.repeat(128), 's']]) {
    assert.throws(() => keyDerive(key, step), RangeError);
  }
});

// No operation: nothing to complete. An operation without a token: a gate that is set up wrongly.
test('complete without a token', async () => {
  assert.equal(await complete({}, {}, 201), undefined);
  await assert.rejects(complete({}, { 'idempotency-attempt': '1' }, 201), /--pass-token/);
});

// What is no transaction is refused before anything is asked.
test('a transaction is needed', async () => {
  for (const tx of [undefined, {}, { totalCount: 1, connect() {}, query() {} }, { $queryRawUnsafe() {}, $transaction() {} }]) {
    await assert.rejects(complete(tx, 'token', 201), TypeError);
  }
  for (const table of ['a b', 'x;y', '', '"f"', 'a.b.c']) {
    await assert.rejects(checkFence({ query() {} }, 'n', 1, { table }), /no name of a table/);
  }
  await assert.rejects(checkFence({ query() {} }, 'n', undefined), /no whole number/);
});
