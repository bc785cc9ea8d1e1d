//! `POST /v2/embed`: Cohere's embeddings of texts, of images, and of inputs that mix both. An answer contains
//! every requested number type, so it is built as a whole; its inputs are few.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::TryStreamExt as _;
use hanzo_engine_proto::v1::{
    self, Capability, EmbedOutput, TruncateSide, content_part::Part, embed_input::Input,
};
use serde::Serialize;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    declare::{Declaration as _, Integer, Natural as _, Raw, Read, Words, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::COHERE_INPUTS_MAX,
    names::SentFields,
    pictures::{self, PictureFields},
    request::{filled, model_name},
    request_id::random_id,
    select::select,
    unsupported::{COHERE, HARMLESS, MEDIA_BOUNDS},
    vectors::{
        calls::{Caller, TokensRead},
        inputs::text_input,
    },
};

/// Parsed request.
#[derive(Debug)]
pub(crate) struct CohereTask {
    /// Without inputs and id; the model is empty if none is named.
    request: v1::EmbedRequest,
    inputs: Vec<v1::EmbedInput>,
    /// Name of the inputs' field: `texts`, `images` or `inputs`.
    called: &'static str,
    /// Prompt names. The first one that the model has is put before texts.
    prompts: &'static [&'static str],
    /// The texts, if all inputs are texts.
    texts: Option<Vec<String>>,
    kinds: Kinds,
}

/// Requested number types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    float: bool,
    base64: bool,
    binary: bool,
    ubinary: bool,
}

/// Values of `input_type`, and the prompt names that models use for them.
const PROMPTS: [(&str, &[&str]); 5] = [
    ("search_query", &["search_query", "query", "retrieval.query"]),
    ("search_document", &["search_document", "document", "passage", "retrieval.passage"]),
    ("classification", &["classification"]),
    ("clustering", &["clustering", "separation"]),
    ("image", &[]),
];

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let received = body::read(&app, incoming).await?;
    let ((asked, sent), room) = received.into(SentFields::beside(request)).await?;
    let CohereTask { mut request, mut inputs, called, prompts, texts, kinds } = asked;
    request.model = select(&app, &asker, request.model, &[Capability::Embed]).await?.model;
    if !prompts.is_empty() {
        request.prompt_name = prompt_of(&app, &asker, &request.model, prompts).await?;
    }
    app.media_hosts.fetch_inputs(&mut inputs, app.config.body_bytes_max).await?;
    let images = inputs.iter().map(pictures_in).sum();
    let name = move |field: &str| match field.strip_prefix("inputs") {
        Some(index) => Some(format!("{called}{}", index.split(".chat").next().unwrap_or_default())),
        None if field == "dimensions" => Some("output_dimension".to_owned()),
        None => sent.name(field),
    };
    let mut answers = Caller::new(&app, &asker, room).embed(request, inputs, name);
    let (mut vectors, mut spent) = (Vec::new(), TokensRead::default());
    while let Some(answer) = answers.try_next().await? {
        spent.add(answer.prompt_tokens, answer.model);
        vectors.extend(answer.embeddings.into_iter().map(|embedding| embedding.packed));
    }
    let every = |wanted: bool| wanted.then_some(&vectors[..]);
    let answer = Answer {
        id: random_id(),
        embeddings: Embeddings {
            float: every(kinds.float).map(|of| of.iter().map(|packed| numbers(packed).collect()).collect()),
            base64: every(kinds.base64).map(|of| of.iter().map(|packed| STANDARD.encode(packed)).collect()),
            binary: every(kinds.binary).map(|of| of.iter().map(|packed| signed(packed)).collect()),
            ubinary: every(kinds.ubinary).map(|of| of.iter().map(|packed| signs(packed)).collect()),
        },
        texts,
        meta: Meta {
            api_version: ApiVersion { version: "2" },
            billed_units: BilledUnits { input_tokens: spent.prompt_tokens, images },
        },
        response_type: "embeddings_by_type",
    };
    Ok(Json(answer).into_response())
}

/// First of these prompts that a model has. Empty: it has none, so it does not distinguish the purposes of
/// texts. The prompts are known only of a loaded model, so another one is loaded by a first call.
async fn prompt_of(app: &App, asker: &Asker, model: &str, prompts: &[&str]) -> Result<String, ApiError> {
    let mut engine = app.engine(asker);
    let status = match engine.show(model.to_owned()).await {
        Ok(shown) if shown.status.is_some() => shown.status,
        _ => {
            let inputs = vec![text_input("a".to_owned())];
            let request = v1::EmbedRequest { model: model.to_owned(), inputs, ..v1::EmbedRequest::default() };
            let model = engine.embed(request, None).await?.model;
            engine.show(model).await?.status
        }
    };
    let names = status.and_then(|status| status.embedder).unwrap_or_default().prompt_names;
    let known = prompts.iter().find(|prompt| names.iter().any(|name| name == *prompt));
    Ok(known.map(|known| (*known).to_owned()).unwrap_or_default())
}

