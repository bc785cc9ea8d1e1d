//! Pictures in prompts. The placeholder that a chat template writes becomes the text and tokens of the family's
//! processor, among them a frame's rows.

use std::sync::Arc;

use hanzo_engine_media::{
    Frame, Picture, PictureError, PictureOptions, PixelLimits, PreparedPicture, Processor,
};
use sha2::{Digest, Sha256};

use super::spec::{Family, PerceiverSpec};
use super::{TowerFiles, TowerSpec, gemma3, pixtral};
use crate::error::{LoadError, RequestError};
use crate::limits::PICTURES_REMEMBERED;
use crate::media::{LineEnds, MediaSpan};
use crate::template::RenderedPrompt;
use crate::tokenizer::Tokenizer;

/// Prepares the pictures in a model's prompts.
#[derive(Debug)]
pub struct Sight {
    processor: Processor,
    spec: TowerSpec,
    /// Digest of the settings on which a frame's rows depend besides its pixels.
    settings: [u8; 32],
    /// Placeholder that a template writes, and the processor's replacement before tokenizing, with one placeholder
    /// for all rows.
    spelled: Option<[String; 2]>,
    /// Tokens at the end of a line, and of the last line.
    line_ends: [u32; 2],
    /// The operator's bounds on picture sizes.
    limits: PixelLimits,
}

/// Index of a frame among those of its picture, and their number.
#[derive(Clone, Copy)]
struct FramePlace {
    index: usize,
    count: usize,
}

/// Marks between the parts of a picture.
const FAKE: &str = "<fake_token_around_image>";
const GLOBAL: &str = "<global-img>";

impl Sight {
    /// Creates the preparation for a tower beside a text model with this tokenizer.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] if the tokenizer lacks the processor's tokens.
    pub(crate) fn new(files: &TowerFiles, tokenizer: &Tokenizer, file: &str) -> Result<Sight, LoadError> {
        let (family, image_token) = (files.spec.family, files.spec.image_token);
        let lacks = |token: &str, reason: &str| LoadError::Unsupported {
            file: file.to_owned(),
            key: "tokenizer".into(),
            value: token.into(),
            reason: reason.into(),
        };
        let marks: &[&str] = match family {
            Family::Idefics2 => &[FAKE],
            Family::Idefics3 => &[FAKE, GLOBAL],
            Family::Gemma3 => &gemma3::MARKS,
            Family::Pixtral => &pixtral::LINE_ENDS,
            Family::Qwen | Family::Llava | Family::Mllama | Family::Dual => &[],
        };
        for token in marks {
            if tokenizer.token_id(token).is_none_or(|id| !tokenizer.is_special(id)) {
                let reason = "it is no control token of this tokenizer, and stands around every picture";
                return Err(lacks(token, reason));
            }
        }
        // Pictures that become a vector have no place in a prompt.
        if family != Family::Dual && !tokenizer.is_special(image_token) {
            let token = format!("image_token_id {image_token}");
            return Err(lacks(&token, "it is no control token of this tokenizer, and a picture's place"));
        }
        let spelled = (family == Family::Gemma3).then(|| {
            let [before, behind] = gemma3::MARKS;
            let place = String::from_utf8_lossy(tokenizer.token_bytes(image_token)).into_owned();
            [before.to_owned(), format!("\n\n{before}{place}{behind}\n\n")]
        });
        Ok(Sight {
            processor: files.processor.clone(),
            spec: files.spec.clone(),
            settings: Sha256::digest(format!("{:?} {:?}", files.processor, files.spec)).into(),
            spelled,
            limits: PixelLimits::default(),
            line_ends: match family {
                Family::Pixtral => {
                    pixtral::LINE_ENDS.map(|token| tokenizer.token_id(token).unwrap_or_default())
                }
                _ => [files.spec.stand_in.unwrap_or(image_token); 2],
            },
        })
    }

    /// Elements of a row that a frame becomes.
    pub(crate) fn row_width(&self) -> usize {
        self.spec.row_width()
    }

