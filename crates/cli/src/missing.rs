//! Models that are not on this machine: pulls them after asking, or explains how to pull them.

use crate::connect::{self, Client, StoreAccess, StoreApi};
use crate::error::CliError;
use crate::paths;
use crate::pull::{self, PullDisplay};
use crate::size::show_bytes;
use crate::term::{Paint, tell};
use hanzo_engine_daemon::DEMO_MODEL;
use hanzo_engine_proto::v1::{self, resolve_response::Found};
use std::io::{BufRead, IsTerminal, stderr, stdin};
use std::path::{Path, PathBuf};

/// Action for a model that is not on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Fail, and explain how to pull it.
    Fail,
    /// Ask on a terminal. Without one, fail and explain how to pull it.
    Ask,
    /// Pull it.
    Pull,
}

impl IfMissing {
    /// Action for the value of `--yes`.
    pub(crate) fn of(yes: bool) -> Self {
        if yes { Self::Pull } else { Self::Ask }
    }
}

/// Returns true if the daemon's error says that the model could be pulled.
pub(crate) fn is_said_by(status: &tonic::Status) -> bool {
    status.metadata().get("error-code").is_some_and(|word| word == "not_pulled")
}

/// Reference to pull for `model`. None if the model is stored.
async fn reference_of(store: &mut StoreApi, model: &str) -> Result<Option<String>, tonic::Status> {
    let request = v1::ResolveRequest { model: model.to_owned() };
    Ok(match store.resolve(request).await?.into_inner().found {
        Some(Found::Reference(reference)) => Some(reference),
        Some(Found::Stored(_)) | None => None,
    })
}

/// Pulls the model that `model` stands for, if allowed. Does nothing if it is stored.
pub(crate) async fn bring(
    client: &mut Client,
    store: &mut StoreApi,
    model: &str,
    then: IfMissing,
) -> Result<(), CliError> {
    match reference_of(store, model).await.map_err(connect::failed)? {
        Some(reference) => fetch(client, store, model, reference, then).await,
        None => Ok(()),
    }
}

async fn fetch(
    client: &mut Client,
    store: &mut StoreApi,
    model: &str,
    reference: String,
    then: IfMissing,
) -> Result<(), CliError> {
    let request = v1::PullRequest { reference: model.to_owned(), ..Default::default() };
    match then {
        IfMissing::Pull => tell(&format!("{model} is not on this machine: pulling {reference}\n")),
        IfMissing::Ask if stdin().is_terminal() && stderr().is_terminal() => {
            let proposal = store.propose(request.clone()).await.map_err(connect::failed)?.into_inner();
            tell(&question(model, &proposal));
            // The daemon in this process keeps running meanwhile.
            if !tokio::task::block_in_place(|| says_yes(&mut stdin().lock()))? {
                return Err(CliError::Declined(model.to_owned()));
            }
        }
        IfMissing::Ask | IfMissing::Fail => {
            let or = if then == IfMissing::Ask { ", or --yes here" } else { "" };
            return Err(CliError::NotPulled { model: model.to_owned(), reference, or });
        }
    }
    let mut shown = PullDisplay::for_people();
    let pulled = pull::fetch(client, store, request, &mut shown).await?;
    tell(&format!("pulled {} ({})\n", pulled.name, show_bytes(pulled.size_bytes)));
    Ok(())
}

/// Pulls those of `models` that are neither stored nor paths, before a daemon in this process is served.
/// Unresolvable names are left to the load, which reports them.
pub(crate) async fn bring_all(
    models: impl Iterator<Item = &str>,
    dir: Option<PathBuf>,
    store_optional: bool,
    then: IfMissing,
) -> Result<(), CliError> {
    let names: Vec<&str> = models
        .filter(|model| !model.eq_ignore_ascii_case(DEMO_MODEL))
        .filter(|model| !paths::is_path(model) && !Path::new(model).exists())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut access = StoreAccess::open_here(dir, store_optional).await?;
    let mut done = Ok(());
    for name in names {
        let (client, store) = (&mut access.client, &mut access.store);
        done = match reference_of(store, name).await {
            Ok(Some(reference)) => fetch(client, store, name, reference, then).await,
            Ok(None) => Ok(()),
            Err(status) if is_no_model(&status) => Ok(()),
            Err(status) => Err(connect::failed(status)),
        };
        if done.is_err() {
            break;
        }
    }
    access.close(done).await
}

/// Returns true if the name resolves to nothing, or there is no store to resolve it.
fn is_no_model(status: &tonic::Status) -> bool {
    use tonic::Code::{FailedPrecondition, InvalidArgument, NotFound};
    matches!(status.code(), NotFound | InvalidArgument | FailedPrecondition)
}

fn question(model: &str, proposal: &v1::PullProposal) -> String {
    let paint = Paint::of(&stderr());
    let mut about = vec![format!("{} to fetch", show_bytes(proposal.fetch_bytes))];
    if proposal.present_bytes > 0 {
        about.push(format!("{} here already", show_bytes(proposal.present_bytes)));
    }
    if !proposal.license.is_empty() {
        about.push(format!("license {}", crate::term::harmless(&proposal.license)));
    }
    let reference = crate::term::harmless(&proposal.reference);
    format!(
        "{} is not on this machine.\n  {reference}\n  {}\nPull it? [Y/n] ",
        paint.bold(model),
        about.join(", ")
    )
}

/// Reads an answer. Enter, `y` and `yes` mean yes. The end of the input means no.
fn says_yes(input: &mut impl BufRead) -> Result<bool, CliError> {
    let mut line = String::new();
    let read = input.read_line(&mut line).map_err(|error| CliError::Input(error.to_string()))?;
    let word = line.trim().to_ascii_lowercase();
    Ok(read > 0 && matches!(word.as_str(), "" | "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        for (typed, yes) in
            [("\n", true), ("y\n", true), (" YES \n", true), ("n\n", false), ("", false), ("what?\n", false)]
        {
            assert_eq!(says_yes(&mut typed.as_bytes()).unwrap(), yes, "{typed:?}");
        }
    }

    #[test]
    fn a_question_has_source_size_and_license() {
        let proposal = v1::PullProposal {
            reference: "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0".into(),
            fetch_bytes: 639_446_688,
            license: "apache-2.0".into(),
            ..Default::default()
        };
        let asked = question("zen-nano", &proposal);
        for part in ["zen-nano", "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0", "639.4 MB", "apache-2.0"] {
            assert!(asked.contains(part), "{asked}");
        }
    }
}
