//! Fetching of images and audio by URL, only from hosts that the operator allows. A client must not reach
//! private servers through this machine (SSRF). So the address must be public, whatever its name, at each
//! redirect and when the connection is made. Off unless hosts are configured.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use hanzo_engine_proto::v1::{self, content_part::Part, embed_input::Input, infer_request::Prompt};
use reqwest::{
    Client, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::LOCATION,
};
use tokio::sync::Semaphore;

use crate::{
    error::{ApiError, GatewayError},
    limits::{
        MEDIA_CONNECT_TIMEOUT, MEDIA_FETCHES_MAX, MEDIA_HOSTS_MAX, MEDIA_REDIRECTS_MAX, MEDIA_TIMEOUT,
        PICTURE_BYTES_MAX, SOUND_BYTES_MAX,
    },
    media_url::{self, MediaUrl},
    sounds,
};

/// Hosts from which images and audio may be fetched.
#[derive(Debug)]
pub(crate) struct MediaHosts {
    hosts: Vec<Host>,
    client: Option<Client>,
    public: fn(IpAddr) -> bool,
    running: Semaphore,
}

/// Allowed host.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    name: String,
    /// None: the default port of the scheme.
    port: Option<u16>,
}

impl Host {
    fn read(text: &str) -> Result<Host, String> {
        let wrong =
            || format!("media_hosts: {text:?} is no host, such as pictures.example.com or that with :PORT");
        let url = Url::parse(&format!("https://{text}")).map_err(|_| wrong())?;
        let is_host = url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
            && !text.contains(['/', '*', '@', '?', '#', '\\']);
        let name = url.host_str().filter(|_| is_host).ok_or_else(wrong)?.to_owned();
        // The URL parser drops 443 as the default port; here it is an explicit port.
        let port = if text.ends_with(":443") { Some(443) } else { url.port() };
        Ok(Host { name, port })
    }

    fn is(&self, url: &Url) -> bool {
        let own = match url.scheme() {
            "http" => 80,
            _ => 443,
        };
        url.host_str() == Some(&self.name) && url.port_or_known_default() == Some(self.port.unwrap_or(own))
    }
}

