//! Values with a length word (varatt.h): inline, compressed, or a pointer to elsewhere.

use pgrx::pg_sys::{self, Datum};
use pgrx::varlena::{
    varatt_is_1b_e, varatt_is_4b_c, varatt_is_4b_u, vardata_1b_e, vardata_any, varsize_4b,
    varsize_any_exhdr, vartag_1b_e,
};

/// Is this a pointer into the TOAST table? In an update's new tuple that means: unchanged, and
/// not in the WAL.
///
/// # Safety
/// `datum` is a non-null varlena.
#[inline]
pub(super) unsafe fn is_on_disk(datum: Datum) -> bool {
    let value = datum.cast_mut_ptr::<pg_sys::varlena>();
    // SAFETY: as the caller vouches.
    unsafe {
        varatt_is_1b_e(value)
            && u32::from(vartag_1b_e(value)) == pg_sys::vartag_external::VARTAG_ONDISK
    }
}

/// The value's bytes without header, fetched and decompressed if need be. They live as long as
/// the tuple and the current memory context.
///
/// # Safety
/// `datum` is a non-null varlena, valid as long as `'a`; so is the current memory context.
#[inline]
pub(super) unsafe fn payload<'a>(datum: Datum) -> &'a [u8] {
    let mut value = datum.cast_mut_ptr::<pg_sys::varlena>();
    // SAFETY: as the caller vouches; detoasting gives an inline, uncompressed value.
    unsafe {
        // Values that decoding has put together from TOAST chunks come as pointers in memory
        // (ReorderBufferToastReplace): followed here, as detoasting would copy them.
        while varatt_is_1b_e(value)
            && u32::from(vartag_1b_e(value)) == pg_sys::vartag_external::VARTAG_INDIRECT
        {
            let indirect = vardata_1b_e(value).cast::<pg_sys::varatt_indirect>();
            value = indirect.read_unaligned().pointer;
        }
        if varatt_is_1b_e(value) || varatt_is_4b_c(value) {
            value = pg_sys::pg_detoast_datum_packed(value);
        }
        std::slice::from_raw_parts(vardata_any(value).cast(), varsize_any_exhdr(value))
    }
}

/// What follows the length word of an uncompressed value that is part of another one, where it has
/// four bytes. `None`: there is no such value.
pub(super) fn embedded(bytes: &[u8]) -> Option<&[u8]> {
    const HEADER: usize = size_of::<u32>();
    let value = bytes.first_chunk::<HEADER>()?.as_ptr().cast();
    // SAFETY: there are as many bytes as the length word has; the macros read no others.
    let size = unsafe { varatt_is_4b_u(value).then(|| varsize_4b(value)) }?;
    bytes.get(HEADER..size)
}
