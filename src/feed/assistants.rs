//! Several snapshot workers for one large table. The one that was given the table calls others, who
//! see its snapshot; each takes the next pages that nobody has taken, until there are none.

use pgrx::pg_sys;
use std::ffi::CStr;
use std::time::Duration;

use super::copier::{Common, Copier, Place};
use super::copy_table::{lock_free, open};
use super::job::{Answer, Assist, Files, Job};
use super::scan::{Chunk, Part, chunks};
use super::snapshot_worker::End;
use super::waiters::Waiters;
use crate::columns::Shape;
use crate::lake::{HistorySchema, Lake, Target};
use crate::process::{self, Handle, Restart};
use crate::settings;
use crate::shared::{self, LaneState};

/// Chunks that each process should have: with fewer, to start it is not worth its while.
const WORTH: usize = 4;

/// Workers that were called, seen from the one that called them. Dropped, it sends them away.
pub(super) struct Assistants {
    /// Lane of the worker that was given the table.
    leader: usize,
    chunks: Vec<Chunk>,
    working: Vec<Assistant>,
    answers: Vec<Answer>,
}

struct Assistant {
    lane: usize,
    files: Files,
    handle: Handle,
}

impl Assistants {
    /// Calls as many workers as the table is worth and the settings allow; `None`: none.
    pub fn call(
        leader: usize,
        job: &Job,
        (parts, shape): (&[Part], &Shape),
        folder: &str,
        snapshot: pg_sys::Snapshot,
        timestamp: i64,
    ) -> Result<Option<Assistants>, End> {
        if !parts.iter().all(Part::is_heap) {
            return Ok(None);
        }
        let extents: Vec<_> = parts.iter().map(Part::extent).collect();
        let mut assistants = Assistants {
            leader,
            chunks: chunks(&extents),
            working: Vec::new(),
            answers: Vec::new(),
        };
        let worth = (assistants.chunks.len() / WORTH).saturating_sub(1);
        let lanes = reserve(job, leader, worth);
        if lanes.is_empty() {
            return Ok(None);
        }
        // SAFETY: the active snapshot of this transaction, which is no subtransaction; the name is
        // allocated in the current memory context.
        let name = unsafe { CStr::from_ptr(pg_sys::ExportSnapshot(snapshot)) };
        let job = Job {
            assist: Some(Assist {
                leader,
                snapshot: name.to_string_lossy().into_owned(),
                timestamp,
                folder: folder.to_owned(),
                extents,
                fields: shape.fields(),
            }),
            ..job.clone()
        };
        for lane in lanes {
            let files = Files::of(job.database, lane);
            let worker = process::describe(
                &format!("wal2delta snapshot worker {}", job.database),
                "wal2delta_snapshot_main",
                lane as u32,
                Restart::Never,
                process::my_pid(),
            );
            let written = files.write_job(&job);
            match written.ok().and_then(|()| Handle::start(worker)) {
                Some(handle) => assistants.working.push(Assistant {
                    lane,
                    files,
                    handle,
                }),
                // Without it, the others have more to do.
                None => give_back(lane),
            }
        }
        Ok(Some(assistants))
    }

    /// The next pages to copy.
    pub fn claim(&self) -> Option<Chunk> {
        claim(self.leader, &self.chunks)
    }

    /// Waits for those who still copy. Whoever has not begun is not needed any more.
    pub fn wait(&mut self, mut check: impl FnMut() -> Result<(), End>) -> Result<(), End> {
        while let Some(assistant) = self.working.last() {
            let (state, error) = {
                let mut state = shared::lock();
                let entry = &mut state.lanes[assistant.lane];
                if entry.state == LaneState::Wanted {
                    entry.state = LaneState::Free;
                }
                (entry.state, entry.error.get())
            };
            match state {
                LaneState::Done => {
                    let answer = assistant.files.read_answer();
                    let answer = answer.map_err(|error| error.to_string())?;
                    self.answers.push(answer);
                    self.dismiss_last();
                }
                LaneState::Free | LaneState::Wanted => self.dismiss_last(),
                LaneState::Failed => return Err(End::Failed(error)),
                LaneState::Unfit => return Err(End::Unfit(error)),
                LaneState::GaveWay => return Err(End::GaveWay),
                LaneState::Copying if assistant.handle.stopped() => {
                    return Err(End::Failed("its snapshot worker ended".into()));
                }
                LaneState::Copying => {
                    check()?;
                    process::wait(Duration::from_millis(20));
                }
            }
        }
        Ok(())
    }

    /// Sends the last one away. If it has no answer yet, it must not go on with a lane that others use.
    fn dismiss_last(&mut self) {
        if let Some(assistant) = self.working.pop() {
            if shared::lock().lanes[assistant.lane].state != LaneState::Done {
                assistant.handle.terminate();
            }
            give_back(assistant.lane);
            assistant.files.remove();
        }
    }

