//! HTTP client for downloads. It follows redirects itself, so that credentials go to one origin only and no
//! redirect leads from the internet to a local address. It checks every status and bounds every wait.

use crate::PullError;
use crate::limits::{ATTEMPTS_MAX, CONNECT_MAX, REDIRECTS_MAX, RETRY_AFTER_MAX, UNREACHED_ATTEMPTS_MAX};
use crate::reach::{PublicOnly, Reach, proxy_hosts};
use crate::reference::is_loopback;
use crate::settings::StoreSettings;
use bytes::Bytes;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, LOCATION, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Client, Response, StatusCode, Url};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Maximum number of bytes of an error's body that are shown.
const DETAIL_BYTES_MAX: usize = 200;
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// HTTP client with the policies for redirects, proxies and retries.
pub(crate) struct Http {
    far: Client,
    /// Client for this machine's own addresses, without a proxy.
    near: Client,
    /// Client for addresses that an internet server led to. Names with local addresses do not resolve.
    public: Client,
    offline: bool,
    pub(crate) stall: Duration,
    answer: Duration,
    backoff: Duration,
}

/// Credentials, and the only origin that they are sent to.
#[derive(Clone)]
pub(crate) struct Auth {
    origin: Url,
    /// Value of the Authorization header, such as `Bearer …`.
    header: Arc<Mutex<Option<String>>>,
    /// True if the origin's challenges state where to get a token, at first and after it expires.
    asks: bool,
}

impl Auth {
    /// Credentials with a fixed bearer token.
    pub(crate) fn token(origin: &Url, token: &str) -> Self {
        let header = Arc::new(Mutex::new(Some(format!("Bearer {token}"))));
        Self { origin: origin.clone(), header, asks: false }
    }

    /// Credentials without a token until the server asks for one, as registries do.
    pub(crate) fn when_asked(origin: &Url) -> Self {
        Self { origin: origin.clone(), header: Arc::default(), asks: true }
    }

    fn header_for(&self, url: &Url) -> Option<String> {
        let header = || self.header.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.origin.origin() == url.origin()).then(header).flatten()
    }
}

/// GET request.
#[derive(Clone)]
pub(crate) struct Get<'a> {
    pub(crate) url: &'a Url,
    pub(crate) auth: Option<&'a Auth>,
    /// First and last byte, both inclusive.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) accept: Option<&'a str>,
    /// True if a server of the internet led to this address, see [`HttpResponse::led_by_public`].
    pub(crate) led_by_public: bool,
}

/// Response with a success status. The body is not read yet.
pub(crate) struct HttpResponse {
    pub(crate) response: Response,
    /// Final URL after redirects.
    pub(crate) url: Url,
    /// True if a server of the internet led there.
    pub(crate) led_by_public: bool,
}

/// Reason why there is no response.
pub(crate) enum Fault {
    /// Temporary failure, worth a retry.
    Passing { why: String, after: Option<Duration>, connected: bool },
    /// Status that refuses the request.
    Status { status: StatusCode, url: Url, headers: HeaderMap, detail: String },
    /// Permanent failure, not worth a retry.
    Final(PullError),
}

