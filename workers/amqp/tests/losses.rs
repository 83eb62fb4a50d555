//! Guarantee: what was written and not confirmed is unknown, what was not written is not applied, and neither does harm to
//! what comes after (trap T4, AMQP-09).

use std::{sync::Arc, time::Duration};

use aftercommit::{
    downstream::Closed,
    outcome::{Finding, Phase},
};
use tokio::sync::{Notify, mpsc};

use super::{PATIENCE, at, attempt, begin, begin_within, broker::Broker, deliver, gated, shows, within};

const SOON: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_when_the_connection_broke_is_unknown_and_the_next_attempt_connects_anew() {
    let broker = Broker::start(|mut connection| async move {
        if connection.number == 0 {
            connection.prove().await;
            connection.take(8).await;
        } else {
            connection.greet().await;
            connection.confirm_all().await;
        }
    })
    .await;
    let downstream = at(&broker, "");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    let attempts: Vec<_> = (0..8).map(|n| begin(&downstream, format!("k{n}"))).collect();
    for attempt in attempts {
        shows(&within(attempt).await.unwrap(), Finding::Unknown, Phase::Send);
    }
    shows(&deliver(&downstream, "after").await, Finding::Applied, Phase::Done);
    assert_eq!(broker.accepted(), 2);
}

