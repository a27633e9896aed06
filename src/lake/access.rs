//! What it takes to reach an object store: the options of a server and of a user mapping, or what the
//! environment offers, and the client built from them. Whatever is secret has no `Debug` that shows it,
//! and no message of this module repeats a value.

use std::fmt;

use crate::lake::bucket_client::{Reached, Values, azure, google, s3};
use crate::lake::error::LakeError;
use crate::lake::location::{Location, Provider};
use crate::lake::options::{
    CATALOG, CATALOG_SCHEMA, CATALOG_TOKEN, CATALOG_URL, OPTIONS, OptionPlace, OptionValues,
};
use crate::lake::unity::{Catalog, Client};

/// How a store is reached, or why it may not be.
#[derive(Clone, PartialEq, Eq)]
pub struct Access(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    /// By options, with what the environment has in addition if `environment` is set.
    Options {
        server: OptionValues,
        mapping: OptionValues,
        environment: bool,
        /// Added to the error when the store refuses access.
        remedy: String,
    },
    /// Not at all, for now.
    Refused(LakeError),
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Options { server, .. } => f.debug_tuple("Options").field(server).finish(),
            Kind::Refused(error) => f.debug_tuple("Refused").field(error).finish(),
        }
    }
}

impl Access {
    /// By what the server's environment offers: variables, a web identity, the role of the machine.
    pub fn environment() -> Access {
        Access(Kind::Options {
            server: OptionValues::new(),
            mapping: OptionValues::new(),
            environment: true,
            remedy: "Put the credentials into the environment of the Postgres server, or feed to a server of the \
                     foreign-data wrapper wal2delta that has a user mapping."
                .into(),
        })
    }

    /// By the options of a server and of a user mapping.
    pub fn with_mapping(name: &str, server: OptionValues, mapping: OptionValues) -> Access {
        Access(Kind::Options {
            server,
            mapping,
            environment: false,
            remedy: format!(
                "Set the right credentials: ALTER USER MAPPING FOR … SERVER {name} OPTIONS (SET …). \
                 The feed takes them up by itself."
            ),
        })
    }

    /// By the options of a server that has no user mapping, and the environment.
    pub fn without_mapping(name: &str, server: OptionValues) -> Access {
        Access(Kind::Options {
            server,
            mapping: OptionValues::new(),
            environment: true,
            remedy: format!(
                "There is no user mapping, and the environment of the Postgres server gives no access: \
                 CREATE USER MAPPING FOR … SERVER {name} OPTIONS (…)."
            ),
        })
    }

    /// Not at all, for now.
    pub fn refused(error: LakeError) -> Access {
        Access(Kind::Refused(error))
    }

    /// Whether nothing can be reached for now.
    pub fn is_refused(&self) -> bool {
        matches!(self.0, Kind::Refused(_))
    }

    /// Whether both reach the same place, with whatever credentials.
    pub fn same_place(&self, other: &Access) -> bool {
        match (&self.0, &other.0) {
            (Kind::Options { server: one, .. }, Kind::Options { server: two, .. }) => one == two,
            // What is refused reaches no place that could be another one.
            _ => true,
        }
    }

