//! Limits the prompt rows in steps that also decode. Each prompt row delays the next token of all decoding
//! sequences. So mixed steps may take about twice as long as without prompt rows, and longer only if more sequences
//! wait for their first token than for their next. The pace learns from step times
//! ([`Engine::took`](crate::engine::Engine::took)). It never changes tokens, only when they come.

/// Maximum time that prompt rows may take, as a multiple of the step's time without them, however many sequences
/// wait.
const SHARE_MAX: f64 = 6.0;
/// Minimum prompt rows of a mixed step: they share its fixed cost with the decoding rows.
const ROWS_MIN: usize = 8;
/// Weight of a new measurement against the mean. Slowdowns of a step's rows, or of a picture's piece, are believed
/// quickly, because waiting clients feel them.
pub(crate) const NEWEST_SLOWER: f64 = 0.5;
pub(crate) const NEWEST_FASTER: f64 = 0.1;
/// Measurements that differ from the mean by more than this factor count as disturbed, and are clamped.
pub(crate) const DISTURBED: f64 = 3.0;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    row_s: Option<f64>, // time of one prompt row, alone or in a mixed step
}

impl Pace {
    /// Records the time of a step with `rows` prompt rows, which would have taken `others_s` without them.
    pub(crate) fn took(&mut self, rows: usize, others_s: f64, seconds: f32) {
        let seconds = f64::from(seconds);
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        // The others' time is known roughly, and a part of the shared cost belongs to the prompt.
        let row_s = (seconds - others_s).max(seconds / 4.0) / rows as f64;
        self.row_s = Some(match self.row_s {
            Some(mean) => {
                let newest = if row_s > mean { NEWEST_SLOWER } else { NEWEST_FASTER };
                mean + newest * (row_s.clamp(mean / DISTURBED, mean * DISTURBED) - mean)
            }
            None => row_s,
        });
    }

    /// Maximum prompt rows of a step, at most `most`. `decode` sequences decode in it, and `wait` sequences wait
    /// for their first token. `others_s` is the step's time without prompt rows, if known.
    pub(crate) fn rows(&self, others_s: Option<f64>, decode: usize, wait: usize, most: usize) -> usize {
        match (others_s, self.row_s) {
            (Some(others_s), Some(row_s)) => {
                let share = (wait as f64 / decode as f64).clamp(1.0, SHARE_MAX);
                let rows = share * others_s / row_s;
                (rows as usize).max(ROWS_MIN).min(most)
            }
            _ => most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps of a device with the given times for decoding and for each prompt row: first prompts alone, then
    /// mixed steps with four decoding sequences. Returns the last step's time relative to a step that only decodes.
    fn stretch(decode_s: f64, row_s: f64, wait: usize) -> f64 {
        let mut pace = Pace::default();
        pace.took(256, 0.0, (row_s * 256.0) as f32);
        let mut last = 0.0;
        for _ in 0..40 {
            let rows = pace.rows(Some(decode_s), 4, wait, 256);
            last = decode_s + row_s * rows as f64;
            pace.took(rows, decode_s, last as f32);
        }
        last / decode_s
    }

    #[test]
    fn a_step_with_prompts_takes_twice_one_without() {
        for decode_s in [1e-4, 0.02, 0.2, 3.0] {
            for rows in [10.0, 40.0, 200.0] {
                let stretch = stretch(decode_s, decode_s / rows, 1);
                assert!(
                    (1.7..2.3).contains(&stretch),
                    "{stretch} at {decode_s} s with {rows} rows in that time"
                );
            }
        }
    }

    #[test]
    fn the_more_wait_for_their_first_token_the_more_of_a_step_is_theirs() {
        for (wait, share) in [(4, 1.0), (8, 2.0), (16, 4.0), (400, SHARE_MAX)] {
            let stretch = stretch(0.1, 0.1 / 40.0, wait);
            assert!((stretch - 1.0 - share).abs() < 0.25 * share, "{stretch} where {wait} wait");
        }
    }

    #[test]
    fn rows_are_few_or_many_within_bounds() {
        // A row takes as long as a step: a few still run, or the prompt would never finish.
        assert!((stretch(1.0, 1.0, 1) - 9.0).abs() < 0.1);
        // Prompts cost next to nothing.
        assert!(stretch(1.0, 1e-6, 1) < 1.1);
        // Nothing is known, or the times are invalid: as many as allowed.
        let mut pace = Pace::default();
        [0.0, -1.0, f32::NAN, f32::INFINITY].into_iter().for_each(|seconds| pace.took(10, 0.0, seconds));
        assert_eq!(pace.rows(Some(1.0), 1, 1, 256), 256);
        pace.took(10, 0.0, 1.0);
        assert_eq!((pace.rows(None, 1, 1, 256), pace.rows(Some(2.0), 1, 1, 256)), (256, 20));
    }

    #[test]
    fn one_step_that_was_disturbed_changes_little() {
        let mut pace = Pace::default();
        pace.took(100, 0.0, 0.1);
        let before = pace.rows(Some(0.04), 1, 1, 256);
        pace.took(before, 0.04, 60.0);
        let after = pace.rows(Some(0.04), 1, 1, 256);
        assert!(after >= before / 2 && after < before, "{after} after {before}");
    }
}