/// The first message of a channel goes alone: a refusal is about it, and what waits behind it was not sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_closed_on_its_first_message_puts_nothing_in_doubt() {
    let broker = Broker::start(|mut connection| async move {
        connection.greet().await;
        let first = connection.next().await.unwrap();
        connection.close_channel(first.channel, 404, "NOT_FOUND - no exchange 'orders' in vhost '/'").await;
        connection.swallow().await;
    })
    .await;
    let downstream = at(&broker, "");
    let attempts: Vec<_> = (0..6).map(|n| begin_within(&downstream, format!("k{n}"), SOON)).collect();
    let mut named = 0;
    for attempt in attempts {
        let outcome = within(attempt).await.unwrap();
        // Those that come late open a channel of their own, which this broker leaves without an answer.
        if outcome.reason.contains("no exchange 'orders'") {
            assert_eq!(outcome.finding, Finding::NotApplied, "{}", outcome.reason);
            assert!(outcome.refuses_us, "every message goes to that exchange");
            named += 1;
        }
    }
    assert!(named > 0, "the broker's words are shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_closed_under_many_messages_leaves_them_unknown_and_others_alone() {
    let broker = Broker::start(|mut connection| async move {
        connection.greet().await;
        let mut others = Vec::new();
        let mut doomed = Vec::new();
        while let Some(message) = connection.next().await {
            match message.message_id.as_str() {
                "first" => connection.ack(message.channel, message.tag, false).await,
                id if id.starts_with("other") => others.push(message),
                _ => doomed.push(message),
            }
            if doomed.len() == 4 && others.len() == 1 {
                let channel = doomed.remove(0).channel;
                doomed.clear();
                connection.close_channel(channel, 404, "NOT_FOUND - no exchange 'orders' in vhost '/'").await;
                connection.ack(others[0].channel, others[0].tag, false).await;
            }
        }
    })
    .await;
    let downstream = at(&broker, "[downstream.orders.operations.note]\nexchange = \"notes\"");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    let doomed: Vec<_> = (0..4).map(|n| begin(&downstream, format!("k{n}"))).collect();
    let mut other = attempt("other", PATIENCE);
    Arc::get_mut(&mut other.effect).unwrap().operation = Some("note".to_owned());
    shows(&within(downstream.deliver(&other)).await, Finding::Applied, Phase::Done);
    for attempt in doomed {
        let outcome = within(attempt).await.unwrap();
        shows(&outcome, Finding::Unknown, Phase::Send);
        assert!(outcome.reason.contains("no exchange"), "{}", outcome.reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_a_confirm_ends_at_its_deadline_and_the_next_takes_another_connection() {
    let broker = Broker::start(|mut connection| async move {
        connection.greet().await;
        if connection.number == 0 { connection.swallow().await } else { connection.confirm_all().await }
    })
    .await;
    let downstream = at(&broker, "");
    let outcome = within(begin_within(&downstream, "k", SOON)).await.unwrap();
    shows(&outcome, Finding::Unknown, Phase::Send);
    shows(&deliver(&downstream, "k").await, Finding::Applied, Phase::Done);
    assert_eq!(broker.accepted(), 2);
}

/// A message that waits behind another is withdrawn when its attempt ends: it is never sent afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_its_attempt_ends_is_never_sent() {
    let (go, seen) = (Arc::new(Notify::new()), Arc::new(std::sync::Mutex::new(Vec::new())));
    let came = Arc::new(Notify::new());
    let (may_go, sees, comes) = (go.clone(), seen.clone(), came.clone());
    let broker = Broker::start(move |mut connection| {
        let (go, seen, came) = (may_go.clone(), sees.clone(), comes.clone());
        async move {
            connection.greet().await;
            let first = connection.next().await.unwrap();
            came.notify_one();
            go.notified().await;
            connection.ack(first.channel, first.tag, false).await;
            while let Some(message) = connection.next().await {
                seen.lock().unwrap().push(message.message_id.clone());
                connection.ack(message.channel, message.tag, false).await;
            }
        }
    })
    .await;
    let downstream = at(&broker, "");
    let first = begin(&downstream, "first");
    within(came.notified()).await;
    // Until the first one is confirmed, these wait.
    let late = within(begin_within(&downstream, "late", SOON)).await.unwrap();
    shows(&late, Finding::NotApplied, Phase::Connect);
    let dropped = begin(&downstream, "dropped");
    tokio::task::yield_now().await;
    dropped.abort();
    within(dropped).await.unwrap_err();
    go.notify_one();
    shows(&within(first).await.unwrap(), Finding::Applied, Phase::Done);
    shows(&deliver(&downstream, "after").await, Finding::Applied, Phase::Done);
    assert_eq!(*seen.lock().unwrap(), ["after"]);
}

/// An attempt that was dropped with its message sent harms nobody; until its confirm its key is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_not_sent_again_while_its_message_is_under_way() {
    let (took, mut taken) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let may_go = go.clone();
    let broker = Broker::start(move |mut connection| {
        let (took, go) = (took.clone(), may_go.clone());
        async move {
            connection.prove().await;
            let held = connection.next().await.unwrap();
            took.send(()).unwrap();
            go.notified().await;
            connection.ack(held.channel, held.tag, false).await;
            connection.confirm_all().await;
        }
    })
    .await;
    let downstream = at(&broker, "");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    let dropped = begin(&downstream, "k");
    within(taken.recv()).await.unwrap();
    dropped.abort();
    within(dropped).await.unwrap_err();
    let again = deliver(&downstream, "k").await;
    shows(&again, Finding::NotApplied, Phase::Render);
    go.notify_one();
    shows(&deliver(&downstream, "other").await, Finding::Applied, Phase::Done);
    shows(&deliver(&downstream, "k").await, Finding::Applied, Phase::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_gate_lets_nothing_out() {
    let broker = Broker::start(|mut connection| async move {
        connection.greet().await;
        let message = connection.next().await.expect("only the one behind the open gate");
        assert_eq!(message.message_id, "open");
        connection.ack(message.channel, message.tag, false).await;
        connection.swallow().await;
    })
    .await;
    let downstream = at(&broker, "");
    let outcome = within(downstream.deliver(&gated("shut", PATIENCE, Err(Closed::Stopping)))).await;
    shows(&outcome, Finding::NotApplied, Phase::Connect);
    shows(&deliver(&downstream, "open").await, Finding::Applied, Phase::Done);
}

/// AMQP-09: a connection that is blocked is published into by nobody, and goes on when the alarm is over.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_published_into_a_blocked_connection() {
    let (go, now) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (may_go, may_block) = (go.clone(), now.clone());
    let broker = Broker::start(move |mut connection| {
        let (go, now) = (may_go.clone(), may_block.clone());
        async move {
            connection.prove().await;
            now.notified().await;
            connection.block("low on memory").await;
            go.notified().await;
            connection.unblock().await;
            let message = connection.next().await.unwrap();
            assert_eq!(message.message_id, "after", "what was held back is not sent behind anybody's back");
            connection.ack(message.channel, message.tag, false).await;
            connection.swallow().await;
        }
    })
    .await;
    let downstream = at(&broker, "");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    now.notify_one();
    let blocked = eventually_blocked(&downstream).await;
    assert!(blocked.reason.contains("connection.blocked"), "{}", blocked.reason);
    assert!(blocked.retry_after.is_some() && !blocked.refuses_us);
    for n in 0..5 {
        shows(&deliver(&downstream, &format!("held{n}")).await, Finding::NotApplied, Phase::Connect);
    }
    go.notify_one();
    loop {
        let outcome = deliver(&downstream, "after").await;
        if outcome.finding == Finding::Applied {
            break;
        }
        shows(&outcome, Finding::NotApplied, Phase::Connect);
    }
    assert_eq!(broker.accepted(), 1);
}

/// Until the broker's notice is there a gate that is closed keeps the tries from being sent.
async fn eventually_blocked(
    downstream: &Arc<dyn aftercommit::downstream::Downstream>,
) -> aftercommit::outcome::Outcome {
    loop {
        let outcome = within(downstream.deliver(&gated("try", PATIENCE, Err(Closed::Held)))).await;
        if outcome.reason.contains("low on memory") {
            return outcome;
        }
        tokio::task::yield_now().await;
    }
}

/// An alarm that was there before us is met by the message that looks for it, not by an effect's.
#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_that_was_there_before_us_puts_nothing_in_doubt() {
    let broker = Broker::start(|mut connection| async move {
        connection.alarm = Some("low on disk");
        connection.greet().await;
        assert!(connection.next().await.is_none(), "no effect's message");
    })
    .await;
    let downstream = at(&broker, "timeout = \"4s\"");
    let outcome = deliver(&downstream, "k").await;
    shows(&outcome, Finding::NotApplied, Phase::Connect);
    assert!(outcome.reason.contains("low on disk"), "{}", outcome.reason);
}

/// The library panics on some of what a broker may say; nobody else does, and the next attempt connects anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_confirms_what_was_never_sent_is_survived() {
    let broker = Broker::start(|mut connection| async move {
        if connection.number > 0 {
            connection.greet().await;
            return connection.confirm_all().await;
        }
        connection.prove().await;
        let messages = connection.take(100).await;
        connection.ack(messages[0].channel, 1 << 60, false).await;
        connection.swallow().await;
    })
    .await;
    let downstream = at(&broker, "");
    shows(&deliver(&downstream, "first").await, Finding::Applied, Phase::Done);
    let attempts: Vec<_> =
        (0..100).map(|n| begin_within(&downstream, format!("k{n}"), Duration::from_secs(2))).collect();
    for attempt in attempts {
        shows(&within(attempt).await.unwrap(), Finding::Unknown, Phase::Send);
    }
    shows(&deliver(&downstream, "after").await, Finding::Applied, Phase::Done);
    assert_eq!(broker.accepted(), 2);
}
