-- The words of each error: what is wrong, and what to do.
\set VERBOSITY default
\set SHOW_CONTEXT never
CREATE EXTENSION wal2delta;
CREATE SCHEMA shop;

SELECT wal2delta.start('no_such', :'lake');
SELECT wal2delta.start('pg_catalog', :'lake');
SELECT wal2delta.start('information_schema', :'lake');
SELECT wal2delta.start('wal2delta', :'lake');
SELECT wal2delta.start(NULL, :'lake');

SELECT wal2delta.start('shop', 'foo://bucket/lake');
SELECT wal2delta.start('shop', 'lake');
SELECT wal2delta.start('shop', '');

SELECT wal2delta.start('shop', :'lake', '{"colour": "red"}');
SELECT wal2delta.start('shop', :'lake', '{"flush_interval": "soon"}');
SELECT wal2delta.start('shop', :'lake', '{"on_schema_change": "ignore"}');
SELECT wal2delta.start('shop', :'lake', '{"exclude": "t"}');
SELECT wal2delta.start('shop', :'lake', '{"snapshot": "yes"}');
SELECT wal2delta.start('shop', :'lake', '[]');

BEGIN;
CREATE TABLE shop.t (i int);
SELECT wal2delta.start('shop', :'lake');
ROLLBACK;

SELECT wal2delta.stop('shop');
SELECT wal2delta.set_replica_identity_full('no_such');
SELECT wal2delta.set_replica_identity_full('pg_catalog');
SELECT wal2delta.set_replica_identity_full('information_schema');

-- Nothing half done.
SELECT count(*) FROM wal2delta.schemas;
SELECT count(*) FROM pg_replication_slots WHERE database = current_database();

SELECT wal2delta.start('shop', :'lake');
SELECT wal2delta.start('shop', :'lake');
SELECT wal2delta.start('shop', '/elsewhere');
SELECT wal2delta.stop('shop');
