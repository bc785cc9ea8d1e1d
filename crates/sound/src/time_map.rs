//! Mapping of times from the samples that the gate passed on to the original sound. The map also knows the
//! pauses, so that a segment begins and ends where speech does.

use crate::SPEECH_RATE;

/// Minimum samples of a pause in the original: 0.3 s. Shorter ones are between syllables.
const PAUSE_MIN: u64 = SPEECH_RATE as u64 * 3 / 10;
/// Largest part of a segment that may be the model's error, in samples: 0.5 s.
const ERROR_MAX: f64 = SPEECH_RATE as f64 / 2.0;
/// Largest part of a segment that may be the model's error, as a share of the pause beside it.
const ERROR_SHARE: f64 = 0.25;

/// Maps times of the samples that were passed on to times of the original sound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeMap {
    /// Completed pauses, in order.
    pauses: Vec<Pause>,
    /// Number of samples passed on.
    passed: u64,
    /// Number of passed-on samples up to the end of the last speech.
    speech_end: u64,
    /// Number of samples of the original so far.
    taken: u64,
}

/// Pause. All positions count samples that were passed on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pause {
    /// End of the speech before it.
    from: u64,
    /// Start of the speech after it.
    to: u64,
    /// Position where samples were left out, between `from` and `to`.
    cut: u64,
    /// Number of samples left out in this pause.
    left_out: u64,
    /// Number of samples left out up to the end of this pause.
    left_out_so_far: u64,
}

impl Pause {
    /// Largest part of a segment on the wrong side of this pause, in samples.
    fn error_max(&self) -> f64 {
        let original = (self.to - self.from + self.left_out) as f64;
        (ERROR_SHARE * original).min(ERROR_MAX)
    }
}

/// Kind of a stretch of time, which determines how far it may reach over a pause by mistake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stretch {
    /// May have speech on both sides of a pause.
    Segment,
    /// Lies on one side of a pause.
    Word,
}

impl TimeMap {
    /// Notes samples that were passed on.
    pub(crate) fn pass(&mut self, samples: usize) {
        self.passed += samples as u64;
    }

    /// Notes samples of the original.
    pub(crate) fn take(&mut self, samples: usize) {
        self.taken += samples as u64;
    }

    /// Notes that speech begins with the next sample, after `held` samples that were passed on since the cut.
    /// `left_out` samples were left out at the cut.
    pub(crate) fn speech_begins(&mut self, held: usize, left_out: u64) {
        let before = self.pauses.last().map_or(0, |pause| pause.left_out_so_far);
        let (from, to) = (self.speech_end, self.passed);
        if left_out > 0 || to - from >= PAUSE_MIN {
            let left_out_so_far = before + left_out;
            self.pauses.push(Pause { from, to, cut: to - held as u64, left_out, left_out_so_far });
        }
    }

    /// Notes that all samples up to here are speech.
    pub(crate) fn speech_ends(&mut self) {
        self.speech_end = self.passed;
    }

    /// Time in the original of the start of something. A time in the middle of a cut maps to its end.
    pub fn start(&self, seconds: f64) -> f64 {
        self.original(seconds, |cut, at| cut <= at)
    }

    /// Time in the original of the end of something. A time in the middle of a cut maps to its start.
    pub fn end(&self, seconds: f64) -> f64 {
        self.original(seconds, |cut, at| cut < at)
    }

    /// Start and end of a segment in the original. A segment begins and ends where speech does, and ends within the
    /// sound.
    pub fn segment(&self, start_s: f64, end_s: f64) -> (f64, f64) {
        self.stretch(start_s, end_s, Stretch::Segment)
    }

    /// Start and end of a word in the original. A word lies on one side of a pause.
    pub fn word(&self, start_s: f64, end_s: f64) -> (f64, f64) {
        self.stretch(start_s, end_s, Stretch::Word)
    }

    fn stretch(&self, start_s: f64, end_s: f64, kind: Stretch) -> (f64, f64) {
        let (rate, all) = (f64::from(SPEECH_RATE), self.passed as f64);
        let mut from = (start_s * rate).clamp(0.0, all);
        let mut to = (end_s * rate).clamp(from, all);
        let allowed = |pause: &Pause, error: f64| kind == Stretch::Word || error <= pause.error_max();
        // First pause that ends after the start.
        let first = self.pauses.partition_point(|pause| pause.to as f64 <= from);
        if let Some(pause) = self.pauses.get(first) {
            let (error, rest) = ((pause.from as f64 - from).max(0.0), to - pause.to as f64);
            if error < rest && allowed(pause, error) {
                from = pause.to as f64;
            }
        }
        // Last pause that begins before the end.
        let behind = self.pauses.partition_point(|pause| (pause.from as f64) < to);
        if let Some(pause) = behind.checked_sub(1).map(|last| &self.pauses[last]) {
            let (rest, error) = (pause.from as f64 - from, (to - pause.to as f64).max(0.0));
            if error < rest && allowed(pause, error) {
                to = pause.from as f64;
            }
        }
        // Pause that has not ended.
        let speech_end = self.speech_end as f64;
        if from < speech_end && speech_end < to {
            to = speech_end;
        }
        let last = self.seconds_max();
        let start = self.start(from / rate).min(last);
        (start, self.end(to / rate).min(last).max(start))
    }

