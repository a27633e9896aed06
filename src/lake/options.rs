//! The options that a server and a user mapping may have, each known by its name. No message repeats a
//! value: it may be a secret in the wrong place.

use std::collections::BTreeMap;

use url::Url;

use crate::lake::error::LakeError;
use crate::lake::folder::Folder;
use crate::lake::location::{Location, Provider, URL_FORMS};

/// Where an option belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionPlace {
    /// `CREATE SERVER`: all may see it.
    Server,
    /// `CREATE USER MAPPING`: secret.
    UserMapping,
}

impl OptionPlace {
    const fn words(self) -> &'static str {
        match self {
            OptionPlace::Server => "a server",
            OptionPlace::UserMapping => "a user mapping",
        }
    }
}

/// Every option, where it belongs, and which store it is for (`None`: all).
pub(crate) const OPTIONS: [(&str, OptionPlace, Option<Provider>); 21] = [
    ("url", OptionPlace::Server, None),
    ("endpoint", OptionPlace::Server, None),
    ("proxy_url", OptionPlace::Server, None),
    (CATALOG_URL, OptionPlace::Server, None),
    (CATALOG, OptionPlace::Server, None),
    (CATALOG_SCHEMA, OptionPlace::Server, None),
    ("region", OptionPlace::Server, Some(Provider::S3)),
    ("path_style", OptionPlace::Server, Some(Provider::S3)),
    ("account_name", OptionPlace::Server, Some(Provider::Azure)),
    (AWS_KEY_ID, OptionPlace::UserMapping, Some(Provider::S3)),
    (AWS_SECRET, OptionPlace::UserMapping, Some(Provider::S3)),
    (AWS_TOKEN, OptionPlace::UserMapping, Some(Provider::S3)),
    (AZURE_KEY, OptionPlace::UserMapping, Some(Provider::Azure)),
    (AZURE_SAS, OptionPlace::UserMapping, Some(Provider::Azure)),
    (
        AZURE_TENANT,
        OptionPlace::UserMapping,
        Some(Provider::Azure),
    ),
    (
        AZURE_CLIENT,
        OptionPlace::UserMapping,
        Some(Provider::Azure),
    ),
    (
        AZURE_SECRET,
        OptionPlace::UserMapping,
        Some(Provider::Azure),
    ),
    (GCP_KEY, OptionPlace::UserMapping, Some(Provider::Google)),
    ("proxy_user", OptionPlace::UserMapping, None),
    ("proxy_password", OptionPlace::UserMapping, None),
    (CATALOG_TOKEN, OptionPlace::UserMapping, None),
];

pub(crate) const CATALOG_URL: &str = "catalog_url";
pub(crate) const CATALOG: &str = "catalog";
pub(crate) const CATALOG_SCHEMA: &str = "schema";
pub(crate) const CATALOG_TOKEN: &str = "catalog_token";

pub(crate) const AWS_KEY_ID: &str = "aws_access_key_id";
pub(crate) const AWS_SECRET: &str = "aws_secret_access_key";
pub(crate) const AWS_TOKEN: &str = "aws_session_token";
pub(crate) const AZURE_KEY: &str = "azure_account_key";
pub(crate) const AZURE_SAS: &str = "azure_sas_token";
pub(crate) const AZURE_TENANT: &str = "azure_tenant_id";
pub(crate) const AZURE_CLIENT: &str = "azure_client_id";
pub(crate) const AZURE_SECRET: &str = "azure_client_secret";
pub(crate) const GCP_KEY: &str = "gcp_service_account_key";

/// Names and values, as the catalog has them.
pub type OptionValues = BTreeMap<String, String>;

/// Why an option is refused, in words of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionError {
    /// It is the name, not the value.
    pub unknown: bool,
    /// Primary message.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Checks the options of a server or a user mapping: every name, and the values as far as they can be
