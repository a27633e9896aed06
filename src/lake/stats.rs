//! Statistics of a data file (protocol section "Per-file Statistics"): row count, null counts and
//! bounds. Bounds are exact or safely wider, never narrower: a reader that skips by them must not
//! lose a row. So no number goes through a float that it did not come from.

use std::fmt::Write as _;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{max, max_string, min, min_string};
use arrow::datatypes::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};

use crate::lake::schema::HistorySchema;
use crate::lake::types::DeltaType;

/// Characters of a string that a bound keeps.
const PREFIX_CHARS: usize = 32;

/// Microseconds of a day.
const DAY_MICROS: i64 = 86_400_000_000;

/// Days of 0001-01-01 and of 10000-01-01 since 1970-01-01. A file with values outside gets no
/// bounds for the column: some readers fail on such bounds.
const FIRST_DAY: i64 = -719_162;
const END_DAY: i64 = 2_932_897;

/// The smallest and the largest value seen in a column.
#[derive(Debug, Clone, PartialEq)]
enum Range {
    /// Only nulls so far.
    Empty,
    /// Integers; days; microseconds.
    Integer(i64, i64),
    /// Decimals without their point.
    Decimal(i128, i128),
    /// Floats, none of them NaN or infinite.
    Float(f64, f64),
    /// Strings, in byte order.
    Text(String, String),
    /// A value was seen that no bound can express.
    Unbounded,
}

impl Range {
    fn join(&mut self, other: Range) {
        *self = match (std::mem::replace(self, Range::Empty), other) {
            (Range::Empty, range) | (range, Range::Empty) => range,
            (Range::Integer(a, b), Range::Integer(c, d)) => Range::Integer(a.min(c), b.max(d)),
            (Range::Decimal(a, b), Range::Decimal(c, d)) => Range::Decimal(a.min(c), b.max(d)),
            (Range::Float(a, b), Range::Float(c, d)) => Range::Float(a.min(c), b.max(d)),
            (Range::Text(a, b), Range::Text(c, d)) => Range::Text(a.min(c), b.max(d)),
            _ => Range::Unbounded,
        };
    }
}

/// What is known of one column.
#[derive(Debug)]
struct Column {
    index: usize,
    key: String,
    data_type: DeltaType,
    nulls: usize,
    range: Range,
}

/// Gathers the statistics of one data file, batch by batch.
#[derive(Debug)]
pub(crate) struct FileStats {
    rows: u64,
    columns: Vec<Column>,
}

impl FileStats {
    /// For a file of a table with this schema.
    pub(crate) fn new(schema: &HistorySchema) -> Self {
        let physical = schema.physical_names();
        let types: Vec<DeltaType> = schema
            .columns()
            .map(|(_, data_type, _)| data_type)
            .collect();
        let columns = schema.skipping_columns().into_iter().map(|index| Column {
            index,
            key: physical[index].to_owned(),
            data_type: types[index],
            nulls: 0,
            range: Range::Empty,
        });
        FileStats {
            rows: 0,
            columns: columns.collect(),
        }
    }

    /// Takes in a batch of the table's schema.
    pub(crate) fn update(&mut self, batch: &RecordBatch) {
        self.rows += batch.num_rows() as u64;
        for column in &mut self.columns {
            let array = batch.column(column.index);
            column.nulls += array.null_count();
            if column.range != Range::Unbounded {
                column.range.join(range_of(array, column.data_type));
            }
        }
    }

    /// Rows seen.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The statistics as the JSON text that an `add` action carries.
    pub(crate) fn to_json(&self) -> String {
        let (mut lower, mut upper, mut nulls) = (Members::new(), Members::new(), Members::new());
        for column in &self.columns {
            if let Some((min, max)) = bounds(&column.range, column.data_type) {
                lower.push(&column.key, &min);
                if let Some(max) = max {
                    upper.push(&column.key, &max);
                }
            }
            nulls.push(&column.key, &column.nulls.to_string());
        }
        format!(
            "{{\"numRecords\":{},\"minValues\":{},\"maxValues\":{},\"nullCount\":{}}}",
            self.rows,
            lower.end(),
            upper.end(),
            nulls.end()
        )
    }
}

/// A JSON object in the making. Values are JSON texts: a decimal of 38 digits has no other exact
/// form.
struct Members(String);

impl Members {
    fn new() -> Self {
        Members(String::from("{"))
    }

