//! One embedding request. It is repeated while the daemon has no room. If the daemon refuses an input, the
//! request is split in halves until that input is found.

use crate::connect::{self, Client};
use crate::error::CliError;
use hanzo_engine_proto::v1::{self, embed_input::Input};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// Maximum time that a daemon may be busy or loading.
const PATIENCE: Duration = Duration::from_secs(600);
/// Maximum wait before a retry.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Request that is common to every batch.
#[derive(Clone)]
pub(crate) struct EmbedClient {
    pub(crate) client: Client,
    /// Request without inputs.
    pub(crate) request: v1::EmbedRequest,
    /// Length of each vector.
    pub(crate) dimensions: u32,
}

/// Result of a batch.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    /// Vectors in the order of the inputs: (dimensions) f32, little-endian, or the error.
    pub(crate) each: Vec<Result<Vec<u8>, String>>,
    /// Number of tokens of all inputs.
    pub(crate) tokens: u64,
}

/// Input to embed.
pub(crate) enum EmbedItem {
    Text(String),
    /// Bytes of a picture file.
    Picture(Vec<u8>),
}

impl EmbedItem {
    fn input(&self) -> v1::EmbedInput {
        let input = match self {
            EmbedItem::Text(text) => Input::Text(text.clone()),
            EmbedItem::Picture(data) => {
                Input::Picture(v1::Media { data: data.clone().into(), ..v1::Media::default() })
            }
        };
        v1::EmbedInput { input: Some(input) }
    }
}

impl EmbedClient {
    /// Computes the vectors of all inputs.
    pub(crate) async fn vectors(mut self, asked: Vec<EmbedItem>) -> Result<Vectors, CliError> {
        let mut vectors = Vectors::default();
        let mut left = vec![asked];
        while let Some(mut asked) = left.pop() {
            if asked.is_empty() {
                continue;
            }
            match self.ask(&asked).await {
                Ok(answer) => self.take(answer, asked.len(), &mut vectors)?,
                Err(status) if !is_of_an_input(&status) => return Err(connect::failed(status)),
                Err(status) if asked.len() == 1 => {
                    let why = without_place(status.message()).to_owned();
                    vectors.each.push(Err(why));
                }
                Err(_) => {
                    let second = asked.split_off(asked.len() / 2);
                    left.extend([second, asked]);
                }
            }
        }
        Ok(vectors)
    }

    async fn ask(&mut self, asked: &[EmbedItem]) -> Result<v1::EmbedResponse, Status> {
        let began = Instant::now();
        loop {
            let mut request = self.request.clone();
            request.inputs = asked.iter().map(EmbedItem::input).collect();
            match self.client.embed(request).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => match retry_after(&status) {
                    Some(wait) if began.elapsed() < PATIENCE => tokio::time::sleep(wait).await,
                    _ => return Err(status),
                },
            }
        }
    }

    fn take(&self, answer: v1::EmbedResponse, inputs: usize, vectors: &mut Vectors) -> Result<(), CliError> {
        let bytes = self.dimensions as usize * size_of::<f32>();
        let is_whole = |embedding: &v1::Embedding| embedding.packed.len() == bytes;
        if answer.embeddings.len() != inputs || !answer.embeddings.iter().all(is_whole) {
            return Err(CliError::UnexpectedAnswer(
                "as many vectors as inputs, of the length its model says",
            ));
        }
        for embedding in answer.embeddings {
            vectors.tokens += u64::from(embedding.tokens);
            vectors.each.push(Ok(embedding.packed.to_vec()));
        }
        Ok(())
    }
}

/// Message about an input, without its position in the request.
fn without_place(message: &str) -> &str {
    let rest = message.strip_prefix("inputs");
    let why = rest.filter(|rest| rest.starts_with([':', '['])).and_then(|rest| rest.split_once(": "));
    why.map_or(message, |(_, why)| why)
}

/// Returns true if one of the inputs is at fault: its length, its tokens, or its size, which exceeds a message.
fn is_of_an_input(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument => without_place(status.message()) != status.message(),
        // The transport of an older daemon reports the size this way.
        Code::OutOfRange => true,
        Code::ResourceExhausted => {
            status.metadata().get("error-code").is_some_and(|is| is == "message_too_large")
        }
        _ => false,
    }
}

/// Time to wait before a retry, if the daemon suggests one.
fn retry_after(status: &Status) -> Option<Duration> {
    if !matches!(status.code(), Code::ResourceExhausted | Code::Unavailable) {
        return None;
    }
    let ms = status.metadata().get("retry-after-ms")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(ms).min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_input_is_looked_for_in_halves() {
        let of = |code, message: &str| is_of_an_input(&Status::new(code, message));
        assert!(of(Code::InvalidArgument, "inputs: must not be empty"));
        assert!(of(Code::InvalidArgument, "inputs[3]: must not be empty"));
        assert!(of(Code::OutOfRange, "decoded message length too large"));
        let mut too_large = Status::resource_exhausted("the message is over the limit");
        assert!(!is_of_an_input(&too_large), "a queue, or memory");
        too_large.metadata_mut().insert("error-code", "message_too_large".parse().unwrap());
        assert!(is_of_an_input(&too_large));
        assert!(!of(Code::InvalidArgument, "prompt_name: no prompt of this model"));
        assert!(!of(Code::Unavailable, "inputs: "));
    }

    #[test]
    fn a_daemon_that_has_no_room_is_asked_again_and_one_that_is_gone_is_not() {
        let mut status = Status::resource_exhausted("full");
        assert_eq!(retry_after(&status), None);
        status.metadata_mut().insert("retry-after-ms", "250".parse().unwrap());
        assert_eq!(retry_after(&status), Some(Duration::from_millis(250)));
        status.metadata_mut().insert("retry-after-ms", "60000".parse().unwrap());
        assert_eq!(retry_after(&status), Some(WAIT_MAX));
        assert_eq!(retry_after(&Status::unavailable("transport error")), None);
    }
}
