//! Defends: nothing a downstream said, and nothing that stands in one row, keeps an outcome or a batch from being written.

use aftercommit::{
    decision::Decision,
    outcome::{About, Finding, Outcome, Phase, REASON_MAX, Response},
    state::State,
    store::{Claim, Settled, Settlement},
};

use super::stage::{Stage, in_an_hour};
use crate::support::{Engine, Settling, TestDatabase, answer, on_every_database};

on_every_database! {
    a_whole_json_answer_is_kept_as_it_was_said,
    any_other_answer_is_kept_as_bytes,
    a_truncated_answer_is_marked,
    reasons_of_any_bytes_are_stored,
    a_corrupt_row_does_not_fail_its_batch,
    a_corrupt_row_does_not_fail_the_views_of_others,
}

async fn settled_with(
    db: &TestDatabase,
    stage: &Stage,
    key: &str,
    response: Response,
) -> aftercommit::store::Status {
    let claim = stage.claimed(db, key).await;
    let outcome = Outcome { response: Some(response), ..answer(200, "") };
    let settling = Settling::of(&claim);
    let settlement =
        Settlement { response: outcome.response.clone(), ..settling.decided(Decision::Succeed, &outcome) };
    stage.done(settlement).await;
    let status = db.status(claim.effect.id).await;
    assert_eq!(status.state, State::Succeeded, "{key}");
    status
}

fn whole(body: impl Into<Vec<u8>>) -> Response {
    Response { status: Some(200), body: body.into(), truncated: false }
}

async fn raw(db: &TestDatabase, id: aftercommit::EffectId) -> Option<String> {
    let hex = match db.engine {
        Engine::Postgres => "encode(response_raw, 'hex')",
        Engine::Sqlite => "lower(hex(response_raw))",
    };
    let sql = format!(
        "SELECT CASE WHEN response_raw IS NOT NULL THEN {hex} END FROM aftercommit.outcomes WHERE effect_id = {id}"
    );
    db.sql.scalar(&sql).await
}

async fn a_whole_json_answer_is_kept_as_it_was_said(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let bodies = [
        r#"{"id":"ch_1", "amount": 9007199254740993, "f": 1.0, "f": 2}"#,
        r#"{"note":"\u0000","emoji":"😀"}"#,
        "[]",
        "null",
        "1e400",
        "\"text\"",
    ];
    for (number, body) in bodies.iter().enumerate() {
        let status = settled_with(db, &stage, &format!("k{number}"), whole(*body)).await;
        assert_eq!(status.response.as_ref().map(|json| json.get()), Some(*body));
        assert_eq!(raw(db, status.id).await, None);
    }
}

