-- The tables of order_pg.py: what is in stock, and what its three services were asked for. A
-- service knows a repeat by its key: `calls` counts what it was asked, `effects` what it did.
CREATE TABLE IF NOT EXISTS stock (
  item text PRIMARY KEY,
  left_over bigint NOT NULL CHECK (left_over >= 0)
);
CREATE TABLE IF NOT EXISTS calls (service text NOT NULL, key text NOT NULL);
CREATE TABLE IF NOT EXISTS effects (
  service text NOT NULL,
  key text NOT NULL,
  PRIMARY KEY (service, key)
);
INSERT INTO stock VALUES ('lamp', 0) ON CONFLICT DO NOTHING;
