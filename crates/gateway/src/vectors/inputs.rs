//! Parsers of embedding inputs and options that all APIs share. `vectors::json` writes the engine's answers.

use hanzo_engine_proto::v1::{self, content_part::Part, embed_input::Input};

use crate::{
    declare::{Declaration as _, Integer, Raw, Read, Words, fields},
    error::ApiError,
    fields::Field,
    media_bounds::BoundFields,
    names::SentFields,
    openai::prompt::TemplateFields,
    pictures::{self, PictureFields},
    request::{FILLED, QueueFields, TruncationFields, at_most, filled, model_name, one_of},
    unsupported::MEDIA_BOUNDS,
};

/// Inputs to embed, in the order of the request.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) inputs: Vec<v1::EmbedInput>,
    /// Whether the input was single, not in a list.
    pub(crate) single: bool,
}

const EXPECTED: &str = "expected a string, an array of strings, an array of token ids or an array of those";

/// Reads a text, token ids, or a list of either with at most `inputs_max` non-empty elements.
pub(crate) fn inputs(field: Field, inputs_max: usize) -> Result<Inputs, ApiError> {
    let tokens = |ids| v1::EmbedInput { input: Some(Input::Tokens(v1::TokenIds { ids })) };
    let single = |input| Inputs { inputs: vec![input], single: true };
    let Some(list) = field.as_list() else {
        if !field.value().is_string() {
            return Err(field.error(EXPECTED));
        }
        return Ok(single(text(field)?));
    };
    let Some(first) = list.clone().next() else { return Err(ApiError::empty(&field.path())) };
    let strings = first.value().is_string();
    if first.value().is_number() {
        return Ok(single(tokens(field.token_ids()?)));
    }
    if !strings && !first.value().is_array() {
        return Err(field.error(EXPECTED));
    }
    at_most(field, list.clone().count(), inputs_max)?;
    let mixed = |field: Field, other: &str| {
        Err(field.error(format!("cannot be mixed: {} is {other}, and this is not", first.path())))
    };
    let input = |field: Field| match (strings, field.value()) {
        (true, value) if value.is_string() => text(field),
        (true, _) => mixed(field, "a string"),
        (false, value) if value.is_array() => match field.token_ids()? {
            ids if ids.is_empty() => Err(ApiError::empty(&field.path())),
            ids => Ok(tokens(ids)),
        },
        (false, _) => mixed(field, "an array of token ids"),
    };
    Ok(Inputs { inputs: list.map(input).collect::<Result<_, _>>()?, single: false })
}

/// Like [`inputs`], with images: objects with a `text`, an `image` or an `image_url`, alone or mixed with
/// strings (Jina's format, and OpenAI's content parts). With `are_pictures` (Infinity's `modality`), strings
/// are images.
pub(crate) fn pictured(field: Field, inputs_max: usize, are_pictures: bool) -> Result<Inputs, ApiError> {
    let one = |field: Field| match field.value() {
        value if value.is_object() => part(field),
        value if !value.is_string() => {
            Err(field.error("expected a string, or an object with a text or an image"))
        }
        _ if are_pictures => pictures::alone(field).map(picture_input),
        _ => text(field),
    };
    let Some(list) = field.as_list() else {
        if !are_pictures && !field.value().is_object() {
            return inputs(field, inputs_max);
        }
        return Ok(Inputs { inputs: vec![one(field)?], single: true });
    };
    if !are_pictures && !list.clone().any(|field| field.value().is_object()) {
        return inputs(field, inputs_max);
    }
    if list.clone().next().is_none() {
        return Err(ApiError::empty(&field.path()));
    }
    at_most(field, list.clone().count(), inputs_max)?;
    Ok(Inputs { inputs: list.map(one).collect::<Result<_, _>>()?, single: false })
}

fields! {
    /// Text or image of an embedding.
    pub(crate) struct EmbeddingPart<'a> inert [&MEDIA_BOUNDS] {
        ..picture: PictureFields<'a>,
        /// Kind of part, which a content part names too.
        #[expect(dead_code, reason = "only checked")]
        r#type?: &'static str = Words(["text", "image", "image_url"]),
        /// Text.
        text?: String = FILLED,
        /// Image, as a data URI or in base64.
        image?: Field<'a> = Raw("string 1.."),
    }
}

/// Reads a text or an image, by the name of its field.
fn part(field: Field) -> Result<v1::EmbedInput, ApiError> {
    let mut fields = field.object()?;
    let EmbeddingPart { picture, text, image, .. } = EmbeddingPart::read(&mut fields)?;
    let input = match (text, image, picture.image_url) {
        (Some(text), None, None) => {
            picture.none()?;
            text_input(text)
        }
        (None, Some(image), None) => {
            PictureFields { bounds: BoundFields::default(), ..picture }.none()?;
            media_input(pictures::transformers(image, picture.bounds)?, field)?
        }
        (None, None, Some(_)) => media_input(picture.picture(field)?, field)?,
        _ => {
            let problem = "must have a text, or an image, and not both: one vector is made of each";
            return Err(field.error(problem));
        }
    };
    fields.finish()?;
    Ok(input)
}

