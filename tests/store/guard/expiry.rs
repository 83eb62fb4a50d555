//! Guarantee: an answer is kept as long as its request said, and as long as an effect of it has not ended; after that the same
//! request runs again (IDEMP-IN-23, RETAIN-01, RETAIN-03, T15).

use std::time::Duration;

use aftercommit::{
    EffectId, Enqueued, NewEffect,
    engine::{Manner, purge},
    guard::{Begun, Request},
    state::State,
    store::{Acted, Registration, RequestFilter, Retention, Step},
    verb::Verb,
};

use super::{answer, begun, told};
use crate::{
    store::stage::{HOUR, Stage, in_an_hour, person},
    support::{
        Engine, Settling, TestDatabase, answered, on_every_database, on_postgres, registration, request,
    },
};

on_every_database! {
    an_answer_is_kept_as_long_as_its_request_said,
    an_answer_is_kept_while_an_effect_has_not_ended,
    one_effect_of_several_is_enough,
    the_configuration_says_how_long_where_the_request_does_not,
    retention_drops_what_is_over_in_small_batches,
    what_is_kept_hides_nothing_from_retention,
    what_is_kept_hides_nothing_of_the_same_time_either,
    a_purge_drops_what_came_in_too,
    a_clock_that_jumped_drops_nothing,
    a_clock_that_jumped_forgets_nothing,
    people_see_what_was_answered,
}

on_postgres! { a_request_that_begins_meets_its_purge }

const QUARTER: Duration = Duration::from_secs(15 * 60);

/// As if everything had come in `by` earlier.
async fn later(db: &TestDatabase, by: Duration) {
    let (created, expires) = (db.engine.before("created_at", by), db.engine.before("expires_at", by));
    db.sql
        .execute(&format!("UPDATE aftercommit.requests SET created_at = {created}, expires_at = {expires}"))
        .await;
}

/// A request that wrote `n` effects for `pay` and was answered.
async fn with_effects(db: &TestDatabase, request: &Request, n: usize) -> Vec<EffectId> {
    let mut tx = begun(db, request).await;
    let mut ids = Vec::new();
    for at in 0..n {
        let enqueued = tx.enqueue(NewEffect::to("pay").name(format!("effect-{at}"))).await.expect("written");
        let Enqueued::Inserted(receipt) = enqueued else { panic!("{enqueued:?}") };
        ids.push(receipt.id);
    }
    tx.finish_request(request, &answered(201, "")).await.expect("it is finished");
    tx.commit().await;
    ids
}

async fn dropped(db: &TestDatabase, limit: u32) -> (u64, bool) {
    let batch = db.store.drop_batch(Step::Requests, Duration::ZERO, limit).await.expect("the step runs");
    assert!(!batch.elsewhere);
    (batch.effects, batch.more)
}

/// Retention passes what is kept once in ten minutes: as if they were over. On SQLite there is nothing to wait for.
async fn look_from_the_start(db: &TestDatabase) {
    if db.engine == Engine::Postgres {
        let sql = "UPDATE aftercommit.retention SET from_start_at = '-infinity' WHERE step = 'requests'";
        db.sql.execute(sql).await;
    }
}

async fn an_answer_is_kept_as_long_as_its_request_said(db: &TestDatabase) {
    let request = Request { ttl: Some(QUARTER), ..request("shop", "k", "1") };
    answer(db, &request, &answered(201, "kept")).await;
    later(db, QUARTER - Duration::from_secs(1)).await;
    assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "kept")), "at 14:59");
    assert_eq!(dropped(db, 10).await.0, 0);
    later(db, Duration::from_secs(2)).await;
    assert_eq!(told(db, &request).await, Begun::New, "at 15:01");
    // It was rolled back: what was there is there, and over.
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.requests").await, 1);
    let another = Request { ttl: None, ..crate::support::request("shop", "k", "another body") };
    answer(db, &another, &answered(200, "the key is free for anything")).await;
    assert_eq!(told(db, &request).await, Begun::Mismatch);
}

async fn an_answer_is_kept_while_an_effect_has_not_ended(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let request = Request { ttl: Some(QUARTER), ..request("shop", "k", "1") };
    let id = with_effects(db, &request, 1).await[0];
    later(db, HOUR * 1000).await;
    let kept = async |state: State| {
        assert_eq!(db.state(id).await, state);
        assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "")), "{state}");
        assert_eq!(dropped(db, 10).await.0, 0, "{state}");
        assert_eq!(db.store.due(Step::Requests, &Retention::default()).await.expect("counted"), 0, "{state}");
    };
    kept(State::Ready).await;
    let claim = stage.worker.claim_one("pay").await;
    kept(State::InFlight).await;
    stage.done(Settling::of(&claim).park("no answer")).await;
    kept(State::InDoubt).await;
    let not_applied = Verb::ResolveNotApplied;
    let acted = db.store.act(id, &not_applied, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(told(db, &request).await, Begun::New, "its effect has ended");
    look_from_the_start(db).await;
    assert_eq!(dropped(db, 10).await.0, 1);
    // A retry: later effects of a request that nobody remembers hold nothing up.
    assert_eq!(told(db, &request).await, Begun::New);

    let second = Request { ttl: Some(QUARTER), ..crate::support::request("shop", "k2", "1") };
    let id = with_effects(db, &second, 1).await[0];
    later(db, HOUR).await;
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).retry_not_applied(in_an_hour(db).await)).await;
    assert_eq!(db.state(id).await, State::Retrying);
    assert_eq!(told(db, &second).await, Begun::Replay(answered(201, "")), "in backoff");
}