impl Http {
    pub(crate) fn new(settings: &StoreSettings) -> Result<Self, PullError> {
        // A provider that is installed already serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let internal = |error: reqwest::Error| PullError::Internal(format!("no HTTP client: {error}"));
        let builder = || {
            Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .user_agent(concat!("hanzo-engine/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_MAX.min(settings.stall / 2))
                .pool_idle_timeout(Duration::from_secs(30))
        };
        let proxied = || -> Result<reqwest::ClientBuilder, PullError> {
            Ok(match &settings.proxy {
                Some(proxy) => builder().proxy(reqwest::Proxy::all(proxy.clone()).map_err(internal)?),
                None => builder(),
            })
        };
        let public_only = PublicOnly { proxies: proxy_hosts(settings.proxy.as_ref()) };
        Ok(Self {
            far: proxied()?.build().map_err(internal)?,
            public: proxied()?.dns_resolver(Arc::new(public_only)).build().map_err(internal)?,
            near: builder().no_proxy().build().map_err(internal)?,
            offline: settings.offline,
            stall: settings.stall,
            answer: settings.answer,
            backoff: settings.backoff,
        })
    }

    /// Sends the request and follows redirects.
    pub(crate) async fn get(&self, get: &Get<'_>) -> Result<HttpResponse, Fault> {
        let mut url = get.url.clone();
        let mut been = Vec::new();
        let mut asked = false;
        let mut led_by_public = get.led_by_public;
        loop {
            let response = self.send(&url, get, led_by_public).await?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED
                && let Some(auth) = get.auth.filter(|auth| auth.asks && auth.origin.origin() == url.origin())
                && let Some(challenge) = response.headers().get(WWW_AUTHENTICATE)
                && !std::mem::replace(&mut asked, true)
            {
                let token = self.token(&url, challenge.to_str().unwrap_or_default()).await?;
                let header = format!("Bearer {token}");
                *auth.header.lock().unwrap_or_else(PoisonError::into_inner) = Some(header);
                continue;
            }
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return self.judge(response, url, led_by_public).await;
            }
            let headers = response.headers();
            let refused =
                |why: &str| Fault::Final(PullError::Redirect { url: shown(&url), why: why.to_owned() });
            let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            let mut next = next.ok_or_else(|| refused("to no address"))?;
            next.set_fragment(None);
            if !matches!(next.scheme(), "http" | "https") {
                return Err(refused("to something that is not http"));
            }
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(refused("from https to plain http, where what comes may have been changed"));
            }
            let (from, to) = tokio::join!(Reach::of_url(&url), Reach::of_url(&next));
            if to < from {
                let (host, to, from) = (next.host_str().unwrap_or_default(), to.describe(), from.describe());
                return Err(refused(&format!("from {from} to {to} ({host}), which is not followed")));
            }
            led_by_public |= from == Reach::Public;
            if next == url || been.contains(&next) {
                return Err(refused("in a circle"));
            }
            been.push(std::mem::replace(&mut url, next));
            if been.len() > REDIRECTS_MAX {
                return Err(Fault::Final(PullError::Redirect {
                    url: shown(get.url),
                    why: format!("more than {REDIRECTS_MAX} times"),
                }));
            }
        }
    }

    /// Returns the headers of any response, or the failure as a text for people.
    pub(crate) async fn headers(&self, url: &Url) -> Result<HeaderMap, String> {
        let get = Get { url, auth: None, range: None, accept: None, led_by_public: false };
        match self.send(url, &get, false).await {
            Ok(response) => Ok(response.headers().clone()),
            Err(Fault::Passing { why, .. }) => Err(why),
            Err(Fault::Status { status, .. }) => Err(status.to_string()),
            Err(Fault::Final(error)) => Err(error.to_string()),
        }
    }

    async fn send(&self, url: &Url, get: &Get<'_>, led_by_public: bool) -> Result<Response, Fault> {
        if self.offline {
            return Err(Fault::Final(PullError::Offline { what: shown(url) }));
        }
        let client = match led_by_public {
            true => &self.public,
            false if is_loopback(url) => &self.near,
            false => &self.far,
        };
        // No compression: byte ranges would apply to the compressed form.
        let mut request = client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(accept) = get.accept {
            request = request.header(ACCEPT, accept);
        }
        if let Some((first, last)) = get.range {
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        if let Some(header) = get.auth.and_then(|auth| auth.header_for(url)) {
            request = request.header(AUTHORIZATION, header);
        }
        match tokio::time::timeout(self.stall, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                Err(Fault::Passing { why: causes(&error), after: None, connected: !error.is_connect() })
            }
            Err(_) => Err(stalled(self.stall)),
        }
    }

