-- SPDX-License-Identifier: Apache-2.0
--
-- A schema for each service; none reads another's. No constraint here keeps a number from coming
-- twice: Hapax does, and `run` checks it.
CREATE SCHEMA IF NOT EXISTS ordering;
CREATE SCHEMA IF NOT EXISTS payment;
CREATE SCHEMA IF NOT EXISTS shipping;
CREATE TABLE IF NOT EXISTS ordering.orders (number bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS payment.charges (number bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS payment.refunds (number bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS shipping.shipments (number bigint NOT NULL);
