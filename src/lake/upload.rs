//! A data file that goes to the store while it is still being written, so that it is never in memory as a
//! whole. A small one goes in one piece, as any other file.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload};

use crate::lake::error::LakeError;
use crate::lake::store::{PART_BYTES, TableStore};

/// The file as far as it was written.
pub(crate) struct Upload {
    store: TableStore,
    path: Path,
    /// What was not sent yet.
    rest: Vec<u8>,
    sent: u64,
    begun: Option<Box<dyn MultipartUpload>>,
}

impl Upload {
    /// Nothing is sent.
    pub(crate) fn new(store: &TableStore, path: Path) -> Upload {
        Upload {
            store: store.clone(),
            path,
            rest: Vec::new(),
            sent: 0,
            begun: None,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// Errors of the store; the file cannot be gone on with.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), LakeError> {
        self.rest.extend_from_slice(bytes);
        while self.rest.len() > PART_BYTES {
            let next = self.rest.split_off(PART_BYTES);
            let part = std::mem::replace(&mut self.rest, next);
            self.send(part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, part: Vec<u8>) -> Result<(), LakeError> {
        let doing = self.store.doing("write", &self.path);
        let upload = match &mut self.begun {
            Some(upload) => upload,
            None => {
                let begun = self.store.begin_upload(&doing, &self.path).await?;
                self.begun.insert(begun)
            }
        };
        self.sent += part.len() as u64;
        let part = upload.put_part(PutPayload::from(part));
        self.store.upload(&doing, part).await
    }

    /// The file is whole: when this returns, it is in the store. Returns its bytes.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn finish(&mut self) -> Result<u64, LakeError> {
        let rest = std::mem::take(&mut self.rest);
        if self.begun.is_none() {
            let size = rest.len() as u64;
            self.store.put_data(&self.path, Bytes::from(rest)).await?;
            return Ok(size);
        }
        if !rest.is_empty() {
            self.send(rest).await?;
        }
        if let Some(upload) = &mut self.begun {
            let doing = self.store.doing("write", &self.path);
            self.store.upload(&doing, upload.complete()).await?;
        }
        Ok(self.sent)
    }

    /// Gives the file up. Best effort: what stays of it is for the bucket's own rules to remove.
    pub(crate) async fn abort(mut self) {
        if let Some(upload) = &mut self.begun {
            let doing = self.store.doing("remove", &self.path);
            let _ = self.store.upload(&doing, upload.abort()).await;
        }
    }
}
