//! Pictures, from untrusted bytes to the pixels that a vision tower reads: bounded decoding, and the
//! preprocessing of each model family. The tower itself is in the runtime.

mod canvas;
mod data_uri;
mod decode;
mod error;
mod exif;
mod jpeg;
mod lanes;
mod options;
mod picture;
mod pixels;
mod processor;
mod quarters;
mod resize;
mod resolution;
mod squares;
#[cfg(test)]
mod tests;
mod tiles;
mod turn;

pub use data_uri::{decode_base64, from_data_uri};
pub use decode::{Limits, PictureFormat, decode, decode_until};
pub use error::{PictureError, ProcessorError};
pub use options::{Detail, PictureOptions, PixelLimits};
pub use picture::{Frame, Picture, PreparedPicture};
pub use pixels::PixelScale;
pub use processor::Processor;
pub use resize::{Filter, resize};
