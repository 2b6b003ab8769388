'use strict';
// What the client says to a door and makes of what the door says, with a played door.
const assert = require('node:assert/strict');
const fs = require('node:fs');
const { AsyncLocalStorage } = require('node:async_hooks');
const http = require('node:http');
const path = require('node:path');
const { afterEach, test: plain } = require('node:test');
const { setFlagsFromString } = require('node:v8');
const { runInNewContext } = require('node:vm');
const sdk = require('../../../sdk/node');
const bullmq = require('../../../sdk/node/lib/bullmq.js');
const { idempotent } = require('../../../sdk/node/lib/express.js');
const { Reader } = require('../../../sdk/node/lib/frame.js');
const { PlayedDoor, RUN, frameOf } = require('./played_door.js');

const ROOT = path.resolve(__dirname, '../../..');
// No case waits for ever: a played door that hears nothing would.
const test = (name, body) => plain(name, { timeout: 60000 }, body);
let door;

async function played(options) {
  door = new PlayedDoor(options);
  await door.listen();
  return sdk.connect(door.address, { timeout: 20000 });
}

afterEach(() => door?.end());

/** Plays a first run: BEGIN, RUN, END, ANSWER; gives BEGIN and END. */
async function first(run = RUN) {
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, run);
  const end = await door.heard('END');
  door.say('ANSWER', end.op, { answer: 'fresh', own: true, recorded: true, class: end.meta.class });
  return { begin, end };
}

// Frames are what docs/door.md has in hex.
test('frames are those of the page', () => {
  const page = fs.readFileSync(path.join(ROOT, 'docs/door.md'), 'utf8');
  const blocks = [...page.matchAll(/^```hex (\w+)\n([^`]*)```/gm)].map(([, name, lines]) => {
    const bytes = lines.split('\n').flatMap((line) => {
      const text = /; body: (.*)$/.exec(line);
      const hex = line.split(';')[0].trim();
      assert.ok(!text || hex);
      return hex ? hex.split(/\s+/).map((byte) => parseInt(byte, 16)) : [];
    });
    return [name, Buffer.from(bytes)];
  });
  assert.ok(blocks.length >= 12);
  for (const [name, bytes] of blocks) {
    const [frame, ...more] = new Reader().take(bytes);
    assert.equal(more.length, 0, name);
    const meta = name === 'BEAT' ? undefined : frame.meta;
    assert.deepEqual(frameOf(frame.kind, frame.op, meta, frame.body), bytes, name);
  }
});

// A frame may come in any pieces: one byte at a time, or several frames in one piece.
test('frames come in any pieces', () => {
  const body = Buffer.from([0, 255, 10]);
  const bytes = Buffer.concat([
    frameOf(8, 1, { answer: 'replay' }, body), frameOf(10, 2, {}), frameOf(9, 0, undefined),
  ]);
  for (const size of [1, 2, 3, 5, 13, 14, bytes.length]) {
    const reader = new Reader();
    const frames = [];
    for (let at = 0; at < bytes.length; at += size) frames.push(...reader.take(bytes.subarray(at, at + size)));
    assert.deepEqual(frames.map(({ kind, op }) => [kind, op]), [[8, 1], [10, 2], [9, 0]]);
    assert.deepEqual(frames[0].body, body);
  }
});

// What the handler returned is the result, and END has it as JSON.
test('a first run', async () => {
  const hx = await played();
  const refund = hx.once({ scope: 'refunds', key: (id) => id, retention: '7d', onExpired: 'hold' }, async (id, amount, op) => {
    assert.deepEqual([op.attempt, op.fence, op.stale, op.key, op.lost], [1, 1750000000000000, false, 'k', false]);
    return { id, amount };
  });
  const given = refund('order-17', 500);
  const { begin, end } = await first();
  assert.deepEqual(await given, { id: 'order-17', amount: 500 });
  const { nonce, ...meta } = begin.meta;
  assert.match(nonce, /^[0-9a-f]{32}$/);
  assert.deepEqual(meta, {
    scope: 'refunds', key: 'order-17', policy: { retention: '7d', on_expired: 'hold' }, reconciles: false, body: 'json',
  });
  assert.equal(begin.body.toString(), '["order-17",500]');
  assert.deepEqual([end.meta.class, end.body.toString()], ['final', '{"id":"order-17","amount":500}']);
});

// Every policy of the page is an option in camel case, in JavaScript and in the types. The option `key` is another thing.
test('policies are those of the page', () => {
  const table = fs.readFileSync(path.join(ROOT, 'docs/nginx.md'), 'utf8').split('A policy has the same name')[1];
  const names = [...table.split('\nTimes:')[0].matchAll(/^\| `hapax_(\w+)/gm)].map(([, name]) => name);
  assert.ok(names.length > 20);
  const types = fs.readFileSync(path.join(ROOT, 'sdk/node/lib/index.d.ts'), 'utf8');
  const typed = types.match(/interface Policies {(.*?)^}/ms)[1];
  for (const name of names.filter((one) => one !== 'key')) {
    const option = name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
    assert.match(typed, new RegExp(`^  ${option}\\?:`, 'm'));
    for (const one of [option, name]) assert.deepEqual(sdk.connect('unix:/x').meta({ [one]: 'x' }).policy, { [name]: 'x' });
  }
});

// Whatever a handler returns is a result, and a repeat gets the same.
for (const value of [undefined, null, false, 0, '', [], {}, 'ä\u0000\u2028', 1e300]) {
  test(`a repeat gets ${JSON.stringify(value)}`, async () => {
    const hx = await played();
    const once = () => hx.run({ key: 'k' }, () => value);
    const given = once();
    const { end } = await first();
    assert.deepEqual(await given, value);
    const repeat = once();
    const { op } = await door.heard('BEGIN');
    door.say('ANSWER', op, { answer: 'replay', own: false, status: 200, headers: end.meta.headers ?? [] }, end.body);
    assert.deepEqual(await repeat, value);
  });
}

