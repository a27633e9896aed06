//! numeric that no DECIMAL holds (without a declared precision, or of more than 38 digits) as
//! numeric_out writes it. Done here and not through the output function, as unconstrained numeric
//! is common, and the way through Postgres would cost several times the whole row.

use std::fmt::Write;

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
    text: String,
}

impl NumericText {
    pub fn new() -> Self {
        NumericText {
            values: Strings::new(),
            text: String::new(),
        }
    }
}

impl Column for NumericText {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum and the memory context.
        let bytes = unsafe { varlena::payload(datum) };
        match Numeric::parse(bytes).ok_or(Fault::Decimal)? {
            Numeric::NaN => self.values.push("NaN"),
            Numeric::Infinity => self.values.push("Infinity"),
            Numeric::NegativeInfinity => self.values.push("-Infinity"),
            Numeric::Finite(number) => {
                self.text.clear();
                write_number(&number, &mut self.text);
                self.values.push(&self.text)
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
        self.text = String::new();
        self.values.take()
    }
}

/// The number as get_str_from_var of numeric.c writes it: no exponent, no leading zeros but one
/// before the point, as many places as the scale says.
fn write_number(number: &Finite<'_>, text: &mut String) {
    if number.negative {
        text.push('-');
    }
    // The first digit that is not zero, before the point.
    let first = (0..=number.weight).find(|&at| number.digit(at) != 0);
    match first {
        None => text.push('0'),
        Some(first) => {
            push(text, format_args!("{}", number.digit(first)));
            for at in first + 1..=number.weight {
                push(text, format_args!("{:04}", number.digit(at)));
            }
        }
    }
    if number.scale > 0 {
        text.push('.');
        let end = text.len() + number.scale as usize;
        let digits = (number.scale + DIGIT_WIDTH - 1) / DIGIT_WIDTH;
        for at in number.weight + 1..=number.weight + digits {
            push(text, format_args!("{:04}", number.digit(at)));
        }
        text.truncate(end);
    }
}

fn push(text: &mut String, digits: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(digits);
}

#[cfg(test)]
mod tests {
    use super::super::numeric::stored::{long, short};
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut text = String::new();
        match Numeric::parse(bytes) {
            Some(Numeric::Finite(number)) => write_number(&number, &mut text),
            other => panic!("{other:?}"),
        }
        text
    }

    #[test]
    fn as_numeric_out() {
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
