//! Size of a load: its context length and KV cache, from the model's limits, the requested options and the free
//! budget. Pure arithmetic; nothing is allocated here.

use hanzo_engine_ops::KvType;
use hanzo_engine_runtime::{
    EncoderConfig, EngineConfig, LoadError, Overrides, ToolFormat, engine::EngineMemory, kv::KvRoom,
    whisper::WhisperConfig,
};

use crate::{
    config::{Devices, EngineSection, GpuLayers, OnDemand},
    limits::{
        CONTEXT_BESIDE_OTHERS, KV_CONTEXTS_DEFAULT, KV_SHARE, KV_TOKENS_MIN, PREFILL_SHARE_BESIDE_DECODES,
        WHISPER_WINDOWS_MAX,
    },
};

/// Requested options of a load; unset ones are chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadOptions {
    /// Maximum context length in tokens, prompt and completion together.
    pub(crate) context_tokens_max: Option<u32>,
    /// Size of the KV cache in bytes.
    pub(crate) kv_bytes: Option<u64>,
    /// Format of tool calls, instead of the chat template's.
    pub(crate) tool_format: Option<ToolFormat>,
    /// Number of pixels that a picture is scaled down to if its request does not say; overrides the daemon's
    /// setting.
    pub(crate) picture_pixels: Option<u64>,
    /// Draft model for speculative decoding.
    pub(crate) draft_model: Option<String>,
    /// Number of its layers on GPUs; overrides the daemon's setting.
    pub(crate) gpu_layers: Option<GpuLayers>,
    /// Subset of the daemon's devices that it may use.
    pub(crate) gpu_devices: Option<Devices>,
    /// Overrides of its files' values.
    pub(crate) overrides: Overrides,
}

/// Chooses the size of a load of `model`, whose context is `model_context` tokens. `free_bytes` has the free memory
/// of its device and of each other device that holds some of its layers. `room` gives the number of blocks that
/// sequences hold in steps of `section.step_tokens_max`, and `memory` the memory of a configuration on each device.
///
/// # Errors
/// [`LoadError::DoesNotFit`] with the numbers of the device that is too small, and what would fit.
pub(crate) fn choose(
    model: &str,
    model_context: usize,
    section: &EngineSection,
    want: LoadOptions,
    free_bytes: &[u64],
    room: &KvRoom,
    memory: impl Fn(&EngineConfig) -> Vec<EngineMemory>,
) -> Result<(EngineConfig, Vec<EngineMemory>), LoadError> {
    let asked = want.context_tokens_max.or(section.context_tokens_max).map(|tokens| tokens as usize);
    let context_most = asked.map_or(model_context, |asked| asked.min(model_context)).max(1);
    let config = |kv_blocks: usize, context: usize| {
        engine_config(section, kv_blocks, context.min(room.tokens_in(kv_blocks)))
    };
    let blocks_of = |tokens: usize| room.blocks_of(tokens.max(1));
    // The cache grows by whole blocks of equal size. Scratch memory is planned for the longest context.
    let [one, two, full] =
        [1, 2, blocks_of(context_most)].map(|blocks| memory(&config(blocks, context_most)));
    let sizes: Vec<DeviceSize> =
        (0..full.len()).map(|device| DeviceSize::new(one[device], two[device], full[device])).collect();
    assert_eq!(sizes.len(), free_bytes.len(), "what is free of each device");
    let [block_bytes, states_bytes] =
        [|size: &DeviceSize| size.block_bytes, |size: &DeviceSize| size.states_bytes]
            .map(|of| sizes.iter().map(of).sum::<u64>());
    let block_bytes = block_bytes.max(1);
    // A requested context must fit as a whole; otherwise a minimum useful context must.
    let blocks_least = blocks_of(match want.context_tokens_max {
        Some(_) => context_most,
        None => context_most.min(KV_TOKENS_MIN),
    });
    let refuse = |blocks: usize, hint: String| {
        let is_short = |device: &usize| sizes[*device].needs(blocks) > free_bytes[*device];
        let short = (0..sizes.len()).find(is_short).unwrap_or(0);
        let size = &sizes[short];
        Err(LoadError::DoesNotFit {
            model: model.to_owned(),
            needed_bytes: size.needs(blocks),
            weights_bytes: full[short].weights_bytes,
            kv_bytes: size.states_bytes + blocks as u64 * size.block_bytes,
            scratch_bytes: full[short].scratch_bytes,
            free_bytes: free_bytes[short],
            hint,
        })
    };
    let room_blocks = sizes.iter().zip(free_bytes).map(|(size, &free)| size.blocks_in(free));
    let room_blocks = room_blocks.min().unwrap_or(0);
    let blocks = match want.kv_bytes.or(section.kv_bytes) {
        Some(bytes) => {
            let blocks = (bytes.saturating_sub(states_bytes) / block_bytes) as usize;
            if blocks < blocks_least {
                let least = states_bytes + blocks_least as u64 * block_bytes;
                return refuse(
                    blocks_least,
                    format!("; kv_bytes is {bytes} and must be at least {least} for this"),
                );
            }
            blocks
        }
        None => default_blocks(section.on_demand, context_most, room_blocks, blocks_of).max(blocks_least),
    };
    if blocks > room_blocks {
        return refuse(blocks, smaller_load(room.tokens_in(room_blocks), section.kv_type));
    }
    let config = config(blocks, context_most);
    let memory = memory(&config);
    Ok((config, memory))
}

