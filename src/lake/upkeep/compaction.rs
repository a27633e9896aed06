//! Compaction: neighbouring small files become one, in a commit that changes no row (`dataChange` is
//! false). The table's task makes the commit, between two others: so it never meets a flush.

use std::sync::atomic::Ordering;

use object_store::path::Path;
use tokio::sync::oneshot;

use crate::fail_point;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::memory::release_free_memory;
use crate::lake::open::ActiveFile;
use crate::lake::schema::SORT_BY;
use crate::lake::source::CLEARED_PROPERTY;
use crate::lake::upkeep::log_files::LogFiles;
use crate::lake::upkeep::merge::Merge;
use crate::lake::upkeep::plan::{RangedFile, plan};
use crate::lake::upkeep::{Keeper, quiet};
use crate::lake::writer::Message;

/// Files that others have the same rows as.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Number of the set of files in which these were found, which an opening, a replacement and every
    /// exchange end: in another one they may be gone.
    pub life: u64,
    /// Files with the rows now.
    pub removed: Vec<ActiveFile>,
    /// The file that has them from now on.
    pub added: DataFile,
}

impl Keeper {
    /// Merges what is to be merged by the newest version; with `fully`, all that is smaller than
    /// `target`.
    pub(super) async fn compact(&self, target: u64, fully: bool) -> Result<(), LakeError> {
        let _alone = self.merging.lock().await;
        let mut life = self.life.load(Ordering::Acquire);
        let files = {
            let _one = self.shared.upkeep_permit().await?;
            LogFiles::newest(&self.store, &self.shared.kernels).await?
        };
        let schema = files.table.schema.clone()?;
        let sort_by = schema.physical_name_of(SORT_BY).to_owned();
        let cleared = files.table.metadata.configuration.get(CLEARED_PROPERTY);
        let cleared = cleared.and_then(|sort_by| sort_by.parse().ok());
        if files.deletion_vectors {
            return Err(LakeError::conflict(format!(
                "another writer put deletion vectors into history table \"{}\"",
                self.store.name()
            )));
        }
        let ranged = files.added.into_iter().map(|file| {
            let path = file.path.clone();
            RangedFile::new(file, &sort_by).ok_or_else(|| {
                LakeError::conflict(format!(
                    "file \"{path}\" of history table \"{}\" does not say which rows it has",
                    self.store.name()
                ))
            })
        });
        let ranged = ranged.collect::<Result<Vec<_>, _>>()?;
        for group in plan(ranged, cleared, target, fully) {
            // Its memory is that of one who reads a history back.
            let _one = self
                .shared
                .replays
                .acquire()
                .await
                .map_err(|error| LakeError::internal(error.to_string()))?;
            let removed = group.iter().map(|file| ActiveFile {
                path: file.path.clone(),
                size: file.size,
            });
            let removed = removed.collect();
            let merge = Merge {
                store: self.store.clone(),
                budget: self.shared.replay_budget.clone(),
                schema: schema.clone(),
                sort_by: sort_by.clone(),
                files: group,
            };
            let added = quiet::run(merge.run()).await?;
            release_free_memory();
            let exchange = Exchange {
                life,
                removed,
                added,
            };
            match self.exchange(exchange).await? {
                Some(next) => life = next,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Has the table's task commit; the answer is its. `None` if the table has other files meanwhile.
    async fn exchange(&self, exchange: Exchange) -> Result<Option<u64>, LakeError> {
        let path = Path::from(exchange.added.path.as_str());
        fail_point::pass_store("before_exchange")
            .await
            .map_err(|error| LakeError::store("exchange files", &error))?;
        let (answer, outcome) = oneshot::channel();
        let message = Message::Exchange { exchange, answer };
        let asked = self
            .task
            .upgrade()
            .is_some_and(|task| task.send(message).is_ok());
        // Without an answer the table has failed or was closed before it took the message.
        let next = match asked {
            true => outcome.await.unwrap_or(Ok(None))?,
            false => None,
        };
        if next.is_none() {
            self.store.delete_orphans(vec![path]).await;
        }
        Ok(next)
    }
}
