//! Where in an object store a destination is: bucket and prefix, read from a URL and always written
//! in the same form. No store is asked here, and no URL carries credentials.

use std::fmt;

use crate::lake::error::LakeError;

/// The kinds of object stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Provider {
    /// Amazon S3, and all that speak its protocol.
    S3,
    /// Azure Blob Storage and Data Lake Storage.
    Azure,
    /// Google Cloud Storage.
    Google,
}

impl Provider {
    /// The provider of a URL's scheme.
    fn of_scheme(scheme: &str) -> Option<Provider> {
        match scheme {
            "s3" | "s3a" => Some(Provider::S3),
            "az" | "abfs" | "abfss" => Some(Provider::Azure),
            "gs" => Some(Provider::Google),
            _ => None,
        }
    }

    /// What the provider calls a bucket.
    pub(crate) const fn bucket_word(self) -> &'static str {
        match self {
            Provider::S3 | Provider::Google => "bucket",
            Provider::Azure => "container",
        }
    }
}

/// A prefix in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    /// Whose protocol is spoken.
    pub provider: Provider,
    /// Bucket or container.
    pub bucket: String,
    /// Azure's `account.dfs.core.windows.net`, if the URL names it.
    host: Option<String>,
    /// Folders below the bucket, without slashes at either end; may be empty.
    pub prefix: String,
}

/// The forms that a URL can have, for hints.
pub(crate) const URL_FORMS: &str = "s3://bucket/folder, abfss://container@account.dfs.core.windows.net/folder, \
     az://container/folder or gs://bucket/folder";

impl Location {
    /// Reads a URL; `None` if its scheme is of no object store.
    ///
    /// # Errors
    /// Kind `Config` if it has no bucket, credentials, a query, or a folder's name that not all readers
    /// would read alike.
    pub(crate) fn parse(url: &str) -> Option<Result<Location, LakeError>> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let provider = Provider::of_scheme(&scheme)?;
        Some(Self::parse_rest(provider, &scheme, rest))
    }

    fn parse_rest(provider: Provider, scheme: &str, rest: &str) -> Result<Location, LakeError> {
        // The URL is not shown before it is known to have no password in it.
        let wrong = |what: String| {
            LakeError::config(
                format!("URL of the scheme \"{scheme}\" {what}"),
                format!("Write it as {URL_FORMS}."),
            )
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (bucket, host) = match authority.split_once('@') {
            Some((bucket, host)) if provider == Provider::Azure => (bucket, Some(host)),
            Some(_) => {
                return Err(wrong("has credentials in it".into()).with_hint(
                    "Credentials belong into a user mapping: CREATE USER MAPPING … OPTIONS (…).",
                ));
            }
            None => (authority, None),
        };
        if bucket.is_empty() {
            return Err(wrong(format!("has no {}", provider.bucket_word())));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !bucket.chars().all(plain) || bucket.len() > 222 {
            return Err(wrong(format!(
                "has a {} whose name is not valid",
                provider.bucket_word()
            )));
        }
        if let Some(host) = host
            && (!host.chars().all(plain) || !host.contains('.'))
        {
            return Err(wrong("does not name its account as account.host".into()));
        }
        if path.contains(['?', '#']) {
            return Err(wrong("has a query or a fragment".into()));
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let folder = |c: char| plain(c) || matches!(c, '=' | '+' | ',' | '!');
        for part in &parts {
            if !part.chars().all(folder) || matches!(*part, "." | "..") {
                return Err(wrong(format!("has the folder \"{part}\" in it")).with_hint(
                    "Use letters, digits and -_.=+,! only: readers decode other characters in different ways.",
                ));
            }
        }
        Ok(Location {
            provider,
            bucket: bucket.to_owned(),
            host: host.map(str::to_ascii_lowercase),
            prefix: parts.join("/"),
        })
    }

    /// The folder that it is in; `None` if it is the whole bucket.
    pub(crate) fn outer(&self) -> Option<Location> {
        if self.prefix.is_empty() {
            return None;
        }
        let prefix = self.prefix.rsplit_once('/').map_or("", |(outer, _)| outer);
        Some(Location {
            prefix: prefix.to_owned(),
            ..self.clone()
        })
    }

    /// Azure's account, if the URL names it.
    pub(crate) fn account(&self) -> Option<&str> {
        self.host.as_deref()?.split('.').next()
    }

    /// Whether only who knows more than the URL finds the place: Azure's account is not in it.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.provider == Provider::Azure && self.host.is_none()
    }

    /// The URL of what lies at `path` below.
    pub(crate) fn join(&self, path: &str) -> String {
        format!("{self}/{path}")
    }

    /// Whether one of two lies inside the other, and is not the same.
    pub(crate) fn overlaps(&self, other: &Location) -> bool {
        let inside = |outer: &Location, inner: &Location| {
            outer.prefix.is_empty()
                || inner
                    .prefix
                    .strip_prefix(&outer.prefix)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let accounts = self.account().zip(other.account());
        self.provider == other.provider
            && self.bucket == other.bucket
            && accounts.is_none_or(|(one, two)| one == two)
            && self.prefix != other.prefix
            && (inside(self, other) || inside(other, self))
    }
}

/// The canonical form.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.provider, &self.host) {
            (Provider::S3, _) => write!(f, "s3://{}", self.bucket)?,
            (Provider::Google, _) => write!(f, "gs://{}", self.bucket)?,
            (Provider::Azure, Some(host)) => write!(f, "abfss://{}@{host}", self.bucket)?,
            (Provider::Azure, None) => write!(f, "az://{}", self.bucket)?,
        }
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(url: &str) -> String {
        Location::parse(url).unwrap().unwrap().to_string()
    }

    #[test]
    fn urls_have_one_form() {
        assert_eq!(canonical("s3://b"), "s3://b");
        assert_eq!(canonical("S3A://b//x/y=1/"), "s3://b/x/y=1");
        assert_eq!(canonical("gs://b/x"), "gs://b/x");
        assert_eq!(canonical("az://c/x/"), "az://c/x");
        assert_eq!(
            canonical("abfss://c@Acc.dfs.core.windows.net/x"),
            "abfss://c@acc.dfs.core.windows.net/x"
        );
        assert!(Location::parse("/folder").is_none());
        assert!(Location::parse("ftp://b/x").is_none());
    }

    #[test]
    fn what_is_refused_is_not_repeated_with_its_password() {
        for url in [
            "s3://",
            "s3:///x",
            "s3://b/x?y",
            "s3://b/a b",
            "s3://b/x/../y",
            "s3://b%20/x",
            "abfss://c@host",
            "s3://AKIA:hunter2@b/x",
        ] {
            let error = Location::parse(url).unwrap().unwrap_err();
            assert!(
                error.hint().is_some_and(|hint| hint.ends_with('.')),
                "{url}"
            );
            assert!(!error.with_remedy().contains("hunter2"), "{url}");
        }
    }

    #[test]
    fn overlapping_is_lying_inside() {
        let at = |url: &str| Location::parse(url).unwrap().unwrap();
        assert!(at("s3://b").overlaps(&at("s3://b/x")));
        assert!(at("s3://b/x/y").overlaps(&at("s3://b/x")));
        assert!(!at("s3://b/x").overlaps(&at("s3://b/x")));
        assert!(!at("s3://b/x").overlaps(&at("s3://b/xy")));
        assert!(!at("s3://b/x").overlaps(&at("gs://b/x/y")));
    }
}