async fn one_effect_of_several_is_enough(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let request = Request { ttl: Some(QUARTER), ..request("shop", "k", "1") };
    with_effects(db, &request, 3).await;
    later(db, HOUR).await;
    for ended in 0..3 {
        assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "")), "{ended} of 3 have ended");
        let claim = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&claim).succeed()).await;
    }
    assert_eq!(told(db, &request).await, Begun::New);
}

async fn the_configuration_says_how_long_where_the_request_does_not(db: &TestDatabase) {
    let kept = async |key: &str, ttl: Option<Duration>| {
        let request = Request { ttl, ..request("shop", key, "1") };
        answer(db, &request, &answered(200, "")).await;
        let micros = format!(
            "SELECT {} - {} FROM aftercommit.requests WHERE key = '{key}'",
            db.engine.micros("expires_at"),
            db.engine.micros("created_at")
        );
        // The two times are read one after the other.
        (db.sql.number(&micros).await + 500_000) / 1_000_000
    };
    assert_eq!(kept("unsaid", None).await, 86_400, "a day");
    for (requests, seconds) in [(Some(HOUR), 3600), (None, 3600), (Some(QUARTER), 900)] {
        let known = Registration { requests, ..registration("w1", Vec::new()) };
        db.store.register(&known).await.expect("it registers");
        assert_eq!(kept(&format!("{requests:?}"), None).await, seconds, "{requests:?}");
    }
    assert_eq!(kept("said", Some(HOUR * 5)).await, 18_000);
}

async fn retention_drops_what_is_over_in_small_batches(db: &TestDatabase) {
    for at in 0..5 {
        answer(db, &request("shop", &format!("old-{at}"), "1"), &answered(200, "")).await;
    }
    later(db, HOUR * 25).await;
    answer(db, &request("shop", "young", "1"), &answered(200, "")).await;
    let due = async || db.store.due(Step::Requests, &Retention::default()).await.expect("counted");
    assert_eq!(due().await, 5);
    assert_eq!(dropped(db, 2).await, (2, true));
    assert_eq!(dropped(db, 2).await, (2, true));
    assert_eq!(dropped(db, 2).await, (1, false));
    assert_eq!((dropped(db, 2).await, due().await), ((0, false), 0));
    assert_eq!(db.sql.scalar("SELECT key FROM aftercommit.requests").await.as_deref(), Some("young"));
    assert_eq!(told(db, &request("shop", "old-0", "1")).await, Begun::New, "the key goes with the answer");
}

/// Those that an effect keeps stand first in the order of time.
async fn what_is_kept_hides_nothing_from_retention(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    for at in 0..7 {
        with_effects(db, &request("shop", &format!("kept-{at}"), "1"), 1).await;
    }
    later(db, HOUR).await;
    for at in 0..3 {
        answer(db, &request("shop", &format!("over-{at}"), "1"), &answered(200, "")).await;
    }
    later(db, HOUR * 25).await;
    let (mut rows, mut batches) = (0, 0);
    loop {
        let (dropped, more) = dropped(db, 2).await;
        rows += dropped;
        batches += 1;
        if !more {
            break;
        }
    }
    assert_eq!(rows, 3);
    assert!(batches <= 7, "each is passed once: {batches}");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.requests").await, 7);
}

/// As after an UPDATE of many rows, or an import.
async fn what_is_kept_hides_nothing_of_the_same_time_either(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    for at in 0..7 {
        with_effects(db, &request("shop", &format!("kept-{at}"), "1"), 1).await;
    }
    for at in 0..3 {
        answer(db, &request("shop", &format!("over-{at}"), "1"), &answered(200, "")).await;
    }
    let same = "UPDATE aftercommit.requests SET created_at = (SELECT min(created_at) FROM aftercommit.requests), \
       expires_at = (SELECT min(expires_at) FROM aftercommit.requests)";
    db.sql.execute(same).await;
    later(db, HOUR * 25).await;
    let mut batches = Vec::new();
    while batches.last().is_none_or(|(_, more)| *more) {
        batches.push(dropped(db, 2).await);
        assert!(batches.len() <= 7, "it must end: {batches:?}");
    }
    assert_eq!(batches.iter().map(|(rows, _)| rows).sum::<u64>(), 3, "{batches:?}");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.requests").await, 7);
}

