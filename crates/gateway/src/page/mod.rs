//! Web pages: `GET /`, a chat and a live view of the engine, and `/docs`, the API. The files in `static` are
//! compiled into the program. They send requests like any other client; no handler of the API is here.

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};

/// Content security policy: the pages may only load from and connect to this server, and no text may become
/// code or markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// File of the page.
struct PageFile {
    #[cfg(test)]
    name: &'static str,
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($path:literal, $kind:expr, $name:literal;)*) => {
        [$(PageFile { #[cfg(test)] name: $name, path: $path, kind: $kind, text: include_str!(concat!("static/", $name)) },)*]
    };
}

/// All files.
static FILES: [PageFile; FILES_COUNT] = files! {
    "/", HTML, "index.html";
    "/page/icon.svg", "image/svg+xml", "icon.svg";
    "/docs", HTML, "docs.html";
    "/page/base.css", STYLE, "base.css";
    "/page/chat.css", STYLE, "chat.css";
    "/page/live.css", STYLE, "live.css";
    "/page/api.js", SCRIPT, "api.js";
    "/page/app.js", SCRIPT, "app.js";
    "/page/attach.js", SCRIPT, "attach.js";
    "/page/chat.js", SCRIPT, "chat.js";
    "/page/docs.css", STYLE, "docs.css";
    "/page/docs.js", SCRIPT, "docs.js";
    "/page/dom.js", SCRIPT, "dom.js";
    "/page/inline.js", SCRIPT, "inline.js";
    "/page/lines.js", SCRIPT, "lines.js";
    "/page/live.js", SCRIPT, "live.js";
    "/page/manage.js", SCRIPT, "manage.js";
    "/page/markdown.js", SCRIPT, "markdown.js";
    "/page/message.js", SCRIPT, "message.js";
    "/page/metrics.js", SCRIPT, "metrics.js";
    "/page/models.js", SCRIPT, "models.js";
    "/page/plot.js", SCRIPT, "plot.js";
    "/page/settings.js", SCRIPT, "settings.js";
    "/page/store.js", SCRIPT, "store.js";
    "/page/theme.js", SCRIPT, "theme.js";
    "/page/welcome.js", SCRIPT, "welcome.js";
};
const FILES_COUNT: usize = 26;

/// Adds the page's routes.
pub(crate) fn route<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.iter().fold(router, |router, file| router.route(file.path, serve(file)))
}

/// Whether a route belongs to the page. It is public; the requests that it sends need a key.
pub(crate) fn is_own(route: &str) -> bool {
    FILES.iter().any(|file| file.path == route)
}

fn serve<S: Clone + Send + Sync + 'static>(file: &'static PageFile) -> MethodRouter<S> {
    let tag = tag(file.text);
    get(move |headers: HeaderMap| std::future::ready(answer(file, &tag, &headers)))
}

/// Sends the file, or 304 if the browser has it.
fn answer(file: &PageFile, tag: &HeaderValue, asked: &HeaderMap) -> Response {
    let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|value| names(value, tag));
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Bytes::from_static(file.text.as_bytes()).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(header::ETAG, tag.clone());
    // Revalidated each time and rarely sent again, so a new version takes effect at once and as a whole.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

/// Whether `If-None-Match` contains the tag, possibly weakened by a proxy.
fn names(value: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(value), Ok(tag)) = (value.to_str(), tag.to_str()) else { return false };
    value.split(',').map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag)
}

/// FNV-1a hash of a file's text. It need only distinguish versions of the same file.
fn tag(text: &str) -> HeaderValue {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    HeaderValue::from_str(&format!("\"{hash:016x}\"")).unwrap_or(HeaderValue::from_static("\"page\""))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use axum::http::HeaderValue;

    use super::{FILES, names, tag};

    #[test]
    fn every_file_is_served_and_every_file_that_is_named_is_there() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/static");
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let there: BTreeSet<String> = fs::read_dir(dir).unwrap().flatten().map(name).collect();
        let served: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(served, there);
        for file in &FILES {
            for named in
                file.text.split(['"', '\'']).filter(|word| word.ends_with(".js") || word.ends_with(".css"))
            {
                let bare = named.trim_start_matches("./").trim_start_matches("page/");
                assert!(there.contains(bare), "{} names {named}", file.path);
            }
        }
    }

    #[test]
    fn nothing_is_inline_nothing_comes_from_elsewhere_and_no_text_becomes_markup() {
        for file in &FILES {
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!file.text.contains(word), "{}: {word}", file.path);
            }
            if file.path.ends_with(".css") || file.text.starts_with("<!doctype") {
                for word in ["http:", "https:", " style=", " onclick=", "@import", "url(", "<style"] {
                    assert!(!file.text.contains(word), "{}: {word}", file.path);
                }
            }
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_not_sent_it_again() {
        let (one, other) = (tag("one"), tag("other"));
        assert_ne!(one, other);
        let asked = format!("\"x\", W/{}", one.to_str().unwrap());
        assert!(names(&HeaderValue::from_str(&asked).unwrap(), &one));
        assert!(!names(&HeaderValue::from_str(&asked).unwrap(), &other));
        assert!(names(&HeaderValue::from_static("*"), &other));
    }
}
