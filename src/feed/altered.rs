//! Columns that are altered: histories follow them, or are copied for them.

use super::buffer::same_columns;
use super::catalog;
use super::clearing::open_existing;
use super::commits::open;
use super::feeds::Feeds;
use super::table::{Altered, InFlight, State};
use crate::decode::{Transaction, insert_position};
use crate::lake::{Content, HistorySchema, Replace, RowsCommit};

impl Feeds {
    /// Compares columns of tables where they may have been altered with those that their histories
    /// have, or their copies will have.
    pub fn compare_columns(&mut self) {
        let due: Vec<u32> = self
            .tables
            .values()
            .filter(|table| table.compare && table.schema().is_some())
            .map(|table| table.oid)
            .collect();
        if due.is_empty() {
            return;
        }
        let now = catalog::columns(&due);
        let until = insert_position();
        for (oid, fields) in now {
            let Some(table) = self.tables.get_mut(&oid) else {
                continue;
            };
            let now = HistorySchema::new(fields).ok();
            let fits = match (table.schema(), &now) {
                (Some(schema), Some(now)) if table.evolves => schema.holds(now),
                (Some(schema), Some(now)) => same_columns(schema, now),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            table.compare = false;
            if !fits {
                table.altered = Some(Altered {
                    at: until,
                    copies: table.copies,
                    columns: now,
                });
            }
        }
    }

    /// Follows alterations of columns with no change of a row after it that would have shown it, once
    /// decoding has got to where a look saw them.
    pub fn follow_altered(&mut self) {
        let position = self.position;
        let due: Vec<u32> = self
            .tables
            .values()
            .filter(|table| {
                table
                    .altered
                    .as_ref()
                    .is_some_and(|seen| position >= seen.at)
            })
            .map(|table| table.oid)
            .collect();
        for oid in due {
            let Some(table) = self.tables.get_mut(&oid) else {
                continue;
            };
            let Some(altered) = table.altered.take() else {
                continue;
            };
            let streams = matches!(&table.state, State::Streaming(stream)
                if stream.history.is_some() || stream.writer.is_some());
            match (streams, altered.columns) {
                (false, _) => {}
                (true, Some(_)) if table.evolves && altered.copies != table.copies => {
                    // A row has shown one alteration, which need not have been the last.
                    table.compare = true;
                    self.look_wanted = true;
                }
                (true, _) if altered.copies != table.copies => {}
                (true, Some(columns)) if table.evolves => self.evolve(oid, &columns),
                (true, _) => self.copy_again(oid, position, "its columns were altered"),
            }
        }
    }

    /// Gives a history without rows the columns that its table has now.
    pub fn reshape(&mut self, oid: u32, transaction: &Transaction) {
        let (ticket, source) = (self.ticket(), self.source(oid));
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        if let Some(feed) = self.feeds.get(&table.namespace) {
            open(table, feed, source, &self.lake, transaction.commit_lsn);
        }
        let generation = table.generation;
        // What a look found is compared with the columns that the history gets now.
        if table.altered.take().is_some() {
            table.compare = true;
            self.look_wanted = true;
        }
        let State::Streaming(stream) = &mut table.state else {
            return;
        };
        let (Some(writer), Some(buffer)) = (&stream.writer, &stream.buffer) else {
            return;
        };
        let schema = buffer.schema().clone();
        if let Some(history) = &mut stream.history {
            history.schema = schema.clone();
        }
        stream.schema = Some(schema.clone());
        writer.replace(
            ticket,
            Replace {
                generation,
                schema,
                files: Vec::new(),
                content: Content::First,
                commit: RowsCommit {
                    lsn: transaction.commit_lsn,
                    crc: None,
                    sort_by: stream.sort_by,
                },
            },
        );
        stream.in_flight.push_back(InFlight {
            ticket,
            first: transaction.commit_lsn,
            snapshot: false,
            bare: false,
        });
    }

    /// Gives a history that is kept the columns that its table has now, if no row has brought them.
    pub fn evolve(&mut self, oid: u32, columns: &HistorySchema) {
        self.flush_table(oid);
        let (ticket, source, position) = (self.ticket(), self.source(oid), self.position);
        let crc = self.crc_here();
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let generation = table.generation;
        let State::Streaming(stream) = &mut table.state else {
            return;
        };
        let (Some(schema), Some(history)) = (&stream.schema, &stream.history) else {
            // Its history is being made; the next look comes by here again.
            table.compare = true;
            return;
        };
        let evolved = schema.evolve(columns);
        if evolved.retyped && stream.has_rows {
            return self.copy_again(oid, position, "a column has another type");
        }
        let writer = stream.writer.get_or_insert_with(|| {
            open_existing(
                &self.lake,
                feed,
                source,
                generation,
                &history.folder,
                schema,
            )
        });
        writer.replace(
            ticket,
            Replace {
                generation,
                schema: evolved.schema.clone(),
                files: Vec::new(),
                content: Content::Columns,
                commit: RowsCommit {
                    lsn: position,
                    crc,
                    sort_by: stream.sort_by,
                },
            },
        );
        stream.schema = Some(evolved.schema);
        stream.evolved = false;
        stream.in_flight.push_back(InFlight {
            ticket,
            first: position,
            snapshot: false,
            bare: true,
        });
    }
}
