//! SSRF-01: more than 300 URLs that lead inside, or try to, each delivered as it is.

use std::{collections::BTreeSet, net::Ipv4Addr};

use aftercommit::outcome::{About, Finding, Phase};

use super::{LOOPBACK, LOOPBACK_V6, Names, Traps, deliver, downstream, ports, to};

/// At least one of each special range, its edges, and what clouds answer on.
const INSIDE: [[u8; 4]; 36] = [
    [127, 0, 0, 1],
    [127, 0, 0, 2],
    [127, 255, 255, 254],
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [10, 0, 0, 1],
    [10, 255, 255, 255],
    [172, 16, 0, 1],
    [172, 31, 255, 255],
    [192, 168, 0, 1],
    [192, 168, 255, 255],
    [100, 64, 0, 1],
    [100, 100, 100, 200],
    [100, 127, 255, 255],
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [192, 0, 0, 1],
    [192, 0, 0, 192],
    [192, 0, 2, 1],
    [192, 31, 196, 1],
    [192, 52, 193, 1],
    [192, 88, 99, 1],
    [192, 175, 48, 1],
    [198, 18, 0, 1],
    [198, 19, 255, 255],
    [198, 51, 100, 7],
    [203, 0, 113, 9],
    [168, 63, 129, 16],
    [224, 0, 0, 1],
    [239, 255, 255, 255],
    [240, 0, 0, 1],
    [255, 255, 255, 255],
    [127, 1, 1, 1],
    [10, 96, 0, 1],
    [172, 17, 0, 1],
    [0, 0, 0, 1],
];

/// Ways to write an IPv4 address as a host, and IPv6 addresses that lead to it.
fn disguises(octets: [u8; 4]) -> Vec<String> {
    let [a, b, c, d] = octets;
    let bits = Ipv4Addr::from(octets).to_bits();
    let (high, low) = (bits >> 16, bits & 0xffff);
    let (inverted_high, inverted_low) = (!bits >> 16, !bits & 0xffff);
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{bits}"),
        format!("0x{bits:x}"),
        format!("0{bits:o}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("{a}.{b}.{low}"),
        format!("{a}.{}", bits & 0x00ff_ffff),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[::ffff:0:{high:x}:{low:x}]"),
        format!("[::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[64:ff9b::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b:1::{high:x}:{low:x}]"),
        format!("[2001:0:4136:e378:8000:63bf:{inverted_high:x}:{inverted_low:x}]"),
        format!("[fe80::5efe:{high:x}:{low:x}]"),
    ]
}

