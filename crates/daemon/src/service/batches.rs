//! Batches of one call's inputs in a worker's queue. While one batch is computed, the next is tokenized. Only a few
//! are in progress at once. A call with thousands of inputs is therefore a stream of small jobs, and other jobs can
//! run between them.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hanzo_engine_runtime::{
    ClientId, EmbedInput, EmbedJob, EmbedResult, Embedder, Output, RequestError, media::PICTURE,
    tokenizer::Tokenizer,
};
use tokio::sync::oneshot;

use super::{answer_by, record::RequestLog};
use crate::{
    admission::KeptPlace,
    convert::{
        embed::{ComputedInputs, EmbedCall, Encode, InputSource, of_chat, place},
        reply,
    },
    error::Error,
    frame_room::FrameReservation,
    limits::{EMBED_ANSWER_BYTES_MAX, EMBED_JOB_INPUTS, EMBED_JOBS_MAX},
    prompt::{RequestedMedia, media, pictures},
    prompt_builder::{Build, is_large},
    served::ServedModel,
    ticket::{Results, embed_ticket},
    worker::{NotGiven, WorkItem},
};

/// Batches of a request in progress.
pub(super) struct Batches<'a> {
    served: &'a Arc<ServedModel>,
    deadline: Option<Instant>,
    arrived: Instant,
    /// Name of the inputs' field on the wire.
    field: &'static str,
    output: Output,
    priority: i32,
    client: Option<ClientId>,
    place: Arc<KeptPlace>,
    /// Batches in progress, with the memory reserved for their pictures.
    on_its_way: VecDeque<(oneshot::Receiver<Results>, FrameReservation)>,
    computed: ComputedInputs,
    answer_bytes: usize,
    /// Tokens that all inputs may take together.
    tokens_max: Option<u32>,
}

