\echo Use "CREATE EXTENSION wal2delta" to load this file. \quit

DO $$
BEGIN
    IF current_setting('server_version_num')::int / 10000 <> 17 THEN
        RAISE EXCEPTION 'wal2delta 0.1.0 needs PostgreSQL 17, this server is version %',
            current_setting('server_version')
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Install the extension into a PostgreSQL 17 server.';
    END IF;
END
$$;

-- Created here, so that DROP EXTENSION drops it too.
CREATE SCHEMA wal2delta;

-- The feeds. Written by start and stop alone: progress is kept in the Delta logs and the slot.
-- Not marked for pg_dump: a restored copy of the database must not write into the same tables.
CREATE TABLE wal2delta.feeds (
    schema_oid oid PRIMARY KEY,
    destination text NOT NULL,
    options jsonb NOT NULL,
    -- Which life of the feed a history was written by; a history of an earlier one has a gap.
    generation bigint NOT NULL,
    -- Whether a history of an earlier life may be gone on with, the gap being known to the user.
    continues boolean NOT NULL,
    -- Where the row was made: a copy of the database must not take over the feed.
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    -- Identities of the data directories it has lived in: a copy of the server must not either.
    homes text[] NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    -- The foreign server that says how the destination is reached; NULL: the server's environment.
    server_oid oid,
    -- The role that started it, whose user mapping counts.
    role_oid oid NOT NULL
);
-- The feed worker takes a feed up, and lets it go, where the WAL has the row come and go.
ALTER TABLE wal2delta.feeds REPLICA IDENTITY FULL;
COMMENT ON TABLE wal2delta.feeds IS 'feeds of this database; use wal2delta.start and wal2delta.stop';

-- Without rows that came with a copy of the database.
CREATE VIEW wal2delta.own_feeds AS
SELECT f.* FROM wal2delta.feeds f
WHERE f.database_oid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND f.system_identifier = (SELECT c.system_identifier FROM pg_control_system() c);

-- Tables of which a new snapshot was asked for; it is taken if the history is of an earlier life.
-- Also those that must not go on before one is asked for: refused says why, since asked_at.
CREATE TABLE wal2delta.resyncs (
    table_oid oid PRIMARY KEY,
    generation bigint NOT NULL,
    asked_at timestamptz NOT NULL,
    refused text
);

-- Schemas whose new tables are given REPLICA IDENTITY FULL.
CREATE TABLE wal2delta.full_schemas (
    schema_oid oid PRIMARY KEY
);

-- Named destinations are servers of this wrapper, credentials their user mappings. It has no handler:
-- there is nothing to scan.
CREATE FUNCTION wal2delta.check_lake_options(options text[], catalog oid)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'check_lake_options_wrapper';
CREATE FOREIGN DATA WRAPPER wal2delta VALIDATOR wal2delta.check_lake_options;
COMMENT ON FOREIGN DATA WRAPPER wal2delta IS 'destinations of feeds; their options say how they are reached';

-- A feed would not reach its destination any more. No entry in pg_depend says so: what depends on the
-- server is a row, and CASCADE must not drop a schema.
CREATE FUNCTION wal2delta.keep_used_servers()
RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    used record;
BEGIN
    SELECT d.object_name, n.nspname, f.destination INTO used
    FROM pg_event_trigger_dropped_objects() d
    JOIN wal2delta.own_feeds f ON f.server_oid = d.objid
    JOIN pg_namespace n ON n.oid = f.schema_oid
    WHERE d.classid = 'pg_foreign_server'::regclass
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'cannot drop server % because a feed needs it', used.object_name
            USING ERRCODE = 'dependent_objects_still_exist',
                  DETAIL = format('Schema %I is fed to it (%s).', used.nspname, used.destination),
                  HINT = format('Stop the feed first: SELECT wal2delta.stop(%L);', used.nspname);
    END IF;
END
$$;
CREATE EVENT TRIGGER wal2delta_drop_server ON sql_drop
    WHEN TAG IN ('DROP SERVER', 'DROP OWNED', 'DROP FOREIGN DATA WRAPPER')
    EXECUTE FUNCTION wal2delta.keep_used_servers();

CREATE FUNCTION wal2delta.start(
    source_schema name, destination text DEFAULT NULL, options jsonb DEFAULT '{}')
RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'start_wrapper';
COMMENT ON FUNCTION wal2delta.start IS 'starts to feed the tables of a schema to a destination';

