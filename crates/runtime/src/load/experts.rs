//! Experts' matrices in other packings than one after the other: gate and up of all experts in one tensor, as halves
//! or alternating, and matrices whose inputs are outermost. Rows are reordered when they are read.

use hanzo_engine_ops::DType;

use super::resolve::Found;
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::spec::{ExpertPack, ExpertsSpec, LayerPart, LayerSpec, MlpSpec, Part, TransformerSpec};
use crate::tensor::Tensor;

/// Minimum of numbers that each expert matrix counts for, because a tensor takes more memory than a number.
const EXPERT_NUMBERS_MIN: usize = 16;

/// Refuses a model whose experts need more numbers than the files hold, before any of them is listed: a few bytes of
/// settings may claim millions of experts.
pub(super) fn check_count(found: &Found<'_>, spec: &TransformerSpec) -> Result<(), LoadError> {
    let of_layer = |layer: &LayerSpec| match &layer.mlp {
        MlpSpec::Experts(experts) => {
            let numbers = |[rows, cols]: [usize; 2]| rows.saturating_mul(cols).max(EXPERT_NUMBERS_MIN);
            let of_each = experts.matrices(spec.hidden).map(|(_, shape)| numbers(shape));
            of_each.fold(0, usize::saturating_add).saturating_mul(experts.count)
        }
        MlpSpec::None | MlpSpec::Dense(_) => 0,
    };
    let wanted = spec.layers.iter().map(of_layer).fold(0, usize::saturating_add);
    let held = found.numbers();
    if wanted <= held {
        return Ok(());
    }
    Err(LoadError::Corrupt {
        file: found.file().to_owned(),
        what: "experts".into(),
        reason: format!(
            "those of its {} layers need {wanted} numbers, and its weights have {held} in all: the settings say more experts than there are, or files are missing",
            spec.layers.len()
        ),
    })
}

/// Unpacks a layer's experts if the file has them packed.
pub(super) fn unpack(
    found: &mut Found<'_>,
    layer: usize,
    experts: &ExpertsSpec,
    hidden: usize,
) -> Result<(), LoadError> {
    let Some(pack) = found.names().experts.pack else { return Ok(()) };
    let name = |stem: &str| found.names().in_layer(found.prefix(), layer, stem);
    let (up_name, down_name) = (name(pack.gate_up), name(pack.down));
    let biases = [format!("{up_name}{}", pack.bias_suffix), format!("{down_name}{}", pack.bias_suffix)];
    let (count, ffn) = (experts.count, experts.ffn);
    let gate_up = [LayerPart::ExpertGate as fn(usize) -> LayerPart, LayerPart::ExpertUp];
    if let Some(whole) = found.take_any(&up_name) {
        let inputs_first = inputs_first(&whole, &pack, [count, hidden, 2 * ffn]);
        whole.check_shape(&if inputs_first { [count, hidden, 2 * ffn] } else { [count, 2 * ffn, hidden] })?;
        for (expert, both) in whole.parts().enumerate() {
            for (half, part) in gate_up.into_iter().enumerate() {
                let tensor = picked(&both, &pack, half, ffn, inputs_first)?;
                found.insert_part(Part::Layer(layer, part(expert)).weight(), tensor, &up_name)?;
            }
        }
    }
    if let Some(whole) = found.take_any(&down_name) {
        let inputs_first = inputs_first(&whole, &pack, [count, ffn, hidden]);
        whole.check_shape(&if inputs_first { [count, ffn, hidden] } else { [count, hidden, ffn] })?;
        for (expert, down) in whole.parts().enumerate() {
            let tensor = if inputs_first { turned(&down, 0, 1, hidden)? } else { down };
            found.insert_part(
                Part::Layer(layer, LayerPart::ExpertDown(expert)).weight(),
                tensor,
                &down_name,
            )?;
        }
    }
    if !experts.expert_bias {
        return Ok(());
    }
    if let Some(whole) = found.take_any(&biases[0]) {
        whole.check_shape(&[count, 2 * ffn])?;
        for (expert, mut both) in whole.parts().enumerate() {
            both.shape = vec![2 * ffn, 1];
            for (half, part) in gate_up.into_iter().enumerate() {
                let mut tensor = picked(&both, &pack, half, ffn, false)?;
                tensor.shape = vec![ffn];
                found.insert_part(Part::Layer(layer, part(expert)).bias(), tensor, &biases[0])?;
            }
        }
    }
    if let Some(whole) = found.take_any(&biases[1]) {
        whole.check_shape(&[count, hidden])?;
        for (expert, tensor) in whole.parts().enumerate() {
            found.insert_part(
                Part::Layer(layer, LayerPart::ExpertDown(expert)).bias(),
                tensor,
                &biases[1],
            )?;
        }
    }
    Ok(())
}