    /// Token that stands in prompts for a given row, if the image token is outside the vocabulary.
    #[cfg(test)]
    pub(super) fn stand_in(&self) -> Option<u32> {
        self.spec.stand_in
    }

    /// Whether a span is a frame of this tower.
    pub(crate) fn fits(&self, span: &MediaSpan) -> bool {
        let sides = span.whole.map(|rows| (rows as usize).saturating_mul(self.spec.square()));
        let whole = |perceiver: &PerceiverSpec| span.grid == [1, perceiver.latents as u32];
        // For a tall picture so narrow that no column of the canvas belongs to it, only the line ends are left.
        let least = [1, u32::from(span.ends != LineEnds::Each)];
        let middle = span.whole.iter().zip(span.grid).zip(least).all(|((&whole, wanted), least)| {
            let beside = whole.checked_sub(wanted);
            wanted >= least
                && beside.is_some_and(|beside| beside.is_multiple_of(2) && (beside == 0 || self.spec.lines))
        });
        let ends = match span.ends {
            LineEnds::Tokens => self.spec.family == Family::Pixtral,
            LineEnds::None => self.spec.family != Family::Pixtral,
            LineEnds::Last | LineEnds::Each => self.spec.lines,
        };
        let middle = self.spec.perceiver.as_ref().map_or(middle, whole);
        let middle = if self.spec.mosaic.is_some() { span.grid == [1, 1] } else { middle };
        let tokens = span.ends.tokens(span.grid.map(|side| side as usize));
        let grid = self.spec.grid(sides).filter(|_| middle && ends && tokens == span.tokens);
        grid.is_some_and(|grid| self.spec.frame_bytes(grid) == span.pixels.len())
            && span.in_plane == self.spec.axes.is_some()
            && span.mutual == self.spec.mutual
            && span.remembered == self.spec.remembered(span.whole)
    }

    /// Placeholder for templates that write none for pictures, and its form in the model's own template. LLaVA's
    /// first models had the templates of their text models, and Ollama's templates leave pictures to the program.
    pub(crate) fn by_letter(&self, tokenizer: &Tokenizer) -> Option<[String; 2]> {
        let place = String::from_utf8_lossy(tokenizer.token_bytes(self.spec.image_token)).into_owned();
        let written = match self.spec.family {
            Family::Dual => return None,
            Family::Llava => format!("{place}\n"),
            Family::Qwen => format!("<|vision_start|>{place}<|vision_end|>"),
            Family::Gemma3 => {
                let [before, _] = gemma3::MARKS;
                return Some([before.to_owned(), before.to_owned()]);
            }
            Family::Idefics2 | Family::Idefics3 | Family::Pixtral | Family::Mllama => place.clone(),
        };
        Some([place, written])
    }

    /// Number of tokens that a picture has in a prompt, line ends included.
    pub fn rows_of(&self, picture: &PreparedPicture) -> usize {
        let tokens = |(index, frame)| {
            let place = FramePlace { index, count: picture.frames.len() };
            let (grid, _, ends) = self.shape(picture.from, place, frame);
            ends.tokens(grid.map(|side| side as usize))
        };
        picture.frames.iter().enumerate().map(tokens).sum()
    }

    /// Shape of a picture's frame: rows and columns that are wanted, those of the whole frame, and its line ends.
    fn shape(
        &self,
        from: [u32; 2],
        FramePlace { index, count }: FramePlace,
        frame: &Frame,
    ) -> ([u32; 2], [u32; 2], LineEnds) {
        let side = self.spec.square() as u32;
        let whole = [frame.height / side, frame.width / side];
        if let Some(perceiver) = &self.spec.perceiver {
            return ([1, perceiver.latents as u32], whole, LineEnds::None);
        }
        if self.spec.mosaic.is_some() {
            return ([1, 1], whole, LineEnds::None);
        }
        let on_canvas = self.spec.lines && index > 0;
        let ends = match self.spec.family {
            Family::Pixtral => LineEnds::Tokens,
            _ if on_canvas => LineEnds::Each,
            _ if self.spec.lines && count == 1 => LineEnds::Last,
            _ => LineEnds::None,
        };
        (if on_canvas { covered(from, whole) } else { whole }, whole, ends)
    }