/// Resolver that accepts a name only if all its addresses are public.
struct Names {
    public: fn(IpAddr) -> bool,
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let public = self.public;
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if !found.iter().all(|address| public(address.ip())) {
                return Err(io::Error::other(NOT_PUBLIC).into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

const NOT_PUBLIC: &str = "it leads to an address that is not public";

/// Checks that each entry is a host.
///
/// # Errors
/// The setting, and what is wrong.
pub(crate) fn check(hosts: &[String]) -> Result<(), String> {
    if hosts.len() > MEDIA_HOSTS_MAX {
        return Err(format!("media_hosts: has {}, at most {MEDIA_HOSTS_MAX}", hosts.len()));
    }
    hosts.iter().try_for_each(|host| Host::read(host).map(drop))
}

impl MediaHosts {
    /// Reads the hosts of the settings.
    ///
    /// # Errors
    /// An entry is invalid, or no TLS client can be made.
    pub(crate) fn of(hosts: &[String]) -> Result<MediaHosts, GatewayError> {
        MediaHosts::with(hosts, is_public)
    }

    fn with(hosts: &[String], public: fn(IpAddr) -> bool) -> Result<MediaHosts, GatewayError> {
        let hosts: Result<Vec<Host>, String> = hosts.iter().map(|host| Host::read(host)).collect();
        let hosts = hosts.map_err(GatewayError::Config)?;
        let client = match hosts.is_empty() {
            true => None,
            false => {
                // An error means that a provider is installed already.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = Client::builder()
                    .redirect(reqwest::redirect::Policy::none())
                    // A proxy would resolve names itself.
                    .no_proxy()
                    .dns_resolver(Arc::new(Names { public }))
                    .user_agent(concat!("hanzo-engine/", env!("CARGO_PKG_VERSION")))
                    .connect_timeout(MEDIA_CONNECT_TIMEOUT)
                    .timeout(MEDIA_TIMEOUT)
                    .build()
                    .map_err(|error| GatewayError::Config(format!("media_hosts: no HTTP client: {error}")))?;
                Some(client)
            }
        };
        Ok(MediaHosts { hosts, client, public, running: Semaphore::new(MEDIA_FETCHES_MAX) })
    }

    /// Fetches the images and audio that requests give by URL, up to `bytes_max` in each chat.
    ///
    /// # Errors
    /// 400 with the field and the reason.
    pub(crate) async fn fetch(
        &self,
        requests: &mut [v1::InferRequest],
        bytes_max: usize,
    ) -> Result<(), ApiError> {
        for request in requests {
            if let Some(Prompt::Chat(chat)) = &mut request.prompt {
                self.fetch_chat(chat, bytes_max).await?;
            }
        }
        Ok(())
    }

    /// Fetches those of a chat.
    ///
    /// # Errors
    /// As [`MediaHosts::fetch`].
    pub(crate) async fn fetch_chat(&self, chat: &mut v1::Chat, bytes_max: usize) -> Result<(), ApiError> {
        let mut left = bytes_max;
        for part in chat.messages.iter_mut().flat_map(|message| &mut message.content) {
            if let Some(Part::Media(media)) = &mut part.part {
                self.fetch_one(media, &mut left).await?;
            }
        }
        Ok(())
    }

    /// Fetches those of embedding inputs.
    ///
    /// # Errors
    /// As [`MediaHosts::fetch`].
    pub(crate) async fn fetch_inputs(
        &self,
        inputs: &mut [v1::EmbedInput],
        bytes_max: usize,
    ) -> Result<(), ApiError> {
        let mut left = bytes_max;
        for input in inputs {
            match &mut input.input {
                Some(Input::Picture(media)) => self.fetch_one(media, &mut left).await?,
                Some(Input::Chat(chat)) => self.fetch_chat(chat, left).await?,
                Some(Input::Text(_) | Input::Tokens(_)) | None => {}
            }
        }
        Ok(())
    }

    /// Fetches one if it was given by URL, up to `left` bytes.
    async fn fetch_one(&self, media: &mut v1::Media, left: &mut usize) -> Result<(), ApiError> {
        let Some(MediaUrl { path, url, is_sound }) = media_url::named(media) else { return Ok(()) };
        let refuse = |why: String| ApiError::field(path, why);
        let most = if is_sound { SOUND_BYTES_MAX } else { PICTURE_BYTES_MAX };
        let data = self.get(url, most.min(*left)).await.map_err(refuse)?;
        *left -= data.len();
        let kind = if is_sound { sounds::of_fetched() } else { String::new() };
        (media.data, media.mime_type) = (data.into(), kind);
        Ok(())
    }

    /// Bytes at a URL, or why there are none.
    async fn get(&self, url: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
        let Some(client) = &self.client else {
            return Err(
                "nothing is fetched here: send the picture or sound itself (data:image/png;base64,...), or have the operator allow its host \
                 (media_hosts, --media-hosts)"
                    .to_owned(),
            );
        };
        let mut url = Url::parse(url).map_err(|error| format!("is no URL: {error}"))?;
        let _running = self.running.acquire().await.map_err(|_| "this server is stopping".to_owned())?;
        for _ in 0..=MEDIA_REDIRECTS_MAX {
            self.allow(&url)?;
            let answer = client.get(url.clone()).send().await.map_err(|error| unreached(&url, &error))?;
            let status = answer.status();
            if !status.is_redirection() {
                return match status {
                    StatusCode::OK => whole(answer, &url, bytes_max).await,
                    _ => Err(format!("{} answers {}", shown(&url), status.as_u16())),
                };
            }
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.ok_or_else(|| format!("{} leads nowhere", shown(&url)))?;
            url = url.join(to).map_err(|_| format!("{} leads to what is no URL", shown(&url)))?;
        }
        Err(format!("is led on more than {MEDIA_REDIRECTS_MAX} times"))
    }

    /// Checks the scheme, user information and host of a URL.
    fn allow(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{}: is neither of http nor of https", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("has a name or a password in it, which is sent to nobody".to_owned());
        }
        if !self.hosts.iter().any(|host| host.is(url)) {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            let host = format!("{}{port}", shown(url));
            return Err(format!("{host} is no host that is allowed here (media_hosts, --media-hosts)"));
        }
        let literal = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let address = literal.parse::<IpAddr>().ok();
        match address.is_none_or(self.public) {
            true => Ok(()),
            false => Err(format!("{} is no public address", shown(url))),
        }
    }
}

/// Host for an error message, cut to the longest name.
fn shown(url: &Url) -> String {
    url.host_str().unwrap_or_default().chars().take(253).collect()
}

async fn whole(mut answer: reqwest::Response, url: &Url, bytes_max: usize) -> Result<Vec<u8>, String> {
    let too_large = || format!("is larger than {bytes_max} bytes");
    if answer.content_length().is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(too_large());
    }
    let mut data = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| unreached(url, &error))? {
        if data.len() + piece.len() > bytes_max {
            return Err(too_large());
        }
        data.extend_from_slice(&piece);
    }
    Ok(data)
}

