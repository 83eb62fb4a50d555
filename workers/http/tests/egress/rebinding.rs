//! SSRF-03, SSRF-05: names whose answers change between attempts, answers that are mixed, connections that could be kept,
//! and redirects.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering,
};

use aftercommit::{
    downstream::Downstream as _,
    outcome::{About, Finding, Outcome, Phase},
};
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use super::{Answer, LOOPBACK, LOOPBACK_V6, Names, OUTSIDE, Traps, deliver, downstream, outside, ports, to};
use crate::http::tests::server::{Connection, Server, answer};

const ROUNDS: usize = 1000;
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
const MAPPED: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x7f00, 1));
/// A host of the world: nothing here connects to it, since it stands beside what is refused.
const WORLD: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));

/// What the two attempts of a round are answered, and whether each may connect.
fn plan(round: usize) -> [(Vec<IpAddr>, bool); 2] {
    let good = || (vec![OUTSIDE], true);
    match round % 8 {
        0 => [good(), (vec![LOOPBACK], false)],
        1 => [good(), (vec![LOOPBACK_V6], false)],
        2 => [(vec![OUTSIDE, LOOPBACK], false), good()],
        3 => [(vec![LOOPBACK, OUTSIDE], false), (vec![LOOPBACK_V6, OUTSIDE], false)],
        4 => [good(), (vec![OUTSIDE, MAPPED], false)],
        5 => [(vec![WORLD, LOOPBACK], false), (vec![METADATA], false)],
        6 => [good(), (vec![WORLD, OUTSIDE, LOOPBACK_V6], false)],
        _ => [(vec![LOOPBACK], false), good()],
    }
}

/// The round of a name `r17.rebind.example`.
fn round_of(name: &str) -> usize {
    name.trim_start_matches('r').split('.').next().and_then(|number| number.parse().ok()).unwrap()
}

fn rebinding() -> Names {
    Names::new(|name, nth| Ok(plan(round_of(name))[(nth - 1) % 2].0.clone()))
}

/// Two attempts in one round.
async fn round(shop: &crate::http::HttpDownstream, number: usize, port: u16) -> [Outcome; 2] {
    let target = format!("http://r{number}.rebind.example:{port}/hook?token=t0ken");
    [deliver(shop, to(&target)).await, deliver(shop, to(&target)).await]
}

#[tokio::test]
async fn a_thousand_rebinding_rounds_reach_nothing_inside() {
    let traps = Traps::set(1).await;
    let port = traps.ports[0];
    let (reached, _server) = outside(port).await;
    let names = rebinding();
    let settings = format!("egress.http = true\negress.allow = [\"{OUTSIDE}\"]\n{}", ports(&traps.ports));
    let shop = downstream(&settings, &names);
    let mut allowed = 0;
    for number in 0..ROUNDS {
        let outcomes = round(&shop, number, port).await;
        for (nth, (outcome, (_, may_connect))) in outcomes.iter().zip(plan(number)).enumerate() {
            let what = format!("round {number}, attempt {}: {}", nth + 1, outcome.reason);
            if may_connect {
                allowed += 1;
                assert_eq!(outcome.finding, Finding::Applied, "{what}");
                continue;
            }
            let expected = (Finding::NotApplied, Phase::Connect);
            assert_eq!((outcome.finding, outcome.phase), expected, "{what}");
            assert!(outcome.reason.contains("egress guard"), "{what}");
            for secret in ["127.0.0", "::1", "169.254", "t0ken"] {
                assert!(!outcome.reason.contains(secret), "{what}");
            }
        }
        // One lookup per attempt: what was judged is what was connected to, and no answer was kept.
        assert_eq!(names.lookups(&format!("r{number}.rebind.example")), 2, "round {number}");
    }
    assert_eq!(traps.hits().await, 0, "a trap was reached");
    // Every attempt that was allowed made a connection of its own: none was kept.
    assert_eq!(reached.load(Ordering::SeqCst), allowed);
    println!("{ROUNDS} rounds, {allowed} connections outside, 0 inside");
}

#[tokio::test]
async fn the_same_rounds_hit_the_traps_without_the_guard() {
    let traps = Traps::set(1).await;
    let port = traps.ports[0];
    let (_reached, _server) = outside(port).await;
    let names = rebinding();
    let settings =
        format!("egress.http = true\negress.allow = [\"127.0.0.0/8\", \"::1\"]\n{}", ports(&traps.ports));
    let shop = downstream(&settings, &names);
    for number in [0, 1, 7] {
        for outcome in round(&shop, number, port).await {
            assert_eq!(outcome.finding, Finding::Applied, "round {number}: {}", outcome.reason);
        }
    }
    assert_eq!(traps.hits().await, 3);
}