    /// Gets a token from the address that a registry states, without credentials.
    async fn token(&self, registry: &Url, challenge: &str) -> Result<String, Fault> {
        let refused = |why: &str| Fault::Final(PullError::refused(shown(registry), why));
        let fields = bearer_fields(challenge).ok_or_else(|| refused("it asks for credentials nobody has"))?;
        let realm = fields.iter().find(|(key, _)| key == "realm").map(|(_, value)| value.as_str());
        let realm = realm.and_then(|realm| Url::parse(realm).ok());
        let mut realm = realm.ok_or_else(|| refused("it asks for a token from no address"))?;
        let safe = realm.scheme() == "https" || is_loopback(registry);
        let (from, to) = tokio::join!(Reach::of_url(registry), Reach::of_url(&realm));
        if !safe || to < from {
            let (host, to) = (realm.host_str().unwrap_or_default(), to.describe());
            return Err(refused(&format!(
                "it asks for a token from where none may be had ({host}, on {to})"
            )));
        }
        realm
            .query_pairs_mut()
            .extend_pairs(fields.iter().filter(|(key, _)| key == "service" || key == "scope"));
        let led_by_public = from == Reach::Public;
        let get = Get { url: &realm, auth: None, range: None, accept: None, led_by_public };
        let mut response = self.send(&realm, &get, led_by_public).await?;
        if response.status().is_redirection() {
            return Err(refused("it asks for a token from an address that redirects"));
        }
        if !response.status().is_success() {
            return Err(match self.judge(response, realm.clone(), led_by_public).await {
                Err(fault) => fault,
                Ok(_) => refused("no token"),
            });
        }
        let read = self.whole(&mut response, &realm, TOKEN_BYTES_MAX).await?;
        let answer: serde_json::Value = serde_json::from_slice(&read).unwrap_or_default();
        let token = answer["token"].as_str().or_else(|| answer["access_token"].as_str());
        let token =
            token.filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        token.map(str::to_owned).ok_or_else(|| refused("the answer has no token"))
    }

    async fn judge(
        &self,
        mut response: Response,
        url: Url,
        led_by_public: bool,
    ) -> Result<HttpResponse, Fault> {
        let status = response.status();
        if status.is_success() {
            return Ok(HttpResponse { response, url, led_by_public });
        }
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|value| retry_after(value, SystemTime::now()));
            if let Some(after) = after.filter(|after| *after > RETRY_AFTER_MAX) {
                let detail = format!("and asks to wait for {} s: pull again then", after.as_secs());
                let (url, status) = (shown(&url), status.as_u16());
                return Err(Fault::Final(PullError::Status { url, status, detail }));
            }
            return Err(Fault::Passing {
                why: format!("{} answered {status}", shown(&url)),
                after,
                connected: true,
            });
        }
        let headers = response.headers().clone();
        let piece = tokio::time::timeout(self.stall, response.chunk()).await;
        let piece = piece.ok().and_then(Result::ok).flatten().unwrap_or_default();
        let detail = String::from_utf8_lossy(&piece[..piece.len().min(DETAIL_BYTES_MAX)]).into_owned();
        let detail = detail.split(char::is_control).collect::<Vec<_>>().join(" ").trim().to_owned();
        Err(Fault::Status { status, url, headers, detail })
    }

    /// Reads the next piece of a body. None at its end.
    pub(crate) async fn piece(&self, response: &mut Response) -> Result<Option<Bytes>, Fault> {
        match tokio::time::timeout(self.stall, response.chunk()).await {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(Fault::Passing { why: causes(&error), after: None, connected: true }),
            Err(_) => Err(stalled(self.stall)),
        }
    }

    /// Reads a whole small body, with retries. Makes fewer attempts if no server is reached at all, because a
    /// user is waiting without any progress shown. `no` may turn a refusing status into an error.
    pub(crate) async fn small(
        &self,
        get: &Get<'_>,
        bytes_max: usize,
        no: impl Fn(StatusCode, &HeaderMap) -> Option<PullError> + Send + Sync,
    ) -> Result<(Vec<u8>, HeaderMap), PullError> {
        let (mut attempts, mut reached) = (0, false);
        loop {
            let (why, after, connected) = match self.small_once(get, bytes_max).await {
                Ok(read) => return Ok(read),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Status { status, url, headers, detail }) => {
                    let plain = PullError::Status { url: shown(&url), status: status.as_u16(), detail };
                    return Err(no(status, &headers).unwrap_or(plain));
                }
                Err(Fault::Passing { why, after, connected }) => (why, after, connected),
            };
            attempts += 1;
            reached |= connected;
            if attempts >= if reached { ATTEMPTS_MAX } else { UNREACHED_ATTEMPTS_MAX } {
                return Err(PullError::Network { url: shown(get.url), attempts, why });
            }
            self.pause(attempts, after).await;
        }
    }

    async fn small_once(&self, get: &Get<'_>, bytes_max: usize) -> Result<(Vec<u8>, HeaderMap), Fault> {
        let HttpResponse { mut response, url, .. } = self.get(get).await?;
        let headers = response.headers().clone();
        Ok((self.whole(&mut response, &url, bytes_max).await?, headers))
    }

    /// Reads a whole body. Its size and total time are bounded, even if bytes keep trickling in.
    async fn whole(&self, response: &mut Response, url: &Url, bytes_max: usize) -> Result<Vec<u8>, Fault> {
        let refused = |why: String| Fault::Final(PullError::refused(shown(url), why));
        let until = tokio::time::Instant::now() + self.answer;
        let mut read = Vec::new();
        loop {
            let Ok(piece) = tokio::time::timeout_at(until, self.piece(response)).await else {
                let (bytes, seconds) = (read.len(), self.answer.as_secs_f32());
                return Err(refused(format!(
                    "only {bytes} bytes of it came in {seconds} s: try again later"
                )));
            };
            let Some(piece) = piece? else { return Ok(read) };
            read.extend_from_slice(&piece);
            if read.len() > bytes_max {
                return Err(refused(format!("it is longer than {bytes_max} bytes")));
            }
        }
    }

    /// Waits before a retry: as long as the server asked, or by exponential backoff with jitter, so that many
    /// clients do not return at once.
    pub(crate) async fn pause(&self, attempts: u32, after: Option<Duration>) {
        let doubled = self.backoff.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(BACKOFF_MAX);
        // Jitter factor from 0.5 to 1.5.
        let jitter = 0.5 + (random() % 1024) as f64 / 1024.0;
        let wait = after.unwrap_or_default().max(doubled.mul_f64(jitter));
        tokio::time::sleep(wait).await;
    }
}