/// Tricks of form, names and schemes. `{p}` is a trap's port.
const TRICKS: &str = r"
http://localhost:{p}/
http://LOCALHOST:{p}/
http://localhost.:{p}/
http://x.localhost:{p}/
http://loopback.example:{p}/
http://loopback.example.:{p}/
http://user@loopback.example:{p}/
http://user:pw@127.0.0.1:{p}/
http://public.example@127.0.0.1:{p}/
http://public.example:80@127.0.0.1:{p}/
http://127.0.0.1:{p}@public.example/
http://public.example:{p}\@127.0.0.1:{p}/
http://public.example#@127.0.0.1:{p}/
http://public.example?@127.0.0.1:{p}/\
http:///127.0.0.1:{p}/
http:127.0.0.1:{p}/
http:/127.0.0.1:{p}/
http:\\127.0.0.1:{p}\
http:\/127.0.0.1:{p}/
//127.0.0.1:{p}/
/\127.0.0.1:{p}/
\\127.0.0.1:{p}\x
127.0.0.1:{p}/
127.0.0.1
/etc/passwd
http://127.0.0.1:{p}#x
http://127.0.0.1:{p}/#x
http://127.0.0.1:0{p}/
http://127.0.0.1:{p}:80/
http://127.0.0.1:99999/
http://127.0.0.1:-1/
http://127.0.0.1:/
http://:{p}/
http://.:{p}/
http://..:{p}/
http://
https://
http://?x
http://%31%32%37.0.0.1:{p}/
http://local%68ost:{p}/
http://127.0.0.1%2f@public.example:{p}/
http://127.0.0.1%00.public.example:{p}/
http://①②⑦.⓪.⓪.①:{p}/
http://１２７.０.０.１:{p}/
http://127。0。0。1:{p}/
http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{p}/
http://[::1]:{p}/
http://[::]:{p}/
http://[0:0:0:0:0:0:0:1]:{p}/
http://[0000::0001]:{p}/
http://[::1%25lo]:{p}/
http://[::1%lo]:{p}/
http://[fe80::1%25eth0]:{p}/
http://[fe80::1%eth0]:{p}/
http://[fe80::1]:{p}/
http://[fec0::1]:{p}/
http://[fc00::1]:{p}/
http://[fd00:ec2::254]:{p}/
http://[ff02::1]:{p}/
http://[5f00::1]:{p}/
http://[100::1]:{p}/
http://[2001:2::1]:{p}/
http://[2001:10::1]:{p}/
http://[2001:20::1]:{p}/
http://[2001:db8::1]:{p}/
http://[3ffe::1]:{p}/
http://[3fff::1]:{p}/
http://[4000::1]:{p}/
http://[8000::1]:{p}/
http://[e000::1]:{p}/
http://[::1]@public.example:{p}/
http://[::1:{p}/
http://::1:{p}/
http://[127.0.0.1]:{p}/
http://[::ffff:127.0.0.1]:{p}
http://[0:0:0:0:0:ffff:7f00:1]:{p}/
http://0:{p}/
http://0x0:{p}/
http://00:{p}/
http://127.1:{p}/
http://127.0.1:{p}/
http://0177.1:{p}/
http://0x7f.1:{p}/
http://00000177.0.0.1:{p}/
http://0x7F000001:{p}/
http://4294967295:{p}/
http://4294967296:{p}/
http://127.0.0.256:{p}/
http://127.0.0.0.1:{p}/
http://127.0.0.1:{p}/../x
http://loopback.example:{p}/a/%2e%2e/x
http://loopback.example:{p}/a/..;/x
http://loopback.example:{p}/a b
http://loopback.example:{p}/a\b
http://metadata.google.internal:{p}/computeMetadata/v1/
http://kubernetes.default.svc:{p}/
http://a:{p}/
http://127.0.0.1.nip.example:{p}/
http://xn--:{p}/
http://*.example:{p}/
http://loopback_under.example:{p}/
http://loopback.example:1/
http://loopback.example:22/
http://loopback.example:25/
http://loopback.example:6379/
https://loopback.example:80/
https://loopback.example/
http://loopback.example/
ftp://127.0.0.1:{p}/
file:///etc/passwd
file://127.0.0.1/etc/passwd
gopher://127.0.0.1:{p}/_x
dict://127.0.0.1:{p}/x
ldap://127.0.0.1:{p}/
ws://127.0.0.1:{p}/
wss://127.0.0.1:{p}/
data:text/plain,x
javascript:alert(1)
unix:///var/run/docker.sock
http+unix://%2Fvar%2Frun%2Fdocker.sock/x
jar:http://127.0.0.1:{p}/
blob:http://127.0.0.1:{p}/
httpx://127.0.0.1:{p}/
HTTP://127.0.0.1:{p}/
hTTps://127.0.0.1:{p}/
";

fn hostile(traps: &[u16]) -> BTreeSet<String> {
    let mut urls = BTreeSet::new();
    for (n, octets) in INSIDE.into_iter().enumerate() {
        let port = traps[n % traps.len()];
        urls.extend(disguises(octets).iter().map(|host| format!("http://{host}:{port}/hook?token=t0ken")));
    }
    for trick in TRICKS.lines().filter(|line| !line.is_empty()) {
        urls.extend(traps.iter().map(|port| trick.replace("{p}", &port.to_string())));
    }
    for control in ["\t", "\n", "\r\nHost: public.example\r\n", "\0", " ", "\u{a0}", "\u{202e}"] {
        let port = traps[0];
        urls.insert(format!("{control}http://127.0.0.1:{port}/"));
        urls.insert(format!("http://127.0.0.1:{port}/{control}"));
        urls.insert(format!("ht{control}tp://127.0.0.1:{port}/"));
        urls.insert(format!("http://127.0.0.1{control}:{port}/"));
        urls.insert(format!("http://loopback.example:{port}/{control}x"));
    }
    urls.insert(format!("http://loc\u{ad}alhost:{}/", traps[0]));
    urls.insert(String::new());
    urls
}

