// SPDX-License-Identifier: Apache-2.0

// Package hapax runs each logical request once, and gives every repeat the first result.
//
//	door, err := hapax.Dial(ctx, "")                 // one for the process
//
//	receipt, err := hapax.Do(ctx, door, hapax.Key("refunds", order.ID),
//		func(ctx context.Context, op *hapax.Op) (Receipt, error) {
//			charge, err := hapax.Step(ctx, op, "charge", func(ctx context.Context, s *hapax.Op) (Charge, error) {
//				return stripe.Refund(ctx, order, s.Key())  // its idempotency key: KEY:charge
//			})
//			if err != nil {
//				return Receipt{}, err                      // failed: the next caller goes on from here
//			}
//			return Receipt{charge.ID}, ledger.Write(ctx, order, op.Fence())
//		}, hapax.Fingerprint(order), hapax.Retention(7*24*time.Hour))
//
//	if errors.Is(err, hapax.ErrInFlight) { … }       // another attempt runs: ask again later
//
// The program talks to hapax door, which runs on the same machine and keeps the records in a store:
//
//	hapax door --store postgres://db/shop -- ./shop
//
// All decisions are made there. This package holds no lease, no claim and no retry of a store
// (docs/door.md of the project is the protocol). It needs nothing but the standard library.
//
// # What it promises, and what it cannot
//
// While a claim is live no second handler starts. A stored result is the answer to every repeat until
// its retention ends. Where a process dies between an effect and the moment when its result is
// stored, nobody can tell whether the effect happened: by default the next caller runs the handler
// again; under [Hold] an operator decides; [Reconcile] asks a function of yours. Give the next service
// [Op.Key], and what you write to [Op.Fence], so that they can tell a repeat and a late attempt.
//
// # Other packages
//
// hapaxhttp is for net/http: a middleware, a client that retries with one key, and what handlers
// behind hapax serve or hapax consume need. hapaxpg completes an operation in your PostgreSQL
// transaction. hapaxgin, a module of its own, is the middleware for gin.
package hapax
