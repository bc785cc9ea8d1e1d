//! Tokens of one generation. They are reserved before it begins and charged to its key as they are produced, so
//! a client that disconnects has paid for what it received.

use std::{
    collections::BTreeMap,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hanzo_engine_proto::v1::{
    Chat, ClassifyRequest, EmbedRequest, InferEvent, InferRequest, Message, RerankRequest, SpeakRequest,
    content_part::Part, embed_input::Input, infer_event::Event, infer_request::Prompt, speak_request,
};
use tonic::{Status, codegen::tokio_stream::Stream};

use crate::{
    pass::Pass,
    refusal::Refusal,
    reservation::{InputsNeed, Need, Reservation},
};

/// Estimated bytes of text a token. The resulting token count is mostly too low; the engine reports the true
/// one.
const BYTES_PER_TOKEN: u64 = 5;
/// Tokens that a model adds to an input at most, besides the request's instruction: special ones and its prompt.
const ADDED_TOKENS_MAX: u64 = 64;
/// The same for a query with a document, which some models read in a template.
const ADDED_TO_PAIR_TOKENS_MAX: u64 = 256;
/// Maximum tokens of an input with pictures or a chat.
const MEDIA_INPUT_TOKENS_MAX: u64 = 1 << 16;

/// Reserved and charged tokens of a generation.
#[derive(Debug)]
pub struct Spend {
    reservation: Reservation,
    need: Option<Need>, // the request states no `max_tokens`
    open: bool,         // the prompt was charged
    prompt: bool,       // its tokens were charged
    choices: u32,
    unfinished: u32,
    charged: BTreeMap<u32, u32>, // tokens of each choice that has begun
}

impl Spend {
    /// Tracks a generation of `choices` choices without a reservation.
    pub fn new(pass: Pass, choices: u32) -> Spend {
        Spend {
            reservation: Reservation::none(pass),
            need: None,
            open: false,
            prompt: false,
            choices,
            unfinished: choices,
            charged: BTreeMap::new(),
        }
    }

    /// Reserves the tokens of a generation. A request without `max_tokens` gets one that the key allows.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] and [`Refusal::TooManyTokens`].
    pub fn reserve(pass: Pass, request: &mut InferRequest) -> Result<Spend, Refusal> {
        let choices = request.choices.max(1);
        let mut spend = Spend::new(pass.clone(), choices);
        if !pass.limits_tokens() {
            return Ok(spend);
        }
        let prompt = prompt_tokens(request);
        let stop = request.stop.get_or_insert_default();
        // The maximum means no limit.
        let stated = stop.max_tokens.filter(|tokens| *tokens < u32::MAX);
        let open = || pass.open_answer(prompt, choices, stop.min_tokens);
        let of_each = stated.or_else(open).unwrap_or_default();
        if stated.is_none() {
            request.completion_tokens_max = match request.completion_tokens_max {
                0 => of_each,
                own => own.min(of_each),
            };
        }
        let need = Need { prompt, completion: u64::from(of_each) * u64::from(choices) };
        spend.reservation = pass.reserve(need)?;
        spend.need = Some(need);
        spend.open = stated.is_none();
        Ok(spend)
    }

    /// Checks that a minute of the key has the tokens of several prompts together, with one token of each answer.
    /// Each is reserved when it begins.
    ///
    /// # Errors
    /// [`Refusal::TooManyTokens`]: they would be refused at any time.
    pub fn check_all(pass: &Pass, requests: &[InferRequest]) -> Result<(), Refusal> {
        let Some((limit, _)) = pass.tokens() else { return Ok(()) };
        let prompt = requests.iter().map(prompt_tokens).fold(0, u64::saturating_add);
        let completion = requests.iter().map(|request| u64::from(request.choices.max(1))).sum();
        Need { prompt, completion }.within(limit).map(drop)
    }

    /// Charges the tokens of an event.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] and [`Refusal::TooManyTokens`] if the prompt is longer than was reserved and the key
    /// has no more tokens. The caller must end the generation; nothing was charged.
    pub fn see(&mut self, event: &InferEvent) -> Result<(), Refusal> {
        match &event.event {
            Some(Event::Started(started)) => self.started(started.prompt_tokens)?,
            Some(Event::Delta(delta)) => self.came(delta.choice, delta.token_ids.len()),
            Some(Event::Finished(finished)) => {
                self.finished(finished.choice, finished.usage.unwrap_or_default().completion_tokens);
            }
            Some(Event::PromptLogprobs(_) | Event::Loading(_)) | None => {}
        }
        Ok(())
    }

    /// Charges the prompt when the first choice starts; the choices share it.
    pub(crate) fn started(&mut self, prompt_tokens: u32) -> Result<(), Refusal> {
        if self.prompt {
            return Ok(());
        }
        let prompt = u64::from(prompt_tokens);
        if let Some(need) = self.need.filter(|need| need.prompt < prompt) {
            self.longer_prompt(Need { prompt, ..need })?;
        }
        self.prompt = true;
        self.reservation.charge(prompt_tokens);
        Ok(())
    }

    /// Renews the reservation for a prompt that is longer than estimated.
    fn longer_prompt(&mut self, need: Need) -> Result<(), Refusal> {
        let renewed = self.reservation.renew(need);
        // The bound of the answers may now exceed what is left, by no more than the error of the estimate.
        match renewed {
            Err(_) if self.open => self.reservation.renew(Need { completion: 1, ..need }),
            renewed => renewed,
        }
    }

    /// Charges new tokens of a choice.
    pub(crate) fn came(&mut self, choice: u32, tokens: usize) {
        if choice < self.choices {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            let charged = self.charged.entry(choice).or_default();
            *charged = charged.saturating_add(tokens);
            self.reservation.charge(tokens);
        }
    }

    /// Charges the rest of a finished choice, whose total is `tokens`.
    pub(crate) fn finished(&mut self, choice: u32, tokens: u32) {
        if choice < self.choices {
            let charged = self.charged.entry(choice).or_default();
            self.reservation.charge(tokens.saturating_sub(*charged));
            *charged = (*charged).max(tokens);
            self.unfinished = self.unfinished.saturating_sub(1);
        }
        if self.unfinished == 0 {
            self.reservation.release();
        }
    }

    /// Wraps the events of the generation and charges each as it passes.
    pub fn over<S>(self, events: S) -> MeteredEvents<S> {
        MeteredEvents { events: Some(events), spend: self }
    }
}

/// Event stream of a generation that charges its tokens.
#[derive(Debug)]
pub struct MeteredEvents<S> {
    events: Option<S>, // None: the stream has ended
    spend: Spend,
}

impl<S: Stream<Item = Result<InferEvent, Status>> + Unpin> Stream for MeteredEvents<S> {
    type Item = Result<InferEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        let event = ready!(Pin::new(events).poll_next(context));
        let seen = match &event {
            Some(Ok(event)) => self.spend.see(event),
            Some(Err(_)) | None => {
                self.events = None;
                self.spend.reservation.release();
                Ok(())
            }
        };
        match seen {
            Ok(()) => Poll::Ready(event),
            Err(refusal) => {
                // Dropping the events cancels the generation.
                self.events = None;
                Poll::Ready(Some(Err(refusal.into())))
            }
        }
    }
}

