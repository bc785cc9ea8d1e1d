//! Cost of an additional row in a step, learned from step times. The caller of the engine has a clock and reports
//! them ([`Engine::took`](crate::engine::Engine::took)). Costs never change tokens: they only decide drafts and the
//! size of prompt chunks.

/// Initial cost of an additional row, as a share of a step with one row, before steps of different sizes have been
/// timed.
const ROW_EXPECTED: f64 = 0.25;
/// Decay of older steps with each new one: some two hundred count.
const KEPT: f64 = 0.995;
/// Weight of the initial cost, in steps one row away from the mean.
const EXPECTED_WEIGHT: f64 = 4.0;
/// A step that took this many times its expected time was disturbed, and is clamped to it.
const DISTURBED: f64 = 3.0;
/// Number of steps from which on the expected time counts as known.
const STEPS_KNOWN: f64 = 8.0;
/// Required worth of a draft relative to its row's cost. Drafting itself costs time, and chances are estimates.
/// Where a row costs nearly as much as a token there is little to gain and as much to lose.
const MARGIN: f64 = 1.25;

/// Line through the times of steps over their rows: recursive least squares with an exponential window. It is drawn
/// towards the initial cost while all steps have the same number of rows.
#[derive(Clone, Copy, Debug)]
pub struct RowCost {
    expected: f64,        // of a row, as a share of a step with one row
    steps: f64,           // weighted count
    rows: f64,            // mean
    seconds: f64,         // mean
    rows_squared: f64,    // sum of squares around the mean
    rows_by_seconds: f64, // sum of products around the means
}

impl Default for RowCost {
    fn default() -> RowCost {
        RowCost::of_drafting(0.0)
    }
}

impl RowCost {
    /// Cost of rows whose drafting also takes time, as a share of a step with one row.
    pub fn of_drafting(share: f64) -> RowCost {
        RowCost {
            expected: (ROW_EXPECTED + share) / (1.0 + share),
            steps: 0.0,
            rows: 0.0,
            seconds: 0.0,
            rows_squared: 0.0,
            rows_by_seconds: 0.0,
        }
    }

    /// Records the time of a step with `rows` rows, each with logits.
    pub fn learn(&mut self, rows: usize, seconds: f32) {
        let (rows, mut seconds) = (rows as f64, f64::from(seconds));
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        if self.steps >= STEPS_KNOWN {
            let (fixed, slope) = self.line();
            let expected = fixed + slope * rows;
            seconds = seconds.clamp(expected / DISTURBED, expected * DISTURBED);
        }
        self.steps = self.steps * KEPT + 1.0;
        let from_mean = rows - self.rows;
        self.rows += from_mean / self.steps;
        self.seconds += (seconds - self.seconds) / self.steps;
        self.rows_squared = self.rows_squared * KEPT + from_mean * (rows - self.rows);
        self.rows_by_seconds = self.rows_by_seconds * KEPT + from_mean * (seconds - self.seconds);
    }

    /// Seconds of a step without rows, and of each row.
    fn line(&self) -> (f64, f64) {
        let expected = self.expected * self.seconds / (1.0 - self.expected + self.expected * self.rows);
        let slope =
            (self.rows_by_seconds + EXPECTED_WEIGHT * expected) / (self.rows_squared + EXPECTED_WEIGHT);
        let slope = slope.clamp(0.0, self.seconds / self.rows);
        (self.seconds - slope * self.rows, slope)
    }

    /// Expected time of a step with `rows` rows, once some have been timed.
    pub fn seconds(&self, rows: usize) -> Option<f64> {
        let (fixed, slope) = (self.steps > 0.0).then(|| self.line())?;
        Some(fixed + slope * rows as f64)
    }

    /// Minimum chance of a draft token to pay for its row, in a step that decodes `decodes` sequences: the cost of
    /// the row, divided by the cost of a token. The more rows share the fixed cost of a step, the higher it is. If
    /// a row costs as much as a token, no draft pays.
    pub fn least_chance(&self, decodes: usize) -> f32 {
        let (fixed, slope) = match self.steps > 0.0 {
            true => self.line(),
            false => (1.0 - self.expected, self.expected),
        };
        let rows = slope * decodes as f64;
        (MARGIN * rows / (fixed + rows)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns from simulated steps with a fixed time and a time per row, with noise, whose rows vary around a
    /// number.
    fn learned(fixed: f32, row: f32, around: usize, steps: usize) -> RowCost {
        let (mut cost, mut state) = (RowCost::default(), 5u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..steps {
            let rows = around + random(4) as usize;
            let disturbed = if random(20) == 0 { 30.0 } else { 1.0 };
            let noise = 0.9 + random(200) as f32 / 1000.0;
            cost.learn(rows, (fixed + row * rows as f32) * noise * disturbed);
        }
        cost
    }

    #[test]
    fn what_a_row_costs_is_learned_whatever_the_unit() {
        for unit in [1e-5, 1e-3, 1.0] {
            for (share, around) in [(0.02, 1), (0.25, 1), (0.25, 8), (0.6, 1), (0.6, 8)] {
                let cost = learned(unit * (1.0 - share), unit * share, around, 400);
                let rows = f64::from(share) * around as f64;
                let least = MARGIN * rows / (1.0 - f64::from(share) + rows);
                let found = f64::from(cost.least_chance(around));
                assert!((found - least).abs() < 0.2, "{share} at {around}: {found} for {least}");
            }
        }
    }

    #[test]
    fn where_a_row_costs_as_much_as_a_token_nothing_pays() {
        for around in [1, 8] {
            assert!(learned(0.0, 1e-3, around, 400).least_chance(around) > 1.0);
        }
        // Drafts of a model as large as the target must be accepted more often than those of a cheap one.
        assert!(RowCost::of_drafting(1.0).least_chance(1) > 0.75);
        assert!(RowCost::of_drafting(0.1).least_chance(1) < 0.45);
        // In a large batch, only a nearly certain draft pays.
        assert!(RowCost::default().least_chance(1) < 0.35 && RowCost::default().least_chance(64) > 0.95);
    }

    #[test]
    fn what_was_learned_is_forgotten_while_nothing_tells_of_rows() {
        let mut cost = learned(0.0, 1e-3, 1, 400);
        (0..2000).for_each(|_| cost.learn(1, 1e-3));
        assert!(cost.least_chance(1) < 0.5, "{cost:?}");
        // Invalid times change nothing.
        let before = cost.least_chance(1);
        [0.0, -1.0, f32::NAN, f32::INFINITY].into_iter().for_each(|seconds| cost.learn(1, seconds));
        assert!((cost.least_chance(1) - before).abs() < 1e-6);
    }
}
