//! date, timestamp, timestamptz: Postgres counts from 2000-01-01, Arrow and Delta from 1970-01-01.
//! What Delta cannot express (`infinity`, the last centuries of Postgres's range) is NULL.

use arrow::datatypes::{DataType, Date32Type, TimeUnit, TimestampMicrosecondType};
use pgrx::pg_sys::Datum;

use super::column::Read;

/// Days from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400 * 1_000_000;

/// date.
pub(super) struct Date;

impl Read for Date {
    type Arrow = Date32Type;

    fn read(datum: Datum) -> Option<i32> {
        unix_days(datum.value() as i32)
    }
}

/// timestamp without time zone.
pub(super) struct TimestampNtz;

impl Read for TimestampNtz {
    type Arrow = TimestampMicrosecondType;

    fn read(datum: Datum) -> Option<i64> {
        unix_micros(datum.value() as i64)
    }
}

/// timestamp with time zone: Postgres keeps it in UTC.
pub(super) struct Timestamp;

impl Read for Timestamp {
    type Arrow = TimestampMicrosecondType;

    fn data_type() -> DataType {
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
    }

    fn read(datum: Datum) -> Option<i64> {
        unix_micros(datum.value() as i64)
    }
}

/// Days since 1970; `infinity` and `-infinity` (DATEVAL_NOEND, DATEVAL_NOBEGIN) have none.
fn unix_days(date: i32) -> Option<i32> {
    match date {
        i32::MIN | i32::MAX => None,
        days => days.checked_add(EPOCH_DAYS),
    }
}

/// Microseconds since 1970; the infinities (TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY) and
/// times past 294247-01-10 have none.
pub(super) fn unix_micros(timestamp: i64) -> Option<i64> {
    match timestamp {
        i64::MIN | i64::MAX => None,
        micros => micros.checked_add(EPOCH_MICROS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(unix_days(0), Some(10_957));
        assert_eq!(unix_days(-10_957), Some(0));
        assert_eq!(unix_days(i32::MIN), None);
        assert_eq!(unix_days(i32::MAX), None);
        // 4713-11-24 BC and 5874897-12-31, the ends of Postgres's range (DATETIME_MIN_JULIAN,
        // DATE_END_JULIAN less one, from POSTGRES_EPOCH_JDATE).
        assert_eq!(unix_days(-2_451_545), Some(-2_440_588));
        assert_eq!(unix_days(2_147_483_493 - 2_451_545), Some(2_145_042_905));
        assert_eq!(Date::read(Datum::from(-1i32)), Some(10_956));
    }

    #[test]
    fn timestamps() {
        assert_eq!(unix_micros(0), Some(946_684_800_000_000));
        assert_eq!(unix_micros(-946_684_800_000_001), Some(-1));
        assert_eq!(unix_micros(i64::MIN), None);
        assert_eq!(unix_micros(i64::MAX), None);
        // MIN_TIMESTAMP and END_TIMESTAMP of timestamp.h.
        assert_eq!(
            unix_micros(-211_813_488_000_000_000),
            Some(-210_866_803_200_000_000)
        );
        assert_eq!(unix_micros(9_223_371_331_200_000_000 - 1), None);
        assert_eq!(unix_micros(i64::MAX - EPOCH_MICROS), Some(i64::MAX));
        assert_eq!(unix_micros(i64::MAX - EPOCH_MICROS + 1), None);
    }
}