/// CRASH-06 and ENCODING-05.
async fn any_other_answer_is_kept_as_bytes(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes();
    let bodies: [(&str, Vec<u8>); 8] = [
        ("text", b"OK".to_vec()),
        ("html", b"<html>\xe9</html>".to_vec()),
        ("nul", b"{\"a\":\"\0\"}".to_vec()),
        ("utf8", vec![0xf1, 0x61]),
        ("mixed", [&b"\xff\xfe\x00"[..], "😀".as_bytes()].concat()),
        ("half", br#"{"a":"#.to_vec()),
        ("lone", br#""\ud800""#.to_vec()),
        ("deep", deep),
    ];
    for (key, body) in bodies {
        let status = settled_with(db, &stage, key, whole(body.clone())).await;
        let kept = match &status.response {
            // Where the database can hold it as JSON it may: a lone surrogate's escape, great depth.
            Some(json) if key == "lone" || key == "deep" => json.get().as_bytes().to_vec(),
            Some(json) => panic!("{key} is not JSON: {json}"),
            None => hex::decode(raw(db, status.id).await.unwrap_or_else(|| panic!("{key} was lost")))
                .expect("hex"),
        };
        assert!(kept == body, "{key}: the bytes are the downstream's");
        assert_eq!(status.response_status, Some(200));
    }
    let none = settled_with(db, &stage, "empty", whole("")).await;
    assert!(none.response.is_none());
}

async fn a_truncated_answer_is_marked(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut body = [&b"\xff\xfe\x00"[..], "😀".as_bytes()].concat();
    body.resize(1 << 20, b'x');
    for (key, body) in [("big", body), ("valid by chance", b"12".to_vec())] {
        let response = Response { status: Some(500), body, truncated: true };
        let status = settled_with(db, &stage, key, response).await;
        assert!(status.response.is_none(), "{key}: it was not whole");
        let truncated =
            format!("SELECT response_truncated FROM aftercommit.outcomes WHERE effect_id = {}", status.id);
        let truncated = db.sql.scalar(&truncated).await;
        assert!(matches!(truncated.as_deref(), Some("t" | "1")), "{key}: {truncated:?}");
    }
}

/// CRASH-06 and RUNTIME-03.
async fn reasons_of_any_bytes_are_stored(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let huge = format!("{}😀\0{}", "€".repeat(REASON_MAX), "x".repeat(1 << 20));
    let later = in_an_hour(db).await;
    for (key, reason) in [("nul", "a\0b".to_owned()), ("huge", huge)] {
        let outcome = |finding| Outcome {
            response: Some(Response {
                status: Some(500),
                body: reason.clone().into_bytes(),
                truncated: true,
            }),
            ..Outcome::new(finding, Phase::Done, reason.clone())
        };
        let rejected = outcome(Finding::Rejected(About::ThisAttempt));
        let unknown = outcome(Finding::Unknown);
        let decisions = [
            (State::Failed, Decision::Fail(reason.clone()), &rejected),
            (State::InDoubt, Decision::Park(reason.clone()), &unknown),
            (State::InDoubt, Decision::ProbeAt(later, reason.clone()), &unknown),
            (State::Retrying, Decision::RetryAt(later), &unknown),
        ];
        for (number, (state, decision, outcome)) in decisions.into_iter().enumerate() {
            let claim = stage.claimed(db, &format!("{key}-{number}")).await;
            stage.done(Settling::of(&claim).decided(decision, outcome)).await;
            let status = db.status(claim.effect.id).await;
            assert_eq!(status.state, state);
            let said = status.last_error.expect("it says why");
            assert!(!said.contains('\0') && said.len() <= 4 * REASON_MAX, "{} bytes", said.len());
            assert_eq!(db.log(claim.effect.id).await.len(), 1);
        }
    }
}

/// Claims everything; the corrupt effect may be among it (to be failed by name) or not, but is never held by nobody.
async fn nine_of_ten(db: &TestDatabase, stage: &Stage, corrupt: &str) {
    let ids = db.insert_many("pay", "k", 10).await;
    db.sql.execute(&corrupt.replace("{id}", &ids[4].to_string())).await;
    let claims = db.store.claim("w1", &[crate::support::want("pay", 20, &stage.worker.ids)]).await;
    let claims =
        claims.unwrap_or_else(|error| panic!("the whole claim failed for one row: {error}\n{corrupt}"));
    let mut held: Vec<&Claim> = claims.iter().collect();
    held.sort_by_key(|claim| claim.effect.id);
    for id in ids.iter().filter(|id| **id != ids[4]) {
        assert!(held.iter().any(|claim| claim.effect.id == *id), "effect {id} is healthy: {corrupt}");
    }
    if !held.iter().any(|claim| claim.effect.id == ids[4]) {
        let state =
            db.sql.scalar(&format!("SELECT state FROM aftercommit.status WHERE id = {}", ids[4])).await;
        assert_ne!(state.as_deref(), Some("in_flight"), "nobody was handed it: {corrupt}");
    }
    let batch: Vec<_> = claims.iter().map(|claim| Settling::of(claim).succeed()).collect();
    let settled = db.store.settle(&batch, &[claims[0].token()]).await.expect("settling works");
    assert!(settled.iter().all(|one| *one == Settled::Done), "{settled:?}");
    db.sql.execute("DELETE FROM aftercommit.queue").await;
    db.sql.execute("DELETE FROM aftercommit.outcomes").await;
    db.sql.execute("DELETE FROM aftercommit.effects").await;
}

/// CRASH-12.
async fn a_corrupt_row_does_not_fail_its_batch(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let corruptions: &[&str] = match db.engine {
        Engine::Postgres => &[
            "UPDATE aftercommit.effects SET headers = '[1,2]' WHERE id = {id}",
            "UPDATE aftercommit.effects SET created_at = '294276-12-31T23:59:59Z' WHERE id = {id}",
            "UPDATE aftercommit.effects SET created_at = '-infinity', idempotency_key = '' WHERE id = {id}",
            "UPDATE aftercommit.queue SET expires_at = '294276-12-31T23:59:59Z', started_at = '4713-01-01 BC' WHERE id = {id}",
            "UPDATE aftercommit.queue SET attempts = -5, tries = 2147483000, number = -1 WHERE id = {id}",
            "UPDATE aftercommit.queue SET terms = 999999, uncertain = true, first_sent_at = '-infinity' WHERE id = {id}",
        ],
        Engine::Sqlite => &[
            "UPDATE aftercommit.effects SET created_at = 9223372036854775807 WHERE id = {id}",
            "UPDATE aftercommit.queue SET expires_at = 9223372036854775807, started_at = -9223372036854775807 WHERE id = {id}",
            "UPDATE aftercommit.queue SET attempts = -5, tries = 9223372036854775000, number = -1 WHERE id = {id}",
            "UPDATE aftercommit.queue SET terms = 999999, uncertain = 1, first_sent_at = -9223372036854775807 WHERE id = {id}",
            "PRAGMA ignore_check_constraints = 1; UPDATE aftercommit.effects SET headers = '[1,2]', payload = x'ff' WHERE id = {id}; PRAGMA ignore_check_constraints = 0",
        ],
    };
    for corrupt in corruptions {
        nine_of_ten(db, &stage, corrupt).await;
    }
}

async fn a_corrupt_row_does_not_fail_the_views_of_others(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let healthy = stage.claimed(db, "k1").await;
    let corrupt = stage.claimed(db, "k2").await;
    let far = match db.engine {
        Engine::Postgres => "'294276-12-31T23:59:59Z'",
        Engine::Sqlite => "9223372036854775807",
    };
    let id = corrupt.effect.id;
    db.sql.execute(&format!("UPDATE aftercommit.queue SET first_sent_at = {far}, started_at = {far}, number = -1 WHERE id = {id}")).await;
    for claim in [&healthy, &corrupt] {
        db.end_lease(claim.token()).await;
    }
    assert_eq!(db.state(healthy.effect.id).await, State::InFlight);
    db.store.counts().await.expect("counts do not read it");
    let expired = db.store.expired(10).await.expect("the sweep goes round it");
    assert!(expired.iter().any(|one| one.id == healthy.effect.id), "{expired:?}");
}