fn media_input(part: v1::ContentPart, field: Field) -> Result<v1::EmbedInput, ApiError> {
    match part.part {
        Some(Part::Media(media)) => Ok(picture_input(*media)),
        _ => Err(field.error("is no picture")),
    }
}

/// Conversation as an input.
pub(crate) fn conversation(
    messages: Vec<v1::Message>,
    template: TemplateFields<'_>,
) -> Result<Inputs, ApiError> {
    let (chat, _) = template.chat(messages)?;
    // vLLM's default, which differs from that of chats.
    let generation = chat.add_generation_prompt.unwrap_or(false);
    let chat = v1::Chat { add_generation_prompt: Some(generation), ..chat };
    let input = v1::EmbedInput { input: Some(Input::Chat(chat)) };
    Ok(Inputs { inputs: vec![input], single: true })
}

fn picture_input(picture: v1::Media) -> v1::EmbedInput {
    v1::EmbedInput { input: Some(Input::Picture(picture)) }
}

fn text(field: Field) -> Result<v1::EmbedInput, ApiError> {
    Ok(text_input(filled(field)?))
}

/// Text as an input for the engine.
pub(crate) fn text_input(text: String) -> v1::EmbedInput {
    v1::EmbedInput { input: Some(Input::Text(text)) }
}

fields! {
    /// Options of an embedding request that all APIs share.
    pub(crate) struct EmbeddingFields<'a> {
        ..truncation: TruncationFields<'a>,
        ..queue: QueueFields,
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
        /// Number of dimensions that vectors are cut to, where the model allows that.
        dimensions?: u32 = Integer(1..=u32::MAX),
        /// Whether vectors have length 1.
        normalize?: bool,
        /// Infinity's name of normalize.
        normalized?: bool,
        /// llama.cpp's name of normalize: 2 for length 1, -1 for none.
        embd_normalize?: bool = Read("-1 | 2", normalizes),
        /// vLLM's name of normalize, because the activation of a vector is its normalization.
        use_activation?: bool,
        /// Name of one of the model's prompts.
        prompt_name?: String = FILLED,
        /// Jina's name of prompt_name.
        task?: String = FILLED,
        /// Instruction for models that take one.
        instruction?: String = FILLED,
        /// Second name of instruction.
        task_instruction?: String = FILLED,
    }
}

/// Texts or token ids, or a list of either.
pub(crate) const INPUTS: &str =
    "string 1.. | string 1..[1..] | integer 0..4294967295[1..] | integer 0..4294967295[1..][1..]";

impl EmbeddingFields<'_> {
    /// Request without inputs, output and id.
    pub(crate) fn options(self) -> Result<v1::EmbedRequest, ApiError> {
        let truncation = self.truncation.truncation()?;
        let mut normalize = one_of(("normalize", self.normalize), ("normalized", self.normalized))?;
        for (name, named) in
            [("embd_normalize", self.embd_normalize), ("use_activation", self.use_activation)]
        {
            if named.is_some_and(|named| normalize.is_some_and(|normalize| normalize != named)) {
                return Err(ApiError::field(name, "says another thing than normalize"));
            }
            normalize = normalize.or(named);
        }
        let prompt_name = one_of(("prompt_name", self.prompt_name), ("task", self.task))?;
        let called = if self.instruction.is_some() { "instruction" } else { "task_instruction" };
        let instruction =
            one_of(("instruction", self.instruction), ("task_instruction", self.task_instruction))?;
        if instruction.is_some() && prompt_name.is_some() {
            return Err(ApiError::field(called, "cannot be combined with prompt_name"));
        }
        Ok(v1::EmbedRequest {
            model: self.model.unwrap_or_default(),
            dimensions: self.dimensions.unwrap_or(0),
            normalize,
            truncate: truncation.truncate,
            truncate_side: truncation.side.into(),
            prompt_name: prompt_name.unwrap_or_default(),
            instruction: instruction.unwrap_or_default(),
            packed: true,
            priority: self.queue.priority.unwrap_or(0),
            keep_alive: self.queue.keep_alive,
            ..v1::EmbedRequest::default()
        })
    }
}

/// Reads llama.cpp's number of a norm: -1 is none, 2 the Euclidean one.
fn normalizes(field: Field) -> Result<bool, ApiError> {
    match field.value().as_f64() {
        Some(-1.0) => Ok(false),
        Some(2.0) => Ok(true),
        _ => {
            let problem =
                "not supported by this build; the only values it accepts are -1 (none) and 2 (length 1)";
            Err(ApiError::unsupported(&field.path(), problem))
        }
    }
}

/// Client's name of a field of `EmbedRequest`. `input` is the name of the inputs there; `single` means that
/// there is only one.
pub(crate) fn field_name(engine: &str, input: &str, single: bool, sent: &SentFields) -> Option<String> {
    if let Some(chat) = engine.strip_prefix("inputs[0].").filter(|field| field.starts_with("chat")) {
        return sent.name(chat);
    }
    match engine.strip_prefix("inputs") {
        Some(_) if single => Some(input.to_owned()),
        Some(index) => Some(format!("{input}{index}")),
        None if matches!(engine, "text" | "tokens") => Some(input.to_owned()),
        None => sent.name(engine),
    }
}
