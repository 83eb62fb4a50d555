//! Guarantee: what no queue takes is no success, whatever the broker confirms (AMQP-01).

use aftercommit::outcome::{About, Finding};
use lapin::ExchangeKind;

use super::{
    rabbit::{Rabbit, shared_url, unique},
    send, served, shows,
};

const REJECTED: Finding = Finding::Rejected(About::ThisAttempt);

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_exist_or_was_deleted_is_unroutable() {
    let (rabbit, queue) = (Rabbit::at(&shared_url()).await, unique("routing"));
    let served = served(&shared_url(), "");
    shows(&send(&served, "before", &queue).await, REJECTED, "unroutable");
    rabbit.queue(&queue).await;
    shows(&send(&served, "there", &queue).await, Finding::Applied, "confirmed");
    assert_eq!(rabbit.take_ids(&queue).await, ["there"]);
    rabbit.delete_queue(&queue).await;
    shows(&send(&served, "after", &queue).await, REJECTED, "NO_ROUTE");
    rabbit.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_without_a_binding_is_unroutable() {
    let (rabbit, exchange, queue) = (Rabbit::at(&shared_url()).await, unique("topics"), unique("orders"));
    rabbit.exchange(&exchange, ExchangeKind::Topic).await;
    rabbit.queue(&queue).await;
    rabbit.bind(&exchange, &queue, "order.#").await;
    let served = served(&shared_url(), &format!("exchange = \"{exchange}\""));
    shows(&send(&served, "bound", "order.placed").await, Finding::Applied, "confirmed");
    shows(&send(&served, "unbound", "refund.placed").await, REJECTED, "unroutable");
    assert_eq!(rabbit.take_ids(&queue).await, ["bound"]);
    rabbit.delete_exchange(&exchange).await;
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}

/// Routed and unroutable ones at once: the broker confirms many of them with one frame.
#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_are_told_apart() {
    let (rabbit, queue) = (Rabbit::at(&shared_url()).await, unique("mixed"));
    rabbit.queue(&queue).await;
    let served = served(&shared_url(), "");
    shows(&send(&served, "first", &queue).await, Finding::Applied, "confirmed");
    let sends = (0..300).map(|n| {
        let (served, queue) = (&served, &queue);
        async move {
            if n % 3 == 0 {
                shows(&send(served, &format!("lost{n}"), "no-such-queue").await, REJECTED, "unroutable");
            } else {
                shows(&send(served, &format!("k{n}"), queue).await, Finding::Applied, "confirmed");
            }
        }
    });
    futures_util::future::join_all(sends).await;
    let mut ids = rabbit.take_ids(&queue).await;
    ids.sort_unstable();
    let mut expected: Vec<_> = (0..300).filter(|n| n % 3 != 0).map(|n| format!("k{n}")).collect();
    expected.push("first".to_owned());
    expected.sort_unstable();
    assert_eq!(ids, expected);
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}