#[tokio::test]
async fn a_name_that_is_not_answered_is_not_applied_and_may_be_tried_again() {
    let answers: [fn() -> Answer; 2] = [|| Ok(Vec::new()), || Err(io::Error::other("the resolver is away"))];
    for script in answers {
        let names = Names::new(move |_name, _nth| script());
        let outcome = deliver(&downstream("", &names), to("https://hooks.example.com/?t=t0ken")).await;
        let expected = (Finding::NotApplied, Phase::Connect);
        assert_eq!((outcome.finding, outcome.phase), expected, "{}", outcome.reason);
        assert!(outcome.reason.contains("hooks.example.com:443 cannot be resolved"), "{}", outcome.reason);
    }
}

#[tokio::test]
async fn a_name_that_is_allowed_may_lead_inside_and_its_neighbours_may_not() {
    let traps = Traps::set(1).await;
    let port = traps.ports[0];
    let names = Names::new(|_name, _nth| Ok(vec![LOOPBACK]));
    let settings =
        format!("egress.http = true\negress.allow = [\"Hooks.Internal\"]\n{}", ports(&traps.ports));
    let shop = downstream(&settings, &names);
    let outcome = deliver(&shop, to(&format!("http://hooks.internal:{port}/"))).await;
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
    for (host, finding) in [
        ("x.hooks.internal", Finding::NotApplied),
        ("hooks.internal.example", Finding::NotApplied),
        ("hooks.internal.", Finding::Rejected(About::ThisAttempt)),
    ] {
        let outcome = deliver(&shop, to(&format!("http://{host}:{port}/"))).await;
        assert_eq!(outcome.finding, finding, "{host}: {}", outcome.reason);
    }
    assert_eq!(traps.hits().await, 1);
}

#[tokio::test]
async fn the_connection_goes_to_the_judged_address_with_the_names_own_host_and_sni() {
    let listener = TcpListener::bind((OUTSIDE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let names = Names::new(|_name, _nth| Ok(vec![OUTSIDE]));
    let settings = format!("egress.http = true\negress.allow = [\"{OUTSIDE}\"]\n{}", ports(&[port]));
    let shop = downstream(&settings, &names);
    for (scheme, expected) in
        [("http", format!("host: hooks.example.com:{port}\r\n")), ("https", "hooks.example.com".to_owned())]
    {
        let heard = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 16 * 1024];
            let length = stream.read(&mut bytes).await.unwrap();
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let target = to(&format!("{scheme}://hooks.example.com:{port}/x"));
        let (heard, _outcome) = tokio::join!(heard, deliver(&shop, target));
        assert!(heard.contains(&expected), "{scheme}: {heard:?}");
        assert!(!heard.contains("127.0.0.77"), "{scheme}: {heard:?}");
    }
}

#[tokio::test]
async fn a_redirect_to_the_inside_is_not_followed() {
    let traps = Traps::set(1).await;
    let inside = traps.ports[0];
    let server = Server::start_at(OUTSIDE, move |mut connection: Connection| async move {
        connection.read().await;
        let location = format!("Location: http://127.0.0.1:{inside}/latest/meta-data\r\n");
        connection.write(&answer(307, &location, "")).await;
    })
    .await;
    let port = server.place.rsplit_once(':').unwrap().1.parse().unwrap();
    let names = Names::new(|_name, _nth| Ok(vec![OUTSIDE]));
    let settings = format!("egress.http = true\negress.allow = [\"{OUTSIDE}\"]\n{}", ports(&[port, inside]));
    let outcome =
        deliver(&downstream(&settings, &names), to(&format!("http://hooks.example.com:{port}/"))).await;
    assert_eq!(outcome.finding, Finding::Rejected(About::ThisAttempt), "{}", outcome.reason);
    assert_eq!((server.seen.requests().len(), traps.hits().await), (1, 0));
}

#[tokio::test]
async fn the_origin_of_an_effect_is_its_targets() {
    let names = Names::new(|_name, _nth| Ok(vec![]));
    let shop = downstream("base_url = \"https://own.example\"", &names);
    for (target, origin) in [
        ("https://A.example/x?y", Some("https://a.example")),
        ("https://a.example:443", Some("https://a.example")),
        ("https://10.0.0.1/x", None),
        ("nonsense", None),
    ] {
        assert_eq!(shop.origin(&to(target)).as_deref(), origin, "{target}");
    }
    assert_eq!(shop.origin(&super::effect()), None, "the downstream's own");
}