/// Error text without addresses.
fn unreached(url: &Url, error: &reqwest::Error) -> String {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if inner.to_string() == NOT_PUBLIC {
            return format!("{}: {NOT_PUBLIC}", shown(url));
        }
        cause = inner.source();
    }
    let why = match () {
        () if error.is_timeout() => "does not answer in time",
        () if error.is_connect() => "cannot be reached",
        () => "broke off",
    };
    format!("{} {why}", shown(url))
}

/// Whether an address belongs to the public internet (RFC 6890) and does not lead to another network.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = a == 0
        || a >= 240
        || (a == 100 && b & 0xc0 == 0x40)
        || (a == 198 && b & 0xfe == 18)
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99);
    !(reserved
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_multicast())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // Global unicast, without ranges for other purposes: Teredo and other protocols, documentation, and 6to4.
    a & 0xe000 == 0x2000
        && !(a == 0x2001 && b < 0x200)
        && !(a == 0x2001 && b == 0xdb8)
        && a != 0x2002
        && !(a == 0x3fff && b < 0x1000)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Starts a server that answers each connection with the next of `answers`. Returns its port and a counter
    /// of its requests.
    async fn server(answers: Vec<String>) -> (u16, Arc<std::sync::atomic::AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = asked.clone();
        tokio::spawn(async move {
            for answer in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let answer = answer.replace("PORT", &port.to_string());
                let mut head = [0; 4096];
                let _ = socket.read(&mut head).await;
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        (port, asked)
    }

    fn answer(status: &str, head: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n{body}")
    }

    fn hosts(names: &[String], public: fn(IpAddr) -> bool) -> MediaHosts {
        MediaHosts::with(names, public).unwrap()
    }

    #[tokio::test]
    async fn what_is_allowed_is_fetched_within_bounds() {
        let moved = answer("302 Found", "Location: http://localhost:PORT/b\r\n", "");
        let endless = || answer("302 Found", "Location: /\r\n", "");
        let all = vec![
            answer("200 OK", "", "pixels"),
            moved,
            answer("200 OK", "", "moved"),
            answer("200 OK", "", "pixels"),
            answer("404 Not Found", "", "no"),
            endless(),
            endless(),
            endless(),
            endless(),
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nmore than six".to_owned(),
        ];
        let (port, asked) = server(all).await;
        let hosts = hosts(&[format!("127.0.0.1:{port}"), format!("localhost:{port}")], |_| true);
        let get = async |path: &str| hosts.get(&format!("http://127.0.0.1:{port}{path}"), 6).await;
        assert_eq!(get("/a").await.unwrap(), b"pixels");
        assert_eq!(get("/").await.unwrap(), b"moved");
        let larger = hosts.get(&format!("http://127.0.0.1:{port}"), 5).await.unwrap_err();
        assert_eq!(larger, "is larger than 5 bytes");
        assert!(get("/none").await.unwrap_err().contains("answers 404"));
        assert!(get("/").await.unwrap_err().contains("led on more than 3 times"));
        assert!(get("/").await.unwrap_err().contains("larger than 6"), "its length is not said");
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 10);
    }

    #[tokio::test]
    async fn what_is_fetched_is_what_it_was_said_to_be() {
        let (port, _) = server(vec![answer("200 OK", "", "pixels"), answer("200 OK", "", "samples")]).await;
        let hosts = hosts(&[format!("127.0.0.1:{port}")], |_| true);
        let url = format!("http://127.0.0.1:{port}/");
        let named = |mime_type: &str| {
            let media =
                v1::Media { data: url.clone().into(), mime_type: mime_type.to_owned(), ..Default::default() };
            v1::ContentPart { part: Some(Part::Media(Box::new(media))) }
        };
        let content = vec![named("at a.b"), named("sound at a.c")];
        let messages = vec![v1::Message { content, ..Default::default() }];
        let mut chat = v1::Chat { messages, ..Default::default() };
        hosts.fetch_chat(&mut chat, 100).await.unwrap();
        let of = |at: usize| match &chat.messages[0].content[at].part {
            Some(Part::Media(media)) => (media.mime_type.as_str(), media.data.to_vec()),
            other => panic!("{other:?}"),
        };
        assert_eq!([of(0), of(1)], [("", b"pixels".to_vec()), ("audio/*", b"samples".to_vec())]);
    }

    #[tokio::test]
    async fn nothing_else_is_asked() {
        let private = answer("302 Found", "Location: http://localhost:PORT/secret\r\n", "");
        let (port, asked) = server(vec![private]).await;
        let names = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "example.com", "10.0.0.1"];
        let mut names: Vec<String> = names.iter().map(|name| format!("{name}:{port}")).collect();
        names.push("pictures.example".to_owned());
        let hosts_all = hosts(&names, is_public);
        let refused = async |url: String, why: &str| {
            let reason = hosts_all.get(&url, 100).await.unwrap_err();
            assert!(reason.contains(why), "{url}: {reason}");
        };
        // Literals in every notation, and a name of the loopback.
        for host in [
            "127.0.0.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "10.0.0.1",
        ] {
            refused(format!("http://{host}:{port}/"), "no public address").await;
        }
        refused(format!("http://localhost:{port}/"), NOT_PUBLIC).await;
        refused(format!("http://me:word@localhost:{port}/"), "password").await;
        refused(format!("http://example.com@127.0.0.1:{port}/"), "password").await;
        refused("file:///etc/passwd".to_owned(), "neither of http").await;
        refused("gopher://pictures.example/".to_owned(), "neither of http").await;
        for other in [
            "https://elsewhere.example/",
            "https://pictures.example:8443/",
            "https://pictures.example.evil.example/",
        ] {
            refused(other.to_owned(), "no host that is allowed").await;
        }
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 0, "nobody was asked");
        // An allowed host redirects to one that is not allowed.
        let first_alone = hosts(&[format!("127.0.0.1:{port}")], |_| true);
        let reason = first_alone.get(&format!("http://127.0.0.1:{port}/"), 100).await.unwrap_err();
        assert!(reason.contains("localhost") && reason.contains("allowed"), "{reason}");
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
        // Without hosts, nothing is fetched.
        let none = hosts(&[], |_| true);
        let reason = none.get("https://pictures.example/a.png", 100).await.unwrap_err();
        assert!(reason.contains("--media-hosts"), "{reason}");
    }

    #[test]
    fn addresses_of_no_public_network_are_none() {
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.32.0.1",
            "198.17.0.1",
            "2606:4700::1111",
            "2001:4860::8888",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_host_is_no_pattern_and_no_url() {
        for wrong in
            ["", "*", "*.example.com", "https://example.com", "example.com/a", "a@b", "a b", "example.com?x"]
        {
            assert!(check(&[wrong.to_owned()]).unwrap_err().starts_with("media_hosts: "), "{wrong}");
        }
        let host = Host::read("Example.COM:8080").unwrap();
        assert_eq!(host, Host { name: "example.com".to_owned(), port: Some(8080) });
        let read = |text: &str| Host::read(text).unwrap();
        let is = |host: &str, url: &str| read(host).is(&Url::parse(url).unwrap());
        assert!(is("a.example", "https://A.example/x") && is("a.example", "http://a.example/x"));
        assert!(!is("a.example", "https://a.example:444/") && is("a.example:444", "https://a.example:444/"));
        assert!(!is("a.example:443", "http://a.example/") && is("a.example:443", "https://a.example/"));
        assert!(check(&vec!["a.example".to_owned(); MEDIA_HOSTS_MAX + 1]).is_err());
    }
}
