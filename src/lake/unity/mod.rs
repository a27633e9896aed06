//! Unity Catalog: history tables are registered in it as external Delta tables, and it can give out the
//! credentials for their store. All of this goes on beside the way of a flush: a catalog that is down
//! or refuses holds up nothing but its own entries. No message here repeats a token.

mod answer;
mod client;
mod entry;
mod registrar;
mod vended;

#[cfg(test)]
mod tests;

use std::fmt;

use url::Url;

pub(crate) use client::Client;
pub use registrar::Registrar;
pub(crate) use vended::{Given, Vended, Vending};

use crate::lake::error::LakeError;

/// Below the address of a server: where the version of the interface that is spoken lies.
const API: [&str; 3] = ["api", "2.1", "unity-catalog"];

/// A schema of a catalog, and how it is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct Catalog {
    /// Up to the version of the interface.
    base: Url,
    /// Name of the catalog.
    pub(crate) catalog: String,
    /// Name of the schema in it.
    pub(crate) schema: String,
    token: Option<String>,
    /// With its user and password.
    proxy: Option<Url>,
}

impl Catalog {
    /// `address`: of the server, or up to the version of its interface.
    ///
    /// # Errors
    /// Kind `Config` if it is no address.
    pub(crate) fn new(
        address: &str,
        (catalog, schema): (&str, &str),
        token: Option<&str>,
        proxy: Option<Url>,
    ) -> Result<Catalog, LakeError> {
        let wrong = || {
            LakeError::config(
                "option \"catalog_url\" is not an HTTP address",
                "Write it as https://host:port.",
            )
        };
        let mut base = Url::parse(address).map_err(|_| wrong())?;
        let whole = base.path().trim_end_matches('/').ends_with(API[2]);
        base.path_segments_mut()
            .map_err(|()| wrong())?
            .pop_if_empty()
            .extend(API.iter().filter(|_| !whole));
        Ok(Catalog {
            base,
            catalog: catalog.to_owned(),
            schema: schema.to_owned(),
            token: token.map(str::to_owned),
            proxy,
        })
    }

    /// Makes sure that it can be reached, takes the token, and has catalog and schema.
    ///
    /// # Errors
    /// With a hint, of the kind that says what is wrong.
    pub async fn check(&self) -> Result<(), LakeError> {
        Client::new(self.clone())?.check().await
    }

    /// The text without what is secret.
    fn redact(&self, mut text: String) -> String {
        let password = self.proxy.as_ref().and_then(Url::password);
        let secrets = self.token.as_deref().into_iter().chain(password);
        for secret in secrets.filter(|secret| secret.len() > 3) {
            if text.contains(secret) {
                text = text.replace(secret, "***");
            }
        }
        text
    }
}

/// What everybody may see of it: `schema "main.bronze" of the catalog at http://host:8080`.
impl fmt::Display for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = self.base.origin().ascii_serialization();
        let Catalog {
            catalog, schema, ..
        } = self;
        write!(
            f,
            "schema \"{catalog}.{schema}\" of the catalog at {origin}"
        )
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Catalog").field(&self.to_string()).finish()
    }
}
