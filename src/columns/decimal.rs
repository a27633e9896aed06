//! numeric(p,s) as DECIMAL: from the stored digits straight to an integer at the column's scale.

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::DataType;
use pgrx::pg_sys::Datum;

use super::column::{Column, Values};
use super::error::Fault;
use super::numeric::{DIGIT_WIDTH, Finite, Numeric};
use super::varlena;

/// The most digits a DECIMAL has.
const MAX_PRECISION: i32 = 38;
const VARHDRSZ: i32 = 4;

/// A numeric column with a declared precision.
pub(super) struct Decimal {
    values: Values<i128>,
    precision: u8,
    scale: u8,
}

impl Decimal {
    pub fn new(precision: u8, scale: u8) -> Self {
        Decimal {
            values: Values::new(),
            precision,
            scale,
        }
    }
}

impl Column for Decimal {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum and the memory context.
        let bytes = unsafe { varlena::payload(datum) };
        match Numeric::parse(bytes).ok_or(Fault::Decimal)? {
            Numeric::Finite(number) => {
                let value = unscaled(&number, self.precision, self.scale);
                Ok(self.values.push(value.ok_or(Fault::Decimal)?))
            }
            Numeric::NaN | Numeric::Infinity | Numeric::NegativeInfinity => {
                Ok(self.values.push_null())
            }
        }
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        let (values, nulls) = self.values.take();
        let array = Decimal128Array::new(ScalarBuffer::from(values), nulls);
        let data_type = DataType::Decimal128(self.precision, self.scale as i8);
        Arc::new(array.with_data_type(data_type))
    }
}

/// The smallest DECIMAL that holds every value of a numeric with this type modifier: its
/// precision and scale, or `None` if there is none with up to 38 digits.
pub(super) fn precision_and_scale(typmod: i32) -> Option<(u8, u8)> {
    // numeric.c: is_valid_numeric_typmod, numeric_typmod_precision, numeric_typmod_scale (11
    // bits, signed).
    if typmod < VARHDRSZ {
        return None;
    }
    let packed = typmod - VARHDRSZ;
    let declared = (packed >> 16) & 0xFFFF;
    let scale = ((packed & 0x7FF) ^ 1024) - 1024;
    let (precision, scale) = match scale {
        negative if negative < 0 => (declared - negative, 0),
        scale => (declared.max(scale), scale),
    };
    if precision > MAX_PRECISION {
        return None;
    }
    Some((u8::try_from(precision).ok()?, u8::try_from(scale).ok()?))
}

/// The number times 10^scale; `None` if that is no integer of up to `precision` digits.
fn unscaled(number: &Finite<'_>, precision: u8, scale: u8) -> Option<i128> {
    let mut last = number.len() as i32 - 1;
    // Postgres stores no trailing zeros; the arithmetic below must not depend on it.
    while last >= 0 && number.digit(last) == 0 {
        last -= 1;
    }
    if last < 0 {
        return Some(0);
    }
    let mut value: u128 = 0;
    for at in 0..last {
        value = value
            .checked_mul(10_000)?
            .checked_add(number.digit(at).into())?;
    }
    // Decimal places by which the last digit stands above the unit of the column's scale. Below
    // zero, the unit lies within that digit (or past it: then the number does not fit).
    let shift = DIGIT_WIDTH * (number.weight - last) + i32::from(scale);
    let digit = u128::from(number.digit(last));
    let value = if shift >= 0 {
        let whole = value.checked_mul(10_000)?.checked_add(digit)?;
        whole.checked_mul(power_of_ten(shift)?)?
    } else {
        let kept = power_of_ten(DIGIT_WIDTH + shift)?;
        let below = power_of_ten(-shift)?;
        if digit % below != 0 {
            return None;
        }
        value.checked_mul(kept)?.checked_add(digit / below)?
    };
    if value >= power_of_ten(precision.into())? {
        return None;
    }
    // Below 10^38, so within i128.
    let value = value as i128;
    Some(if number.negative { -value } else { value })
}

/// `None` below zero and past u128.
fn power_of_ten(exponent: i32) -> Option<u128> {
    10u128.checked_pow(u32::try_from(exponent).ok()?)
}

#[cfg(test)]
mod tests {
    use super::super::numeric::stored::{long, short};
    use super::*;

