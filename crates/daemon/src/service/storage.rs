//! The `Store` service: aliases, garbage collection, verification, archives. Long operations run on separate
//! threads and report progress through a bounded channel. A client that disconnects cancels them.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use bytes::{Buf as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use hanzo_engine_proto::v1::{self, store_server::Store as StoreApi};
use hanzo_engine_store::{Base, ModelLookup, ModelRecord, SideTexts, Store, StoreError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::{Core, Events, Reply, pull, reply};
use crate::{
    convert::{self, store as words},
    error::Error,
    package_defaults::{self, Changes},
    pulls,
};

/// gRPC service of the store.
pub(crate) struct StoreService(pub(crate) Arc<Core>);

/// Messages that may wait for a slow client.
const QUEUE_MESSAGES: usize = 4;
/// Bytes in one chunk of an archive.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes after which a verification reports progress.
const SAY_EVERY_BYTES: u64 = 64 << 20;

/// Derives a model from another; its texts are kept unless the request replaces them.
fn derive(store: &Store, wire: v1::DeriveRequest) -> Result<Result<ModelRecord, Error>, StoreError> {
    let v1::DeriveRequest { model, name, system, params_json, messages_json, license, template, files } =
        wire;
    let (base, before) = match (model.is_empty(), files.is_empty()) {
        (false, true) => {
            let record = store.get(&model)?;
            (Base::Model(record.name.clone()), record.side_texts())
        }
        (true, false) => {
            let mut files: Vec<(String, String)> = files.into_iter().collect();
            files.sort();
            (Base::Files(files), SideTexts::default())
        }
        _ => return Ok(Err(Error::field("model", "name a stored model, or files, and not both"))),
    };
    let changes = Changes { system, params: params_json, messages: messages_json, license, template };
    match package_defaults::changed(before, changes) {
        Ok(texts) => store.derive(&base, &name, &texts, Some(&pulls::inspect())).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

type Sender<T> = mpsc::Sender<Result<T, Status>>;

#[tonic::async_trait]
impl StoreApi for StoreService {
    type VerifyStream = Events<v1::VerifyProgress>;
    type ExportStream = Events<v1::ArchiveChunk>;

    async fn propose(&self, request: Request<v1::PullRequest>) -> Reply<v1::PullProposal> {
        reply(pull::propose(&self.0, request.into_inner()).await)
    }

    async fn cancel_pull(&self, request: Request<v1::CancelPullRequest>) -> Reply<v1::CancelPullResponse> {
        reply(pull::cancel(&self.0, request.into_inner()))
    }

    async fn pulls(&self, _: Request<v1::PullsRequest>) -> Reply<v1::PullsResponse> {
        reply(pull::pulls(&self.0).await)
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Reply<v1::ResolveResponse> {
        use v1::resolve_response::Found as Wire;
        let asked = request.into_inner().model;
        let found = self.0.models.with_store(move |store| store.resolve(&asked)).await;
        reply(found.map(|found| {
            let found = match found {
                ModelLookup::Stored(record) => Wire::Stored(convert::reply::stored_model(&record, false)),
                ModelLookup::Missing(reference) => Wire::Reference(reference.to_string()),
            };
            v1::ResolveResponse { found: Some(found) }
        }))
    }

    async fn copy(&self, request: Request<v1::CopyRequest>) -> Reply<v1::Alias> {
        let v1::CopyRequest { model, alias } = request.into_inner();
        let made = self.0.models.with_store(move |store| store.set_alias(&model, &alias)).await;
        reply(made.map(words::alias))
    }

    async fn derive(&self, request: Request<v1::DeriveRequest>) -> Reply<v1::StoredModel> {
        let wire = request.into_inner();
        let made = self.0.models.with_store(move |store| derive(store, wire)).await;
        reply(made.and_then(|made| made).map(|record| convert::reply::stored_model(&record, false)))
    }

    async fn find_blob(&self, request: Request<v1::FindBlobRequest>) -> Reply<v1::FindBlobResponse> {
        let sha256 = request.into_inner().sha256;
        let found = self.0.models.with_store(move |store| store.has_blob(&sha256)).await;
        reply(found.map(|found| v1::FindBlobResponse { found }))
    }

    async fn put_blob(&self, request: Request<Streaming<v1::PutBlobRequest>>) -> Reply<v1::PutBlobResponse> {
        let mut wire = request.into_inner();
        let first = wire.next().await.transpose()?.unwrap_or_default();
        let (sending, reading) = received(wire.map(|piece| piece.map(|piece| piece.data)), first.data);
        let work = self.0.models.with_store(move |store| store.put_blob(&first.sha256, reading));
        let (put, ()) = tokio::join!(work, sending);
        reply(put.map(|()| v1::PutBlobResponse {}))
    }

    async fn aliases(&self, _: Request<v1::AliasesRequest>) -> Reply<v1::AliasesResponse> {
        let aliases = self.0.models.with_store(Store::aliases).await;
        let wire = |aliases: Vec<_>| aliases.into_iter().map(words::alias).collect();
        reply(aliases.map(|aliases| v1::AliasesResponse { aliases: wire(aliases) }))
    }

    async fn collect(&self, request: Request<v1::CollectRequest>) -> Reply<v1::CollectResponse> {
        let dry_run = request.into_inner().dry_run;
        let collected = self.0.models.with_store(move |store| store.gc(dry_run)).await;
        reply(collected.map(words::collected))
    }

    async fn verify(&self, request: Request<v1::VerifyRequest>) -> Reply<Self::VerifyStream> {
        let model = request.into_inner().model;
        reply(self.streaming(move |store, to| verify(store, model, to)))
    }

    async fn disk_usage(&self, _: Request<v1::DiskUsageRequest>) -> Reply<v1::DiskUsageResponse> {
        let usage = self.0.models.with_store(|store| {
            let dir = store.dir().display().to_string();
            store.disk_usage().map(|usage| words::disk_usage(usage, dir))
        });
        reply(usage.await)
    }

    async fn export(&self, request: Request<v1::ExportRequest>) -> Reply<Self::ExportStream> {
        let names = request.into_inner().models;
        if names.is_empty() {
            return Err(Error::field("models", "name at least one").into());
        }
        reply(self.streaming(move |store, to| {
            let mut pieces = Pieces { to: to.clone(), gathered: Vec::with_capacity(PIECE_BYTES) };
            store.export(&names, &mut pieces, |_| true).map_err(Error::from)?;
            pieces.flush().map_err(|_| Error::Stopped { what: "the client left" })
        }))
    }

    async fn import(&self, request: Request<Streaming<v1::ArchiveChunk>>) -> Reply<v1::ImportResponse> {
        let wire = request.into_inner().map(|chunk| chunk.map(|chunk| chunk.data));
        let (sending, reading) = received(wire, Bytes::new());
        let work = self.0.models.with_store(move |store| store.import(reading, |_| true));
        let (imported, ()) = tokio::join!(work, sending);
        reply(imported.map(|records| {
            let models = records.iter().map(|record| convert::reply::stored_model(record, false));
            v1::ImportResponse { models: models.collect() }
        }))
    }
}

impl StoreService {
    /// Runs blocking `work` and streams what it sends; an error ends the stream.
    fn streaming<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store, &Sender<T>) -> Result<(), Error> + Send + 'static,
    ) -> Result<Events<T>, Error> {
        let no_store = || Error::NoStore { reason: self.0.models.store_missing.clone() };
        let store = self.0.models.store.clone().ok_or_else(no_store)?;
        let active = self.0.drain.enter()?;
        let (sender, receiver) = mpsc::channel(QUEUE_MESSAGES);
        // One type of task for all events: each type is 4 KB of code.
        let work: Box<dyn FnOnce() + Send> = Box::new(move || {
            let _active = active;
            if let Err(error) = work(&store, &sender) {
                // Has no effect if the client has disconnected.
                let _ = sender.blocking_send(Err(error.into()));
            }
        });
        tokio::task::spawn_blocking(work);
        let stream: Box<dyn Stream<Item = Result<T, Status>> + Send> =
            Box::new(ReceiverStream::new(receiver));
        Ok(Box::into_pin(stream))
    }
}

fn verify(store: &Store, model: String, to: &Sender<v1::VerifyProgress>) -> Result<(), Error> {
    let listing = store.list()?;
    let names = match model.is_empty() {
        true => listing.models.into_iter().map(|record| record.name).collect(),
        false => vec![model],
    };
    for name in names {
        let bytes_total = match store.resolve(&name)? {
            ModelLookup::Stored(record) => record.size_bytes,
            ModelLookup::Missing(_) => 0,
        };
        let (mut bytes_done, mut said) = (0, 0);
        let checked = store.verify(&name, |bytes| {
            bytes_done += bytes;
            if bytes_done - said < SAY_EVERY_BYTES {
                return !to.is_closed();
            }
            said = bytes_done;
            let progress =
                v1::VerifyProgress { model: name.clone(), bytes_done, bytes_total, ..Default::default() };
            to.blocking_send(Ok(progress)).is_ok()
        })?;
        let gone = Error::Stopped { what: "the client left" };
        to.blocking_send(Ok(words::checked(checked, bytes_total))).map_err(|_| gone)?;
    }
    Ok(())
}

/// Writer that collects an archive into messages.
struct Pieces {
    to: Sender<v1::ArchiveChunk>,
    gathered: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() == PIECE_BYTES {
            self.flush()?;
        }
        let taken = bytes.len().min(PIECE_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.gathered, Vec::with_capacity(PIECE_BYTES));
        let sent = self.to.blocking_send(Ok(v1::ArchiveChunk { data: full.into() }));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Connects a stream of messages to a reader on another thread, beginning with `first`. Returns the future that
/// forwards them and the reader. The reader sees the end of the stream, or an error if it broke off.
fn received(
    mut wire: impl Stream<Item = Result<Bytes, Status>> + Unpin,
    first: Bytes,
) -> (impl Future<Output = ()>, Chunks) {
    let (sender, from) = mpsc::channel(QUEUE_MESSAGES);
    let sending = async move {
        while let Some(piece) = wire.next().await {
            let piece = piece.map_err(|status| io::Error::other(status.message().to_owned()));
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    };
    (sending, Chunks { from, piece: first })
}

/// Reader of a file that arrives in messages.
struct Chunks {
    from: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.from.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let taken = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..taken]);
        Ok(taken)
    }
}
