//! Credentials for a store that the catalog gives out. They are asked for when the first request needs
//! them and again before they run out, by one request at a time; meanwhile the others go on with what
//! is still valid.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use object_store::gcp::GcpCredential;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::form_urlencoded;

use crate::lake::error::{ErrorKind, LakeError};
use crate::lake::unity::Client;

/// How long before their end credentials are replaced, if that is in the last quarter of their life.
const BEFORE_END: Duration = Duration::from_secs(5 * 60);
/// Life of credentials of which the catalog does not say when they end.
const UNKNOWN_LIFE: Duration = Duration::from_secs(15 * 60);
/// Shorter lives are taken for a clock that is wrong: the store will say whether they are valid.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// Time between two tries while the credentials are still valid, or nobody has waited for so long.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// A failure is the answer to all who waited for the same try.
const SAME_TRY: Duration = Duration::from_millis(500);

const STORE: &str = "wal2delta";

/// Credentials of a kind that catalogs give out.
pub(crate) trait Given: Send + Sync + Sized + 'static {
    /// Reads the catalog's answer; `None`: it has others.
    fn read(answer: &Value) -> Option<Self>;

    /// What must not be shown.
    fn secrets(&self) -> Vec<String>;
}

fn text(value: &Value, name: &str) -> Option<String> {
    value[name].as_str().map(str::to_owned)
}

impl Given for AwsCredential {
    fn read(answer: &Value) -> Option<Self> {
        let given = &answer["aws_temp_credentials"];
        Some(AwsCredential {
            key_id: text(given, "access_key_id")?,
            secret_key: text(given, "secret_access_key")?,
            token: text(given, "session_token").filter(|token| !token.is_empty()),
        })
    }

    fn secrets(&self) -> Vec<String> {
        let token = self.token.iter();
        token.chain([&self.secret_key]).cloned().collect()
    }
}

impl Given for AzureCredential {
    fn read(answer: &Value) -> Option<Self> {
        let token = text(&answer["azure_user_delegation_sas"], "sas_token")?;
        // A plus is one, not a blank.
        let token = token.trim_start_matches('?').replace('+', "%2B");
        let pairs = form_urlencoded::parse(token.as_bytes()).into_owned();
        Some(AzureCredential::SASToken(pairs.collect()))
    }