CREATE FUNCTION wal2delta.stop(source_schema name)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'stop_wrapper';
COMMENT ON FUNCTION wal2delta.stop IS 'stops the feed of a schema; its Delta tables stay';

CREATE FUNCTION wal2delta.pause(source_schema name)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'pause_wrapper';
COMMENT ON FUNCTION wal2delta.pause IS
    'stops writing the feed of a schema; what changes meanwhile is kept in the write-ahead log';

CREATE FUNCTION wal2delta.resume(source_schema name)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'resume_wrapper';
COMMENT ON FUNCTION wal2delta.resume IS 'goes on with a paused feed; nothing is missing';

CREATE FUNCTION wal2delta.alter(source_schema name, options jsonb)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'alter_wrapper';
COMMENT ON FUNCTION wal2delta.alter IS
    'changes options of the feed of a schema; null takes one away';

CREATE FUNCTION wal2delta.optimize(source_table regclass)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'optimize_wrapper';
COMMENT ON FUNCTION wal2delta.optimize IS
    'merges the small files of a table''s history, and removes what no version needs that can still be read, now';

CREATE FUNCTION wal2delta.resync(source_table regclass)
RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'resync_wrapper';
COMMENT ON FUNCTION wal2delta.resync IS
    'takes a new snapshot of a table, instead of its history or behind it, in one commit';

CREATE FUNCTION wal2delta.flush(timeout interval DEFAULT '60 s')
RETURNS pg_lsn STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'flush_wrapper';
COMMENT ON FUNCTION wal2delta.flush IS
    'returns once everything committed before the call is in Delta';

CREATE FUNCTION wal2delta.check(OUT what text, OUT ok boolean, OUT what_to_do text)
RETURNS SETOF record LANGUAGE c AS 'MODULE_PATHNAME', 'check_wrapper';
COMMENT ON FUNCTION wal2delta.check IS 'one row per thing that must be right';

CREATE FUNCTION wal2delta.table_states(
    OUT table_oid oid, OUT schema_oid oid, OUT status text, OUT committed_lsn pg_lsn,
    OUT last_write_time timestamptz, OUT folder text, OUT reason text, OUT rows_written bigint,
    OUT snapshot_rows_done bigint, OUT snapshot_rows_total bigint, OUT last_error text,
    OUT staged_bytes bigint, OUT replaced_values bigint)
RETURNS SETOF record LANGUAGE c AS 'MODULE_PATHNAME', 'table_states_wrapper';

CREATE FUNCTION wal2delta.feed_error()
RETURNS text LANGUAGE c AS 'MODULE_PATHNAME', 'feed_error_wrapper';
COMMENT ON FUNCTION wal2delta.feed_error IS
    'why the feed worker of this database does not run; NULL when it runs';

CREATE VIEW wal2delta.tables AS
SELECT s.table_oid, s.status, s.committed_lsn, s.last_write_time,
       n.nspname AS source_schema, c.relname AS source_table,
       f.destination || '/' || s.folder AS destination,
       s.reason, s.rows_written, s.snapshot_rows_done, s.snapshot_rows_total,
       CASE WHEN s.committed_lsn IS NOT NULL
            THEN greatest(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.committed_lsn), 0)::bigint
       END AS lag_bytes,
       s.last_error, s.staged_bytes, s.replaced_values
FROM wal2delta.table_states() s
JOIN wal2delta.own_feeds f ON f.schema_oid = s.schema_oid
-- One that was moved to another schema is in its feed no more, before the worker has noticed.
JOIN pg_catalog.pg_class c ON c.oid = s.table_oid AND c.relnamespace = s.schema_oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace;
COMMENT ON VIEW wal2delta.tables IS 'state of each table of a fed schema';

CREATE VIEW wal2delta.schemas AS
SELECT n.nspname AS source_schema, f.destination,
       CASE WHEN f.paused THEN 'PAUSED'
            WHEN wal2delta.feed_error() IS NOT NULL THEN 'FAILED'
            WHEN bool_or(s.status = 'FAILED') THEN 'FAILED'
            WHEN bool_or(s.status = 'SNAPSHOTTING') THEN 'SNAPSHOTTING'
            ELSE 'STREAMING'
       END AS status,
       f.options, f.started_at
