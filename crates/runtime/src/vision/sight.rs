//! What a prompt says of pictures: the placeholder that a chat template writes becomes what the family's processor puts there,
//! some of which are a frame's rows.

use std::sync::Arc;

use hanzo_engine_media::{Detail, Picture, PictureError, Prepared, Processor};
use sha2::{Digest, Sha256};

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
        for token in [FAKE, GLOBAL] {
            if tokenizer.token_id(token).is_none_or(|id| !tokenizer.is_special(id)) {
                return Err(LoadError::Unsupported {
                    file: file.to_owned(),
                    key: "tokenizer".into(),
                    value: token.into(),
                    reason: "it is no control token of this tokenizer, and stands around every picture"
                        .into(),
                });
            }
        }
        Ok(sight)
    }

    /// Rows that a frame has in a prompt, and bytes of its pixels.
    pub(crate) fn frame(&self) -> (usize, usize) {
        (self.spec.rows(), self.spec.frame_bytes())
    }

    /// Rows that a frame has in a prompt.
    pub fn frame_rows(&self) -> usize {
        self.spec.rows()
    }

    /// What a picture becomes.
    ///
    /// # Errors
    /// As [`Processor::prepare`].
    pub fn prepare(&self, picture: Picture, detail: Detail) -> Result<Prepared, PictureError> {
        self.processor.prepare(picture, detail)
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

    /// A picture as Idefics3's processor writes it (`processing_idefics3.py`).
    fn put(
        &self,
        picture: Prepared,
        tokenizer: &Tokenizer,
        tokens: &mut Vec<u32>,
        spans: &mut Vec<MediaSpan>,
    ) -> Result<(), RequestError> {
        let Prepared { frames, rows, cols } = picture;
        let parts = rows as usize * cols as usize;
        for (index, frame) in frames.into_iter().enumerate() {
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
            let hash = Sha256::new().chain_update(self.settings).chain_update(&frame.rgb);
            spans.push(MediaSpan {
                first: tokens.len(),
                tokens: self.spec.rows(),
                digest: hash.finalize().into(),
                rows: Arc::default(),
                pixels: frame.rgb.into(),
            });
            tokens.extend(std::iter::repeat_n(self.spec.image_token, self.spec.rows()));
        }
        tokens.extend(tokenizer.encode(FAKE, false)?);
        Ok(())
    }
}
