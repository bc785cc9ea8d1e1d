//! Embedders, rerankers and classifiers without their network: from texts to inputs, and everything after the
//! hidden states.

use std::sync::Arc;

use crate::{
    error::{LoadError, RequestError},
    head::Classifier,
    media::MediaSpan,
    tokenizer::{CutSide, Tokenizer, cut},
};

use super::{
    EmbedInput, EmbeddingSpec, Output, Padding,
    instruction::{DEFAULT_TASK, YesNoPrompt, query_prompt, with_task},
};

/// Task of an embedding model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Dense vectors.
    Embed,
    /// Sparse vectors.
    EmbedSparse,
    /// Score of a query and a document.
    Rerank,
    /// Score for each label.
    Classify,
}

/// Prompt put before a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// Default of the model's files.
    #[default]
    Default,
    /// Named prompt of the model.
    Named(String),
    /// Instruction, written as the model's family does.
    Instruction(String),
}

/// Format of a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairPrompt {
    /// The tokenizer joins the texts.
    Joined,
    /// A yes-or-no question to a decoder.
    YesNo(YesNoPrompt),
    /// The tokenizer would join them with a token type that the network lacks.
    Unfit {
        /// The token type.
        of_type: u32,
        /// Number of token types of the network.
        types: usize,
    },
}

/// Embedder, reranker or classifier without its network.
#[derive(Clone, Debug)]
pub struct Embedder {
    /// Supported tasks.
    pub tasks: Vec<Task>,
    /// Settings of its files.
    pub spec: EmbeddingSpec,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Maximum tokens of an input, special ones included.
    pub tokens_max: usize,
    /// Classifier layers.
    pub classifier: Option<Classifier>,
    /// Format of a pair; `None`: pairs are not supported.
    pub pair: Option<PairPrompt>,
}

impl Embedder {
    /// Elements of its vectors; 0 if it makes none.
    pub fn dimensions(&self) -> usize {
        if self.classifier.is_some() { 0 } else { self.spec.dimensions(self.hidden) }
    }

