//! What it takes to reach an object store: the options of a server and of a user mapping, or what the
//! environment offers, and the client built from them. Whatever is secret has no `Debug` that shows it,
//! and no message of this module repeats a value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use crate::lake::error::LakeError;
use crate::lake::location::{Location, Provider};
use crate::lake::options::{
    AWS_KEY_ID, AWS_SECRET, AWS_TOKEN, AZURE_CLIENT, AZURE_KEY, AZURE_SAS, AZURE_SECRET,
    AZURE_TENANT, CATALOG, CATALOG_SCHEMA, CATALOG_TOKEN, CATALOG_URL, GCP_KEY, OPTIONS,
    OptionPlace, OptionValues, boolean,
};
use crate::lake::unity::{Catalog, Client, Given, Vended, Vending};

/// A request that has had no answer for so long is given up; below the limit of a call, so that its
/// own error is what is shown.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

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

    /// The same, with more that has to be hidden in texts.
    pub(crate) fn hiding(mut self, secrets: Vec<String>) -> Access {
        if let Kind::Options { mapping, .. } = &mut self.0 {
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

/// A client for a bucket, and what gives it credentials, if that is a catalog.
pub(crate) struct Reached {
    pub store: Arc<dyn ObjectStore>,
    pub vended: Option<Arc<dyn Vending>>,
}

/// What it is made with is secret.
impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reached").finish_non_exhaustive()
    }
}

impl Reached {
    fn new(
        built: object_store::Result<impl ObjectStore>,
        vended: Option<Arc<impl Vending + 'static>>,
    ) -> Built {
        built.map(|store| Reached {
            store: Arc::new(store),
            vended: vended.map(|vended| vended as Arc<dyn Vending>),
        })
    }
}

struct Values<'a> {
    server: &'a OptionValues,
    mapping: &'a OptionValues,
    /// Gives out credentials for the store.
    catalog: Option<Client>,
}

