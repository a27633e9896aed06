//! Column mapping in mode `name`: for tables with a column name that Delta otherwise forbids.
//! Only such tables have it, because not every reader can read them.

use std::collections::HashMap;

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
        let mut max_id = max_id;
        let columns = names
            .map(|name| match known.get(name) {
                Some(column) => (*column).clone(),
                None => {
                    max_id += 1;
                    MappedColumn {
                        id: max_id,
                        physical: format!("col-{max_id}"),
                    }
                }
            })
            .collect();
        Mapping { columns, max_id }
    }
}
