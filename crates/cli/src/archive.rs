//! `export` and `import`: models in one archive file. This process reads and writes the file, wherever the
//! store is.

use crate::args::{ExportArgs, ImportArgs};
use crate::byte_progress::ByteProgress;
use crate::connect::{self, StoreAccess, StoreApi};
use crate::error::CliError;
use crate::print::{print_json, print_line};
use crate::size::show_bytes;
use crate::term::interrupted;
use crate::view::ModelSummary;
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes of one message, as the contract allows.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that are read and not yet sent.
const PIECES_WAITING: usize = 4;

/// Exports models into an archive. The file appears under its name when it is complete.
pub(crate) async fn export(args: ExportArgs) -> Result<(), CliError> {
    if args.file.is_dir() {
        let file = args.file.display();
        return Err(CliError::Usage(format!("{file} is a directory: say what the archive in it is called")));
    }
    if args.file.exists() && !args.force {
        let file = args.file.display();
        return Err(CliError::Usage(format!("{file} exists already: --force writes over it")));
    }
    let part = part_of(&args.file);
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let written = tokio::select! {
        written = write(&mut access.store, args.models.clone(), &part, args.json) => written,
        () = interrupted() => Err(CliError::Interrupted),
    };
    let written = access.close(written).await;
    let placed = written.and_then(|bytes| match hanzo_engine_files::rename_over(&part, &args.file) {
        Ok(()) => Ok(bytes),
        Err(source) => Err(CliError::Path { path: args.file.clone(), source }),
    });
    let size_bytes = match placed {
        Ok(bytes) => bytes,
        Err(error) => {
            // The part file may not exist. The first error is the one to report.
            let _ = std::fs::remove_file(&part);
            return Err(error);
        }
    };
    let (models, file) = (args.models, args.file.display().to_string());
    if args.json {
        #[derive(Serialize)]
        struct ExportSummary {
            models: Vec<String>,
            file: String,
            size_bytes: u64,
        }
        return print_json(&ExportSummary { models, file, size_bytes });
    }
    print_line(&format!("exported {} to {file} ({})", models.join(", "), show_bytes(size_bytes)))
}

fn part_of(file: &Path) -> PathBuf {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// Writes the archive to disk and returns its size in bytes.
async fn write(store: &mut StoreApi, models: Vec<String>, to: &Path, quiet: bool) -> Result<u64, CliError> {
    let failed = |source: io::Error| CliError::Path { path: to.to_owned(), source };
    let mut stream = store.export(v1::ExportRequest { models }).await.map_err(connect::failed)?.into_inner();
    let mut file = File::create(to).await.map_err(failed)?;
    let mut progress = ByteProgress::new("exporting", None, quiet);
    let mut bytes = 0;
    let end = loop {
        match stream.message().await {
            Ok(Some(piece)) => {
                if let Err(source) = file.write_all(&piece.data).await {
                    break Err(failed(source));
                }
                bytes += piece.data.len() as u64;
                progress.add(piece.data.len() as u64);
            }
            Ok(None) => break Ok(bytes),
            Err(status) => break Err(connect::failed(status)),
        }
    };
    progress.end();
    let bytes = end?;
    file.sync_all().await.map_err(failed)?;
    Ok(bytes)
}

/// Imports the models of an archive.
pub(crate) async fn import(args: ImportArgs) -> Result<(), CliError> {
    let failed = |source: io::Error| CliError::Path { path: args.file.clone(), source };
    let file = File::open(&args.file).await.map_err(failed)?;
    let total = file.metadata().await.map_err(failed)?.len();
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let here = access.here;
    let (sender, receiver) = mpsc::channel(PIECES_WAITING);
    let broke_off = Arc::<Mutex<Option<io::Error>>>::default();
    let progress = ByteProgress::new("importing", Some(total), args.json);
    let reading = tasks::spawn(read(file, sender, progress, broke_off.clone()));
    let imported = access.store.import(ReceiverStream::new(receiver)).await;
    // The reader ends by itself, because its channel is closed.
    let _ = reading.await;
    // If the archive could not be read further here, the daemon sees it as cut off. Report the local error
    // instead.
    let broke_off = broke_off.lock().unwrap_or_else(PoisonError::into_inner).take();
    let imported = match broke_off {
        Some(source) => Err(failed(source)),
        None => imported.map_err(connect::failed),
    };
    let imported = access.close(imported).await?.into_inner();
    let models: Vec<ModelSummary> =
        imported.models.into_iter().map(|model| ModelSummary::from_proto(model, here)).collect();
    if args.json {
        return print_json(&models);
    }
    for model in models {
        print_line(&format!("imported {} ({})", model.name, show_bytes(model.size_bytes)))?;
    }
    Ok(())
}

async fn read(
    mut file: File,
    to: mpsc::Sender<v1::ArchiveChunk>,
    mut progress: ByteProgress,
    broke_off: Arc<Mutex<Option<io::Error>>>,
) {
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        match (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece).await {
            Ok(0) => break,
            Ok(bytes) => {
                if to.send(v1::ArchiveChunk { data: piece.into() }).await.is_err() {
                    break;
                }
                progress.add(bytes as u64);
            }
            Err(error) => {
                *broke_off.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                break;
            }
        }
    }
    progress.end();
}
