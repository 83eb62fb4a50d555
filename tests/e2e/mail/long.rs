//! The whole numbers: `./tests/run --long mail` writes `reports/mail.json`.

use std::time::Duration;

use serde_json::json;

use super::run::{Contract, Plan, check, run};
use crate::support::{Chance, Report};

const LARGE: Plan =
    Plan { mails: 2_000, kill_every: Duration::from_secs(2), slow: Duration::from_millis(200), kills: 8 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: ./tests/run --long mail"]
async fn two_thousand_mails_and_a_kill_every_two_seconds() {
    let report = Report::begin("mail");
    let mut chance = Chance::seeded();
    let seed = chance.seed();
    let mut runs = Vec::new();
    for (purpose, contract) in [("mail_long_hold", Contract::Hold), ("mail_long_retry", Contract::Retry)] {
        let showed = run(purpose, LARGE, contract, chance.fork()).await;
        check(&showed, LARGE, contract);
        runs.push(showed.figures);
    }
    let what = "mails to a server that loses one answer in eleven after the final dot and says \"not now\" to one in twenty, by two workers, one of which is killed every two seconds";
    report.write(what, json!({ "seed": seed, "runs": runs }));
}
