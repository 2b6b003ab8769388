"""A shop on stripe-python: stripe_shop.py PORT CALLS RETRIES. Makes the calls, a JSON list of [amount, description,
key], one after another, and prints what each became."""
import json
import sys

import stripe

client = stripe.StripeClient("sk_test_x", base_addresses={"api": f"http://127.0.0.1:{sys.argv[1]}"},
                             max_network_retries=int(sys.argv[3]))
results = []
for amount, description, key in json.loads(sys.argv[2]):
    try:
        charge = client.v1.charges.create({"amount": amount, "currency": "eur", "description": description},
                                          {"idempotency_key": key})
        results.append({"id": charge.id})
    except stripe.StripeError as error:
        results.append({"status": error.http_status, "name": type(error).__name__, "type": error.error.type,
                        "code": error.error.code, "message": error.user_message})
print(json.dumps(results))
