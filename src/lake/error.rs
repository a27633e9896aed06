//! The one error type of `lake/`. It decides what happens next: every error has a kind, and one
//! table says what a kind means for retrying. It may not carry secrets: messages name folders and
//! files, never credentials or signed addresses.

use std::error::Error as StdError;

/// What went wrong, seen from the one who must act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store or the network failed; the same call may succeed later.
    Transient,
    /// Another writer changed the table since our last commit (one writer per table).
    Conflict,
    /// The store refuses access.
    Denied,
    /// There is no such bucket, or it is somewhere else.
    Missing,
    /// The destination is wrong, or holds something that is not ours.
    Config,
    /// The rows or the schema cannot be expressed in Delta.
    Data,
    /// A broken invariant or a panic: an error in wal2delta itself.
    Internal,
}

/// When something that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// After pauses that start short and grow.
    Backoff,
    /// Seldom: the source table, or a row of it, has to be changed first.
    AfterChange,
    /// Not before a person asks for a new snapshot.
    AfterResync,
}

impl ErrorKind {
    /// The table from kind to retry; there is no second one.
    pub const fn retry(self) -> Retry {
        match self {
            // That a person has mended the destination is found out like any other recovery.
            ErrorKind::Transient
            | ErrorKind::Denied
            | ErrorKind::Missing
            | ErrorKind::Internal
            | ErrorKind::Config => Retry::Backoff,
            ErrorKind::Data => Retry::AfterChange,
            ErrorKind::Conflict => Retry::AfterResync,
        }
    }

    /// Whether the store has not answered: then the error says nothing about what is stored there.
    pub const fn is_of_access(self) -> bool {
        matches!(
            self,
            ErrorKind::Transient | ErrorKind::Denied | ErrorKind::Missing
        )
    }
}

/// An error of the lake. Its `Display` is a Postgres primary message: lower case, no full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LakeError {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

impl LakeError {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        LakeError {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    /// An error of some kind, with a hint: a full sentence.
    pub fn of(kind: ErrorKind, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(kind, message).with_hint(hint)
    }

    /// An error of the store or the network.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Transient, message)
    }

    /// A foreign writer was found.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
            .with_hint("Make sure that nothing else writes to this table, then take a new snapshot of it with wal2delta.resync().")
    }

    /// A destination is wrong.
    pub fn config(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message).with_hint(hint)
    }

    /// The data or the schema has no place in Delta.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    /// A panic in what was being done.
    pub(crate) fn panicked(doing: &str, panic: &(dyn std::any::Any + Send)) -> LakeError {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::internal(format!("{doing} failed: {}", text.unwrap_or("panic")))
    }

    /// A broken invariant.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The same error with a hint: a full sentence.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The kind, which decides about retrying.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What a person can do about it: a full sentence.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    /// Message and remedy in one text, for where there is no place of its own for a hint.
    pub fn with_remedy(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{self}. {hint}"),
            None => self.to_string(),
        }
    }

    /// An I/O error on a local path; `doing` completes "could not …".
    pub fn io(doing: &str, error: &std::io::Error) -> Self {
        Self::from_chain(doing, error)
    }

    /// An error of the object store; `doing` completes "could not …".
    pub fn store(doing: &str, error: &object_store::Error) -> Self {
        use object_store::Error::{
            NotImplemented, NotSupported, PermissionDenied, Unauthenticated,
        };
        if let Some(told) = told(doing, error) {
            return told;
        }
        match error {
            PermissionDenied { .. } | Unauthenticated { .. } => denied(doing, error),
            NotImplemented { .. } | NotSupported { .. } => {
                Self::internal(format!("could not {doing}: {}", chain_text(error)))
            }
            _ => Self::from_chain(doing, error),
        }
    }

    /// An error of the Delta kernel; `doing` completes "could not …".
    pub fn kernel(doing: &str, error: &buoyant_kernel::Error) -> Self {
        use buoyant_kernel::Error as Kernel;
        if let Some(told) = told(doing, error) {
            return told;
        }
        match error {
            Kernel::Backtraced { source, .. } => Self::kernel(doing, source),
            Kernel::ObjectStore(error) => Self::store(doing, error),
            Kernel::IOError(error) => Self::io(doing, error),
            Kernel::Reqwest(_) | Kernel::JoinFailure(_) | Kernel::FileNotFound(_) => {
                Self::transient(format!("could not {doing}: {}", chain_text(error)))
            }
            Kernel::InternalError(_) => {
                Self::internal(format!("could not {doing}: {}", chain_text(error)))
            }
            _ => Self::config(
                format!("could not {doing}: {}", chain_text(error)),
                "The table's Delta log is damaged or was written with features that wal2delta does not know.",
            ),
        }
    }

    /// Looks for an operating system error below, as only that tells a full disk from a
    /// forbidden one.
    fn from_chain(doing: &str, error: &(dyn StdError + 'static)) -> Self {
        let message = || format!("could not {doing}: {}", chain_text(error));
        match io_kind(error) {
            Some(std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem) => {
                denied(doing, error)
            }
            Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => {
                Self::transient(message()).with_hint("Free space at the destination.")
            }
            _ => Self::transient(message()),
        }
    }
}

/// An error of ours that came through the store's interface: kind and remedy are known.
fn told(doing: &str, error: &(dyn StdError + 'static)) -> Option<LakeError> {
    known(error).map(|told| LakeError {
        message: format!("could not {doing}: {told}"),
        ..told.clone()
    })
}

/// The error of ours among the causes of another, if there is one.
pub(crate) fn known<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a LakeError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(known) = error.downcast_ref::<LakeError>() {
            return Some(known);
        }
        next = error.source();
    }
    None
}

fn denied(doing: &str, error: &(dyn StdError + 'static)) -> LakeError {
    LakeError::new(
        ErrorKind::Denied,
        format!("could not {doing}: {}", chain_text(error)),
    )
    .with_hint(
        "The operating system user that runs Postgres needs permission to read and write there.",
    )
}

fn io_kind(error: &(dyn StdError + 'static)) -> Option<std::io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

/// The messages of an error and its causes on one line, without repeating a cause that the outer
/// message already contains.
pub(crate) fn chain_text(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string().replace('\n', " ");
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string().replace('\n', " ");
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_path_needs_a_person_and_a_full_disk_does_not() {
        let forbidden = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(
            LakeError::io("write \"/x\"", &forbidden).kind(),
            ErrorKind::Denied
        );
        let error = LakeError::io("write \"/x\"", &full);
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.to_string().starts_with("could not write \"/x\": "));
        assert!(error.hint().is_some_and(|hint| hint.ends_with('.')));
    }

    #[test]
    fn the_operating_system_error_is_found_below_the_store_error() {
        let error = object_store::Error::Generic {
            store: "LocalFileSystem",
            source: Box::new(std::io::Error::from(std::io::ErrorKind::PermissionDenied)),
        };
        assert_eq!(
            LakeError::store("read it", &error).kind(),
            ErrorKind::Denied
        );
    }
}
