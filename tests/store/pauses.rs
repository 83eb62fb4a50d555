//! Defends: a pause is lifted by whoever saw it, and by nobody who saw another.

use aftercommit::store::PauseActed;

use super::{budgets::info, stage::person};
use crate::support::{TestDatabase, Worker, key_terms, on_every_way, registered};

on_every_way! {
    a_resume_ends_the_pause_that_was_seen_and_no_other,
}

/// Two people look at one pause; the one who resumes last must not lift another pause that was begun since.
async fn a_resume_ends_the_pause_that_was_seen_and_no_other(db: &TestDatabase) {
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let pause = async || {
        assert_eq!(db.store.pause("pay", &person()).await.expect("pausing works"), PauseActed::Done);
        info(db, "pay").await.paused.expect("it is shown")
    };
    let resume = async |seen| db.store.resume("pay", &person(), Some(seen)).await.expect("resuming works");
    let first = pause().await;
    assert_eq!(resume(first.at).await, PauseActed::Done);
    assert_eq!(resume(first.at).await, PauseActed::AsItWas(None));
    let second = pause().await;
    assert!(second.at > first.at);
    assert_eq!(
        resume(first.at).await,
        PauseActed::AsItWas(Some(second.clone())),
        "it says which there is now"
    );
    assert_eq!(info(db, "pay").await.paused, Some(second.clone()));
    assert_eq!(resume(second.at).await, PauseActed::Done);
    assert_eq!(db.audit(None, 10).await.len(), 4, "what was refused left no row");
}