// With the codec "bytes" a result is any bytes.
test('bytes that are not UTF-8', async () => {
  const hx = await played();
  const bytes = Buffer.from([0xff, 0, 0xc3, 0x28]);
  const given = hx.run({ key: 'k', codec: 'bytes' }, () => bytes);
  const { end } = await first();
  assert.deepEqual([await given, end.body], [bytes, bytes]);
});

// Errors are thrown as they are, and the class is that of the page's table.
for (const [error, meta] of [
  [new Error('broken'), { class: 'failed', status: 500 }],
  [new sdk.NotRun('busy'), { class: 'not_run' }],
  [new TypeError('no'), { class: 'failed', status: 500 }],
]) {
  test(`a handler throws ${error.name}`, async () => {
    const hx = await played();
    const given = hx.run({ key: 'k' }, () => { throw error; });
    const thrown = assert.rejects(given, (e) => e === error);
    const { end } = await first();
    await thrown;
    for (const [name, value] of Object.entries(meta)) assert.equal(end.meta[name], value);
  });
}

// A result that has no JSON is an error for the caller, and nobody takes it for one that did not run, or failed.
test('a result that cannot be kept', async () => {
  const hx = await played();
  const circle = {};
  circle.again = circle;
  for (const value of [10n, circle, () => 1]) {
    const thrown = assert.rejects(hx.run({ key: 'k' }, () => value), TypeError);
    const { end } = await first();
    await thrown;
    assert.deepEqual(end.meta, { class: 'unknown' });
  }
});

// Some libraries leave null or an object in an error's message, or in its code what has no JSON. It has failed as any other.
test('an error with an odd message or code', async () => {
  const hx = await played();
  const circle = {};
  circle.again = circle;
  for (const [more, says] of [
    [{ message: null }, ''], [{ message: undefined }, ''], [{ message: { a: 1 } }, '[object Object]'], [{ code: 10n }, 'x'],
    [{ code: circle }, 'x'],
  ]) {
    const error = Object.assign(new Error('x'), more);
    const thrown = assert.rejects(hx.run({ key: 'k' }, () => { throw error; }), (e) => e === error);
    const { end } = await first();
    assert.deepEqual([end.meta.class, end.body.toString()], ['failed', says]);
    await thrown;
  }
});

// What has no text at all leaves its outcome unknown, and its caller gets an error; the process lives on.
test('an error that cannot be told', async () => {
  const hx = await played();
  const thrown = assert.rejects(hx.run({ key: 'k' }, () => { throw Object.create(null); }), TypeError);
  const { end } = await first();
  assert.deepEqual(end.meta, { class: 'unknown' });
  await thrown;
  const given = hx.run({ key: 'k' }, () => 1);
  await first();
  assert.equal(await given, 1);
});

// A stored failure is thrown again to repeats (on_failed=replay).
test('a failure is replayed as one', async () => {
  const hx = await played();
  const broken = Object.assign(new RangeError('too much'), { code: 'E_MUCH' });
  const thrown = assert.rejects(hx.run({ key: 'k' }, () => { throw broken; }), broken);
  const { end } = await first();
  await thrown;
  const repeat = hx.run({ key: 'k' }, () => assert.fail());
  const { op } = await door.heard('BEGIN');
  const seen = assert.rejects(repeat, { name: 'RangeError', message: 'too much', code: 'E_MUCH' });
  door.say('ANSWER', op, { answer: 'replay', own: false, status: 500, headers: end.meta.headers }, end.body);
  await seen;
});

// A result that another program stored in another form is no result of the handler's.
test('a stored result that cannot be read', async () => {
  const hx = await played();
  const seen = assert.rejects(hx.run({ key: 'k' }, () => {}), { name: 'HapaxError', code: 'replay' });
  const { op } = await door.heard('BEGIN');
  door.say('ANSWER', op, { answer: 'replay', own: false, status: 200, headers: [] }, Buffer.from('<html>'));
  await seen;
});

// Every other answer is an error with what the door said.
for (const [answer, name, more, seen] of [
  ['in_flight', 'InFlight', { retry_after_ms: 2500, silent_ms: 40 }, { retryAfter: 3, silentMs: 40 }],
  ['mismatch', 'Mismatch', { differs: 'caller' }, { differs: 'caller' }],
  ['unknown', 'Unknown', { attempt: 4 }, { attempt: 4 }],
  ['failed', 'Failed', {}, {}],
  ['gone', 'Gone', {}, {}],
  ['missing_key', 'BadKey', {}, {}],
  ['bad_key', 'BadKey', {}, {}],
  ['missing_owner', 'BadKey', {}, {}],
  ['too_large', 'TooLarge', {}, {}],
  ['store_down', 'StoreDown', { error: 'unavailable', retry_after_ms: 0 }, { error: 'unavailable', retryAfter: 0 }],
  ['of_a_newer_door', 'HapaxError', {}, {}],
]) {
  test(`${answer} is ${name}`, async () => {
    const hx = await played();
    const given = hx.run({ key: 'k' }, () => assert.fail('it must not run'));
    const seenAs = assert.rejects(given, { name, code: answer, message: 'why', ...seen });
    const { op } = await door.heard('BEGIN');
    door.say('ANSWER', op, { answer, own: false, text: 'why', ...more });
    await seenAs;
  });
}

// A FAULT is an error with the door's text; the connection goes on.
test('a FAULT for a BEGIN', async () => {
  const hx = await played();
  const seen = assert.rejects(hx.run({ key: 'k', retenton: '7d' }, () => {}), {
    name: 'Fault', error: 'invalid', message: 'no policy "retenton"',
  });
  const begin = await door.heard('BEGIN');
  assert.deepEqual(begin.meta.policy, { retenton: '7d' });
  door.say('FAULT', begin.op, { error: 'invalid', text: 'no policy "retenton"', kind: 3 });
  await seen;
  const given = hx.run({ key: 'k' }, () => 1);
  await first();
  assert.equal(await given, 1);
  assert.equal(door.connections, 1);
});

