//! A destination on a local disk: a folder with one `lb_*` folder per table. Its own methods block on
//! the disk.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use uuid::Uuid;

use crate::lake::destination::{OWN_FILE_PREFIX, inside_another, is_foreign, not_history};
use crate::lake::error::LakeError;
use crate::lake::local::{DurableStore, create_folders, sync_folder};
use crate::lake::location::URL_FORMS;
use crate::lake::store::TableStore;

/// How long a table's work is tried again when the disk fails, before it is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of history tables. Two are equal if their canonical forms are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    folder: PathBuf,
}

impl Folder {
    /// Work on the disk, off the runtime's worker threads.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T, LakeError> + Send + 'static,
    ) -> Result<T, LakeError> {
        let folder = self.clone();
        tokio::task::spawn_blocking(move || work(&folder))
            .await
            .map_err(|error| LakeError::internal(format!("work on a folder failed: {error}")))?
    }

    /// Whether one of two lies inside the other, and they are not the same.
    pub(crate) fn overlaps(&self, other: &Folder) -> bool {
        let (one, two) = (&self.folder, &other.folder);
        one != two && (one.starts_with(two) || two.starts_with(one))
    }

    /// The `file:///` URL of what is below.
    pub(crate) fn url_of(&self, name: &str) -> Result<String, LakeError> {
        let path = self.folder.join(name);
        match Url::from_file_path(&path) {
            Ok(url) => Ok(url.into()),
            Err(()) => Err(LakeError::internal(format!(
                "\"{}\" has no URL",
                path.display()
            ))),
        }
    }

    /// Reads an absolute path or a `file:///` URL (percent-decoded). Doubled and trailing slashes
    /// go, `.` and `..` are resolved as Postgres does it, by name alone.
    ///
    /// # Errors
    /// Kind `Config` for a relative path or an empty one.
    pub(crate) fn parse(text: &str) -> Result<Folder, LakeError> {
        let path = match text.split_once("://") {
            Some(("file", _)) => file_url_path(text)?,
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
        Ok(Folder {
            folder: PathBuf::from(format!("/{}", parts.join("/"))),
        })
    }

    /// Creates the folder and its parents if need be, and makes sure that it can be written and
    /// is not used for anything else. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Folder::check`]; also if the folder cannot be created, or lies in another destination.
    pub(crate) fn prepare(&self) -> Result<(), LakeError> {
        match fs::metadata(&self.folder) {
            Ok(found) if found.is_dir() => self.check_outer()?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.check_outer()?;
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
    pub(crate) fn check(&self) -> Result<(), LakeError> {
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

    /// That it lies in no other destination. A folder that may not be listed is none of this server's.
    fn check_outer(&self) -> Result<(), LakeError> {
        for outer in self.folder.ancestors().skip(1) {
            let Ok(entries) = fs::read_dir(outer) else {
                continue;
            };
            let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let history = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with("lb_")) && path.join("_delta_log").is_dir()
            };
            if names.any(|path| history(&path)) {
                return Err(inside_another(self, &outer.display().to_string()));
            }
        }
        Ok(())
    }

    fn check_entries(&self) -> Result<(), LakeError> {
        let failed =
            |error: std::io::Error| LakeError::io(&format!("list destination \"{self}\""), &error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if is_foreign(&name, is_folder(&entry.path()).map_err(failed)?) {
                return Err(not_history(self, &name));
            }
        }
        Ok(())
    }

    /// That there is one: `start` made it. Without it the histories are somewhere else, and must not
    /// begin anew.
    pub(crate) fn check_exists(&self) -> Result<(), LakeError> {
        let exists = is_folder(&self.folder)
            .map_err(|error| LakeError::io(&format!("look at destination \"{self}\""), &error))?;
        match exists {
            true => Ok(()),
            false => Err(LakeError::config(
                format!("destination \"{self}\" does not exist any more"),
                "Bring it back (is its volume mounted?), or stop the feed and start it again.",
            )),
        }
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

    /// Whether one of the `lb_*` folders holds a Delta log.
    pub(crate) fn has_log(&self, name: &str) -> Result<bool, LakeError> {
        let log = self.folder.join(name).join("_delta_log");
        // One that cannot be looked at may be a history: it must not be passed over.
        is_folder(&log)
            .map_err(|error| LakeError::io(&format!("look at \"{}\"", log.display()), &error))
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
impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.display().fmt(f)
    }
}

/// Whether there is a folder. Unlike `Path::is_dir`, it does not take one that cannot be looked at for
/// one that is not there.
fn is_folder(path: &std::path::Path) -> std::io::Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
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

fn not_absolute(message: String) -> LakeError {
    LakeError::config(
        message,
        format!("Give a folder as an absolute path or as file:///folder, or a URL: {URL_FORMS}."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lake::error::ErrorKind;

    #[test]
    fn prepare_creates_and_refuses_foreign_content() {
        let temporary = tempfile::tempdir().unwrap();
        let lake = temporary.path().join("a/b");
        let folder = Folder::parse(lake.to_str().unwrap()).unwrap();
        assert_eq!(folder.check().unwrap_err().kind(), ErrorKind::Config);
        folder.prepare().unwrap();
        folder.prepare().unwrap();
        assert!(folder.table_folders().unwrap().is_empty());
        fs::create_dir_all(lake.join("lb_x_history/_delta_log")).unwrap();
        fs::write(lake.join(".wal2delta-x"), "").unwrap();
        folder.prepare().unwrap();
        assert!(folder.has_log("lb_x_history").unwrap());
        assert_eq!(folder.table_folders().unwrap(), ["lb_x_history"]);

        fs::write(lake.join("notes.txt"), "").unwrap();
        let error = folder.prepare().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("\"notes.txt\""));
        let file = Folder::parse(lake.join("notes.txt").to_str().unwrap()).unwrap();
        assert!(
            file.prepare()
                .unwrap_err()
                .to_string()
                .contains("is not a folder")
        );
    }
}