    /// Makes an input from a text. A text that is too long is refused if `cut_side` is `None`.
    ///
    /// # Errors
    /// [`RequestError`] naming the field.
    pub fn text(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        prompt: &Prompt,
        cut_side: Option<CutSide>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<EmbedInput, RequestError> {
        if text.is_empty() {
            return Err(RequestError::invalid("inputs", "must not be empty"));
        }
        let before = self.prompt(prompt)?;
        let mut whole = [before.as_str(), text].concat();
        if self.spec.lowercase {
            whole = whole.to_lowercase();
        }
        if self.spec.words_alone {
            whole.retain(|letter| !letter.is_ascii_punctuation());
            whole = whole.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        if cut_side.is_none() {
            tokenizer.check_length("inputs", &whole, self.tokens_max, interrupted)?;
        }
        let side = cut_side.unwrap_or_default();
        let (tokens, count) = tokenizer.encode_cut(&whole, self.tokens_max, side, interrupted)?;
        self.check_length(count, cut_side)?;
        let lost = count - tokens.len();
        let (prefix, suffix) = tokenizer.special_around();
        let mut prompt_tokens = 0;
        if !before.is_empty() && (lost > 0 || !self.spec.include_prompt) {
            // sentence-transformers counts the tokens of the prompt alone, without the end token.
            let own = tokenizer.encode(&before, false)?.len();
            let around = prefix + own + suffix;
            if lost > 0 && side == CutSide::Right && around >= self.tokens_max {
                return Err(RequestError::NoRoom { around, tokens_max: self.tokens_max });
            }
            if !self.spec.include_prompt {
                let left = if side == CutSide::Left { own.saturating_sub(lost) } else { own };
                prompt_tokens = prefix + left;
            }
        }
        self.checked(EmbedInput { tokens: self.whole(tokens), prompt_tokens, ..EmbedInput::default() })
    }

    /// Makes an input from tokens, unchanged.
    ///
    /// # Errors
    /// [`RequestError`] naming the field.
    pub fn tokens(&self, tokens: &[u32], cut_side: Option<CutSide>) -> Result<EmbedInput, RequestError> {
        self.check_length(tokens.len(), cut_side)?;
        let tokens = cut(tokens, self.tokens_max, cut_side.unwrap_or_default());
        self.checked(EmbedInput { tokens: self.whole(tokens.to_vec()), ..EmbedInput::default() })
    }

    /// Makes an input from a picture, for a single vector.
    ///
    /// # Errors
    /// [`RequestError`] naming the field.
    pub fn picture(&self, span: MediaSpan, output: Output) -> Result<EmbedInput, RequestError> {
        if !matches!(output, Output::Vector { .. }) {
            let reason = "a picture becomes one vector; there is none for each of its parts";
            return Err(RequestError::invalid("inputs", reason));
        }
        // Its tokens only count its patches.
        Ok(EmbedInput { tokens: vec![0; span.tokens].into(), media: [span].into(), ..EmbedInput::default() })
    }

    /// System prompt for models whose inputs are user messages; `None` for other models.
    ///
    /// # Errors
    /// [`RequestError`] for a prompt that the model does not have.
    pub fn asks(&self, prompt: &Prompt) -> Result<Option<String>, RequestError> {
        match (&self.spec.asks, prompt) {
            (None, _) => Ok(None),
            (Some(own), Prompt::Default) => Ok(Some(own.clone())),
            (Some(_), Prompt::Named(_)) => self.prompt(prompt).map(Some),
            (Some(_), Prompt::Instruction(told)) => Ok(Some(told.clone())),
        }
    }

    /// Makes an input from a conversation's prompt and its media. It is never cut, so one that is too long is
    /// refused.
    ///
    /// # Errors
    /// [`RequestError`] naming the field.
    pub fn chat(&self, tokens: Vec<u32>, media: Vec<MediaSpan>) -> Result<EmbedInput, RequestError> {
        self.check_length(tokens.len(), None)?;
        if media.iter().any(MediaSpan::is_remembered) {
            let reason = "must have no pictures: this model remembers them for answers alone";
            return Err(RequestError::invalid("messages", reason));
        }
        self.checked(EmbedInput { tokens: tokens.into(), media: media.into(), ..EmbedInput::default() })
    }

    /// Tokens as the network takes them: cut after the end token, and padded to the length that it was trained
    /// with.
    fn whole(&self, mut tokens: Vec<u32>) -> Arc<[u32]> {
        if let Some(end) = self.spec.end.and_then(|end| tokens.iter().position(|&token| token == end)) {
            tokens.truncate(end + 1);
        }
        if let Some(Padding { tokens: length, token, .. }) = &self.spec.padding
            && !tokens.is_empty()
        {
            tokens.resize(tokens.len().max(*length), *token);
        }
        tokens.into()
    }

    /// Makes an input from a pair of texts. `task` tells a decoder what the query is for.
    ///
    /// # Errors
    /// [`RequestError`] naming the field.
    pub fn pair(
        &self,
        tokenizer: &Tokenizer,
        first: &str,
        second: &str,
        task: Option<&str>,
        cut_side: Option<CutSide>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<EmbedInput, RequestError> {
        let (tokens, types, count) = match &self.pair {
            Some(PairPrompt::YesNo(prompt)) => {
                if cut_side == Some(CutSide::Left) {
                    let problem =
                        "left is not what this model's texts can be cut at: what it is asked stands there";
                    return Err(RequestError::invalid("truncate_side", problem));
                }
                let task = task.unwrap_or(DEFAULT_TASK);
                let (tokens, count) =
                    prompt.tokens(tokenizer, task, first, second, self.tokens_max, interrupted)?;
                (tokens, Vec::new(), count)
            }
            Some(PairPrompt::Joined) => {
                if task.is_some() {
                    return Err(RequestError::invalid("instruction", "is none of what this model takes"));
                }
                let side = cut_side.unwrap_or_default();
                let pair = tokenizer.encode_pair(first, second, self.tokens_max, side, interrupted)?;
                let pair =
                    pair.ok_or_else(|| RequestError::invalid("inputs", "this model takes no pairs"))?;
                (pair.tokens, pair.types, pair.tokens_uncut)
            }
            Some(PairPrompt::Unfit { of_type, types }) => {
                let reason = format!(
                    "this model takes no pairs of texts: its tokenizer gives them token type {of_type}, and its network \
                     knows {types}"
                );
                return Err(RequestError::invalid("inputs", reason));
            }
            None => return Err(RequestError::invalid("inputs", "this model takes no pairs of texts")),
        };
        self.check_length(count, cut_side)?;
        self.checked(EmbedInput { tokens: tokens.into(), types, ..EmbedInput::default() })
    }

    /// Text put before an input.
    fn prompt(&self, prompt: &Prompt) -> Result<String, RequestError> {
        let prompts = &self.spec.prompts;
        match prompt {
            Prompt::Default => {
                let by_default = self.spec.default_prompt.as_ref().and_then(|name| prompts.get(name));
                Ok(by_default.cloned().unwrap_or_default())
            }
            Prompt::Named(name) => prompts.get(name).cloned().ok_or_else(|| {
                let known: Vec<&str> = prompts.keys().map(String::as_str).collect();
                let known = if known.is_empty() {
                    "has none".to_owned()
                } else {
                    format!("has {}", known.join(", "))
                };
                RequestError::invalid("prompt_name", format!("no prompt of this model; it {known}"))
            }),
            Prompt::Instruction(task) => {
                let told = prompts.values().find_map(|prompt| with_task(prompt, task));
                told.ok_or_else(|| {
                    RequestError::invalid(
                        "instruction",
                        "this model takes none; its prompts are chosen by prompt_name",
                    )
                })
            }
        }
    }

    fn check_length(&self, tokens: usize, cut_side: Option<CutSide>) -> Result<(), RequestError> {
        if cut_side.is_none() && tokens > self.tokens_max {
            return Err(RequestError::InputLength { tokens, tokens_max: self.tokens_max });
        }
        Ok(())
    }

    fn checked(&self, input: EmbedInput) -> Result<EmbedInput, RequestError> {
        if input.tokens.is_empty() {
            return Err(RequestError::invalid("inputs", "must have at least one token"));
        }
        if input.tokens.len() > self.tokens_max {
            return Err(RequestError::InputLength {
                tokens: input.tokens.len(),
                tokens_max: self.tokens_max,
            });
        }
        match input.tokens.iter().find(|&&token| token as usize >= self.vocab) {
            Some(token) => {
                let reason = format!("token {token} is not below the vocabulary's {}", self.vocab);
                Err(RequestError::invalid("inputs", reason))
            }
            None => Ok(input),
        }
    }
}

impl EmbeddingSpec {
    /// Adds the prompts that Qwen3's embedders are published with, if the files bring none.
    pub(crate) fn add_query_prompt(&mut self) {
        if self.prompts.is_empty() {
            self.prompts.insert("query".to_owned(), query_prompt(DEFAULT_TASK));
            self.prompts.insert("document".to_owned(), String::new());
        }
    }
}

/// Question format of a reranker that is a decoder, in its own tokens.
///
/// # Errors
/// If the tokenizer cannot read it.
pub(crate) fn yes_no(tokenizer: &Tokenizer, file: &str) -> Result<PairPrompt, LoadError> {
    YesNoPrompt::new(tokenizer).map(PairPrompt::YesNo).map_err(|error| LoadError::Corrupt {
        file: file.to_owned(),
        what: "tokenizer".into(),
        reason: error.to_string(),
    })
}