/** Plays a door that ends, or has no room. */
async function refuse(error) {
  const { op } = await door.heard('BEGIN');
  door.say('FAULT', op, { error, text: 'no', kind: 3 });
}

// A door that ends, or has no room, ran nothing: the caller may ask again.
for (const error of ['unavailable', 'nomem']) {
  test(`a FAULT ${error} for a BEGIN`, async () => {
    const hx = await played();
    const seen = assert.rejects(hx.run({ key: 'k' }, () => assert.fail()), { name: 'StoreDown', code: 'store_down', error });
    await refuse(error);
    await seen;
  });
}

// A middleware says so to its client.
test('a request to a door that ends', async () => {
  const guard = idempotent(await played(), {});
  const server = http.createServer((req, res) => guard(req, res, (error) => res.writeHead(500).end(String(error))));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const asked = fetch(`http://127.0.0.1:${server.address().port}/`, { method: 'POST', headers: { 'Idempotency-Key': 'k' } });
  await refuse('unavailable');
  const response = await asked;
  assert.deepEqual([response.status, response.headers.get('retry-after')], [503, '1']);
  assert.match((await response.json()).type, /:store-unavailable$/);
  await new Promise((resolve) => server.close(resolve));
});

// A job is tried again, and uses up none of its attempts.
test('a job at a door that ends', async () => {
  const processor = bullmq.idempotent(await played(), {}, () => assert.fail());
  const delayed = [];
  const job = { id: 'k', name: 'pay', queueName: 'jobs', data: {}, moveToDelayed: async (...words) => delayed.push(words) };
  const seen = assert.rejects(processor(job, 'token'), { name: 'DelayedError' });
  await refuse('unavailable');
  await seen;
  assert.deepEqual([delayed.length, delayed[0][1]], [1, 'token']);
});

// Of a handler that ran such a door does not say that nothing ran.
test('a door that has no room for an END', async () => {
  const hx = await played();
  const seen = assert.rejects(hx.run({ key: 'k' }, () => 1), { name: 'Indeterminate' });
  const { op } = await door.heard('BEGIN');
  door.say('RUN', op, RUN);
  await door.heard('END');
  door.say('FAULT', op, { error: 'nomem', text: 'out of memory', kind: 7 });
  await seen;
});

// Members and kinds of a newer door are ignored.
test('a newer door', async () => {
  const hx = await played({ welcome: { version: 1, beat_ms: 10000, more: { of: ['it'] } } });
  const given = hx.run({ key: 'k' }, () => 1);
  const { op } = await door.heard('BEGIN');
  door.say(77, op, { what: 'ever' }, Buffer.alloc(100));
  door.say(78, 0, { what: 'ever' });
  door.say('RUN', op, { ...RUN, more: [1] });
  await door.heard('END');
  door.say('LOST', op + 1, {});
  door.say('ANSWER', op, { answer: 'fresh', own: true, more: {} });
  assert.equal(await given, 1);
});

// A door that speaks another version is no door for this client.
test('a door of another version', async () => {
  const hx = await played({ welcome: { version: 2, beat_ms: 10000 } });
  await assert.rejects(hx.run({ key: 'k' }, () => {}), { name: 'Fault', error: 'unsupported' });
});

// All that a door says may come byte by byte.
test('a door that writes one byte at a time', async () => {
  const hx = await played({ bytewise: true });
  const given = hx.run({ key: 'k' }, () => 'x'.repeat(1000));
  await first();
  assert.equal((await given).length, 1000);
});

// Who is turned away learns why, at once.
test('a FAULT in place of WELCOME', async () => {
  const hx = await played();
  door.turnAway = { error: 'refused', text: 'uid 7 may not connect' };
  await assert.rejects(hx.run({ key: 'k' }, () => {}), { name: 'Fault', error: 'refused', message: 'uid 7 may not connect' });
});

// A door that is full for the moment is asked again.
test('a door that is full', async () => {
  const hx = await played();
  door.turnAway = { error: 'unavailable', text: '1024 connections' };
  const given = hx.run({ key: 'k' }, () => 1);
  while (door.connections < 2) await new Promise(setImmediate);
  door.turnAway = undefined;
  await first();
  assert.equal(await given, 1);
});

// Where nobody listens, nothing ran, and the error says where the door was looked for.
test('no door', async () => {
  door = new PlayedDoor();
  const hx = sdk.connect(door.address, { timeout: 120 });
  await assert.rejects(hx.run({ key: 'k' }, () => assert.fail()), (e) =>
    e instanceof sdk.StoreDown && e.message.includes(door.address) && e.cause.code === 'ENOENT');
});

// What is no address, or no time, is said at once.
test('connect is told nonsense', () => {
  assert.throws(() => sdk.connect('tcp:1.2.3.4:5'), /unix:PATH/);
  assert.throws(() => sdk.connect('unix:/x', { timeout: 'long' }), /timeout: long/);
});

// The door may start after the program.
test('a door that comes late', async () => {
  door = new PlayedDoor();
  const hx = sdk.connect(door.address, { timeout: 20000 });
  const given = hx.run({ key: 'k' }, () => 1);
  const given2 = hx.run({ key: 'k2' }, () => 2);
  await new Promise((resolve) => setTimeout(resolve, 80));
  await door.listen();
  const begins = [await door.heard('BEGIN'), await door.heard('BEGIN')];
  for (const { op } of begins) door.say('RUN', op, RUN);
  for (const { op } of begins) {
    await door.heard('END');
    door.say('ANSWER', op, { answer: 'fresh', own: true });
  }
  assert.deepEqual([await given, await given2], [1, 2]);
  assert.equal(door.connections, 1);
});

