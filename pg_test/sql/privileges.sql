-- Who may do what.
\set VERBOSITY default
\set SHOW_CONTEXT never
CREATE EXTENSION wal2delta;
CREATE ROLE w2d_clerk;
CREATE SCHEMA shop AUTHORIZATION w2d_clerk;

SET ROLE w2d_clerk;
SELECT wal2delta.start('shop', :'lake');
SELECT wal2delta.stop('shop');
SELECT wal2delta.flush();
SELECT wal2delta.check();
SELECT wal2delta.set_replica_identity_full('shop');
SELECT * FROM wal2delta.tables;
SELECT * FROM wal2delta.schemas;
RESET ROLE;

-- With the functions granted, a local folder still needs pg_write_server_files.
GRANT EXECUTE ON FUNCTION wal2delta.start(name, text, jsonb) TO w2d_clerk;
SET ROLE w2d_clerk;
SELECT wal2delta.start('shop', :'lake');
SELECT wal2delta.start('shop');
RESET ROLE;
GRANT pg_write_server_files TO w2d_clerk;
SET ROLE w2d_clerk;
SELECT wal2delta.start('shop', :'lake');
RESET ROLE;
SELECT source_schema, status FROM wal2delta.schemas;
SELECT wal2delta.stop('shop');

-- Monitoring sees everything and changes nothing.
CREATE ROLE w2d_watcher IN ROLE pg_monitor;
SET ROLE w2d_watcher;
SELECT count(*) FROM wal2delta.tables;
SELECT count(*) FROM wal2delta.schemas;
SELECT count(*) > 0 FROM wal2delta.check();
SELECT wal2delta.stop('shop');
RESET ROLE;
DROP SCHEMA shop;
REVOKE ALL ON FUNCTION wal2delta.start(name, text, jsonb) FROM w2d_clerk;
DROP ROLE w2d_clerk, w2d_watcher;