    /// Adds what they have copied to what their caller has.
    pub fn add_to(&mut self, own: &mut Answer) {
        for answer in self.answers.drain(..) {
            own.files.extend(answer.files);
            own.rows += answer.rows;
            own.sort_by = own.sort_by.max(answer.sort_by);
            own.replaced += answer.replaced;
        }
    }
}

impl Drop for Assistants {
    fn drop(&mut self) {
        while !self.working.is_empty() {
            self.dismiss_last();
        }
    }
}

/// Lanes for at most so many more workers of a database; those of other tables count.
fn reserve(job: &Job, leader: usize, most: usize) -> Vec<usize> {
    let allowed = settings::snapshot_workers();
    let mut state = shared::lock();
    let most = most.min(allowed.saturating_sub(state.copying(job.database)));
    state.lanes[leader].next_chunk = 0;
    let lanes = state.lanes.iter_mut().enumerate();
    let free = lanes.filter(|(_, lane)| lane.database == 0 && lane.worker_pid == 0);
    free.take(most)
        .map(|(index, lane)| {
            lane.database = job.database;
            lane.owner_pid = process::my_pid();
            lane.table = job.table;
            lane.rows_done = 0;
            lane.rows_total = 0;
            lane.staged_bytes = 0;
            lane.error.set("");
            lane.state = LaneState::Wanted;
            index
        })
        .collect()
}

/// Ends the use of a lane; the worker in it leaves.
fn give_back(lane: usize) {
    let mut state = shared::lock();
    let entry = &mut state.lanes[lane];
    entry.owner_pid = 0;
    entry.state = LaneState::Free;
    let worker = entry.worker_pid;
    if worker == 0 {
        entry.database = 0;
    }
    drop(state);
    shared::wake(worker);
}

fn claim(leader: usize, chunks: &[Chunk]) -> Option<Chunk> {
    let mut state = shared::lock();
    let next = &mut state.lanes[leader].next_chunk;
    let chunk = chunks.get(*next as usize)?;
    *next += 1;
    Some(chunk.clone())
}

/// Copies pages of another worker's table, in a transaction that has no snapshot yet.
pub(super) fn assist(
    lane: usize,
    files: &Files,
    lake: &Lake,
    job: &Job,
    assist: &Assist,
) -> Result<(), End> {
    let storages: Vec<u32> = assist.extents.iter().map(|extent| extent.storage).collect();
    // Its caller holds the locks; if somebody waits for them, this must not be one more to wait for.
    let Some(locked) = lock_free(job.table, &storages)? else {
        return answer(files, &Answer::nothing(job.sort_by));
    };
    let owner = {
        let mut state = shared::lock();
        let entry = &mut state.lanes[lane];
        if entry.state != LaneState::Wanted {
            return answer(files, &Answer::nothing(job.sort_by));
        }
        entry.state = LaneState::Copying;
        entry.owner_pid
    };
    let name = std::ffi::CString::new(assist.snapshot.as_str())
        .map_err(|_| End::Failed("the name of a snapshot has a zero byte".into()))?;
    // SAFETY: the transaction has taken no snapshot yet; its caller's is there as long as that lives.
    let (snapshot, shape) = unsafe {
        pg_sys::ImportSnapshot(name.as_ptr());
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        (pg_sys::GetActiveSnapshot(), locked.shape())
    };
    if shape.fields() != assist.fields {
        return Err(End::Failed("its columns have changed".into()));
    }
    let schema =
        HistorySchema::new(shape.fields()).map_err(|error| End::Unfit(error.to_string()))?;
    let part = |storage: &u32| -> Result<Part, End> {
        let relation = locked.storage(*storage);
        let relation = relation.ok_or_else(|| End::Failed("a partition was dropped".into()))?;
        // SAFETY: it was opened and locked above.
        unsafe { Part::new(relation, &shape) }
    };
    let parts: Vec<Part> = storages.iter().map(part).collect::<Result<_, _>>()?;
    let folder = assist.folder.clone();
    let writer = open(lake, job, &schema, Target::StageOnly { folder })?;
    let place = Place {
        lane,
        owner,
        leader: assist.leader,
        lake,
    };
    let common = Common::of(job, assist.timestamp);
    let waiters = Waiters::new(job, locked.oids());
    // SAFETY: in the transaction of the snapshot.
    let mut copier =
        unsafe { Copier::new(place, common, snapshot, (&shape, schema), writer, waiters) };
    let chunks = chunks(&assist.extents);
    while !too_many(job.database)
        && let Some(chunk) = claim(assist.leader, &chunks)
    {
        copier.copy_chunk(&parts[chunk.part], &chunk)?;
    }
    let copied = copier.finish()?;
    locked.release();
    answer(files, &copied)
}

fn answer(files: &Files, answer: &Answer) -> Result<(), End> {
    files
        .write_answer(answer)
        .map_err(|error| End::Failed(format!("could not write down the data files: {error}")))
}

/// Other tables have come to be copied meanwhile, by as many workers as there may be.
fn too_many(database: u32) -> bool {
    shared::lock().copying(database) > settings::snapshot_workers()
}
