//! Quantisation of a tower at load. It covers the matrices of the layers, which are nearly all of the weights. The
//! patch embedding, the projector, convolutions and position embeddings stay as stored: they are small, and every
//! pixel goes through them.

use super::TowerFiles;
use crate::load::Tensors;
use crate::spec::TransformerSpec;

impl TowerFiles {
    /// The tower's layers and their tensors.
    pub(crate) fn layers_mut(&mut self) -> (&TransformerSpec, &mut Tensors) {
        (&self.spec.layers, &mut self.tensors)
    }

    /// Summary of the types that the layers' matrices are quantised to, as for the text network.
    pub(crate) fn packed_summary(&self) -> Option<String> {
        self.tensors.packed_summary()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use hanzo_engine_kernels::cpu::Tier;
    use hanzo_engine_media::PictureOptions;
    use hanzo_engine_ops::DType;

    use super::*;
    use crate::error::LoadError;
    use crate::network::IsqRule;
    use crate::opened::{Network, OpenedModel};
    use crate::overrides::Overrides;
    use crate::spec::{LayerPart, Part};
    use crate::vision::Tower;
    use crate::vision::tests::{ALL, cpu, rows_of, texture};

    /// The tiny towers' rows are no whole quantisation blocks; these are.
    fn see() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-see")
    }

    fn open(isq: Option<&str>, topology: Vec<IsqRule>) -> Result<OpenedModel, LoadError> {
        let isq = isq.map(|isq| isq.parse().unwrap());
        OpenedModel::open_with(&see(), &Overrides { isq, topology, ..Overrides::default() })
    }

    fn tower(opened: &OpenedModel) -> &TowerFiles {
        match &opened.network {
            Network::Decoder(files) => files.tower.as_ref().unwrap(),
            _ => panic!("it answers"),
        }
    }

    /// Packed type of each matrix of its layers, by name.
    fn types(opened: &OpenedModel) -> BTreeMap<String, DType> {
        let TowerFiles { spec, tensors, .. } = tower(opened);
        let spec = &spec.layers;
        let matrices = spec.weights().into_iter().filter(|(_, shape)| shape.len() == 2);
        matrices.map(|(weight, _)| (tensors.get(weight).name.clone(), tensors.packed_type(weight))).collect()
    }

    fn rows(opened: &OpenedModel) -> Vec<f32> {
        let text = opened.text_model().unwrap();
        let sight = text.sight.as_ref().unwrap();
        let picture = sight.prepare(texture([90, 70]), PictureOptions::default()).unwrap();
        let (_, spans) =
            sight.place(&[tower(opened).spec.image_token], vec![picture], &text.tokenizer).unwrap();
        rows_of(cpu(Tier::detect().unwrap()), opened, &spans, ALL)
    }

    #[test]
    fn what_sees_is_quantised_to_eight_bits_and_sees_the_same() {
        let plain = open(None, Vec::new()).unwrap();
        let bytes = |opened: &OpenedModel| {
            Tower::memory(&cpu(Tier::detect().unwrap()), tower(opened), 512).weights_bytes
        };
        let (stored, seen) = (types(&plain), rows(&plain));
        let range = seen.iter().fold(0.0_f32, |most, row| most.max(row.abs()));
        for isq in ["8", "4", "Q4_0", "AFQ4"] {
            let eight = open(Some(isq), Vec::new()).unwrap();
            assert!(eight.quantised().unwrap().contains("; what sees: matrices quantised: 36 "), "{isq}");
            assert!(bytes(&eight) * 3 < bytes(&plain) * 2, "{isq}: {} of {}", bytes(&eight), bytes(&plain));
            let changed = types(&eight).into_iter().filter(|(name, dtype)| stored[name] != *dtype);
            let changed: Vec<DType> = changed.map(|(_, dtype)| dtype).collect();
            let wanted = if isq == "AFQ4" { DType::AFQ8_G64 } else { DType::Q8_0 };
            assert!(
                changed.len() == 36 && changed.iter().all(|dtype| *dtype == wanted),
                "{isq}: {changed:?}"
            );
            let differs = seen.iter().zip(rows(&eight)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(0.0 < differs && differs < 0.05 * range, "{isq}: {differs} of {range}");
        }
    }

    #[test]
    fn rules_are_of_what_sees_where_they_name_it() {
        let rule = |layers, tensors: Option<&str>, isq: Option<&str>| IsqRule {
            layers,
            tensors: tensors.map(str::to_owned),
            isq: isq.map(|isq| isq.parse().unwrap()),
        };
        let stored = types(&open(None, Vec::new()).unwrap());
        // Rules by layer number only concern the text model.
        let opened = open(None, vec![rule(Some((0, 1)), None, Some("Q8_0"))]).unwrap();
        assert_eq!(types(&opened), stored);
        assert!(opened.quantised().is_some_and(|summary| !summary.contains("sees")));
        let of_tower = "*vision_model*q_proj*";
        let opened = open(Some("8"), vec![rule(None, Some(of_tower), None)]).unwrap();
        let kept = |name: &str| name.contains("q_proj");
        assert!(types(&opened).iter().all(|(name, dtype)| !kept(name) || *dtype == stored[name]));
        let opened = open(None, vec![rule(None, Some(of_tower), Some("Q4_0"))]).unwrap();
        let query = Part::Layer(0, LayerPart::Query).weight();
        assert_eq!(tower(&opened).tensors.packed_type(query), DType::Q4_0);
        // There is no rule for the text model.
        assert!(opened.quantised().unwrap().starts_with("what sees: "));
        assert_eq!(opened.info().quantization, "BF16");
        assert!(open(Some("8"), vec![rule(None, Some("*none*"), None)]).is_err());
    }
}
