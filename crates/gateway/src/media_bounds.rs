//! Bounds on the resolution of images: `min_pixels` and `max_pixels`, of one image or of all images of a
//! request. Bounds that cannot be honoured are refused by name, because ignoring them would silently cost
//! tokens or detail.

use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    error::ApiError,
    fields::{Field, Fields},
    media_url::is_sound,
};

/// Bounds on images, videos or audio that client libraries send and that are not supported.
const REFUSED: [&str; 18] = [
    "resized_height",
    "resized_width",
    "total_pixels",
    "nframes",
    "num_frames",
    "min_frames",
    "max_frames",
    "sample_fps",
    "video_start",
    "video_end",
    "min_dynamic_patch",
    "max_dynamic_patch",
    "num_crops",
    "max_crops",
    "max_patches",
    "sampling_rate",
    "audio_start",
    "audio_end",
];

/// Minimum and maximum pixels of a resized image.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct MediaBounds {
    pub(crate) min_pixels: Option<u64>,
    pub(crate) max_pixels: Option<u64>,
}

impl MediaBounds {
    /// Bounds of one part. They are next to its image, or in the `inner` object that holds it.
    pub(crate) fn of_part<'a>(
        fields: &mut Fields<'a>,
        inner: &mut Option<Fields<'a>>,
    ) -> Result<MediaBounds, ApiError> {
        refuse_others(fields)?;
        let mut bound = |name| placed(fields, inner, name)?.map(pixels).transpose();
        Ok(MediaBounds { min_pixels: bound("min_pixels")?, max_pixels: bound("max_pixels")? })
    }

    /// vLLM's `mm_processor_kwargs` of a whole request: bounds for each image that has none itself.
    /// `media_io_kwargs`, about how files are read, must be empty.
    pub(crate) fn of_request(fields: &mut Fields) -> Result<MediaBounds, ApiError> {
        if let Some(field) = fields.take("media_io_kwargs") {
            let kinds = field.object()?;
            for kind in kinds.names() {
                let named = kinds.clone().take(&kind).map(Field::object).transpose()?;
                nothing_in(named.as_ref())?;
            }
        }
        let Some(field) = fields.take("mm_processor_kwargs") else { return Ok(MediaBounds::default()) };
        let mut kwargs = Some(field.object()?);
        // The name of the same bounds in transformers.
        let mut size =
            kwargs.as_mut().and_then(|kwargs| kwargs.take("size")).map(Field::object).transpose()?;
        let mut bound = |name: &str, edge: &str| {
            let of_size = size.as_mut().and_then(|size| size.take(edge));
            let named = kwargs.as_mut().and_then(|kwargs| kwargs.take(name));
            agreed(named, of_size, name)?.map(pixels).transpose()
        };
        let bounds = MediaBounds {
            min_pixels: bound("min_pixels", "shortest_edge")?,
            max_pixels: bound("max_pixels", "longest_edge")?,
        };
        nothing_in(size.as_ref())?;
        nothing_in(kwargs.as_ref())?;
        Ok(bounds)
    }

    /// Applies the bounds to the images of a conversation that have none.
    pub(crate) fn apply(self, messages: &mut [v1::Message]) {
        for part in messages.iter_mut().flat_map(|message| &mut message.content) {
            let Some(Part::Media(media)) = &mut part.part else { continue };
            if is_sound(media) {
                continue;
            }
            media.min_pixels = media.min_pixels.or(self.min_pixels);
            media.max_pixels = media.max_pixels.or(self.max_pixels);
        }
    }
}

/// Refuses unsupported bounds of images, videos or audio.
pub(crate) fn refuse_others(fields: &mut Fields) -> Result<(), ApiError> {
    REFUSED.iter().find_map(|name| fields.take(name)).map_or(Ok(()), |field| Err(refused(&field.path())))
}

/// Reads a field next to an image or in the object that holds it.
pub(crate) fn placed<'a>(
    fields: &mut Fields<'a>,
    inner: &mut Option<Fields<'a>>,
    name: &str,
) -> Result<Option<Field<'a>>, ApiError> {
    agreed(inner.as_mut().and_then(|inner| inner.take(name)), fields.take(name), name)
}

fn agreed<'a>(
    one: Option<Field<'a>>,
    other: Option<Field<'a>>,
    name: &str,
) -> Result<Option<Field<'a>>, ApiError> {
    match (one, other) {
        (Some(one), Some(other)) if one.value().to_text() != other.value().to_text() => {
            Err(other.error(format!("says another {name} than {}; send one of them", one.path())))
        }
        (one, other) => Ok(one.or(other)),
    }
}

fn pixels(field: Field) -> Result<u64, ApiError> {
    field.integer(1..=u32::MAX).map(u64::from)
}

fn nothing_in(fields: Option<&Fields>) -> Result<(), ApiError> {
    let left = fields.into_iter().find_map(|fields| {
        let given = fields.names().into_iter().find(|name| fields.gives(name))?;
        Some(fields.path_of(&given))
    });
    left.map_or(Ok(()), |path| Err(refused(&path)))
}

fn refused(path: &str) -> ApiError {
    let problem = "not supported by this build; pictures are bounded by min_pixels and max_pixels, and \
                   films are sent as their frames";
    ApiError::unsupported(path, problem)
}
