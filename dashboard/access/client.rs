//! Where a request comes from. What proxies say counts only where it comes from one that is trusted; from anybody else it is taken
//! away unread.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderMap, HeaderName, Uri, Version, header},
};
use ipnet::IpNet;

use crate::{
    security::{host, is_same},
    settings::Settings,
};

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";
/// What shows that a proxy stands in between: headers that proxies add.
const PROXIED: [&str; 8] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "fastly-client-ip",
    "x-original-host",
];
/// The same, by how their names begin.
const PROXIED_FAMILIES: [&str; 4] = ["x-forwarded", "x-original-forwarded", "x-envoy-", "cf-"];

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// Who is connected to us, as far as whoever serves us says.
    pub(super) peer: Option<IpAddr>,
    /// The client's address: the peer's, or what trusted proxies say.
    pub(super) address: Option<IpAddr>,
    /// A trusted proxy says that the client's connection is encrypted.
    pub(super) https: bool,
    /// Some proxy stands in between, or it looks like it.
    pub(super) proxied: bool,
}

impl Client {
    /// Of a request.
    pub(crate) fn of(request: &Request, settings: &Settings) -> Self {
        let peer =
            request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
        let mut client = Self::at(peer, request.headers(), settings);
        client.proxied |= passed_a_silent_proxy(request);
        client
    }

    fn at(peer: Option<IpAddr>, headers: &HeaderMap, settings: &Settings) -> Self {
        let proxied = headers.keys().any(is_of_proxies);
        let trusted = |address: IpAddr| is_proxy(address, settings);
        let Some(direct) = peer.filter(|peer| trusted(*peer)) else {
            return Self { peer, address: peer, https: false, proxied };
        };
        let mut address = direct;
        // Each proxy adds whom it was called by at the end: from there on back, as long as those are trusted.
        for said in listed(headers, FORWARDED_FOR).rev() {
            let Some(said) = parse(said) else { break };
            address = said;
            if !trusted(address) {
                break;
            }
        }
        let https = listed(headers, FORWARDED_PROTO)
            .next_back()
            .is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
        Self { peer, address: Some(address), https, proxied }
    }

    /// As the audit has it.
    pub(super) fn from(&self) -> String {
        self.address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
    }

    /// Whether the peer is the proxy that authenticates.
    pub(super) fn is_behind(&self, from: &[IpNet]) -> bool {
        self.peer.is_some_and(|peer| contains(from, peer))
    }

    /// Whether the browser's connection is encrypted: a trusted proxy says so, or the browser itself, which names its origin with what
    /// changes something. Whose origin is another one has said nothing of the connection to us.
    pub(super) fn is_encrypted(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        let ours = |origin: &&str| host(headers, uri).is_some_and(|host| is_same(origin, &host));
        self.https || origin.filter(ours).is_some_and(|origin| origin.starts_with("https://"))
    }

    /// Whether nobody but this machine is involved, as far as can be seen.
    pub(super) fn is_local(&self) -> bool {
        self.peer.is_some_and(|peer| peer.is_loopback()) && !self.proxied
    }
}

/// Whether a proxy stands in between although none says so, as far as that can be seen. One that was told to hand on requests and nothing
/// else (nginx, unless it is told more) speaks HTTP/1.0, which no browser does, or calls us by our own address while the browser names
/// another one in `Origin` or `Referer`.
fn passed_a_silent_proxy(request: &Request) -> bool {
    request.version() < Version::HTTP_11 || names_another(request)
}

fn names_another(request: &Request) -> bool {
    let headers = request.headers();
    let Some(host) = host(headers, request.uri()) else { return false };
    let site = headers.get("sec-fetch-site");
    // Who follows a link on somebody else's page comes from there, and not through a proxy.
    let follows =
        request.method().is_safe() && site.is_some_and(|site| site == "cross-site" || site == "same-site");
    let named = [header::ORIGIN, header::REFERER];
    let mut named = named.iter().flat_map(|name| headers.get_all(name));
    !follows && named.any(|said| !said.to_str().is_ok_and(|said| is_same(said, &host)))
}

fn is_of_proxies(name: &HeaderName) -> bool {
    let name = name.as_str();
    PROXIED.contains(&name) || PROXIED_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Whether a proxy is there that is trusted.
pub(crate) fn is_proxy(address: IpAddr, settings: &Settings) -> bool {
    let from = settings.access.proxy.as_ref().map_or(&[][..], |proxy| &proxy.from);
    contains(&settings.proxies, address) || contains(from, address)
}

fn contains(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

/// The items of a header's lists, in order.
fn listed<'a>(headers: &'a HeaderMap, name: &str) -> impl DoubleEndedIterator<Item = &'a str> {
    let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
    values.flat_map(|value| value.split(',')).map(str::trim).collect::<Vec<_>>().into_iter()
}

/// An address, perhaps with a port.
fn parse(text: &str) -> Option<IpAddr> {
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    address.or_else(bare).map(|address| address.to_canonical())
}

