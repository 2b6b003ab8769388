// SPDX-License-Identifier: Apache-2.0
// Express, Connect and whatever else calls (req, res, next). express.d.ts is the manual.
'use strict';

const { guard, send } = require('./http.js');

function idempotent(hapax, options = {}) {
  return (req, res, next) => {
    const how = { run: () => next(), reply: (answer) => send(res, answer) };
    guard(hapax, options, { req, res, subject: req, parsed: req.body }, how).catch(next);
  };
}

module.exports = { idempotent };
