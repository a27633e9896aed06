//! Looks at the catalog: which feeds there are and which tables their schemas hold.
//!
//! A look is SQL in a process that decodes. Caches filled by it are of today while decoding needs
//! them as of the change, and the other way round, so they are dropped before and after; that is
//! dear, so a look is taken about once per flush interval.

use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::{SpiClient, SpiHeapTupleData, SpiResult};
use std::collections::HashMap;
use std::time::Duration;

use super::options::Options;
use super::own_wal::Refusal;
use super::reason::{Lack, Lacking};
use crate::columns::{Encoding, Shape};
use crate::decode::insert_position;
use crate::foreign_server;
use crate::lake::{Access, Field};
use crate::process;

/// Tables that are locked at the same time, to read their columns.
const LOCKED_AT_ONCE: usize = 500;

/// Numbers of the columns of `wal2delta.feeds` that tell one life of a feed from another: schema
/// and generation.
pub const FEED_KEY: [usize; 2] = [1, 4];

/// A row of `wal2delta.feeds`.
#[derive(Clone, Debug)]
pub struct FeedRow {
    /// OID of the source schema.
    pub namespace: u32,
    /// Destination in canonical form.
    pub destination: String,
    /// How the destination is reached now.
    pub access: Access,
    /// The foreign server that says so, if there is one.
    pub server: Option<u32>,
    /// The role whose user mapping counts.
    pub role: u32,
    /// Options.
    pub options: Options,
    /// Life of the feed.
    pub generation: u64,
    /// Whether histories of earlier lives are gone on with.
    pub continues: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Identities of the data directories that it has lived in (see [`process::home`]).
    pub homes: Vec<String>,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: i64,
}

/// A relation of a fed schema.
#[derive(Clone, Debug)]
pub struct CatalogTable {
    /// OID of the relation.
    pub oid: u32,
    /// OID of its schema.
    pub namespace: u32,
    /// Name.
    pub name: String,
    /// `pg_class.relkind`.
    pub kind: char,
    /// Whether it is permanent (neither unlogged nor temporary).
    pub permanent: bool,
    /// Whether it has REPLICA IDENTITY FULL.
    pub identity_full: bool,
    /// Whether its storage has been replaced since it was created.
    pub rewritten: bool,
    /// Names and types of its columns, to be compared with those of another look.
    pub columns: String,
    /// Its comments, as JSON, if it is in a feed whose tables a catalog knows: from the number of the
    /// column to the text, 0 being the table itself. Empty if there is none.
    pub comments: String,
    /// Why a partition of it cannot be fed, and with it the whole table.
    pub lacking: Option<Lacking>,
}

/// A new snapshot of a table that was asked for, or has to be.
#[derive(Clone, Debug)]
pub struct Resync {
    /// Life of the table's rows that it begins.
    pub generation: u64,
    /// When it was asked for, or refused, in milliseconds since 1970.
    pub asked_ms: i64,
    /// Why the table must not be gone on with until one is asked for.
    pub refused: Option<String>,
}

/// What a look found.
pub struct Look {
    /// OID of `wal2delta.feeds`, whose changes the worker watches in the WAL.
    pub feeds_relation: u32,
    /// OID of `wal2delta.resyncs`, likewise.
    pub resyncs_relation: u32,
    /// Tables of which a new snapshot was asked for, each with the generation it begins.
    pub resyncs: HashMap<u32, Resync>,
    /// Feeds of this database.
    pub feeds: Vec<FeedRow>,
    /// Schemas that feeds were started for and that are gone.
    pub gone: Vec<u32>,
    /// Relations of their schemas; partitions are left out, they belong to their root.
    pub tables: Vec<CatalogTable>,
    /// End of the WAL after the look: what it saw was committed before.
    pub until: u64,
}

impl Look {
    /// Whether a feed asks for a slot that standbys keep.
    pub fn wants_failover(&self, home: &String) -> bool {
        let mut own = self.feeds.iter().filter(|feed| feed.homes.contains(home));
        own.any(|feed| feed.options.failover)
    }

    /// What a look finds where the extension is not installed.
    pub fn nothing() -> Look {
        Look {
            feeds_relation: 0,
            resyncs_relation: 0,
            resyncs: HashMap::new(),
            feeds: Vec::new(),
            gone: Vec::new(),
            tables: Vec::new(),
            until: 0,
        }
    }
}

