-- set_replica_identity_full: tables that are there, and those that come.
CREATE EXTENSION wal2delta;
CREATE SCHEMA shop;
CREATE SCHEMA other;
CREATE TABLE shop.old (i int PRIMARY KEY);
CREATE TABLE shop."Odd ""name" (i int);
CREATE TABLE other.untouched (i int);
CREATE VIEW shop.a_view AS SELECT 1 AS i;
SELECT wal2delta.set_replica_identity_full('shop');
SELECT wal2delta.set_replica_identity_full('shop');

CREATE TABLE shop.new (i int);
CREATE TABLE shop.copied AS SELECT 1 AS i;
SELECT 1 AS i INTO shop.selected;
CREATE TABLE shop.parts (i int) PARTITION BY RANGE (i);
CREATE TABLE shop.part PARTITION OF shop.parts FOR VALUES FROM (0) TO (10);
CREATE TABLE other.new (i int);
CREATE TEMPORARY TABLE temporary (i int);
BEGIN;
CREATE TABLE shop.in_transaction (i int);
INSERT INTO shop.in_transaction VALUES (1);
COMMIT;

-- Also when somebody without a right to wal2delta makes the table.
CREATE ROLE w2d_maker;
GRANT CREATE, USAGE ON SCHEMA shop TO w2d_maker;
SET ROLE w2d_maker;
CREATE TABLE shop.foreign_hand (i int);
RESET ROLE;

SELECT relnamespace::regnamespace AS schema, relname, relkind, relreplident
FROM pg_class
WHERE relnamespace IN ('shop'::regnamespace, 'other'::regnamespace) AND relkind IN ('r', 'p', 'v')
ORDER BY 1, 2;

DROP EXTENSION wal2delta;
CREATE TABLE shop.without_extension (i int);
DROP SCHEMA shop CASCADE;
DROP ROLE w2d_maker;
