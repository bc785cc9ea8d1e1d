//! Strings with provenance. Every byte of a template's string belongs to the template or to the request, whatever
//! the program does with it. Text of a client must never be read as a control token; only the template may write
//! those. In doubt a byte counts as the request's.

use std::{ops::Range, sync::Arc};

use super::meter::{Meter, Outcome};

/// Bytes of a string besides its characters.
const HEADER_BYTES: usize = 64;

/// String with the origin of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Text {
    text: Arc<str>,
    origin: Origin,
    is_markup: bool,
}

#[derive(Clone, Debug)]
enum Origin {
    Template,
    Request,
    /// Byte ranges of the request: ascending, disjoint, none empty.
    Mixed(Arc<[Range<u32>]>),
}

impl Text {
    /// Creates a string of the template.
    pub(super) fn template(text: impl Into<Arc<str>>) -> Text {
        Text { text: text.into(), origin: Origin::Template, is_markup: false }
    }

    /// Creates a string of the request.
    pub(super) fn request(text: impl Into<Arc<str>>) -> Text {
        Text { text: text.into(), origin: Origin::Request, is_markup: false }
    }

    /// Creates a string of the template or the request.
    pub(super) fn of(text: impl Into<Arc<str>>, from_request: bool) -> Text {
        if from_request { Text::request(text) } else { Text::template(text) }
    }

    /// The characters.
    #[inline]
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// The characters, shared.
    pub(super) fn shared(&self) -> Arc<str> {
        self.text.clone()
    }

    /// Length in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether any byte came from the request.
    pub(super) fn has_request(&self) -> bool {
        !matches!(self.origin, Origin::Template) && !self.text.is_empty()
    }

    /// Whether it counts as HTML, like Jinja2's `Markup`: text added to it is escaped.
    pub(super) fn is_markup(&self) -> bool {
        self.is_markup
    }

    /// Sets whether it counts as HTML.
    pub(super) fn marked(self, is_markup: bool) -> Text {
        Text { is_markup, ..self }
    }

    /// Escaped for HTML.
    pub(super) fn escaped(&self, meter: &Meter) -> Outcome<Text> {
        if self.is_markup {
            return Ok(self.clone());
        }
        let escaped = self.map(meter, |c, push| {
            let escape = match c {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '"' => "&#34;",
                '\'' => "&#39;",
                other => return push(other),
            };
            escape.chars().try_for_each(push)
        });
        Ok(escaped?.marked(true))
    }

    /// Byte ranges of the request inside `range`, relative to the whole string.
    fn ranges(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (whole, mixed): (Option<Range<usize>>, &[Range<u32>]) = match &self.origin {
            Origin::Template => (None, &[]),
            Origin::Request => (Some(range.clone()), &[]),
            Origin::Mixed(ranges) => {
                let first = ranges.partition_point(|own| own.end as usize <= range.start);
                let last = ranges.partition_point(|own| (own.start as usize) < range.end);
                (None, ranges.get(first..last).unwrap_or_default())
            }
        };
        let cut =
            move |own: &Range<u32>| (own.start as usize).max(range.start)..(own.end as usize).min(range.end);
        whole.into_iter().chain(mixed.iter().map(cut)).filter(|part| !part.is_empty())
    }

    /// Substring by bytes at character boundaries.
    pub(super) fn slice(&self, meter: &Meter, range: Range<usize>) -> Outcome<Text> {
        if range.len() == self.len() {
            return Ok(self.clone());
        }
        meter.bytes(HEADER_BYTES + range.len())?;
        let text = Arc::from(&self.text[range.clone()]);
        let origin = match &self.origin {
            Origin::Template => Origin::Template,
            Origin::Request => Origin::Request,
            Origin::Mixed(_) => {
                let moved = |part: Range<usize>| part.start - range.start..part.end - range.start;
                meter.bytes(self.ranges(range.clone()).count() * size_of::<Range<usize>>())?;
                let ranges: Vec<Range<usize>> = self.ranges(range.clone()).map(moved).collect();
                Origin::new(&ranges, range.len())
            }
        };
        Ok(Text { text, origin, is_markup: self.is_markup })
    }

    /// Whether a byte in the range came from the request.
    pub(super) fn has_request_in(&self, range: Range<usize>) -> bool {
        self.ranges(range).next().is_some()
    }