fields! {
    /// Body of `POST /v2/embed`.
    pub(crate) struct CohereEmbedRequest<'a> inert [&COHERE, &HARMLESS] {
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
        /// Texts, at most 96. Images or inputs may stand in place of them.
        texts?: Field<'a> = Raw("string 1..[1..]"),
        /// Images, as data URIs.
        images?: Field<'a> = Raw("string 1..[1..]"),
        /// Inputs that become one vector each: a text, an image, or both, of models that take conversations.
        inputs?: Field<'a> = Raw("CohereInput[1..]"),
        /// Purpose of the texts: the model's prompt of that name is put before them, where it has one.
        input_type?: &'static str = Words(PROMPTS.map(|(word, _)| word)),
        /// Formats of the vectors: float, base64, binary or ubinary; float if absent. int8 and uint8 are refused.
        embedding_types?: Kinds = Read("string[1..]", kinds),
        /// Number of dimensions that vectors are cut to, where the model allows that.
        output_dimension?: u32 = Integer(1..=u32::MAX),
        /// End at which texts that are too long are cut; END if absent. NONE refuses them.
        truncate?: &'static str = Words(["NONE", "START", "END"]),
        /// Priority in the queue; lower runs earlier.
        priority?: i32 = Integer(i32::MIN..=i32::MAX),
    }
}

fields! {
    /// Input that becomes one vector.
    pub(crate) struct CohereInput<'a> {
        /// Parts of the input.
        content: Field<'a> = Raw("CohereContent[1..]"),
    }
}

fields! {
    /// Text or image of an input.
    pub(crate) struct CohereContent<'a> inert [&MEDIA_BOUNDS] {
        ..picture: PictureFields<'a>,
        /// Kind of part.
        r#type: &'static str = Words(["text", "image_url"]),
        /// Text.
        text?: Field<'a> = Raw("string 1.."),
    }
}

/// Parses a request.
pub(crate) fn request(mut fields: Fields<'_>, config: &Config) -> Result<CohereTask, ApiError> {
    let asked = CohereEmbedRequest::read(&mut fields)?;
    fields.finish()?;
    let most = config.embedding_inputs_max.min(COHERE_INPUTS_MAX);
    let given = [("texts", asked.texts), ("images", asked.images), ("inputs", asked.inputs)];
    let mut given = given.into_iter().filter_map(|(name, field)| Some((name, field?)));
    let (called, field) = match (given.next(), given.next()) {
        (None, _) => return Err(ApiError::field("texts", "required, or images, or inputs")),
        (Some(one), None) => one,
        (Some((first, _)), Some((second, _))) => {
            let problem = format!("cannot be combined with {first}: send one of them");
            return Err(ApiError::field(second, problem));
        }
    };
    let list = field.list()?;
    match list.clone().count() {
        0 => return Err(ApiError::empty(&field.path())),
        count if count > most => {
            return Err(field.error(format!("has {count} elements, at most {most}")));
        }
        _ => {}
    }
    let mut texts = None;
    let inputs: Vec<v1::EmbedInput> = match called {
        "texts" => {
            let all = list.map(filled).collect::<Result<Vec<String>, _>>()?;
            texts = Some(all.clone());
            all.into_iter().map(text_input).collect()
        }
        "images" => list.map(|field| pictures::alone(field).map(picture)).collect::<Result<_, _>>()?,
        _ => list.map(input).collect::<Result<_, _>>()?,
    };
    let prompts = asked.input_type.and_then(|wanted| PROMPTS.iter().find(|(word, _)| *word == wanted));
    let are_texts = inputs.iter().all(|input| matches!(input.input, Some(Input::Text(_))));
    let kinds = asked.embedding_types.unwrap_or(Kinds { float: true, ..Kinds::default() });
    // By default, Cohere truncates.
    let cut = asked.truncate;
    let side = if cut == Some("START") { TruncateSide::Left } else { TruncateSide::Right };
    let request = v1::EmbedRequest {
        model: asked.model.unwrap_or_default(),
        output: EmbedOutput::Pooled.into(),
        dimensions: asked.output_dimension.unwrap_or(0),
        truncate: cut != Some("NONE"),
        truncate_side: side.into(),
        packed: true,
        priority: asked.priority.unwrap_or(0),
        ..v1::EmbedRequest::default()
    };
    let prompts = prompts.filter(|_| are_texts).map_or(&[][..], |(_, prompts)| prompts);
    Ok(CohereTask { request, inputs, called, prompts, texts, kinds })
}

