//! The few calls of a Unity Catalog server that are needed. Each ends within a bound and is tried once:
//! whoever calls knows when to try again.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Method, Proxy};
use serde_json::{Value, json};

use crate::lake::error::{ErrorKind, LakeError};
use crate::lake::unity::Catalog;
use crate::lake::unity::answer::{Answer, unreachable};
use crate::lake::unity::entry::{Entry, Registered};

/// A request that has had no answer for so long is given up.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A server's schema, over HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    catalog: Catalog,
}

impl Client {
    /// No request is made.
    ///
    /// # Errors
    /// Kind `Config` if token or proxy cannot be used.
    pub(crate) fn new(catalog: Catalog) -> Result<Client, LakeError> {
        if let Some(token) = &catalog.token
            && !token.chars().all(|c| c.is_ascii_graphic())
        {
            return Err(LakeError::config(
                "option \"catalog_token\" has characters in it that no token has",
                "Set the right one: ALTER USER MAPPING … OPTIONS (SET catalog_token '…').",
            ));
        }
        let failed = |error: reqwest::Error| {
            LakeError::config(
                catalog.redact(format!("could not set up access to {catalog}: {error}")),
                "Check the options catalog_url and proxy_url of the server.",
            )
        };
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .timeout(REQUEST_LIMIT)
            // Not to another place with the token.
            .redirect(Policy::none())
            .user_agent(concat!("wal2delta/", env!("CARGO_PKG_VERSION")));
        if let Some(proxy) = &catalog.proxy {
            builder = builder.proxy(Proxy::all(proxy.clone()).map_err(failed)?);
        }
        let http = builder.build().map_err(failed)?;
        Ok(Client { http, catalog })
    }

