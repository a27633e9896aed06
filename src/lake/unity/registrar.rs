//! The task that keeps a feed's tables registered. It is told what a table is and what its comments say,
//! and compares that with the catalog: at first, and when something has changed. What fails is tried
//! again with growing pauses; while nothing is to be done, nothing is asked.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::lake::destination::Destination;
use crate::lake::error::LakeError;
use crate::lake::event::Event;
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::source::Source;
use crate::lake::unity::entry::{Comments, Entry};
use crate::lake::unity::{Catalog, Client};

/// First and longest pause before something that failed is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Tables that the catalog is asked about at the same time.
const AT_ONCE: usize = 4;

/// The texts of what could not be registered, by OID of the source table.
type Problems = Arc<Mutex<HashMap<u32, String>>>;

/// The handle of a feed's catalog. Nothing blocks. Dropping it ends the task.
#[derive(Debug)]
pub struct Registrar {
    messages: UnboundedSender<Message>,
    problems: Problems,
}

#[derive(Debug)]
enum Message {
    Catalog(Catalog),
    Table {
        source: Source,
        folder: String,
        schema: HistorySchema,
    },
    Comments {
        table: u32,
        comments: Comments,
    },
}

impl Registrar {
    /// The handle, and the task, which is for the runtime.
    pub(crate) fn new(
        shared: Arc<Shared>,
        destination: Destination,
        catalog: Catalog,
    ) -> (Registrar, impl Future<Output = ()> + Send + 'static) {
        let (messages, receiver) = unbounded_channel();
        let problems = Problems::default();
        let task = Task {
            shared,
            destination,
            client: None,
            catalog,
            tables: HashMap::new(),
            pause: Pause::default(),
            told: None,
            problems: Arc::clone(&problems),
        };
        (Registrar { messages, problems }, task.run(receiver))
    }

    fn send(&self, message: Message) {
        // It fails only once the runtime is gone.
        let _ = self.messages.send(message);
    }

    /// The catalog is this one, or reached in this way.
    pub fn renew(&self, catalog: Catalog) {
        self.send(Message::Catalog(catalog));
    }

    /// A history table is in this folder and has these columns.
    pub fn table(&self, source: Source, folder: String, schema: HistorySchema) {
        self.send(Message::Table {
            source,
            folder,
            schema,
        });
    }

    /// What a source table is called, and its comments: JSON, from number of the column to text, 0 being
    /// the table itself.
    pub fn comments(&self, table: u32, name: String, texts: &str) {
        let comments = Comments::new(name, texts);
        self.send(Message::Comments { table, comments });
    }