#[tokio::test]
async fn three_hundred_hostile_urls_reach_nothing_inside() {
    let traps = Traps::set(3).await;
    // Whatever is asked for is said to be here: a name that slips through leads into a trap.
    let names = Names::new(|_name, _nth| Ok(vec![LOOPBACK, LOOPBACK_V6]));
    let shop = downstream(&format!("egress.http = true\n{}", ports(&traps.ports)), &names);
    let urls = hostile(&traps.ports);
    assert!(urls.len() >= 300, "{} URLs", urls.len());
    for url in &urls {
        let outcome = deliver(&shop, to(url)).await;
        // What the URL shows stays so; what a name leads to may be another tomorrow.
        let refused = matches!(
            (outcome.finding, outcome.phase),
            (Finding::Rejected(About::ThisAttempt), Phase::Render) | (Finding::NotApplied, Phase::Connect)
        );
        assert!(refused, "{url:?}: {:?} {:?} {}", outcome.finding, outcome.phase, outcome.reason);
        assert!(outcome.reason.starts_with("not sent: "), "{url:?}: {}", outcome.reason);
        // Neither what the URL holds besides its host, nor the address that a name led to.
        for secret in ["t0ken", "hook?", "pw"] {
            assert!(!outcome.reason.contains(secret), "{url:?}: {}", outcome.reason);
        }
        if outcome.phase == Phase::Connect {
            let shown = outcome.reason.replace("127.0.0.1.nip.example", "");
            assert!(!shown.contains("127.0.0.1") && !shown.contains("::1"), "{url:?}: {shown}");
        }
    }
    assert_eq!(traps.hits().await, 0, "a trap was reached");
    println!("{} hostile URLs, 0 connections", urls.len());
}

#[tokio::test]
async fn the_same_traps_are_hit_without_the_guard() {
    let traps = Traps::set(1).await;
    let port = traps.ports[0];
    let names = Names::new(|_name, _nth| Ok(vec![LOOPBACK]));
    let open = format!(
        "egress.http = true\negress.allow = [\"0.0.0.0/0\", \"::/0\", \"localhost\"]\n{}",
        ports(&traps.ports)
    );
    let shop = downstream(&open, &names);
    let hosts = [
        "127.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "localhost",
        "loopback.example",
    ];
    for host in hosts {
        let outcome = deliver(&shop, to(&format!("http://{host}:{port}/"))).await;
        assert_eq!(outcome.finding, Finding::Applied, "{host}: {}", outcome.reason);
    }
    assert_eq!(traps.hits().await, hosts.len(), "the traps count what reaches them");
}

#[tokio::test]
async fn a_port_or_a_scheme_is_refused_unless_it_is_configured() {
    let names = Names::new(|_name, _nth| panic!("nothing is resolved for what is refused by its form"));
    for (toml, target, why) in [
        ("", "http://public.example/", "egress.http"),
        ("", "http://public.example:443/", "egress.http"),
        ("", "https://public.example:8443/", "port 8443; egress.ports"),
        ("", "https://public.example:80/", "port 80; egress.ports"),
        ("egress.http = true", "http://public.example:443/", "port 443; egress.ports"),
        ("egress.ports = [8443]", "https://public.example:8444/", "port 8444"),
        ("", "https://localhost/", "this machine"),
        ("", "https://10.0.0.1/", "10.0.0.1, a private address"),
        ("", "https://[64:ff9b::7f00:1]/", "a NAT64 address"),
        ("", "https://2130706433/", "four decimal numbers"),
        ("", "https://user:pw@public.example/", "user or password"),
        ("", "ftp://public.example/", "must begin with https://"),
        ("", "/relative", "whole URL"),
    ] {
        let outcome = deliver(&downstream(toml, &names), to(target)).await;
        let expected = (Finding::Rejected(About::ThisAttempt), Phase::Render);
        assert_eq!((outcome.finding, outcome.phase), expected, "{target}: {}", outcome.reason);
        assert!(outcome.reason.contains(why), "{target}: {why:?} in {}", outcome.reason);
    }
}