// A door that dies between RUN and END loses no result: RESUME with the ticket, then END.
test('the door dies while a handler runs', async () => {
  const hx = await played();
  let finish;
  const given = hx.run({ key: 'k', reconcile: () => {} }, () => new Promise((resolve) => { finish = resolve; }));
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, RUN);
  while (!finish) await new Promise(setImmediate);
  await door.die();
  const resume = await door.heard('RESUME');
  assert.deepEqual(resume.meta, { ticket: 'T1', reconciles: true });
  finish('done');
  const end = await door.heard('END');
  assert.deepEqual([end.op, end.body.toString(), end.connection], [resume.op, '"done"', 2]);
  door.say('ANSWER', end.op, { answer: 'fresh', own: true, recorded: true });
  assert.equal(await given, 'done');
});

// Where END was sent and no ANSWER came, both are sent again.
test('the door dies before ANSWER', async () => {
  const hx = await played();
  let runs = 0;
  const given = hx.run({ key: 'k' }, () => { runs += 1; return 5; });
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, RUN);
  await door.heard('END');
  await door.die();
  await door.heard('RESUME');
  const end = await door.heard('END');
  door.say('ANSWER', end.op, { answer: 'replay', own: false, status: 200, headers: [] }, end.body);
  assert.deepEqual([await given, runs], [5, 1]);
});

// What was not told to run is asked again, in the same bytes.
test('the door dies before RUN', async () => {
  const hx = await played();
  const given = hx.run({ key: 'k', fingerprint: { a: 1 } }, () => 5);
  const begin = await door.heard('BEGIN');
  await door.die();
  const { begin: again } = await first();
  assert.deepEqual([again.meta, again.body], [begin.meta, begin.body]);
  assert.equal(await given, 5);
});

// A door may refuse the RESUME and then the END of one call. The second refusal concludes no other call.
test('a refusal of a call that is over', async () => {
  const hx = await played();
  const lost = hx.run({ key: 'k' }, () => 1);
  door.say('RUN', (await door.heard('BEGIN')).op, RUN);
  await door.heard('END');
  await door.die();
  const { op } = await door.heard('RESUME');
  await door.heard('END');
  const seen = assert.rejects(lost, { name: 'Indeterminate' });
  door.say('FAULT', op, { error: 'invalid', kind: 4, text: 'not your ticket' });
  await seen;
  let finish;
  const second = hx.run({ key: 'k2' }, () => new Promise((resolve) => { finish = resolve; }));
  const begin = await door.heard('BEGIN');
  door.say('FAULT', op, { error: 'invalid', kind: 7, text: 'it does not run' });
  door.say('RUN', begin.op, RUN);
  const third = hx.run({ key: 'k3' }, () => 3);
  const { end } = await first();
  assert.equal(end.body.toString(), '3');
  finish(2);
  door.say('ANSWER', (await door.heard('END')).op, { answer: 'fresh', own: true, recorded: true });
  assert.deepEqual([await second, await third], [2, 3]);
});

// Numbers of calls that are over are not given again, however many calls are in hand; each answer is its call's.
test('hundreds of calls in hand, and others over', async () => {
  const hx = await played();
  const ops = new Set();
  const hands = [];
  for (let round = 0; round < 4; round += 1) {
    for (let i = 0; i < 100; i += 1) hands.push({ i: 100 * round + i, given: hx.run({ key: 'k' }, () => assert.fail()) });
    for (const hand of hands.slice(-100)) ops.add(hand.op = (await door.heard('BEGIN')).op);
    const over = hands.filter(({ i }) => i % 3 === round % 3);
    for (const hand of over) {
      hands.splice(hands.indexOf(hand), 1);
      door.say('ANSWER', hand.op, { answer: 'replay', own: false, status: 200, headers: [] }, Buffer.from(`${hand.i}`));
      assert.equal(await hand.given, hand.i);
    }
  }
  assert.equal(ops.size, 400);
  await door.die();
  for (const { i, op, given } of hands) {
    assert.equal((await door.heard('BEGIN')).op, op);
    door.say('ANSWER', op, { answer: 'replay', own: false, status: 200, headers: [] }, Buffer.from(`${i}`));
    assert.equal(await given, i);
  }
});

// A branch of a handler that goes on when the handler has ended begins no step of another's operation.
test('a step of an operation that is over', async () => {
  const hx = await played();
  let late;
  const hasty = hx.run({ key: 'k' }, (op) => { late = op; });
  await first();
  await hasty;
  let finish;
  const other = hx.run({ key: 'k2' }, () => new Promise((resolve) => { finish = resolve; }));
  door.say('RUN', (await door.heard('BEGIN')).op, RUN);
  while (!finish) await new Promise(setImmediate);
  await assert.rejects(late.step('charge', () => assert.fail()), { name: 'Fault', error: 'invalid' });
  finish(2);
  door.say('ANSWER', (await door.heard('END')).op, { answer: 'fresh', own: true, recorded: true });
  assert.equal(await other, 2);
});

// A step is resumed behind its operation, with the operation's new op.
test('the door dies within a step', async () => {
  const hx = await played();
  let finish;
  const given = hx.run({ key: 'k' }, (op) => op.step('charge', () => new Promise((resolve) => { finish = resolve; })));
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, RUN);
  const step = await door.heard('BEGIN');
  assert.deepEqual([step.meta.step, step.meta.in], ['charge', begin.op]);
  door.say('RUN', step.op, { ...RUN, key: 'k:charge', ticket: 'T2' });
  while (!finish) await new Promise(setImmediate);
  await door.die();
  const outer = await door.heard('RESUME');
  const inner = await door.heard('RESUME');
  assert.deepEqual([outer.meta.ticket, inner.meta.ticket, inner.meta.in], ['T1', 'T2', outer.op]);
  finish('paid');
  for (let i = 0; i < 2; i += 1) {
    const end = await door.heard('END');
    door.say('ANSWER', end.op, { answer: 'fresh', own: true });
  }
  assert.equal(await given, 'paid');
});

