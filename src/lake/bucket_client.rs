//! Clients for the buckets of each provider, made by the options of a server and of a user mapping.
//! Nothing here makes a request, and no message repeats a value: it may be secret.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use crate::lake::error::LakeError;
use crate::lake::location::Location;
use crate::lake::options::{
    AWS_KEY_ID, AWS_SECRET, AWS_TOKEN, AZURE_CLIENT, AZURE_KEY, AZURE_SAS, AZURE_SECRET,
    AZURE_TENANT, GCP_KEY, OPTIONS, OptionPlace, OptionValues, boolean,
};
use crate::lake::unity::{Client, Given, Vended, Vending};

/// A request that has had no answer for so long is given up; below the limit of a call, so that its
/// own error is what is shown.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

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

/// The options of a server and of a user mapping, as clients are made by them.
pub(crate) struct Values<'a> {
    pub server: &'a OptionValues,
    pub mapping: &'a OptionValues,
    /// Gives out credentials for the store.
    pub catalog: Option<Client>,
}

impl Values<'_> {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.server.get(name).or(self.mapping.get(name));
        value.map(String::as_str)
    }

    /// That all options are of this provider.
    pub(crate) fn check_fit(&self, location: &Location) -> Result<(), LakeError> {
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
    pub(crate) fn proxy(&self) -> Result<Option<Url>, LakeError> {
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

pub(crate) type Built = object_store::Result<Reached>;

/// A client for S3.
pub(crate) fn s3(
    location: &Location,
    options: &Values<'_>,
    environment: bool,
) -> Result<Built, LakeError> {
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

/// A client for Azure.
pub(crate) fn azure(
    location: &Location,
    options: &Values<'_>,
    environment: bool,
) -> Result<Built, LakeError> {
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

/// A client for Google's store.
pub(crate) fn google(
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
