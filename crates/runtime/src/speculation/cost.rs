//! What a row more costs a step, learned from how long steps took. Whoever runs the engine has a clock and says so
//! ([`Engine::took`](crate::engine::Engine::took)); nothing that is drawn depends on it, only what is drafted and how prompts are cut.

/// What a row more adds to a step of one row, as a share of what that takes, before steps of different sizes have been timed.
const ROW_EXPECTED: f64 = 0.25;
/// How much of what older steps say is kept with each step: some two hundred count.
const KEPT: f64 = 0.995;
/// The weight of what is expected, as that of so many steps one row from the mean.
const EXPECTED_WEIGHT: f64 = 4.0;
/// A step that took so many times what it should was disturbed, and counts as one that took just that.
const DISTURBED: f64 = 3.0;
/// Steps before that is known.
const STEPS_KNOWN: f64 = 8.0;
/// How much more than its row a draft must be worth: looking for it costs something too, chances are estimates, and where a row
/// costs nearly as much as a token there is little to gain and as much to lose.
const MARGIN: f64 = 1.25;

/// A line through the times of steps over their rows, fitted by least squares that forget (recursive least squares with an
/// exponential window), and drawn towards what is expected of a row as long as steps all have as many.
#[derive(Clone, Copy, Debug)]
pub struct RowCost {
    expected: f64,        // of a row, as a share of a step of one
    steps: f64,           // that count
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
    /// Of rows each of which takes besides what drafting it does, as a share of a step of one row.
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

    /// A step of so many rows, each with logits, took so long.
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

    /// What a step of so many rows should take, once some have been timed.
    pub fn seconds(&self, rows: usize) -> Option<f64> {
        let (fixed, slope) = (self.steps > 0.0).then(|| self.line())?;
        Some(fixed + slope * rows as f64)
    }

    /// How likely a drafted token must be to pay for its row, in a step that decodes so many sequences: what the row adds to the
    /// step, over what a token costs in it. The more rows share what every step costs, the surer a draft has to be; where a row
    /// costs as much as a token, none is sure enough.
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

    /// Steps of a device that takes so long for a step and for a row, with noise, of rows that vary around a number.
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
        // A model as large as the one it drafts for must be right more often than one that costs little.
        assert!(RowCost::of_drafting(1.0).least_chance(1) > 0.75);
        assert!(RowCost::of_drafting(0.1).least_chance(1) < 0.45);
        // Beside many, only what is nearly certain does.
        assert!(RowCost::default().least_chance(1) < 0.35 && RowCost::default().least_chance(64) > 0.95);
    }

    #[test]
    fn what_was_learned_is_forgotten_while_nothing_tells_of_rows() {
        let mut cost = learned(0.0, 1e-3, 1, 400);
        (0..2000).for_each(|_| cost.learn(1, 1e-3));
        assert!(cost.least_chance(1) < 0.5, "{cost:?}");
        // Times that are none change nothing.
        let before = cost.least_chance(1);
        [0.0, -1.0, f32::NAN, f32::INFINITY].into_iter().for_each(|seconds| cost.learn(1, seconds));
        assert!((cost.least_chance(1) - before).abs() < 1e-6);
    }
}
