//! SentencePiece's byte-pair encoding (`llama` in GGUF files). Spaces become `▁`. Then the pair of neighbours whose
//! union has the best score is joined, until none is left. Characters without a piece become byte tokens. Scores
//! decide, not a list of merges.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, BinaryHeap, HashMap},
    ops::Range,
};

use tokenizers::normalizers::Precompiled;

use super::{
    added::{AddedFinder, overlaps},
    control,
    gguf::{Kind, Vocabulary},
    windows::{EncodeFailure, EncodedToken as Place, Walk, is_long},
};

/// SentencePiece's character for a space.
const SPACE: char = '▁';

/// Settings for the text around pieces.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Put a space before a text, and after each added token within it.
    pub(super) add_space: bool,
    /// Drop white space after an added token, except after `<unk>`, `<s>` and `<|endoftext|>` (Phi-3).
    pub(super) strip_after_added: bool,
    /// Map of characters to normal forms.
    pub(super) normal: Option<Precompiled>,
    /// Drop spaces around a text, and merge repeated spaces.
    pub(super) remove_extra_spaces: bool,
}

/// SentencePiece encoder.
#[derive(Debug)]
pub(super) struct SentencePiece {
    pieces: HashMap<String, Piece>,
    /// Byte tokens by byte; all of them or none.
    bytes: Option<Box<[u32; 256]>>,
    /// Token for unknown characters without byte tokens.
    unknown: Option<u32>,
    finder: AddedFinder,
    /// (ID, whether white space after it is dropped), in the finder's order.
    added: Vec<(u32, bool)>,
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    id: u32,
    score: f32,
    use_: Use,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// Written, and used for joining.
    Written,
    /// Used for joining, but split again at the end.
    Unused,
    /// Neither: control and byte tokens.
    Reserved,
}

/// Byte of a byte token's text, `<0x00>` to `<0xFF>`.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_plain)
}

impl SentencePiece {
    /// Creates the encoder of a vocabulary; `ids` are its IDs by text, `ends` the tokens that end a text. Errors
    /// name the problem with the tokens.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: &[f32],
        ids: HashMap<String, u32>,
        settings: Settings,
        ends: &[u32],
    ) -> Result<Self, String> {
        let kind = |id: u32| vocabulary.kinds[id as usize];
        let unknown = (0..vocabulary.texts.len() as u32).find(|&id| kind(id) == Kind::Unknown);
        let mut found = [None; 256];
        for (id, text) in vocabulary.texts.iter().enumerate() {
            if let Some(byte) = byte_token(text).filter(|_| kind(id as u32) == Kind::Byte) {
                found[usize::from(byte)] = Some(id as u32);
            }
        }
        let bytes = match found.iter().flatten().count() {
            256 => {
                Some(Box::new(found.map(|id| id.expect("every byte has a token because 256 were counted"))))
            }
            0 if unknown.is_some() => None,
            0 => return Err("there are neither byte tokens nor an unknown token".into()),
            some => return Err(format!("{some} of 256 byte tokens are there")),
        };
        let mut added = Vec::new();
        let mut patterns = Vec::new();
        let is_control = |id: u32| {
            let text = vocabulary.texts[id as usize].as_str();
            match kind(id) {
                Kind::UserDefined if control::has_form(text) => true,
                Kind::UserDefined | Kind::Normal => ends.contains(&id) && control::only_ends(text),
                _ => vocabulary.is_special(id),
            }
        };
        let unmarked = ends.iter().copied().filter(|&id| kind(id) == Kind::Normal && is_control(id));
        let unmarked: BTreeSet<u32> = unmarked.collect();
        for id in vocabulary.added().chain(unmarked) {
            let text = vocabulary.texts[id as usize].as_str();
            // Empty texts only pad the vocabulary.
            if text.is_empty() {
                continue;
            }
            let strips = settings.strip_after_added && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
            added.push((id, strips));
            patterns.push((text, is_control(id)));
        }
        let finder = AddedFinder::new(patterns)?;
        let pieces = ids
            .into_iter()
            .map(|(text, id)| {
                let use_ = match kind(id) {
                    _ if is_control(id) => Use::Reserved,
                    Kind::Normal | Kind::UserDefined => Use::Written,
                    Kind::Unused => Use::Unused,
                    Kind::Control | Kind::Unknown | Kind::Byte => Use::Reserved,
                };
                (text, Piece { id, score: scores[id as usize], use_ })
            })
            .collect();
        Ok(SentencePiece { pieces, bytes, unknown, finder, added, settings })
    }

    /// ID of a token by its text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.pieces.get(text).map(|piece| piece.id)
    }

    /// Appends the tokens of a text, whose bytes in `plain` spell no control token.
    ///
    /// # Errors
    /// [`EncodeFailure`].
    pub(super) fn encode(
        &self,
        text: &str,
        plain: &[Range<usize>],
        interrupted: &dyn Fn() -> bool,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        let is_plain = |part: Range<usize>| overlaps(plain, &part);
        let (mut at, mut from) = (0, 0);
        while let Some(found) = self.finder.next(text, from, &is_plain) {
            from = found.end;
            if found.start < at {
                continue; // a space that the token before it has taken
            }
            self.encode_plain(&text[at..found.start], interrupted, out)?;
            let (id, strips) = self.added[found.number];
            out.push(id);
            at = found.end;
            if strips {
                at += text[at..].len() - text[at..].trim_start().len();
            }
        }
        self.encode_plain(&text[at..], interrupted, out)
    }

    /// Appends the tokens of a text without added tokens.
    fn encode_plain(
        &self,
        text: &str,
        interrupted: &dyn Fn() -> bool,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        let Settings { add_space, normal, remove_extra_spaces, .. } = &self.settings;
        let changed = normal.as_ref().map(|map| map.normalize_string(text));
        let text = changed.as_deref().unwrap_or(text);
        let spaced = remove_extra_spaces.then(|| single_spaced(text));
        let text = spaced.as_deref().unwrap_or(text);
        if text.is_empty() {
            return Ok(());
        }
        let mut spelled = String::with_capacity(text.len() + 8);
        if *add_space {
            spelled.push(SPACE);
        }
        spelled.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let segments = |part: Range<usize>| {
            let mut merging = MergeState::new(self, &spelled[part.clone()]);
            merging.run();
            let place = |(start, end)| self.place(&spelled, part.start + start..part.start + end);
            Ok(merging.segments().into_iter().map(place).collect::<Vec<Place>>())
        };
        let mut last_unknown = false;
        let mut put = |place: Place| {
            let Place { id, start, end } = place;
            match (&self.bytes, self.unknown) {
                _ if id != UNWRITTEN => out.push(id),
                (Some(bytes), _) => {
                    out.extend(spelled[start..end].bytes().map(|byte| bytes[usize::from(byte)]));
                }
                (None, Some(unknown)) if !last_unknown => out.push(unknown),
                (None, _) => {}
            }
            last_unknown = id == UNWRITTEN && self.bytes.is_none();
            Ok(())
        };
        match is_long(&spelled) {
            true => Walk { text: &spelled, encode: &segments, interrupted, runs: None }.run(&mut put),
            false => segments(0..spelled.len())?.into_iter().try_for_each(put),
        }
    }

    /// Segment of a text, and its piece.
    fn place(&self, spelled: &str, segment: Range<usize>) -> Place {
        let piece = self.pieces.get(&spelled[segment.clone()]).filter(|piece| piece.use_ == Use::Written);
        Place { id: piece.map_or(UNWRITTEN, |piece| piece.id), start: segment.start, end: segment.end }
    }
}

