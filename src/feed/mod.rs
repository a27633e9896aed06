//! The feed worker: which tables take part, where each stands, when to flush, and what the slot
//! may confirm. It gets changes from [`crate::decode`], has [`crate::columns`] turn them into
//! Arrow columns, and hands batches to [`crate::lake`]. Everything here runs on the main thread.

mod altered;
mod assistants;
mod buffer;
mod catalog;
mod clearing;
mod commits;
mod copier;
mod copy_table;
mod failures;
mod feeds;
mod job;
mod lanes;
mod looks;
mod optimizing;
mod options;
mod own_wal;
mod partitions;
mod pressure;
mod process_changes;
mod publish;
mod reason;
mod registration;
mod resume;
mod scan;
mod snapshot_worker;
mod snapshots;
mod table;
mod visibility;
mod waiters;
mod worker;

pub use options::Options;
