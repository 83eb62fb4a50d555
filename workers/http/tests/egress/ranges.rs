//! The edges of every special range: one step outside is public, one step inside is not.

use std::net::IpAddr;

use super::{Names, downstream};
use crate::http::egress::special;

#[test]
fn public_addresses_are_public() {
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.15",
        "168.63.129.17",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.88.98.255",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2001:db7:ffff::1",
        "2001:db9::1",
        "2003::1",
        "2400:cb00::1",
        "2606:4700::1111",
        "2620:4f:7fff::1",
        "2620:4f:8001::1",
        "2a00:1450:4001::1",
        "3ffd::1",
        "3fff:1000::1",
    ] {
        assert_eq!(special(address.parse().unwrap()), None, "{address}");
    }
}

#[test]
fn special_addresses_are_named() {
    for (address, kind) in [
        ("0.0.0.0", "this network"),
        ("0.255.255.255", "this network"),
        ("10.0.0.0", "private"),
        ("10.255.255.255", "private"),
        ("100.64.0.0", "carrier"),
        ("100.127.255.255", "carrier"),
        ("127.0.0.0", "loopback"),
        ("127.255.255.255", "loopback"),
        ("168.63.129.16", "cloud"),
        ("169.254.0.0", "link-local"),
        ("169.254.255.255", "link-local"),
        ("172.16.0.0", "private"),
        ("172.31.255.255", "private"),
        ("192.0.0.0", "reserved"),
        ("192.0.0.255", "reserved"),
        ("192.0.2.255", "documentation"),
        ("192.88.99.255", "6to4"),
        ("192.168.0.0", "private"),
        ("192.168.255.255", "private"),
        ("198.18.0.0", "benchmarking"),
        ("198.19.255.255", "benchmarking"),
        ("198.51.100.255", "documentation"),
        ("203.0.113.255", "documentation"),
        ("224.0.0.0", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.0", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::2", "IPv4 address in IPv6"),
        ("::8.8.8.8", "IPv4 address in IPv6"),
        ("::ffff:8.8.8.8", "IPv4 address in IPv6"),
        ("::ffff:0:8.8.8.8", "global unicast"),
        ("64:ff9b::8.8.8.8", "NAT64"),
        ("64:ff9b:1:ffff::1", "NAT64"),
        ("100::1", "discard"),
        ("1fff:ffff::1", "global unicast"),
        ("2001::1", "Teredo"),
        ("2001:0:ffff::1", "Teredo"),
        ("2001:2::1", "reserved"),
        ("2001:1ff:ffff::1", "reserved"),
        ("2001:db8:ffff::1", "documentation"),
        ("2002::1", "6to4"),
        ("2002:ffff::1", "6to4"),
        ("2620:4f:8000::1", "reserved"),
        ("3ffe:ffff::1", "reserved"),
        ("3fff:fff::1", "documentation"),
        ("4000::1", "global unicast"),
        ("5f00::1", "segment routing"),
        ("fbff::1", "global unicast"),
        ("fc00::1", "private"),
        ("fdff::1", "private"),
        ("fe80::1", "link-local"),
        ("febf::1", "link-local"),
        ("fec0::1", "site-local"),
        ("feff::1", "site-local"),
        ("ff00::1", "multicast"),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "multicast"),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let found = special(address).unwrap_or("public");
        assert!(found.contains(kind), "{address}: {kind:?} in {found:?}");
    }
}

#[test]
fn a_range_that_leads_to_ipv4_hosts_allows_only_those_that_are_allowed_themselves() {
    let names = Names::new(|_name, _nth| Ok(Vec::new()));
    let accepts = |allow: &str, host: &str| {
        let shop = downstream(&format!("egress.allow = [{allow}]\n"), &names);
        let guarded = shop.guarded.expect("it guards");
        guarded.egress().accept(&format!("https://{host}/")).map(drop)
    };
    let (public, private, metadata) = ("[64:ff9b::5db8:d822]", "[64:ff9b::a00:1]", "[64:ff9b::a9fe:a9fe]");
    for host in [public, private, metadata, "[::ffff:7f00:1]"] {
        assert!(accepts("", host).is_err(), "{host}");
    }
    for gateway in ["\"64:ff9b::/96\"", "\"64:ff9b::/32\"", "\"::/0\""] {
        assert_eq!(accepts(gateway, public), Ok(()), "{gateway}");
        for (host, kind) in [(private, "a private address"), (metadata, "a link-local address")] {
            let problem = accepts(gateway, host).unwrap_err();
            assert!(problem.contains(kind), "{gateway} {host}: {problem}");
        }
    }
    assert!(accepts("\"::/0\"", "[::ffff:7f00:1]").unwrap_err().contains("a loopback address"));
    assert_eq!(accepts("\"64:ff9b::/96\", \"10.0.0.0/8\"", private), Ok(()));
    assert!(accepts("\"10.0.0.0/8\"", private).is_err(), "the gateway itself is not listed");
    assert_eq!(accepts("\"64:ff9b::a00:0/104\"", private), Ok(()), "who lists these hosts means them");
}
