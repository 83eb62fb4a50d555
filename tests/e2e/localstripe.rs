//! The worst case: localstripe, a payment server that nobody here wrote, ignores the idempotency key, so every request that
//! arrives is a charge. Under the faults of the main run it must have charged nobody twice: once where unknown outcomes are
//! held, once where its list of charges can be asked.

use std::time::{Duration, Instant};

use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{MissedTickBehavior, interval},
};

use crate::support::Chance;

use super::{
    checker::{Evidence, assert_kept},
    ledger::Fate,
    ledger_proxy::{Faults, LedgerProxy},
    processes::{Psql, eventually},
    servers::{PaymentServer, SECRET},
    shop::{Fleet, Shop, WORKER, payments_with},
    wire::Reader,
};

const ORDER_EVERY: Duration = Duration::from_millis(80);
const KILL_EVERY: Duration = Duration::from_millis(300);
const WORKERS: usize = 3;
/// Longer than the longest processing of the fault plan: a call is held for 400 ms, and then the server takes its time. The
/// test checks that no call took as long.
const ABSENT_AFTER: Duration = Duration::from_secs(3);

/// The list is asked page by page; `where` finds the order's charge, pending or not, `found` asks for money that moved.
const LOOKUP: &str = r#"
contract = { dedupe = "lookup", margin = "1s" }
probe = { path = "/v1/charges?limit=50", any = "/data", where = { "/metadata/order" = "{metadata:/order}" }, found = { pointer = "/status", equals = "succeeded" }, pages = { more = "/has_more", next = "starting_after={last:/data:/id}", max = 100 }, absent_after = "3s" }
"#;
const HOLD: &str = r#"contract = { dedupe = "none", on_unknown = "hold" }"#;

/// Orders for so long, under the faults of the main run, until every effect is in one of `ends`.
async fn run(
    purpose: &'static str,
    contract: &str,
    lasts: Duration,
    ends: &'static [&'static str],
) -> Evidence {
    let chance = Chance::seeded();
    let shop = Shop::on_postgres(purpose).await;
    let server = PaymentServer::start_localstripe(shop.folder.path()).await;
    let card = payment_method(&server.address).await;
    let proxy = LedgerProxy::start(&server.address, shop.folder.path(), Faults::MAIN, chance).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments_with(&proxy.url(), contract)));
    shop.migrate(&config).await;
    let mut fleet = Fleet::start(&shop, &config, WORKERS);
    disturb(&shop, &mut fleet, &proxy, (&card, lasts)).await;
    let what = format!("every effect is {ends:?}");
    let end = Instant::now() + Duration::from_secs(100);
    eventually(&what, Duration::from_secs(110), async || {
        let done = shop.outside(ends).await == 0;
        assert!(done || Instant::now() < end, "not drained:\n{}", fleet.output());
        done
    })
    .await;
    // A call that nobody waits for may still be held: what it does is part of the evidence.
    eventually("no call is open", Duration::from_secs(30), async || proxy.open_calls() == 0).await;
    let mut evidence = shop.evidence(proxy.ledger(), server.charges().await).await;
    evidence.kills.clone_from(&fleet.kills);
    println!("{purpose}: {}; {} kills hit an open call", evidence.summary(), fleet.kills_with_open_call);
    assert!(fleet.kills_with_open_call >= 5, "only {} kills hit an open call", fleet.kills_with_open_call);
    fleet.stop().await;
    evidence
}

async fn disturb(shop: &Shop, fleet: &mut Fleet<'_>, proxy: &LedgerProxy, (card, lasts): (&str, Duration)) {
    let mut psql = Psql::open(&shop.database.url(), &shop.path("psql.log"));
    let (mut orders, mut kills) = (interval(ORDER_EVERY), interval(KILL_EVERY));
    kills.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = Instant::now() + lasts;
    let (mut order, mut victim) = (0_u32, 0_usize);
    while Instant::now() < end {
        tokio::select! {
            _tick = orders.tick() => {
                order += 1;
                psql.feed(&order_sql(order, card)).await;
            }
            _tick = kills.tick() => {
                victim += 1;
                fleet.kill(victim, Some(proxy)).await;
            }
        }
    }
    psql.close().await;
}

