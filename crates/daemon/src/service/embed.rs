//! Embed, Rerank, Classify: from a request to batches of inputs in a worker's queue, and from their results to the
//! answer. While one batch is computed the next is tokenized, and no request has more than a few on their way, so a
//! request of thousands of inputs is a stream of small jobs that others run between.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{
    Computed, EmbedInput, EmbedJob, Embedder, Output, RequestError, Task, tokenizer::Tokenizer,
};
use tokio::sync::oneshot;
use tonic::Request;

use super::{Core, answer_by, deadline, record::Record, within};
use crate::{
    admission::KeptPlace,
    convert::{
        embed::{self as convert, Ask, Source},
        reply, request,
    },
    error::Error,
    limits::{EMBED_ANSWER_BYTES_MAX, EMBED_INPUTS_MAX, EMBED_JOB_INPUTS, EMBED_JOBS_MAX},
    prompt::Making,
    registry::{Served, Wanted},
    ticket::{Results, embed_ticket},
    worker::{NotGiven, Work},
};

/// What was computed of every input, in their order.
pub(crate) struct Answer {
    pub(crate) model: String,
    pub(crate) computed: Vec<Computed>,
    /// Of each input.
    pub(crate) tokens: Vec<u32>,
}

/// Vectors.
pub(super) async fn embed(
    core: &Arc<Core>,
    request: Request<v1::EmbedRequest>,
) -> Result<v1::EmbedResponse, Error> {
    let id = request.get_ref().request_id.clone();
    let (answer, packed) = call("embed", core, request, &id, |wire, served| {
        let packed = wire.packed;
        Ok((convert::embed(wire, &served.embedder)?, packed))
    })
    .await?;
    Ok(convert::embeddings(answer, packed))
}

/// Scores of documents.
pub(super) async fn rerank(
    core: &Arc<Core>,
    request: Request<v1::RerankRequest>,
) -> Result<v1::RerankResponse, Error> {
    let id = request.get_ref().request_id.clone();
    let (answer, top_n) = call("rerank", core, request, &id, |wire, _| {
        let top_n = wire.top_n as usize;
        Ok((convert::rerank(wire)?, top_n))
    })
    .await?;
    Ok(convert::ranking(answer, top_n))
}

/// Scores of labels.
pub(super) async fn classify(
    core: &Arc<Core>,
    request: Request<v1::ClassifyRequest>,
) -> Result<v1::ClassifyResponse, Error> {
    let id = request.get_ref().request_id.clone();
    let (answer, labels) = call("classify", core, request, &id, |wire, served| {
        let labels = served.embedder.classifier.as_ref().map(|classifier| classifier.labels.clone());
        Ok((convert::classify(wire)?, labels.unwrap_or_default()))
    })
    .await?;
    Ok(convert::classifications(answer, &labels))
}

/// One call: the model, what is asked of it, the answer; counted and logged.
async fn call<W: convert::Wire, T>(
    name: &'static str,
    core: &Arc<Core>,
    request: Request<W>,
    request_id: &str,
    read: impl FnOnce(W, &Served) -> Result<(Ask, T), Error>,
) -> Result<(Answer, T), Error> {
    let arrived = Instant::now();
    let id = request::request_id(request_id);
    let mut record = Record::new(name, core.models.metrics.clone(), id, arrived);
    let answered = answer(core, request, arrived, read, &mut record).await;
    record.end(answered.as_ref().err());
    answered
}

async fn answer<W: convert::Wire, T>(
    core: &Arc<Core>,
    request: Request<W>,
    arrived: Instant,
    read: impl FnOnce(W, &Served) -> Result<(Ask, T), Error>,
    record: &mut Record,
) -> Result<(Answer, T), Error> {
    let _active = core.drain.enter()?;
    let deadline = deadline(&request, arrived)?;
    let wire = request.into_inner();
    let served = core.models.serving(wire.model(), Wanted::Task(wire.task())).await?;
    record.model = Some((served.name.clone(), served.metrics.clone()));
    served.must_do(wire.task())?;
    let (ask, rest) = read(wire, &served)?;
    record.inputs = ask.inputs.len();
    if ask.inputs.len() > EMBED_INPUTS_MAX {
        let reason = format!("must be at most {EMBED_INPUTS_MAX}, not {}", ask.inputs.len());
        return Err(Error::field(ask.field, reason));
    }
    // Kept to the end: the queue bounds all requests of this kind, running ones too.
    let place = served.enter()?.keep();
    let run = Run {
        served: &served,
        deadline,
        arrived,
        field: ask.field,
        output: ask.output,
        priority: ask.priority,
        place: place.clone(),
        on_its_way: VecDeque::new(),
        answer: Answer { model: served.name.clone(), computed: Vec::new(), tokens: Vec::new() },
        answer_bytes: 0,
    };
    let answer = within(answer_by(deadline), run.all(ask, record)).await?;
    served.metrics.embedded.inc_by(answer.computed.len() as u64);
    place.served(Instant::now());
    Ok((answer, rest))
}