    /// What could not be registered, and why.
    pub fn problems(&self) -> HashMap<u32, String> {
        let problems = self.problems.lock();
        problems.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// When to try again.
#[derive(Debug, Default, Clone, Copy)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

impl Pause {
    fn grow(&mut self) {
        self.length = (self.length * 2).clamp(PAUSES.0, PAUSES.1);
        self.until = Some(Instant::now() + self.length);
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }
}

/// A table of the feed.
#[derive(Debug, Default)]
struct Known {
    history: Option<(Source, String, HistorySchema)>,
    comments: Option<Comments>,
    /// The catalog has to be asked, once both are known.
    due: bool,
    pause: Pause,
    /// The failure that was logged, until a success.
    told: Option<String>,
}

impl Known {
    fn is_due(&self) -> bool {
        self.due && self.history.is_some() && self.comments.is_some()
    }

    fn changed(&mut self) {
        self.due = true;
        self.pause = Pause::default();
    }
}

struct Task {
    shared: Arc<Shared>,
    destination: Destination,
    catalog: Catalog,
    /// Made at the first call, and not on the thread that begins.
    client: Option<Client>,
    tables: HashMap<u32, Known>,
    /// After a failure that is not one table's.
    pause: Pause,
    /// Such a failure that was logged, until a success.
    told: Option<String>,
    problems: Problems,
}

impl Task {
    async fn run(mut self, mut messages: UnboundedReceiver<Message>) {
        loop {
            let message = match self.next_try() {
                None => messages.recv().await,
                Some(at) => match tokio::time::timeout_at(at, messages.recv()).await {
                    Ok(message) => message,
                    Err(_) => {
                        self.guarded().await;
                        continue;
                    }
                },
            };
            match message {
                Some(message) => self.take(message),
                None => return,
            }
        }
    }

    /// When the catalog has to be asked next; `None`: there is nothing to ask.
    fn next_try(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.tables.values().filter(|table| table.is_due());
        let first = due.map(|table| table.pause.until.unwrap_or(now)).min()?;
        Some(first.max(self.pause.until.unwrap_or(now)))
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Catalog(catalog) if catalog == self.catalog => {}
            Message::Catalog(catalog) => {
                self.client = None;
                self.catalog = catalog;
                self.pause = Pause::default();
                self.tables.values_mut().for_each(Known::changed);
            }
            Message::Table {
                source,
                folder,
                schema,
            } => {
                let table = self.tables.entry(source.table).or_default();
                let history = Some((source, folder, schema));
                if table.history != history {
                    table.history = history;
                    table.changed();
                }
            }
            Message::Comments { table, comments } => {
                let table = self.tables.entry(table).or_default();
                if table.comments.as_ref() != Some(&comments) {
                    table.comments = Some(comments);
                    table.changed();
                }
            }
        }
    }

    /// A panic is a failure like others.
    async fn guarded(&mut self) {
        let round = AssertUnwindSafe(self.round()).catch_unwind().await;
        if round.is_err() {
            self.failed(&LakeError::internal("registering tables failed"));
        }
    }

    /// Asks about all tables that are due, until the catalog itself fails.
    async fn round(&mut self) {
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => return self.failed(&error),
        };
        let now = Instant::now();
        let due = self
            .tables
            .iter()
            .filter(|(_, table)| table.is_due() && table.pause.is_over(now));
        let entries: Vec<(u32, Result<Entry, LakeError>)> = due
            .filter_map(|(oid, table)| Some((*oid, self.entry(table)?)))
            .collect();
        let mut answers = stream::iter(entries)
            .map(|(oid, entry)| {
                let client = client.clone();
                async move {
                    match entry {
                        Ok(entry) => (oid, client.register(&entry).await),
                        Err(error) => (oid, Err(error)),
                    }
                }
            })
            .buffer_unordered(AT_ONCE);
        while let Some((oid, result)) = answers.next().await {
            match result {
                // Is it the table, or would all others fail like it?
                Err(error) if error.kind().is_of_access() => match client.check().await {
                    Ok(()) => self.answered(oid, Err(error)),
                    Err(error) => return self.failed(&error),
                },
                result => self.answered(oid, result),
            }
        }
    }

    fn client(&mut self) -> Result<Client, LakeError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Client::new(self.catalog.clone())?;
        self.client = Some(client.clone());
        Ok(client)
    }

    fn entry(&self, table: &Known) -> Option<Result<Entry, LakeError>> {
        let (source, folder, schema) = table.history.as_ref()?;
        let comments = table.comments.as_ref()?;
        let location = self.destination.url_of(folder);
        Some(location.map(|location| Entry::new(folder, location, source, schema, comments)))
    }

    /// The catalog itself cannot be asked.
    fn failed(&mut self, error: &LakeError) {
        self.pause.grow();
        let text = error.with_remedy();
        {
            let problems = self.problems.lock();
            let mut problems = problems.unwrap_or_else(PoisonError::into_inner);
            let due = self.tables.iter().filter(|(_, table)| table.is_due());
            problems.extend(due.map(|(oid, _)| (*oid, shown(&text))));
        }
        if self.told.as_ref() != Some(&text) {
            let what = self.catalog.to_string();
            self.shared.send(Event::Registration {
                what,
                error: Some(error.clone()),
            });
            self.told = Some(text);
        }
    }

    /// The catalog has answered about a table.
    fn answered(&mut self, oid: u32, result: Result<(), LakeError>) {
        self.pause = Pause::default();
        if self.told.take().is_some() {
            let what = self.catalog.to_string();
            self.shared.send(Event::Registration { what, error: None });
        }
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let problems = self.problems.lock();
        let mut problems = problems.unwrap_or_else(PoisonError::into_inner);
        let name = table.comments.as_ref().map_or("", Comments::table_name);
        let what = format!("catalog entry of table \"{name}\"");
        match result {
            Ok(()) => {
                table.due = false;
                problems.remove(&oid);
                if table.told.take().is_some() {
                    self.shared.send(Event::Registration { what, error: None });
                }
            }
            Err(error) => {
                table.pause.grow();
                let text = error.with_remedy();
                problems.insert(oid, shown(&text));
                if table.told.as_ref() != Some(&text) {
                    table.told = Some(text);
                    let error = Some(error);
                    self.shared.send(Event::Registration { what, error });
                }
            }
        }
    }
}

/// How a table shows it.
fn shown(text: &str) -> String {
    format!("the history is written, but not registered as it is in the catalog: {text}")
}
