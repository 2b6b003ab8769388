// A shop on stripe-node: stripe_shop.mjs MODULE PORT CALLS RETRIES. Makes the calls, a JSON list of [amount, description, key],
// one after another, and prints what each became.
const [module, port, calls, retries] = process.argv.slice(2);
const { default: Stripe } = await import(module);
const maxNetworkRetries = Number(retries);
const stripe = new Stripe('sk_test_x', { host: '127.0.0.1', port, protocol: 'http', maxNetworkRetries });
const results = [];
for (const [amount, description, idempotencyKey] of JSON.parse(calls)) {
    try {
        const charge = await stripe.charges.create({ amount, currency: 'eur', description }, { idempotencyKey });
        results.push({ id: charge.id ?? null });
    } catch (error) {
        const { statusCode: status, type: name, rawType: type, code, message } = error;
        results.push({ status, name, type, code, message });
    }
}
// The SDK leaves the answer unread after which it tries again: its connection would keep this process alive.
process.stdout.write(JSON.stringify(results), () => process.exit());
