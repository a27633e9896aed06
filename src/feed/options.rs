//! Options of a feed: the keys of `start`'s third argument.

use serde_json::Value;
use std::time::Duration;

/// Every key that `start` knows.
const KEYS: [&str; 5] = [
    "flush_interval",
    "on_schema_change",
    "exclude",
    "snapshot",
    "failover",
];

/// What becomes of a history when its table's columns are altered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchemaChange {
    /// A new snapshot replaces it.
    #[default]
    Resnapshot,
    /// It is kept; its columns follow.
    Evolve,
}

/// Options of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Time between two commits of a changing table; `None`: the setting.
    pub flush_interval: Option<Duration>,
    /// What becomes of a history when its table's columns are altered.
    pub on_schema_change: SchemaChange,
    /// Names of tables that take no part.
    pub exclude: Vec<String>,
    /// Whether histories of an earlier feed are replaced by a new snapshot.
    pub snapshot: bool,
    /// Whether standbys keep the slot, so that the feed goes on after a promotion.
    pub failover: bool,
}

/// Why options were refused: message and hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

fn refuse<T>(message: String, hint: &str) -> Result<T, OptionError> {
    Err(OptionError {
        message,
        hint: hint.to_owned(),
    })
}

impl Options {
    /// Reads options from their JSON form; `parse_interval` turns a Postgres interval into a
    /// duration, or is `None` for text that is no interval.
    pub fn parse(
        json: &Value,
        parse_interval: impl Fn(&str) -> Option<Duration>,
    ) -> Result<Options, OptionError> {
        let Value::Object(entries) = json else {
            return refuse(
                "options must be a JSON object".into(),
                "Write options as '{\"flush_interval\": \"5 s\"}'.",
            );
        };
        let mut options = Options::default();
        for (key, value) in entries {
            match key.as_str() {
                "flush_interval" => {
                    options.flush_interval = Some(interval(value, &parse_interval)?);
                }
                "on_schema_change" => options.on_schema_change = schema_change(value)?,
                "exclude" => options.exclude = names(value)?,
                "snapshot" => options.snapshot = flag(key, value)?,
                "failover" => options.failover = flag(key, value)?,
                _ => {
                    return refuse(
                        format!("unknown option \"{key}\""),
                        &format!("Known options are {}.", KEYS.join(", ")),
                    );
                }
            }
        }
        Ok(options)
    }

    /// Whether there is an option of this name.
    pub fn knows(key: &str) -> bool {
        KEYS.contains(&key)
    }
}

fn interval(
    value: &Value,
    parse: impl Fn(&str) -> Option<Duration>,
) -> Result<Duration, OptionError> {
    value
        .as_str()
        .and_then(parse)
        .filter(|time| (Duration::from_millis(10)..=Duration::from_secs(3600)).contains(time))
        .map_or_else(
            || {
                refuse(
                    format!("invalid value for option \"flush_interval\": {value}"),
                    "Write an interval between \"10 ms\" and \"1 h\", such as \"5 s\".",
                )
            },
            Ok,
        )
}

fn schema_change(value: &Value) -> Result<SchemaChange, OptionError> {
    match value.as_str() {
        Some("resnapshot") => Ok(SchemaChange::Resnapshot),
        Some("evolve") => Ok(SchemaChange::Evolve),
        _ => refuse(
            format!("invalid value for option \"on_schema_change\": {value}"),
            "Write \"resnapshot\" or \"evolve\".",
        ),
    }
}

fn names(value: &Value) -> Result<Vec<String>, OptionError> {
    let list = value.as_array().and_then(|list| {
        list.iter()
            .map(|name| name.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
    });
    match list {
        Some(names) => Ok(names),
        None => refuse(
            format!("invalid value for option \"exclude\": {value}"),
            "Write a list of table names, such as [\"audit\", \"tmp_import\"].",
        ),
    }
}

fn flag(key: &str, value: &Value) -> Result<bool, OptionError> {
    match value.as_bool() {
        Some(flag) => Ok(flag),
        None => refuse(
            format!("invalid value for option \"{key}\": {value}"),
            "Write true or false.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(json: Value) -> Result<Options, OptionError> {
        Options::parse(&json, |text| {
            text.strip_suffix(" s")
                .and_then(|n| n.parse().ok())
                .map(Duration::from_secs)
        })
    }

    #[test]
    fn reads_all_options() {
        let options = parse(json!({
            "flush_interval": "5 s", "on_schema_change": "evolve",
            "exclude": ["a", "B"], "snapshot": true, "failover": true
        }));
        assert_eq!(
            options,
            Ok(Options {
                flush_interval: Some(Duration::from_secs(5)),
                on_schema_change: SchemaChange::Evolve,
                exclude: vec!["a".into(), "B".into()],
                snapshot: true,
                failover: true,
            })
        );
    }

    #[test]
    fn names_the_known_options() {
        let error = parse(json!({"flush_intervall": "5 s"})).unwrap_err();
        assert_eq!(error.message, "unknown option \"flush_intervall\"");
        assert_eq!(
            error.hint,
            "Known options are flush_interval, on_schema_change, exclude, snapshot, failover."
        );
    }

    #[test]
    fn refuses_wrong_values() {
        for wrong in [
            json!({"flush_interval": 5}),
            json!({"flush_interval": "soon"}),
            json!({"flush_interval": "7200 s"}),
            json!({"exclude": "a"}),
            json!({"exclude": [1]}),
            json!({"snapshot": "yes"}),
            json!({"on_schema_change": "ignore"}),
            json!([]),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
