'use strict';
// A worker of BullMQ: jobs.js REDIS-PORT [QUEUE [ON-EXPIRED]], and $HAPAX_DOOR. Lines of JSON in: {jobs: [[name, key]…]}
// adds jobs and waits for them all, or with wait: false goes on; {watch: N} waits for N jobs to end. Each effect of
// "hang" is a line out, and each job that ends under watch.
const { Queue, QueueEvents, UnrecoverableError, Worker } = require('bullmq');
const sdk = require('../../../sdk/node');
const { idempotent } = require('../../../sdk/node/lib/bullmq.js');

const [port, name = 'orders', onExpired] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const effects = {};
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function handler(job) {
  const what = `${job.name} ${job.data.key}`;
  effects[what] = (effects[what] ?? 0) + 1;
  if (job.name === 'refuse') throw new sdk.Refused('hopeless');
  if (job.name === 'unrecoverable') throw new UnrecoverableError('for good');
  if (job.name === 'flaky' && effects[what] === 1) throw new Error('not yet');
  if (job.name === 'hang') {
    say({ effect: what });
    if (process.argv.length > 3 && !watching) await new Promise(() => {});
  }
  return { paid: job.data.key };
}

let watching = false;

function work() {
  const options = {
    key: (job) => job.data.key, fingerprint: (job) => [job.name, job.data.key], message: { retry_min: '10ms' },
    onExpired, lease: '1s',
  };
  const settings = { connection, lockDuration: 1000, stalledInterval: 500, maxStalledCount: 5 };
  return new Worker(name, idempotent(sdk.connect({ timeout: 20000 }), options, handler), settings);
}

function ended(events, queue, count) {
  const told = [];
  return new Promise((resolve) => {
    const add = (state) => async ({ jobId, returnvalue, failedReason }) => {
      const job = await queue.getJob(jobId);
      told.push({ key: job.data.key, state, value: returnvalue, reason: failedReason });
      if (told.length === count) resolve(told);
    };
    events.on('completed', add('completed'));
    events.on('failed', add('failed'));
  });
}

async function main() {
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  await events.waitUntilReady();
  for await (const line of require('node:readline').createInterface({ input: process.stdin })) {
    const { jobs = [], wait = true, watch } = JSON.parse(line);
    watching = watch !== undefined;
    const all = ended(events, queue, watch ?? jobs.length);
    for (const [what, key] of jobs) await queue.add(what, { key });
    const worker = work();
    worker.on('error', () => {});
    if (watching) for (const one of await all) say(one);
    else if (wait) say({ jobs: await all, effects });
  }
}

main();