impl InputsNeed {
    /// Need of an embedding request.
    pub fn embed(request: &EmbedRequest) -> InputsNeed {
        let added = ADDED_TOKENS_MAX.saturating_add(request.instruction.len() as u64);
        let tokens = request.inputs.iter().map(|input| match &input.input {
            Some(Input::Text(text)) => (of_bytes(text.len()), text.len() as u64),
            Some(Input::Tokens(tokens)) => (tokens.ids.len() as u64, tokens.ids.len() as u64),
            Some(Input::Chat(chat)) => (of_bytes(chat_bytes(chat)), MEDIA_INPUT_TOKENS_MAX),
            Some(Input::Picture(_)) | None => (1, MEDIA_INPUT_TOKENS_MAX),
        });
        InputsNeed::of(tokens, added, request.truncate)
    }

    /// Need of a reranking request. Each document is read together with the query.
    pub fn rerank(request: &RerankRequest) -> InputsNeed {
        let added = ADDED_TO_PAIR_TOKENS_MAX.saturating_add(request.instruction.len() as u64);
        let query = request.query.len();
        let tokens = request.documents.iter().map(|text| {
            let bytes = query.saturating_add(text.len());
            (of_bytes(bytes), bytes as u64)
        });
        InputsNeed::of(tokens, added, request.truncate)
    }

    /// Need of a classification request.
    pub fn classify(request: &ClassifyRequest) -> InputsNeed {
        let tokens = request.inputs.iter().map(|input| {
            let bytes = input.text.len().saturating_add(input.pair.as_ref().map_or(0, String::len));
            (of_bytes(bytes), bytes as u64)
        });
        InputsNeed::of(tokens, ADDED_TOKENS_MAX, request.truncate)
    }