impl Values<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let value = self.server.get(name).or(self.mapping.get(name));
        value.map(String::as_str)
    }

    /// That all options are of this provider.
    fn check_fit(&self, location: &Location) -> Result<(), LakeError> {
        for (name, place, provider) in OPTIONS {
            if self.get(name).is_some() && provider.is_some_and(|only| only != location.provider) {
                return Err(LakeError::config(
                    format!("option \"{name}\" has no meaning for \"{location}\""),
                    format!(
                        "Drop it from {}.",
                        match place {
                            OptionPlace::Server => "the server",
                            OptionPlace::UserMapping => "the user mapping",
                        }
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Both or none of two options.
    fn pair(&self, one: &str, two: &str) -> Result<Option<(&str, &str)>, LakeError> {
        match (self.get(one), self.get(two)) {
            (Some(first), Some(second)) => Ok(Some((first, second))),
            (None, None) => Ok(None),
            (first, _) => {
                let (has, lacks) = if first.is_some() {
                    (one, two)
                } else {
                    (two, one)
                };
                Err(LakeError::config(
                    format!("the user mapping has the option \"{has}\" but not \"{lacks}\""),
                    format!("Add it: ALTER USER MAPPING … OPTIONS (ADD {lacks} '…')."),
                ))
            }
        }
    }

    /// Credentials that the catalog gives out, if it is to.
    fn vended<C: Given>(&self, location: &Location) -> Option<Arc<Vended<C>>> {
        let client = self.catalog.clone()?;
        Some(Vended::new(client, location.to_string()))
    }

    /// The proxy's address, with its user and password.
    fn proxy(&self) -> Result<Option<Url>, LakeError> {
        let Some(proxy) = self.get("proxy_url") else {
            return Ok(None);
        };
        let mut url = Url::parse(proxy).map_err(|_| {
            LakeError::config(
                "option \"proxy_url\" is not a URL",
                "Write it as http://host:port.",
            )
        })?;
        if let Some((user, password)) = self.pair("proxy_user", "proxy_password")? {
            let set = url
                .set_username(user)
                .and_then(|()| url.set_password(Some(password)));
            set.map_err(|()| {
                LakeError::config(
                    "the proxy takes no user",
                    "Drop the options proxy_user and proxy_password.",
                )
            })?;
        }
        Ok(Some(url))
    }

    /// What every client is set up with.
    fn client(&self) -> Result<Vec<(ClientConfigKey, String)>, LakeError> {
        let seconds = |limit: Duration| format!("{} seconds", limit.as_secs());
        let mut keys = vec![
            (ClientConfigKey::Timeout, seconds(REQUEST_LIMIT)),
            (ClientConfigKey::ConnectTimeout, seconds(CONNECT_LIMIT)),
        ];
        if self
            .get("endpoint")
            .is_some_and(|url| url.starts_with("http://"))
        {
            keys.push((ClientConfigKey::AllowHttp, "true".to_owned()));
        }
        if let Some(proxy) = self.proxy()? {
            keys.push((ClientConfigKey::ProxyUrl, proxy.into()));
        }
        Ok(keys)
    }
}

/// Short: what the store says shall be known, and be shown, before a call's limit.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(3),
            base: 2.0,
        },
        max_retries: 5,
        retry_timeout: Duration::from_secs(10),
    }
}

type Built = object_store::Result<Reached>;

fn s3(location: &Location, options: &Values<'_>, environment: bool) -> Result<Built, LakeError> {
    let mut builder = if environment {
        AmazonS3Builder::from_env()
    } else {
        AmazonS3Builder::new()
    };
    let vended = options.vended(location);
    if let Some((id, secret)) = options.pair(AWS_KEY_ID, AWS_SECRET)? {
        builder = builder
            .with_access_key_id(id)
            .with_secret_access_key(secret);
        if let Some(token) = options.get(AWS_TOKEN) {
            builder = builder.with_token(token);
        }
    } else if let Some(vended) = &vended {
        builder = builder.with_credentials(Arc::clone(vended) as _);
    } else if !environment {
        return Err(without_credentials(
            "aws_access_key_id and aws_secret_access_key",
        ));
    }
    for (key, value) in options.client()? {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    if let Some(region) = options.get("region") {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = options.get("endpoint") {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(path_style) = options.get("path_style").and_then(boolean) {
        builder = builder.with_virtual_hosted_style_request(!path_style);
    }
    let builder = builder
        .with_bucket_name(&location.bucket)
        .with_retry(retries());
    Ok(Reached::new(builder.build(), vended))
}

fn azure(location: &Location, options: &Values<'_>, environment: bool) -> Result<Built, LakeError> {
    let mut builder = if environment {
        MicrosoftAzureBuilder::from_env()
    } else {
        MicrosoftAzureBuilder::new()
    };
    if let Some(account) = location.account().or(options.get("account_name")) {
        builder = builder.with_account(account);
    } else if !environment {
        return Err(LakeError::config(
            format!("\"{location}\" does not say which account it is in"),
            "Add the option account_name to the server, or write the url as abfss://container@account.dfs.core.windows.net/folder.",
        ));
    }
    let vended = options.vended(location);
    if let Some(key) = options.get(AZURE_KEY) {
        builder = builder.with_access_key(key);
    } else if let Some(token) = options.get(AZURE_SAS) {
        builder = builder.with_config(AzureConfigKey::SasKey, token);
    } else if let Some((client, secret)) = options.pair(AZURE_CLIENT, AZURE_SECRET)? {
        let Some((_, tenant)) = options.pair(AZURE_CLIENT, AZURE_TENANT)? else {
            return Err(without_credentials("azure_tenant_id"));
        };
        builder = builder.with_client_secret_authorization(client, secret, tenant);
    } else if let Some(vended) = &vended {
        builder = builder.with_credentials(Arc::clone(vended) as _);
    } else if !environment {
        return Err(without_credentials(
            "azure_account_key, azure_sas_token, or azure_tenant_id with azure_client_id and azure_client_secret",
        ));
    }
    for (key, value) in options.client()? {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    if let Some(endpoint) = options.get("endpoint") {
        builder = builder.with_endpoint(endpoint.to_owned());
    }
    let builder = builder
        .with_container_name(&location.bucket)
        .with_retry(retries());
    Ok(Reached::new(builder.build(), vended))
}

fn google(
    location: &Location,
    options: &Values<'_>,
    environment: bool,
) -> Result<Built, LakeError> {
    let mut builder = if environment {
        GoogleCloudStorageBuilder::from_env()
    } else {
        GoogleCloudStorageBuilder::new()
    };
    let vended = options.vended(location);
    if let Some(key) = options.get(GCP_KEY) {
        builder = builder.with_service_account_key(key);
    } else if let Some(vended) = &vended {
        builder = builder.with_credentials(Arc::clone(vended) as _);
    } else if !environment {
        return Err(without_credentials(GCP_KEY));
    }
    for (key, value) in options.client()? {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    if let Some(endpoint) = options.get("endpoint") {
        builder = builder.with_base_url(endpoint);
    }
    let builder = builder
        .with_bucket_name(&location.bucket)
        .with_retry(retries());
    let built = Reached::new(builder.build(), vended);
    // What a key that is no JSON was read as can be in the error, in parts.
    built.map(Ok).map_err(|_| {
        LakeError::config(
            format!("could not set up access to \"{location}\""),
            "Check the option gcp_service_account_key of the user mapping: it is the JSON key of a service account.",
        )
    })
}

fn without_credentials(options: &str) -> LakeError {
    LakeError::config(
        format!("the user mapping has no credentials for this store: {options}"),
        "Add them: ALTER USER MAPPING … OPTIONS (ADD …).",
    )
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
