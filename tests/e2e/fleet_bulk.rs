//! Bulk verbs: a frozen list, a confirmation in words, each effect with the state that was seen, and counts.

use std::time::Duration;

use aftercommit::{
    EffectId,
    state::State,
    store::Acted,
    verb::{Actor, Verb},
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::Command;

use super::{
    environment,
    processes::{Process, aftercommit, eventually, run, run_ok},
};
use crate::{
    dashboard::{Reach, here_and_there},
    support::{Settling, TestDatabase, Worker, key_terms, on_every_database, on_postgres, registered},
};

here_and_there! {
    a_dry_run_tells_what_would_be_done_and_does_nothing,
    what_was_chosen_is_retried_once_confirmed,
    what_a_filter_leaves_out_is_left_alone,
    a_resend_wants_the_number_typed,
    a_state_that_forbids_it_is_counted_by_reason,
    what_would_be_refused_and_what_people_resolved_is_told_before,
    a_rate_holds_and_has_the_bounds_of_the_api,
}
on_every_database! {
    a_bulk_of_a_dashboard_is_called_off_by_whoever_follows_it,
}
on_postgres! {
    an_interrupted_run_finishes_what_it_began_and_says_how_much,
    what_changed_since_it_was_listed_is_left_alone,
}

const SOON: Duration = Duration::from_secs(60);

fn effects(reach: &Reach, words: &str) -> Command {
    let mut command = aftercommit();
    command.arg("effects").args(words.split_whitespace());
    reach.lead(&mut command);
    command
}

/// `n` effects at `downstream`, each ended by `settle`.
async fn ended(
    db: &TestDatabase,
    downstream: &str,
    n: usize,
    settle: impl Fn(&Settling) -> aftercommit::store::Settlement,
) -> Vec<EffectId> {
    let worker = Worker::start(&db.store, downstream, vec![registered(downstream, key_terms())]).await;
    let ids = db.insert_many(downstream, downstream, n).await;
    for claim in worker.claim(downstream, u32::try_from(n).expect("few")).await {
        worker.settle(settle(&Settling::of(&claim))).await;
    }
    ids
}

async fn failed(db: &TestDatabase, downstream: &str, n: usize) -> Vec<EffectId> {
    ended(db, downstream, n, |settling| settling.fail("card declined")).await
}

async fn count(db: &TestDatabase, state: State) -> u64 {
    let counts = db.store.counts().await.expect("counting works");
    counts.iter().filter(|count| count.state == state).map(|count| count.effects).sum()
}

async fn a_dry_run_tells_what_would_be_done_and_does_nothing(db: &TestDatabase, reach: &Reach) {
    failed(db, "pay", 3).await;
    failed(db, "mail", 2).await;
    let out = run_ok(&mut effects(reach, "retry --all --state failed --dry-run --json"), SOON).await;
    let told: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!((&told["dry_run"], &told["effects"]), (&true.into(), &5.into()), "{told}");
    assert_eq!(told["by_downstream"], serde_json::json!({ "mail": 2, "pay": 3 }));
    let out = run_ok(&mut effects(reach, "retry --all --state failed --dry-run"), SOON).await;
    assert!(out.contains("5 effects, now failed, will be attempted again from the start"), "{out}");
    assert_eq!(count(db, State::Failed).await, 5);
}

async fn what_was_chosen_is_retried_once_confirmed(db: &TestDatabase, reach: &Reach) {
    failed(db, "pay", 3).await;
    let (status, _, err) = run(&mut effects(reach, "retry --all --state failed"), SOON).await;
    assert_eq!(status.code(), Some(2), "nobody can be asked: {err}");
    assert!(err.contains("--yes"), "{err}");
    assert_eq!(count(db, State::Failed).await, 3);
    let mut command = effects(reach, "retry --all --state failed --downstream pay --yes --json");
    let told: Value = serde_json::from_str(&run_ok(&mut command, SOON).await).expect("one object");
    assert_eq!((&told["verb"], &told["effects"], &told["done"]), (&"retry".into(), &3.into(), &3.into()));
    assert_eq!((count(db, State::Failed).await, count(db, State::Ready).await), (0, 3));
    let audit = db.sql.number("SELECT count(*) FROM aftercommit.audit WHERE verb = 'retry'").await;
    assert_eq!(audit, 3, "each has its row");
    let (status, _, err) = run(&mut effects(reach, "retry --all --state failed --yes"), SOON).await;
    assert!(status.success() && err.contains("nothing was done"), "{err}");
}

async fn what_a_filter_leaves_out_is_left_alone(db: &TestDatabase, reach: &Reach) {
    let ids = failed(db, "pay", 4).await;
    failed(db, "mail", 1).await;
    run_ok(&mut effects(reach, "retry --all --state failed --downstream pay --limit 1 --yes"), SOON).await;
    assert_eq!(db.state(ids[0]).await, State::Ready, "the oldest first");
    run_ok(&mut effects(reach, "retry --all --state failed --older-than 1h --yes"), SOON).await;
    assert_eq!(count(db, State::Failed).await, 4, "none is that old");
    for (words, says) in [
        ("retry --all --state in_doubt --yes", "takes failed"),
        ("retry --all --yes", "--state"),
        ("retry --state failed", "--all"),
        ("retry 1 --all --state failed", "cannot be used with"),
    ] {
        let (status, _, err) = run(&mut effects(reach, words), SOON).await;
        assert!(status.code() == Some(2) && err.contains(says), "{words}: {err}");
    }
    let (status, _, err) =
        run(&mut effects(reach, "retry --all --state failed --downstream payy --yes"), SOON).await;
    assert!(status.code() == Some(3) && err.contains("did you mean pay"), "{err}");
}

/// Through a terminal: the number is asked for, and another answer does nothing.
async fn a_resend_wants_the_number_typed(db: &TestDatabase, reach: &Reach) {
    ended(db, "pay", 3, |settling| settling.park("no answer")).await;
    let (status, _, err) = run(&mut effects(reach, "resend --all --state in_doubt --yes"), SOON).await;
    assert!(status.code() == Some(2) && err.contains("--confirm N"), "--yes is not enough: {err}");
    let (status, _, err) = run(&mut effects(reach, "resend --all --state in_doubt --confirm 2"), SOON).await;
    assert!(status.code() == Some(1) && err.contains("there are 3 now"), "{err}");
    let typed = async |answer: &str| {
        let script = "import os, pty, sys
pid, fd = pty.fork()
if pid == 0: os.execvp(sys.argv[2], sys.argv[2:])
seen = b''
while b'to go on:' not in seen: seen += os.read(fd, 4096)
os.write(fd, sys.argv[1].encode() + b'\\n')
try:
    while True:
        more = os.read(fd, 4096)
        if not more: break
        seen += more
except OSError: pass
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
        let mut command = Command::new(environment::python());
        command.args(["-c", script, answer, env!("CARGO_BIN_EXE_aftercommit")]);
        command.args(["effects", "resend", "--all", "--state", "in_doubt", "--reason", "asked the bank"]);
        reach.lead(&mut command);
        run(&mut command, SOON).await
    };
    let (status, out, err) = typed("yes").await;
    assert!(status.code() == Some(1) && out.contains("may be applied a second time"), "{out}{err}");
    assert_eq!(count(db, State::InDoubt).await, 3);
    let (status, out, err) = typed("3").await;
    assert!(status.success() && out.contains("3 of 3 effects done"), "{out}{err}");
    assert_eq!(count(db, State::InDoubt).await, 0);
}

async fn a_state_that_forbids_it_is_counted_by_reason(db: &TestDatabase, reach: &Reach) {
    let ids = failed(db, "pay", 3).await;
    db.sql
        .execute(&format!(
            "UPDATE aftercommit.outcomes SET refusal_stored = {} WHERE effect_id = {}",
            if db.engine == crate::support::Engine::Postgres { "true" } else { "1" },
            ids[0]
        ))
        .await;
    let (status, out, _) = run(&mut effects(reach, "retry --all --state failed --yes --json"), SOON).await;
    assert_eq!(status.code(), Some(5), "{out}");
    let told: Value = serde_json::from_str(&out).expect("one object");
    let refused = told["refused"].as_object().expect("reasons");
    assert_eq!((&told["done"], refused.len()), (&2.into(), 1), "{told}");
    let (status, out, _) = run(&mut effects(reach, "retry --all --state failed --yes --json"), SOON).await;
    assert_eq!(status.code(), Some(4), "none was done: {out}");
}

async fn what_would_be_refused_and_what_people_resolved_is_told_before(db: &TestDatabase, reach: &Reach) {
    let ids = failed(db, "pay", 3).await;
    let resolved = ended(db, "bank", 1, |settling| settling.park("no answer")).await[0];
    let ann = Actor {
        who: "ann".to_owned(),
        reason: Some("not there".to_owned()),
        confirmed: true,
        ..Actor::default()
    };
    for (id, verb) in [(ids[0], Verb::Reissue { resolve: None }), (resolved, Verb::ResolveNotApplied)] {
        let acted = db.store.act(id, &verb, &ann, None).await.expect("acting works");
        assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    }
    let out = run_ok(&mut effects(reach, "retry --all --state failed --dry-run --json"), SOON).await;
    let told: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(
        (&told["effects"], &told["resolved_not_applied"], &told["sent_before"], &told["by_state"]["failed"]),
        (&3.into(), &1.into(), &1.into(), &3.into()),
        "{told}"
    );
    assert_eq!(told["refused"], serde_json::json!({ "superseded by a new effect": 1 }), "{told}");
    let out = run_ok(&mut effects(reach, "retry --all --state failed --dry-run"), SOON).await;
    for words in [
        "3 effects, now failed, will be attempted again",
        "1 of them was resolved by a person as not applied",
        "1 of them may have been sent before",
        "1 more matches and is left alone, since it would be refused:\n  1 effect: superseded by a new effect",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let (status, _, err) = run(&mut effects(reach, "retry --all --state failed --yes"), SOON).await;
    assert_eq!(status.code(), Some(5), "{err}");
    assert!(err.contains("3 of 4 effects done, 1 refused, in"), "{err}");
    let (status, _, err) = run(&mut effects(reach, "retry --all --state failed --yes"), SOON).await;
    assert_eq!(status.code(), Some(4), "none of what is left can be retried: {err}");
    assert!(err.contains("0 of 1 effect done, 1 refused"), "{err}");
}

/// One a second of five hundred: whoever stops it finds most of them as they were.
async fn a_rate_holds_and_has_the_bounds_of_the_api(db: &TestDatabase, reach: &Reach) {
    failed(db, "pay", 500).await;
    for rate in ["0", "10001", "1e3", "fast"] {
        let words = format!("retry --all --state failed --yes --rate {rate}");
        let (status, _, err) = run(&mut effects(reach, &words), SOON).await;
        assert!(status.code() == Some(2) && err.contains("a number from 1 to 10000"), "{rate}: {err}");
    }
    let (status, _, err) = run(&mut effects(reach, "retry 1 --rate 5"), SOON).await;
    assert!(status.code() == Some(2) && err.contains("--all"), "{err}");
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = effects(reach, "retry --all --state failed --yes --json --rate 1");
    let mut bulk = Process::spawn("bulk", &mut command, &folder.path().join("bulk.log"));
    eventually("one is done", SOON, async || count(db, State::Ready).await > 0).await;
    bulk.signal(Signal::INT);
    let status = bulk.ended(SOON).await;
    assert_eq!(status.code(), Some(5), "{}", bulk.output());
    let left = count(db, State::Failed).await;
    assert!(left > 300, "{left} are left: {}", bulk.output());
    run_ok(&mut effects(reach, "retry --all --state failed --yes --rate 10000"), SOON).await;
    assert_eq!(count(db, State::Failed).await, 0);
}

/// Locks the outcomes after the `nth` effect, so that whoever retries waits there.
async fn held(db: &TestDatabase, from: EffectId) -> crate::support::Tx {
    let mut tx = db.sql.begin().await;
    tx.execute(&format!("SELECT 1 FROM aftercommit.outcomes WHERE effect_id >= {from} FOR UPDATE")).await;
    tx
}

async fn waiting(db: &TestDatabase) -> i64 {
    db.sql
        .number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        .await
}

async fn an_interrupted_run_finishes_what_it_began_and_says_how_much(db: &TestDatabase) {
    let reach = &Reach::here(db).await;
    let ids = failed(db, "pay", 40).await;
    let lock = held(db, ids[20]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = effects(reach, "retry --all --state failed --yes --json");
    let mut bulk = Process::spawn("bulk", &mut command, &folder.path().join("bulk.log"));
    eventually("eight wait for the lock", SOON, async || waiting(db).await == 8).await;
    bulk.signal(Signal::INT);
    eventually("it says that it stops", SOON, async || bulk.output().contains("Stopping")).await;
    lock.commit().await;
    let status = bulk.ended(SOON).await;
    assert_eq!(status.code(), Some(5), "{}", bulk.output());
    let output = bulk.output();
    let told = output.lines().find(|line| line.starts_with('{')).expect("the counts");
    let told: Value = serde_json::from_str(told).expect("one object");
    assert_eq!((&told["done"], &told["not_begun"]), (&28.into(), &12.into()), "{told}");
    assert_eq!(told["interrupted"], true);
    assert_eq!(count(db, State::Failed).await, 12);
}

async fn what_changed_since_it_was_listed_is_left_alone(db: &TestDatabase) {
    let reach = &Reach::here(db).await;
    let ids = failed(db, "pay", 12).await;
    let lock = held(db, ids[0]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = effects(reach, "retry --all --state failed --yes --json");
    let mut bulk = Process::spawn("bulk", &mut command, &folder.path().join("bulk.log"));
    eventually("eight wait for the lock", SOON, async || waiting(db).await == 8).await;
    // Somebody else's action on what was listed and not begun yet.
    let mut other = lock;
    other
        .execute(&format!(
            "UPDATE aftercommit.outcomes SET token = nextval('aftercommit.tokens') WHERE effect_id >= {}",
            ids[10]
        ))
        .await;
    other.commit().await;
    let status = bulk.ended(SOON).await;
    assert_eq!(status.code(), Some(5), "{}", bulk.output());
    let output = bulk.output();
    let told = output.lines().find(|line| line.starts_with('{')).expect("the counts");
    let told: Value = serde_json::from_str(told).expect("one object");
    assert_eq!((&told["done"], &told["stale"]), (&10.into(), &2.into()), "{told}");
}

async fn a_bulk_of_a_dashboard_is_called_off_by_whoever_follows_it(db: &TestDatabase) {
    failed(db, "pay", 400).await;
    let reach = Reach::slowly(db, 40).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = effects(&reach, "retry --all --state failed --yes --json");
    let mut bulk = Process::spawn("bulk", &mut command, &folder.path().join("bulk.log"));
    eventually("some are done", SOON, async || count(db, State::Ready).await > 5).await;
    bulk.signal(Signal::INT);
    let status = bulk.ended(SOON).await;
    assert_eq!(status.code(), Some(5), "{}", bulk.output());
    let output = bulk.output();
    let told = output.lines().find(|line| line.starts_with('{')).expect("the counts");
    let told: Value = serde_json::from_str(told).expect("one object");
    let done = told["done"].as_u64().expect("a number");
    assert_eq!((&told["interrupted"], &told["not_begun"]), (&true.into(), &(400 - done).into()), "{told}");
    assert_eq!(
        (count(db, State::Ready).await, count(db, State::Failed).await),
        (done, 400 - done),
        "it is over"
    );
}
