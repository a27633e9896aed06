//! Which source table a history table belongs to, and how far it has come: both are recorded in
//! the Delta log itself, and nowhere else.

use std::fmt;

/// Table property that names the source table.
pub(crate) const SOURCE_PROPERTY: &str = "wal2delta.source";

/// Table property that names the generation of the feed that wrote last.
pub(crate) const GENERATION_PROPERTY: &str = "wal2delta.generation";

/// Table property of a history that is kept: the last `_sort_by` of the rows that deleted all that lived
/// in it. No file may ever have rows from before and after it: those from before are not read again to
/// find what lives.
pub(crate) const CLEARED_PROPERTY: &str = "wal2delta.cleared";

/// Table property that says that changes are missing after the last commit with rows: the table
/// has to be replaced before it can be gone on with.
pub(crate) const GAP_PROPERTY: &str = "wal2delta.gap";

/// Table property of a table that was made for its first rows: the LSN from which all of them are
/// in the write-ahead log. It counts until the first commit with rows.
pub(crate) const WHOLE_PROPERTY: &str = "wal2delta.whole";

/// The identity of a source table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The cluster's system identifier.
    pub system: u64,
    /// The database's oid.
    pub database: u32,
    /// The table's oid.
    pub table: u32,
}

impl Source {
    /// What all our application ids for this table begin with.
    pub(crate) fn app_id_prefix(&self) -> String {
        format!("wal2delta/{self}/")
    }

    /// The application id whose `txn` version is the end LSN of the last transaction in the
    /// table: `wal2delta/<system>/<database>/<table>/<generation>`.
    pub fn app_id(&self, generation: u64) -> String {
        format!("wal2delta/{self}/{generation}")
    }

    /// The application id whose `txn` version is [`Progress::crc`]; negative: not known.
    pub fn crc_app_id(&self, generation: u64) -> String {
        format!("wal2delta/{self}/{generation}/crc")
    }

    /// The application id whose `txn` version is the last `_sort_by` in the table.
    pub fn sort_app_id(&self, generation: u64) -> String {
        format!("wal2delta/{self}/{generation}/sort_by")
    }

    /// Reads the value of the table property `wal2delta.source`.
    pub fn parse(property: &str) -> Option<Source> {
        let mut parts = property.split('/');
        let source = Source {
            system: parts.next()?.parse().ok()?,
            database: parts.next()?.parse().ok()?,
            table: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(source)
    }
}

/// The value of the table property: `<system>/<database>/<table>`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.system, self.database, self.table)
    }
}

/// How far a history table has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The generation that committed last.
    pub generation: u64,
    /// End LSN of the last transaction in the table.
    pub lsn: u64,
    /// Checksum of the WAL record that ends there, if it is known: a server whose WAL has another
    /// record there, or none, is not the one that wrote the table.
    pub crc: Option<u32>,
    /// The last `_sort_by` in the table.
    pub sort_by: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_property_leads_back_to_the_source() {
        let source = Source {
            system: u64::MAX,
            database: 5,
            table: 16384,
        };
        assert_eq!(Source::parse(&source.to_string()), Some(source.clone()));
        for wrong in ["", "1/2", "1/2/3/4", "a/2/3", "1/2/-3"] {
            assert_eq!(Source::parse(wrong), None, "{wrong}");
        }
        assert_eq!(
            source.app_id(3),
            format!("wal2delta/{}/5/16384/3", u64::MAX)
        );
        assert!(source.sort_app_id(3).ends_with("/3/sort_by"));
        assert!(source.app_id(3).starts_with(&source.app_id_prefix()));
    }
}