/// Parses `Retry-After`: a number of seconds or a date (RFC 9110, 10.2.3). Past dates and invalid values give
/// None.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number too large to parse is longer than anyone waits.
        return Some(value.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    httpdate::parse_http_date(value).ok()?.duration_since(now).ok()
}

/// Parses the fields of a challenge `Bearer realm="…",service="…",scope="…"`.
fn bearer_fields(challenge: &str) -> Option<Vec<(String, String)>> {
    let (scheme, mut rest) = challenge.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut fields = Vec::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"')?;
        let key = key.trim_matches([' ', ',']).to_ascii_lowercase();
        fields.push((key, value.to_owned()));
        rest = after;
    }
    Some(fields)
}

fn stalled(stall: Duration) -> Fault {
    Fault::Passing {
        why: format!("no byte came for {} s", stall.as_secs_f32()),
        after: None,
        connected: true,
    }
}

/// Random bits from the standard library's keyed hasher, whose key comes from the system's generator.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Returns an entity tag without quotes. None for a weak one, which does not identify the bytes.
pub(crate) fn unquoted(value: &reqwest::header::HeaderValue) -> Option<String> {
    let value = value.to_str().ok()?.trim();
    (!value.starts_with("W/")).then(|| value.trim_matches('"').to_owned())
}

/// Formats a URL for people and logs, without the query, which may be a signature.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.to_string()
}

/// Describes the cause of an error, without its URL, which may be signed.
fn causes(error: &reqwest::Error) -> String {
    let mut said = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        said.push(error.to_string());
        cause = error.source();
    }
    match said.last() {
        // The innermost cause states what happened. The outer ones only name layers of the client.
        Some(last) => last.clone(),
        None if error.is_timeout() => "the connection timed out".to_owned(),
        None => "the connection failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        // RFC 9110, 5.6.7: one instant in its three forms.
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let before = then - Duration::from_secs(90);
        for date in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(retry_after(date, before), Some(Duration::from_secs(90)), "{date}");
            assert_eq!(retry_after(date, then + Duration::from_secs(1)), None, "{date} is past");
        }
        assert_eq!(retry_after(" 120 ", then), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("99999999999999999999999", then), Some(Duration::MAX));
        for neither in ["", "-1", "+5", "1.5", "soon", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994"] {
            assert_eq!(retry_after(neither, before), None, "{neither:?}");
        }
    }
}
