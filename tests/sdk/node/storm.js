'use strict';
// A worker of BullMQ whose effects are lines of a file, for storms: storm.js REDIS-PORT QUEUE ON-EXPIRED FILE, and
// $HAPAX_DOOR. With a number behind them it adds that many keys, each in two jobs, waits for all jobs to end, and
// prints how many completed and the reasons of those that failed.
const fs = require('node:fs');
const { Queue, Worker } = require('bullmq');
const sdk = require('../../../sdk/node');
const { idempotent } = require('../../../sdk/node/lib/bullmq.js');

const [port, name, onExpired, file, keys] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };

async function handler(job, op) {
  await new Promise((resolve) => setTimeout(resolve, Math.random() * 20));
  fs.appendFileSync(file, `${job.data.key} ${op.attempt}\n`);
  await new Promise((resolve) => setTimeout(resolve, Math.random() * 20));
  return job.data.key;
}

async function watch() {
  const queue = new Queue(name, { connection });
  await queue.addBulk(Array.from({ length: 2 * keys }, (_, i) => ({ name: 'pay', data: { key: `k${i % keys}` } })));
  console.log('added');
  for (;;) {
    const counts = await queue.getJobCounts('completed', 'failed');
    if (counts.completed + counts.failed === 2 * keys) {
      const failed = await queue.getFailed(0, 2 * keys);
      console.log(JSON.stringify({ completed: counts.completed, reasons: failed.map((job) => job.failedReason) }));
      return queue.close();
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

if (keys) {
  watch();
} else {
  const options = {
    key: (job) => job.data.key, message: { retry_min: '20ms', retry_max: '200ms' }, onExpired, lease: '1s', attemptsMax: 0,
  };
  const settings = { connection, concurrency: 5, lockDuration: 2000, stalledInterval: 500, maxStalledCount: 1000 };
  const hapax = sdk.connect({ timeout: 60000 });
  new Worker(name, idempotent(hapax, options, handler), settings).on('error', () => {});
}