/// Whether a pack's matrices have inputs outermost: its shape is then `turned`. The library saves the matrices of some
/// classes the other way around than their makers.
fn inputs_first(whole: &Tensor, pack: &ExpertPack, turned: [usize; 3]) -> bool {
    let other_way = [turned[0], turned[2], turned[1]];
    let saved_anew = !pack.in_turns && whole.shape != turned && whole.shape == other_way;
    pack.inputs_first && whole.dtype != DType::MXFP4 && !saved_anew
}

/// Selects one of the two matrices, of so many rows, from a packed matrix.
fn picked(
    both: &Tensor,
    pack: &ExpertPack,
    half: usize,
    rows: usize,
    inputs_first: bool,
) -> Result<Tensor, LoadError> {
    let (first, step) = if pack.in_turns { (half, 2) } else { (half * rows, 1) };
    if inputs_first {
        return turned(both, first, step, rows);
    }
    if step == 1 {
        return Ok(both.rows(first..first + rows));
    }
    let row_bytes = both.bytes.len() / both.shape[0];
    let source = both.bytes.clone();
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        // The source of a range of rows is read once.
        let of = range.start * step + first..(range.end - 1) * step + first + 1;
        let Some(bytes) = source.slice(of.start * row_bytes..of.end * row_bytes) else { return };
        let bytes = bytes.read();
        for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            out.copy_from_slice(&bytes[row * step * row_bytes..][..row_bytes]);
        }
    };
    let bytes = ModelBytes::of_rows(rows, row_bytes, vec![both.bytes.clone()], make);
    Ok(Tensor { shape: vec![rows, both.shape[1]], bytes, ..both.clone() })
}

/// Columns `first`, `first + step` and so on of a matrix of floats, as rows.
fn turned(matrix: &Tensor, first: usize, step: usize, rows: usize) -> Result<Tensor, LoadError> {
    let matrix = &matrix.clone().widened();
    let size = match matrix.dtype {
        DType::F32 => 4,
        DType::F16 | DType::BF16 => 2,
        other => {
            return Err(LoadError::Unsupported {
                file: matrix.file.to_string(),
                key: format!("tensor {}", matrix.name),
                value: other.to_string(),
                reason: "experts whose inputs are outermost are F32, F16 or BF16".into(),
            });
        }
    };
    let (inputs, width) = (matrix.shape[0], matrix.shape[1]);
    let source = matrix.bytes.clone();
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        let bytes = source.read();
        for (input, bytes) in bytes.chunks_exact(width * size).enumerate() {
            for (at, row) in range.clone().enumerate() {
                let number = &bytes[(first + row * step) * size..][..size];
                out[(at * inputs + input) * size..][..size].copy_from_slice(number);
            }
        }
    };
    let bytes = ModelBytes::of_rows(rows, inputs * size, vec![matrix.bytes.clone()], make);
    Ok(Tensor { shape: vec![rows, inputs], bytes, ..matrix.clone() })
}
