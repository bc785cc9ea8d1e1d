//! Inputs made from other inputs, the same ones for the same seed: what a fuzzer does without knowing what it reaches.

/// Numbers at the edges of their types, as they stand in a file.
const EDGES: [u64; 9] =
    [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX, u64::MAX / 8 + 1];
/// What texts are made of: ends, escapes, nesting, other kinds of values.
const WORDS: [&str; 20] = [
    "\"", "\\", "\\u0000", "\\ud800", "{", "}", "[", "]", "{{", "{%", "null", "-1", "1e999", "\n", "\0",
    "..", "/", "\u{f8ff}", "\u{feff}", "0",
];
/// Bytes of an input.
const BYTES_MAX: usize = 1 << 16;

/// Makes inputs from those of a corpus.
pub struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutator<'a> {
    /// Of a corpus, which is not empty.
    pub fn new(corpus: &'a [Vec<u8>], seed: u64) -> Self {
        Self { corpus, state: seed.wrapping_mul(2).wrapping_add(1) }
    }

    /// The next input: one of the corpus, changed in one to eight places.
    pub fn input(&mut self) -> Vec<u8> {
        let corpus = self.corpus;
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(8) {
            self.change(&mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let from = self.below(input.len() + 1);
        let to = (from + 1 + self.below(16)).min(input.len());
        match self.below(9) {
            0 if from < input.len() => input[from] ^= 1 << self.below(8),
            1 if from < input.len() => input[from] = self.below(256) as u8,
            2 if from < to => drop(input.drain(from..to)),
            3 => drop(input.splice(from..to, self.below(256).to_string().into_bytes())),
            4 => {
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][self.below(4)];
                drop(input.splice(from..(from + width).min(input.len()), edge[..width].iter().copied()));
            }
            5 => drop(input.splice(from..from, WORDS[self.below(WORDS.len())].bytes())),
            6 => {
                let piece = input[from..(from + 64).min(input.len())].to_vec();
                let at = self.below(input.len() + 1);
                input.splice(at..at, piece);
            }
            7 => {
                let other = &self.corpus[self.below(self.corpus.len())];
                let first = self.below(other.len() + 1);
                let last = (first + 1 + self.below(128)).min(other.len());
                drop(input.splice(from..to, other[first..last.max(first)].iter().copied()));
            }
            _ => input.truncate(from),
        }
    }

    /// xorshift64*: a number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}
