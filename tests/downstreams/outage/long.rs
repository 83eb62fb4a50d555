//! The whole numbers: `./tests/run --long brokers` writes `reports/brokers.json`.

use serde_json::json;

use super::{amqp, nats, redis};
use crate::support::Report;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: ./tests/run --long brokers"]
async fn each_broker_is_killed_and_stays_away_for_half_a_minute() {
    let report = Report::begin("brokers");
    let mut runs = nats::half_a_minute_away().await;
    runs.extend(redis::half_a_minute_away().await);
    runs.extend(amqp::half_a_minute_away().await);
    let what =
        "a worker with 2,000 effects, whose broker is killed in their midst and stays away for half a minute";
    report.write(what, json!({ "runs": runs }));
}
