//! Where a feed's history tables live: a folder that holds one `lb_*` folder per table. It is
//! parsed once, always shown in the same form, and checked before the first table is written.
//! Nothing here opens a table.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use uuid::Uuid;

use crate::lake::error::LakeError;
use crate::lake::local::{DurableStore, create_folders, sync_folder};
use crate::lake::store::TableStore;

/// Our own files in a destination begin like this; a leading dot hides them from readers.
const OWN_FILE_PREFIX: &str = ".wal2delta";

/// Longest file name that common file systems take, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// How long a table's work is tried again when the disk fails, before it is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of history tables. Two are equal if their canonical forms are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    folder: PathBuf,
}

impl Destination {
    /// Reads an absolute path or a `file:///` URL (percent-decoded). Doubled and trailing slashes
    /// go, `.` and `..` are resolved as Postgres does it, by name alone.
    ///
    /// # Errors
    /// Kind `Config` for a relative path, an empty one, or a scheme that is not supported.
    pub fn parse(text: &str) -> Result<Destination, LakeError> {
        let path = match text.split_once("://") {
            Some(("file", _)) => file_url_path(text)?,
            Some((scheme, _)) if is_scheme(scheme) => return Err(unsupported_scheme(scheme)),
            _ => text.to_owned(),
        };
        if path.is_empty() {
            return Err(not_absolute("destination is empty".to_owned()));
        }
        if path.contains('\0') {
            return Err(not_absolute("destination contains a zero byte".to_owned()));
        }
        if !path.starts_with('/') {
            return Err(not_absolute(format!(
                "destination \"{path}\" is not an absolute path"
            )));
        }
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                _ => parts.push(part),
            }
        }
        if parts.is_empty() {
            return Err(not_absolute("destination is the root folder".to_owned()));
        }
        Ok(Destination {
            folder: PathBuf::from(format!("/{}", parts.join("/"))),
        })
    }

    /// Creates the folder and its parents if need be, and makes sure that it can be written and
    /// is not used for anything else. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Destination::check`]; also if the folder cannot be created.
    pub fn prepare(&self) -> Result<(), LakeError> {
        match fs::metadata(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                create_folders(&self.folder)
                    .map_err(|error| LakeError::io(&format!("create folder \"{self}\""), &error))?;
            }
            // Anything else is for check() to say.
            _ => {}
        }
        self.check()
    }

    /// Makes sure that the folder exists, can be written, and holds nothing but `lb_*` folders.
    /// Creates nothing that stays. Blocks on the disk.
    ///
    /// # Errors
    /// Kind `Config` with a hint, or `Transient` if the disk fails.
    pub fn check(&self) -> Result<(), LakeError> {
        let metadata = fs::metadata(&self.folder).map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return LakeError::config(
                    format!("destination \"{self}\" does not exist"),
                    "Create the folder, or call wal2delta.start() again, which creates it.",
                );
            }
            LakeError::io(&format!("look at destination \"{self}\""), &error)
        })?;
        if !metadata.is_dir() {
            return Err(LakeError::config(
                format!("destination \"{self}\" is not a folder"),
                "Give a folder that is empty or does not exist yet.",
            ));
        }
        self.check_entries()?;
        let probe = self
            .folder
            .join(format!("{OWN_FILE_PREFIX}-probe-{}", Uuid::new_v4()));
        fs::write(&probe, b"")
            .and_then(|()| fs::remove_file(&probe))
            .map_err(|error| LakeError::io(&format!("write to destination \"{self}\""), &error))
    }

    fn check_entries(&self) -> Result<(), LakeError> {
        let failed =
            |error: std::io::Error| LakeError::io(&format!("list destination \"{self}\""), &error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let table = name.starts_with("lb_") && is_folder(&entry.path()).map_err(failed)?;
            if !table && !name.starts_with(OWN_FILE_PREFIX) {
                return Err(LakeError::config(
                    format!(
                        "destination \"{self}\" holds \"{name}\", which is not a history table"
                    ),
                    "Give a folder that is empty, does not exist yet, or holds only history tables.",
                ));
            }
        }
        Ok(())
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// The names of the `lb_*` folders, sorted; none if the destination does not exist. Blocks.
    pub(crate) fn table_folders(&self) -> Result<Vec<String>, LakeError> {
        let failed =
            |error: std::io::Error| LakeError::io(&format!("list destination \"{self}\""), &error);
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            // A name that is not UTF-8 cannot be ours.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with("lb_") && is_folder(&entry.path()).map_err(failed)? {
                folders.push(name);
            }
        }
        folders.sort_unstable();
        Ok(folders)
    }

    /// The folders of [`Destination::table_folders`] that hold a Delta log.
    pub(crate) fn log_folders(&self) -> Result<Vec<String>, LakeError> {
        let mut folders = Vec::new();
        for folder in self.table_folders()? {
            let log = self.folder.join(&folder).join("_delta_log");
            // One that cannot be looked at may be a history: it must not be passed over.
            let is_log = is_folder(&log).map_err(|error| {
                LakeError::io(&format!("look at \"{}\"", log.display()), &error)
            })?;
            if is_log {
                folders.push(folder);
            }
        }
        Ok(folders)
    }

    /// The store of one table; its folder is made only with `make`, for a new table. Blocks on the
    /// disk.
    pub(crate) fn table_store(&self, folder: &str, make: bool) -> Result<TableStore, LakeError> {
        let path = self.folder.join(folder);
        let name = path.display().to_string();
        if make {
            create_folders(&path.join("_delta_log"))
                .map_err(|error| LakeError::io(&format!("create folder \"{name}\""), &error))?;
        } else if !is_folder(&path.join("_delta_log"))
            .map_err(|error| LakeError::io(&format!("look at folder \"{name}\""), &error))?
        {
            return Err(LakeError::config(
                format!("history table \"{name}\" does not exist any more"),
                "Bring it back (is its volume mounted?), or stop the feed and start it again.",
            ));
        }
        // A crash of an earlier process may have left a commit that is visible but whose folder
        // entry is not on disk yet. Once it has been read it must not vanish.
        sync_folder(&path.join("_delta_log"))
            .and_then(|()| sync_folder(&path))
            .map_err(|error| LakeError::io(&format!("synchronize folder \"{name}\""), &error))?;
        let store = DurableStore::new(&path)
            .map_err(|error| LakeError::store(&format!("open folder \"{name}\""), &error))?;
        Ok(TableStore::new(Arc::new(store), name, PATIENCE))
    }
}