    /// The address of the store, if it is not the provider's own.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        match &self.0 {
            Kind::Options { server, .. } => server.get("endpoint").map(String::as_str),
            Kind::Refused(_) => None,
        }
    }

    /// What to do when the store refuses access.
    pub(crate) fn remedy(&self) -> &str {
        match &self.0 {
            Kind::Options { remedy, .. } => remedy,
            Kind::Refused(_) => "",
        }
    }

    /// The same, with credentials that a catalog gave out: they too have to be hidden in texts.
    pub(crate) fn with_vended(mut self, secrets: Vec<String>) -> Access {
        if let Kind::Options {
            mapping, remedy, ..
        } = &mut self.0
        {
            *remedy = "The credentials are those of the catalog: see to the external location that the folder is in."
                .into();
            let numbered = (0..).zip(secrets);
            mapping.extend(numbered.map(|(number, secret)| (format!("vended {number}"), secret)));
        }
        self
    }

    /// The catalog that is to know the tables, if there is one.
    ///
    /// # Errors
    /// Kind `Config` if an option of it is not right.
    pub fn catalog(&self) -> Result<Option<Catalog>, LakeError> {
        let Kind::Options {
            server, mapping, ..
        } = &self.0
        else {
            return Ok(None);
        };
        let options = Values {
            server,
            mapping,
            catalog: None,
        };
        let named = (
            server.get(CATALOG_URL),
            server.get(CATALOG),
            server.get(CATALOG_SCHEMA),
        );
        let (Some(address), Some(catalog), Some(schema)) = named else {
            return Ok(None);
        };
        let token = options.get(CATALOG_TOKEN);
        Catalog::new(address, (catalog, schema), token, options.proxy()?).map(Some)
    }

    /// Whether the catalog is asked for credentials of the store: a user mapping has none.
    fn vends(&self) -> bool {
        match &self.0 {
            Kind::Options {
                mapping,
                environment: false,
                ..
            } => !OPTIONS.iter().any(|(name, place, provider)| {
                *place == OptionPlace::UserMapping
                    && provider.is_some()
                    && mapping.contains_key(*name)
            }),
            _ => false,
        }
    }

    /// The text without any of the secret values.
    pub(crate) fn redact(&self, mut text: String) -> String {
        if let Kind::Options { mapping, .. } = &self.0 {
            for secret in mapping.values().filter(|value| value.len() > 3) {
                if text.contains(secret.as_str()) {
                    text = text.replace(secret.as_str(), "***");
                }
            }
        }
        text
    }

    /// A client for the bucket of a location. No request is made.
    ///
    /// # Errors
    /// Kind `Config` if options are missing or do not fit the location; what it was refused with.
    pub(crate) fn client(&self, location: &Location) -> Result<Reached, LakeError> {
        let (server, mapping, environment) = match &self.0 {
            Kind::Refused(error) => return Err(error.clone()),
            Kind::Options {
                server,
                mapping,
                environment,
                ..
            } => (server, mapping, *environment),
        };
        let catalog = match self.vends() {
            true => self.catalog()?.map(Client::new).transpose()?,
            false => None,
        };
        let options = Values {
            server,
            mapping,
            catalog,
        };
        options.check_fit(location)?;
        let built = match location.provider {
            Provider::S3 => s3(location, &options, environment)?,
            Provider::Azure => azure(location, &options, environment)?,
            Provider::Google => google(location, &options, environment)?,
        };
        built.map_err(|error| {
            LakeError::config(
                self.redact(format!(
                    "could not set up access to \"{location}\": {error}"
                )),
                "Check the options of the server and of its user mapping.",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lake::options::{AWS_KEY_ID, AWS_SECRET};

    fn options(pairs: &[(&str, &str)]) -> OptionValues {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn secrets_are_in_no_debug_text_and_taken_out_of_messages() {
        let mapping = options(&[(AWS_KEY_ID, "AKIA1"), (AWS_SECRET, "hunter2")]);
        let access = Access::with_mapping("lake", options(&[("url", "s3://b")]), mapping);
        assert!(!format!("{access:?}").contains("hunter2"));
        assert_eq!(access.redact("a hunter2 b".into()), "a *** b");
    }

    #[test]
    fn options_have_to_fit_the_store() {
        let location = Location::parse("gs://b/x").unwrap().unwrap();
        let mapping = options(&[(AWS_KEY_ID, "AKIA1"), (AWS_SECRET, "hunter2")]);
        let access = Access::with_mapping("lake", options(&[("url", "gs://b/x")]), mapping);
        assert!(
            access
                .client(&location)
                .unwrap_err()
                .to_string()
                .contains(AWS_KEY_ID)
        );
        let location = Location::parse("s3://b/x").unwrap().unwrap();
        let half = options(&[(AWS_SECRET, "hunter2")]);
        let access = Access::with_mapping("lake", options(&[("url", "s3://b/x")]), half);
        assert!(
            access
                .client(&location)
                .unwrap_err()
                .with_remedy()
                .contains(AWS_KEY_ID)
        );
    }
}
