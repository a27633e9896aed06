//! Why a table takes no part in its feed, in the words of the view.

use crate::columns::Encoding;
use crate::decode::Relation;

/// Why a table takes no part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The old rows of changes are not in the WAL.
    NotFull,
    /// Its changes are not in the WAL.
    Unlogged,
    /// Named in the feed's option `exclude`.
    Excluded,
    /// Not an ordinary table.
    Kind(&'static str),
    /// A partition of it cannot be fed.
    Partition(Lacking),
}

impl Reason {
    /// As the view shows it.
    pub fn text(&self) -> String {
        match self {
            Reason::NotFull => "table is not REPLICA IDENTITY FULL".into(),
            Reason::Unlogged => "table is unlogged, its changes are not in the WAL".into(),
            Reason::Excluded => "excluded by the feed's options".into(),
            Reason::Kind(kind) => format!("unsupported kind: {kind}"),
            Reason::Partition(lacking) => lacking.text(),
        }
    }

    /// Whether it is a fault rather than a choice: the table is shown as failed.
    pub fn is_failure(&self) -> bool {
        matches!(self, Reason::Partition(_))
    }

    /// Whether it lacks REPLICA IDENTITY FULL, itself or in a partition.
    pub fn is_identity(&self) -> bool {
        match self {
            Reason::NotFull => true,
            Reason::Partition(lacking) => lacking.lack == Lack::NotFull,
            _ => false,
        }
    }

    /// Why a change of a relation without FULL identity is not whole.
    pub fn of_identity(relation: &Relation) -> Reason {
        match relation.partition() {
            None => Reason::NotFull,
            Some(name) => Reason::Partition(Lacking {
                // SAFETY: in a decoding callback, which has a transaction.
                partition: unsafe { Encoding::of_database().to_string(name.to_bytes()) },
                lack: Lack::NotFull,
            }),
        }
    }
}

impl Lacking {
    /// As the view shows it, with what to do.
    fn text(&self) -> String {
        let name = &self.partition;
        match self.lack {
            Lack::NotFull => format!(
                "partition \"{name}\" is not REPLICA IDENTITY FULL. \
                 Run ALTER TABLE ... REPLICA IDENTITY FULL for it."
            ),
            Lack::Unlogged => format!(
                "partition \"{name}\" is unlogged, its changes are not in the WAL. \
                 Run ALTER TABLE ... SET LOGGED for it, or detach it."
            ),
            Lack::Foreign => format!(
                "partition \"{name}\" is a foreign table, its changes are not in the WAL. \
                 Detach it, or name the table in the feed's option \"exclude\"."
            ),
        }
    }
}

/// A partition whose changes are not, or not whole, in the WAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Name of the partition.
    pub partition: String,
    /// What it is.
    pub lack: Lack,
}

/// See [`Lacking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Old rows are not in the WAL.
    NotFull,
    /// No changes are in the WAL.
    Unlogged,
    /// It is a foreign table.
    Foreign,
}

/// What the view shows of a table that is fed and has no row yet.
pub const EMPTY: &str = "empty";
