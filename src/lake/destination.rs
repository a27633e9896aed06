//! Where a feed's history tables live: one `lb_*` folder per table, in a folder of a disk or below a
//! prefix of an object store. It is parsed once, always shown in the same form, and checked before the
//! first table is written. Nothing here opens a table.

use std::fmt;

use crate::lake::access::Access;
use crate::lake::bucket::Bucket;
use crate::lake::error::LakeError;
use crate::lake::folder::Folder;
use crate::lake::location::{Location, URL_FORMS};
use crate::lake::store::TableStore;

/// Our own files in a destination begin like this; a leading dot hides them from readers.
pub(crate) const OWN_FILE_PREFIX: &str = ".wal2delta";

/// Longest file name that common file systems take, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A place for history tables. Two are equal if they are the same place, however it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(Place);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Folder(Folder),
    Bucket(Bucket),
}

impl Destination {
    /// Reads an absolute path, a `file:///` URL (percent-decoded), or the URL of an object store that
    /// is reached with what the environment offers.
    ///
    /// # Errors
    /// Kind `Config` for a relative path, an empty one, or a URL that is not right.
    pub fn parse(text: &str) -> Result<Destination, LakeError> {
        Self::open(text, Access::environment())
    }

    /// As [`Destination::parse`], for an object store that is reached in a way of its own.
    ///
    /// # Errors
    /// As [`Destination::parse`].
    pub fn open(text: &str, access: Access) -> Result<Destination, LakeError> {
        if let Some(location) = Location::parse(text) {
            return Ok(Destination(Place::Bucket(Bucket::new(location?, access))));
        }
        match text.split_once("://") {
            Some((scheme, _)) if scheme != "file" && is_scheme(scheme) => Err(LakeError::config(
                format!("unknown scheme \"{scheme}://\" in destination"),
                format!("Give an absolute path, or a URL: {URL_FORMS}."),
            )),
            _ => Ok(Destination(Place::Folder(Folder::parse(text)?))),
        }
    }

    /// Whether it is in the file system of the server.
    pub fn is_local(&self) -> bool {
        matches!(self.0, Place::Folder(_))
    }

    /// Has what is written from now on be written with other credentials. True if they are others, for
    /// the same place.
    pub fn renew(&self, access: Access) -> bool {
        match &self.0 {
            Place::Folder(_) => false,
            Place::Bucket(bucket) => bucket.renew(access),
        }
    }

    /// The URL of a table's folder, as other programs find it.
    pub(crate) fn url_of(&self, folder: &str) -> Result<String, LakeError> {
        match &self.0 {
            Place::Folder(parent) => parent.url_of(folder),
            Place::Bucket(bucket) => Ok(bucket.location().join(folder)),
        }
    }

    /// Whether one of two lies inside the other, and they are not the same.
    pub fn overlaps(&self, other: &Destination) -> bool {
        match (&self.0, &other.0) {
            (Place::Folder(one), Place::Folder(two)) => one.overlaps(two),
            (Place::Bucket(one), Place::Bucket(two)) => one.location().overlaps(two.location()),
            _ => false,
        }
    }

    /// Makes the place if need be, and makes sure that it can be listed, read and written by one at a
    /// time, and is not used for anything else.
    ///
    /// # Errors
    /// As [`Destination::check`]; also if a folder cannot be created.
    pub async fn prepare(&self) -> Result<(), LakeError> {
        match &self.0 {
            Place::Folder(folder) => folder.on_disk(|folder| folder.prepare()).await,
            Place::Bucket(bucket) => bucket.prepare().await,
        }
    }

    /// Makes sure that the place is there, can be listed, read and written, and holds nothing but
    /// `lb_*` folders. Creates nothing that stays.
    ///
    /// # Errors
    /// With a hint, of the kind that says what is wrong.
    pub async fn check(&self) -> Result<(), LakeError> {
        match &self.0 {
            Place::Folder(folder) => folder.on_disk(|folder| folder.check()).await,
            Place::Bucket(bucket) => bucket.check().await,
        }
    }

    /// The names of the `lb_*` folders, sorted, of a place that `start` has made.
    pub(crate) async fn existing_table_folders(&self) -> Result<Vec<String>, LakeError> {
        match &self.0 {
            Place::Folder(folder) => {
                folder
                    .on_disk(|folder| {
                        folder.check_exists()?;
                        folder.table_folders()
                    })
                    .await
            }
            Place::Bucket(bucket) => {
                bucket.check_exists().await?;
                bucket.table_folders().await
            }
        }
    }

    /// The store of one table; its folder is made only with `make`, for a new table.
    pub(crate) async fn table_store(
        &self,
        name: &str,
        make: bool,
    ) -> Result<TableStore, LakeError> {
        match &self.0 {
            Place::Folder(folder) => {
                let name = name.to_owned();
                folder
                    .on_disk(move |folder| folder.table_store(&name, make))
                    .await
            }
            Place::Bucket(bucket) => bucket.table_store(name, make).await,
        }
    }

    /// The store of a table if its folder holds a log.
    pub(crate) async fn store_of_log(&self, name: &str) -> Result<Option<TableStore>, LakeError> {
        match &self.0 {
            Place::Folder(folder) => {
                let name = name.to_owned();
                folder
                    .on_disk(move |folder| match folder.has_log(&name)? {
                        true => folder.table_store(&name, false).map(Some),
                        false => Ok(None),
                    })
                    .await
            }
            Place::Bucket(bucket) => {
                let store = bucket.table_store(name, true).await?;
                Ok(store.has_log().await?.then_some(store))
            }
        }
    }
}

/// The canonical form.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Folder(folder) => folder.fmt(f),
            Place::Bucket(bucket) => bucket.location().fmt(f),
        }
    }
}

/// Whether an entry of a destination is none of ours.
pub(crate) fn is_foreign(name: &str, folder: bool) -> bool {
    let table = folder && name.starts_with("lb_");
    !(table || name.starts_with(OWN_FILE_PREFIX))
}

/// The error that a destination holds something else.
pub(crate) fn not_history(destination: &dyn fmt::Display, name: &str) -> LakeError {
    LakeError::config(
        format!("destination \"{destination}\" holds \"{name}\", which is not a history table"),
        "Give a folder that is empty, does not exist yet, or holds only history tables.",
    )
}

/// The error that a destination lies in one that is in use already, of whichever database.
pub(crate) fn inside_another(destination: &dyn fmt::Display, outer: &str) -> LakeError {
    LakeError::config(
        format!(
            "destination \"{destination}\" lies inside \"{outer}\", which holds history tables"
        ),
        "Give a folder that lies beside it, or the very same one.",
    )
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
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
            "s3:///x",
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
    }

    #[test]
    fn places_overlap_when_one_is_inside_the_other() {
        let at = |text: &str| Destination::parse(text).unwrap();
        assert!(at("/a").overlaps(&at("/a/b/")));
        assert!(!at("/a").overlaps(&at("/a/")));
        assert!(!at("/a").overlaps(&at("/ab")));
        assert!(at("s3://b/x/y").overlaps(&at("s3a://b/x/")));
        assert!(!at("s3://b/a").overlaps(&at("/a/b")));
        assert_eq!(at("s3://b/x"), at("s3a://b/x/"));
    }

    #[test]
    fn folders_of_tables_are_keys_as_they_are() {
        let key = format!("x/{}", folder_name("a/ü b~"));
        let path = object_store::path::Path::parse(&key).unwrap();
        assert_eq!(path.as_ref(), key);
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