/// Runs SQL in the worker, with caches of its own time.
///
/// Only to be called between two records, and when every decoded commit is visible.
pub fn with_catalog<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: plain calls outside any transaction and callback (logicalfuncs.c does the same).
    unsafe { pg_sys::InvalidateSystemCaches() };
    let result = process::in_transaction(work);
    // SAFETY: as above.
    unsafe { pg_sys::InvalidateSystemCaches() };
    result
}

/// Takes a look; `None` when the extension is not (or no longer) in this database.
/// `fed`: schemas that are fed now; the catalog may not have their feeds any more.
pub fn look(system: u64, database: u32, fed: &[u32]) -> Option<Look> {
    with_catalog(|| read(system, database, fed)).unwrap_or_else(|error| {
        error!("could not read the feeds of this database: {error}");
    })
}

fn read(system: u64, database: u32, fed: &[u32]) -> SpiResult<Option<Look>> {
    Spi::connect(|client| {
        let own_relation = |name: &str| -> SpiResult<Option<u32>> {
            let oid = client
                .select(
                    "SELECT c.oid FROM pg_catalog.pg_class c \
                     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                     JOIN pg_catalog.pg_depend d ON d.objid = c.oid AND d.deptype = 'e' \
                     JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid \
                     WHERE c.relname = $1 AND n.nspname = 'wal2delta' \
                       AND e.extname = 'wal2delta'",
                    None,
                    &[name.into()],
                )?
                .next()
                .map(|row| row.get::<pg_sys::Oid>(1))
                .transpose()?
                .flatten();
            Ok(oid.map(pg_sys::Oid::to_u32))
        };
        let (Some(feeds_relation), Some(resyncs_relation)) =
            (own_relation("feeds")?, own_relation("resyncs")?)
        else {
            return Ok(None);
        };
        let rows = client.select(
            "SELECT r.table_oid, r.generation, \
                    (extract(epoch FROM r.asked_at) * 1000)::bigint, r.refused \
             FROM wal2delta.resyncs r",
            None,
            &[],
        )?;
        let mut resyncs = HashMap::new();
        for row in rows {
            if let (Some(table), Some(generation), Some(asked_ms)) = (
                row.get::<pg_sys::Oid>(1)?,
                row.get::<i64>(2)?,
                row.get::<i64>(3)?,
            ) {
                let generation = generation as u64;
                let resync = Resync {
                    generation,
                    asked_ms,
                    refused: row.get::<String>(4)?,
                };
                resyncs.insert(table.to_u32(), resync);
            }
        }
        let mut feeds = Vec::new();
        let rows = client.select(
            "SELECT f.schema_oid, f.destination, f.options, f.generation, f.continues, \
                    (extract(epoch FROM (f.options->>'flush_interval')::interval) * 1000)::bigint, \
                    EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.oid = f.schema_oid), \
                    f.paused, pg_catalog.array_to_string(f.homes, ','), \
                    (extract(epoch FROM f.started_at) * 1000)::bigint, f.server_oid, f.role_oid \
             FROM wal2delta.feeds f \
             WHERE f.system_identifier = $1 AND f.database_oid = $2",
            None,
            &[(system as i64).into(), pg_sys::Oid::from(database).into()],
        )?;
        let mut gone = Vec::new();
        for row in rows {
            let feed = feed_row(&row)?;
            match row.get::<bool>(7)? {
                Some(true) => feeds.push(feed),
                _ => gone.push(feed.namespace),
            }
        }
        let schemas: Vec<i64> = feeds
            .iter()
            .map(|feed: &FeedRow| feed.namespace)
            .chain(fed.iter().copied())
            .map(i64::from)
            .collect();
        // Only these are asked for comments: it takes time.
        let commented: Vec<i64> = feeds
            .iter()
            .filter(|feed| matches!(feed.access.catalog(), Ok(Some(_))))
            .map(|feed| i64::from(feed.namespace))
            .collect();
        let mut tables = Vec::new();
        let rows = client.select(
            "SELECT c.oid, c.relnamespace, pg_catalog.convert_to(c.relname::text, \
                         pg_catalog.getdatabaseencoding()), \
                    c.relkind::text, \
                    c.relpersistence = 'p', c.relreplident = 'f', \
                    c.relkind = 'r' AND c.relfilenode <> c.oid, \
                    (SELECT pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws( \
                         ' ', a.attnum, a.attname, a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)) \
                     FROM pg_catalog.pg_attribute a \
                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), \
                    CASE WHEN c.relnamespace = ANY ($2::bigint[]::oid[]) THEN \
                        (SELECT pg_catalog.convert_to( \
                             pg_catalog.jsonb_object_agg(d.objsubid, d.description)::text, \
                             pg_catalog.getdatabaseencoding()) \
                         FROM pg_catalog.pg_description d \
                         WHERE d.objoid = c.oid \
                           AND d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass) END \
             FROM pg_catalog.pg_class c \
             WHERE c.relnamespace = ANY ($1::bigint[]::oid[]) AND NOT c.relispartition \
               AND c.relkind IN ('r', 'p', 'f', 'm') ORDER BY c.oid",
            None,
            &[schemas.into(), commented.into()],
        )?;
        for row in rows {
            tables.push(catalog_table(&row)?);
        }
        note_lacking(client, &mut tables)?;
        Ok(Some(Look {
            feeds_relation,
            resyncs_relation,
            resyncs,
            feeds,
            gone,
            tables,
            until: insert_position(),
        }))
    })
}

