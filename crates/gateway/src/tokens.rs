//! `POST /tokenize` and `POST /detokenize`, in the formats of vLLM and llama.cpp.

use std::{convert::Infallible, fmt::Write as _, sync::Arc};

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream;
use hanzo_engine_proto::v1::{self, tokenize_request::Input};
use http::header;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    bodies::{AnswerTurn, Room},
    body::{self, IncomingBody},
    declare::{Declaration as _, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::CHAT_TOOLS_MAX,
    names::SentFields,
    openai::{messages, prompt::TemplateFields},
    request::{model_name, one_of},
};

/// Number of token ids that an answer of `/tokenize` writes at once.
const TOKEN_IDS_PART: usize = 1 << 14;

/// Bytes of a request of `/tokenize` from which on its client waits for its turn. The ids take up to four bytes for
/// each byte of text.
const TOKENIZE_LARGE_BYTES: usize = 1 << 20;

/// Counts the tokens of a chat's prompt. Errors name `messages` as a whole.
pub(crate) async fn count(
    app: &App,
    asker: &Asker,
    model: String,
    mut chat: v1::Chat,
    mut sent: SentFields,
) -> Result<usize, ApiError> {
    app.media_hosts.fetch_chat(&mut chat, app.config.body_bytes_max).await?;
    sent.know_messages_as_one();
    let input = Some(Input::Chat(chat));
    let client = asker.id.client();
    let request = v1::TokenizeRequest { model, input, client, ..v1::TokenizeRequest::default() };
    let answer = app.engine(asker).tokenize(request).await;
    Ok(answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?.ids.len())
}

/// Converts a text or messages to token ids.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let received = body::read(&app, incoming).await?;
    let read = SentFields::beside(|fields, _| tokenize_request(fields));
    let (((mut request, shown), sent), room) = received.into(read).await?;
    request.client = asker.id.client();
    if let Some(Input::Chat(chat)) = &mut request.input {
        app.media_hosts.fetch_chat(chat, app.config.body_bytes_max).await?;
    }
    let turn = match room.bytes() >= TOKENIZE_LARGE_BYTES {
        true => Some(room.answer_turn().await),
        false => None,
    };
    let answer = app.engine(&asker).tokenize(request).await;
    let answer = answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?;
    Ok(match answer.ids.len() {
        0..=TOKEN_IDS_PART => Json(shown.answer(answer)).into_response(),
        _ => shown.in_parts(answer, room, turn)?,
    })
}

/// Converts token ids to text.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, ApiError> {
    let received = body::read(&app, incoming).await?;
    let read = SentFields::beside(|fields, _| detokenize_request(fields));
    let ((mut request, sent), _room) = received.into(read).await?;
    request.client = asker.id.client();
    let answer = app.engine(&asker).detokenize(request).await;
    let answer = answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?;
    // Names of vLLM and llama.cpp.
    Ok(Json(json!({"prompt": answer.text, "content": answer.text})))
}

/// Format of the tokens in an answer of `/tokenize`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TokenFormat {
    Ids,
    /// vLLM's: ids, and a separate list of the tokens' texts.
    Strings,
    /// llama.cpp's: each id with its text.
    Pieces,
}

fields! {
    /// Body of `POST /tokenize`: `prompt` or `messages` as in vLLM, or `content` as in llama.cpp.
    pub(crate) struct TokenizeRequest<'a> {
        ..template if "messages": TemplateFields<'a>,
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
        /// Text.
        prompt?: String,
        /// llama.cpp's name of prompt.
        content?: String,
        /// Tools that the template is shown with the messages.
        tools?: Vec<String> = Read("object[]", tools),
        /// Messages of a conversation, in place of a text.
        messages?: Vec<v1::Message> = Read("ChatMessage[1..]", messages::read),
        /// Whether a text gets the special tokens around it.
        add_special_tokens?: bool,
        /// llama.cpp's name of add_special_tokens.
        add_special?: bool,
        /// Whether a text may contain control tokens.
        parse_special?: bool,
        /// Whether the texts of tokens are sent beside their ids.
        return_token_strs: bool,
        /// Whether each token is sent with its text.
        with_pieces: bool,
    }
}

