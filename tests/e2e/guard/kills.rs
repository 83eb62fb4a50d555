//! A server killed or stopped between any two steps of a guarded request: before the commit a retry runs, after it a retry
//! replays; never two orders, and the key is free at once.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{processes::eventually, tcp_proxy::TcpProxy},
    client::{Ask, Exchange, insist, send},
    gate::Step,
    hold::Hold,
    shop::{Server, Shop},
};
use crate::support::{Engine, TestDatabase, on_every_way, on_postgres};

/// No lock outlives the process that had it for longer than the database needs to notice its end.
const FREE_WITHIN: Duration = Duration::from_secs(5);

on_every_way!(
    a_kill_between_any_two_steps_leaves_one_order,
    a_server_that_is_stopped_for_a_while_does_not_let_another_run,
    whoever_waits_for_a_stopped_server_gets_its_answer
);
on_postgres!(
    a_kill_while_the_commit_is_on_the_wire_leaves_one_order,
    a_commit_whose_answer_is_lost_is_replayed,
    a_transaction_that_the_database_has_ended_is_told_to_come_again
);

fn server_of(url: &str) -> String {
    let url = url::Url::parse(url).expect("a URL");
    format!("{}:{}", url.host_str().unwrap_or("127.0.0.1"), url.port().unwrap_or(5432))
}

fn through(url: &str, address: std::net::SocketAddr) -> String {
    let mut url = url::Url::parse(url).expect("a URL");
    url.set_port(Some(address.port())).expect("it has a host");
    url.set_host(Some("127.0.0.1")).expect("an address");
    url.into()
}

/// Sends `ask` to a server that is killed after `step`; gives what the client heard.
async fn killed_after(shop: &Shop, step: Step, ask: &Ask) -> Exchange {
    let on_the_wire = step == Step::AfterBegin && shop.sql.engine() == Engine::Postgres;
    let wire =
        if on_the_wire { Some(Hold::start(server_of(&shop.url), "begin_request").await) } else { None };
    let mut server = shop
        .server(|setting| match &wire {
            Some(wire) => setting.url = through(&setting.url, wire.address),
            None => setting.stop_after = Some(step),
        })
        .await;
    let address = server.address;
    let kill = async {
        match &wire {
            Some(wire) => {
                eventually("a statement is held", FREE_WITHIN, async || wire.held() == 1).await;
            }
            None => server.stopped_after(step).await,
        }
        // It is where it was to be: else a kill would prove nothing.
        assert_eq!(
            shop.open_transactions().await,
            usize::from(step.is_inside()),
            "transactions after {step:?}"
        );
        assert_eq!(shop.orders(&ask.key).await, i64::from(step.has_committed()), "orders after {step:?}");
        assert_eq!(shop.runs(&ask.key), usize::from(step.has_run()), "runs after {step:?}");
        server.kill().await;
    };
    let (lost, ()) = tokio::join!(send(address, ask), kill);
    assert!(lost.heard.is_none(), "a server that was killed after {step:?} has answered: {lost:?}");
    lost
}

/// Must show: kill -9 of the server between each two steps. IDEMP-IN-03, IDEMP-IN-21.
async fn a_kill_between_any_two_steps_leaves_one_order(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let other = shop.server(|_| {}).await;
    let mut exchanges = Vec::new();
    let (mut ran_again, mut replayed) = (0, 0);
    for step in Step::ALL {
        let ask = Ask::order(format!("{step:?}"), 1500);
        exchanges.push(killed_after(&shop, step, &ask).await);
        let killed = Instant::now();
        let retries = insist(other.address, &ask).await;
        assert!(killed.elapsed() < FREE_WITHIN, "the key was held for {:?} after {step:?}", killed.elapsed());
        let answer = retries[retries.len() - 1].answer().clone();
        assert_eq!(answer.status, 201, "{}", answer.shown());
        assert_eq!(answer.is_replay(), step.has_committed(), "the retry after {step:?}");
        let runs = usize::from(step.has_run()) + usize::from(!step.has_committed());
        assert_eq!(shop.runs(&ask.key), runs, "runs of a request that was killed after {step:?}");
        if step.has_committed() {
            replayed += 1;
            // What was made before the kill, and by nobody since.
            let made: Vec<_> = shop
                .journal()
                .into_iter()
                .filter(|words| words[0] == "answered" && words[2] == ask.key)
                .collect();
            assert_eq!((made.len(), made[0][3].as_bytes()), (1, &answer.body[..]));
        } else {
            ran_again += 1;
        }
        exchanges.extend(retries);
        let again = send(other.address, &ask).await;
        assert!(again.answer().is_replay());
        exchanges.push(again);
    }
    assert_eq!((ran_again, replayed), (9, 2), "every step was hit, and each did what it should");
    let evidence = shop.evidence(exchanges).await;
    evidence.assert_kept();
    assert_eq!(evidence.orders.len(), Step::ALL.len());
    println!(
        "kills: {} steps hit; {ran_again} ran again, {replayed} replayed; {}",
        Step::ALL.len(),
        evidence.summary()
    );
}

/// The server has sent COMMIT and is killed before the database gets it.
async fn a_kill_while_the_commit_is_on_the_wire_leaves_one_order(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let wire = Hold::start(server_of(&db.url), "commit\0").await;
    let mut first = shop.server(|setting| setting.url = through(&setting.url, wire.address)).await;
    let second = shop.server(|_| {}).await;
    let (address, ask) = (first.address, Ask::order("k", 1));
    let kill = async {
        eventually("the COMMIT is held", FREE_WITHIN, async || wire.held() == 1).await;
        assert_eq!(shop.orders("k").await, 0);
        first.kill().await;
    };
    let (lost, ()) = tokio::join!(send(address, &ask), kill);
    let mut exchanges = vec![lost];
    exchanges.extend(insist(second.address, &ask).await);
    assert!(!exchanges[exchanges.len() - 1].answer().is_replay(), "nothing was committed: it runs");
    assert_eq!(shop.runs("k"), 2);
    shop.evidence(exchanges).await.assert_kept();
}