// A handler may end before its steps. The next door is told of all calls before it is told of an end.
test('the door dies when a handler has ended before its steps', async () => {
  const hx = await played();
  const steps = [];
  const given = hx.run({ key: 'k' }, (op) => {
    steps.push(op.step('charge', () => 7), op.step('mail', () => 8));
    throw new Error('hasty');
  });
  door.say('RUN', (await door.heard('BEGIN')).op, RUN);
  const [charge, mail] = [await door.heard('BEGIN'), await door.heard('BEGIN')];
  const outer = await door.heard('END');
  door.say('RUN', charge.op, { ...RUN, ticket: 'T2' });
  await door.heard('END');
  await door.die();
  const told = [];
  for (const name of ['RESUME', 'RESUME', 'BEGIN', 'END', 'END']) told.push((await door.heard(name)).op);
  assert.deepEqual(told, [outer.op, charge.op, mail.op, outer.op, charge.op]);
  door.say('RUN', mail.op, RUN);
  await door.heard('END');
  for (const { op } of [charge, mail, outer]) door.say('ANSWER', op, { answer: 'fresh', own: true });
  assert.deepEqual(await Promise.all(steps), [7, 8]);
  await assert.rejects(given, { message: 'hasty' });
});

// An unprotected run has no ticket: its result is the caller's, whatever becomes of the door.
test('the door dies under an unprotected run', async () => {
  const hx = await played();
  let finish;
  const given = hx.run({ key: 'k' }, () => new Promise((resolve) => { finish = resolve; }));
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, { attempt: 1, fence: 0, stale: false });
  while (!finish) await new Promise(setImmediate);
  await door.die();
  finish('done');
  assert.equal(await given, 'done');
});

// A door that does not come back: the handler is told, the caller gets "not known".
test('the door is gone for good', async () => {
  door = new PlayedDoor();
  await door.listen();
  const hx = sdk.connect(door.address, { timeout: 2000 });
  const given = hx.run({ key: 'k' }, (op) => new Promise((resolve) => {
    op.signal.addEventListener('abort', () => resolve(op.signal.reason.name));
  }));
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, RUN);
  await new Promise((resolve) => setTimeout(resolve, 20));
  await door.die(false);
  await assert.rejects(given, { name: 'Indeterminate' });
  await door.listen();
  const next = hx.run({ key: 'k' }, () => 2);
  await first();
  assert.equal(await next, 2);
});

// A lost claim aborts the handler's signal; the handler's end is sent all the same.
test('LOST', async () => {
  const hx = await played();
  const given = hx.run({ key: 'k' }, async (op) => {
    await new Promise((resolve) => op.signal.addEventListener('abort', resolve));
    assert.ok(op.lost && op.signal.reason instanceof sdk.ClaimLost);
    return 'mine';
  });
  const { op } = await door.heard('BEGIN');
  door.say('RUN', op, RUN);
  door.say('LOST', op, {});
  await door.heard('END');
  door.say('ANSWER', op, { answer: 'replay', own: false, status: 200, headers: [] }, Buffer.from('"theirs"'));
  assert.equal(await given, 'theirs');
});

// A caller that gives up cancels what does not run yet.
test('CANCEL', async () => {
  const hx = await played();
  const stop = new AbortController();
  const given = hx.run({ key: 'k', signal: stop.signal }, () => assert.fail('it must not run'));
  const { op } = await door.heard('BEGIN');
  stop.abort(new Error('enough'));
  const seen = assert.rejects(given, { message: 'enough' });
  await door.heard('CANCEL');
  door.say('ANSWER', op, { answer: 'in_flight', own: false, retry_after_ms: 10 });
  await seen;
  await assert.rejects(hx.run({ key: 'k', signal: stop.signal }, () => {}), { message: 'enough' });
});

// A handler that its caller cuts off may have had its effect: nobody can tell. What it throws besides is its failure.
test('a caller gives up a handler that runs', async () => {
  const hx = await played();
  const request = { method: 'POST', uri: '/', headers: [] };
  const enough = new sdk.NotRun('enough');
  for (const [error, how] of [
    [enough, 'unknown'],
    [new DOMException('of Node', 'AbortError'), 'unknown'],
    [Object.assign(new Error('of axios'), { name: 'CanceledError' }), 'unknown'],
    [new Error('declined'), 'failed'],
  ]) {
    for (const ask of [hx.run, hx.http]) {
      const stop = new AbortController();
      const given = ask.call(hx, { key: 'k', request, signal: stop.signal }, (op) => new Promise((resolve, reject) => {
        op.signal.addEventListener('abort', () => reject(error));
        stop.abort(enough);
      }));
      const seen = assert.rejects(given, (e) => e === error);
      const { end } = await first();
      await seen;
      assert.equal(end.meta.class ?? (end.meta.status === 500 && 'failed'), how, `${error.message} of ${ask.name}`);
    }
  }
  const seen = assert.rejects(hx.run({ key: 'k' }, () => { throw enough; }), (e) => e === enough);
  assert.equal((await first()).end.meta.class, 'failed');
  await seen;
});

// What the caller gives up is the step as well: nobody can tell what became of it.
test('a caller gives up a handler whose step runs', async () => {
  const hx = await played();
  const stop = new AbortController();
  const given = hx.run({ key: 'k', signal: stop.signal }, (op) => op.step('charge', (step) => new Promise((_, reject) => {
    step.signal.addEventListener('abort', () => reject(step.signal.reason));
    stop.abort(new Error('enough'));
  })));
  const seen = assert.rejects(given, { message: 'enough' });
  door.say('RUN', (await door.heard('BEGIN')).op, RUN);
  door.say('RUN', (await door.heard('BEGIN')).op, RUN);
  for (let i = 0; i < 2; i += 1) {
    const end = await door.heard('END');
    assert.equal(end.meta.class, 'unknown');
    door.say('ANSWER', end.op, { answer: 'fresh', own: true });
  }
  await seen;
});

// Where RUN crosses CANCEL nothing runs, and END says so.
test('RUN crosses CANCEL', async () => {
  const hx = await played();
  const stop = new AbortController();
  const given = hx.run({ key: 'k', signal: stop.signal }, () => assert.fail('it must not run'));
  const { op } = await door.heard('BEGIN');
  stop.abort(new Error('enough'));
  const seen = assert.rejects(given, { message: 'enough' });
  door.say('RUN', op, RUN);
  await door.heard('CANCEL');
  assert.equal((await door.heard('END')).meta.class, 'not_run');
  door.say('ANSWER', op, { answer: 'fresh', own: true, class: 'not_run' });
  await seen;
});

