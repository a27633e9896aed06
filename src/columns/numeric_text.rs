//! numeric that no DECIMAL holds (without a declared precision, or of more than 38 digits) as
//! numeric_out writes it. Done here and not through the output function, as unconstrained numeric
//! is common, and the way through Postgres would cost several times the whole row.

use arrow::array::ArrayRef;
use pgrx::pg_sys::Datum;

use super::column::{Column, Strings};
use super::error::Fault;
use super::numeric::{DIGIT_WIDTH, Finite, Numeric};
use super::varlena;

/// A numeric column kept as text.
pub(super) struct NumericText {
    values: Strings,
    /// The value being written.
    text: Vec<u8>,
}

impl NumericText {
    pub fn new() -> Self {
        NumericText {
            values: Strings::new(),
            text: Vec::new(),
        }
    }
}

impl Column for NumericText {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum and the memory context.
        let bytes = unsafe { varlena::payload(datum) };
        let number = Numeric::parse(bytes).ok_or(Fault::Decimal)?;
        self.text.clear();
        write(&number, &mut self.text);
        self.values.push_ascii(&self.text)
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.text = Vec::new();
        self.values.take()
    }
}

/// Appends a number as numeric_out writes it, in ASCII.
pub(super) fn write(number: &Numeric<'_>, text: &mut Vec<u8>) {
    match number {
        Numeric::NaN => text.extend_from_slice(b"NaN"),
        Numeric::Infinity => text.extend_from_slice(b"Infinity"),
        Numeric::NegativeInfinity => text.extend_from_slice(b"-Infinity"),
        Numeric::Finite(number) => write_finite(number, text),
    }
}

/// As get_str_from_var of numeric.c writes it: no exponent, no leading zeros but one before the
/// point, as many places as the scale says.
fn write_finite(number: &Finite<'_>, text: &mut Vec<u8>) {
    if number.negative {
        text.push(b'-');
    }
    // The first digit that is not zero, before the point.
    let first = (0..=number.weight).find(|&at| number.digit(at) != 0);
    match first {
        None => text.push(b'0'),
        Some(first) => {
            let digits = decimal_digits(number.digit(first));
            let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
            text.extend_from_slice(&digits[zeros..]);
            for at in first + 1..=number.weight {
                text.extend_from_slice(&decimal_digits(number.digit(at)));
            }
        }
    }
    if number.scale > 0 {
        text.push(b'.');
        let end = text.len() + number.scale as usize;
        let digits = (number.scale + DIGIT_WIDTH - 1) / DIGIT_WIDTH;
        for at in number.weight + 1..=number.weight + digits {
            text.extend_from_slice(&decimal_digits(number.digit(at)));
        }
        text.truncate(end);
    }
}

/// The four decimal digits of one of base 10000.
fn decimal_digits(digit: u16) -> [u8; DIGIT_WIDTH as usize] {
    [1000, 100, 10, 1].map(|power| b'0' + (digit / power % 10) as u8)
}

#[cfg(test)]
mod tests {
    use super::super::numeric::stored::{long, short, specials};
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut text = Vec::new();
        write(&Numeric::parse(bytes).unwrap(), &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn as_numeric_out() {
        assert_eq!(
            specials().map(|bytes| text(&bytes)),
            ["NaN", "Infinity", "-Infinity"]
        );
        assert_eq!(text(&short(false, 0, 0, &[])), "0");
        assert_eq!(text(&short(false, 0, 3, &[])), "0.000");
        assert_eq!(text(&short(false, 0, 0, &[7])), "7");
        assert_eq!(text(&short(true, 1, 3, &[1, 20, 5000])), "-10020.500");
        assert_eq!(text(&short(false, 2, 0, &[3])), "300000000");
        assert_eq!(text(&short(false, -1, 4, &[12])), "0.0012");
        assert_eq!(text(&short(true, -3, 12, &[1])), "-0.000000000001");
        assert_eq!(text(&short(false, -1, 6, &[1234, 5600])), "0.123456");
        assert_eq!(text(&long(false, 0, 9, &[1, 5000])), "1.500000000");
        assert_eq!(text(&long(false, 500, 0, &[1])).len(), 2001);
    }
}
