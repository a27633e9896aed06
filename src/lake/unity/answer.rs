//! What a catalog's answer means, and what a person can do about it. Of an answer that refuses only
//! status, code and a short message are shown.

use std::error::Error as StdError;

use reqwest::StatusCode;
use serde_json::Value;

use crate::lake::answer::shortened;
use crate::lake::error::{ErrorKind, LakeError, chain_text};
use crate::lake::unity::Catalog;

/// Longest text of a catalog that is shown.
const MAX_TEXT: usize = 300;

/// What a call has brought.
pub(crate) struct Answer {
    status: StatusCode,
    /// Null if it was no JSON.
    body: Value,
}

impl Answer {
    pub(crate) fn new(status: StatusCode, body: &[u8]) -> Answer {
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        Answer { status, body }
    }

    /// There is no such thing, or the server does not know the call.
    pub(crate) fn is_missing(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// The server does not know the call.
    pub(crate) fn is_unknown_call(&self) -> bool {
        matches!(
            self.status,
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        )
    }

    /// Whether it was a catalog that answered: others have not its form.
    pub(crate) fn is_told(&self) -> bool {
        self.said().is_some()
    }

    /// Code and message, in the form of either interface.
    fn said(&self) -> Option<String> {
        let text = |value: &Value, names: &[&str]| {
            let mut found = names.iter().filter_map(|name| value[*name].as_str());
            found.next().map(str::to_owned)
        };
        let error = match &self.body["error"] {
            Value::Object(_) => &self.body["error"],
            _ => &self.body,
        };
        let code = text(error, &["error_code", "errorCode", "type"]);
        let message = text(error, &["message"]);
        match (code, message) {
            (Some(code), Some(message)) => Some(format!(" {code}: {message}")),
            (Some(code), None) => Some(format!(" {code}")),
            (None, Some(message)) => Some(format!(": {message}")),
            (None, None) => None,
        }
    }

    /// The answer's content, if it is not a refusal. `doing`: what could not be done, "could not …".
    ///
    /// # Errors
    /// With kind and remedy by its status.
    pub(crate) fn ok(self, catalog: &Catalog, doing: &str) -> Result<Value, LakeError> {
        if self.status.is_success() {
            return Ok(self.body);
        }
        let said = self.said().unwrap_or_default();
        let message = format!("{doing}: {catalog} answers {}{said}", self.status);
        let message = shortened(&catalog.redact(message), MAX_TEXT);
        let (kind, hint) = match self.status {
            StatusCode::UNAUTHORIZED => (ErrorKind::Denied, token_hint(catalog).to_owned()),
            StatusCode::FORBIDDEN => (ErrorKind::Denied, RIGHTS.to_owned()),
            StatusCode::NOT_FOUND => (
                ErrorKind::Missing,
                format!(
                    "Look in the catalog for \"{}.{}\", and for an external location that the folder is in.",
                    catalog.catalog, catalog.schema
                ),
            ),
            // Somebody else was at it: the next try sees what has become of it.
            StatusCode::CONFLICT | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                return Err(LakeError::transient(message));
            }
            status if status.is_server_error() => return Err(LakeError::transient(message)),
            status if status.is_redirection() => (
                ErrorKind::Config,
                "The catalog is somewhere else: correct the server's catalog_url (https:// instead of http://?)."
                    .to_owned(),
            ),
            _ => (ErrorKind::Config, LOCATION.to_owned()),
        };
        Err(LakeError::of(kind, message, hint))
    }
}

const RIGHTS: &str = "Whose token it is needs USE CATALOG, USE SCHEMA and CREATE TABLE, on the table MODIFY, and on the \
     external location CREATE EXTERNAL TABLE, READ FILES and WRITE FILES (Databricks: EXTERNAL USE SCHEMA and \
     EXTERNAL USE LOCATION too).";

const LOCATION: &str =
    "The folder must lie in an external location of the catalog, and must be no other table's.";

fn token_hint(catalog: &Catalog) -> &'static str {
    match catalog.token {
        Some(_) => {
            "The catalog does not accept the token. Set the right one: ALTER USER MAPPING FOR … SERVER … \
             OPTIONS (SET catalog_token '…'). The feed takes it up by itself."
        }
        None => {
            "The catalog wants a token: ALTER USER MAPPING FOR … SERVER … OPTIONS (ADD catalog_token '…'). \
             The feed takes it up by itself."
        }
    }
}

/// The error of a call without an answer.
pub(crate) fn unreachable(catalog: &Catalog, error: &reqwest::Error) -> LakeError {
    let told = chain_text(error);
    let mut last: &dyn StdError = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let why = match (error.is_timeout(), told.contains("dns error")) {
        (true, _) => "no answer in time".to_owned(),
        (_, true) => format!("its address is not known: {last}"),
        _ => last.to_string(),
    };
    let said = catalog.redact(format!("could not reach {catalog}: {why}"));
    let said = shortened(&said, MAX_TEXT);
    LakeError::of(
        ErrorKind::Transient,
        said,
        "Check that the catalog can be reached from the database server, and the options catalog_url and proxy_url.",
    )
}
