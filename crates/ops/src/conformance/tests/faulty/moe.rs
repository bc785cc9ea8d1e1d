//! Faults of a mixture of experts.

use super::{Fault, Faulty, Part};
use crate::reference::formulas;
use crate::{Activation, ExpertGroups, ExpertParts, ExpertScoring, MoeParams, MoeWeights};

/// Capacity of an expert, for the fault of full experts.
const FULL: usize = 30;

impl Faulty {
    /// `moe` of rows of `x`.
    pub(super) fn mixture(&self, weights: &MoeWeights<'_, Self>, params: &MoeParams, x: &[f32]) -> Vec<f32> {
        let (router, parts): (_, &[ExpertParts<Part>]) = (weights.router, weights.experts);
        let (cols, experts) = (router[0].shape.cols, router[0].shape.rows);
        let router_bias = weights.router_bias.filter(|_| self.fault != Fault::RouterBiasIgnored);
        let routed = weights.routed.filter(|_| self.fault != Fault::RouterReadsInput);
        let routed = routed.map_or(x.to_vec(), |routed| self.rows_of(routed, cols));
        let mut scores = self.product(router, router_bias.map(|bias| &bias[..]), &routed);
        let of_expert = |bias: Option<&'_ Vec<f32>>, expert: usize| {
            let bias = bias.filter(|_| self.fault != Fault::ExpertBiasIgnored)?;
            let each = bias.len() / experts;
            Some(bias[expert * each..][..each].to_vec())
        };
        let spoilt = self.fault == Fault::NanSpread && scores.iter().any(|score| score.is_nan());
        if self.fault == Fault::ChosenOfFirstRow {
            let first = scores[..experts].to_vec();
            scores.chunks_exact_mut(experts).for_each(|row| row.copy_from_slice(&first));
        }
        let mut taken = vec![0; experts];
        let mut out = Vec::new();
        for (x, scores) in x.chunks_exact(cols).zip(scores.chunks_exact(experts)) {
            let Some(chosen) = self.choose(scores, weights.correction, params).filter(|_| !spoilt) else {
                let nothing = if self.fault == Fault::NanZeroed { 0.0 } else { f32::NAN };
                out.extend(vec![nothing; cols]);
                continue;
            };
            let mut sums = vec![0.0; cols];
            for (expert, weight) in chosen {
                taken[expert] += 1;
                let scale = weights.expert_scale.filter(|_| self.fault != Fault::ExpertScaleIgnored);
                let weight = weight * scale.map_or(1.0, |scale| f64::from(scale[expert]));
                if self.fault == Fault::FullExpertSkipped && taken[expert] > FULL {
                    continue;
                }
                let (before, weight) = match params.scales_input && self.fault != Fault::InputNotScaled {
                    true => (weight as f32, 1.0),
                    false => (1.0, weight),
                };
                let x: Vec<f32> = x.iter().map(|x| before * x).collect();
                let up_bias = of_expert(weights.up_bias, expert);
                let hidden = if params.gated {
                    let both = self.product(&parts[expert].gate_up, up_bias.as_deref(), &x);
                    let activation = match params.activation {
                        Activation::ClampedSwish if self.fault == Fault::ClampIgnored => Activation::Silu,
                        activation => activation,
                    };
                    self.gated_halves(activation, &both, both.len() / 2)
                } else {
                    self.activated(&parts[expert].gate_up, up_bias.as_ref(), params.activation, &x)
                };
                let down_bias = of_expert(weights.down_bias, expert);
                let outputs = self.product(&parts[expert].down, down_bias.as_deref(), &hidden);
                sums.iter_mut().zip(outputs).for_each(|(sum, output)| *sum += weight * f64::from(output));
            }
            out.extend(sums.into_iter().map(|sum| sum as f32));
        }
        out
    }

    fn choose(
        &self,
        scores: &[f32],
        correction: Option<&Vec<f32>>,
        params: &MoeParams,
    ) -> Option<Vec<(usize, f64)>> {
        let correction = correction.map(|correction| &correction[..]);
        let mut params = *params;
        let mut scores = scores.to_vec();
        match self.fault {
            Fault::WeightsNotNormed => params.normalized = false,
            Fault::WeightsAlwaysNormed => params.normalized = true,
            Fault::RoutedScaleIgnored => params.scale = 1.0,
            Fault::ScoringSwapped => {
                params.scoring = match params.scoring {
                    ExpertScoring::Softmax => ExpertScoring::Sigmoid,
                    ExpertScoring::Sigmoid | ExpertScoring::Near { .. } => ExpertScoring::Softmax,
                }
            }
            Fault::NearnessIgnored => {
                if let ExpertScoring::Near { reach } = &mut params.scoring {
                    *reach = f32::MAX;
                }
            }
            Fault::ExpertGroupsIgnored => params.groups = None,
            Fault::BestOfGroupAlone => {
                params.groups = params.groups.map(|groups| ExpertGroups { best: 1, ..groups });
            }
            Fault::NanIgnored => {
                scores.iter_mut().filter(|score| score.is_nan()).for_each(|score| *score = 0.0)
            }
            Fault::LastOfEquals => scores.reverse(),
            _ => {}
        }
        let chooses_by = correction.filter(|_| self.fault != Fault::CorrectionIgnored);
        let mut chosen = formulas::route(&scores, &params, chooses_by)?;
        if self.fault == Fault::NearByEach
            && let ExpertScoring::Near { .. } = params.scoring
        {
            // Experts chosen before still count among the near ones.
            for at in 1..chosen.len() {
                let alone = MoeParams { experts_used: 1, ..params };
                let mut scores = scores.clone();
                let top = scores[chosen[at].0];
                chosen[..at].iter().for_each(|&(before, _)| scores[before] = top);
                chosen[at].1 = formulas::route(&scores, &alone, None)?[0].1;
            }
        }
        if let (Fault::CorrectionWeighed, Some(correction)) = (self.fault, correction) {
            chosen.iter_mut().for_each(|(expert, weight)| *weight += f64::from(correction[*expert]));
        }
        for (expert, _) in &mut chosen {
            match self.fault {
                Fault::LastOfEquals => *expert = scores.len() - 1 - *expert,
                Fault::NextExpert => *expert = (*expert + 1) % scores.len(),
                _ => {}
            }
        }
        if self.fault == Fault::LastExpertDropped && chosen.len() > 1 {
            chosen.pop();
        }
        Some(chosen)
    }
}