    fn value(bytes: &[u8], precision: u8, scale: u8) -> Option<i128> {
        match Numeric::parse(bytes) {
            Some(Numeric::Finite(number)) => unscaled(&number, precision, scale),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zero() {
        assert_eq!(value(&short(false, 0, 2, &[]), 10, 2), Some(0));
        assert_eq!(value(&long(false, 5, 2, &[0, 0]), 10, 2), Some(0));
    }

    #[test]
    fn scale_is_padded() {
        // 12345.6 as numeric(10,4), 12345.60 as numeric(7,2), 5 as numeric(3,2).
        assert_eq!(
            value(&short(false, 1, 4, &[1, 2345, 6000]), 10, 4),
            Some(123_456_000)
        );
        assert_eq!(
            value(&short(false, 1, 2, &[1, 2345, 6000]), 7, 2),
            Some(1_234_560)
        );
        assert_eq!(value(&short(false, 0, 2, &[5]), 3, 2), Some(500));
    }

    #[test]
    fn trailing_zero_digits_are_implied() {
        // 120000000 is the single digit 1 with 2000 after it, then a digit not stored.
        assert_eq!(
            value(&short(false, 2, 0, &[1, 2000]), 9, 0),
            Some(120_000_000)
        );
        assert_eq!(
            value(&short(true, 9, 0, &[99]), 38, 0),
            Some(-99 * 10i128.pow(36))
        );
    }

    #[test]
    fn negative_weights() {
        // -0.00001234 and 0.0012.
        assert_eq!(value(&short(true, -2, 8, &[1234]), 8, 8), Some(-1234));
        assert_eq!(value(&short(false, -1, 4, &[12]), 10, 6), Some(1200));
        assert_eq!(value(&long(false, -10, 38, &[100]), 38, 38), Some(1));
    }

    #[test]
    fn thirty_eight_digits_at_any_scale() {
        let max = 10i128.pow(38) - 1;
        let nines = [[99].as_slice(), &[9999; 9]].concat();
        assert_eq!(value(&short(false, 9, 0, &nines), 38, 0), Some(max));
        assert_eq!(value(&long(true, 9, 0, &nines), 38, 0), Some(-max));
        // 9.999… with 37 places: 41 digits as stored, more than an i128 has.
        let nines = [[9].as_slice(), &[9999; 9], &[9000]].concat();
        assert_eq!(value(&short(true, 0, 37, &nines), 38, 37), Some(-max));
        // 0.999… with 38 places.
        let nines = [[9999; 9].as_slice(), &[9900]].concat();
        assert_eq!(value(&short(false, -1, 38, &nines), 38, 38), Some(max));
    }

    #[test]
    fn what_does_not_fit() {
        assert_eq!(value(&short(false, 0, 0, &[1000]), 3, 0), None);
        assert_eq!(value(&short(false, 0, 3, &[1, 2340]), 10, 2), None);
        assert_eq!(value(&short(false, -3, 12, &[1]), 10, 2), None);
        assert_eq!(value(&long(false, 30000, 0, &[1]), 38, 0), None);
        assert_eq!(value(&long(false, -30000, 0, &[1]), 38, 0), None);
        assert_eq!(value(&long(false, 20, 0, &[9999; 21]), 38, 0), None);
    }

    #[test]
    fn type_modifiers() {
        let typmod = |precision: i32, scale: i32| ((precision << 16) | (scale & 0x7FF)) + 4;
        assert_eq!(precision_and_scale(-1), None);
        assert_eq!(precision_and_scale(typmod(10, 2)), Some((10, 2)));
        assert_eq!(precision_and_scale(typmod(38, 38)), Some((38, 38)));
        assert_eq!(precision_and_scale(typmod(39, 2)), None);
        assert_eq!(precision_and_scale(typmod(1000, 0)), None);
        // numeric(3,-2) holds up to 99900; numeric(36,-3) would need 39 digits.
        assert_eq!(precision_and_scale(typmod(3, -2)), Some((5, 0)));
        assert_eq!(precision_and_scale(typmod(35, -3)), Some((38, 0)));
        assert_eq!(precision_and_scale(typmod(36, -3)), None);
        assert_eq!(precision_and_scale(typmod(1, -1000)), None);
        // numeric(3,5) holds up to 0.00999.
        assert_eq!(precision_and_scale(typmod(3, 5)), Some((5, 5)));
        assert_eq!(precision_and_scale(typmod(3, 38)), Some((38, 38)));
        assert_eq!(precision_and_scale(typmod(3, 39)), None);
    }
}
