//! The faults of a mixture of experts.

use super::{Fault, Faulty, Part};
use crate::reference::formulas;
use crate::{ExpertParts, ExpertScoring, MoeParams};

/// Rows that an expert takes where one that is full takes no more.
const FULL: usize = 30;

impl Faulty {
    /// `moe` of rows of `x`.
    pub(super) fn mixture(
        &self,
        router: &[Part],
        parts: &[ExpertParts<Part>],
        params: &MoeParams,
        x: &[f32],
    ) -> Vec<f32> {
        let (cols, experts) = (router[0].shape.cols, router[0].shape.rows);
        let mut scores = self.product(router, None, x);
        let spoilt = self.fault == Fault::NanSpread && scores.iter().any(|score| score.is_nan());
        if self.fault == Fault::ChosenOfFirstRow {
            let first = scores[..experts].to_vec();
            scores.chunks_exact_mut(experts).for_each(|row| row.copy_from_slice(&first));
        }
        let mut taken = vec![0; experts];
        let mut out = Vec::new();
        for (x, scores) in x.chunks_exact(cols).zip(scores.chunks_exact(experts)) {
            let Some(chosen) = self.choose(scores, params).filter(|_| !spoilt) else {
                let nothing = if self.fault == Fault::NanZeroed { 0.0 } else { f32::NAN };
                out.extend(vec![nothing; cols]);
                continue;
            };
            let mut sums = vec![0.0; cols];
            for (expert, weight) in chosen {
                taken[expert] += 1;
                if self.fault == Fault::FullExpertSkipped && taken[expert] > FULL {
                    continue;
                }
                let hidden = if params.gated {
                    self.gated(&parts[expert].gate_up, params.activation, x)
                } else {
                    self.activated(&parts[expert].gate_up, None, params.activation, x)
                };
                let outputs = self.product(&parts[expert].down, None, &hidden);
                sums.iter_mut().zip(outputs).for_each(|(sum, output)| *sum += weight * f64::from(output));
            }
            out.extend(sums.into_iter().map(|sum| sum as f32));
        }
        out
    }

    fn choose(&self, scores: &[f32], params: &MoeParams) -> Option<Vec<(usize, f64)>> {
        let mut params = *params;
        let mut scores = scores.to_vec();
        match self.fault {
            Fault::WeightsNotNormed => params.normalized = false,
            Fault::WeightsAlwaysNormed => params.normalized = true,
            Fault::RoutedScaleIgnored => params.scale = 1.0,
            Fault::ScoringSwapped => {
                params.scoring = match params.scoring {
                    ExpertScoring::Softmax => ExpertScoring::Sigmoid,
                    ExpertScoring::Sigmoid => ExpertScoring::Softmax,
                }
            }
            Fault::NanIgnored => {
                scores.iter_mut().filter(|score| score.is_nan()).for_each(|score| *score = 0.0)
            }
            Fault::LastOfEquals => scores.reverse(),
            _ => {}
        }
        let mut chosen = formulas::route(&scores, &params)?;
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
