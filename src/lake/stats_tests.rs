use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal128Array, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array,
    StringArray, TimestampMicrosecondArray,
};
use serde_json::Value;

use super::*;
use crate::lake::schema::Field;

/// Statistics of a file with one source column.
fn stats(data_type: DeltaType, array: ArrayRef) -> String {
    let field = Field {
        name: "c".to_owned(),
        data_type,
        nullable: true,
        number: None,
        added: false,
        output: None,
    };
    let schema = HistorySchema::new(vec![field]).unwrap();
    let rows = array.len();
    let long = |value: i64| Arc::new(Int64Array::from(vec![value; rows])) as ArrayRef;
    let columns = vec![
        array,
        Arc::new(StringArray::from(vec!["insert"; rows])) as ArrayRef,
        long(1000),
        Arc::new(Int32Array::from(vec![7; rows])),
        Arc::new(TimestampMicrosecondArray::from(vec![0; rows])),
        long(1001),
    ];
    let batch = RecordBatch::try_new(schema.arrow(), columns).unwrap();
    let mut stats = FileStats::new(&schema);
    stats.update(&batch.slice(0, rows / 2));
    stats.update(&batch.slice(rows / 2, rows - rows / 2));
    let text = stats.to_json();
    let parsed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(parsed["numRecords"], rows);
    assert_eq!(
        parsed["minValues"]["_timestamp"],
        "1970-01-01T00:00:00.000000"
    );
    assert_eq!(parsed["maxValues"]["_sort_by"], 1001);
    assert!(parsed["minValues"].get("_pg_xid").is_none());
    text
}

fn has(text: &str, low: &str, high: &str) {
    assert!(
        text.contains(&format!("\"minValues\":{{\"c\":{low},")),
        "{low} in {text}"
    );
    assert!(
        text.contains(&format!("\"maxValues\":{{\"c\":{high},")),
        "{high} in {text}"
    );
}

fn has_none(text: &str) {
    assert!(text.contains("\"minValues\":{\"_pg_lsn\""), "{text}");
    assert!(text.contains("\"maxValues\":{\"_pg_lsn\""), "{text}");
}

#[test]
fn decimals_are_exact_beyond_the_range_of_floats() {
    let data_type = DeltaType::Decimal {
        precision: 38,
        scale: 10,
    };
    let values = vec![
        Some(90_071_992_547_409_931_234_567_891_i128),
        None,
        Some(-99_999_999_999_999_999_999_999_999_999_999_999_999),
        Some(-5),
    ];
    let array = Decimal128Array::from(values).with_data_type(data_type.arrow());
    let text = stats(data_type, Arc::new(array));
    has(
        &text,
        "-9999999999999999999999999999.9999999999",
        "9007199254740993.1234567891",
    );
    assert!(text.contains("\"nullCount\":{\"c\":1,"));
    assert_eq!(decimal(-5, 2), "-0.05");
    assert_eq!(decimal(120, 0), "120");
}

#[test]
fn integers_keep_their_ends() {
    let text = stats(
        DeltaType::Long,
        Arc::new(Int64Array::from(vec![i64::MAX, i64::MIN])),
    );
    has(&text, "-9223372036854775808", "9223372036854775807");
    has(
        &stats(DeltaType::Short, Arc::new(Int16Array::from(vec![-3, 4]))),
        "-3",
        "4",
    );
    has_none(&stats(
        DeltaType::Long,
        Arc::new(Int64Array::from(vec![None, None])),
    ));
}

#[test]
fn floats_have_bounds_only_if_all_are_finite() {
    let double = |values: Vec<f64>| stats(DeltaType::Double, Arc::new(Float64Array::from(values)));
    has(&double(vec![1.5, -1e300]), "-1e300", "1.5");
    has(&double(vec![0.0, 0.0]), "-0.0", "0.0");
    has(&double(vec![-0.0, -0.0]), "-0.0", "0.0");
    for odd in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        has_none(&double(vec![1.0, odd, 2.0, 3.0]));
        has_none(&double(vec![odd, 1.0, 2.0, 3.0]));
    }
    // As the double it is, for a reader may compare as doubles.
    let text = stats(
        DeltaType::Float,
        Arc::new(Float32Array::from(vec![0.1_f32, 0.1])),
    );
    has(&text, "0.10000000149011612", "0.10000000149011612");
}

#[test]
fn long_strings_are_cut_without_losing_rows() {
    let text = |values: Vec<&str>| stats(DeltaType::String, Arc::new(StringArray::from(values)));
    has(&text(vec!["b\"x", "é"]), "\"b\\\"x\"", "\"é\"");
    let long = "ü".repeat(40);
    let cut = "ü".repeat(32);
    has(
        &text(vec![&long, &long]),
        &format!("\"{cut}\""),
        &format!("\"{cut}\u{10ffff}\""),
    );
    // Nothing is larger than this in bounded length.
    let largest = "\u{10ffff}".repeat(40);
    let out = text(vec![&largest, "a"]);
    assert!(
        out.contains("\"minValues\":{\"c\":\"a\",") && out.contains("\"maxValues\":{\"_pg_lsn\"")
    );
    has(&text(vec!["", "a"]), "\"\"", "\"a\"");
}

#[test]
fn dates_and_times_are_exact_and_only_of_common_years() {
    let date_stats = |days: Vec<i32>| {
        stats(
            DeltaType::Date,
            Arc::new(arrow::array::Date32Array::from(days)),
        )
    };
    has(
        &date_stats(vec![-719_162, 2_932_896]),
        "\"0001-01-01\"",
        "\"9999-12-31\"",
    );
    has(
        &date_stats(vec![11_016, -1]),
        "\"1969-12-31\"",
        "\"2000-02-29\"",
    );
    has_none(&date_stats(vec![0, -719_163]));
    has_none(&date_stats(vec![0, 2_932_897]));

    let micros = vec![-1, 1_709_251_199_123_456];
    let array = TimestampMicrosecondArray::from(micros.clone());
    let text = stats(DeltaType::TimestampNtz, Arc::new(array));
    has(
        &text,
        "\"1969-12-31T23:59:59.999999\"",
        "\"2024-02-29T23:59:59.123456\"",
    );
    let array = TimestampMicrosecondArray::from(micros).with_timezone("UTC");
    let text = stats(DeltaType::Timestamp, Arc::new(array));
    has(
        &text,
        "\"1969-12-31T23:59:59.999999Z\"",
        "\"2024-02-29T23:59:59.123456Z\"",
    );
    let array = TimestampMicrosecondArray::from(vec![0, i64::MAX]);
    has_none(&stats(DeltaType::TimestampNtz, Arc::new(array)));
}

#[test]
fn every_day_of_eight_centuries_has_its_date() {
    let (mut year, mut month, mut day) = (1, 1, 1);
    for days in FIRST_DAY..FIRST_DAY + 300_000 {
        assert_eq!(date(days), format!("{year:04}-{month:02}-{day:02}"));
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + i32::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        day += 1;
        if day > length {
            (day, month) = (1, month + 1);
        }
        if month > 12 {
            (month, year) = (1, year + 1);
        }
    }
}