/// Looks for partitions that cannot be fed, where there are any at all.
fn note_lacking(client: &SpiClient, tables: &mut [CatalogTable]) -> SpiResult<()> {
    let partitioned: Vec<i64> = tables
        .iter()
        .filter(|table| table.kind == 'p')
        .map(|table| i64::from(table.oid))
        .collect();
    if partitioned.is_empty() {
        return Ok(());
    }
    // Without pg_partition_tree(), which waits for locks.
    let rows = client.select(
        "WITH RECURSIVE tree (root, relation) AS ( \
             SELECT r::oid, r::oid FROM pg_catalog.unnest($1::bigint[]) r \
             UNION ALL \
             SELECT t.root, i.inhrelid FROM tree t \
             JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relation \
             WHERE NOT i.inhdetachpending) \
         SELECT DISTINCT ON (t.root) t.root, \
                pg_catalog.convert_to(c.relname::text, pg_catalog.getdatabaseencoding()), \
                c.relkind = 'f', c.relpersistence <> 'p' \
         FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relation \
         WHERE c.relkind = 'f' \
            OR c.relkind = 'r' AND (c.relpersistence <> 'p' OR c.relreplident <> 'f') \
         ORDER BY t.root, c.oid",
        None,
        &[partitioned.into()],
    )?;
    let mut found = HashMap::new();
    for row in rows {
        let root = row.get::<pg_sys::Oid>(1)?.map_or(0, pg_sys::Oid::to_u32);
        let lack = match (row.get::<bool>(3)?, row.get::<bool>(4)?) {
            (Some(true), _) => Lack::Foreign,
            (_, Some(true)) => Lack::Unlogged,
            _ => Lack::NotFull,
        };
        let partition = text(&row, 2)?;
        found.insert(root, Lacking { partition, lack });
    }
    for table in tables {
        table.lacking = found.remove(&table.oid);
    }
    Ok(())
}

/// Text that was converted to bytes: pgrx takes text for UTF-8, whatever the database's encoding.
fn text(row: &SpiHeapTupleData, column: usize) -> SpiResult<String> {
    Ok(row
        .get::<Vec<u8>>(column)?
        // SAFETY: in a transaction of the worker, which is connected to the database.
        .map(|text| unsafe { Encoding::of_database().to_string(&text) })
        .unwrap_or_default())
}

fn feed_row(row: &SpiHeapTupleData) -> SpiResult<FeedRow> {
    let interval = row
        .get::<i64>(6)?
        .map(|ms| Duration::from_millis(ms.max(0) as u64));
    let options = row
        .get::<pgrx::JsonB>(3)?
        .map(|json| json.0)
        .unwrap_or_default();
    let options = Options::parse(&options, |_| interval)
        .unwrap_or_else(|error| pgrx::error!("invalid options of a feed: {}", error.message));
    let destination = row.get::<String>(2)?.unwrap_or_default();
    let server = row.get::<pg_sys::Oid>(11)?.map(pg_sys::Oid::to_u32);
    let role = row.get::<pg_sys::Oid>(12)?.map_or(0, pg_sys::Oid::to_u32);
    Ok(FeedRow {
        namespace: row.get::<pg_sys::Oid>(1)?.map_or(0, pg_sys::Oid::to_u32),
        access: foreign_server::access(&destination, server, role),
        destination,
        server,
        role,
        options,
        generation: row.get::<i64>(4)?.unwrap_or_default() as u64,
        continues: row.get::<bool>(5)?.unwrap_or_default(),
        paused: row.get::<bool>(8)?.unwrap_or_default(),
        homes: row
            .get::<String>(9)?
            .unwrap_or_default()
            .split(',')
            .map(str::to_owned)
            .collect(),
        started_ms: row.get::<i64>(10)?.unwrap_or_default(),
    })
}

