-- SPDX-License-Identifier: Apache-2.0
--
-- A schema for each service; none looks into another's. Nothing here says that a number may be there but once: that it is so is
-- Hapax's doing, and what `run` looks at.
CREATE SCHEMA IF NOT EXISTS ordering;
CREATE SCHEMA IF NOT EXISTS payment;
CREATE SCHEMA IF NOT EXISTS shipping;
CREATE TABLE IF NOT EXISTS ordering.orders (number bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS payment.charges (number bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS payment.refunds (number bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS shipping.shipments (number bigint NOT NULL);
