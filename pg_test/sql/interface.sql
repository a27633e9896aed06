-- What the extension brings: a change here is a change of the fixed interface.
CREATE EXTENSION wal2delta;
SELECT extname, extrelocatable FROM pg_extension WHERE extname = 'wal2delta';

SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       pg_get_function_arguments(p.oid) AS arguments
FROM pg_proc p
WHERE pronamespace = 'wal2delta'::regnamespace
  AND proname IN ('start', 'stop', 'flush', 'check', 'set_replica_identity_full')
ORDER BY proname;

SELECT attrelid::regclass AS view, attnum, attname, format_type(atttypid, atttypmod) AS type
FROM pg_attribute
WHERE attrelid IN ('wal2delta.tables'::regclass, 'wal2delta.schemas'::regclass) AND attnum > 0
ORDER BY attrelid::regclass::text DESC, attnum;

SELECT name, setting, unit, context FROM pg_settings WHERE name LIKE 'wal2delta.%' ORDER BY name;

-- Nobody but the owner may call anything until it is granted.
SELECT p.oid::regprocedure AS callable_by_public
FROM pg_proc p
WHERE pronamespace = 'wal2delta'::regnamespace AND prorettype <> 'event_trigger'::regtype
  AND has_function_privilege('public', p.oid, 'EXECUTE')
ORDER BY 1;

-- Feeds are not part of a dump: a restored copy must not write into the same tables.
SELECT extconfig FROM pg_extension WHERE extname = 'wal2delta';

DROP EXTENSION wal2delta;
SELECT count(*) FROM pg_namespace WHERE nspname = 'wal2delta';