/// Configuration of an engine with `kv_blocks` blocks of KV cache.
fn engine_config(section: &EngineSection, kv_blocks: usize, context_tokens_max: usize) -> EngineConfig {
    let (numerator, denominator) = PREFILL_SHARE_BESIDE_DECODES;
    EngineConfig {
        kv_blocks,
        kv_type: section.kv_type,
        kv_resident: section.fixed_memory_bytes.is_some(),
        step_tokens_max: section.step_tokens_max,
        prefill_tokens_beside_decodes: (section.step_tokens_max * numerator / denominator).max(1),
        sequences_max: section.sequences_max,
        context_tokens_max,
        prefix_cache: section.prefix_cache,
        speculation: section.speculation,
    }
}

/// Blocks of the KV cache if no size is set. `room_blocks` fit, and `blocks_of` gives the blocks of a context.
fn default_blocks(
    on_demand: OnDemand,
    context_most: usize,
    room_blocks: usize,
    blocks_of: impl Fn(usize) -> usize,
) -> usize {
    let (numerator, denominator) = KV_SHARE;
    let share = (room_blocks as u64 / denominator * numerator) as usize;
    let plenty = blocks_of(context_most).saturating_mul(KV_CONTEXTS_DEFAULT);
    // Beyond its share the cache may take one full context. If another model may be loaded on demand, only a part of
    // a long context.
    let one = match on_demand {
        OnDemand::Always => blocks_of(context_most.min(CONTEXT_BESIDE_OTHERS)),
        OnDemand::Never => blocks_of(context_most),
    };
    plenty.min(share.max(one.min(room_blocks)))
}

/// Hint for a load that does not fit, from the tokens of context that would.
fn smaller_load(tokens: usize, kv_type: KvType) -> String {
    let mut hint = match tokens {
        0 => {
            "; unload another model, raise the memory budget or load fewer bits (a smaller quantization, or \
              overrides.isq)"
                .to_owned()
        }
        tokens => format!("; a context of {tokens} tokens would fit (context_tokens_max)"),
    };
    if kv_type == KvType::F16 {
        hint.push_str("; a KV cache of q8_0 or fp8 takes about half (engine.kv_type)");
    }
    hint
}

/// Memory of a load on one device.
struct DeviceSize {
    /// Bytes besides the blocks.
    fixed_bytes: u64,
    /// Bytes of a block; 0 if no layer of this device has any.
    block_bytes: u64,
    /// Part of `fixed_bytes` for recurrent states of sequences, which does not depend on the number of blocks.
    states_bytes: u64,
}

