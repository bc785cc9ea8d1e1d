//! Network distance of a server: this machine, a private network, or the internet. A server may not redirect a
//! client to a nearer address than its own. Otherwise a server that offers models could send requests to this
//! machine's neighbours.

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Maximum time to look up a name.
const LOOKUP_MAX: Duration = Duration::from_secs(3);

/// Network distance of an address. Nearer ones are less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// This machine.
    Loopback,
    /// A private or link-local network, or another range that is not public.
    Private,
    /// The internet.
    Public,
}

impl Reach {
    /// Classifies an IP address.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }

    /// Classifies a URL's host. A name is looked up and is as near as its nearest address. A name that cannot
    /// be looked up counts as public, because a proxy may know it. If none does, [`PublicOnly`] prevents the
    /// connection.
    pub(crate) async fn of_url(url: &Url) -> Self {
        let Some(host) = url.host_str() else { return Self::Public };
        if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return Self::of(address);
        }
        if is_localhost(host) {
            return Self::Loopback;
        }
        let port = url.port_or_known_default().unwrap_or(80);
        let addresses = match tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(addresses)) => addresses,
            _ => return Self::Public,
        };
        addresses.map(|address| Self::of(address.ip())).min().unwrap_or(Self::Public)
    }

    /// Name for messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Loopback => "this machine",
            Self::Private => "a private network",
            Self::Public => "the internet",
        }
    }
}

/// RFC 6761: `localhost` and names below it never leave the machine.
fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

fn of_v4(address: Ipv4Addr) -> Reach {
    let [a, b, c, _] = address.octets();
    // `0.0.0.0` connects to this machine.
    if address.is_loopback() || address.is_unspecified() {
        return Reach::Loopback;
    }
    // RFC 6598 (carrier-grade NAT), 6890 (this network, protocol assignments), 2544 (benchmarks), 1112
    // (reserved).
    let special = a == 0
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a == 198 && (b == 18 || b == 19))
        || a >= 240;
    let near = address.is_private() || address.is_link_local() || address.is_multicast();
    if near || special { Reach::Private } else { Reach::Public }
}

fn of_v6(address: Ipv6Addr) -> Reach {
    let segments = address.segments();
    // IPv6 addresses that embed an IPv4 address: mapped, compatible, NAT64 (RFC 6052), 6to4 (RFC 3056).
    let carried = match segments {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some((high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) != (0, 0) && (high, low) != (0, 1) => Some((high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some((high, low)),
        [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = carried {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        return of_v4(Ipv4Addr::new(a, b, c, d));
    }
    if address.is_loopback() || address.is_unspecified() {
        return Reach::Loopback;
    }
    // fc00::/7, fe80::/10, fec0::/10 (formerly site-local), ff00::/8 and the local NAT64 prefix 64:ff9b:1::/48.
    let near = address.is_unique_local()
        || address.is_unicast_link_local()
        || address.is_multicast()
        || segments[0] & 0xffc0 == 0xfec0
        || segments[..3] == [0x64, 0xff9b, 1];
    if near { Reach::Private } else { Reach::Public }
}

/// DNS resolver that returns only public addresses. The address checked before a redirect may differ from the
/// one at the time of the connection.
pub(crate) struct PublicOnly {
    /// Hosts of configured proxies, which may be local.
    pub(crate) proxies: HashSet<String>,
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let is_proxy = self.proxies.contains(&name.as_str().to_ascii_lowercase());
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let kept: Vec<SocketAddr> =
                found.filter(|address| is_proxy || Reach::of(address.ip()) == Reach::Public).collect();
            if kept.is_empty() {
                let why = format!("{} has no address on the internet", name.as_str());
                return Err(why.into());
            }
            Ok(Box::new(kept.into_iter()) as Addrs)
        })
    }
}

/// Hosts of the proxies in the environment, and of the configured one.
pub(crate) fn proxy_hosts(set: Option<&Url>) -> HashSet<String> {
    let named = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let named = named.iter().filter_map(|name| std::env::var(name).ok());
    let parsed = named.filter_map(|text| {
        Url::parse(&text).ok().filter(Url::has_host).or_else(|| Url::parse(&format!("http://{text}")).ok())
    });
    let hosts = parsed.chain(set.cloned()).filter_map(|url| url.host_str().map(str::to_ascii_lowercase));
    hosts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_near_as_the_registries_say() {
        let near = |text: &str| Reach::of(text.parse().unwrap());
        for here in
            ["127.0.0.1", "127.255.0.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
        {
            assert_eq!(near(here), Reach::Loopback, "{here}");
        }
        for private in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.0.1",
            "0.1.2.3",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:a00:1::",
        ] {
            assert_eq!(near(private), Reach::Private, "{private}");
        }
        for public in [
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.169.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "203.0.113.5",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "2002:101:101::",
        ] {
            assert_eq!(near(public), Reach::Public, "{public}");
        }
    }

    #[tokio::test]
    async fn a_host_is_as_near_as_its_nearest_address() {
        let of = async |text: &str| Reach::of_url(&Url::parse(text).unwrap()).await;
        // The same address in the forms that a URL may have it.
        for here in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://[::1]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost/",
            "http://0/",
        ] {
            assert_eq!(of(here).await, Reach::Loopback, "{here}");
        }
        assert_eq!(of("http://[::ffff:a9fe:a9fe]/").await, Reach::Private);
        assert_eq!(of("https://1.1.1.1/").await, Reach::Public);
    }

    #[tokio::test]
    async fn a_name_with_a_near_address_is_not_connected_to() {
        let look = async |proxies: &[&str]| {
            let proxies = proxies.iter().map(|name| (*name).to_owned()).collect();
            PublicOnly { proxies }.resolve("localhost".parse().unwrap()).await.map(|found| found.count())
        };
        assert!(look(&[]).await.is_err());
        assert!(look(&["localhost"]).await.is_ok_and(|count| count > 0));
    }
}