// Where RECONCILE crosses CANCEL the hook is not asked, and nobody can tell what an earlier attempt did.
test('RECONCILE crosses CANCEL', async () => {
  const hx = await played();
  const stop = new AbortController();
  const given = hx.run({ key: 'k', signal: stop.signal, reconcile: () => assert.fail() }, () => assert.fail());
  const { op } = await door.heard('BEGIN');
  stop.abort(new Error('enough'));
  const seen = assert.rejects(given, { message: 'enough' });
  door.say('RECONCILE', op, { ...RUN, stale: true });
  await door.heard('CANCEL');
  assert.equal((await door.heard('END')).meta.class, 'unknown');
  door.say('ANSWER', op, { answer: 'unknown', own: false });
  await seen;
});

// A hook's word is END; "it did not happen" is followed by RUN.
test('RECONCILE', async () => {
  const hx = await played();
  for (const [said, cls] of [[{ happened: false }, 'not_run'], [{ happened: true, value: 7 }, 'final'], [undefined, 'unknown']]) {
    const given = hx.run({ key: 'k', onExpired: 'reconcile', reconcile: (op) => (op.stale ? said : {}) }, () => 8);
    const { op } = await door.heard('BEGIN');
    door.say('RECONCILE', op, { ...RUN, stale: true });
    const end = await door.heard('END');
    assert.equal(end.meta.class, cls);
    if (cls === 'final') {
      door.say('ANSWER', op, { answer: 'replay', own: false, status: 200, headers: [] }, end.body);
      assert.equal(await given, 7);
    } else if (cls === 'not_run') {
      door.say('RUN', op, RUN);
      await door.heard('END');
      door.say('ANSWER', op, { answer: 'fresh', own: true });
      assert.equal(await given, 8);
    } else {
      const seen = assert.rejects(given, { name: 'Unknown' });
      door.say('ANSWER', op, { answer: 'unknown', own: false });
      await seen;
    }
  }
});

// After a step began nobody may say that nothing was done.
test('NotRun after a step is a failure', async () => {
  const hx = await played();
  const seen = assert.rejects(hx.run({ key: 'k' }, async (op) => {
    await op.step('charge', () => 1);
    throw new sdk.NotRun('late');
  }), { name: 'NotRun' });
  const begin = await door.heard('BEGIN');
  door.say('RUN', begin.op, RUN);
  await first();
  assert.equal((await door.heard('END')).meta.class, 'failed');
  door.say('ANSWER', begin.op, { answer: 'fresh', own: true, class: 'failed' });
  await seen;
});

// So does the handler of a request. Before a step it may, unless it passes on what another operation said of itself.
test('NotRun of a request', async () => {
  const hx = await played();
  const late = () => { throw new sdk.NotRun('late'); };
  for (const before of [undefined, (op) => op.step('charge', () => 1), () => hx.run({ key: 'other' }, late)]) {
    const seen = assert.rejects(hx.http({ key: 'k', request: { method: 'POST', uri: '/', headers: [] } }, async (op) => {
      await before?.(op);
      late();
    }), { name: 'NotRun' });
    const begin = await door.heard('BEGIN');
    door.say('RUN', begin.op, RUN);
    if (before) await first();
    assert.deepEqual((await door.heard('END')).meta, before ? { status: 500 } : { class: 'not_run' });
    door.say('ANSWER', begin.op, { answer: 'fresh', own: true, class: before ? 'failed' : 'not_run', status: 500, headers: [] });
    await seen;
  }
});

// A handler of a request that throws has failed. One that gives a part of a response, or none, has run.
test('a request whose handler gives no response', async () => {
  const hx = await played();
  const broken = new Error('broken');
  for (const [handler, meta] of [
    [async () => { throw broken; }, { status: 500 }],
    [async () => ({ error: broken }), { class: 'unknown' }],
    [async () => ({ error: undefined }), { class: 'unknown' }],
    [async () => ({ status: 200, headers: [null], body: Buffer.alloc(0) }), { class: 'unknown' }],
    [async () => undefined, { class: 'unknown' }],
    [async () => ({ status: 200n, headers: [], body: Buffer.alloc(0) }), { class: 'unknown' }],
  ]) {
    const seen = assert.rejects(hx.http({ key: 'k', request: { method: 'POST', uri: '/', headers: [] } }, handler));
    const { end } = await first();
    assert.deepEqual(end.meta, meta);
    await seen;
  }
});

// While an op is in hand the client beats, and not otherwise.
test('BEAT', async () => {
  const hx = await played({ welcome: { version: 1, beat_ms: 5 } });
  let finish;
  const given = hx.run({ key: 'k' }, () => new Promise((resolve) => { finish = resolve; }));
  const { op } = await door.heard('BEGIN');
  door.say('RUN', op, RUN);
  await new Promise((resolve) => { door.onBeat = () => door.beats >= 3 && resolve(); });
  finish();
  await door.heard('END');
  door.say('ANSWER', op, { answer: 'fresh', own: true });
  await given;
  await new Promise((resolve) => setTimeout(resolve, 50)); // one may still be on its way
  const { beats } = door;
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(door.beats, beats);
});

// A client that broke the protocol is told so, and does not try for ever.
test('a FAULT for the connection', async () => {
  const hx = await played();
  const seen = assert.rejects(hx.run({ key: 'k' }, () => {}), { name: 'Fault', message: 'that was no frame' });
  await door.heard('BEGIN');
  door.say('FAULT', 0, { error: 'invalid', text: 'that was no frame' });
  await seen;
  assert.equal(door.connections, 1);
});

