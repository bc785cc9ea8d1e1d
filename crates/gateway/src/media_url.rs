//! Images and audio given by URL. Their URLs are fetched before the engine is asked (`media_hosts`).

use hanzo_engine_proto::v1;

/// Prefix of the media type of an image given by URL; the part's path follows. No client sends such a media
/// type.
pub(crate) const NAMED_PICTURE: &str = "at ";

/// Prefix of the media type of audio given by URL.
pub(crate) const NAMED_SOUND: &str = "sound at ";

/// Image or audio given by URL.
pub(crate) struct MediaUrl<'a> {
    /// Path in the body.
    pub(crate) path: &'a str,
    pub(crate) url: &'a str,
    pub(crate) is_sound: bool,
}

/// URL and path of a part that was given by URL.
pub(crate) fn named(media: &v1::Media) -> Option<MediaUrl<'_>> {
    let of = |start| media.mime_type.strip_prefix(start);
    let (path, is_sound) = match of(NAMED_PICTURE) {
        Some(path) => (path, false),
        None => (of(NAMED_SOUND)?, true),
    };
    Some(MediaUrl { path, url: std::str::from_utf8(&media.data).ok()?, is_sound })
}

/// Whether a part is audio.
pub(crate) fn is_sound(media: &v1::Media) -> bool {
    media.mime_type.starts_with("audio/") || media.mime_type.starts_with(NAMED_SOUND)
}

/// Whether a URL is an HTTP or HTTPS one.
pub(crate) fn is_web(url: &str) -> bool {
    let is = |scheme: &str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    is("http:") || is("https:")
}
