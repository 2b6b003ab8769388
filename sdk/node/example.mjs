// A refund that is made once, however often it is asked for. Run it below a door:
//
//     hapax door --store rocksdb:/tmp/refunds -- node example.mjs order-17 500
import { InFlight, Mismatch, connect } from 'hapax-sdk';

const hx = connect(); // $HAPAX_DOOR
let made = 0;

const refund = hx.once({ scope: 'refunds', key: (order) => order, retention: '7d' }, async (order, amount, op) => {
  const charge = await op.step('charge', async (step) => bank(order, amount, step.key));
  return { receipt: charge };
});

async function bank(order, amount, key) { // a real one takes the key as Idempotency-Key
  made += key === `${order}:charge` && amount > 0 ? 1 : 0;
  return `re_${made}`;
}

const [order, amount] = process.argv.slice(2);
try {
  const receipts = [await refund(order, Number(amount)), await refund(order, Number(amount))];
  for (const { receipt } of receipts) console.log(`${receipt} for ${order}`);
  console.log(`${made} refund was made`);
} catch (e) {
  if (e instanceof Mismatch) console.log(`${order} was asked for with another amount`);
  else if (e instanceof InFlight) console.log(`ask again in ${e.retryAfter} s`);
  else throw e;
}
await hx.close();