FROM wal2delta.own_feeds f
JOIN pg_catalog.pg_namespace n ON n.oid = f.schema_oid
LEFT JOIN wal2delta.table_states() s ON s.schema_oid = f.schema_oid
GROUP BY n.nspname, f.schema_oid, f.destination, f.options, f.paused, f.started_at;
COMMENT ON VIEW wal2delta.schemas IS 'the feeds of this database';

CREATE FUNCTION wal2delta.set_replica_identity_full(source_schema name)
RETURNS void STRICT LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    schema_oid oid;
    relation record;
BEGIN
    SELECT n.oid INTO schema_oid FROM pg_namespace n WHERE n.nspname = source_schema;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'schema "%" does not exist', source_schema
            USING ERRCODE = 'invalid_schema_name',
                  HINT = 'Create the schema first, or check the spelling: names are case-sensitive.';
    END IF;
    IF source_schema IN ('information_schema', 'wal2delta') OR source_schema LIKE 'pg\_%' THEN
        RAISE EXCEPTION 'schema "%" is a system schema', source_schema
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Choose a schema that holds tables of yours.';
    END IF;
    FOR relation IN
        SELECT c.oid::regclass AS name FROM pg_class c
        -- Partitions belong to their table's schema, wherever they are.
        JOIN pg_class t ON t.oid = coalesce(pg_partition_root(c.oid), c.oid)
        WHERE t.relnamespace = schema_oid AND c.relkind IN ('r', 'p')
          AND c.relpersistence = 'p' AND c.relreplident <> 'f'
        ORDER BY c.oid
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', relation.name);
    END LOOP;
    INSERT INTO wal2delta.full_schemas VALUES (schema_oid) ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION wal2delta.set_replica_identity_full IS
    'sets REPLICA IDENTITY FULL on the tables of a schema, now and when new ones are created';

-- Gives a new table, or attached partition, REPLICA IDENTITY FULL in the same transaction, so that no change of
-- it is ever without its old row. It runs as the user who creates the table, its owner.
CREATE FUNCTION wal2delta.set_new_table_full()
RETURNS event_trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation record;
BEGIN
    FOR relation IN
        SELECT c.oid::regclass AS name
        FROM pg_event_trigger_ddl_commands() d
        JOIN pg_class c ON c.oid = d.objid
        JOIN pg_class t ON t.oid = coalesce(pg_partition_root(c.oid), c.oid)
        JOIN wal2delta.full_schemas s ON s.schema_oid = t.relnamespace
        WHERE d.classid = 'pg_class'::regclass AND d.command_tag <> 'ALTER TABLE'
          AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident <> 'f'
        UNION
        -- What was attached is not named by the command, only what it was attached to.
        SELECT c.oid::regclass
        FROM pg_event_trigger_ddl_commands() d
        JOIN pg_inherits i ON i.inhparent = d.objid
        JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
        JOIN pg_class t ON t.oid = pg_partition_root(c.oid)
        JOIN wal2delta.full_schemas s ON s.schema_oid = t.relnamespace
        WHERE d.classid = 'pg_class'::regclass AND d.command_tag = 'ALTER TABLE'
          AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident <> 'f'
          -- In this transaction, that is; what is there stays as it is, whoever owns it.
          AND age(i.xmin) <= age(pg_current_xact_id()::xid) AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', relation.name);
    END LOOP;
END
$$;

CREATE EVENT TRIGGER wal2delta_new_table ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
    EXECUTE FUNCTION wal2delta.set_new_table_full();

-- The trigger function reads this as whoever creates a table.
GRANT USAGE ON SCHEMA wal2delta TO PUBLIC;
GRANT SELECT ON wal2delta.full_schemas TO PUBLIC;

REVOKE ALL ON FUNCTION
    wal2delta.check_lake_options(text[], oid),
    wal2delta.start(name, text, jsonb), wal2delta.stop(name), wal2delta.pause(name),
    wal2delta.resume(name), wal2delta.alter(name, jsonb), wal2delta.resync(regclass), wal2delta.optimize(regclass),
    wal2delta.flush(interval),
    wal2delta.check(), wal2delta.table_states(), wal2delta.feed_error(),
    wal2delta.set_replica_identity_full(name)
FROM PUBLIC;
GRANT SELECT ON wal2delta.tables, wal2delta.schemas, wal2delta.feeds, wal2delta.own_feeds TO pg_monitor;
GRANT EXECUTE ON FUNCTION wal2delta.table_states(), wal2delta.feed_error(), wal2delta.check()
    TO pg_monitor;