async fn a_purge_drops_what_came_in_too(db: &TestDatabase) {
    answer(db, &request("shop", "k", "1"), &answered(200, "")).await;
    let mut tx = db.sql.begin().await;
    assert!(tx.accept("billing", "m", HOUR).await.expect("told"));
    tx.commit().await;
    later(db, HOUR * 25).await;
    let (expires, received) =
        (db.engine.before("expires_at", HOUR * 2), db.engine.before("received_at", HOUR * 2));
    db.sql
        .execute(&format!("UPDATE aftercommit.inbox SET expires_at = {expires}, received_at = {received}"))
        .await;
    let stop = tokio_util::sync::CancellationToken::new();
    let purged =
        purge(&*db.store, &Retention::default(), Manner::AtOnce, &stop, |_, _| {}).await.expect("it purges");
    assert_eq!((purged.requests, purged.inbox, purged.keys), (1, 1, 0));
}

async fn a_clock_that_jumped_drops_nothing(db: &TestDatabase) {
    answer(db, &request("shop", "k", "1"), &answered(200, "")).await;
    later(db, HOUR * 25).await;
    let before = db.engine.before("looked_at", HOUR * 48);
    db.sql
        .execute(&format!("UPDATE aftercommit.retention SET looked_at = {before} WHERE step = 'keys'"))
        .await;
    assert_eq!(dropped(db, 10).await.0, 0, "it may have jumped");
    db.store.believe_clock().await.expect("somebody says that it is right");
    assert_eq!(dropped(db, 10).await.0, 1);
}

/// It would let every repeat act again.
async fn a_clock_that_jumped_forgets_nothing(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    answer(db, &request, &answered(201, "kept")).await;
    later(db, HOUR * 25).await;
    let looked = async |ago: Duration| {
        let at = db.engine.before(db.engine.now(), ago);
        db.sql
            .execute(&format!("UPDATE aftercommit.retention SET looked_at = {at} WHERE step = 'keys'"))
            .await;
    };
    looked(HOUR * 25).await;
    assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "kept")), "it may have jumped");
    assert_eq!(told(db, &crate::support::request("shop", "k", "2")).await, Begun::Mismatch);
    looked(HOUR * 23).await;
    assert_eq!(told(db, &request).await, Begun::New, "retention has looked");
    looked(HOUR * 25).await;
    db.store.believe_clock().await.expect("somebody says that it is right");
    assert_eq!(told(db, &request).await, Begun::New);
}

async fn people_see_what_was_answered(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    for (scope, key) in [("a", "1"), ("b", "1"), ("b", "2")] {
        with_effects(db, &request(scope, key, "secret body"), usize::from(key == "2") * 2).await;
    }
    let open = begun(db, &request("a", "open", "1")).await;
    let seen = async |scope: Option<&str>, key: Option<&str>, limit: u32| {
        let filter = RequestFilter {
            scope: scope.map(str::to_owned),
            key: key.map(str::to_owned),
            limit,
            ..RequestFilter::default()
        };
        let found = db.store.requests(&filter).await.expect("readable");
        found.into_iter().map(|info| (info.scope, info.key, info.effects)).collect::<Vec<_>>()
    };
    let row = |scope: &str, key: &str, effects: u64| (scope.to_owned(), key.to_owned(), effects);
    assert_eq!(
        seen(None, None, 9).await,
        [row("b", "2", 2), row("b", "1", 0), row("a", "1", 0)],
        "newest first"
    );
    assert_eq!(seen(None, None, 1).await, [row("b", "2", 2)]);
    assert_eq!(seen(Some("b"), None, 9).await, [row("b", "2", 2), row("b", "1", 0)]);
    assert_eq!(seen(None, Some("1"), 9).await, [row("b", "1", 0), row("a", "1", 0)]);
    assert_eq!(seen(Some("a"), Some("1"), 9).await, [row("a", "1", 0)]);
    assert_eq!(seen(Some("'; --"), None, 9).await, []);
    open.rollback().await;
    let all =
        db.store.requests(&RequestFilter { limit: 9, ..RequestFilter::default() }).await.expect("readable");
    assert!(all.iter().all(|info| info.status == 201 && info.created_at < info.expires_at), "{all:?}");
}

/// Whoever begins a request whose time is over meets the one who drops it: one of them is first, and it begins.
async fn a_request_that_begins_meets_its_purge(db: &TestDatabase) {
    const ROUNDS: usize = 60;
    for round in 0..ROUNDS {
        answer(db, &request("shop", &format!("k{round}"), "1"), &answered(200, "old")).await;
    }
    later(db, HOUR * 25).await;
    let done = tokio_util::sync::CancellationToken::new();
    let mut purging = tokio::task::JoinSet::new();
    let (store, until) = (db.another_store().await, done.clone());
    purging.spawn(async move {
        while !until.is_cancelled() {
            store.drop_batch(Step::Requests, Duration::ZERO, 1).await.expect("the step runs");
        }
    });
    for round in (0..ROUNDS).rev() {
        answer(db, &request("shop", &format!("k{round}"), "1"), &answered(200, "new")).await;
    }
    done.cancel();
    purging.join_all().await;
    for round in 0..ROUNDS {
        assert_eq!(
            told(db, &request("shop", &format!("k{round}"), "1")).await,
            Begun::Replay(answered(200, "new"))
        );
    }
}
