-- The tables of transfer.c, transfer.py and payments.sql. Where they stand, nothing is done.
CREATE TABLE IF NOT EXISTS accounts (
  name text PRIMARY KEY,
  balance bigint NOT NULL CHECK (balance >= 0)
);
CREATE TABLE IF NOT EXISTS transfers (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  debit text NOT NULL REFERENCES accounts,
  credit text NOT NULL REFERENCES accounts,
  amount bigint NOT NULL CHECK (amount > 0)
);
CREATE TABLE IF NOT EXISTS payments (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  amount bigint NOT NULL CHECK (amount > 0)
);
INSERT INTO accounts VALUES ('alice', 1000), ('bob', 1000) ON CONFLICT DO NOTHING;
