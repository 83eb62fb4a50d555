//! Addresses that are no public host's: the special-purpose registries of IANA, what embeds another address, and what cloud
//! platforms answer on. IPv6 is judged the other way round: only global unicast space is public, less what is special in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of address that `address` is, unless it is a public host's.
pub(in crate::http) fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

type V4 = ([u8; 4], u32, &'static str);

const V4: &[V4] = &[
    ([0, 0, 0, 0], 8, "an address of this network"),
    ([10, 0, 0, 0], 8, "a private address"),
    ([100, 64, 0, 0], 10, "a carrier's shared address"),
    ([127, 0, 0, 0], 8, "a loopback address"),
    ([168, 63, 129, 16], 32, "a cloud platform's address"),
    ([169, 254, 0, 0], 16, "a link-local address"),
    ([172, 16, 0, 0], 12, "a private address"),
    ([192, 0, 0, 0], 24, "a reserved address"),
    ([192, 0, 2, 0], 24, "a documentation address"),
    ([192, 31, 196, 0], 24, "a reserved address"),
    ([192, 52, 193, 0], 24, "a reserved address"),
    ([192, 88, 99, 0], 24, "a 6to4 relay's address"),
    ([192, 168, 0, 0], 16, "a private address"),
    ([192, 175, 48, 0], 24, "a reserved address"),
    ([198, 18, 0, 0], 15, "a benchmarking address"),
    ([198, 51, 100, 0], 24, "a documentation address"),
    ([203, 0, 113, 0], 24, "a documentation address"),
    ([224, 0, 0, 0], 4, "a multicast address"),
    // The broadcast address is the last of it.
    ([240, 0, 0, 0], 4, "a reserved address"),
];

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let within = |(network, length, _): &&V4| {
        bits >> (32 - length) == Ipv4Addr::from_octets(*network).to_bits() >> (32 - length)
    };
    V4.iter().find(within).map(|(_, _, kind)| *kind)
}

type V6 = ([u16; 8], u32, &'static str);

/// The first that fits names the kind. What lies outside of global unicast space is refused anyway, and named for people.
const V6: &[V6] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, "the unspecified address"),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, "a loopback address"),
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, "an IPv4 address in IPv6"),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, "an IPv4 address in IPv6"),
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, "a NAT64 address"),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, "a NAT64 address"),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, "a discard address"),
    ([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, "a segment routing address"),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "a private address"),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "a link-local address"),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, "a site-local address"),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, "a multicast address"),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, "a Teredo address"),
    // Protocol assignments: benchmarking, ORCHID, AMT and the like.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "a reserved address"),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, "a documentation address"),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, "a 6to4 address"),
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, "a reserved address"),
    ([0x3ffe, 0, 0, 0, 0, 0, 0, 0], 16, "a reserved address"),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, "a documentation address"),
];

/// 2000::/3, the only space from which public hosts have their addresses.
const GLOBAL_UNICAST: u128 = 0b001;

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let within = |(network, length, _): &&V6| {
        bits >> (128 - length) == Ipv6Addr::from_segments(*network).to_bits() >> (128 - length)
    };
    let named = V6.iter().find(within).map(|(_, _, kind)| *kind);
    named.or((bits >> 125 != GLOBAL_UNICAST).then_some("no global unicast address"))
}

/// How long the prefix of a range is whose addresses end in an IPv4 address.
pub(super) const EMBEDDING: u8 = 96;

/// The IPv4 address to which a connection to `address` is taken: mapped by this machine, or by a NAT64 gateway.
pub(super) fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let segments = address.segments();
    let gateway = segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    let bits = u32::from(segments[6]) << 16 | u32::from(segments[7]);
    address.to_ipv4_mapped().or(gateway.then(|| Ipv4Addr::from_bits(bits)))
}
