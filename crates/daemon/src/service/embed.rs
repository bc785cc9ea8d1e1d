//! The calls Embed, Rerank and Classify. Each is counted and logged, and its inputs go through a worker in batches.

use std::{sync::Arc, time::Instant};

use hanzo_engine_access::inputs_bound;
use hanzo_engine_proto::v1;
use tonic::Request;

use super::{
    Core, answer_by,
    batches::Batches,
    deadline,
    record::{CallKind, RequestLog},
    within,
};
use crate::{
    convert::{
        embed::{self as convert, ComputedInputs, EmbedCall},
        request,
    },
    error::Error,
    limits::EMBED_INPUTS_MAX,
    on_demand::Demand,
    registry::Capability,
    served::ServedModel,
};

/// Computes embeddings.
pub(super) async fn embed(
    core: &Arc<Core>,
    request: Request<v1::EmbedRequest>,
) -> Result<v1::EmbedResponse, Error> {
    let id = request.get_ref().request_id.clone();
    let (answer, packed) = call(CallKind::Embed, core, request, &id, |wire, served| {
        let packed = wire.packed;
        Ok((convert::embed(wire, &served.embedder)?, packed))
    })
    .await?;
    Ok(convert::embeddings(answer, packed))
}

/// Computes scores of documents.
pub(super) async fn rerank(
    core: &Arc<Core>,
    request: Request<v1::RerankRequest>,
) -> Result<v1::RerankResponse, Error> {
    let id = request.get_ref().request_id.clone();
    let (answer, top_n) = call(CallKind::Rerank, core, request, &id, |wire, _| {
        let top_n = wire.top_n as usize;
        Ok((convert::rerank(wire)?, top_n))
    })
    .await?;
    Ok(convert::ranking(answer, top_n))
}

/// Computes scores of labels.
pub(super) async fn classify(
    core: &Arc<Core>,
    request: Request<v1::ClassifyRequest>,
) -> Result<v1::ClassifyResponse, Error> {
    let id = request.get_ref().request_id.clone();
    let (answer, labels) = call(CallKind::Classify, core, request, &id, |wire, served| {
        let labels = served.embedder.classifier.as_ref().map(|classifier| classifier.labels.clone());
        Ok((convert::classify(wire)?, labels.unwrap_or_default()))
    })
    .await?;
    Ok(convert::classifications(answer, &labels))
}

/// Handles one call: finds the model, computes the inputs, counts and logs the call.
async fn call<W: convert::ModelRequest, T>(
    name: CallKind,
    core: &Arc<Core>,
    request: Request<W>,
    request_id: &str,
    read: impl FnOnce(W, &ServedModel) -> Result<(EmbedCall, T), Error>,
) -> Result<(ComputedInputs, T), Error> {
    let arrived = Instant::now();
    let id = request::request_id(request_id);
    let mut record = RequestLog::new(name, core, id, arrived, request.metadata());
    let answered = answer(core, request, arrived, read, &mut record).await;
    record.end(answered.as_ref().err());
    answered
}

async fn answer<W: convert::ModelRequest, T>(
    core: &Arc<Core>,
    request: Request<W>,
    arrived: Instant,
    read: impl FnOnce(W, &ServedModel) -> Result<(EmbedCall, T), Error>,
    record: &mut RequestLog,
) -> Result<(ComputedInputs, T), Error> {
    let _active = core.drain.enter()?;
    let deadline = deadline(&request, arrived)?;
    let tokens_max = inputs_bound(request.metadata());
    let client = core.clients.of(&request, request.get_ref().client())?;
    let wire = request.into_inner();
    let keep_alive = request::keep_alive(wire.keep_alive())?;
    let demand = Demand { by: answer_by(deadline), keep_alive, told: None };
    let served = core.models.serving(wire.model(), Capability::Task(wire.task()), demand).await?;
    record.model = Some((served.name.clone(), served.metrics.clone()));
    served.must_do(wire.task())?;
    let (call, rest) = read(wire, &served)?;
    record.inputs = call.inputs.len();
    if call.inputs.len() > EMBED_INPUTS_MAX {
        let reason = format!("must be at most {EMBED_INPUTS_MAX}, not {}", call.inputs.len());
        return Err(Error::field(call.field, reason));
    }
    // Kept to the end: the queue limits all requests of this kind, including running ones.
    let place = served.enter()?.keep();
    let batches = Batches::new(&served, &call, place.clone(), client, arrived, deadline).up_to(tokens_max);
    let answer = within(answer_by(deadline), batches.run(call, record)).await;
    record.begun = place.began();
    let answer = answer?;
    served.metrics.embedded.inc_by(answer.computed.len() as u64);
    place.served(Instant::now());
    Ok((answer, rest))
}
