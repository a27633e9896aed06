//! Enums as their labels. A label is looked up once; ALTER TYPE … RENAME VALUE makes the caches
//! forget, through Postgres's own invalidation, so that a row has the label of its time.

use std::ffi::{CStr, c_int};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::ArrayRef;
use pgrx::pg_sys::{self, Datum};

use super::column::{Column, Strings};
use super::encoding::Encoding;
use super::error::Fault;

/// Goes up whenever something in pg_enum may have changed.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Once = Once::new();

unsafe extern "C-unwind" fn forget(_arg: Datum, _cache: c_int, _hash: u32) {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A column of an enum type.
pub(super) struct Enum {
    values: Strings,
    encoding: Encoding,
    /// Ordered by OID.
    labels: Vec<(u32, Box<str>)>,
    generation: u64,
}

impl Enum {
    /// # Safety
    /// On the main thread of a backend.
    pub unsafe fn new(encoding: Encoding) -> Self {
        REGISTERED.call_once(|| {
            let cache = pg_sys::SysCacheIdentifier::ENUMOID as c_int;
            // SAFETY: once a process, as registrations are few and for good; the callback only
            // counts.
            unsafe {
                pg_sys::CacheRegisterSyscacheCallback(cache, Some(forget), Datum::from(0usize));
            }
        });
        let generation = GENERATION.load(Ordering::Relaxed);
        Enum {
            values: Strings::new(),
            encoding,
            labels: Vec::new(),
            generation,
        }
    }
}

impl Column for Enum {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        let value = datum.value() as u32;
        let generation = GENERATION.load(Ordering::Relaxed);
        if self.generation != generation {
            self.labels.clear();
            self.generation = generation;
        }
        let at = match self.labels.binary_search_by_key(&value, |(oid, _)| *oid) {
            Ok(at) => at,
            Err(at) => {
                // SAFETY: the caller is in a transaction or under a historic snapshot.
                let label = unsafe { label(value, self.encoding) };
                let label = label.ok_or(Fault::EnumLabel(value))?;
                self.labels.insert(at, (value, label));
                at
            }
        };
        self.values.push(&self.labels[at].1)
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.values.take()
    }
}

/// The label in the catalog, as enum_out finds it.
///
/// # Safety
/// Catalog access is allowed; the current memory context is short-lived.
unsafe fn label(value: u32, encoding: Encoding) -> Option<Box<str>> {
    // SAFETY: a tuple of pg_enum starts with FormData_pg_enum, and is pinned until released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::ENUMOID as c_int;
        let tuple = pg_sys::SearchSysCache1(cache, Datum::from(value as usize));
        if tuple.is_null() {
            return None;
        }
        let row = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_enum>();
        let label = CStr::from_ptr((*row).enumlabel.data.as_ptr());
        let label = encoding.to_string(label.to_bytes()).into_boxed_str();
        pg_sys::ReleaseSysCache(tuple);
        Some(label)
    }
}
