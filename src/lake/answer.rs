//! What an object store's refusal means, and what a person can do about it. Stores say it with a
//! status and a code of their own; the rest of their answers is never shown: it repeats parts of the
//! request.

use std::error::Error as StdError;

use crate::lake::access::Access;
use crate::lake::error::{ErrorKind, LakeError, chain_text};
use crate::lake::location::Location;

/// Longest text of a store that is shown.
const MAX_TEXT: usize = 200;

/// What the codes of the stores mean.
enum Meaning {
    WrongKeys,
    Expired,
    WrongClock,
    Forbidden,
    NoBucket,
    OtherRegion,
    NotConditional,
}

const CODES: [(&str, Meaning); 29] = [
    ("InvalidAccessKeyId", Meaning::WrongKeys),
    ("SignatureDoesNotMatch", Meaning::WrongKeys),
    ("InvalidClientTokenId", Meaning::WrongKeys),
    ("InvalidSecurity", Meaning::WrongKeys),
    ("AuthenticationFailed", Meaning::WrongKeys),
    ("InvalidAuthenticationInfo", Meaning::WrongKeys),
    ("invalid_client", Meaning::WrongKeys),
    ("invalid_grant", Meaning::WrongKeys),
    ("AuthFailure", Meaning::WrongKeys),
    ("ExpiredToken", Meaning::Expired),
    ("ExpiredTokenException", Meaning::Expired),
    ("TokenRefreshRequired", Meaning::Expired),
    ("InvalidToken", Meaning::Expired),
    ("RequestTimeTooSkewed", Meaning::WrongClock),
    ("RequestExpired", Meaning::WrongClock),
    ("AccessDenied", Meaning::Forbidden),
    ("AllAccessDisabled", Meaning::Forbidden),
    ("AuthorizationFailure", Meaning::Forbidden),
    ("AuthorizationPermissionMismatch", Meaning::Forbidden),
    ("InsufficientAccountPermissions", Meaning::Forbidden),
    ("NoSuchBucket", Meaning::NoBucket),
    ("ContainerNotFound", Meaning::NoBucket),
    ("FilesystemNotFound", Meaning::NoBucket),
    ("ContainerBeingDeleted", Meaning::NoBucket),
    ("PermanentRedirect", Meaning::OtherRegion),
    ("AuthorizationHeaderMalformed", Meaning::OtherRegion),
    ("IllegalLocationConstraintException", Meaning::OtherRegion),
    ("IncorrectEndpoint", Meaning::OtherRegion),
    ("NotImplemented", Meaning::NotConditional),
];

/// The error of a request, with kind and remedy, in words that may be shown.
pub(crate) fn explain(error: &object_store::Error, access: &Access, at: &Location) -> LakeError {
    let told = chain_text(error);
    let (status, code) = (status(&told), code(&told));
    if is_about_credentials(&told) {
        let why = code
            .or(status)
            .map_or_else(|| transport(error), str::to_owned);
        let said =
            format!("there are no credentials, and asking the machine for them failed: {why}");
        return LakeError::of(ErrorKind::Denied, said, access.remedy());
    }
    let said = match (status, code) {
        (Some(status), Some(code)) => format!("the store answers {status} {code}"),
        (Some(status), None) => format!("the store answers {status}"),
        (None, Some(code)) => format!("the store answers {code}"),
        (None, None) => transport(error),
    };
    let text = code.and_then(|_| element(&told, "Message"));
    let said = match text {
        Some(text) => format!("{said}: {}", shortened(text, MAX_TEXT)),
        None => said,
    };
    let said = access.redact(said);
    let meaning = code.and_then(|code| CODES.iter().find(|(known, _)| *known == code));
    let meaning = meaning
        .map(|(_, meaning)| meaning)
        .or_else(|| guess(&told, status));
    let remedy = access.remedy();
    let word = at.provider.bucket_word();
    let (kind, hint) = match meaning {
        Some(Meaning::WrongKeys) => (
            ErrorKind::Denied,
            format!("The store does not accept the credentials. {remedy}"),
        ),
        Some(Meaning::Expired) => (
            ErrorKind::Denied,
            format!("The credentials are not valid any more. {remedy}"),
        ),
        Some(Meaning::WrongClock) => (
            ErrorKind::Denied,
            "Set the clock of the machine that Postgres runs on: it and the store's differ too much.".to_owned(),
        ),
        Some(Meaning::Forbidden) => (
            ErrorKind::Denied,
            format!(
                "The credentials must allow to list {word} \"{}\", and to read and write objects below \"{at}\". {remedy}",
                at.bucket
            ),
        ),
        Some(Meaning::NoBucket) => (
            ErrorKind::Missing,
            format!(
                "Create {word} \"{}\", or correct the url: ALTER SERVER … OPTIONS (SET url …).",
                at.bucket
            ),
        ),
        Some(Meaning::OtherRegion) => (
            ErrorKind::Missing,
            format!(
                "The {word} \"{}\" is in another region: ALTER SERVER … OPTIONS (SET region …), or ADD region.",
                at.bucket
            ),
        ),
        Some(Meaning::NotConditional) => (ErrorKind::Config, CONDITIONAL_HINT.to_owned()),
        None if status.is_none() => (
            ErrorKind::Transient,
            "Check that the store can be reached from the database server, and the options url, endpoint and proxy_url."
                .to_owned(),
        ),
        None => return LakeError::transient(said),
    };
    LakeError::of(kind, said, hint)
}

/// What a store must be able to do.
pub(crate) const CONDITIONAL_HINT: &str = "wal2delta needs a store that writes an object only if there is none of \
     its name (If-None-Match): without that two writers could both win. Use a newer version of it, or another store.";