impl DeviceSize {
    /// Derives the sizes from the memory of loads with one block, with two, and for the longest context.
    fn new(one: EngineMemory, two: EngineMemory, full: EngineMemory) -> Self {
        let block_bytes = two.kv_bytes.saturating_sub(one.kv_bytes);
        let states_bytes = one.kv_bytes.saturating_sub(block_bytes);
        let fixed_bytes = full.weights_bytes + full.scratch_bytes + states_bytes;
        Self { fixed_bytes, block_bytes, states_bytes }
    }

    /// Memory with this many blocks.
    fn needs(&self, blocks: usize) -> u64 {
        self.fixed_bytes.saturating_add(blocks as u64 * self.block_bytes)
    }

    /// Number of blocks that fit.
    fn blocks_in(&self, free_bytes: u64) -> usize {
        match free_bytes.checked_sub(self.fixed_bytes) {
            None => 0,
            Some(_) if self.block_bytes == 0 => usize::MAX,
            Some(bytes) => (bytes / self.block_bytes) as usize,
        }
    }
}

/// Chooses the size of an encoder's load, whose inputs have at most `input_tokens` tokens, in `free_bytes`.
///
/// # Errors
/// [`LoadError::DoesNotFit`] with the numbers; [`LoadError::Unsupported`] if a KV cache is requested.
pub(crate) fn choose_encoder(
    model: &str,
    input_tokens: usize,
    section: &EngineSection,
    want: LoadOptions,
    free_bytes: u64,
    memory: impl Fn(&EncoderConfig) -> EngineMemory,
) -> Result<(EncoderConfig, EngineMemory), LoadError> {
    if let Some(bytes) = want.kv_bytes {
        return Err(LoadError::Unsupported {
            file: model.to_owned(),
            key: "kv_bytes".into(),
            value: bytes.to_string(),
            reason: "an encoder has no KV cache; leave it out".into(),
        });
    }
    let asked = want.context_tokens_max.or(section.context_tokens_max).map(|tokens| tokens as usize);
    let config = EncoderConfig {
        step_tokens: section.step_tokens_max,
        // Every input has at least one token.
        sequences_max: section.step_tokens_max,
        input_tokens_max: asked.map_or(input_tokens, |asked| asked.min(input_tokens)).max(1),
    };
    let memory = memory(&config);
    if memory.total() <= free_bytes {
        return Ok((config, memory));
    }
    Err(LoadError::DoesNotFit {
        model: model.to_owned(),
        needed_bytes: memory.total(),
        weights_bytes: memory.weights_bytes,
        kv_bytes: 0,
        scratch_bytes: memory.scratch_bytes,
        free_bytes,
        hint: "; unload another model, raise the memory budget or lower context_tokens_max".to_owned(),
    })
}

/// Chooses how many windows a transcription model decodes at once, in `free_bytes`.
///
/// # Errors
/// [`LoadError::DoesNotFit`] with the numbers; [`LoadError::Unsupported`] for options that such a model lacks.
pub(crate) fn choose_whisper(
    model: &str,
    section: &EngineSection,
    want: &LoadOptions,
    free_bytes: u64,
    memory: impl Fn(&WhisperConfig) -> EngineMemory,
) -> Result<(WhisperConfig, EngineMemory), LoadError> {
    let asked = [
        ("kv_bytes", want.kv_bytes.map(|bytes| bytes.to_string())),
        ("context_tokens_max", want.context_tokens_max.map(|tokens| tokens.to_string())),
    ];
    if let Some((key, value)) = asked.into_iter().find_map(|(key, value)| Some((key, value?))) {
        return Err(LoadError::Unsupported {
            file: model.to_owned(),
            key: key.into(),
            value,
            reason: "a model that transcribes hears windows of one length; leave it out".into(),
        });
    }
    let most = section.sequences_max.clamp(1, WHISPER_WINDOWS_MAX);
    // Half of the free memory is left for others, if one window at a time fits in the other half.
    let sizes = (1..=most).rev().map(|windows| WhisperConfig { windows });
    let fits = |share: u64| {
        sizes.clone().map(|config| (config, memory(&config))).find(|(_, memory)| memory.total() <= share)
    };
    if let Some(chosen) = fits(free_bytes / 2).or_else(|| fits(free_bytes)) {
        return Ok(chosen);
    }
    let memory = memory(&WhisperConfig { windows: 1 });
    Err(LoadError::DoesNotFit {
        model: model.to_owned(),
        needed_bytes: memory.total(),
        weights_bytes: memory.weights_bytes,
        kv_bytes: memory.kv_bytes,
        scratch_bytes: memory.scratch_bytes,
        free_bytes,
        hint: "; unload another model or raise the memory budget".to_owned(),
    })
}

