//! The whole numbers: `./tests/run --long mail` writes `reports/mail.json`.

use std::{fs, path::Path, process::Command, time::Duration};

use serde_json::json;

use super::run::{Contract, Plan, check, run};
use crate::support::Chance;

const LARGE: Plan =
    Plan { mails: 2_000, kill_every: Duration::from_secs(2), slow: Duration::from_millis(200), kills: 8 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: ./tests/run --long mail"]
async fn two_thousand_mails_and_a_kill_every_two_seconds() {
    let commit = said("git", &["rev-parse", "HEAD"]);
    let mut chance = Chance::seeded();
    let seed = chance.seed();
    let mut runs = Vec::new();
    for (purpose, contract) in [("mail_long_hold", Contract::Hold), ("mail_long_retry", Contract::Retry)] {
        let showed = run(purpose, LARGE, contract, chance.fork()).await;
        check(&showed, LARGE, contract);
        runs.push(showed.figures);
    }
    let report = json!({
        "what": "mails to a server that loses one answer in eleven after the final dot and says \"not now\" to one in twenty, by two workers, one of which is killed every two seconds",
        "commit": commit,
        "seed": seed,
        "machine": {
            "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "kernel": said("uname", &["-sr"]),
            "memory": fs::read_to_string("/proc/meminfo").unwrap_or_default().lines().next(),
        },
        "runs": runs,
    });
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workers/ lies in the root");
    let text = serde_json::to_string_pretty(&report).expect("JSON");
    fs::write(root.join("reports/mail.json"), text + "\n").expect("the report can be written");
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