/// T7, IDEMP-IN-21: the database has committed, and its answer never arrives.
async fn a_commit_whose_answer_is_lost_is_replayed(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let proxy = TcpProxy::start(server_of(&db.url)).await;
    let server = shop.server(|setting| setting.url = through(&setting.url, proxy.address)).await;
    proxy.swallow_answers_of(|statement| statement == "commit", 1);
    let ask = Ask::order("k", 1);
    let first = send(server.address, &ask).await;
    assert_eq!(proxy.swallowed(), 1, "{:?}", proxy.statements());
    assert_eq!(first.answer().status, 503, "{}", first.answer().shown());
    assert_eq!(shop.orders("k").await, 1, "it was committed");
    let mut exchanges = vec![first];
    exchanges.extend(insist(server.address, &ask).await);
    assert!(exchanges[exchanges.len() - 1].answer().is_replay());
    assert_eq!(shop.runs("k"), 1);
    shop.evidence(exchanges).await.assert_kept();
}

/// A server in the middle of its transaction, stopped; its client waits.
async fn stopped_first(
    shop: &Shop,
    ask: &Ask,
    step: Step,
    url: &str,
) -> (Server, tokio::task::JoinHandle<Exchange>) {
    let mut first = shop
        .server(|setting| {
            url.clone_into(&mut setting.url);
            setting.stop_after = Some(step);
        })
        .await;
    let (address, asked) = (first.address, ask.clone());
    let client = tokio::spawn(async move { send(address, &asked).await });
    first.stopped_after(step).await;
    (first, client)
}

/// A pause of the virtual machine, a SIGSTOP: the transaction is still the first one's.
async fn a_server_that_is_stopped_for_a_while_does_not_let_another_run(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let ask = Ask::order("k", 1);
    let (first, client) = stopped_first(&shop, &ask, Step::AfterEffect, &db.url).await;
    let second = shop.server(|setting| setting.busy_ms = 200).await;
    let expected = match db.engine {
        Engine::Postgres => 409,
        Engine::Sqlite => 503,
    };
    let mut exchanges = Vec::new();
    for _ in 0..3 {
        let told = send(second.address, &ask).await;
        assert_eq!(told.answer().status, expected, "{}", told.answer().shown());
        exchanges.push(told);
    }
    first.go_on();
    let first_told = client.await.expect("the client ends");
    assert_eq!(first_told.answer().status, 201, "{}", first_told.answer().shown());
    exchanges.push(first_told);
    let again = send(second.address, &ask).await;
    assert!(again.answer().is_replay());
    exchanges.push(again);
    assert_eq!(shop.runs("k"), 1, "never a second run");
    shop.evidence(exchanges).await.assert_kept();
}

/// Stopped for longer than the database lets a transaction be idle (`idle_in_transaction_session_timeout`): the key is free, another
/// runs, and the first, when it goes on, has done nothing and says so.
async fn a_transaction_that_the_database_has_ended_is_told_to_come_again(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut impatient = url::Url::parse(&db.url).expect("a URL");
    impatient.query_pairs_mut().append_pair("options[idle_in_transaction_session_timeout]", "300");
    let ask = Ask::order("k", 1);
    let (first, client) = stopped_first(&shop, &ask, Step::AfterHandler, impatient.as_str()).await;
    eventually("the database ends the transaction", FREE_WITHIN, async || {
        shop.open_transactions().await == 0
    })
    .await;
    let second = shop.server(|_| {}).await;
    let mut exchanges = insist(second.address, &ask).await;
    assert!(!exchanges[exchanges.len() - 1].answer().is_replay(), "the key is free: it runs");
    first.go_on();
    let late = client.await.expect("the client ends");
    assert_eq!(late.answer().status, 503, "{}", late.answer().shown());
    exchanges.push(late);
    let again = insist(first.address, &ask).await;
    assert!(again[again.len() - 1].answer().is_replay());
    exchanges.extend(again);
    assert_eq!(shop.runs("k"), 2);
    shop.evidence(exchanges).await.assert_kept();
}

/// Eight are in flight while the first is stopped; then it goes on.
async fn whoever_waits_for_a_stopped_server_gets_its_answer(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let ask = Ask::order("k", 1);
    let (first, client) = stopped_first(&shop, &ask, Step::AfterEffect, &db.url).await;
    let second = shop.server(|_| {}).await;
    let waiting = futures_util::future::join_all((0..8).map(|_| insist(second.address, &ask)));
    let go_on = async {
        // A new one is refused or waits as they do: by then they have all been sent.
        let served = shop.server(|setting| setting.busy_ms = 1).await;
        let told = send(served.address, &ask).await;
        assert!(told.answer().asks_again(), "{}", told.answer().shown());
        first.go_on();
        told
    };
    let (waited, told) = tokio::join!(waiting, go_on);
    let mut exchanges = vec![client.await.expect("the client ends"), told];
    for exchange in waited.into_iter().flatten() {
        let answer = exchange.answer();
        let kind = (answer.status, answer.is_replay());
        assert!(matches!(kind, (201, true) | (409 | 503, false)), "{}", answer.shown());
        exchanges.push(exchange);
    }
    assert_eq!(shop.runs("k"), 1);
    shop.evidence(exchanges).await.assert_kept();
}