/// checked without asking the store.
///
/// # Errors
/// With the nearest right name, or what the value must be. No value is repeated.
pub fn check_options(place: OptionPlace, options: &OptionValues) -> Result<(), OptionError> {
    for (name, value) in options {
        let known = OPTIONS.iter().find(|(known, ..)| known == name);
        match known {
            None => return Err(unknown(place, name)),
            Some((_, right, _)) if *right != place => {
                return Err(OptionError {
                    unknown: true,
                    message: format!("option \"{name}\" is not one of {}", place.words()),
                    hint: format!("It belongs to {}.", right.words()),
                });
            }
            Some(_) if name == "url" => check_url(value, options.contains_key(CATALOG_URL))?,
            Some(_) => check_value(name, value)?,
        }
    }
    if place == OptionPlace::Server {
        check_catalog(options)?;
    }
    if place == OptionPlace::Server && !options.contains_key("url") {
        return Err(OptionError {
            unknown: false,
            message: "option \"url\" is required".into(),
            hint: format!("Say where the history tables are to be: {URL_FORMS}."),
        });
    }
    Ok(())
}

fn unknown(place: OptionPlace, name: &str) -> OptionError {
    let names = || {
        OPTIONS
            .iter()
            .filter(move |(_, of, _)| *of == place)
            .map(|(name, ..)| *name)
    };
    let near = names()
        .map(|known| (distance(name, known), known))
        .min()
        // As postgres_fdw has it: not if more than half of it is wrong.
        .filter(|(distance, known)| *distance <= 4 && *distance <= known.len() / 2);
    OptionError {
        unknown: true,
        message: format!("invalid option \"{name}\""),
        hint: match near {
            Some((_, known)) => format!("Perhaps you meant the option \"{known}\"."),
            None => format!(
                "Valid options in this context are: {}.",
                names().collect::<Vec<_>>().join(", ")
            ),
        },
    }
}

/// The options of a catalog: all of them or none.
fn check_catalog(options: &OptionValues) -> Result<(), OptionError> {
    let names = [CATALOG_URL, CATALOG, CATALOG_SCHEMA];
    let (has, lacks): (Vec<&str>, Vec<&str>) =
        names.iter().partition(|name| options.contains_key(**name));
    match (has.first(), lacks.first()) {
        (Some(has), Some(lacks)) => Err(OptionError {
            unknown: false,
            message: format!("option \"{has}\" needs the option \"{lacks}\""),
            hint: "A catalog is named by its address, catalog_url, and by the catalog and the schema in it \
                   that the history tables are to be in."
                .into(),
        }),
        _ => Ok(()),
    }
}

fn wrong(name: &str, what: &str, hint: &str) -> Result<(), OptionError> {
    Err(OptionError {
        unknown: false,
        message: format!("option \"{name}\" {what}"),
        hint: hint.to_owned(),
    })
}

/// Where the history tables are: in an object store or, if a catalog is to know them, in a folder.
fn check_url(value: &str, in_catalog: bool) -> Result<(), OptionError> {
    let refused = |error: &LakeError| {
        wrong(
            "url",
            &format!("is not right: {error}"),
            &error.hint().unwrap_or_default(),
        )
    };
    match Location::parse(value) {
        Some(Ok(location)) if in_catalog && location.is_ambiguous() => wrong(
            "url",
            "does not name its account",
            "The catalog has to know it: write the url as abfss://container@account.dfs.core.windows.net/folder.",
        ),
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => refused(&error),
        None if in_catalog && value.starts_with("file:///") => match Folder::parse(value) {
            Ok(_) => Ok(()),
            Err(error) => refused(&error),
        },
        None => wrong(
            "url",
            "is not the URL of an object store",
            &format!(
                "Write it as {URL_FORMS}. A folder of the server needs no foreign server: give it to wal2delta.start() itself; \
                 only with a catalog it is file:///folder here."
            ),
        ),
    }
}

