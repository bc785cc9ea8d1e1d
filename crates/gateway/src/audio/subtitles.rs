//! Segments as subtitles, for HTTP and the command line.

use std::fmt::Write as _;

use hanzo_engine_proto::v1::TranscriptSegment;

/// Subtitles in SubRip format.
pub fn srt<'a>(segments: impl Iterator<Item = &'a TranscriptSegment>) -> String {
    subtitles(segments, "", ',')
}

/// Subtitles in WebVTT format.
pub fn vtt<'a>(segments: impl Iterator<Item = &'a TranscriptSegment>) -> String {
    subtitles(segments, "WEBVTT\n\n", '.')
}

/// Writes subtitles. SubRip numbers them, WebVTT has a head.
fn subtitles<'a>(segments: impl Iterator<Item = &'a TranscriptSegment>, head: &str, point: char) -> String {
    let mut out = head.to_owned();
    for (at, segment) in segments.enumerate() {
        if head.is_empty() {
            let _ = writeln!(out, "{}", at + 1);
        }
        // An arrow would end the text of a cue.
        let text = segment.text.trim().replace("-->", "->");
        let (start, end) = (clock(segment.start_s, point), clock(segment.end_s, point));
        let _ = write!(out, "{start} --> {end}\n{text}\n\n");
    }
    out
}

fn clock(seconds: f64, point: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (ms, s, min, h) = (all % 1000, all / 1000 % 60, all / 60_000 % 60, all / 3_600_000);
    format!("{h:02}:{min:02}:{s:02}{point}{ms:03}")
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::TranscriptSegment;

    use super::{clock, srt, vtt};

    #[test]
    fn subtitles_are_as_players_read_them() {
        let segment = |start_s, end_s, text: &str| TranscriptSegment {
            start_s,
            end_s,
            text: text.to_owned(),
            ..Default::default()
        };
        let all = [segment(0.0, 1.25, " One."), segment(3661.9996, 7200.0, " Two --> three.")];
        let expected =
            "1\n00:00:00,000 --> 00:00:01,250\nOne.\n\n2\n01:01:02,000 --> 02:00:00,000\nTwo -> three.\n\n";
        assert_eq!(srt(all.iter()), expected);
        let expected = "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nOne.\n\n01:01:02.000 --> 02:00:00.000\nTwo -> three.\n\n";
        assert_eq!(vtt(all.iter()), expected);
        assert_eq!(clock(-1.0, '.'), "00:00:00.000");
    }
}