/// Takes away what says who somebody is, once it was read, so that nothing else can believe it.
pub(crate) fn strip(headers: &mut HeaderMap, settings: &Settings) {
    headers.remove(header::AUTHORIZATION);
    let of_proxies: Vec<HeaderName> = headers.keys().filter(|name| is_of_proxies(name)).cloned().collect();
    for name in of_proxies {
        headers.remove(name);
    }
    let Some(proxy) = &settings.access.proxy else { return };
    for name in [Some(&proxy.user), proxy.groups.as_ref()].into_iter().flatten() {
        if let Ok(name) = name.parse::<HeaderName>() {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn settings() -> Settings {
        Settings {
            proxies: vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
            ..Settings::default()
        }
    }

    fn client(peer: &str, headers: &[(&'static str, &'static str)]) -> Client {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        Client::at(peer.parse().ok(), &map, &settings())
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_about_the_client() {
        let said = [(FORWARDED_FOR, "203.0.113.9"), (FORWARDED_PROTO, "https")];
        let (near, far) = (client("10.1.2.3", &said), client("192.0.2.1", &said));
        assert_eq!((near.from().as_str(), near.https), ("203.0.113.9", true));
        assert_eq!((far.from().as_str(), far.https, far.proxied), ("192.0.2.1", false, true));
        assert_eq!(client("nobody", &said).from(), "an unknown address");
    }

    #[test]
    fn what_the_client_itself_put_before_the_proxys_word_is_not_believed() {
        for said in [
            "127.0.0.1, 203.0.113.9",
            "1.1.1.1, 127.0.0.1,203.0.113.9, 10.9.9.9",
            "10.0.0.7, 203.0.113.9:4711",
            "unknown, 203.0.113.9, [::1]",
        ] {
            let said: &'static str = said;
            assert_eq!(client("10.1.2.3", &[(FORWARDED_FOR, said)]).from(), "203.0.113.9", "{said}");
        }
        let twice = [(FORWARDED_FOR, "127.0.0.1"), (FORWARDED_FOR, "203.0.113.9")];
        assert_eq!(client("10.1.2.3", &twice).from(), "203.0.113.9");
        // What is no address is nobody's: the proxy before it is what is known.
        assert_eq!(client("10.1.2.3", &[(FORWARDED_FOR, "203.0.113.9, _hidden")]).from(), "10.1.2.3");
    }

    #[test]
    fn what_says_who_somebody_is_goes_no_further() {
        let proxy = crate::Proxy {
            from: vec!["10.0.0.0/8".parse().unwrap()],
            user: "X-Forwarded-User".to_owned(),
            groups: Some("X-Groups".to_owned()),
            roles: std::collections::BTreeMap::default(),
            role: None,
        };
        let access = crate::Access { proxy: Some(proxy), ..crate::Access::default() };
        let mut headers = HeaderMap::new();
        for name in
            ["authorization", "x-forwarded-user", "x-groups", "x-forwarded-for", "forwarded", "accept"]
        {
            headers.append(name, HeaderValue::from_static("one"));
            headers.append(name, HeaderValue::from_static("another"));
        }
        strip(&mut headers, &Settings { access, ..Settings::default() });
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn local_is_who_is_at_this_machine_without_a_proxy_in_between() {
        assert!(client("127.0.0.1", &[]).is_local() && client("::1", &[]).is_local());
        assert!(!client("192.0.2.1", &[]).is_local());
        for name in PROXIED.into_iter().chain([
            FORWARDED_FOR,
            FORWARDED_PROTO,
            "x-forwarded-host",
            "x-forwarded-port",
            "cf-connecting-ip",
            "cf-ray",
            "x-envoy-external-address",
            "x-envoy-expected-rq-timeout-ms",
        ]) {
            assert!(!client("127.0.0.1", &[(name, "x")]).is_local(), "{name}");
        }
        assert!(client("127.0.0.1", &[("x-request-id", "1"), ("accept", "*/*")]).is_local());
    }

    #[test]
    fn a_proxy_that_says_nothing_is_seen_by_what_it_changes() {
        let seen = |version, lines: &[(&str, &str)]| {
            let mut request = Request::builder().version(version).header("host", "127.0.0.1:7799");
            for (name, value) in lines {
                request = request.header(*name, *value);
            }
            passed_a_silent_proxy(&request.body(axum::body::Body::empty()).unwrap())
        };
        assert!(seen(Version::HTTP_10, &[]) && !seen(Version::HTTP_11, &[]) && !seen(Version::HTTP_2, &[]));
        let seen = |lines: &[(&str, &str)]| seen(Version::HTTP_11, lines);
        let (ours, theirs) =
            ("http://127.0.0.1:7799/effects?state=failed", "https://ops.example.com/effects");
        assert!(!seen(&[("referer", ours), ("origin", "http://127.0.0.1:7799")]));
        for lines in [
            &[("referer", theirs)][..],
            &[("origin", "https://ops.example.com")],
            &[("origin", "null")],
            &[("sec-fetch-site", "same-origin"), ("referer", theirs)],
            &[("sec-fetch-site", "none"), ("referer", theirs)],
        ] {
            assert!(seen(lines), "{lines:?}");
        }
        // A link in a chat leads here, and no proxy is in between.
        assert!(!seen(&[("sec-fetch-site", "cross-site"), ("referer", "https://chat.example/room")]));
    }
}
