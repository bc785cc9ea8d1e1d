//! `pull`: fetches a model through the daemon, or through one in this process, and shows the progress.

mod bars;
mod shown;

pub(crate) use shown::PullDisplay;

use crate::args::PullArgs;
use crate::connect::{self, Client, StoreAccess, StoreApi};
use crate::error::CliError;
use crate::paths::reference;
use crate::print::print_line;
use crate::size::{show_bytes, show_span};
use crate::term::interrupted;
use crate::view::ModelSummary;
use hanzo_engine_proto::v1;
use std::collections::HashSet;
use std::pin::pin;
use std::time::Instant;

/// Runs the command.
pub(crate) async fn pull(args: PullArgs) -> Result<(), CliError> {
    let request = v1::PullRequest {
        reference: reference(&args.reference)?,
        force: args.force,
        quantization: args.quant.unwrap_or_default(),
        revision: args.revision.unwrap_or_default(),
        include: args.include,
        exclude: args.exclude,
        copy: args.copy,
        // Ctrl-C cancels the pull at the daemon. A closed terminal does not cancel it.
        cancel_with_client: false,
    };
    let mut shown = match (args.json, args.quiet) {
        (true, _) => PullDisplay::json(),
        (false, true) => PullDisplay::Nothing,
        (false, false) => PullDisplay::for_people(),
    };
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let began = Instant::now();
    let before = paths(&mut access.client).await;
    let fetched = match before {
        Ok(before) => {
            let model = fetch(&mut access.client, &mut access.store, request, &mut shown).await;
            model.map(|model| (before.contains(&model.path), model))
        }
        Err(error) => Err(error),
    };
    let here = access.here;
    let fetched = access.close(fetched).await;
    if args.json {
        let end = fetched.map(|(_, model)| ModelSummary::from_proto(model, here));
        shown::print_end(&end)?;
        return end.map(drop);
    }
    let (was_here, model) = fetched?;
    if args.quiet {
        return Ok(());
    }
    let (name, size) = (model.name, show_bytes(model.size_bytes));
    print_line(&match was_here {
        true => format!("{name} is here already ({size})"),
        false => format!("pulled {name} ({size}) in {}", show_span(began.elapsed().as_secs_f64())),
    })
}

/// Paths of the models before a pull. A fetched model gets a new folder, so it is not among them.
async fn paths(client: &mut Client) -> Result<HashSet<String>, CliError> {
    let listed = client.list(v1::ListRequest {}).await.map_err(connect::failed)?.into_inner();
    Ok(listed.models.into_iter().map(|model| model.path).collect())
}

/// Pulls until the end or until Ctrl-C, which cancels the pull for everyone. From here on Ctrl-C no longer ends
/// the process by itself.
pub(crate) async fn fetch(
    client: &mut Client,
    store: &mut StoreApi,
    request: v1::PullRequest,
    shown: &mut PullDisplay,
) -> Result<v1::StoredModel, CliError> {
    let meant = v1::CancelPullRequest {
        reference: request.reference.clone(),
        quantization: request.quantization.clone(),
        revision: request.revision.clone(),
    };
    let mut interrupt = pin!(interrupted());
    let stream = tokio::select! {
        stream = client.pull(request) => stream.map_err(connect::failed)?,
        () = &mut interrupt => return Err(CliError::Interrupted),
    };
    let mut stream = stream.into_inner();
    let end = loop {
        let progress = tokio::select! {
            progress = stream.message() => progress,
            () = &mut interrupt => {
                tokio::select! {
                    // If the daemon cannot be reached, or the pull is gone, there is nothing to cancel.
                    _ = store.cancel_pull(meant) => {}
                    // A second Ctrl-C does not wait.
                    () = interrupted() => {}
                }
                break Err(CliError::Interrupted);
            }
        };
        match progress {
            Err(status) => break Err(connect::failed(status)),
            Ok(None) => break Err(CliError::CutOff),
            Ok(Some(progress)) => {
                if let Err(error) = shown.progress(&progress) {
                    break Err(error);
                }
                if let Some(model) = progress.stored {
                    break Ok(model);
                }
            }
        }
    };
    shown.end();
    end
}
