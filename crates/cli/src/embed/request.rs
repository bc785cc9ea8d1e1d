//! One request for vectors: sent again while the daemon has no room, and cut in halves where it refuses an input, until
//! it is known which.

use crate::connect::{self, Client};
use crate::error::CliError;
use hanzo_engine_proto::v1::{self, embed_input::Input};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// How long a daemon may have no room, or be loading, before that is an error.
const PATIENCE: Duration = Duration::from_secs(600);
/// Longest wait before asking again.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// What is asked of every batch.
#[derive(Clone)]
pub(crate) struct EmbedClient {
    pub(crate) client: Client,
    /// Without inputs.
    pub(crate) request: v1::EmbedRequest,
    /// Of each vector.
    pub(crate) dimensions: u32,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    /// In the order of the inputs: (dimensions) f32, little-endian, or why there is none.
    pub(crate) each: Vec<Result<Vec<u8>, String>>,
    /// Of all inputs.
    pub(crate) tokens: u64,
}

/// What becomes a vector.
pub(crate) enum Asked {
    Text(String),
    /// A file's bytes.
    Picture(Vec<u8>),
}

impl Asked {
    fn input(&self) -> v1::EmbedInput {
        let input = match self {
            Asked::Text(text) => Input::Text(text.clone()),
            Asked::Picture(data) => {
                Input::Picture(v1::Media { data: data.clone().into(), ..v1::Media::default() })
            }
        };
        v1::EmbedInput { input: Some(input) }
    }
}

impl EmbedClient {
    /// Vectors of all that is asked for.
    pub(crate) async fn vectors(mut self, asked: Vec<Asked>) -> Result<Vectors, CliError> {
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

    async fn ask(&mut self, asked: &[Asked]) -> Result<v1::EmbedResponse, Status> {
        let began = Instant::now();
        loop {
            let mut request = self.request.clone();
            request.inputs = asked.iter().map(Asked::input).collect();
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

/// What is wrong with an input, without its place in the request.
fn without_place(message: &str) -> &str {
    let rest = message.strip_prefix("inputs");
    let why = rest.filter(|rest| rest.starts_with([':', '['])).and_then(|rest| rest.split_once(": "));
    why.map_or(message, |(_, why)| why)
}

/// Whether one of the inputs is at fault: its length, its tokens, or its bytes, which are more than a message may have.
fn is_of_an_input(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument => without_place(status.message()) != status.message(),
        // An older daemon's transport says so itself.
        Code::OutOfRange => true,
        Code::ResourceExhausted => {
            status.metadata().get("error-code").is_some_and(|is| is == "message_too_large")
        }
        _ => false,
    }
}

/// When to ask again, where the daemon says that it helps.
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
