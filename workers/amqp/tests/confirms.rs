//! Guarantee: only a confirm without a return is an application, and each confirm is the right effect's (AMQP-01, AMQP-03,
//! traps T4 and T16).

use std::collections::HashSet;

use aftercommit::{
    downstream::Closed,
    outcome::{About, Finding, Phase},
};
use tokio::sync::mpsc;

use super::{
    super::classify::{Fault, Reading, Told},
    at, begin,
    broker::Broker,
    deliver, shows, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_mandatory_persistent_and_carries_the_key() {
    let broker = Broker::start(|mut connection| async move {
        connection.greet().await;
        let message = connection.next().await.unwrap();
        assert!(message.mandatory, "an unroutable message must come back");
        assert_eq!((message.delivery_mode, message.message_id.as_str()), (2, "order-17/placed"));
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("orders", "placed"));
        assert_eq!(message.body, br#"{"amount":1500}"#);
        connection.ack(message.channel, message.tag, false).await;
        connection.swallow().await;
    })
    .await;
    let outcome = deliver(&at(&broker, "routing_key = \"placed\""), "order-17/placed").await;
    shows(&outcome, Finding::Applied, Phase::Done);
}

/// AMQP-03: tag 3 before 1, a nack of 2, 4 and 5 by one confirm, and the connection is dropped on the next message.
#[tokio::test(flavor = "multi_thread")]
async fn confirms_out_of_order_are_the_right_effects() {
    for (setting, nacked) in [("", Finding::Unknown), ("single_queue = true", Finding::NotApplied)] {
        let (said, mut refused) = mpsc::unbounded_channel();
        let broker = Broker::start(move |mut connection| {
            let said = said.clone();
            async move {
                connection.prove().await;
                let messages = connection.take(5).await;
                let (channel, first) = (messages[0].channel, messages[0].tag);
                said.send(messages[1].message_id.clone()).unwrap();
                connection.ack(channel, first + 2, false).await;
                connection.ack(channel, first, false).await;
                connection.nack(channel, first + 1).await;
                connection.ack(channel, first + 4, true).await;
                connection.next().await;
            }
        })
        .await;
        let downstream = at(&broker, setting);
        shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
        let attempts: Vec<_> = (1..=5).map(|n| (n, begin(&downstream, format!("k{n}")))).collect();
        let refused = within(refused.recv()).await.unwrap();
        for (n, attempt) in attempts {
            let outcome = within(attempt).await.unwrap();
            let finding = if refused == format!("k{n}") { nacked } else { Finding::Applied };
            shows(&outcome, finding, Phase::Done);
        }
        shows(&deliver(&downstream, "k6").await, Finding::Unknown, Phase::Send);
    }
}

/// AMQP-01, and what lapin does not do: a confirm that covers many messages, some of them returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_returned_message_is_its_own_effects_whatever_the_confirm_covers() {
    const MESSAGES: usize = 24;
    let (said, mut returned) = mpsc::unbounded_channel();
    let broker = Broker::start(move |mut connection| {
        let said = said.clone();
        async move {
            connection.prove().await;
            loop {
                let messages = connection.take(MESSAGES).await;
                let ids: HashSet<_> = [3, 11, 17].map(|n| messages[n].message_id.clone()).into();
                for n in [11, 3, 17] {
                    connection.give_back(&messages[n]).await;
                }
                said.send(ids).unwrap();
                // One that was routed is confirmed first, by itself; the others all at once.
                connection.ack(messages[5].channel, messages[5].tag, false).await;
                connection.ack(messages[0].channel, messages[MESSAGES - 1].tag, true).await;
            }
        }
    })
    .await;
    let downstream = at(&broker, "");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    // lapin would give the returns to other messages in most of these rounds: the order is a hash map's.
    for round in 0..20 {
        let attempts: Vec<_> = (0..MESSAGES)
            .map(|n| format!("r{round}-{n}"))
            .map(|key| (begin(&downstream, key.clone()), key))
            .collect();
        let returned = within(returned.recv()).await.unwrap();
        for (attempt, key) in attempts {
            let outcome = within(attempt).await.unwrap();
            if returned.contains(&key) {
                shows(&outcome, Finding::Rejected(About::ThisAttempt), Phase::Done);
                assert_eq!(outcome.status(), Some(312));
                assert!(outcome.reason.contains("unroutable") && outcome.reason.contains("NO_ROUTE"));
            } else {
                shows(&outcome, Finding::Applied, Phase::Done);
            }
        }
    }
}

/// T16: the library says `NotRequested` of a channel that is not in confirm mode.
#[test]
fn only_a_confirm_without_a_return_is_an_application() {
    let reading =
        Reading { single_queue: false, single_exchange: true, own_routing_key: false, place: "rabbit:5672" };
    let finding = |told| reading.outcome(told).finding;
    assert_eq!(finding(Told::Acked), Finding::Applied);
    let away = || Fault::Away("gone".to_owned());
    for (told, expected) in [
        (Told::NotRequested, Finding::Unknown),
        (Told::Lost("gone".to_owned()), Finding::Unknown),
        (Told::Nacked, Finding::Unknown),
        (Told::Returned(312, "NO_ROUTE".to_owned()), Finding::Rejected(About::ThisAttempt)),
        (Told::Malformed("too large".to_owned()), Finding::Rejected(About::ThisAttempt)),
        (Told::TooLong("too long".to_owned()), Finding::Rejected(About::ThisAttempt)),
        (Told::NotSent(away()), Finding::NotApplied),
        (Told::Refused(away()), Finding::NotApplied),
        (Told::StillWaiting, Finding::NotApplied),
        (Told::Closed(Closed::Stopping), Finding::NotApplied),
    ] {
        assert_eq!(finding(told.clone()), expected, "{told:?}");
    }
}

/// What is amiss with one exchange pauses the downstream only where all its messages go there.
#[test]
fn a_missing_exchange_pauses_who_needs_no_other() {
    let amiss = || Told::Refused(Fault::Amiss("no exchange".to_owned()));
    let reading = |single_exchange| Reading {
        single_queue: false,
        single_exchange,
        own_routing_key: true,
        place: "rabbit:5672",
    };
    assert!(reading(true).outcome(amiss()).refuses_us);
    assert!(!reading(false).outcome(amiss()).refuses_us);
    let elsewhere = reading(false).outcome(Told::NotSent(Fault::Amiss("no exchange".to_owned())));
    assert_eq!(elsewhere.phase, Phase::Render, "it says nothing of the broker, and costs no attempt");
}