/// Marks a segment without a piece.
const UNWRITTEN: u32 = u32::MAX;

/// Text without spaces at its ends, and with single spaces between words.
fn single_spaced(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !spaced.is_empty() {
            spaced.push(' ');
        }
        spaced.push_str(word);
    }
    spaced
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// Part of the text; a single character at first.
#[derive(Clone, Copy)]
struct Symbol {
    /// Byte range; empty once it is joined to its left neighbour.
    start: u32,
    end: u32,
    previous: u32,
    next: u32,
}

/// Two neighbours whose union is a piece.
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    /// Bytes of the union; if it has changed, the pair is outdated.
    length: u32,
}

impl Ord for Pair {
    /// The best score first; the leftmost on a tie.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// Merges of a text's symbols in progress.
struct MergeState<'a> {
    model: &'a SentencePiece,
    text: &'a str,
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Pair>,
    /// Boundary inside a joined unused piece, by its start and end.
    joints: HashMap<(u32, u32), u32>,
}

impl<'a> MergeState<'a> {
    fn new(model: &'a SentencePiece, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let index = symbols.len() as u32;
            let previous = index.checked_sub(1).unwrap_or(NONE);
            let end = (start + c.len_utf8()) as u32;
            symbols.push(Symbol { start: start as u32, end, previous, next: index + 1 });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        MergeState { model, text, symbols, pairs: BinaryHeap::new(), joints: HashMap::new() }
    }

    fn run(&mut self) {
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right);
        }
        while let Some(pair) = self.pairs.pop() {
            let (left, right) = (self.symbols[pair.left as usize], self.symbols[pair.right as usize]);
            let is_gone = left.start == left.end || right.start == right.end;
            if is_gone || right.end - left.start != pair.length {
                continue;
            }
            self.symbols[pair.left as usize] = Symbol { end: right.end, next: right.next, ..left };
            self.symbols[pair.right as usize].end = right.start;
            if right.next != NONE {
                self.symbols[right.next as usize].previous = pair.left;
            }
            self.consider(left.previous, pair.left);
            self.consider(pair.left, right.next);
        }
    }

    fn consider(&mut self, left: u32, right: u32) {
        if left == NONE || right == NONE {
            return;
        }
        let (start, joint) = (self.symbols[left as usize].start, self.symbols[left as usize].end);
        let end = self.symbols[right as usize].end;
        let Some(piece) = self.model.pieces.get(&self.text[start as usize..end as usize]) else { return };
        match piece.use_ {
            Use::Reserved => return,
            Use::Unused => {
                self.joints.insert((start, end), joint);
            }
            Use::Written => {}
        }
        self.pairs.push(Pair { score: piece.score, left, right, length: end - start });
    }

    /// Final segments, in order, with unused pieces split again.
    fn segments(&self) -> Vec<(usize, usize)> {
        let mut segments = Vec::new();
        let mut apart = Vec::new();
        for symbol in self.symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            apart.push((symbol.start, symbol.end));
            while let Some((start, end)) = apart.pop() {
                match self.joints.get(&(start, end)) {
                    Some(&joint) => apart.extend([(joint, end), (start, joint)]),
                    None => segments.push((start as usize, end as usize)),
                }
            }
        }
        segments
    }
}
