//! Renumbering of layers. Some files number attention or a state, and MLPs, as separate layers (Nemotron-H); their
//! tensors get the names of layers with both. Others give one number to a state and the attention parallel to it
//! (Falcon-H1), which are two layers here.

use super::resolve::Found;
use crate::spec::{NormOrder, TransformerSpec};

/// Renumbers all tensors of layers to the layers that they belong to.
pub(super) fn join(found: &mut Found<'_>, spec: &TransformerSpec) {
    let (names, prefix) = (found.names(), found.prefix());
    let start = format!("{prefix}{}", names.layer);
    let own_norm = format!("{}.weight", names.attention_norm);
    if spec.layers.iter().any(|layer| layer.order == NormOrder::Beside) {
        return found.rename(|name| {
            let (number, rest) = name.strip_prefix(&start)?.split_once('.')?;
            let number: usize = number.parse().ok().filter(|number| *number < spec.layers.len())?;
            // The converter omits the suffix of its own name.
            let bare = rest == names.mlp_norm;
            let rest = if bare { format!("{rest}.weight") } else { rest.to_owned() };
            Some(names.in_layer(prefix, 2 * number + usize::from(!is_state(&rest, &own_norm)), &rest))
        });
    }
    if !names.halves_apart {
        return;
    }
    // For each number in the file its layer, and whether it is the layer's MLP.
    let halves = spec.layers.iter().enumerate().flat_map(|(layer, of)| {
        let mlp = (!of.mlp.is_none()).then_some((layer, true));
        [Some((layer, false)), mlp].into_iter().flatten()
    });
    let halves: Vec<(usize, bool)> = halves.collect();
    found.rename(|name| {
        let (number, rest) = name.strip_prefix(&start)?.split_once('.')?;
        let (layer, is_mlp) = placed(&halves, spec.layers.len(), number.parse().ok()?);
        let rest =
            if is_mlp && rest == own_norm { format!("{}.weight", names.mlp_norm) } else { rest.to_owned() };
        Some(names.in_layer(prefix, layer, &rest))
    });
}

/// Whether a tensor of a layer belongs to its state, or is the norm before state and attention.
fn is_state(rest: &str, norm: &str) -> bool {
    rest.starts_with("mamba.") || rest.starts_with("ssm_") || rest == norm
}

/// Layer of a number in the file, and whether it is the layer's MLP. Layers after the last, which predict several
/// tokens at once, stay after the last.
fn placed(halves: &[(usize, bool)], layers: usize, number: usize) -> (usize, bool) {
    halves.get(number).copied().unwrap_or((layers + number.saturating_sub(halves.len()), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_the_last_half_is_behind_the_last_layer() {
        let halves = [(0, false), (0, true), (1, false)];
        let found: Vec<(usize, bool)> = (0..5).map(|number| placed(&halves, 2, number)).collect();
        assert_eq!(found, [(0, false), (0, true), (1, false), (2, false), (3, false)]);
    }
}