fn check_value(name: &str, value: &str) -> Result<(), OptionError> {
    let wrong = |what: &str, hint: &str| wrong(name, what, hint);
    if value.is_empty() {
        return wrong("is empty", "Give it a value, or leave it out.");
    }
    match name {
        CATALOG | CATALOG_SCHEMA
            if value.contains(|c: char| {
                c.is_whitespace() || c.is_control() || matches!(c, '.' | '/')
            }) =>
        {
            wrong(
                "is not the name of one",
                "It is one name, without dots, slashes and blanks.",
            )
        }
        "endpoint" | "proxy_url" | CATALOG_URL => match Url::parse(value) {
            Ok(url) if !url.username().is_empty() || url.password().is_some() => wrong(
                "has a user or password in it",
                "All may see the options of a server. What is secret belongs into a user mapping \
                 (proxy_user, proxy_password, catalog_token).",
            ),
            Ok(url)
                if matches!(url.scheme(), "http" | "https")
                    && url.host().is_some()
                    && url.query().is_none() =>
            {
                Ok(())
            }
            _ => wrong("is not an HTTP address", "Write it as https://host:port."),
        },
        "path_style" if boolean(value).is_none() => {
            wrong("is not a boolean", "Write true or false.")
        }
        GCP_KEY if serde_json::from_str::<serde_json::Map<_, _>>(value).is_err() => wrong(
            "is not JSON",
            "Give the whole content of the service account's key file.",
        ),
        _ => Ok(()),
    }
}

/// Levenshtein's distance.
fn distance(one: &str, two: &str) -> usize {
    let two: Vec<char> = two.chars().collect();
    let mut row: Vec<usize> = (0..=two.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in two.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[two.len()]
}

/// A boolean as Postgres writes it.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Some(true),
        "false" | "off" | "no" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> OptionValues {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn unknown_options_are_refused_with_the_nearest() {
        let refused =
            |place, pairs: &[(&str, &str)]| check_options(place, &options(pairs)).unwrap_err();
        let error = refused(OptionPlace::Server, &[("url", "s3://b"), ("regoin", "x")]);
        assert_eq!(error.hint, "Perhaps you meant the option \"region\".");
        let error = refused(OptionPlace::UserMapping, &[("aws_secret_key", "hunter2")]);
        assert!(error.hint.contains("aws_secret_access_key"), "{error:?}");
        let error = refused(OptionPlace::UserMapping, &[("zzz", "hunter2")]);
        assert!(error.hint.starts_with("Valid options"), "{error:?}");
        let error = refused(
            OptionPlace::Server,
            &[("url", "s3://b"), (AWS_SECRET, "hunter2")],
        );
        assert!(error.hint.contains("user mapping") && !format!("{error:?}").contains("hunter2"));
        assert!(refused(OptionPlace::Server, &[]).message.contains("url"));
        for (name, value) in [
            ("url", "/folder"),
            ("endpoint", "localhost"),
            ("proxy_url", "http://me:hunter2@proxy"),
            ("path_style", "perhaps"),
            ("region", ""),
        ] {
            let error = refused(OptionPlace::Server, &[("url", "s3://b"), (name, value)]);
            assert!(
                error.hint.ends_with('.') && !format!("{error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
        check_options(
            OptionPlace::Server,
            &options(&[("url", "s3://b/x"), ("path_style", "on")]),
        )
        .unwrap();
    }

    #[test]
    fn a_catalog_is_named_whole() {
        let at = ("catalog_url", "https://catalog");
        let (catalog, schema) = (("catalog", "main"), ("schema", "bronze"));
        let check = |pairs: &[(&str, &str)]| check_options(OptionPlace::Server, &options(pairs));
        for url in ["s3://b/x", "file:///data/lake"] {
            check(&[("url", url), at, catalog, schema]).unwrap();
        }
        for (pairs, says) in [
            (&[("url", "s3://b"), at, catalog][..], "\"schema\""),
            (&[("url", "s3://b"), schema], "\"catalog_url\""),
            (&[("url", "file:///data")], "object store"),
            (
                &[("url", "az://c/x"), at, catalog, schema],
                "does not name its account",
            ),
            (
                &[("url", "s3://b"), at, ("catalog", "a.b"), schema],
                "\"catalog\"",
            ),
            (
                &[
                    ("url", "s3://b"),
                    ("catalog_url", "catalog"),
                    catalog,
                    schema,
                ],
                "HTTP",
            ),
        ] {
            let error = check(pairs).unwrap_err();
            assert!(error.message.contains(says), "{error:?}");
        }
    }
}