/// Parses a request of `/tokenize`, and the format of its answer.
pub(crate) fn tokenize_request(mut fields: Fields) -> Result<(v1::TokenizeRequest, TokenFormat), ApiError> {
    let given = TokenizeRequest::read(&mut fields)?;
    fields.finish()?;
    // The defaults of vLLM and llama.cpp differ.
    let default = given.content.is_some().then_some(false);
    let text = one_of(("prompt", given.prompt), ("content", given.content))?;
    let add = one_of(("add_special_tokens", given.add_special_tokens), ("add_special", given.add_special))?;
    let (input, add_special_tokens) = match (text, given.messages.zip(given.template)) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field("messages", "cannot be combined with a text; send one of them"));
        }
        (Some(_), None) if given.tools.is_some() => {
            return Err(ApiError::field("tools", "only allowed with messages"));
        }
        (Some(text), None) => (Input::Text(text), add.or(default)),
        (None, Some(_)) if add == Some(true) => {
            let problem = "not supported with messages: the template says which special tokens there are";
            return Err(ApiError::unsupported("add_special_tokens", problem));
        }
        (None, Some(_)) if given.parse_special.is_some() => {
            return Err(ApiError::field("parse_special", "only allowed with a text"));
        }
        (None, Some((messages, template))) => {
            let (chat, _) = template.chat(messages)?;
            (Input::Chat(v1::Chat { tools_json: given.tools.unwrap_or_default(), ..chat }), None)
        }
        (None, None) => return Err(ApiError::field("messages", "required")),
    };
    let shown = match (given.return_token_strs, given.with_pieces) {
        (true, true) => {
            let problem = "cannot be combined with return_token_strs: tokens are shown in one way";
            return Err(ApiError::field("with_pieces", problem));
        }
        (true, false) => TokenFormat::Strings,
        (false, true) => TokenFormat::Pieces,
        (false, false) => TokenFormat::Ids,
    };
    let request = v1::TokenizeRequest {
        model: given.model.unwrap_or_default(),
        input: Some(input),
        add_special_tokens,
        parse_special: given.parse_special,
        pieces: shown != TokenFormat::Ids,
        ..v1::TokenizeRequest::default()
    };
    Ok((request, shown))
}

/// Reads tools for the chat template, each as received.
fn tools(field: Field) -> Result<Vec<String>, ApiError> {
    let tool = |field: Field| match field.value().is_object() {
        true => Ok(field.value().to_text()),
        false => Err(field.error("expected an object")),
    };
    field.list_up_to(CHAT_TOOLS_MAX, "tools")?.map(tool).collect()
}

/// Answer of `/tokenize`. It is serialised directly, because a JSON value takes eighteen times the memory of an
/// id.
#[derive(Debug, Serialize)]
pub(crate) struct TokenizeAnswer {
    tokens: Tokens,
    count: usize,
    max_model_len: u32,
    prompt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Tokens {
    Ids(Vec<u32>),
    Pieces(Vec<Token>),
}

#[derive(Debug, Serialize)]
struct Token {
    id: u32,
    piece: TokenText,
}

/// Text of a token, or its bytes if it is only a part of a character.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Bytes(Vec<u8>),
}

impl TokenFormat {
    /// Answer of `/tokenize`.
    fn answer(self, answer: v1::TokenizeResponse) -> TokenizeAnswer {
        let v1::TokenizeResponse { ids, text, context_tokens_max, pieces } = answer;
        let strings = || pieces.iter().map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        TokenizeAnswer {
            count: ids.len(),
            max_model_len: context_tokens_max,
            prompt: text,
            token_strs: (self == TokenFormat::Strings).then(strings),
            tokens: match self {
                TokenFormat::Ids | TokenFormat::Strings => Tokens::Ids(ids),
                TokenFormat::Pieces => {
                    let token = |(id, piece)| Token { id, piece: TokenText::of(piece) };
                    Tokens::Pieces(ids.into_iter().zip(&pieces).map(token).collect())
                }
            },
        }
    }
}