    /// Applies the processor's changes to a rendered prompt before it is tokenized.
    pub(crate) fn spell(&self, rendered: &mut RenderedPrompt) {
        if let Some([place, spelled]) = &self.spelled {
            rendered.respell(place, spelled);
        }
        if self.spec.family == Family::Idefics2 {
            rendered.respell_each(marked);
        }
    }

    /// Sets the operator's bounds for pictures that keep about their own size.
    pub fn bound(&mut self, limits: PixelLimits) {
        self.limits = limits;
    }

    /// Prepares a picture for the tower. In families that scale pictures between bounds, it is scaled to the
    /// tower's maximum.
    ///
    /// # Errors
    /// As for [`Processor::prepare`], and [`PictureError::TooManyPatches`].
    pub fn prepare(
        &self,
        picture: Picture,
        options: PictureOptions,
    ) -> Result<PreparedPicture, PictureError> {
        let max = self.spec.patches_max;
        let most = (max * self.spec.patch.pow(2)) as u64;
        let limits = PixelLimits { most: self.limits.most.min(most), ..self.limits };
        let prepared = self.processor.prepare_within(picture, options, limits)?;
        for &Frame { width, height, .. } in &prepared.frames {
            let patch = self.spec.patch;
            let patches = width as usize / patch * (height as usize / patch);
            if patches > max {
                let pixels = (max * patch * patch) as u64;
                return Err(PictureError::TooManyPatches { width, height, patches, max, pixels });
            }
        }
        Ok(prepared)
    }

    /// Span of a picture whose frame becomes a vector; `None` if its rows belong in a prompt.
    pub fn alone(&self, picture: PreparedPicture) -> Option<MediaSpan> {
        let frame = picture.frames.into_iter().next().filter(|_| self.spec.pooled.is_some())?;
        Some(self.span(picture.from, FramePlace { index: 0, count: 1 }, frame, 0))
    }

    /// Puts pictures at the placeholders that the template wrote, in order. Returns the tokens and the pictures'
    /// spans.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the number of placeholders and pictures differ.
    pub fn place(
        &self,
        tokens: &[u32],
        pictures: Vec<PreparedPicture>,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
        let (placeholder, count) = (self.spec.image_token, pictures.len());
        let places = tokens.iter().filter(|&&token| token == placeholder).count();
        if places != count {
            let reason = format!("the chat template has places for {places} pictures, and there are {count}");
            return Err(RequestError::invalid("chat.messages", reason));
        }
        if self.spec.mosaic.is_some() && count > PICTURES_REMEMBERED {
            let reason = format!(
                "a prompt of this model has {PICTURES_REMEMBERED} pictures at most, and this one {count}"
            );
            return Err(RequestError::invalid("chat.messages", reason));
        }
        let (mut all, mut spans) = (Vec::with_capacity(tokens.len()), Vec::new());
        let mut pictures = pictures.into_iter();
        for &token in tokens {
            if token != placeholder {
                all.push(token);
            } else if let Some(picture) = pictures.next() {
                self.put(picture, tokenizer, &mut all, &mut spans)?;
            }
        }
        Ok((all, spans))
    }