/// Whether a 404 is about the bucket, not about the object that was asked for.
pub(crate) fn is_about_bucket(error: &object_store::Error) -> bool {
    let told = chain_text(error);
    let code = code(&told);
    matches!(guess(&told, None), Some(Meaning::NoBucket))
        || CODES
            .iter()
            .any(|(known, meaning)| Some(*known) == code && matches!(meaning, Meaning::NoBucket))
}

/// Whether the store says that the credentials have run out.
pub(crate) fn is_about_expiry(error: &object_store::Error) -> bool {
    let told = chain_text(error);
    let code = code(&told);
    CODES
        .iter()
        .any(|(known, meaning)| Some(*known) == code && matches!(meaning, Meaning::Expired))
}

/// The meaning of answers without a code.
fn guess(told: &str, status: Option<&str>) -> Option<&'static Meaning> {
    if told.contains("bucket does not exist") {
        return Some(&Meaning::NoBucket);
    }
    if told.contains("redirect without LOCATION") {
        return Some(&Meaning::OtherRegion);
    }
    match status.map(|status| status.get(..3).unwrap_or(status)) {
        Some("401") => Some(&Meaning::WrongKeys),
        Some("403") => Some(&Meaning::Forbidden),
        Some("301" | "307") => Some(&Meaning::OtherRegion),
        Some("501") => Some(&Meaning::NotConditional),
        _ => None,
    }
}

/// Whether what failed is to get credentials from the machine.
fn is_about_credentials(told: &str) -> bool {
    [
        "169.254.169.254",
        "metadata.google",
        "metadata endpoint",
        "/metadata/identity",
        "WebIdentity",
        "instance credentials",
    ]
    .iter()
    .any(|place| told.contains(place))
}

/// `403 Forbidden`, of a text that says "status code: 403 Forbidden: …".
fn status(told: &str) -> Option<&str> {
    let rest = told.split_once("status code: ")?.1;
    let end = rest.find(':').unwrap_or(rest.len());
    let status = rest.get(..end)?.trim();
    (status.len() < 60 && status.starts_with(|c: char| c.is_ascii_digit())).then_some(status)
}

/// The store's own code for what is wrong.
fn code(told: &str) -> Option<&str> {
    let found = element(told, "Code").or_else(|| {
        let reason = told.split_once("\"error\":")?.1.trim_start();
        reason.strip_prefix('"')?.split('"').next()
    })?;
    let plain = found.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (plain && found.len() < 60).then_some(found)
}

fn element<'a>(told: &'a str, name: &str) -> Option<&'a str> {
    let rest = told.split_once(&format!("<{name}>"))?.1;
    rest.split('<').next()
}

/// What went wrong on the way, from the causes of the error.
fn transport(error: &(dyn StdError + 'static)) -> String {
    let told = chain_text(error);
    let mut last: &dyn StdError = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let text = last.to_string();
    let place = match told.contains("dns error") {
        true => "the store's address is not known: ",
        false => "",
    };
    format!("{place}{}", shortened(text.trim_end_matches('.'), MAX_TEXT))
}

/// A server's text as it may be shown: on one line, of so many characters at most.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(most)
        .collect();
    text.trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::Error;

    fn explained(text: &str) -> LakeError {
        let error = Error::Generic {
            store: "S3",
            source: text.into(),
        };
        let at = Location::parse("s3://b/x").unwrap().unwrap();
        explain(&error, &Access::environment(), &at)
    }

    #[test]
    fn codes_have_remedies() {
        let status = "Server returned non-2xx status code: ";
        for (text, kind, hint) in [
            (
                "403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><Message>no</Message>",
                ErrorKind::Denied,
                "credentials",
            ),
            (
                "403 Forbidden: <Code>RequestTimeTooSkewed</Code>",
                ErrorKind::Denied,
                "clock",
            ),
            ("403 Forbidden: ", ErrorKind::Denied, "list bucket"),
            (
                "400 Bad Request: <Code>ExpiredToken</Code>",
                ErrorKind::Denied,
                "any more",
            ),
            (
                "404 Not Found: <Code>NoSuchBucket</Code>",
                ErrorKind::Missing,
                "Create bucket",
            ),
            (
                "400 Bad Request: <Code>AuthorizationHeaderMalformed</Code>",
                ErrorKind::Missing,
                "region",
            ),
            (
                "501 Not Implemented: <Code>NotImplemented</Code>",
                ErrorKind::Config,
                "If-None-Match",
            ),
        ] {
            let error = explained(&format!("{status}{text}"));
            assert_eq!(error.kind(), kind, "{text}");
            assert!(
                error.hint().is_some_and(|told| told.contains(hint)),
                "{error:?}"
            );
            assert!(error.to_string().contains(&text[..3]), "{error}");
        }
        let slow = explained(&format!(
            "{status}503 Service Unavailable: <Code>SlowDown</Code><Message>Reduce.</Message>"
        ));
        assert_eq!(slow.kind(), ErrorKind::Transient);
        assert_eq!(
            slow.to_string(),
            "the store answers 503 Service Unavailable SlowDown: Reduce"
        );
    }

    #[test]
    fn a_request_is_not_repeated_in_the_error() {
        let error = explained(
            "Server returned non-2xx status code: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>\
             <Message>no</Message><AWSAccessKeyId>AKIA1</AWSAccessKeyId><StringToSign>x</StringToSign>",
        );
        assert!(!error.with_remedy().contains("AKIA1"));
    }
}
