//! The extension's own tables, read and written with their owner's rights.

use pgrx::pg_sys;
use pgrx::prelude::*;

/// Runs `work` as the owner of the extension's tables, whatever the caller's rights; the caller's
/// rights were checked before.
pub(super) fn as_superuser<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the user is set back after `work`; should it raise an error, the end of the
    // (sub)transaction does it (xact.c).
    unsafe {
        let mut user = pg_sys::InvalidOid;
        let mut context = 0;
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        let change = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        pg_sys::SetUserIdAndSecContext(
            pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID),
            context | change as i32,
        );
        // No function or operator of the caller's search_path may run with these rights.
        let settings = pg_sys::NewGUCNestLevel();
        pg_sys::RestrictSearchPath();
        let result = work();
        pg_sys::AtEOXact_GUC(false, settings);
        pg_sys::SetUserIdAndSecContext(user, context);
        result
    }
}

pub(super) fn count_feeds() -> i64 {
    select_one(
        "SELECT count(*) FROM wal2delta.own_feeds f \
         JOIN pg_catalog.pg_namespace n ON n.oid = f.schema_oid",
        &[],
    )
    .unwrap_or(0)
}

pub(super) fn select_one<T: IntoDatum + FromDatum>(
    query: &str,
    arguments: &[pgrx::datum::DatumWithOid<'_>],
) -> Option<T> {
    let result = as_superuser(|| {
        Spi::connect(|client| {
            let rows = client.select(query, Some(1), arguments)?;
            if rows.is_empty() {
                Ok(None)
            } else {
                rows.first().get_one::<T>()
            }
        })
    });
    result.unwrap_or_else(|error: pgrx::spi::SpiError| {
        error!("could not read the feeds of this database: {error}")
    })
}
