'use strict';
/*
 * Payments by Express: shop.js PORT NAME. Each key takes effect once, on however many machines: the records are in the
 * store of the door ($HAPAX_DOOR). docs/recipes/express.md says how to run it.
 */
const express = require('express');
const { connect } = require('hapax-sdk');
const { idempotent } = require('hapax-sdk/express');

const hx = connect();
const app = express();
let charges = 0; // of this process

app.use(express.json());
app.get('/charges', (req, res) => res.json({ charges }));
app.post('/payments', idempotent(hx, { scope: 'payments', onExpired: 'hold' }), (req, res) => {
  charges += 1;
  res.status(201).json({ receipt: `${process.argv[3]}-${charges}`, amount: req.body.amount });
});
app.listen(Number(process.argv[2]), '127.0.0.1');
