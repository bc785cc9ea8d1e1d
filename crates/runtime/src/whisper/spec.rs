//! Shape of a Whisper model, from a `config.json`.

use hanzo_engine_ops::{HeadShape, StepLimits};

use crate::error::LoadError;
use crate::limits::VOCAB_MAX;
use crate::spec::Config;

/// Maximum layers of a stack; more than any published model has.
const LAYERS_MAX: usize = 128;
/// Maximum of any width.
const WIDTH_MAX: usize = 1 << 16;
/// Maximum bands of a frame.
const MELS_MAX: usize = 512;
/// Maximum rows of the encoder's output.
const FRAMES_MAX: usize = 4_096;
/// Maximum tokens of a context.
const TOKENS_MAX: usize = 4_096;

/// Stack of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Number of layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of an MLP.
    pub ffn: usize,
}

/// Shape of a Whisper model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhisperSpec {
    /// Bands of a frame.
    pub mels: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Encoder.
    pub encoder: Stack,
    /// Decoder.
    pub decoder: Stack,
    /// Rows of the encoder; a window has twice as many frames.
    pub rows: usize,
    /// Tokens of the decoder's context.
    pub tokens: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Whether the output head is its own matrix, not tied to the embedding.
    pub own_head: bool,
}

impl WhisperSpec {
    /// Reads transformers' settings.
    ///
    /// # Errors
    /// [`LoadError`] naming the setting that is missing, invalid or unsupported.
    pub(crate) fn from_config(config: &Config) -> Result<WhisperSpec, LoadError> {
        let stack = |layers, heads, ffn| -> Result<Stack, LoadError> {
            Ok(Stack {
                layers: config.required(layers, LAYERS_MAX)?,
                heads: config.required(heads, WIDTH_MAX)?,
                ffn: config.required(ffn, WIDTH_MAX)?,
            })
        };
        let spec = WhisperSpec {
            mels: config.required("num_mel_bins", MELS_MAX)?,
            hidden: config.required("d_model", WIDTH_MAX)?,
            encoder: stack("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")?,
            decoder: stack("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim")?,
            rows: config.required("max_source_positions", FRAMES_MAX)?,
            tokens: config.required("max_target_positions", TOKENS_MAX)?,
            vocab: config.required("vocab_size", VOCAB_MAX)?,
            own_head: config.bool("tie_word_embeddings")? == Some(false),
        };
        if let Some(activation) = config.string("activation_function")?.filter(|&name| name != "gelu") {
            return Err(config.unsupported("activation_function", activation, "only gelu is known here"));
        }
        for key in ["scale_embedding", "use_weighted_layer_sum"] {
            if config.bool(key)? == Some(true) {
                return Err(config.unsupported(key, true, "no published Whisper has it"));
            }
        }
        spec.check().map_err(|(key, reason)| config.corrupt(key, reason))?;
        Ok(spec)
    }

    /// Checks that sizes without settings are within bounds; returns the key and reason otherwise.
    pub(super) fn check_sizes(&self) -> Result<(), (&'static str, String)> {
        let sizes = [
            ("num_mel_bins", self.mels, MELS_MAX),
            ("d_model", self.hidden, WIDTH_MAX),
            ("encoder_layers", self.encoder.layers, LAYERS_MAX),
            ("encoder_attention_heads", self.encoder.heads, WIDTH_MAX),
            ("encoder_ffn_dim", self.encoder.ffn, WIDTH_MAX),
            ("decoder_layers", self.decoder.layers, LAYERS_MAX),
            ("decoder_attention_heads", self.decoder.heads, WIDTH_MAX),
            ("decoder_ffn_dim", self.decoder.ffn, WIDTH_MAX),
            ("max_source_positions", self.rows, FRAMES_MAX),
            ("max_target_positions", self.tokens, TOKENS_MAX),
            ("vocab_size", self.vocab, VOCAB_MAX),
        ];
        match sizes.into_iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            Some((key, size, most)) => Err((key, format!("{size}; 1 to {most} can be run"))),
            None => Ok(()),
        }
    }

    /// Checks that the shape is supported; returns the key and reason otherwise.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        for (key, stack) in
            [("encoder_attention_heads", self.encoder), ("decoder_attention_heads", self.decoder)]
        {
            if !self.hidden.is_multiple_of(stack.heads) {
                return Err((key, format!("{} heads do not divide {} elements", stack.heads, self.hidden)));
            }
        }
        if self.tokens < 16 {
            return Err(("max_target_positions", format!("{} tokens are no context", self.tokens)));
        }
        Ok(())
    }

    /// Attention heads of a stack.
    pub(super) fn heads(&self, stack: Stack) -> HeadShape {
        HeadShape { heads: stack.heads, kv_heads: stack.heads, head_dim: self.hidden / stack.heads }
    }

    /// Frames of a window.
    pub fn frames(&self) -> usize {
        2 * self.rows
    }

    /// Columns of the first convolution's unfolded input.
    pub(super) fn first_width(&self) -> usize {
        3 * self.mels
    }

    /// Maximum rows of a decoder step: a whole context, and a token of each window.
    pub(super) fn rows_written(&self, windows: usize) -> usize {
        self.tokens + windows
    }

    /// Bounds of the largest step with `windows` windows in progress and `rows` rows in the encoder at once.
    pub(super) fn step_limits(&self, rows: usize, windows: usize) -> StepLimits {
        let (encoder, decoder) = (self.heads(self.encoder), self.heads(self.decoder));
        let width = [self.first_width(), 3 * self.hidden, self.encoder.ffn, self.decoder.ffn];
        StepLimits {
            rows: rows.max(self.rows_written(windows)),
            sequences: windows,
            logit_rows: 2 * windows,
            context: self.rows.max(self.tokens),
            width: width.into_iter().max().unwrap_or(self.hidden),
            vocab: self.vocab,
            heads: HeadShape {
                heads: encoder.heads.max(decoder.heads),
                kv_heads: encoder.heads.min(decoder.heads),
                head_dim: encoder.head_dim.max(decoder.head_dim),
            },
            experts: 0,
            experts_used: 0,
            experts_width: 0,
            kv_groups: 1,
            heads_matmul_width: 0,
        }
    }
}
