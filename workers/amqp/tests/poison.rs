//! Guarantee: a message that the broker will not have does no harm to its neighbours a second time, and one that was not
//! written when its attempt ended never leaves.

use std::{collections::HashSet, sync::Arc, time::Duration};

use aftercommit::{
    downstream::Downstream,
    outcome::{About, Finding, Outcome, Phase},
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
};
use tokio_util::task::TaskTracker;

use super::{
    PATIENCE, at, attempt, begin,
    broker::{Broker, Published},
    deliver, shows, within,
};

const TOPIC: &str =
    "ACCESS_REFUSED - access to topic 'forbidden' in exchange 'orders' in vhost '/' refused for user 'guest'";
const EXCHANGE: &str =
    "ACCESS_REFUSED - access to exchange 'orders' in vhost '/' refused for user 'guest', not to topic 'x'";
const TOO_LARGE: &str = "PRECONDITION_FAILED - message size 20 is larger than configured max size 10";

async fn to(downstream: &Arc<dyn Downstream>, key: &str, target: &str) -> Outcome {
    let mut attempt = attempt(key, PATIENCE);
    Arc::get_mut(&mut attempt.effect).unwrap().target = Some(target.to_owned());
    within(downstream.deliver(&attempt)).await
}

/// A broker that closes the channel on every poison, and holds what is called "held" until it has closed one. It says what
/// it holds.
async fn fastidious(code: u16, text: &'static str, held: mpsc::UnboundedSender<()>) -> Broker {
    Broker::start(move |mut connection| {
        let held = held.clone();
        async move {
            connection.greet().await;
            let mut waiting: Vec<Published> = Vec::new();
            while let Some(message) = connection.next().await {
                if message.message_id.starts_with("held") {
                    waiting.push(message);
                    held.send(()).unwrap();
                } else if message.message_id.starts_with("poison") || message.routing_key == "forbidden" {
                    connection.close_channel(message.channel, code, text).await;
                    for one in waiting.drain(..).filter(|one| one.channel != message.channel) {
                        connection.ack(one.channel, one.tag, false).await;
                    }
                } else {
                    connection.ack(message.channel, message.tag, false).await;
                }
            }
        }
    })
    .await
}

async fn hold(
    downstream: &Arc<dyn Downstream>,
    is_held: &mut mpsc::UnboundedReceiver<()>,
) -> Vec<JoinHandle<Outcome>> {
    let attempts: Vec<_> = (0..4).map(|n| begin(downstream, format!("held{n}"))).collect();
    for _ in &attempts {
        within(is_held.recv()).await.unwrap();
    }
    attempts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_closed_a_channel_puts_its_neighbours_in_doubt_once() {
    let (held, mut is_held) = mpsc::unbounded_channel();
    let broker = fastidious(406, TOO_LARGE, held).await;
    let downstream = at(&broker, "");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    let neighbours = hold(&downstream, &mut is_held).await;
    shows(&deliver(&downstream, "poison").await, Finding::Unknown, Phase::Send);
    for neighbour in neighbours {
        shows(&within(neighbour).await.unwrap(), Finding::Unknown, Phase::Send);
    }
    shows(&deliver(&downstream, "second").await, Finding::Applied, Phase::Done);
    // The old neighbours have a channel for suspects, and the broker takes them there; these are new ones beside the poison.
    let attempts: Vec<_> = (4..8).map(|n| begin(&downstream, format!("held{n}"))).collect();
    for _ in &attempts {
        within(is_held.recv()).await.unwrap();
    }
    let again = deliver(&downstream, "poison").await;
    shows(&again, Finding::Rejected(About::ThisAttempt), Phase::Done);
    assert!(again.reason.contains("larger than"), "{}", again.reason);
    for neighbour in attempts {
        shows(&within(neighbour).await.unwrap(), Finding::Applied, Phase::Done);
    }
}

/// The first one is known by itself, and the next effects for its routing key go alone: whatever their keys are.
#[tokio::test(flavor = "multi_thread")]
async fn a_routing_key_that_is_refused_harms_no_neighbour_and_pauses_nobody() {
    let (held, mut is_held) = mpsc::unbounded_channel();
    let broker = fastidious(403, TOPIC, held).await;
    let downstream = at(&broker, "");
    let outcome = to(&downstream, "k0", "forbidden").await;
    shows(&outcome, Finding::NotApplied, Phase::Done);
    assert!(!outcome.refuses_us && outcome.reason.contains("access to topic"), "{outcome:?}");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    let neighbours = hold(&downstream, &mut is_held).await;
    let outcome = to(&downstream, "k1", "forbidden").await;
    shows(&outcome, Finding::NotApplied, Phase::Done);
    assert!(!outcome.refuses_us, "{outcome:?}");
    for neighbour in neighbours {
        shows(&within(neighbour).await.unwrap(), Finding::Applied, Phase::Done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_to_every_effect_pauses_the_downstream() {
    let (held, _) = mpsc::unbounded_channel();
    let broker = fastidious(403, EXCHANGE, held.clone()).await;
    let exchange = at(&broker, "");
    assert!(to(&exchange, "k", "forbidden").await.refuses_us, "the exchange is everybody's");
    let broker = fastidious(403, TOPIC, held).await;
    let key = at(&broker, "routing_key = \"forbidden\"");
    assert!(deliver(&key, "k").await.refuses_us, "the configuration's routing key is everybody's");
}

/// A broker that is blocked reads nothing, and the library would write later what it has.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_written_when_its_attempt_ends_never_leaves() {
    const MESSAGES: usize = 6;
    for dropped in [false, true] {
        let (go, stuck) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (may_go, is_stuck) = (go.clone(), stuck.clone());
        let (said, mut seen) = mpsc::unbounded_channel();
        let broker = Broker::start(move |mut connection| {
            let (go, stuck, said) = (may_go.clone(), is_stuck.clone(), said.clone());
            async move {
                connection.prove().await;
                let mut ids = HashSet::from([connection.next().await.unwrap().message_id]);
                connection.block("low on memory").await;
                stuck.notify_one();
                go.notified().await;
                connection.unblock().await;
                while let Some(message) = connection.next().await {
                    ids.insert(message.message_id);
                }
                said.send(ids).unwrap();
            }
        })
        .await;
        let downstream = at(&broker, "");
        shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
        let timeout = if dropped { PATIENCE } else { Duration::from_secs(3) };
        let attempts: Vec<_> = (0..MESSAGES)
            .map(|n| {
                let (downstream, mut attempt) = (downstream.clone(), attempt(&format!("k{n}"), timeout));
                let text = format!("\"{}\"", "x".repeat(4 << 20));
                Arc::get_mut(&mut attempt.effect).unwrap().payload = Some(text);
                TaskTracker::new().spawn(async move { downstream.deliver(&attempt).await })
            })
            .collect();
        within(stuck.notified()).await;
        let mut unsent = HashSet::new();
        for (n, attempt) in attempts.into_iter().enumerate() {
            if dropped {
                attempt.abort();
                attempt.await.ok();
            } else if within(attempt).await.unwrap().finding == Finding::NotApplied {
                unsent.insert(format!("k{n}"));
            }
        }
        go.notify_one();
        let seen = within(seen.recv()).await.unwrap();
        assert!(seen.len() < MESSAGES, "the socket has no room for all of them, and was shut");
        assert!(dropped || !unsent.is_empty(), "what was not written is known not to have left");
        assert!(unsent.is_disjoint(&seen), "{unsent:?} {seen:?}");
    }
}
