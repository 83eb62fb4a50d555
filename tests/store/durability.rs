//! Defends: what somebody will act on outside is committed durably before they learn of it, whatever the application told the
//! database about its own commits.

use aftercommit::{
    outcome::{Finding, Outcome, Phase},
    store::{Acted, LateAnswer, Settled},
    verb::Verb,
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Settling, TestDatabase, Worker, key_terms, on_postgres, registered};

on_postgres! { commits_are_waited_for_although_the_application_does_not }

/// Notes, when a transaction of the store commits, under which setting it does.
const WITNESS: &str = "CREATE TABLE public.commits (tab text, op text, setting text);
CREATE FUNCTION public.witness() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('application_name') <> 'application' THEN
    INSERT INTO public.commits VALUES (TG_TABLE_NAME, TG_OP, current_setting('synchronous_commit'));
  END IF;
  RETURN NULL;
END $$;";
const WITNESSED: [&str; 5] = ["claims", "queue", "outcomes", "attempts", "audit"];

/// Trap T1: `synchronous_commit` as the application's default must not reach a claim, an outcome or a person's verb.
async fn commits_are_waited_for_although_the_application_does_not(db: &TestDatabase) {
    let name = db.sql.scalar("SELECT current_database()").await.expect("a name");
    db.sql.execute(WITNESS).await;
    for table in WITNESSED {
        // Deferred: it fires in the commit itself, when the setting counts.
        let deferred = format!(
            "CREATE CONSTRAINT TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON aftercommit.{table}
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.witness()"
        );
        db.sql.execute(&deferred).await;
    }
    // Raised where it is too little, never lowered.
    for (told, expected) in [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")] {
        db.sql.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = {told}")).await;
        db.sql.execute("TRUNCATE public.commits").await;
        let fresh = db.another_store().await;
        let worker = Worker::start(&fresh, "w1", vec![registered("pay", key_terms())]).await;
        everything_that_is_acted_on(db, &Stage { worker, downstream: "pay".to_owned() }, told).await;
        for table in WITNESSED {
            // An empty claim that is dropped twice is dropped: only that need not be durable.
            let seen = format!(
                "SELECT DISTINCT setting FROM public.commits WHERE tab = '{table}' AND (tab, op) <> ('claims', 'DELETE')"
            );
            let seen: Vec<_> =
                db.sql.rows(&seen).await.into_iter().filter_map(|mut row| row.remove("setting")?).collect();
            assert_eq!(seen, [expected], "{table} when the database is told {told}");
        }
    }
}

/// Claims, settles of each kind, sweeps, a late answer and a verb, by the stage's own store.
async fn everything_that_is_acted_on(db: &TestDatabase, stage: &Stage, run: &str) {
    let store = &stage.worker.store;
    let claim = stage.claimed(db, &format!("{run}-succeeds")).await;
    stage.done(Settling::of(&claim).succeed()).await;
    stage.failed(db, &format!("{run}-fails")).await;
    stage.parked(db, &format!("{run}-parked")).await;

    let lost = stage.claimed(db, &format!("{run}-lost")).await;
    db.end_lease(lost.token()).await;
    let expired = store.expired(10).await.expect("the sweep reads").remove(0);
    let retry = Settling::of_expired(&expired).retry_unknown(in_an_hour(db).await);
    assert_eq!(store.sweep_expired(&[retry]).await.expect("the sweep writes"), [Settled::Done]);
    let refused = Outcome::new(Finding::NotApplied, Phase::Connect, "refused");
    let late = LateAnswer {
        id: lost.effect.id,
        token: lost.token(),
        attempt: Settling::of(&lost).attempt(&refused),
        begun: true,
        response: None,
    };
    store.late(&[late]).await.expect("late answers are taken");
    let acted = store.act(lost.effect.id, &Verb::Retry, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let again = stage.worker.claim_one("pay").await;
    let held = store.renew("w1", &[(again.token(), HOUR)]).await.expect("renewing works");
    assert_eq!(held, [again.token()]);
    stage.done(Settling::of(&again).succeed()).await;
}
