//! Kokoro's `config.json`.

use std::collections::BTreeMap;

use hanzo_engine_runtime::LoadError;
use serde_json::Value;

/// Settings of a Kokoro model.
#[derive(Clone, Debug)]
pub(crate) struct KokoroConfig {
    /// Size of each half of a style vector.
    pub(crate) style: usize,
    /// Number of layers of the text encoder and of the duration encoder.
    pub(crate) layers: usize,
    pub(crate) text_kernel: usize,
    pub(crate) albert_hidden: usize,
    pub(crate) albert_layers: usize,
    pub(crate) heads: usize,
    /// Maximum tokens of a piece, pads included.
    pub(crate) tokens_max: usize,
    pub(crate) upsample_rates: Vec<usize>,
    pub(crate) upsample_kernels: Vec<usize>,
    pub(crate) block_kernels: Vec<usize>,
    pub(crate) block_dilations: Vec<Vec<usize>>,
    pub(crate) fft: usize,
    pub(crate) hop: usize,
    /// Token of each phoneme, which is one character.
    pub(crate) vocab: BTreeMap<char, u32>,
}

impl KokoroConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// [`LoadError`] naming the key.
    pub(crate) fn read(file: &str, config: &Value) -> Result<KokoroConfig, LoadError> {
        let at = |path: &str| config.pointer(path);
        let wrong = |path: &str, reason: &str| LoadError::Corrupt {
            file: file.to_owned(),
            what: path.trim_start_matches('/').replace('/', "."),
            reason: reason.to_owned(),
        };
        let number = |path: &str| -> Result<usize, LoadError> {
            let value = at(path).and_then(Value::as_u64).filter(|&value| (1..=1 << 16).contains(&value));
            value.map(|value| value as usize).ok_or_else(|| wrong(path, "expected a number above 0"))
        };
        let list = |value: Option<&Value>, path: &str| -> Result<Vec<usize>, LoadError> {
            let numbers = value.and_then(Value::as_array).filter(|list| !list.is_empty() && list.len() <= 16);
            let numbers = numbers.and_then(|list| {
                list.iter()
                    .map(|value| value.as_u64().filter(|v| (1..=4096).contains(v)).map(|v| v as usize))
                    .collect()
            });
            numbers.ok_or_else(|| wrong(path, "expected a list of numbers above 0"))
        };
        let dilations = at("/istftnet/resblock_dilation_sizes").and_then(Value::as_array);
        let block_dilations = dilations
            .ok_or_else(|| wrong("/istftnet/resblock_dilation_sizes", "expected a list of lists"))?
            .iter()
            .map(|value| list(Some(value), "/istftnet/resblock_dilation_sizes"))
            .collect::<Result<Vec<_>, _>>()?;
        let mut vocab = BTreeMap::new();
        let entries = at("/vocab").and_then(Value::as_object).filter(|entries| entries.len() <= 1 << 12);
        for (phoneme, id) in entries.ok_or_else(|| wrong("/vocab", "expected phonemes and their numbers"))? {
            let mut letters = phoneme.chars();
            let (Some(letter), None, Some(id)) = (letters.next(), letters.next(), id.as_u64()) else {
                return Err(wrong("/vocab", "expected phonemes of one character and their numbers"));
            };
            vocab.insert(letter, u32::try_from(id).map_err(|_| wrong("/vocab", "a number is too large"))?);
        }
        let config = KokoroConfig {
            style: number("/style_dim")?,
            layers: number("/n_layer")?,
            text_kernel: number("/text_encoder_kernel_size")?,
            albert_hidden: number("/plbert/hidden_size")?,
            albert_layers: number("/plbert/num_hidden_layers")?,
            heads: number("/plbert/num_attention_heads")?,
            tokens_max: number("/plbert/max_position_embeddings")?.min(crate::nn::PROGRAM_ROWS_MAX),
            upsample_rates: list(at("/istftnet/upsample_rates"), "/istftnet/upsample_rates")?,
            upsample_kernels: list(at("/istftnet/upsample_kernel_sizes"), "/istftnet/upsample_kernel_sizes")?,
            block_kernels: list(at("/istftnet/resblock_kernel_sizes"), "/istftnet/resblock_kernel_sizes")?,
            block_dilations,
            fft: number("/istftnet/gen_istft_n_fft")?,
            hop: number("/istftnet/gen_istft_hop_size")?,
            vocab,
        };
        let kernels = config.upsample_rates.iter().zip(&config.upsample_kernels);
        if config.upsample_rates.len() != config.upsample_kernels.len()
            || config.block_kernels.len() != config.block_dilations.len()
            || kernels.into_iter().any(|(rate, kernel)| kernel < rate || (kernel - rate) % 2 != 0)
        {
            return Err(wrong("/istftnet", "rates, kernels and dilations do not fit each other"));
        }
        if !config.albert_hidden.is_multiple_of(config.heads) {
            return Err(wrong("/plbert/num_attention_heads", "does not divide hidden_size"));
        }
        if !config.fft.is_multiple_of(2) || config.hop > config.fft {
            return Err(wrong(
                "/istftnet/gen_istft_n_fft",
                "expected an even number, no smaller than the hop",
            ));
        }
        Ok(config)
    }

    /// Samples for one frame of pitch.
    pub(crate) fn samples_per_frame(&self) -> usize {
        self.upsample_rates.iter().product::<usize>() * self.hop
    }
}
