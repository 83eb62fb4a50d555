//! A resend from the command line, at its database and through a dashboard: the same is asked for, and the same is done.

use std::time::Duration;

use aftercommit::{decision::Resend, state::State};

use super::{
    Reach,
    api::{in_doubt, worker},
    reach::here_and_there,
};
use crate::support::TestDatabase;

here_and_there! {
    a_resend_is_confirmed_with_a_reason_where_it_may_be_applied_twice,
}

/// Each of several is asked about by itself: what one of them lacks keeps no other from being done.
async fn a_resend_is_confirmed_with_a_reason_where_it_may_be_applied_twice(db: &TestDatabase, reach: &Reach) {
    let worker = worker(db).await;
    let (safe, risky) = (in_doubt(db, &worker, "pay", "k1").await, in_doubt(db, &worker, "pay", "k2").await);
    for id in [safe, risky] {
        db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
    }
    db.shift_back("queue", "first_sent_at", risky, Duration::from_secs(30 * 3_600)).await;
    let (safe_id, risky_id) = (safe.to_string(), risky.to_string());
    let (code, said) = reach.ends(&["effects", "resend", &risky_id, "--yes"]).await;
    assert!(code == Some(2) && said.contains("resend needs a reason"), "{said}");
    let (code, said) = reach.ends(&["effects", "resend", &risky_id, &safe_id]).await;
    assert!(code == Some(5) && said.contains("1 of 2 done"), "{said}");
    assert!(said.contains(&format!("effect {risky}: resend needs a reason")), "{said}");
    assert!(said.contains("if that is before ") && said.contains("else it is in doubt again"), "{said}");
    assert_eq!((db.state(safe).await, db.state(risky).await), (State::Ready, State::InDoubt));
    assert_eq!(worker.claim_one("pay").await.history.resend, Some(Resend::Unconfirmed));
    let said = reach.out(&["effects", "resend", &risky_id, "--yes", "--reason", "two do no harm"]).await;
    assert!(said.contains("sent once more by the next free worker."), "{said}");
    assert_eq!(worker.claim_one("pay").await.history.resend, Some(Resend::Confirmed));
}
