// The SQS stand-in of the tests: fauxqs, with what it leaves out of FIFO queues, and with faults on request.
//
//   node sqs_server.mjs NPM PORT       NPM: the folder that tools/npm/fetch filled
//
// A stand-in, not SQS: all is in memory and ends with it, no signature is looked at, nothing is sampled or late.
// What is put in here, by the words of SQS's manual:
// - a poll of a FIFO queue brings several messages of a group, in order, and no other poll any of that group until all of
//   them are deleted or visible again; one that is visible again stands where it stood (fauxqs: in front).
// - POST /faults takes a list of [{op, how, times, code, entries, after}]: the next `times` calls of op, after `after` others,
//   are answered with an error of that code and not carried out (how: "error"), or carried out and not answered ("lost"),
//   or carried out but for the entries at these places, which fail with that code ("partial"; sender: whose fault).
// - GET /seen: how often each operation was asked for, and the entries of batches, by operation.
import path from 'node:path';

const [npm, port] = process.argv.slice(2);
const dist = path.join(path.resolve(npm), 'node_modules/fauxqs/dist');
const { buildApp } = await import(path.join(dist, 'app.js'));
const { SqsQueue } = await import(path.join(dist, 'sqs/sqsStore.js'));
const { SqsRouter } = await import(path.join(dist, 'sqs/sqsRouter.js'));
const { randomUUID } = await import('node:crypto');

function inOrder(queue) {
  for (const group of queue.fifoMessages.values())
    group.sort((a, b) => (a.sequenceNumber < b.sequenceNumber ? -1 : 1));
}

for (const name of ['changeVisibility', 'processTimers']) {
  const plain = SqsQueue.prototype[name];
  SqsQueue.prototype[name] = function (...words) {
    plain.apply(this, words);
    inOrder(this);
  };
}

SqsQueue.prototype.dequeueFifo = function (most, visibility, dlqOf) {
  this.processTimers();
  const policy = JSON.parse(this.attributes.RedrivePolicy ?? '{}');
  const seconds = visibility ?? parseInt(this.attributes.VisibilityTimeout);
  const out = [];
  for (const [id, group] of this.fifoMessages) {
    if (this.fifoLockedGroups.has(id)) continue;
    while (out.length < most && group.length > 0) {
      const message = group.shift();
      message.approximateReceiveCount++;
      if (policy.maxReceiveCount && message.approximateReceiveCount > policy.maxReceiveCount) {
        dlqOf(policy.deadLetterTargetArn).enqueue(message);
        continue;
      }
      const receiptHandle = randomUUID();
      this.inflightMessages.set(receiptHandle, { message, receiptHandle, visibilityDeadline: Date.now() + seconds * 1000 });
      this.fifoLockedGroups.set(id, (this.fifoLockedGroups.get(id) ?? 0) + 1);
      const received = { MessageId: message.messageId, ReceiptHandle: receiptHandle, MD5OfBody: message.md5OfBody, Body: message.body };
      if (Object.keys(message.messageAttributes).length > 0) received.MessageAttributes = message.messageAttributes;
      out.push(received);
    }
    if (group.length === 0) this.fifoMessages.delete(id);
  }
  return out;
};

let faults = [];
const seen = {}, entriesSeen = {};

function faultOf(op) {
  const fault = faults.find((one) => one.op === op && (one.times ?? 1) > 0);
  if (!fault) return undefined;
  if ((fault.after ?? 0) > 0) {
    fault.after--;
    return undefined;
  }
  fault.times = (fault.times ?? 1) - 1;
  return fault;
}

const plainHandle = SqsRouter.prototype.handle;
SqsRouter.prototype.handle = async function (request, reply) {
  const op = (request.headers['x-amz-target'] ?? '').replace('AmazonSQS.', '');
  const fault = faultOf(op);
  seen[op] = (seen[op] ?? 0) + 1;
  entriesSeen[op] = (entriesSeen[op] ?? 0) + (request.body?.Entries?.length ?? 0);
  if (!fault) return plainHandle.call(this, request, reply);
  if (fault.how === 'error') {
    reply.status(fault.status ?? 400);
    reply.header('content-type', 'application/x-amz-json-1.0');
    return { __type: `com.amazonaws.sqs#${fault.code}`, message: 'as asked for' };
  }
  if (fault.how === 'lost') {
    await plainHandle.call(this, request, reply);
    reply.hijack();
    request.raw.socket.destroy();
    return undefined;
  }
  const spared = (fault.entries ?? []).filter((i) => i < request.body.Entries.length);
  const failed = spared.map((i) => ({ Id: request.body.Entries[i].Id, SenderFault: fault.sender ?? false, Code: fault.code, Message: '' }));
  request.body.Entries = request.body.Entries.filter((_, i) => !spared.includes(i));
  if (request.body.Entries.length === 0) {
    reply.header('content-type', 'application/x-amz-json-1.0');
    return { Successful: [], Failed: failed };
  }
  const answer = await plainHandle.call(this, request, reply);
  return { ...answer, Failed: [...(answer.Failed ?? []), ...failed] };
};

const app = buildApp({ logger: false, host: '127.0.0.1' });
app.post('/faults', async (request) => {
  faults = JSON.parse(request.body.toString());
  return {};
});
app.get('/seen', async () => ({ calls: seen, entries: entriesSeen }));
await app.listen({ port: Number(port), host: '127.0.0.1' });
