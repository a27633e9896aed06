//! smallint, integer, bigint, real, double precision: the bits of the datum as they are, NaN and
//! infinities of floats with them.

use arrow::datatypes::{Float32Type, Float64Type, Int16Type, Int32Type, Int64Type};
use pgrx::pg_sys::Datum;

use super::column::Read;

/// smallint.
pub(super) struct Short;

impl Read for Short {
    type Arrow = Int16Type;

    fn read(datum: Datum) -> Option<i16> {
        Some(datum.value() as i16)
    }
}

/// integer.
pub(super) struct Integer;

impl Read for Integer {
    type Arrow = Int32Type;

    fn read(datum: Datum) -> Option<i32> {
        Some(datum.value() as i32)
    }
}

/// bigint. Eight bytes are passed by value on every 64-bit server.
pub(super) struct Long;

impl Read for Long {
    type Arrow = Int64Type;

    fn read(datum: Datum) -> Option<i64> {
        Some(datum.value() as i64)
    }
}

/// real.
pub(super) struct Float;

impl Read for Float {
    type Arrow = Float32Type;

    fn read(datum: Datum) -> Option<f32> {
        Some(f32::from_bits(datum.value() as u32))
    }
}

/// double precision.
pub(super) struct Double;

impl Read for Double {
    type Arrow = Float64Type;

    fn read(datum: Datum) -> Option<f64> {
        Some(f64::from_bits(datum.value() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_and_bits_survive() {
        assert_eq!(Short::read(Datum::from(-2i16)), Some(-2));
        assert_eq!(Integer::read(Datum::from(i32::MIN)), Some(i32::MIN));
        assert_eq!(Long::read(Datum::from(i64::MIN)), Some(i64::MIN));
        let negative_zero = Datum::from(f64::to_bits(-0.0) as usize);
        assert!(Double::read(negative_zero).unwrap().is_sign_negative());
        let nan = Datum::from(f32::NAN.to_bits() as usize);
        assert!(Float::read(nan).unwrap().is_nan());
    }
}
