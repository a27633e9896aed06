//! Which tables the catalogs of feeds are told about: what a history's columns are, as its commits tell,
//! and the comments of its source table, as looks find them. The writer threads do the rest.

use std::collections::HashMap;

use super::catalog::FeedRow;
use super::feeds::Feeds;
use crate::lake::{Destination, HistorySchema, Registrar};

/// Catalogs by schema and generation of the feed: a feed that begins again goes on with its own.
pub type Registrars = HashMap<(u32, u64), Registrar>;

impl Feeds {
    fn registrar(&self, namespace: u32) -> Option<&Registrar> {
        let feed = self.feeds.get(&namespace)?;
        self.registrars.get(&(namespace, feed.row.generation))
    }

    /// Takes over which catalog a feed has, and how it is reached.
    pub fn adopt_catalog(&mut self, row: &FeedRow, destination: &Destination) {
        let key = (row.namespace, row.generation);
        let catalog = match row.access.catalog() {
            Ok(Some(catalog)) => catalog,
            // What is not right about it is an error of access to the store too.
            Ok(None) | Err(_) => {
                if !row.access.is_refused() {
                    self.registrars.remove(&key);
                }
                return;
            }
        };
        match self.registrars.get(&key) {
            Some(registrar) => registrar.renew(catalog),
            None => {
                let registrar = self.lake.registrar(destination, catalog);
                self.registrars.insert(key, registrar);
            }
        }
    }

    /// The columns of a table's history, by its last commit.
    pub fn note_columns(&self, oid: u32, schema: HistorySchema) {
        let Some(table) = self.tables.get(&oid) else {
            return;
        };
        if let Some(registrar) = self.registrar(table.namespace) {
            registrar.table(self.source(oid), table.shown.folder.clone(), schema);
        }
    }

    /// The same of a table that the worker begins with.
    pub fn note_found(&self, oid: u32, namespace: u32) {
        let feed = self.feeds.get(&namespace);
        if let Some(registrar) = self.registrar(namespace)
            && let Some(found) = feed.and_then(|feed| feed.found.get(&oid))
            && let Ok(schema) = &found.schema
        {
            registrar.table(self.source(oid), found.folder.clone(), schema.clone());
        }
    }

    /// What a look has found a table to be called, and its comments.
    pub fn note_comments(&mut self, oid: u32, name: &str, comments: String) {
        let Some(table) = self.tables.get(&oid) else {
            return;
        };
        let Some(registrar) = self.registrar(table.namespace) else {
            return;
        };
        let now = Some((name.to_owned(), comments));
        if table.shown.comments == now {
            return;
        }
        if let Some((name, comments)) = &now {
            registrar.comments(oid, name.clone(), comments);
        }
        if let Some(table) = self.tables.get_mut(&oid) {
            table.shown.comments = now;
        }
    }

    /// What could not be registered, and why, by table.
    pub fn unregistered(&self) -> HashMap<u32, String> {
        let registrars = self.registrars.values();
        registrars.flat_map(Registrar::problems).collect()
    }
}