fn kinds(field: Field) -> Result<Kinds, ApiError> {
    const UNKNOWN: &str = "not supported by this build: which numbers a byte stands for is known of one maker's models alone; take float, \
                           base64, binary or ubinary";
    let mut kinds = Kinds::default();
    for field in field.list()? {
        match field.word(&["float", "base64", "binary", "ubinary", "int8", "uint8"])? {
            "float" => kinds.float = true,
            "base64" => kinds.base64 = true,
            "binary" => kinds.binary = true,
            "ubinary" => kinds.ubinary = true,
            _ => return Err(ApiError::unsupported(&field.path(), UNKNOWN)),
        }
    }
    match kinds == Kinds::default() {
        true => Err(ApiError::empty(&field.path())),
        false => Ok(kinds),
    }
}

/// Reads an input for one vector: a text, an image, or several parts like those of a user message.
fn input(field: Field) -> Result<v1::EmbedInput, ApiError> {
    let content = CohereInput::of(field)?.content;
    let mut parts = Vec::new();
    for field in content.list()? {
        let CohereContent { picture, r#type, text } = CohereContent::of(field)?;
        parts.push(match r#type {
            "text" => {
                picture.none()?;
                v1::ContentPart { part: Some(Part::Text(filled(pictures::given(text, field, "text")?)?)) }
            }
            _ => match text {
                Some(text) => return Err(text.error("only allowed with type text")),
                None => picture.picture(field)?,
            },
        });
    }
    let input = match &mut parts[..] {
        [] => return Err(ApiError::empty(&content.path())),
        [v1::ContentPart { part: Some(Part::Text(text)) }] => Input::Text(std::mem::take(text)),
        [v1::ContentPart { part: Some(Part::Media(media)) }] => Input::Picture(std::mem::take(&mut **media)),
        _ => {
            let message = v1::Message { role: "user".to_owned(), content: parts, ..v1::Message::default() };
            let chat = v1::Chat {
                messages: vec![message],
                add_generation_prompt: Some(false),
                ..v1::Chat::default()
            };
            Input::Chat(chat)
        }
    };
    Ok(v1::EmbedInput { input: Some(input) })
}

fn picture(media: v1::Media) -> v1::EmbedInput {
    v1::EmbedInput { input: Some(Input::Picture(media)) }
}

fn pictures_in(input: &v1::EmbedInput) -> usize {
    let in_chat = |chat: &v1::Chat| {
        let parts = chat.messages.iter().flat_map(|message| &message.content);
        parts.filter(|part| matches!(part.part, Some(Part::Media(_)))).count()
    };
    match &input.input {
        Some(Input::Picture(_)) => 1,
        Some(Input::Chat(chat)) => in_chat(chat),
        _ => 0,
    }
}

fn numbers(packed: &[u8]) -> impl Iterator<Item = f32> {
    packed.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// Signs of the numbers, eight to a byte, the highest bit first; 1 means above 0.
fn signs(packed: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = numbers(packed).map(|number| u8::from(number > 0.0)).collect();
    let byte = |bits: &[u8]| (0..8).fold(0, |byte, at| byte << 1 | bits.get(at).copied().unwrap_or(0));
    bits.chunks(8).map(byte).collect()
}

/// Signs as in [`signs`], with 128 subtracted from each byte.
fn signed(packed: &[u8]) -> Vec<i8> {
    signs(packed).into_iter().map(|byte| (i16::from(byte) - 128) as i8).collect()
}

#[derive(Serialize)]
struct Answer {
    id: String,
    embeddings: Embeddings,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<String>>,
    meta: Meta,
    response_type: &'static str,
}

#[derive(Serialize)]
struct Embeddings {
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<Vec<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ubinary: Option<Vec<Vec<u8>>>,
}

#[derive(Serialize)]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
}

#[derive(Serialize)]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize)]
struct BilledUnits {
    input_tokens: u64,
    images: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_bits_the_first_the_highest() {
        let packed = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_le_bytes()).collect() };
        let nine = packed(&[1.0, -1.0, 0.0, 2.0, -0.5, -0.5, -0.5, 0.1, 3.0]);
        assert_eq!(signs(&nine), [0b1001_0001, 0b1000_0000]);
        assert_eq!(signed(&nine), [17, 0]);
    }
}
