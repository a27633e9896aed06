//! How the columns of a history follow those of its source table without a loss: columns are only
//! added, renamed and made nullable. What that cannot express takes a new column.

use std::collections::{HashMap, HashSet};

use crate::lake::mapping::{MappedColumn, Mapping, PhysicalNames};
use crate::lake::schema::{Field, HistorySchema};

/// The next schema of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evolved {
    /// All columns that it ever had, and the new ones behind them.
    pub schema: HistorySchema,
    /// A column has another type than before: rows that live now have other values in it. Where Delta
    /// has another type too, the values of before are in a column of another name.
    pub retyped: bool,
}

impl HistorySchema {
    /// This history's schema once it has rows of a table with the columns of `rows`. Columns are told
    /// apart by their numbers. One that the table has not any more stays, nullable; should its name be
    /// needed by another, it is renamed. Added ones are nullable: earlier rows have NULL there.
    pub fn evolve(&self, rows: &HistorySchema) -> Evolved {
        let number = |field: &Field| field.number;
        let current: HashMap<Option<u32>, &Field> = rows
            .source()
            .iter()
            .map(|field| (number(field), field))
            .collect();
        let mut taken: HashSet<String> = rows
            .source()
            .iter()
            .map(|field| field.name.to_lowercase())
            .collect();
        let mut kept = HashSet::new();
        let mut retyped = false;
        let mut source: Vec<Field> = Vec::new();
        for field in self.source() {
            let now = current
                .get(&field.number)
                .filter(|_| field.number.is_some());
            source.push(match now {
                Some(now) if now.data_type == field.data_type => {
                    kept.insert(now.number);
                    retyped |= now.output != field.output;
                    Field {
                        name: now.name.clone(),
                        nullable: field.nullable || now.nullable,
                        output: now.output,
                        ..field.clone()
                    }
                }
                now => {
                    retyped |= now.is_some();
                    Field {
                        name: free_name(&field.name, &mut taken),
                        nullable: true,
                        // No row has it any more; its number may be that of another by now.
                        number: None,
                        ..field.clone()
                    }
                }
            });
        }
        let added = rows
            .source()
            .iter()
            .filter(|field| !kept.contains(&field.number));
        source.extend(added.map(|field| Field {
            nullable: true,
            added: true,
            ..field.clone()
        }));
        let schema = HistorySchema::without_mapping(source).mapped_after(self);
        Evolved { schema, retyped }
    }

    /// The same columns, mapped as the next schema of a table that has `table`, with whose columns, under
    /// whatever names, it begins.
    pub(crate) fn mapped_after(self, table: &HistorySchema) -> HistorySchema {
        let columns = table.source().iter().zip(self.source());
        let renamed = columns.into_iter().any(|(old, new)| old.name != new.name);
        let mapped = table.mapping.is_some() || renamed || self.needs_column_mapping();
        let mut next = self;
        next.mapping = mapped.then(|| table.mapping_of(&next));
        next
    }

    /// The same, once all rows that live have been written anew: none lacks a value.
    pub fn written_anew(&self) -> HistorySchema {
        let source = self.source().iter();
        let source = source.map(|field| Field {
            added: false,
            ..field.clone()
        });
        let mut schema = HistorySchema::without_mapping(source.collect());
        schema.mapping = self.mapping.clone();
        schema
    }

    /// Maps the columns of `next`, which begins with those of this schema. Without a mapping so far,
    /// physical names are the names so far: the files stay as they are.
    fn mapping_of(&self, next: &HistorySchema) -> Mapping {
        let mapping = self.mapping.clone().unwrap_or_else(|| {
            let columns: Vec<MappedColumn> = (1..)
                .zip(self.physical_names())
                .map(|(id, name)| MappedColumn {
                    id,
                    physical: name.to_owned(),
                })
                .collect();
            let max_id = columns.len() as u32;
            Mapping { columns, max_id }
        });
        let known = self.source().len();
        let added = next.source().len().saturating_sub(known);
        let mut names = PhysicalNames::after(mapping.columns.iter(), mapping.max_id);
        let new: Vec<MappedColumn> = (0..added).map(|_| names.next_column()).collect();
        let (source, system) = mapping.columns.split_at(known);
        Mapping {
            columns: [source, &new, system].concat(),
            max_id: names.max_id,
        }
    }

    /// The columns of `rows`, where this table has them: the schema of a file with these columns alone,
    /// the others being NULL in it. `None` if one is not in the table as it is.
    pub(crate) fn project(&self, rows: &HistorySchema) -> Option<HistorySchema> {
        let places = rows
            .columns()
            .map(|(name, data_type, _)| {
                self.columns()
                    .position(|column| column.0 == name && column.1 == data_type)
            })
            .collect::<Option<Vec<usize>>>()?;
        let mapping = self.mapping.as_ref().map(|mapping| Mapping {
            columns: places
                .iter()
                .map(|at| mapping.columns[*at].clone())
                .collect(),
            max_id: mapping.max_id,
        });
        let mut projected = rows.clone();
        projected.mapping = mapping;
        Some(projected)
    }

    /// Whether rows with the columns of `rows` need no other columns than the table has, or NULL where
    /// it allows none.
    pub fn holds(&self, rows: &HistorySchema) -> bool {
        let evolved = self.evolve(rows);
        !evolved.retyped && evolved.schema == *self
    }
}

/// A name that no column has, as near to the old one as it can be.
fn free_name(name: &str, taken: &mut HashSet<String>) -> String {
    let numbered = (2..).map(|n| format!("{name}_old_{n}"));
    let mut names = [name.to_owned(), format!("{name}_old")]
        .into_iter()
        .chain(numbered);
    names
        .find(|name| taken.insert(name.to_lowercase()))
        .unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
#[path = "evolve_tests.rs"]
mod tests;