/// A request's batches on their way.
struct Run<'a> {
    served: &'a Arc<Served>,
    deadline: Option<Instant>,
    arrived: Instant,
    /// What the wire calls the inputs.
    field: &'static str,
    output: Output,
    priority: i32,
    place: Arc<KeptPlace>,
    on_its_way: VecDeque<oneshot::Receiver<Results>>,
    answer: Answer,
    answer_bytes: usize,
}

impl Run<'_> {
    async fn all(mut self, ask: Ask, record: &mut Record) -> Result<Answer, Error> {
        let (Ask { inputs, encode, .. }, field) = (ask, self.field);
        let encode = Arc::new(encode);
        let mut inputs = inputs.into_iter().enumerate();
        loop {
            let batch: Vec<(usize, Source)> = inputs.by_ref().take(EMBED_JOB_INPUTS).collect();
            if batch.is_empty() {
                break;
            }
            let (encode, of) = (encode.clone(), self.served.clone());
            let read = move |interrupted: &dyn Fn() -> bool| {
                let read = |(index, source)| {
                    if interrupted() {
                        return Err(RequestError::Interrupted.into());
                    }
                    let input = encode.input(source, &of.text.tokenizer, &of.embedder);
                    input.map_err(|error| encode.of_input(field, index, error))
                };
                batch.into_iter().map(read).collect::<Result<Vec<EmbedInput>, Error>>()
            };
            let making = Making::Plain("tokenizing the inputs");
            let inputs = self.served.prompts.run(making, answer_by(self.deadline), read).await?;
            self.submit(inputs)?;
            record.queued = true;
            record.prompt_tokens = self.answer.tokens.iter().sum();
            if self.on_its_way.len() == EMBED_JOBS_MAX {
                self.collect().await?;
            }
        }
        while !self.on_its_way.is_empty() {
            self.collect().await?;
        }
        Ok(self.answer)
    }

    fn submit(&mut self, inputs: Vec<EmbedInput>) -> Result<(), Error> {
        self.answer.tokens.extend(inputs.iter().map(|input| input.tokens.len() as u32));
        let job =
            EmbedJob { id: self.served.next_job(), inputs, output: self.output, priority: self.priority };
        let (ticket, results) = embed_ticket(job, self.place.clone(), self.arrived, self.deadline);
        self.served.worker.give(Work::Embed(ticket), Instant::now()).map_err(|why| match why {
            NotGiven::Full => self.served.queue_full(),
            NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
        })?;
        self.on_its_way.push_back(results);
        Ok(())
    }

    /// Waits for the first batch on its way.
    async fn collect(&mut self) -> Result<(), Error> {
        let Some(results) = self.on_its_way.pop_front() else { return Ok(()) };
        let lost = || Error::Stopped { what: "the model's worker ended" };
        let computed = results.await.map_err(|_| lost())?;
        let computed = computed.map_err(|end| reply::job_end(end).unwrap_or_else(lost))?;
        for result in computed {
            self.answer_bytes += match &result {
                Computed::Dense { values, .. } => size_of_val(values.as_slice()),
                Computed::Sparse(weights) => size_of_val(weights.as_slice()),
            };
            self.answer.computed.push(result);
        }
        if self.answer_bytes > EMBED_ANSWER_BYTES_MAX {
            let reason = format!("the answer has over {EMBED_ANSWER_BYTES_MAX} bytes; ask for fewer at once");
            return Err(Error::field(self.field, reason));
        }
        Ok(())
    }
}

impl convert::Encode {
    /// One input, ready for the network.
    fn input(
        &self,
        source: Source,
        tokenizer: &Tokenizer,
        embedder: &Embedder,
    ) -> Result<EmbedInput, RequestError> {
        match source {
            Source::Text(text) => embedder.text(tokenizer, &text, &self.prompt, self.cut),
            Source::Tokens(tokens) => embedder.tokens(&tokens, self.cut),
            Source::Pair(first, second) => {
                embedder.pair(tokenizer, &first, &second, self.task.as_deref(), self.cut)
            }
        }
    }

    /// An error of input `index`, or of what all of them share.
    fn of_input(&self, field: &str, index: usize, error: RequestError) -> Error {
        match error {
            // The tokenizer knows only of prompts.
            RequestError::Invalid { field: "inputs" | "prompt", .. }
            | RequestError::InputLength { .. }
            | RequestError::TooLong { .. }
            | RequestError::NoRoom { .. } => Error::Input { place: convert::place(field, index), error },
            shared => shared.into(),
        }
    }
}

impl convert::Wire for v1::EmbedRequest {
    fn model(&self) -> &str {
        &self.model
    }

    fn task(&self) -> Task {
        match self.output() {
            v1::EmbedOutput::Sparse => Task::EmbedSparse,
            _ => Task::Embed,
        }
    }
}

impl convert::Wire for v1::RerankRequest {
    fn model(&self) -> &str {
        &self.model
    }

    fn task(&self) -> Task {
        Task::Rerank
    }
}

impl convert::Wire for v1::ClassifyRequest {
    fn model(&self) -> &str {
        &self.model
    }

    fn task(&self) -> Task {
        Task::Classify
    }
}
