//! SmolLM3: Llama without rotation in each fourth layer.

use super::*;

pub(super) const SMOLLM3: Family = Family {
    title: "SmolLM3",
    hugging_face: &[ModelType {
        name: "smollm3",
        class: "SmolLM3ForCausalLM",
        rope_base: 2e6,
        tied: true,
        own: smollm3,
        refused: &["mlp_bias", "use_sliding_window"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "smollm3",
        permuted: true,
        rope: RopeKind::Interleaved,
        turns: Turns::AllButEach(4),
        ..Architecture::DENSE
    }],
    goldens: &["dense/smollm3"],
    ..Family::NONE
};

fn smollm3(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    const LIST: &str = "no_rope_layers";
    let count = spec.layers.len();
    let turned: Vec<bool> = match config.get(LIST).and_then(Value::as_array).filter(|list| !list.is_empty()) {
        Some(list) if list.len() == count => list.iter().map(|value| value.as_u64() == Some(1)).collect(),
        Some(list) => {
            return Err(config.corrupt(LIST, format!("{} numbers for {count} layers", list.len())));
        }
        None => {
            let each = config.count("no_rope_layer_interval", LAYERS_MAX)?.unwrap_or(4);
            (1..=count).map(|layer| !layer.is_multiple_of(each)).collect()
        }
    };
    for (layer, turned) in spec.layers.iter_mut().zip(turned) {
        layer.attention.rope = turned.then_some(0);
    }
    Ok(())
}