    /// What it asks.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<Value>,
    ) -> Result<Answer, LakeError> {
        let mut url = self.catalog.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.catalog.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request
                .header("Content-Type", "application/json")
                .body(body.to_string());
        }
        let failed = |error: reqwest::Error| unreachable(&self.catalog, &error.without_url());
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let body = response.bytes().await.map_err(failed)?;
        Ok(Answer::new(status, &body))
    }

    /// See [`Catalog::check`].
    pub(crate) async fn check(&self) -> Result<(), LakeError> {
        let Catalog {
            catalog, schema, ..
        } = &self.catalog;
        let full_name = format!("{catalog}.{schema}");
        let answer = self
            .call(Method::GET, &["schemas", &full_name], None)
            .await?;
        if !answer.is_missing() {
            return answer.ok(&self.catalog, "could not ask").map(drop);
        }
        let answer = self.call(Method::GET, &["catalogs", catalog], None).await?;
        if !answer.is_missing() {
            answer.ok(&self.catalog, "could not ask")?;
            return Err(LakeError::of(
                ErrorKind::Missing,
                format!("{} does not exist", self.catalog),
                "Create the schema in the catalog, or correct the server: ALTER SERVER … OPTIONS (SET schema …).",
            ));
        }
        if !answer.is_told() {
            return Err(LakeError::config(
                format!("there is no Unity Catalog where {} should be", self.catalog),
                "Correct the server's catalog_url: https://host:port, or all of the address up to /api/2.1/unity-catalog.",
            ));
        }
        Err(LakeError::of(
            ErrorKind::Missing,
            format!(
                "{} does not exist: there is no catalog \"{catalog}\"",
                self.catalog
            ),
            "Create the catalog and the schema in it, or correct the server: ALTER SERVER … OPTIONS (SET catalog …).",
        ))
    }

    fn full_name(&self, table: &str) -> String {
        format!("{}.{}.{table}", self.catalog.catalog, self.catalog.schema)
    }

    /// What is registered by this name; `None`: nothing.
    async fn table(&self, name: &str) -> Result<Option<Registered>, LakeError> {
        let full_name = self.full_name(name);
        let answer = self
            .call(Method::GET, &["tables", &full_name], None)
            .await?;
        match answer.is_missing() {
            true => Ok(None),
            false => answer
                .ok(&self.catalog, &format!("could not look up \"{full_name}\""))
                .map(Registered::read)
                .map(Some),
        }
    }

    /// Has the catalog show a table as it is. Asks, and changes what differs.
    ///
    /// # Errors
    /// Kind `Config` if the name is another table's, or the catalog refuses this one; others as
    /// [`Catalog::check`].
    pub(crate) async fn register(&self, entry: &Entry) -> Result<(), LakeError> {
        let Some(found) = self.table(&entry.name).await? else {
            return self.create(entry).await;
        };
        if !found.is_at(&entry.location) {
            let full_name = self.full_name(&entry.name);
            return Err(LakeError::config(
                format!("catalog table \"{full_name}\" is another table's: it is in another place"),
                "Rename or drop that table in the catalog, or name another schema for this server: \
                 ALTER SERVER … OPTIONS (SET schema …).",
            ));
        }
        if found.shows(entry) {
            return Ok(());
        }
        if !self.update(&found, entry).await? {
            // Servers without the Delta interface cannot change a table's columns. An external
            // table's data is not touched by this; what was granted on it is.
            self.drop_table(&entry.name).await?;
            self.create(entry).await?;
        }
        Ok(())
    }

    async fn create(&self, entry: &Entry) -> Result<(), LakeError> {
        let Catalog {
            catalog, schema, ..
        } = &self.catalog;
        let body = json!({
            "name": entry.name,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": entry.columns(),
            "storage_location": entry.location,
            "comment": entry.comment,
            "properties": entry.properties,
        });
        let answer = self.call(Method::POST, &["tables"], Some(body)).await?;
        let full_name = self.full_name(&entry.name);
        answer
            .ok(
                &self.catalog,
                &format!("could not register \"{full_name}\""),
            )
            .map(drop)
    }

    /// Changes columns, comments and properties; false: the server has no such interface.
    async fn update(&self, found: &Registered, entry: &Entry) -> Result<bool, LakeError> {
        let Some(id) = &found.id else {
            return Ok(false);
        };
        let Catalog {
            catalog, schema, ..
        } = &self.catalog;
        let path = [
            "delta",
            "v1",
            "catalogs",
            catalog,
            "schemas",
            schema,
            "tables",
            &entry.name,
        ];
        let body = json!({
            "requirements": [{"type": "assert-table-uuid", "uuid": id}],
            "updates": [
                {"action": "set-columns", "columns": {"type": "struct", "fields": entry.fields()}},
                {"action": "set-properties", "updates": entry.properties},
                {"action": "set-table-comment", "comment": entry.comment},
            ],
        });
        let answer = self.call(Method::POST, &path, Some(body)).await?;
        if answer.is_missing() || answer.is_unknown_call() {
            return Ok(false);
        }
        let full_name = self.full_name(&entry.name);
        answer
            .ok(&self.catalog, &format!("could not update \"{full_name}\""))
            .map(|_| true)
    }

    async fn drop_table(&self, name: &str) -> Result<(), LakeError> {
        let full_name = self.full_name(name);
        let path = ["tables", full_name.as_str()];
        let answer = self.call(Method::DELETE, &path, None).await?;
        if answer.is_missing() {
            return Ok(());
        }
        answer
            .ok(
                &self.catalog,
                &format!("could not register \"{full_name}\" anew"),
            )
            .map(drop)
    }

    /// Credentials to read and write below a URL, as the catalog gives them out.
    ///
    /// # Errors
    /// As [`Catalog::check`].
    pub(crate) async fn path_credentials(&self, url: &str) -> Result<Value, LakeError> {
        let body = json!({"url": url, "operation": "PATH_READ_WRITE"});
        let path = ["temporary-path-credentials"];
        let answer = self.call(Method::POST, &path, Some(body)).await?;
        answer.ok(
            &self.catalog,
            &format!("could not get credentials for \"{url}\""),
        )
    }
}
