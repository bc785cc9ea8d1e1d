//! Simulated models: decoders with two layers, as small as a file may be. Their weights are meaningless, because
//! the device derives logits from the tokens that it finds in its cache. The models differ in their attention
//! windows.

use std::sync::{Arc, OnceLock};

use hanzo_engine_ops::AnyBackend;
use hanzo_engine_runtime::{
    EngineConfig, Network, OpenedModel,
    decoder::Decoder,
    engine::Engine,
    kv::KvRoom,
    spec::{Mask, TransformerSpec},
};

use super::device::{Faults, Script, ScriptedDevice};
use crate::device::Sides;

/// Size of the vocabulary.
pub(super) const VOCAB: u32 = 40;
/// End-of-text token.
pub(super) const END: u32 = 2;
/// Elements in a hidden state.
pub(super) const HIDDEN: usize = 4;
/// Maximum context length in tokens.
pub(super) const CONTEXT: usize = 1024;

/// Attention window of each of the two layers in tokens, including the token itself; `None` for all.
type Windows = [Option<u32>; 2];
/// The models: with equal layers with and without a window, and with unequal layers.
pub(super) const MODELS: [Windows; 5] =
    [[None, None], [None, Some(5)], [Some(33), None], [Some(16), Some(16)], [Some(40), Some(9)]];

struct SimulatedModel {
    opened: OpenedModel,
    sides: Sides,
}

/// Blocks of a model that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Blocks within their layer's window; others are freed.
    Windows,
    /// All blocks, although layers attend only to their windows.
    Everything,
}

fn model() -> &'static SimulatedModel {
    static MODEL: OnceLock<SimulatedModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let opened = OpenedModel::from_static("simulated", file()).unwrap();
        let text = Arc::new(opened.text_model().unwrap());
        assert_eq!((text.vocab, &text.eos[..]), (VOCAB as usize, &[END][..]));
        let embedder = Arc::new(opened.embedder(&text.tokenizer, CONTEXT).unwrap());
        SimulatedModel { sides: Sides { text, embedder, listener: None, script: None }, opened }
    })
}

fn with_windows(spec: TransformerSpec, windows: Windows) -> TransformerSpec {
    spec.with_layers(|layer, spec| spec.attention.mask = Mask::Causal { window: windows[layer] })
}

/// Number of blocks that a model's sequences hold, in steps with this many rows.
pub(super) fn room(windows: Windows, step_rows: usize) -> KvRoom {
    let SimulatedModel { opened, .. } = model();
    with_windows(opened.decoder().unwrap().spec.clone(), windows).kv_room(step_rows)
}

/// Engine of a model, on a device with this script.
pub(super) fn engine(
    windows: Windows,
    keeps: Keeps,
    config: EngineConfig,
    script: Script,
    faults: Faults,
) -> Engine {
    let sides = &model().sides;
    let mut opened = OpenedModel::from_static("simulated", file()).unwrap();
    let Network::Decoder(files) = &mut opened.network else { unreachable!("the file is a decoder's") };
    files.spec = with_windows(files.spec.clone(), windows);
    if keeps == Keeps::Everything {
        // A window that holds a whole context never frees a block.
        files.spec.context_tokens_max = 1;
    }
    let device = AnyBackend::new(ScriptedDevice::new(script, faults));
    let decoder = Decoder::load(&device, files, &mut |_| ()).unwrap();
    Engine::new(device, decoder, sides.text.clone(), sides.embedder.clone(), config).unwrap()
}

fn file() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(gguf)
}

/// GGUF file of the model (format: github.com/ggml-org/ggml/blob/master/docs/gguf.md).
fn gguf() -> Vec<u8> {
    let mut keys = Keys::default();
    keys.string("general.architecture", "llama");
    keys.string("tokenizer.ggml.model", "gpt2");
    keys.string("tokenizer.ggml.pre", "gpt-2");
    for (key, value) in [
        ("llama.block_count", 2),
        ("llama.context_length", CONTEXT as u32),
        ("llama.embedding_length", HIDDEN as u32),
        ("llama.feed_forward_length", 4),
        ("llama.attention.head_count", 1),
        ("llama.attention.head_count_kv", 1),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", END),
    ] {
        keys.u32(key, value);
    }
    keys.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    keys.tokens();

    let vocab = VOCAB as usize;
    let mut tensors: Vec<(String, Vec<usize>)> =
        vec![("token_embd.weight".into(), vec![HIDDEN, vocab]), ("output_norm.weight".into(), vec![HIDDEN])];
    for layer in 0..2 {
        let square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        tensors.extend(square.map(|name| (format!("blk.{layer}.{name}.weight"), vec![HIDDEN, HIDDEN])));
        tensors.extend(
            ["attn_norm", "ffn_norm"].map(|name| (format!("blk.{layer}.{name}.weight"), vec![HIDDEN])),
        );
    }
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(keys.count.to_le_bytes());
    file.extend(&keys.bytes);
    let mut offset = 0_u64;
    for (name, shape) in &tensors {
        text(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|&size| file.extend((size as u64).to_le_bytes()));
        file.extend(0_u32.to_le_bytes()); // F32
        file.extend(offset.to_le_bytes());
        offset += (shape.iter().product::<usize>() * 4).next_multiple_of(32) as u64;
    }
    file.resize(file.len().next_multiple_of(32) + offset as usize, 0);
    file
}

#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    count: u64,
}

impl Keys {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        text(&mut self.bytes, value);
    }

    fn array(&mut self, key: &str, kind: u32, count: usize) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((count as u64).to_le_bytes());
    }

    /// Words, letters, and the bytes of a three-byte character, whose text is held back until it is complete.
    fn tokens(&mut self) {
        let (ordinary, control) = (1_u32, 3_u32);
        let pieces: Vec<(String, u32)> = (0..VOCAB)
            .map(|id| match id {
                0 => ("<pad>".to_owned(), control),
                1 => ("<s>".to_owned(), control),
                END => ("</s>".to_owned(), control),
                // The bytes of the euro sign and a space, as byte-level tokenizers write them.
                3 => ("â".to_owned(), ordinary),
                4 => ("Ĥ".to_owned(), ordinary),
                5 => ("¬".to_owned(), ordinary),
                6..=20 => (format!("Ġw{}", char::from(b'a' + (id - 6) as u8)), ordinary),
                _ => (char::from(b'a' + (id - 21) as u8).to_string(), ordinary),
            })
            .collect();
        self.array("tokenizer.ggml.tokens", 8, pieces.len());
        pieces.iter().for_each(|(piece, _)| text(&mut self.bytes, piece));
        self.array("tokenizer.ggml.token_type", 5, pieces.len());
        pieces.iter().for_each(|(_, kind)| self.bytes.extend(kind.to_le_bytes()));
        self.array("tokenizer.ggml.merges", 8, 0);
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