    /// Writes a picture as the family's processor does: between marks (`processing_idefics3.py`), or only its rows.
    fn put(
        &self,
        picture: PreparedPicture,
        tokenizer: &Tokenizer,
        tokens: &mut Vec<u32>,
        spans: &mut Vec<MediaSpan>,
    ) -> Result<(), RequestError> {
        let PreparedPicture { from, frames, rows, cols } = picture;
        let parts = rows as usize * cols as usize;
        let marks = self.spec.family == Family::Idefics3;
        let between = match self.spec.family {
            Family::Idefics2 => tokenizer.encode(FAKE, false)?,
            _ => Vec::new(),
        };
        let count = frames.len();
        for (index, frame) in frames.into_iter().enumerate() {
            if marks {
                let before = if index < parts {
                    let (row, col) = (index as u32 / cols, index as u32 % cols);
                    let line = if col == 0 && row > 0 { "\n" } else { "" };
                    format!("{line}{FAKE}<row_{}_col_{}>", row + 1, col + 1)
                } else if parts > 0 {
                    format!("\n\n{FAKE}{GLOBAL}")
                } else {
                    format!("{FAKE}{GLOBAL}")
                };
                tokens.extend(tokenizer.encode(&before, false)?);
            }
            if index > 0 {
                tokens.extend(&between);
            }
            let span = self.span(from, FramePlace { index, count }, frame, tokens.len());
            // For a picture so narrow that no row of the canvas belongs to it, the canvas is left out.
            if span.tokens == 0 {
                continue;
            }
            let end = span.first + span.tokens;
            tokens.extend((span.first..end).map(|token| match span.is_token(token) {
                true => self.line_ends[usize::from(token + 1 == end)],
                false => self.spec.stand_in.unwrap_or(self.spec.image_token),
            }));
            spans.push(span);
        }
        if marks {
            tokens.extend(tokenizer.encode(FAKE, false)?);
        }
        Ok(())
    }

    /// Span of a picture's frame whose rows start at the prompt's token `first`.
    fn span(&self, from: [u32; 2], place: FramePlace, frame: Frame, first: usize) -> MediaSpan {
        let side = self.spec.square() as u32;
        let (grid, whole, ends) = self.shape(from, place, &frame);
        let mut hash = Sha256::new().chain_update(self.settings).chain_update(&frame.rgb);
        for side in [grid, whole].as_flattened() {
            hash.update(side.to_le_bytes());
        }
        hash.update([ends as u8]);
        let remembered = self.spec.remembered(whole);
        // Frames of a fixed size have pixels beyond their last patch if the patch size does not divide it.
        let pixels = self.cropped(frame, whole.map(|rows| rows * side));
        MediaSpan {
            first,
            tokens: ends.tokens(grid.map(|side| side as usize)),
            digest: hash.finalize().into(),
            rows: Arc::default(),
            pixels: pixels.into(),
            grid,
            whole,
            ends,
            in_plane: self.spec.axes.is_some(),
            mutual: self.spec.mutual,
            remembered,
        }
    }

    /// Crops a frame to its first rows and columns.
    fn cropped(&self, frame: Frame, [height, width]: [u32; 2]) -> Vec<u8> {
        if [frame.height, frame.width] == [height, width] {
            return frame.rgb;
        }
        let lines = frame.rgb.chunks_exact(frame.width as usize * 3).take(height as usize);
        lines.flat_map(|line| &line[..width as usize * 3]).copied().collect()
    }
}

/// Idefics2's processing of text from a template, given the character after it (`processing_idefics2.py`): a mark
/// on each side of a picture, a single one between two, and a space before a following word.
fn marked(written: &str, next: Option<char>) -> String {
    const PLACE: &str = "<image>";
    let twice = FAKE.repeat(2);
    let text = written.replace(PLACE, &[FAKE, PLACE, FAKE].concat()).replace(&twice, FAKE);
    let mut spaced = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once(FAKE) {
        spaced.push_str(before);
        spaced.push_str(FAKE);
        let follows = behind.chars().next().or(next);
        if follows.is_some_and(|letter| !letter.is_whitespace() && letter != '<') {
            spaced.push(' ');
        }
        rest = behind;
    }
    spaced.push_str(rest);
    spaced
}

/// Rows and columns in the middle of a canvas that contain parts of a picture with `from` pixel rows and columns,
/// as the reference computes them (`unpad_image`).
fn covered(from: [u32; 2], [rows, cols]: [u32; 2]) -> [u32; 2] {
    let [height, width] = from.map(f64::from);
    let near = |length: f64| (length * 1e7).round_ties_even() / 1e7;
    let [all_rows, all_cols] = [rows, cols].map(f64::from);
    if width / height > all_cols / all_rows {
        let high = near(height * (all_cols / width)) as u32;
        [rows - rows.saturating_sub(high) / 2 * 2, cols]
    } else {
        let wide = near(width * (all_rows / height)) as u32;
        [rows, cols - cols.saturating_sub(wide) / 2 * 2]
    }
}
