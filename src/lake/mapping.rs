//! Column mapping in mode `name`: for tables with a column name that Delta otherwise forbids.
//! Only such tables have it, because not every reader can read them.

use std::collections::{HashMap, HashSet};

/// Where a mapped column is found in Parquet files (protocol section "Column Mapping").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedColumn {
    pub id: u32,
    pub physical: String,
}

/// Column mapping in mode `name`, for all columns in schema order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub columns: Vec<MappedColumn>,
    /// Never goes down, so that an id is never given twice.
    pub max_id: u32,
}

impl Mapping {
    /// Columns of `known` that keep their name keep their id and physical name; others get the
    /// next ids. So two processes that start from the same table come to the same names.
    pub(crate) fn assign<'a>(
        names: impl Iterator<Item = &'a str>,
        known: &HashMap<&str, &MappedColumn>,
        max_id: u32,
    ) -> Mapping {
        let mut fresh = PhysicalNames::after(known.values().copied(), max_id);
        let columns = names
            .map(|name| match known.get(name) {
                Some(column) => (*column).clone(),
                None => fresh.next_column(),
            })
            .collect();
        Mapping {
            columns,
            max_id: fresh.max_id,
        }
    }
}

/// Gives new columns their ids and physical names.
pub(crate) struct PhysicalNames {
    /// The last id given.
    pub max_id: u32,
    /// In lower case.
    taken: HashSet<String>,
}

impl PhysicalNames {
    /// After the columns that a table has.
    pub(crate) fn after<'a>(
        columns: impl Iterator<Item = &'a MappedColumn>,
        max_id: u32,
    ) -> PhysicalNames {
        let taken = columns.map(|column| column.physical.to_lowercase());
        PhysicalNames {
            max_id,
            taken: taken.collect(),
        }
    }

    pub(crate) fn next_column(&mut self) -> MappedColumn {
        self.max_id += 1;
        // A column from before the table was mapped may be called like that.
        let mut physical = format!("col-{}", self.max_id);
        while !self.taken.insert(physical.clone()) {
            physical.push('_');
        }
        MappedColumn {
            id: self.max_id,
            physical,
        }
    }
}