    fn push(&mut self, key: &str, value: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&quoted(key));
        self.0.push(':');
        self.0.push_str(value);
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn range_of(array: &ArrayRef, data_type: DeltaType) -> Range {
    match data_type {
        DeltaType::Short => integers::<Int16Type>(array),
        DeltaType::Integer => integers::<Int32Type>(array),
        DeltaType::Long => integers::<Int64Type>(array),
        DeltaType::Date => integers::<Date32Type>(array),
        DeltaType::Timestamp | DeltaType::TimestampNtz => {
            integers::<TimestampMicrosecondType>(array)
        }
        DeltaType::Float => floats::<Float32Type>(array),
        DeltaType::Double => floats::<Float64Type>(array),
        DeltaType::Decimal { .. } => {
            let values = array.as_primitive::<Decimal128Type>();
            match (min(values), max(values)) {
                (Some(low), Some(high)) => Range::Decimal(low, high),
                _ => Range::Empty,
            }
        }
        DeltaType::String => {
            let values = array.as_string::<i32>();
            match (min_string(values), max_string(values)) {
                (Some(low), Some(high)) => Range::Text(low.to_owned(), high.to_owned()),
                _ => Range::Empty,
            }
        }
        DeltaType::Boolean | DeltaType::Binary => Range::Unbounded,
    }
}

fn integers<T: ArrowPrimitiveType>(array: &ArrayRef) -> Range
where
    T::Native: Into<i64>,
{
    let values = array.as_primitive::<T>();
    match (min(values), max(values)) {
        (Some(low), Some(high)) => Range::Integer(low.into(), high.into()),
        _ => Range::Empty,
    }
}

/// Arrow orders floats totally: NaN comes first or last, so that the ends show if there is one.
fn floats<T: ArrowPrimitiveType>(array: &ArrayRef) -> Range
where
    T::Native: Into<f64>,
{
    let values = array.as_primitive::<T>();
    match (min(values), max(values)) {
        (Some(low), Some(high)) => {
            let (low, high): (f64, f64) = (low.into(), high.into());
            if low.is_finite() && high.is_finite() {
                Range::Float(low, high)
            } else {
                Range::Unbounded
            }
        }
        _ => Range::Empty,
    }
}

/// The bounds as JSON texts; no upper one if none of bearable length can be had.
fn bounds(range: &Range, data_type: DeltaType) -> Option<(String, Option<String>)> {
    let both = |low: String, high: String| Some((low, Some(high)));
    match range {
        Range::Empty | Range::Unbounded => None,
        Range::Integer(low, high) => match data_type {
            DeltaType::Date => {
                let in_years =
                    (FIRST_DAY..END_DAY).contains(low) && (FIRST_DAY..END_DAY).contains(high);
                in_years.then(|| {
                    (
                        format!("\"{}\"", date(*low)),
                        Some(format!("\"{}\"", date(*high))),
                    )
                })
            }
            DeltaType::Timestamp | DeltaType::TimestampNtz => {
                let years = FIRST_DAY * DAY_MICROS..END_DAY * DAY_MICROS;
                let zone = if data_type == DeltaType::Timestamp {
                    "Z"
                } else {
                    ""
                };
                let text = |micros: i64| format!("\"{}{zone}\"", timestamp(micros));
                (years.contains(low) && years.contains(high))
                    .then(|| (text(*low), Some(text(*high))))
            }
            _ => both(low.to_string(), high.to_string()),
        },
        Range::Decimal(low, high) => {
            let DeltaType::Decimal { scale, .. } = data_type else {
                return None;
            };
            both(decimal(*low, scale), decimal(*high, scale))
        }
        Range::Float(low, high) => {
            // -0 and 0 are equal for some readers and ordered for others: the wider one.
            let low = if *low == 0.0 { -0.0 } else { *low };
            let high = if *high == 0.0 { 0.0 } else { *high };
            both(format!("{low:?}"), format!("{high:?}"))
        }
        Range::Text(low, high) => Some((
            quoted(prefix(low)),
            upper_text(high).map(|text| quoted(&text)),
        )),
    }
}

fn prefix(text: &str) -> &str {
    match text.char_indices().nth(PREFIX_CHARS) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// A cut string is made larger than everything that begins like it, by the largest character;
/// only a string that itself goes on with that one has no such bound.
fn upper_text(text: &str) -> Option<String> {
    let kept = prefix(text);
    if kept.len() == text.len() {
        return Some(text.to_owned());
    }
    let upper = format!("{kept}{}", char::MAX);
    (upper.as_bytes() >= text.as_bytes()).then_some(upper)
}

fn decimal(unscaled: i128, scale: u8) -> String {
    let sign = if unscaled < 0 { "-" } else { "" };
    let scale = usize::from(scale);
    let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

/// `YYYY-MM-DD` in the proleptic Gregorian calendar. Counts from 0000-03-01, so that the leap day
/// ends a year and all that repeats is the block of 400 years.
fn date(days: i64) -> String {
    let days = days + 719_468;
    let (block, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year + block * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

fn timestamp(micros: i64) -> String {
    let (days, rest) = (micros.div_euclid(DAY_MICROS), micros.rem_euclid(DAY_MICROS));
    let (seconds, fraction) = (rest / 1_000_000, rest % 1_000_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let mut text = date(days);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "T{hours:02}:{minutes:02}:{:02}.{fraction:06}",
        seconds % 60
    );
    text
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
