//! What a prompt says of pictures: the placeholder that a chat template writes becomes what the family's processor puts there,
//! some of which are a frame's rows.

use std::sync::Arc;

use hanzo_engine_media::{Frame, Look, Picture, PictureError, Prepared, Processor};
use sha2::{Digest, Sha256};

use super::spec::Family;
use super::{TowerFiles, TowerSpec};
use crate::error::{LoadError, RequestError};
use crate::media::MediaSpan;
use crate::tokenizer::Tokenizer;

/// Stands for a picture in the content of a message. It is no character (Unicode 16.0, 23.7), so no text has it.
pub const PICTURE: char = '\u{fdd0}';

/// How pictures come into the prompts of a model.
#[derive(Debug)]
pub struct Sight {
    processor: Processor,
    spec: TowerSpec,
    /// Names what frames' rows depend on besides their pixels.
    settings: [u8; 32],
}

/// Between the parts of a picture.
const FAKE: &str = "<fake_token_around_image>";
const GLOBAL: &str = "<global-img>";

impl Sight {
    /// Of a tower beside a text model with this tokenizer.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] where the tokenizer does not know what the processor writes.
    pub(crate) fn new(files: &TowerFiles, tokenizer: &Tokenizer, file: &str) -> Result<Sight, LoadError> {
        let sight = Sight {
            processor: files.processor.clone(),
            spec: files.spec.clone(),
            settings: Sha256::digest(format!("{:?} {:?}", files.processor, files.spec)).into(),
        };
        let marks: &[&str] = match sight.spec.family {
            Family::Idefics3 => &[FAKE, GLOBAL],
            Family::Qwen => &[],
        };
        let lacks = |token: &str, reason: &str| LoadError::Unsupported {
            file: file.to_owned(),
            key: "tokenizer".into(),
            value: token.into(),
            reason: reason.into(),
        };
        for token in marks {
            if tokenizer.token_id(token).is_none_or(|id| !tokenizer.is_special(id)) {
                let reason = "it is no control token of this tokenizer, and stands around every picture";
                return Err(lacks(token, reason));
            }
        }
        if !tokenizer.is_special(sight.spec.image_token) {
            let token = format!("image_token_id {}", sight.spec.image_token);
            return Err(lacks(&token, "it is no control token of this tokenizer, and a picture's place"));
        }
        Ok(sight)
    }

    /// Numbers of a row that a frame becomes.
    pub(crate) fn row_width(&self) -> usize {
        self.spec.row_width()
    }

    /// Whether a span is a frame of the model's tower.
    pub(crate) fn fits(&self, span: &MediaSpan) -> bool {
        let sides = span.grid.map(|rows| (rows as usize).saturating_mul(self.spec.square()));
        let grid = self.spec.grid(sides);
        grid.is_some_and(|grid| {
            (grid.count(), self.spec.frame_bytes(grid)) == (span.tokens, span.pixels.len())
        }) && span.in_plane == self.spec.axes.is_some()
    }

    /// Rows that a picture has in a prompt.
    pub fn rows_of(&self, picture: &Prepared) -> usize {
        let pixels = |frame: &Frame| frame.width as usize * frame.height as usize;
        let square = self.spec.square() * self.spec.square();
        picture.frames.iter().map(|frame| pixels(frame) / square).sum()
    }

    /// What a picture becomes.
    ///
    /// # Errors
    /// As [`Processor::prepare`], and [`PictureError::TooManyPatches`].
    pub fn prepare(&self, picture: Picture, look: Look) -> Result<Prepared, PictureError> {
        let prepared = self.processor.prepare(picture, look)?;
        let max = self.spec.patches_max;
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

    /// A prompt's tokens with pictures in the places that the template has given them, in order.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] where the template has written another number of places.
    pub fn place(
        &self,
        tokens: &[u32],
        pictures: Vec<Prepared>,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
        let (placeholder, count) = (self.spec.image_token, pictures.len());
        let places = tokens.iter().filter(|&&token| token == placeholder).count();
        if places != count {
            let reason = format!("the chat template has places for {places} pictures, and there are {count}");
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

    /// A picture as the family's processor writes it: between marks (`processing_idefics3.py`), or nothing but its rows.
    fn put(
        &self,
        picture: Prepared,
        tokenizer: &Tokenizer,
        tokens: &mut Vec<u32>,
        spans: &mut Vec<MediaSpan>,
    ) -> Result<(), RequestError> {
        let Prepared { frames, rows, cols } = picture;
        let parts = rows as usize * cols as usize;
        let marks = self.spec.family == Family::Idefics3;
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
            let span = self.span(frame, tokens.len());
            tokens.extend(std::iter::repeat_n(self.spec.image_token, span.tokens));
            spans.push(span);
        }
        if marks {
            tokens.extend(tokenizer.encode(FAKE, false)?);
        }
        Ok(())
    }

    /// A frame whose rows begin with a prompt's token `first`.
    fn span(&self, frame: Frame, first: usize) -> MediaSpan {
        let side = self.spec.square() as u32;
        let grid = [frame.height / side, frame.width / side];
        let mut hash = Sha256::new().chain_update(self.settings).chain_update(&frame.rgb);
        for side in grid {
            hash.update(side.to_le_bytes());
        }
        // Frames of one size have pixels beyond their last patch where patches do not divide it.
        let pixels = self.cropped(frame, grid.map(|rows| rows * side));
        MediaSpan {
            first,
            tokens: (grid[0] * grid[1]) as usize,
            digest: hash.finalize().into(),
            rows: Arc::default(),
            pixels: pixels.into(),
            grid,
            in_plane: self.spec.axes.is_some(),
        }
    }

    /// The first rows and columns of a frame.
    fn cropped(&self, frame: Frame, [height, width]: [u32; 2]) -> Vec<u8> {
        if [frame.height, frame.width] == [height, width] {
            return frame.rgb;
        }
        let lines = frame.rgb.chunks_exact(frame.width as usize * 3).take(height as usize);
        lines.flat_map(|line| &line[..width as usize * 3]).copied().collect()
    }
}