/// The canonical form: an absolute path without a trailing slash.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.display().fmt(f)
    }
}

/// Whether there is a folder. Unlike `Path::is_dir`, it does not take one that cannot be looked at for
/// one that is not there.
pub(crate) fn is_folder(path: &std::path::Path) -> std::io::Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

fn file_url_path(text: &str) -> Result<String, LakeError> {
    let wrong = |why: &str| {
        LakeError::config(
            format!("destination \"{text}\" {why}"),
            "Write a local folder as an absolute path, or as file:///folder.",
        )
    };
    let url = Url::parse(text).map_err(|_| wrong("is not a valid URL"))?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has a query or a fragment"));
    }
    let path: PathBuf = url
        .to_file_path()
        .map_err(|()| wrong("names another host"))?;
    path.into_os_string()
        .into_string()
        .map_err(|_| wrong("is not valid UTF-8"))
}

fn unsupported_scheme(scheme: &str) -> LakeError {
    let hint = "Give a local folder as an absolute path, or as file:///folder.";
    match scheme.to_ascii_lowercase().as_str() {
        known @ ("s3" | "s3a" | "abfs" | "abfss" | "az" | "azure" | "adl" | "gs" | "gcs"
        | "http" | "https") => LakeError::config(
            format!(
                "destinations in an object store (\"{known}://\") are not supported yet by this version"
            ),
            hint,
        ),
        other => LakeError::config(
            format!("unknown scheme \"{other}://\" in destination"),
            hint,
        ),
    }
}

fn not_absolute(message: String) -> LakeError {
    LakeError::config(
        message,
        "Give a folder as an absolute path, or as file:///folder.",
    )
}

/// The folder name of a source table's history: `lb_<table>_history`. A byte that has a meaning
/// in paths, URLs or the patterns of an engine's file names is written as `~` and two hex digits. Not as `%`: the Delta kernel, and with
/// it DuckDB and deltalake, decode that twice and do not find the folder.
pub fn folder_name(table: &str) -> String {
    numbered_folder_name(table, 0)
}

