//! Faults in sampling.

use super::{Fault, Faulty};
use crate::sampling::Edits;
use crate::{SampleSpecs, SampledToken, reference};

impl Faulty {
    /// The draw of a row of logits.
    pub(super) fn draw(&self, logits: &[f32], specs: &SampleSpecs, row: usize) -> Option<SampledToken> {
        let mut spec = specs.rows[row].clone();
        let mut adjustments = specs.adjustments_of(row).to_vec();
        let mut logits = logits.to_vec();
        let (mut mask, mut seen, mut softcap) = (specs.mask_of(row), specs.seen_of(row), specs.softcap);
        let mut bias = specs.bias.as_deref();
        match self.fault {
            Fault::TemperatureIgnored if spec.temperature > 0.0 => spec.temperature = 1.0,
            Fault::TopKIgnored => spec.top_k = 0,
            Fault::TopPIgnored => spec.top_p = 1.0,
            Fault::MinPIgnored => spec.min_p = 0.0,
            Fault::TopNSigmaIgnored => spec.shape.top_n_sigma = 0.0,
            Fault::TemperatureRangeIgnored => spec.shape.temperature_range = 0.0,
            Fault::TemperatureExponentIgnored => spec.shape.temperature_exponent = 1.0,
            Fault::TypicalPIgnored => spec.shape.typical_p = 1.0,
            Fault::XtcIgnored => spec.shape.xtc_threshold = 1.0,
            Fault::ProbabilityMinIgnored => spec.shape.probability_min = 0.0,
            Fault::ProbabilityOfAll => {
                let mut sampled = reference::draw(
                    &logits,
                    &spec,
                    Edits { softcap, bias, mask, seen, adjustments: &adjustments },
                )?;
                sampled.probability = sampled.probability.map(|probability| probability * 0.999);
                return Some(sampled);
            }
            Fault::UniformOfFirstRow => spec.uniform = specs.rows[0].uniform,
            Fault::RepetitionIgnored => spec.repetition = 1.0,
            Fault::SeenOfFirstRow if !seen.is_empty() => seen = specs.seen_of(0),
            Fault::AdjustmentsReversed => adjustments.reverse(),
            Fault::RuledOutAdjusted => adjustments
                .retain(|adjustment| !matches!(adjustment.change, crate::Change::Add(f32::NEG_INFINITY))),
            Fault::LogprobsAdjusted => {
                for adjustment in adjustments.drain(..) {
                    if let Some(logit) = logits.get_mut(adjustment.token as usize) {
                        *logit = adjustment.change.apply(*logit);
                    }
                }
            }
            Fault::MaskIgnored => mask = None,
            Fault::LogitsNotCapped => softcap = None,
            Fault::HeadBiasIgnored => bias = None,
            Fault::MaskOfFirstRow if mask.is_some() => mask = Some(&specs.masks[..specs.mask_words]),
            Fault::NanDrawn => {
                logits.iter_mut().filter(|logit| logit.is_nan()).for_each(|logit| *logit = 0.0);
            }
            Fault::LastOfEquals if spec.temperature == 0.0 => {
                let mut sampled = reference::draw(
                    &logits,
                    &spec,
                    Edits { softcap, bias, mask, seen, adjustments: &adjustments },
                )?;
                let twin = sampled.token as usize + 1;
                sampled.token +=
                    u32::from(logits.get(twin) == Some(&logits[twin - 1]) && twin.is_multiple_of(3));
                return Some(sampled);
            }
            _ => {}
        }
        reference::draw(&logits, &spec, Edits { softcap, bias, mask, seen, adjustments: &adjustments })
    }
}
