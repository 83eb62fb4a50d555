//! Mail under faults: SMTP-01, SMTP-03, SMTP-05. Workers are killed, answers are lost after the final dot, some recipients are refused
//! for good and some for now. A mail server of ours keeps what it took, by Message-ID.

mod long;
mod run;
mod server;

use std::time::Duration;

use run::{Contract, Plan, check, run};

use crate::support::Chance;

const SMALL: Plan =
    Plan { mails: 200, kill_every: Duration::from_millis(400), slow: Duration::from_millis(150), kills: 4 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_mail_is_sent_twice_where_doubt_is_held() {
    let showed = run("mail_hold", SMALL, Contract::Hold, Chance::seeded()).await;
    check(&showed, SMALL, Contract::Hold);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_that_is_sent_again_is_the_same_mail_and_none_is_lost() {
    let showed = run("mail_retry", SMALL, Contract::Retry, Chance::seeded()).await;
    check(&showed, SMALL, Contract::Retry);
}