    fn secrets(&self) -> Vec<String> {
        match self {
            AzureCredential::SASToken(pairs) => {
                let signature = pairs.iter().filter(|(name, _)| name == "sig");
                signature.map(|(_, value)| value.clone()).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Given for GcpCredential {
    fn read(answer: &Value) -> Option<Self> {
        let bearer = text(&answer["gcp_oauth_token"], "oauth_token")?;
        Some(GcpCredential { bearer })
    }

    fn secrets(&self) -> Vec<String> {
        vec![self.bearer.clone()]
    }
}

/// What is given out now, whatever its kind.
pub(crate) trait Vending: Send + Sync {
    /// What must not be shown.
    fn secrets(&self) -> Vec<String>;
}

/// Credentials to read and write below a URL.
pub(crate) struct Vended<C> {
    client: Client,
    url: String,
    now: RwLock<Option<Valid<C>>>,
    /// Held by who asks; the last failure.
    asking: Mutex<Option<(Instant, LakeError)>>,
}

struct Valid<C> {
    credential: Arc<C>,
    refresh_at: Instant,
    ends_at: Instant,
}

impl<C> fmt::Debug for Vended<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Vended").field(&self.url).finish()
    }
}

impl<C: Given> Vended<C> {
    /// No request is made.
    pub(crate) fn new(client: Client, url: String) -> Arc<Vended<C>> {
        Arc::new(Vended {
            client,
            url,
            now: RwLock::new(None),
            asking: Mutex::new(None),
        })
    }

    /// What is valid, and whether it has to be replaced soon.
    fn valid(&self) -> Option<(Arc<C>, bool)> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        let valid = now
            .as_ref()
            .filter(|valid| Instant::now() < valid.ends_at)?;
        let old = Instant::now() >= valid.refresh_at;
        Some((Arc::clone(&valid.credential), old))
    }

    async fn credential(&self) -> Result<Arc<C>, LakeError> {
        match self.valid() {
            Some((valid, false)) => Ok(valid),
            Some((valid, true)) => {
                let Ok(mut failed) = self.asking.try_lock() else {
                    return Ok(valid);
                };
                let asked = failed.as_ref().map(|(at, _)| at.elapsed());
                if asked.is_some_and(|ago| ago < TRY_AGAIN) {
                    return Ok(valid);
                }
                // Should that fail, what is there is valid for a while.
                let asked = self.ask().await;
                *failed = asked
                    .as_ref()
                    .err()
                    .map(|error| (Instant::now(), error.clone()));
                Ok(asked.unwrap_or(valid))
            }
            None => {
                let mut failed = self.asking.lock().await;
                if let Some((valid, _)) = self.valid() {
                    return Ok(valid);
                }
                if let Some((at, error)) = failed.as_ref()
                    && at.elapsed() < SAME_TRY
                {
                    return Err(error.clone());
                }
                let asked = self.ask().await;
                *failed = asked
                    .as_ref()
                    .err()
                    .map(|error| (Instant::now(), error.clone()));
                asked
            }
        }
    }

    async fn ask(&self) -> Result<Arc<C>, LakeError> {
        let answer = self.client.path_credentials(&self.url).await?;
        let Some(credential) = C::read(&answer) else {
            return Err(LakeError::of(
                ErrorKind::Config,
                format!(
                    "{} gives out no credentials for the store of \"{}\"",
                    self.client.catalog(),
                    self.url
                ),
                "Put credentials of the store into the user mapping, or see that the catalog's external location has some.",
            ));
        };
        let credential = Arc::new(credential);
        let (refresh, life) = lives(milliseconds(&answer["expiration_time"]));
        let now = Instant::now();
        let valid = Valid {
            credential: Arc::clone(&credential),
            refresh_at: now + refresh,
            ends_at: now + life,
        };
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Some(valid);
        Ok(credential)
    }
}

/// Some servers write numbers of 64 bits as text.
fn milliseconds(value: &Value) -> Option<u64> {
    value
        .as_u64()
        .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
}

/// How long credentials that end at a time, in milliseconds since 1970, are used, and are valid.
fn lives(ends_ms: Option<u64>) -> (Duration, Duration) {
    let ends = ends_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let life = match ends {
        Some(ends) => ends.saturating_sub(now.unwrap_or_default()),
        None => UNKNOWN_LIFE,
    };
    let life = life.max(SHORTEST_LIFE);
    ((life * 3 / 4).max(life.saturating_sub(BEFORE_END)), life)
}

impl<C: Given> Vending for Vended<C> {
    fn secrets(&self) -> Vec<String> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.as_ref()
            .map(|valid| valid.credential.secrets())
            .unwrap_or_default()
    }
}

#[async_trait]
impl<C: Given> CredentialProvider for Vended<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let credential = self.credential().await;
        credential.map_err(|error| object_store::Error::Generic {
            store: STORE,
            source: Box::new(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn credentials_are_replaced_late_and_in_time() {
        let in_seconds = |seconds: u64| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let (refresh, life) = lives(Some((now.as_millis() as u64) + seconds * 1000));
            (
                refresh.as_secs_f64().round() as u64,
                life.as_secs_f64().round() as u64,
            )
        };
        assert_eq!(in_seconds(3600), (3300, 3600));
        assert_eq!(in_seconds(900), (675, 900));
        assert_eq!(in_seconds(8), (6, 8));
        assert_eq!(lives(Some(1)).1, SHORTEST_LIFE);
        assert_eq!(lives(None).1, UNKNOWN_LIFE);
        assert_eq!(milliseconds(&json!("17")), milliseconds(&json!(17)));
    }

    #[test]
    fn answers_of_each_store_are_read() {
        let aws = json!({"aws_temp_credentials": {
            "access_key_id": "A", "secret_access_key": "B", "session_token": "C"}});
        let read = AwsCredential::read(&aws).unwrap();
        assert_eq!(read.secrets(), ["C", "B"]);
        let azure = json!({"azure_user_delegation_sas": {"sas_token": "sv=1&sig=a%2Bb+c%3D"}});
        let read = AzureCredential::read(&azure).unwrap();
        assert_eq!(read.secrets(), ["a+b+c="]);
        let google = json!({"gcp_oauth_token": {"oauth_token": "T"}});
        assert_eq!(GcpCredential::read(&google).unwrap().bearer, "T");
        assert!(AwsCredential::read(&google).is_none());
    }
}
