// SPDX-License-Identifier: Apache-2.0

// Package hapaxhttp is Hapax for net/http.
//
//   - [Once] runs a handler once for each Idempotency-Key, through a door.
//   - [Transport] is for clients: one key per call, and the same key on each retry. [ProblemOf] reads
//     what a gate or Once refused.
//   - [AttemptOf] is for handlers behind hapax serve or hapax consume. They need no door.
package hapaxhttp
