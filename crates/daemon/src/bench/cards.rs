//! GPUs of a benchmark: the selected ones, and the number of layers on each.

use hanzo_engine_runtime::ModelFiles;

use super::BenchError;
use crate::{
    budget,
    config::DeviceName,
    cpu::Cpu,
    device::Device,
    devices::{OnCard, UsableGpu},
    gpu_layers::{LayerDistribution, SplitMode},
};

/// GPUs that were named; empty for the CPU.
pub(super) fn named(devices: &[DeviceName]) -> Result<Vec<usize>, BenchError> {
    let ordinal = |name: &DeviceName| match *name {
        DeviceName::Cuda(ordinal) => Some(ordinal),
        DeviceName::Cpu => None,
    };
    let cards: Vec<usize> = devices.iter().filter_map(ordinal).collect();
    match cards.len() {
        count if count > 0 && count < devices.len() => Err(BenchError::Args(
            "the processor has the layers that --gpu-layers leaves; name cards alone, or it alone".to_owned(),
        )),
        _ if devices.iter().enumerate().any(|(at, name)| devices[..at].contains(name)) => {
            Err(BenchError::Args("a device is named twice".to_owned()))
        }
        _ => Ok(cards),
    }
}

/// First GPU, together with the devices that share the model, and the free memory of each where known. The other
/// GPUs get layers in proportion to memory, and the CPU the layers that are not on GPUs. In the other split mode
/// all GPUs get a part of each layer.
pub(super) fn sharing(
    found: Vec<UsableGpu>,
    cpu: &Cpu,
    files: &ModelFiles,
    layers: Option<usize>,
    split_mode: SplitMode,
) -> Result<(OnCard, Vec<Option<u64>>), BenchError> {
    let all = files.spec.layers.len();
    let on_cards = layers.map_or(all, |layers| layers.min(all));
    if on_cards == 0 {
        return Err(BenchError::Args("--gpu-layers 0 is --device cpu".to_owned()));
    }
    if on_cards < found.len() {
        let reason = format!("{on_cards} layers are too few for {} cards", found.len());
        return Err(BenchError::Args(reason));
    }
    if split_mode == SplitMode::Row && on_cards < all {
        return Err(BenchError::Args(
            "cards that share rows have all layers: leave out --gpu-layers".to_owned(),
        ));
    }
    let budgets: Vec<u64> = found.iter().map(|card| card.budget_bytes).collect();
    let names = found.iter().map(|card| card.card.name());
    let mut others: Vec<_> = names.zip(parts(on_cards, &budgets)).collect();
    let mut free: Vec<Option<u64>> = budgets.into_iter().map(Some).collect();
    if on_cards < all {
        others.push((DeviceName::Cpu, all - on_cards));
        free.push(budget::default_bytes());
    }
    let mut cards = found.into_iter().map(|found| found.card);
    let card = cards.next().expect("a card was named");
    let card = card.beside(Some(cpu)).beside_cards(cards.collect());
    match &others[1..] {
        [] => Ok((card, free)),
        others if split_mode == SplitMode::Row => {
            let names = others.iter().map(|&(name, _)| name);
            Ok((card.shared(&LayerDistribution::by_rows(files, names)?), free))
        }
        others => Ok((card.shared(&LayerDistribution::of(files, others)?), free)),
    }
}

/// Divides layers in proportion to memory, at least one to each. Needs as many layers as parts.
fn parts(layers: usize, bytes: &[u64]) -> Vec<usize> {
    let total: u128 = bytes.iter().map(|&bytes| u128::from(bytes)).sum();
    let (mut sum, mut given) = (0, 0);
    let part = |(at, &own): (usize, &u64)| {
        sum += u128::from(own);
        let share = (sum * layers as u128 / total.max(1)) as usize;
        let behind = bytes.len() - 1 - at;
        let end = if behind == 0 { layers } else { share.clamp(given + 1, layers - behind) };
        let part = end - given;
        given = end;
        part
    };
    bytes.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_and_share_by_memory() {
        let of = |names: &[&str]| {
            let names: Vec<DeviceName> = names.iter().map(|name| name.parse().unwrap()).collect();
            named(&names).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["cpu"]), Ok(vec![]));
        assert_eq!(of(&["cuda:1", "0"]), Ok(vec![1, 0]));
        assert!(of(&["cuda:0", "cpu"]).unwrap_err().contains("name cards alone"));
        assert!(of(&["cuda", "cuda:0"]).unwrap_err().contains("twice"));

        assert_eq!(parts(28, &[100]), [28]);
        assert_eq!(parts(28, &[100, 100]), [14, 14]);
        assert_eq!(parts(80, &[80 << 30, 40 << 30, 40 << 30]), [40, 20, 20]);
        assert_eq!(parts(3, &[1000, 1, 1]), [1, 1, 1]);
        assert_eq!(parts(5, &[0, 0]), [1, 4]);
    }
}
