//! MLPs and mixtures of experts from metadata.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{Activation, ExpertScoring};

use super::keys::is_zero;
use super::{Architecture, Experts, Keys};
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::base::Base;
use crate::spec::setting::{EXPERTS, EXPERTS_SCALE};
use crate::spec::settings::{groups, softmax};
use crate::spec::{DenseSpec, ExpertsSpec, LayerPart, MlpSpec, Part, SharedExpert};

const FFN: &str = "feed_forward_length";

impl Architecture {
    /// The MLP of each of so many layers.
    pub(super) fn mlp(
        &self,
        keys: &Keys<'_>,
        base: &Base<'_>,
    ) -> Result<Box<dyn Fn(usize) -> MlpSpec>, LoadError> {
        let of_all = |mlp: MlpSpec| -> Box<dyn Fn(usize) -> MlpSpec> { Box::new(move |_| mlp.clone()) };
        let ffn = match self.experts {
            Experts::Mixture => return self.mixture(keys, base),
            Experts::Dense => {
                let in_first = |part| keys.has(Part::Layer(0, part).bias());
                return Ok(of_all(MlpSpec::Dense(DenseSpec {
                    ffn: keys.required(FFN, WIDTH_MAX)? / if self.halved { 2 } else { 1 },
                    activation: base.activation,
                    gated: base.of.gated,
                    up_bias: in_first(LayerPart::Up),
                    down_bias: in_first(LayerPart::Down),
                })));
            }
            Experts::Never => None,
            Experts::IfCounted => {
                let none = |name: &str| keys.metadata.get(&keys.key(name)).is_none_or(is_zero);
                let counted = !(none("expert_count") && none("expert_used_count"));
                counted.then_some(FFN)
            }
            Experts::Always => Some("expert_feed_forward_length"),
        };
        let Some(ffn) = ffn else {
            return Ok(of_all(MlpSpec::gated(keys.required(FFN, WIDTH_MAX)?, Activation::Silu)));
        };
        // llama.cpp normalises the weights of these architectures, whatever a model's makers did.
        let count = keys.required("expert_count", EXPERTS_MAX)?;
        let used = keys.required("expert_used_count", EXPERTS_MAX)?;
        let experts = ExpertsSpec::softmax(count, used, keys.required(ffn, WIDTH_MAX)?, true);
        Ok(of_all(MlpSpec::Experts(experts)))
    }

    /// Mixtures after dense layers, or in each nth layer.
    fn mixture(&self, keys: &Keys<'_>, base: &Base<'_>) -> Result<Box<dyn Fn(usize) -> MlpSpec>, LoadError> {
        const STEP: &str = "interleave_moe_layer_step";
        let dense = keys.whole("leading_dense_block_count", LAYERS_MAX)?.unwrap_or(0);
        let step = keys.count(STEP, LAYERS_MAX)?.unwrap_or(1);
        if step != 1 && !self.interleaved {
            return Err(keys.unsupported(STEP, step, "only 1 is known"));
        }
        let sparse = move |layer: usize| layer >= dense && (layer + 1).is_multiple_of(step);
        let ffn = base.ffn(!(0..base.layers).all(sparse))?;
        let experts = self.read_experts(keys, base)?;
        Ok(Box::new(move |layer| match sparse(layer) {
            false => MlpSpec::gated(ffn, Activation::Silu),
            true => MlpSpec::Experts(experts),
        }))
    }

    fn read_experts(&self, keys: &Keys<'_>, base: &Base<'_>) -> Result<ExpertsSpec, LoadError> {
        let [count, used] = [EXPERTS[0], EXPERTS[1]];
        let ffn = EXPERTS[2].stored(self.expert_ffn);
        let many = keys.whole("expert_shared_count", EXPERTS_MAX)?;
        let shared = match keys.whole("expert_shared_feed_forward_length", WIDTH_MAX)? {
            Some(shared) => shared,
            None => many.unwrap_or(0) * base.file.required(&ffn)?,
        };
        let scoring = match keys.whole("expert_gating_func", 4)? {
            Some(3) if self.softmax_of_chosen => ExpertScoring::Softmax,
            _ => keys.scoring()?.unwrap_or(self.scoring),
        };
        let best = if scoring == ExpertScoring::Sigmoid { 2 } else { 1 };
        let said = keys.metadata.bool(&keys.key("expert_weights_norm"))?;
        let normalized = match (said, self.normalized) {
            (Some(said), Some(known)) if said != known => {
                let reason = format!("of this architecture only {known} is known");
                return Err(keys.unsupported("expert_weights_norm", said, &reason));
            }
            (said, known) => said.or(known).unwrap_or(false),
        };
        let mut experts = ExpertsSpec {
            activation: Activation::Silu,
            scoring,
            scale: base.file.factor(&EXPERTS_SCALE)?,
            correction_bias: keys.has(Part::Layer(base.layers - 1, LayerPart::Router).bias()),
            groups: groups(base.file, best)?,
            shared: (shared > 0).then_some(SharedExpert { ffn: shared, gate: false }),
            ..softmax(base, &[count, used, ffn], normalized)?
        };
        (self.own_experts)(keys, &mut experts)?;
        Ok(experts)
    }
}

impl Keys<'_> {
    /// Conversion of scores into weights, if the file says.
    pub(crate) fn scoring(&self) -> Result<Option<ExpertScoring>, LoadError> {
        const KEY: &str = "expert_gating_func";
        match self.whole(KEY, 4)? {
            None | Some(0) => Ok(None),
            Some(1) => Ok(Some(ExpertScoring::Softmax)),
            Some(2) => Ok(Some(ExpertScoring::Sigmoid)),
            Some(other) => Err(self.unsupported(KEY, other, "1 and 2 are known")),
        }
    }
}