    /// Need of inputs with their estimated and maximum tokens, to each of which up to `added` are added. Inputs
    /// that may be truncated are estimated as one token, because their length is not known yet.
    fn of(tokens: impl Iterator<Item = (u64, u64)>, added: u64, cut: bool) -> InputsNeed {
        let (mut least, mut most) = (0_u64, 0_u64);
        for (estimated, at_most) in tokens {
            least = least.saturating_add(if cut { estimated.min(1) } else { estimated });
            most = most.saturating_add(at_most).saturating_add(added);
        }
        InputsNeed { least, most }
    }
}

impl Need {
    /// Need of a text for speech synthesis: one token a character.
    pub fn speak(request: &SpeakRequest) -> Need {
        let characters = match &request.input {
            Some(speak_request::Input::Text(text) | speak_request::Input::Phonemes(text)) => {
                text.chars().count()
            }
            None => 0,
        };
        Need { prompt: characters as u64, completion: 0 }
    }
}

/// Request whose body is forwarded to another server unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwardedNeed {
    /// Bytes of the prompt's texts.
    pub prompt_bytes: u64,
    /// Tokens of the prompt's parts that are given as token ids.
    pub prompt_tokens: u64,
    /// Maximum tokens of each answer, if stated.
    pub stated: Option<u32>,
    /// Number of answers; 0 for requests without generation, such as embeddings.
    pub answers: u32,
}

impl ForwardedNeed {
    /// Estimated tokens of the prompt.
    pub fn prompt(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.prompt_bytes / BYTES_PER_TOKEN).max(1)
    }
}

/// Reserved tokens of a forwarded request.
#[derive(Debug)]
pub struct ForwardReservation {
    /// Reservation of the key's tokens.
    pub reservation: Reservation,
    /// Maximum tokens to set for each answer, if the request states none and the key has a limit.
    pub bound: Option<u32>,
}

impl Pass {
    /// Reserves the tokens of a request that is forwarded to another server.
    ///
    /// # Errors
    /// As [`Pass::reserve`].
    pub fn reserve_forwarded(&self, need: &ForwardedNeed) -> Result<ForwardReservation, Refusal> {
        let (prompt, answers) = (need.prompt(), need.answers);
        let bound = match need.stated {
            None if answers > 0 => self.open_answer(prompt, answers, 0),
            _ => None,
        };
        let of_each = u64::from(need.stated.or(bound).unwrap_or_default());
        let reservation = self.reserve(Need { prompt, completion: of_each * u64::from(answers) })?;
        Ok(ForwardReservation { reservation, bound })
    }
}

/// Estimated tokens of a text of that many bytes.
fn of_bytes(bytes: usize) -> u64 {
    (bytes as u64 / BYTES_PER_TOKEN).max(1)
}

/// Tokens of a request's prompt: exact for token ids, else estimated from its bytes.
fn prompt_tokens(request: &InferRequest) -> u64 {
    let tokens = match &request.prompt {
        Some(Prompt::Tokens(tokens)) => tokens.ids.len() as u64,
        Some(Prompt::Text(text)) => of_bytes(text.len().saturating_add(request.suffix.len())),
        Some(Prompt::Chat(chat)) => of_bytes(chat_bytes(chat)),
        None => 0,
    };
    // A prompt that may be truncated counts up to its bound, or as one token while the bound is unknown.
    match request.truncate_prompt_tokens.map(u64::try_from) {
        Some(Ok(most)) => tokens.min(most),
        Some(Err(_)) => tokens.min(1),
        None if request.context_shift == Some(true) => tokens.min(1),
        None => tokens,
    }
}

/// Bytes of the texts of a chat.
fn chat_bytes(chat: &Chat) -> usize {
    let of_message = |message: &Message| {
        let parts = message.content.iter().map(|part| match &part.part {
            Some(Part::Text(text)) => text.len(),
            Some(Part::Media(_)) | None => 0,
        });
        let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments_json.len());
        parts.sum::<usize>() + calls.sum::<usize>() + message.reasoning_content.len()
    };
    let messages: usize = chat.messages.iter().map(of_message).sum();
    messages + chat.tools_json.iter().map(String::len).sum::<usize>()
}

#[cfg(test)]
mod tests;