    /// End of the sound so far, in whole milliseconds, so that no rounding exceeds it.
    fn seconds_max(&self) -> f64 {
        (self.taken.saturating_sub(1) * 1000 / u64::from(SPEECH_RATE)) as f64 / 1000.0
    }

    /// Updates to `other`, a later state of the same map.
    pub fn follow(&mut self, other: &TimeMap) {
        self.pauses.extend_from_slice(other.pauses.get(self.pauses.len()..).unwrap_or_default());
        (self.passed, self.speech_end, self.taken) = (other.passed, other.speech_end, other.taken);
    }

    /// Seconds passed on.
    pub fn passed_s(&self) -> f64 {
        self.passed as f64 / f64::from(SPEECH_RATE)
    }

    fn original(&self, seconds: f64, is_behind: impl Fn(f64, f64) -> bool) -> f64 {
        let at = seconds * f64::from(SPEECH_RATE);
        let behind = self.pauses.partition_point(|pause| is_behind(pause.cut as f64, at));
        let left_out = behind.checked_sub(1).map_or(0, |last| self.pauses[last].left_out_so_far);
        seconds + left_out as f64 / f64::from(SPEECH_RATE)
    }

    #[cfg(test)]
    pub(crate) fn cuts(&self) -> usize {
        self.pauses.iter().filter(|pause| pause.left_out > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = SPEECH_RATE as u64;

    /// Map of speech and pauses in seconds of the original: `(speech, pause)`. 0.4 s of each pause stay on both
    /// sides.
    fn map(parts: &[(f64, f64)]) -> TimeMap {
        let samples = |seconds: f64| (seconds * SECOND as f64).round() as usize;
        let mut map = TimeMap::default();
        for &(speech, pause) in parts {
            map.take(samples(speech + pause));
            map.pass(samples(speech));
            map.speech_ends();
            if pause > 0.8 {
                map.pass(samples(0.8));
                map.speech_begins(samples(0.4), (samples(pause) - samples(0.8)) as u64);
            } else {
                map.pass(samples(pause));
                map.speech_begins(samples(pause), 0);
            }
        }
        map
    }

    fn near((a, b): (f64, f64), (c, d): (f64, f64)) -> bool {
        (a - c).abs() < 2e-3 && (b - d).abs() < 2e-3
    }

    #[test]
    fn an_end_lies_before_a_cut_and_a_start_behind_it() {
        let mut map = TimeMap::default();
        map.speech_begins(0, SECOND);
        map.pass(2 * SECOND as usize);
        map.speech_ends();
        map.speech_begins(0, 3 * SECOND);
        map.pass(2 * SECOND as usize);
        assert_eq!((map.start(0.0), map.end(0.0)), (1.0, 0.0));
        assert_eq!((map.start(2.0), map.end(2.0)), (6.0, 3.0));
        assert_eq!((map.start(3.0), map.end(3.0)), (7.0, 7.0));
    }

    #[test]
    fn segments_begin_and_end_where_speech_does() {
        // Silence 0–5, speech 5–9, silence 9–21, speech 21–24, silence 24–30.
        let map = map(&[(0.0, 5.0), (4.0, 12.0), (3.0, 6.0)]);
        // Passed on: 0.8 silence, 4.0 speech, 0.8 silence, 3.0 speech, 0.8 silence.
        let first = (5.0, 9.0);
        for (start, end) in [(0.0, 4.8), (0.8, 4.8), (0.5, 5.0), (0.9, 5.3), (0.0, 5.9)] {
            let right = (if start > 0.8 { 5.0 + start - 0.8 } else { first.0 }, first.1);
            let said = map.segment(start, end);
            assert!(near(said, right), "{start} {end}: {said:?}");
        }
        for (start, end) in [(4.8, 8.6), (4.5, 8.6), (5.0, 8.8), (5.4, 9.4), (5.6, 60.0)] {
            let said = map.segment(start, end);
            assert!(near(said, (21.0, 24.0)), "{start} {end}: {said:?}");
        }
        // A segment with much speech on both sides keeps both.
        assert!(near(map.segment(2.8, 7.6), (7.0, 23.0)));
        // A word maps to where most of it is.
        assert!(near(map.word(4.0, 5.9), (8.2, 9.0)));
        assert!(near(map.word(4.5, 6.4), (21.0, 21.8)));
    }

    #[test]
    fn no_time_lies_behind_the_sound() {
        let mut map = TimeMap::default();
        map.take(64_001);
        map.pass(64_001);
        map.speech_ends();
        // Rounding up to a whole sample does not lengthen the sound.
        assert_eq!(map.segment(1.0, 30.0), (1.0, 4.0));
        assert_eq!(map.word(29.0, 30.0), (4.0, 4.0));
    }
}
