-- Takes a payment once per key, in plain SQL, however often it is run:
--     psql -q -v key=order-17 -v amount=4200 -f payments.sql      claimed|201|payment 1 of 4200
--     psql -q -v key=order-17 -v amount=4200 -f payments.sql      completed|201|payment 1 of 4200
--     psql -q -v key=order-17 -v amount=9900 -f payments.sql      mismatch||
-- The payment and the record of the operation are one transaction. The tables are those of
-- transfer.sql.
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
BEGIN;
SELECT verdict, verdict = 'claimed' AS mine, token,
       coalesce(status::text, '') AS status, coalesce(convert_from(body, 'UTF8'), '') AS body
  FROM hapax.begin('payments', :'key',
                   fingerprint => hapax.digest(convert_to(:'amount', 'UTF8'))) \gset
\if :mine
  INSERT INTO payments (amount) VALUES (:'amount')
    RETURNING 201 AS status, 'payment ' || number || ' of ' || amount AS body \gset
  SELECT FROM hapax.complete(:'token', :status, body => convert_to(:'body', 'UTF8')) \gset
\endif
COMMIT;
SELECT :'verdict', :'status', :'body';