fn catalog_table(row: &SpiHeapTupleData) -> SpiResult<CatalogTable> {
    Ok(CatalogTable {
        oid: row.get::<pg_sys::Oid>(1)?.map_or(0, pg_sys::Oid::to_u32),
        namespace: row.get::<pg_sys::Oid>(2)?.map_or(0, pg_sys::Oid::to_u32),
        name: text(row, 3)?,
        kind: row
            .get::<String>(4)?
            .and_then(|kind| kind.chars().next())
            .unwrap_or('r'),
        permanent: row.get::<bool>(5)?.unwrap_or_default(),
        identity_full: row.get::<bool>(6)?.unwrap_or_default(),
        rewritten: row.get::<bool>(7)?.unwrap_or_default(),
        columns: row.get::<String>(8)?.unwrap_or_default(),
        comments: text(row, 9)?,
        lacking: None,
    })
}

/// The columns that tables have now. Those that are locked for an alteration, or gone, are left
/// out: the worker waits for no session.
pub fn columns(tables: &[u32]) -> Vec<(u32, Vec<Field>)> {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    let read = |table: u32| {
        let oid = pg_sys::Oid::from(table);
        // SAFETY: in a transaction, which gives the lock back; the descriptor is read while the
        // relation is open.
        unsafe {
            if !pg_sys::ConditionalLockRelationOid(oid, lock) {
                return None;
            }
            let relation = pg_sys::try_relation_open(oid, pg_sys::NoLock as pg_sys::LOCKMODE);
            if relation.is_null() {
                return None;
            }
            let fields = Shape::from_tupdesc((*relation).rd_att).fields();
            pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            Some((table, fields))
        }
    };
    // So many locks at a time, of which the server has a limited number.
    let some = |some: &[u32]| with_catalog(|| some.iter().copied().filter_map(read).collect());
    let parts = tables.chunks(LOCKED_AT_ONCE).map(some);
    parts.collect::<Vec<Vec<_>>>().concat()
}

/// Begins a new life of every feed of this data directory: its slot is gone, so what happened since
/// is unknown and each history is replaced by a new snapshot. Committed before the new slot is
/// created.
pub fn begin_new_generation(system: u64, database: u32, home: &str) {
    change_feeds(
        "UPDATE wal2delta.feeds SET continues = false, generation = \
             pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0') \
         WHERE system_identifier = $1 AND database_oid = $2 AND $3 = ANY (homes)",
        system,
        database,
        home,
    );
}

/// Records why tables must not be gone on with until a person asks for new snapshots.
pub fn record_refusals(refusals: &[Refusal]) {
    let result: SpiResult<()> = with_catalog(|| {
        Spi::connect_mut(|client| {
            refusals.iter().try_for_each(|refusal| {
                let arguments = [
                    pg_sys::Oid::from(refusal.table).into(),
                    refusal.error.as_str().into(),
                ];
                let insert = "INSERT INTO wal2delta.resyncs \
                         (table_oid, generation, asked_at, refused) \
                     VALUES ($1, 0, pg_catalog.clock_timestamp(), $2) \
                     ON CONFLICT (table_oid) DO UPDATE \
                     SET asked_at = excluded.asked_at, refused = excluded.refused";
                client.update(insert, None, &arguments).map(|_| ())
            })
        })
    });
    result.unwrap_or_else(|error| error!("could not record refused tables: {error}"));
}

/// Lets the feeds live in this data directory from now on: it has the slot that a standby keeps for
/// the time after its promotion.
pub fn adopt_home(system: u64, database: u32, home: &str) {
    change_feeds(
        "UPDATE wal2delta.feeds SET homes = homes OPERATOR(pg_catalog.||) $3 \
         WHERE system_identifier = $1 AND database_oid = $2 AND NOT $3 = ANY (homes)",
        system,
        database,
        home,
    );
}

fn change_feeds(update: &str, system: u64, database: u32, home: &str) {
    process::in_transaction(|| {
        let result = Spi::connect_mut(|client| {
            let arguments = [
                (system as i64).into(),
                pg_sys::Oid::from(database).into(),
                home.into(),
            ];
            client.update(update, None, &arguments).map(|_| ())
        });
        if let Err(error) = result {
            error!("could not mark the feeds of this database: {error}");
        }
    });
}