// A door that sends no frames is left.
test('bytes that are no frames', async () => {
  const hx = await played();
  const seen = assert.rejects(hx.run({ key: 'k' }, () => {}), { name: 'Fault' });
  await door.heard('BEGIN');
  door.sockets.at(-1).write(Buffer.alloc(64, 0xff));
  await seen;
});

// What is over a frame is refused before it is sent, and the connection lives on.
test('a request over a frame', async () => {
  const hx = await played();
  await assert.rejects(hx.run({ key: 'k', fingerprint: Buffer.alloc(18 << 20) }, () => {}), sdk.TooLarge);
  await assert.rejects(hx.run({ key: 'k', owner: 'o'.repeat(2 << 20) }, () => {}), sdk.TooLarge);
  const given = hx.run({ key: 'k' }, () => 1);
  await first();
  assert.equal(await given, 1);
});

// What no door could keep is given to the caller, and repeats are told that it is gone.
test('a result over every limit', async () => {
  const hx = await played();
  for (const size of [(16 << 20) + 1, 18 << 20]) {
    const given = hx.run({ key: 'k', codec: 'bytes' }, () => Buffer.alloc(size));
    const { end } = await first();
    const { class: how, body_kept: kept } = end.meta;
    assert.deepEqual([how, kept, end.body.length, (await given).length], ['final', false, 0, size]);
  }
});

// A key that is missing by a mistake does not run unprotected.
test('no key', async () => {
  const hx = await played();
  for (const key of [undefined, null, '', Buffer.alloc(0), new Uint8Array(0)]) {
    await assert.rejects(hx.run({ key }, () => assert.fail()), TypeError);
  }
});

// close() waits for what is in hand, and takes no more.
test('close', async () => {
  const hx = await played();
  const given = hx.run({ key: 'k' }, () => 1);
  const closed = hx.close();
  await first();
  assert.equal(await given, 1);
  await closed;
  await assert.rejects(hx.run({ key: 'k' }, () => {}), sdk.StoreDown);
});

// Two middlewares hold a response one within the other, and what stands between them sees once what the inner one sends.
test('a response that is held twice', async () => {
  const hx = await played();
  const [outer, inner] = [idempotent(hx, { scope: 'outer' }), idempotent(hx, { scope: 'inner' })];
  const seen = [];
  const server = http.createServer((req, res) => outer(req, res, () => {
    const { end } = res;
    res.end = (...words) => {
      seen.push(String(words[0]));
      return end.apply(res, words);
    };
    inner(req, res, () => {
      res.writeHead(201, { 'X-Tags': ['a', 'b'], 'Set-Cookie': 'c=1' });
      seen.push(res.headersSent, res.writableEnded);
      res.end('told');
      seen.push(res.writableEnded);
    });
  }));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const asked = fetch(`http://127.0.0.1:${server.address().port}/`, { method: 'POST', headers: { 'Idempotency-Key': 'k' } });
  const begins = [await door.heard('BEGIN')];
  door.say('RUN', begins[0].op, RUN);
  begins.push(await door.heard('BEGIN'));
  door.say('RUN', begins[1].op, RUN);
  for (const [op, name] of [[begins[1].op, 'Inner'], [begins[0].op, 'Outer']]) {
    const end = await door.heard('END');
    assert.deepEqual([end.op, end.meta.status, end.body.toString()], [op, 201, 'told']);
    assert.deepEqual(end.meta.headers.slice(0, 3), [['X-Tags', 'a'], ['X-Tags', 'b'], ['Set-Cookie', 'c=1']]);
    door.say('ANSWER', op, { answer: 'fresh', own: true, recorded: true, status: 201, headers: [[name, '1']] });
  }
  const response = await asked;
  assert.deepEqual([response.status, await response.text()], [201, 'told']);
  assert.deepEqual(['x-tags', 'inner', 'outer', 'content-length'].map((one) => response.headers.get(one)), ['a, b', '1', '1', '4']);
  assert.deepEqual(seen, [true, false, true, 'told']);
  await new Promise((resolve) => server.close(resolve));
});

// Without a key there is nothing to compare: the body is its handler's, however long. The door is asked all the same.
test('a large request without a key', async () => {
  const hx = await played();
  // Of a key that is no text it is not looked whether there are bytes in it: the door says so.
  for (const [options, told] of [[{}, 0], [{ key: () => '' }, 0], [{ key: () => Buffer.alloc(0) }, (16 << 20) + 1]]) {
    const guard = idempotent(hx, options);
    const server = http.createServer((req, res) => guard(req, res, async (error) => {
      let size = 0;
      for await (const part of req) size += part.length;
      res.end(String(error ?? size));
    }));
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const asked = fetch(`http://127.0.0.1:${server.address().port}/`, { method: 'POST', body: Buffer.alloc(17 << 20) });
    const answered = asked.then((response) => response.text());
    const begin = await Promise.race([door.heard('BEGIN'), answered]);
    assert.equal(begin.body?.length, told, begin);
    door.say('RUN', begin.op, { attempt: 1, fence: 0, stale: false });
    const { op } = await door.heard('END');
    door.say('ANSWER', op, { answer: 'bypass', own: true, recorded: false, status: 200, headers: [] });
    assert.equal(await answered, String(17 << 20));
    await new Promise((resolve) => server.close(resolve));
  }
});

// A held response is sent whole, so it has a length: what a handler says of chunks and trailers holds no longer.
test('a response whose handler frames it', async () => {
  const guard = idempotent(await played(), {});
  const server = http.createServer((req, res) => guard(req, res, () => {
    res.writeHead(200, { 'Transfer-Encoding': 'chunked', Trailer: 'X-Late' });
    res.end('told');
  }));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const asked = fetch(`http://127.0.0.1:${server.address().port}/`, { method: 'POST', headers: { 'Idempotency-Key': 'k' } });
  const { op } = await door.heard('BEGIN');
  door.say('RUN', op, RUN);
  assert.deepEqual((await door.heard('END')).meta.headers ?? [], []);
  door.say('ANSWER', op, { answer: 'fresh', own: true, recorded: true, status: 200 });
  const response = await asked;
  assert.deepEqual(['content-length', 'transfer-encoding', 'trailer'].map((one) => response.headers.get(one)), ['4', null, null]);
  assert.equal(await response.text(), 'told');
  await new Promise((resolve) => server.close(resolve));
});

