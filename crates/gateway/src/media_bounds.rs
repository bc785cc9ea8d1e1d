//! Bounds on the resolution of images: `min_pixels` and `max_pixels`, of one image or of all images of a
//! request. Bounds that cannot be honoured are refused by name, because ignoring them would silently cost
//! tokens or detail.

use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    declare::{Declaration as _, Raw, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    media_url::is_sound,
    unsupported::{self, MEDIA_BOUNDS},
};

/// Minimum and maximum pixels of a resized image.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct MediaBounds {
    pub(crate) min_pixels: Option<u64>,
    pub(crate) max_pixels: Option<u64>,
}

impl MediaBounds {
    /// Reads vLLM's `mm_processor_kwargs`. Nothing else may be in it.
    fn of_kwargs(field: Field) -> Result<MediaBounds, ApiError> {
        let mut fields = field.object()?;
        let PictureBounds { min_pixels, max_pixels, mut size } = PictureBounds::read(&mut fields)?;
        let mut bound = |name: &str, named, edge: &str| {
            let of_size = size.as_mut().and_then(|size| size.take(edge));
            agreed(named, of_size, name)?.map(pixels).transpose()
        };
        let bounds = MediaBounds {
            min_pixels: bound("min_pixels", min_pixels, "shortest_edge")?,
            max_pixels: bound("max_pixels", max_pixels, "longest_edge")?,
        };
        nothing_in(size.as_ref())?;
        nothing_in(Some(&fields))?;
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

fields! {
    /// Bounds on all media of a request.
    pub(crate) struct MediaFields<'a> {
        /// vLLM's bounds on each image that has none itself.
        mm_processor_kwargs?: MediaBounds = Read("PictureBounds", MediaBounds::of_kwargs),
        /// vLLM's settings of how files are read. They must be empty.
        media_io_kwargs?: Fields<'a> = Read("object", Field::object),
    }
}

fields! {
    /// Bounds on the resolution of images.
    pub(crate) struct PictureBounds<'a> {
        /// Least pixels that an image is resized to.
        min_pixels?: Field<'a> = Raw("integer 1..4294967295"),
        /// Most pixels that an image is resized to.
        max_pixels?: Field<'a> = Raw("integer 1..4294967295"),
        /// Object with shortest_edge and longest_edge, the names of the same bounds in transformers.
        size?: Fields<'a> = Read("object", Field::object),
    }
}

impl MediaFields<'_> {
    /// Bounds on each image that has none itself.
    pub(crate) fn bounds(&self) -> Result<MediaBounds, ApiError> {
        if let Some(kinds) = &self.media_io_kwargs {
            for kind in kinds.clone().rest() {
                nothing_in(Some(&kind.object()?))?;
            }
        }
        Ok(self.mm_processor_kwargs.unwrap_or_default())
    }
}

fields! {
    /// Bounds on one image. They are beside it, or in the object that holds it.
    #[derive(Clone, Copy, Default)]
    pub(crate) struct BoundFields<'a> {
        /// Least pixels that the image is resized to, where a model takes images of any size.
        min_pixels?: Field<'a> = Raw("integer 1..4294967295 | null"),
        /// Most pixels that the image is resized to, likewise.
        max_pixels?: Field<'a> = Raw("integer 1..4294967295 | null"),
    }
}

/// Refuses bounds that client libraries put beside an image or a sound, and that have no function here.
pub(crate) fn refuse_others(fields: &mut Fields) -> Result<(), ApiError> {
    unsupported::refuse(fields, &[&MEDIA_BOUNDS])
}

impl BoundFields<'_> {
    /// Refuses these bounds where no image is.
    pub(crate) fn none(self) -> Result<(), ApiError> {
        match self.min_pixels.or(self.max_pixels) {
            Some(field) => Err(field.error("only allowed with an image")),
            None => Ok(()),
        }
    }

    /// These bounds beside an image, and those in the object that holds it.
    pub(crate) fn with(self, inner: BoundFields) -> Result<MediaBounds, ApiError> {
        let bound = |one, other, name| agreed(one, other, name)?.map(pixels).transpose();
        Ok(MediaBounds {
            min_pixels: bound(inner.min_pixels, self.min_pixels, "min_pixels")?,
            max_pixels: bound(inner.max_pixels, self.max_pixels, "max_pixels")?,
        })
    }
}

/// Value of a field at two places, which must be the same.
pub(crate) fn agreed<'a>(
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
    let left = fields.and_then(|fields| Some(fields.path_of(fields.first_given()?)));
    left.map_or(Ok(()), |path| Err(refused(&path)))
}

fn refused(path: &str) -> ApiError {
    let problem = "not supported by this build; pictures are bounded by min_pixels and max_pixels, and \
                   films are sent as their frames";
    ApiError::unsupported(path, problem)
}
