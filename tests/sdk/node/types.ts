// Compiled for ESM and CommonJS by tests/sdk/test_node.py, and never run.
import express from 'express';
import Fastify from 'fastify';
import { Controller, Post, Req } from '@nestjs/common';
import { Hono } from 'hono';
import { Worker } from 'bullmq';
import { InFlight, Mismatch, NotRun, bytes, connect, type Op } from 'hapax-sdk';
import { idempotent as bullmq } from 'hapax-sdk/bullmq';
import { axiosAdapter, retrying } from 'hapax-sdk/client';
import { idempotent } from 'hapax-sdk/express';
import { idempotent as fastify } from 'hapax-sdk/fastify';
import { attemptOf, checkFence, complete, keyDerive } from 'hapax-sdk/handler';
import { idempotent as hono } from 'hapax-sdk/hono';
import { Idempotent, IdempotentInterceptor } from 'hapax-sdk/nest';

interface Order { id: string; amount: number }

const hx = connect('unix:/run/hapax/door.sock', { timeout: 5000 });

export const refund = hx.once(
  {
    scope: 'refunds', key: (order: Order) => order.id, onExpired: 'hold', retention: '7d', retention4xx: '1h', tombstone: '90d',
    keyExpires: true,
  },
  async (order, op) => {
    const charge: string = await op.step('charge', async (s) => `${s.key} ${s.signal.aborted}`);
    const fence: number = op.fence;
    return { charge, fence, amount: order.amount };
  },
);

export async function use(): Promise<number> {
  const done: { charge: string } = await refund({ id: 'a', amount: 5 });
  // @ts-expect-error a call has the arguments of the handler, without the op
  await refund('a');
  // @ts-expect-error there is no such policy
  hx.once({ key: 'k', onExpired: 'sometimes' }, () => 1);
  // @ts-expect-error a key is needed
  hx.run({ scope: 'x' }, () => 1);
  const raw: Buffer = await hx.run({ key: 'k', codec: bytes }, () => Buffer.from(done.charge));
  const told = await hx.message({ key: 'k', message: { attempts: 1 } }, () => 5);
  if (told.do === 'retry') setTimeout(() => {}, told.afterMs);
  try {
    return await hx.run({ key: 'k', signal: AbortSignal.timeout(5) }, async (op: Op) => {
      if (op.stale) throw new NotRun('later', { cause: raw });
      return 5;
    });
  } catch (e) {
    if (e instanceof InFlight) return e.retryAfter ?? e.silentMs ?? 0;
    if (e instanceof Mismatch) return e.differs === 'caller' ? 1 : 2;
    throw e;
  } finally {
    await hx.close();
  }
}

const app = express();
app.post('/a', idempotent(hx, { scope: 'a', onExpired: 'hold', caller: (r) => r.ip }), (req, res) => { res.send('x'); });
app.use(idempotent(hx));
Fastify().post('/a', { preHandler: fastify(hx, { scope: 'a' }) }, async () => ({ a: 1 }));
new Hono().post('/a', hono(hx, { scope: (c) => c.req.path }), (c) => c.text('x'));
new Worker('orders', bullmq(hx, { key: (job) => job.data.id, onExpired: 'hold' }, async (job, op) => `${job.id} ${op.fence}`));

@Controller()
export class Payments {
  @Post('/a')
  @Idempotent({ scope: 'a', profile: 'payments' })
  pay(@Req() request: any): string {
    return request.hapax.key;
  }
}
export const interceptor = new IdempotentInterceptor(hx, { lease: '10s' });

export async function handler(client: { query(text: string, values: any[]): Promise<any> }, request: Request): Promise<string> {
  const { fence, key } = attemptOf(request);
  await checkFence(client, 'card', fence!);
  const outcome = await complete(client, request, 201, { a: 1 }, { Location: '/a' });
  // @ts-expect-error a number is no transaction
  await complete(5, request, 201);
  return `${keyDerive(key!, 'charge')}${outcome?.body}`;
}

export async function call(): Promise<Response> {
  const send = retrying(fetch, { tries: 3 });
  // @ts-expect-error there is no such option
  retrying(fetch, { retries: 3 });
  axiosAdapter({}, { pause: 100 });
  return send('http://x/', { method: 'POST', body: 'x', idempotencyKey: 'k' });
}
