//! `alter`: other options for a feed that goes on.

use pgrx::pg_sys;
use pgrx::prelude::*;
use serde_json::Value;
use std::ffi::CStr;

use super::caller::{check_running, check_schema};
use super::catalog::select_one;
use super::feeds::{change, report_not_fed};
use super::report;
use super::start::parse_options;
use crate::feed::Options;

/// `wal2delta.alter(source_schema, options)`
#[pg_extern(sql = false)]
fn alter(source_schema: &CStr, options: pgrx::JsonB) {
    let name = source_schema.to_string_lossy().into_owned();
    check_running();
    let namespace = pg_sys::Oid::from(check_schema(source_schema, &name));
    let now: Option<String> = select_one(
        "SELECT options::text FROM wal2delta.own_feeds WHERE schema_oid = $1",
        &[namespace.into()],
    );
    let Some(now) = now else {
        report_not_fed(&name);
    };
    let known: Value = serde_json::from_str(&now)
        .unwrap_or_else(|error| error!("the options of the feed are not JSON: {error}"));
    if options.0.get("snapshot").is_some() {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "option \"snapshot\" belongs to the start of a feed",
            "SELECT wal2delta.resync(table) takes a new snapshot of one table.",
        );
    }
    let altered = merged(known, options.0);
    parse_options(&altered);
    let changed = change(
        "UPDATE wal2delta.own_feeds SET options = $2 WHERE schema_oid = $1 AND options = $3::jsonb",
        &[namespace.into(), pgrx::JsonB(altered).into(), now.into()],
    );
    if changed == 0 {
        report(
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            format!("the feed of schema \"{name}\" was altered or stopped at the same time"),
            "Look at wal2delta.schemas, and call the function again.",
        );
    }
}

/// Options with others put over them; `null` takes one away.
fn merged(mut options: Value, over: Value) -> Value {
    let (Value::Object(known), Value::Object(given)) = (&mut options, &over) else {
        // Refused, with what is expected, by whoever reads it.
        return over;
    };
    for (key, value) in given {
        // An unknown one is not taken away without a word.
        if value.is_null() && known.contains_key(key) {
            known.remove(key);
        } else if !value.is_null() || !Options::knows(key) {
            known.insert(key.clone(), value.clone());
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_given_counts() {
        let now = json!({"exclude": ["a"], "flush_interval": "1 s"});
        let over = json!({"exclude": ["b"], "flush_interval": null, "failover": null});
        assert_eq!(merged(now.clone(), over), json!({"exclude": ["b"]}));
        let unknown = json!({"excluded": null});
        assert_eq!(merged(json!({}), unknown.clone()), unknown);
        assert_eq!(merged(now, json!([])), json!([]));
    }
}