fn order_sql(order: u32, card: &str) -> String {
    let payload =
        format!(r#"{{"amount":1500,"currency":"jpy","source":"{card}","metadata":{{"order":"A-{order}"}}}}"#);
    format!(
        r#"BEGIN; INSERT INTO orders (id, amount) VALUES ('A-{order}', 1500);
        INSERT INTO aftercommit.effects (downstream, operation, idempotency_key, payload, metadata)
        VALUES ('payments', 'charge', 'order-A-{order}/charge', '{payload}', '{{"order":"A-{order}"}}'); COMMIT;"#
    )
}

/// A card that every charge is made to.
async fn payment_method(address: &str) -> String {
    let body = "type=card&card[number]=4242424242424242&card[exp_month]=12&card[exp_year]=2030&card[cvc]=123";
    let request = format!(
        "POST /v1/payment_methods HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {SECRET}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("localstripe listens");
    stream.write_all(request.as_bytes()).await.expect("localstripe reads");
    let answer = Reader::new(stream).message().await.expect("an answer").expect("an answer");
    let method: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    method["id"].as_str().unwrap_or_else(|| panic!("no payment method: {method}")).to_owned()
}

/// Trap T4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_the_key_charges_nobody_twice_where_unknown_outcomes_are_held() {
    let evidence = run("localstripe_hold", HOLD, Duration::from_secs(6), &["succeeded", "in_doubt"]).await;
    assert_kept(&evidence.called_at_most_once(), &evidence);
    let in_doubt: Vec<_> = evidence.effects.iter().filter(|effect| effect.state == "in_doubt").collect();
    for effect in &in_doubt {
        println!("in doubt: {} because {:?}", effect.key, effect.last_error);
        assert!(
            effect.last_error.as_ref().is_some_and(|why| !why.is_empty()),
            "without a reason: {effect:?}"
        );
    }
    assert!(in_doubt.len() >= 10, "only {} are in doubt", in_doubt.len());
}

/// The look-up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_the_key_and_can_be_asked_charges_every_order_once() {
    let mut evidence = run("localstripe_lookup", LOOKUP, Duration::from_secs(8), &["succeeded"]).await;
    let (probes, calls): (Vec<_>, Vec<_>) = evidence.calls.drain(..).partition(|call| call.method == "GET");
    evidence.calls = calls;
    assert_kept(&evidence.charged_once(), &evidence);
    for call in &evidence.calls {
        let took = call.fate.map_or(0, |(_, ended)| ended - call.at);
        let limit = i64::try_from(ABSENT_AFTER.as_micros()).expect("seconds");
        assert!(took < limit, "the fault plan is longer than absent_after: {call:?}");
    }
    let found = evidence.effects.iter().filter(|effect| {
        effect.last_error.as_ref().is_some_and(|said| said.contains("found that it was applied"))
    });
    let found = found.count();
    let sent = |key: &str| evidence.calls.iter().filter(|call| call.key == key).count();
    let resent = evidence.effects.iter().filter(|effect| sent(&effect.key) > 1).count();
    let lost = probes.iter().filter(|call| call.fate.is_some_and(|(fate, _)| fate != Fate::Answered)).count();
    println!(
        "{} probes, {lost} of them lost; {found} effects found, {resent} absent and sent again",
        probes.len()
    );
    // The run proves something only if probes settled effects in both ways, and were disturbed themselves.
    assert!(found >= 10, "only {found} effects were found");
    assert!(resent >= 2, "only {resent} effects were absent and sent again");
    assert!(lost >= 5, "only {lost} probes were lost");
}