impl TokenFormat {
    /// Answer of `/tokenize` with many ids. They are written a part at a time: as one text, they would take more
    /// memory than the ids. The memory of the request is kept until all are sent, so that a client which does not
    /// read takes of its own share.
    fn in_parts(
        self,
        mut answer: v1::TokenizeResponse,
        room: Room,
        turn: Option<AnswerTurn>,
    ) -> Result<Response, ApiError> {
        let ids = match self {
            TokenFormat::Ids | TokenFormat::Strings => std::mem::take(&mut answer.ids),
            // The number of pieces is bounded, and so is their text.
            TokenFormat::Pieces => return Ok(Json(self.answer(answer)).into_response()),
        };
        let rest = TokenizeAnswer { count: ids.len(), ..self.answer(answer) };
        let rest = serde_json::to_string(&rest).map_err(|error| ApiError::internal(&error.to_string()))?;
        let (begin, end) = rest.split_once("[]").unwrap_or_default();
        let (begin, end) = (format!("{begin}["), format!("]{end}"));
        let parts = (0..ids.len()).step_by(TOKEN_IDS_PART).map(move |first| {
            let _held = (&room, &turn);
            let part = &ids[first..ids.len().min(first + TOKEN_IDS_PART)];
            let mut text = String::with_capacity(8 * part.len());
            for (number, id) in part.iter().enumerate() {
                if first + number > 0 {
                    text.push(',');
                }
                // Writing to a string does not fail.
                let _ = write!(text, "{id}");
            }
            text
        });
        let all = std::iter::once(begin).chain(parts).chain(std::iter::once(end));
        let body = Body::from_stream(stream::iter(all.map(Ok::<_, Infallible>)));
        Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
    }
}

impl TokenText {
    fn of(piece: &Bytes) -> TokenText {
        match std::str::from_utf8(piece) {
            Ok(text) => TokenText::Text(text.to_owned()),
            Err(_) => TokenText::Bytes(piece.to_vec()),
        }
    }
}

fields! {
    /// Body of `POST /detokenize`.
    pub(crate) struct DetokenizeRequest {
        /// Tokens, as ids.
        tokens: Vec<u32> = Read("integer 0..4294967295[]", Field::token_ids),
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
        /// Whether special tokens are left out.
        skip_special_tokens: bool,
    }
}

/// Parses a request of `/detokenize`.
pub(crate) fn detokenize_request(mut fields: Fields) -> Result<v1::DetokenizeRequest, ApiError> {
    let DetokenizeRequest { tokens, model, skip_special_tokens } = DetokenizeRequest::read(&mut fields)?;
    fields.finish()?;
    let model = model.unwrap_or_default();
    Ok(v1::DetokenizeRequest { model, ids: tokens, skip_special_tokens, ..v1::DetokenizeRequest::default() })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::bodies::Bodies;

    #[tokio::test]
    async fn many_ids_are_written_in_parts_as_few_are_in_one() {
        let room = || Bodies::new(1 << 20, 1 << 20).room(None);
        for count in [TOKEN_IDS_PART, TOKEN_IDS_PART + 1, 3 * TOKEN_IDS_PART + 7] {
            let answer = || v1::TokenizeResponse {
                ids: (0..count as u32).map(|id| id * 7919 % 151_936).collect(),
                text: "[] said".to_owned(),
                context_tokens_max: 4096,
                pieces: Vec::new(),
            };
            let parts = TokenFormat::Ids.in_parts(answer(), room(), None).unwrap();
            assert_eq!(parts.headers()[header::CONTENT_TYPE], "application/json");
            let written = parts.into_body().collect().await.unwrap().to_bytes();
            assert!(written == serde_json::to_vec(&TokenFormat::Ids.answer(answer())).unwrap());
        }
    }

    #[tokio::test]
    async fn the_memory_and_the_turn_of_the_request_are_kept_until_all_ids_are_sent() {
        let bodies = Bodies::new(2 << 20, 1 << 20);
        let share = bodies.share();
        let (mut room, other) = (bodies.room(Some(share.clone())), bodies.room(Some(share)));
        room.grow(1 << 20, 1 << 20).await;
        let turn = Some(room.answer_turn().await);
        let ids = vec![1; 2 * TOKEN_IDS_PART];
        let answer = v1::TokenizeResponse { ids, ..v1::TokenizeResponse::default() };
        let response = TokenFormat::Ids.in_parts(answer, room, turn).unwrap();
        assert_eq!(bodies.free(), 0);
        let waits = other.answer_turn().now_or_never();
        assert!(waits.is_none(), "the client's next large answer waits");
        bodies.room(Some(bodies.share())).answer_turn().await;
        drop(response);
        assert_eq!(bodies.free(), 1 << 20);
        other.answer_turn().await;
    }
}
