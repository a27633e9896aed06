//! From the write-ahead log to changes: the replication slot, the decoding loop and the output
//! plugin, all in this process (no walsender). It knows tuples and transactions, not tables of a
//! feed or Arrow: what it decodes it hands to a [`Sink`].
//!
//! The order of calls follows Postgres' own loops (walsender.c `XLogSendLogical`, logicalfuncs.c
//! `pg_logical_slot_get_changes_guts`).

mod historic;
mod invalidations;
mod partitions;
mod peek;
mod plugin;
mod raw;
mod slot;
mod stream;

pub use historic::{full_tables, identity_full, is_partitioned, rewritten, with_relation};
pub use invalidations::{Invalidated, invalidation_count, take_invalidated, watch_invalidations};
pub use partitions::{Roots, partition_roots};
pub use peek::{Existing, existing};
pub use plugin::{Change, Relation, Sink, Transaction, fixed_attributes};
pub use slot::{PLUGIN, Slot, allow_plugin_for_this_process, slot_name};
pub use stream::{Decoder, flush_position, insert_position, lsn_text};