    /// Runs of one origin, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&str, bool)> {
        let (mut at, mut next) = (0, None);
        let mut ranges = self.ranges(0..self.len());
        std::iter::from_fn(move || {
            if let Some(run) = next.take() {
                return Some(run);
            }
            let range = ranges.next().unwrap_or(self.len()..self.len());
            let own = (&self.text[at..range.start], false);
            at = range.end;
            let theirs = Some((&self.text[range], true)).filter(|(run, _)| !run.is_empty());
            if own.0.is_empty() {
                return theirs;
            }
            next = theirs;
            Some(own)
        })
    }

    /// Characters with their origin.
    pub(super) fn chars(&self) -> impl Iterator<Item = (char, bool)> {
        self.runs().flat_map(|(run, from_request)| run.chars().map(move |c| (c, from_request)))
    }

    /// Replaces each character by the result of `change`.
    pub(super) fn map(
        &self,
        meter: &Meter,
        mut change: impl FnMut(char, &mut dyn FnMut(char) -> Outcome<()>) -> Outcome<()>,
    ) -> Outcome<Text> {
        meter.steps(self.len() as u64)?;
        let mut made = TextBuilder::new(meter);
        for (c, from_request) in self.chars() {
            change(c, &mut |c| made.push_char(c, from_request))?;
        }
        made.finish()
    }
}

impl Origin {
    fn new(ranges: &[Range<usize>], len: usize) -> Origin {
        match ranges {
            [] => Origin::Template,
            [whole] if whole.len() == len => Origin::Request,
            _ => Origin::Mixed(ranges.iter().map(|range| range.start as u32..range.end as u32).collect()),
        }
    }
}

/// String under construction; its memory is charged as it grows.
pub(super) struct TextBuilder<'m> {
    meter: &'m Meter<'m>,
    text: String,
    ranges: Vec<Range<usize>>,
}

impl<'m> TextBuilder<'m> {
    /// Creates an empty builder.
    pub(super) fn new(meter: &'m Meter<'m>) -> Self {
        TextBuilder { meter, text: String::new(), ranges: Vec::new() }
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Meter that is charged.
    pub(super) fn meter(&self) -> &'m Meter<'m> {
        self.meter
    }

    /// Appends text of one origin.
    #[inline]
    pub(super) fn push(&mut self, text: &str, from_request: bool) -> Outcome<()> {
        self.meter.bytes(text.len())?;
        let start = self.text.len();
        self.text.push_str(text);
        if from_request { self.note(start..start + text.len()) } else { Ok(()) }
    }

    /// Appends text of the template.
    #[inline]
    pub(super) fn push_own(&mut self, text: &str) -> Outcome<()> {
        self.push(text, false)
    }

    /// Appends a character.
    pub(super) fn push_char(&mut self, c: char, from_request: bool) -> Outcome<()> {
        self.push(c.encode_utf8(&mut [0; 4]), from_request)
    }

    /// Appends a string.
    #[inline]
    pub(super) fn push_text(&mut self, text: &Text) -> Outcome<()> {
        match text.origin {
            Origin::Template => self.push(text.as_str(), false),
            Origin::Request => self.push(text.as_str(), true),
            Origin::Mixed(_) => self.push_part(text, 0..text.len()),
        }
    }

    /// Appends a part of a string, by bytes at character boundaries.
    pub(super) fn push_part(&mut self, text: &Text, range: Range<usize>) -> Outcome<()> {
        self.meter.bytes(range.len())?;
        let start = self.text.len();
        self.text.push_str(&text.as_str()[range.clone()]);
        for part in text.ranges(range.clone()) {
            self.note(part.start - range.start + start..part.end - range.start + start)?;
        }
        Ok(())
    }

    /// Appends a string repeatedly.
    pub(super) fn push_times(&mut self, text: &Text, times: usize) -> Outcome<()> {
        let bytes = text.len().saturating_mul(times);
        self.meter.bytes(bytes)?;
        self.meter.steps(times as u64)?;
        self.text.reserve(bytes);
        (0..times).try_for_each(|_| {
            let start = self.text.len();
            self.text.push_str(text.as_str());
            let ranges = text.ranges(0..text.len());
            let noted = ranges.map(|part| part.start + start..part.end + start);
            for range in noted {
                self.note(range)?;
            }
            Ok(())
        })
    }

    /// Marks everything from `start` on as the request's.
    pub(super) fn claim(&mut self, start: usize) -> Outcome<()> {
        while self.ranges.last().is_some_and(|last| last.start >= start) {
            self.ranges.pop();
        }
        if let Some(last) = self.ranges.last_mut() {
            last.end = last.end.min(start);
        }
        self.note(start..self.text.len())
    }

    fn note(&mut self, range: Range<usize>) -> Outcome<()> {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => {
                self.meter.bytes(size_of::<Range<usize>>())?;
                self.ranges.push(range);
            }
        }
        Ok(())
    }

    /// Finishes the string.
    pub(super) fn finish(self) -> Outcome<Text> {
        self.meter.bytes(HEADER_BYTES)?;
        let origin = Origin::new(&self.ranges, self.text.len());
        Ok(Text { text: self.text.into(), origin, is_markup: false })
    }

    /// The characters, and the byte ranges of the request.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.text, self.ranges)
    }
}