/// Checks that a speech model fits.
///
/// # Errors
/// [`LoadError::DoesNotFit`], and errors of options that such a model lacks.
pub(crate) fn fits(
    model: &str,
    want: &LoadOptions,
    free_bytes: u64,
    memory: EngineMemory,
) -> Result<(), LoadError> {
    let asked = [("kv_bytes", want.kv_bytes), ("context_tokens_max", want.context_tokens_max.map(u64::from))];
    if let Some((key, value)) = asked.iter().find_map(|(key, value)| Some((*key, (*value)?))) {
        return Err(LoadError::Unsupported {
            file: model.to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
            reason: "a model that speaks has no context; leave it out".into(),
        });
    }
    if memory.total() <= free_bytes {
        return Ok(());
    }
    Err(LoadError::DoesNotFit {
        model: model.to_owned(),
        needed_bytes: memory.total(),
        weights_bytes: memory.weights_bytes,
        kv_bytes: 0,
        scratch_bytes: memory.scratch_bytes,
        free_bytes,
        hint: "; unload another model or raise the memory budget".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanzo_engine_ops::{BLOCK_TOKENS, KvGroups};

    const WEIGHTS: u64 = 1_000_000;
    const BLOCK: u64 = 1_000;

    fn memory(config: &EngineConfig) -> EngineMemory {
        EngineMemory {
            weights_bytes: WEIGHTS,
            kv_bytes: config.kv_blocks as u64 * BLOCK,
            scratch_bytes: 10_000 + config.context_tokens_max as u64,
        }
    }

    fn on_one(config: &EngineConfig) -> Vec<EngineMemory> {
        vec![memory(config)]
    }

    fn check(context: usize, want: LoadOptions, free: u64) -> Result<(usize, usize), LoadError> {
        let room = KvRoom::new(&KvGroups::default(), 512);
        let (config, memory) = choose("m", context, &EngineSection::default(), want, &[free], &room, on_one)?;
        assert!(memory[0].total() <= free, "{} of {free}", memory[0].total());
        assert!(config.context_tokens_max <= config.kv_blocks * BLOCK_TOKENS);
        Ok((config.context_tokens_max, config.kv_blocks))
    }

    #[test]
    fn with_room_it_holds_several_full_contexts() {
        assert_eq!(check(4096, LoadOptions::default(), 1 << 40).unwrap(), (4096, 8 * 256));
        let want = LoadOptions { context_tokens_max: Some(100), ..LoadOptions::default() };
        assert_eq!(check(4096, want, 1 << 40).unwrap(), (100, 8 * 7));
        let want = LoadOptions { context_tokens_max: Some(100_000), ..LoadOptions::default() };
        assert_eq!(check(4096, want, 1 << 40).unwrap().0, 4096);
    }

    #[test]
    fn windows_make_room_for_longer_contexts() {
        // One group of four has full attention, the others a window of 512 tokens. That is 32 blocks, and another
        // 32 in a step, which may begin and end within a block.
        let groups = KvGroups { windows: vec![None, Some(512), Some(512), Some(512)], places: Vec::new() };
        let room = KvRoom::new(&groups, 512);
        let choose = |want, free| {
            let on_demand = OnDemand::Never;
            let section = EngineSection { step_tokens_max: 512, on_demand, ..EngineSection::default() };
            let (config, memory) = choose("m", 32_768, &section, want, &[free], &room, on_one)?;
            assert!(
                memory[0].total() <= free && room.blocks_of(config.context_tokens_max) <= config.kv_blocks
            );
            Ok::<_, LoadError>((config.context_tokens_max, config.kv_blocks))
        };
        let of_one = 2048 + 3 * (32 + 33);
        assert_eq!(choose(LoadOptions::default(), 1 << 40).unwrap(), (32_768, 8 * of_one));
        // If every group held all tokens, a quarter of that would fit.
        let fixed = WEIGHTS + 10_000 + 32_768;
        let (context, blocks) = choose(LoadOptions::default(), fixed + 1024 * BLOCK).unwrap();
        assert_eq!((context, blocks), ((1024 - 3 * 65) * BLOCK_TOKENS, 1024));
        let want = LoadOptions { context_tokens_max: Some(32_768), ..LoadOptions::default() };
        let LoadError::DoesNotFit { needed_bytes, hint, .. } =
            choose(want, fixed + 1024 * BLOCK).unwrap_err()
        else {
            panic!("it does not fit")
        };
        assert_eq!(needed_bytes, fixed + of_one as u64 * BLOCK);
        assert!(hint.contains(&format!("{context} tokens")), "{hint}");
    }

    #[test]
    fn states_of_sequences_are_counted_beside_blocks() {
        const STATES: u64 = 70 * BLOCK + 7;
        let with_states = |config: &EngineConfig| {
            let plain = memory(config);
            vec![EngineMemory { kv_bytes: plain.kv_bytes + STATES, ..plain }]
        };
        let choose = |want, free| {
            let room = KvRoom::new(&KvGroups::default(), 512);
            let section = EngineSection::default();
            let (config, memory) = choose("m", 32_768, &section, want, &[free], &room, with_states)?;
            assert!(memory[0].total() <= free, "{} of {free}", memory[0].total());
            Ok::<_, LoadError>(config.kv_blocks)
        };
        let fixed = WEIGHTS + 10_000 + 32_768;
        assert_eq!(choose(LoadOptions::default(), fixed + STATES + 300 * BLOCK).unwrap(), 300);
        let LoadError::DoesNotFit { needed_bytes, kv_bytes, .. } =
            choose(LoadOptions::default(), fixed + 150 * BLOCK).unwrap_err()
        else {
            panic!("it does not fit")
        };
        assert_eq!((needed_bytes, kv_bytes), (fixed + STATES + 128 * BLOCK, STATES + 128 * BLOCK));
        let asked = |kv_bytes| LoadOptions { kv_bytes: Some(kv_bytes), ..LoadOptions::default() };
        assert_eq!(choose(asked(STATES + 200 * BLOCK), 1 << 40).unwrap(), 200);
        let refused = choose(asked(STATES + 127 * BLOCK), 1 << 40).unwrap_err().to_string();
        assert!(refused.contains(&format!("at least {}", STATES + 128 * BLOCK)), "{refused}");
    }

    #[test]
    fn with_little_room_the_context_shrinks_down_to_a_least() {
        let fixed = WEIGHTS + 10_000 + 32_768;
        assert_eq!(check(32_768, LoadOptions::default(), fixed + 300 * BLOCK).unwrap(), (4_800, 300));
        assert_eq!(check(32_768, LoadOptions::default(), fixed + 128 * BLOCK).unwrap(), (2_048, 128));
        let error = check(32_768, LoadOptions::default(), fixed + 127 * BLOCK).unwrap_err();
        let LoadError::DoesNotFit { needed_bytes, weights_bytes, kv_bytes, free_bytes, hint, .. } = error
        else {
            panic!("{error}")
        };
        assert_eq!((needed_bytes, weights_bytes, kv_bytes), (fixed + 128 * BLOCK, WEIGHTS, 128 * BLOCK));
        assert_eq!(free_bytes, fixed + 127 * BLOCK);
        assert!(hint.contains("2032 tokens"), "{hint}");
    }

    #[test]
    fn half_is_left_for_another_model_beyond_a_context_of_use() {
        let fixed = WEIGHTS + 10_000 + 131_072;
        // A context of 131,072 tokens takes 8,192 blocks, a context of 8,192 tokens 512.
        let check = |free, on_demand| {
            let room = KvRoom::new(&KvGroups::default(), 512);
            let section = EngineSection { on_demand, ..EngineSection::default() };
            let want = LoadOptions::default();
            choose("m", 131_072, &section, want, &[fixed + free], &room, on_one).unwrap().0.kv_blocks
        };
        assert_eq!(check(4_000 * BLOCK, OnDemand::Always), 2_000);
        assert_eq!(check(800 * BLOCK, OnDemand::Always), 512);
        assert_eq!(check(300 * BLOCK, OnDemand::Always), 300);
        assert_eq!(check(4_000 * BLOCK, OnDemand::Never), 4_000);
    }

    #[test]
    fn what_was_asked_for_is_given_or_refused() {
        let want = LoadOptions { context_tokens_max: Some(16_384), ..LoadOptions::default() };
        assert!(check(32_768, want.clone(), WEIGHTS + 30_000 + 1_024 * BLOCK).is_ok());
        assert!(check(32_768, want, WEIGHTS + 30_000 + 900 * BLOCK).is_err());
        let want = LoadOptions {
            context_tokens_max: None,
            kv_bytes: Some(200 * BLOCK + 1),
            ..LoadOptions::default()
        };
        assert_eq!(check(32_768, want, 1 << 40).unwrap(), (3_200, 200));
        let want =
            LoadOptions { context_tokens_max: None, kv_bytes: Some(10 * BLOCK), ..LoadOptions::default() };
        assert!(check(32_768, want, 1 << 40).unwrap_err().to_string().contains("kv_bytes"));
        assert!(check(100, LoadOptions::default(), 10).unwrap_err().to_string().contains("unload another"));
    }

    #[test]
    fn a_model_on_several_devices_is_as_large_as_the_smallest_room_allows() {
        // Half of the model is on the first device, a quarter on each of the others.
        let shared = |config: &EngineConfig| {
            let of = |share: u64| EngineMemory {
                weights_bytes: WEIGHTS / 4 * share,
                kv_bytes: config.kv_blocks as u64 * BLOCK / 4 * share,
                scratch_bytes: 10_000,
            };
            vec![of(2), of(1), of(1)]
        };
        let choose = |want, free: [u64; 3]| {
            let room = KvRoom::new(&KvGroups::default(), 512);
            let (config, memory) =
                choose("m", 32_768, &EngineSection::default(), want, &free, &room, shared)?;
            assert!(memory.iter().zip(free).all(|(memory, free)| memory.total() <= free));
            Ok::<_, LoadError>(config.kv_blocks)
        };
        let free = |blocks: [u64; 3]| {
            [510_000 + blocks[0] * 500, 260_000 + blocks[1] * 250, 260_000 + blocks[2] * 250]
        };
        for blocks in [[300, 900, 900], [900, 300, 900], [900, 900, 300]] {
            assert_eq!(choose(LoadOptions::default(), free(blocks)).unwrap(), 300);
        }
        for (short, blocks) in [[100, 900, 900], [900, 100, 900], [900, 900, 100]].into_iter().enumerate() {
            let LoadError::DoesNotFit { needed_bytes, free_bytes, .. } =
                choose(LoadOptions::default(), free(blocks)).unwrap_err()
            else {
                panic!("it does not fit")
            };
            assert_eq!((needed_bytes, free_bytes), (free([128; 3])[short], free(blocks)[short]));
        }
        // The requested bytes are the sum over all devices.
        let asked = LoadOptions { kv_bytes: Some(200 * BLOCK), ..LoadOptions::default() };
        assert_eq!(choose(asked, free([900; 3])).unwrap(), 200);
        let nothing_beside = |config: &EngineConfig| {
            vec![memory(config), EngineMemory { weights_bytes: 9, ..EngineMemory::default() }]
        };
        let room = KvRoom::new(&KvGroups::default(), 512);
        let refused = super::choose(
            "m",
            32,
            &EngineSection::default(),
            LoadOptions::default(),
            &[1 << 40, 8],
            &room,
            nothing_beside,
        );
        assert!(matches!(refused, Err(LoadError::DoesNotFit { needed_bytes: 9, free_bytes: 8, .. })));
    }
}
