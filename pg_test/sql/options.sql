-- A feed's options and settings, as the views show them.
CREATE EXTENSION wal2delta;
CREATE SCHEMA shop;
CREATE TABLE shop.kept (i int);
CREATE TABLE shop.left_out (i int);
ALTER TABLE shop.kept REPLICA IDENTITY FULL;
ALTER TABLE shop.left_out REPLICA IDENTITY FULL;
INSERT INTO shop.kept VALUES (1), (2);
INSERT INTO shop.left_out VALUES (1);
SELECT wal2delta.start('shop', :'lake',
    '{"flush_interval": "3s", "on_schema_change": "resnapshot", "exclude": ["left_out"], "snapshot": true}');
SELECT wal2delta.flush() > '0/0' AS flushed;
SELECT source_schema, destination = :'lake' AS destination_right, status, options, started_at <= now() AS started
FROM wal2delta.schemas;
SELECT source_schema, source_table, table_oid = ('shop.' || source_table)::regclass AS oid_right, status, reason,
       replace(destination, :'lake', '...') AS destination, rows_written, last_error, committed_lsn IS NOT NULL AS committed
FROM wal2delta.tables ORDER BY source_table;
INSERT INTO shop.kept VALUES (3);
SELECT wal2delta.flush('10 s') > '0/0' AS flushed;
SELECT source_table, status, rows_written FROM wal2delta.tables ORDER BY 1;
SELECT wal2delta.stop('shop');
SELECT count(*) FROM wal2delta.tables;
SELECT count(*) FROM wal2delta.schemas;

-- Started again: the changes in between are missing, and that is said.
SELECT wal2delta.start('shop', :'lake');
SELECT wal2delta.stop('shop');

SET wal2delta.flush_interval = '1s';
SET wal2delta.max_memory = '1GB';
ALTER SYSTEM SET wal2delta.flush_interval = '0';
ALTER SYSTEM SET wal2delta.max_memory = '1kB';
ALTER SYSTEM SET wal2delta.snapshot_workers = 0;
