//! How many rows of prompts go beside sequences that decode. Each row of a prompt keeps the next token of all of them waiting, so
//! steps that do both take about twice what they would without the prompts, and more only where more sequences wait for their first
//! token than for their next; learned from how long steps took ([`Engine::took`](crate::engine::Engine::took)). No token depends on
//! it, only when it comes.

/// The most that rows of prompts may take of a step, over what it takes without them, however many wait.
const SHARE_MAX: f64 = 6.0;
/// Rows of prompts that a step has room for in any case: they share with the decoding ones what each step costs.
const ROWS_MIN: usize = 8;
/// The weight of a new step beside those before it: where its rows, or a picture's piece, take longer than before that is soon
/// believed, since those who wait for a token bear it.
pub(crate) const NEWEST_SLOWER: f64 = 0.5;
pub(crate) const NEWEST_FASTER: f64 = 0.1;
/// What took so many times what it should was disturbed, and counts as what took just that.
pub(crate) const DISTURBED: f64 = 3.0;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    row_s: Option<f64>, // a row of a prompt, beside others or not
}

impl Pace {
    /// A step took so long that had so many rows of prompts, and would have taken `others_s` without them.
    pub(crate) fn took(&mut self, rows: usize, others_s: f64, seconds: f32) {
        let seconds = f64::from(seconds);
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        // What the others take is known about, and a part of what they share is the prompt's.
        let row_s = (seconds - others_s).max(seconds / 4.0) / rows as f64;
        self.row_s = Some(match self.row_s {
            Some(mean) => {
                let newest = if row_s > mean { NEWEST_SLOWER } else { NEWEST_FASTER };
                mean + newest * (row_s.clamp(mean / DISTURBED, mean * DISTURBED) - mean)
            }
            None => row_s,
        });
    }

    /// Rows of prompts that a step may have, at most `most`, in which so many sequences decode while so many others wait for their
    /// first token, and which takes `others_s` without them, where that is known.
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

    /// Steps of a device on which decoding takes so long, and each row of a prompt: first of prompts alone, then of both; how long
    /// the last of these took over one that decodes, four sequences, while others wait.
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
        // A row takes as long as a step: some go all the same, or the prompt would take for ever.
        assert!((stretch(1.0, 1.0, 1) - 9.0).abs() < 0.1);
        // Prompts cost next to nothing.
        assert!(stretch(1.0, 1e-6, 1) < 1.1);
        // Nothing is known, or times that are none: as many as may be.
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