// What cannot be sent is not stored either: other programs read the record, too.
test('a body behind 204', async () => {
  const guard = idempotent(await played(), {});
  const server = http.createServer((req, res) => guard(req, res, () => {
    res.writeHead(204, { 'Content-Length': '4' });
    res.write('to');
    res.end('ld');
  }));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const asked = fetch(`http://127.0.0.1:${server.address().port}/`, { method: 'POST', headers: { 'Idempotency-Key': 'k' } });
  const { op } = await door.heard('BEGIN');
  door.say('RUN', op, RUN);
  const end = await door.heard('END');
  door.say('ANSWER', op, { answer: 'fresh', own: true, recorded: true, status: 204 });
  const response = await asked;
  await response.arrayBuffer();
  await new Promise((resolve) => server.close(resolve));
  assert.deepEqual([end.meta.headers ?? [], end.body.length, response.headers.get('content-length')], [[], 0, null]);
});

// Each call has its own async context, and not that of the call that opened the connection: in handlers, steps, hooks,
// listeners of the signal, behind a middleware, and at a next connection.
test('AsyncLocalStorage is that of each call', async () => {
  const hx = await played();
  const context = new AsyncLocalStorage();
  const seen = [];
  const look = (what) => seen.push(`${what} ${context.getStore()}`);
  const guard = idempotent(hx, {});
  const server = http.createServer((req, res) => context.run(req.url, () => guard(req, res, () => {
    look('next');
    res.end();
  })));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  server.unref();
  const request = (path) => fetch(`http://127.0.0.1:${server.address().port}${path}`, { method: 'POST' });
  const post = async (path) => {
    const given = request(path);
    const begin = await door.heard('BEGIN');
    door.say('RUN', begin.op, RUN);
    const end = await door.heard('END');
    door.say('ANSWER', end.op, { answer: 'fresh', own: true, recorded: true, status: 200, headers: [] });
    await (await given).arrayBuffer();
  };
  await post('/opens');
  await post('/second');
  const given = context.run('third', () => hx.run({
    key: 'k', reconcile() { look('hook'); return { happened: false }; },
  }, async (op) => {
    look('handler');
    const lost = new Promise((resolve) => {
      op.signal.addEventListener('abort', () => { look('lost'); resolve(); });
    });
    await op.step('s', () => look('step'));
    await lost;
  }));
  const begin = await door.heard('BEGIN');
  door.say('RECONCILE', begin.op, RUN);
  assert.equal((await door.heard('END')).meta.class, 'not_run');
  door.say('RUN', begin.op, RUN);
  await first();
  door.say('LOST', begin.op, {});
  door.say('ANSWER', (await door.heard('END')).op, { answer: 'fresh', own: true });
  await given;
  const next = context.run('fourth', () => hx.run({ key: 'k' }, () => look('handler')));
  const { op } = await door.heard('BEGIN');
  await door.die();
  await door.heard('BEGIN');
  door.say('RUN', op, RUN);
  door.say('ANSWER', (await door.heard('END')).op, { answer: 'fresh', own: true });
  await next;
  assert.deepEqual(seen, [
    'next /opens', 'next /second', 'hook third', 'handler third', 'step third', 'lost third', 'handler fourth',
  ]);
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

// The connection and its beat live longer than the calls that began them, and keep nothing of those calls.
test('no call is kept for its async context', async () => {
  const hx = await played();
  const context = new AsyncLocalStorage();
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  const refs = [];
  const begin = async (handler) => {
    const store = {};
    refs.push(new WeakRef(store));
    const given = context.run(store, () => hx.run({ key: 'k' }, handler));
    const { op } = await door.heard('BEGIN');
    door.say('RUN', op, RUN);
    return { given };
  };
  const end = async ({ given }) => {
    door.say('ANSWER', (await door.heard('END')).op, { answer: 'fresh', own: true });
    await given;
  };
  await end(await begin(() => 1)); // it opens the connection
  let go;
  const waited = new Promise((resolve) => { go = resolve; });
  let wakes = await begin(() => 2);
  const lasts = await begin(() => waited);
  await end(wakes);
  wakes = undefined; // a promise keeps its context
  while (refs.slice(0, 2).some((ref) => ref.deref())) {
    await new Promise((resolve) => setImmediate(resolve));
    collect();
  }
  go();
  await end(lasts);
});

// A body over one buffer, and one that is over the buffer's rest, come whole and in order.
test('large bodies between small ones', async () => {
  const hx = await played();
  const sizes = [1, 8 << 10, (8 << 10) + 1, 3, 60 << 10, 1 << 20, 2];
  const given = sizes.map((size) => hx.run({ key: 'k', fingerprint: Buffer.alloc(size, size) }, () => size));
  for (const size of sizes) {
    const begin = await door.heard('BEGIN');
    assert.ok(begin.body.equals(Buffer.alloc(size, size)), `${size} bytes`);
    door.say('RUN', begin.op, RUN);
  }
  for (const size of sizes) {
    const end = await door.heard('END');
    assert.equal(end.body.toString(), String(size));
    door.say('ANSWER', end.op, { answer: 'fresh', own: true, recorded: true, class: 'final' });
  }
  assert.deepEqual(await Promise.all(given), sizes);
});

// A program with an idle connection ends by itself.
test('an idle connection keeps no process alive', async () => {
  await played();
  const script = `require(${JSON.stringify(path.join(ROOT, 'sdk/node'))}).connect(${JSON.stringify(door.address)})
    .run({ key: 'k' }, () => 1).then(console.log)`;
  const child = require('node:child_process').spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  let out = '';
  child.stdout.on('data', (text) => { out += text; });
  const ended = new Promise((resolve) => child.on('close', resolve));
  await first();
  assert.deepEqual([await ended, out], [0, '1\n']);
});