/// As [`folder_name`], with `_<number>` at the end if it is not zero: for a second table of the
/// same name in one destination. Never longer than 255 bytes: a longer name is cut, and ends in
/// a hash of the whole.
pub(crate) fn numbered_folder_name(table: &str, number: u32) -> String {
    let suffix = if number == 0 {
        "_history".to_owned()
    } else {
        format!("_history_{number}")
    };
    let mut escaped = String::with_capacity(table.len());
    for c in table.chars() {
        if c.is_control()
            || matches!(
                c,
                '/' | '\\' | '%' | '~' | '?' | '#' | '*' | ':' | '"' | '<' | '>' | '|' | '{' | '}'
            )
        {
            let mut buffer = [0; 4];
            c.encode_utf8(&mut buffer)
                .bytes()
                .for_each(|byte| escaped.push_str(&format!("~{byte:02X}")));
        } else {
            escaped.push(c);
        }
    }
    let room = MAX_NAME_BYTES - "lb_".len() - suffix.len();
    if escaped.len() > room {
        let hash = format!("~{:016x}", fnv1a(table.as_bytes()));
        let mut cut = room - hash.len();
        while !escaped.is_char_boundary(cut) {
            cut -= 1;
        }
        // Not in the middle of an escape.
        if let Some(escape) = escaped[..cut].rfind('~').filter(|escape| escape + 3 > cut) {
            cut = escape;
        }
        escaped.truncate(cut);
        escaped.push_str(&hash);
    }
    format!("lb_{escaped}{suffix}")
}

/// FNV-1a, 64 bits: the same in every version, as folder names must be.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lake::error::ErrorKind;

    #[test]
    fn paths_and_file_urls_have_one_form() {
        for text in [
            "/data/my lake",
            "/data//my lake/",
            "/data/x/../my lake/.",
            "file:///data/my%20lake",
        ] {
            assert_eq!(
                Destination::parse(text).unwrap().to_string(),
                "/data/my lake",
                "{text}"
            );
        }
        assert_eq!(Destination::parse("/a%20b").unwrap().to_string(), "/a%20b");
    }

    #[test]
    fn other_destinations_are_refused_with_a_hint() {
        for text in [
            "",
            "lake",
            "./lake",
            "/",
            "/..",
            "file://host/lake",
            "s3://bucket/x",
            "abfss://c@a/x",
            "ftp://x/y",
            "file:///x?y",
        ] {
            let error = Destination::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{text}");
            assert!(
                error.hint().is_some_and(|hint| hint.ends_with('.')),
                "{text}"
            );
        }
        assert!(
            Destination::parse("gs://b")
                .unwrap_err()
                .to_string()
                .contains("not supported yet")
        );
    }

    #[test]
    fn prepare_creates_and_refuses_foreign_content() {
        let folder = tempfile::tempdir().unwrap();
        let lake = folder.path().join("a/b");
        let destination = Destination::parse(lake.to_str().unwrap()).unwrap();
        assert_eq!(destination.check().unwrap_err().kind(), ErrorKind::Config);
        destination.prepare().unwrap();
        destination.prepare().unwrap();
        assert!(destination.log_folders().unwrap().is_empty());
        fs::create_dir_all(lake.join("lb_x_history/_delta_log")).unwrap();
        fs::write(lake.join(".wal2delta-x"), "").unwrap();
        destination.prepare().unwrap();
        assert_eq!(destination.log_folders().unwrap(), ["lb_x_history"]);
        assert_eq!(destination.table_folders().unwrap(), ["lb_x_history"]);

        fs::write(lake.join("notes.txt"), "").unwrap();
        let error = destination.prepare().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("\"notes.txt\""));
        let file = Destination::parse(lake.join("notes.txt").to_str().unwrap()).unwrap();
        assert!(
            file.prepare()
                .unwrap_err()
                .to_string()
                .contains("is not a folder")
        );
    }

    #[test]
    fn folder_names_are_readable_and_safe() {
        assert_eq!(folder_name("orders"), "lb_orders_history");
        assert_eq!(folder_name("Übung 1"), "lb_Übung 1_history");
        assert_eq!(folder_name("../x"), "lb_..~2Fx_history");
        assert_eq!(folder_name("a%b~\n"), "lb_a~25b~7E~0A_history");
        assert_eq!(folder_name("{0}"), "lb_~7B0~7D_history");
        assert_eq!(numbered_folder_name("t", 2), "lb_t_history_2");
        let long = folder_name(&"/ä".repeat(200));
        assert!(long.len() <= 255 && long.ends_with("_history"), "{long}");
        assert_ne!(long, folder_name(&"/ä".repeat(201)));
    }
}