impl<'a> Batches<'a> {
    /// Creates the state without batches. `place` is the request's place in the model's queue, `client` the
    /// requesting client.
    pub(super) fn new(
        served: &'a Arc<ServedModel>,
        call: &EmbedCall,
        place: Arc<KeptPlace>,
        client: Option<ClientId>,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            served,
            deadline,
            arrived,
            field: call.field,
            output: call.output,
            priority: call.priority,
            client,
            place,
            on_its_way: VecDeque::new(),
            computed: ComputedInputs { model: served.name.clone(), computed: Vec::new(), tokens: Vec::new() },
            answer_bytes: 0,
            tokens_max: None,
        }
    }

    /// Bounds the tokens of all inputs together. A batch that exceeds the bound is not computed.
    pub(super) fn up_to(self, tokens_max: Option<u32>) -> Self {
        Self { tokens_max, ..self }
    }

    /// Computes all inputs of the call.
    ///
    /// # Errors
    /// The error of the first input that fails, an error of the worker, or a response that is too large.
    pub(super) async fn run(
        mut self,
        call: EmbedCall,
        record: &mut RequestLog,
    ) -> Result<ComputedInputs, Error> {
        let (EmbedCall { inputs, encode, .. }, field, output) = (call, self.field, self.output);
        let encode = Arc::new(encode);
        let mut inputs = inputs.into_iter().enumerate();
        loop {
            let batch: Vec<(usize, InputSource)> = inputs.by_ref().take(EMBED_JOB_INPUTS).collect();
            if batch.is_empty() {
                break;
            }
            let bytes = batch.iter().map(|(_, source)| source.bytes()).sum::<Option<usize>>();
            let is_large = bytes.is_none_or(is_large);
            let (encode, of) = (encode.clone(), self.served.clone());
            let read = move |interrupted: &dyn Fn() -> bool| {
                let read = |(index, source)| {
                    if interrupted() {
                        return Err(RequestError::Interrupted.into());
                    }
                    let of_input = |error| encode.of_input(field, index, error);
                    let named = |error| match error {
                        Error::Request(error) => encode.of_input(field, index, error),
                        other => of_chat(index, other),
                    };
                    let told = of.embedder.asks(&encode.prompt).map_err(of_input)?;
                    match (source, told) {
                        (InputSource::Text(text), Some(told)) if !text.is_empty() => {
                            let none = RequestedMedia::default();
                            media::represented(text, none, told, encode.cut, &of, interrupted).map_err(named)
                        }
                        (InputSource::Picture(picture), Some(told)) => {
                            let pictures = RequestedMedia { pictures: vec![picture], ..Default::default() };
                            media::represented(PICTURE.into(), pictures, told, None, &of, interrupted)
                                .map_err(named)
                        }
                        (InputSource::Picture(picture), None) => {
                            let span = pictures::alone(picture, &of.text, interrupted)?;
                            of.embedder.picture(span, output).map_err(of_input)
                        }
                        (InputSource::Chat(chat), told) => {
                            let (chat, shown) = *chat;
                            let chat = media::told(chat, told);
                            media::embedded(chat, shown, &of, interrupted)
                                .map_err(|error| of_chat(index, error))
                        }
                        (text, _) => encode
                            .input(text, &of.text.tokenizer, &of.embedder, interrupted)
                            .map_err(of_input),
                    }
                };
                batch.into_iter().map(read).collect::<Result<Vec<EmbedInput>, Error>>()
            };
            let by = answer_by(self.deadline);
            let asked = Build { what: "tokenizing the inputs", client: self.client, by, is_large };
            let inputs = self.served.prompts.run(asked, read).await?;
            self.submit(inputs)?;
            record.queued = true;
            record.prompt_tokens = self.computed.tokens.iter().sum();
            if self.on_its_way.len() == EMBED_JOBS_MAX {
                self.collect().await?;
            }
        }
        while !self.on_its_way.is_empty() {
            self.collect().await?;
        }
        Ok(self.computed)
    }

    fn submit(&mut self, inputs: Vec<EmbedInput>) -> Result<(), Error> {
        let held = self.served.hold_frames(inputs.iter().flat_map(|input| &input.media[..]))?;
        self.computed.tokens.extend(inputs.iter().map(|input| input.tokens.len() as u32));
        let tokens: u64 = self.computed.tokens.iter().map(|&tokens| u64::from(tokens)).sum();
        if let Some(most) = self.tokens_max.filter(|&most| tokens > u64::from(most)) {
            return Err(Error::InputsOver { field: self.field, most });
        }
        let job = EmbedJob {
            id: self.served.next_job(),
            inputs,
            output: self.output,
            priority: self.priority,
            client: self.client,
        };
        let (ticket, results) = embed_ticket(job, self.place.clone(), self.arrived, self.deadline);
        self.served.worker.give(WorkItem::Embed(ticket), Instant::now()).map_err(|why| match why {
            NotGiven::Full => self.served.queue_full(),
            NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
        })?;
        self.on_its_way.push_back((results, held));
        Ok(())
    }

    /// Waits for the oldest batch in progress.
    async fn collect(&mut self) -> Result<(), Error> {
        let Some((results, _held)) = self.on_its_way.pop_front() else { return Ok(()) };
        let lost = || Error::Stopped { what: "the model's worker ended" };
        let computed = results.await.map_err(|_| lost())?;
        let computed = computed.map_err(|end| reply::job_end(end).unwrap_or_else(lost))?;
        for result in computed {
            self.answer_bytes += match &result {
                EmbedResult::Dense { values, .. } => size_of_val(values.as_slice()),
                EmbedResult::Sparse(weights) => size_of_val(weights.as_slice()),
            };
            self.computed.computed.push(result);
        }
        if self.answer_bytes > EMBED_ANSWER_BYTES_MAX {
            let reason = format!("the answer has over {EMBED_ANSWER_BYTES_MAX} bytes; ask for fewer at once");
            return Err(Error::field(self.field, reason));
        }
        Ok(())
    }
}

impl Encode {
    /// Prepares one input for the network.
    fn input(
        &self,
        source: InputSource,
        tokenizer: &Tokenizer,
        embedder: &Embedder,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<EmbedInput, RequestError> {
        match source {
            InputSource::Text(text) => embedder.text(tokenizer, &text, &self.prompt, self.cut, interrupted),
            InputSource::Tokens(tokens) => embedder.tokens(&tokens, self.cut),
            InputSource::Pair(first, second) => {
                embedder.pair(tokenizer, &first, &second, self.task.as_deref(), self.cut, interrupted)
            }
            InputSource::Picture(_) | InputSource::Chat(_) => {
                unreachable!("what may have pictures is taken before")
            }
        }
    }

    /// Error of input `index`, or of something that all inputs share.
    fn of_input(&self, field: &str, index: usize, error: RequestError) -> Error {
        match error {
            // The tokenizer names its field `prompt`.
            RequestError::Invalid { field: "inputs" | "prompt", .. }
            | RequestError::InputLength { .. }
            | RequestError::TooLong { .. }
            | RequestError::NoRoom { .. } => Error::Input { place: place(field, index), error },
            shared => shared.into(),
        }
    }
}
