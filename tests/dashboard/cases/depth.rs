//! ENCODING-05: what is nested deeper than any parser of ours reads is shown like everything else, and hides none of its neighbours.

use aftercommit::{
    EffectId,
    decision::Decision,
    outcome::{About, Finding, Outcome, Phase, Response},
    state::State,
};
use aftercommit_dashboard::{Pointer, Role, Settings};
use serde_json::json;

use super::{
    super::{
        Site,
        api::{by, in_doubt, worker},
        everybody, forms,
        reach::{Reach, here_and_there},
    },
    quiet, seen, with,
};
use crate::support::{Settling, TestDatabase, insert_sql, on_every_database};

on_every_database! {
    deep_payloads_and_answers_break_no_page,
    a_deep_answer_that_somebody_brings_is_stored_or_refused,
}
here_and_there! {
    deep_payloads_and_answers_break_no_command,
}

const DEPTHS: [usize; 6] = [127, 128, 129, 900, 10_000, 100_000];

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// Effects whose payload is so deep, as far as the database takes it, each answered as deep; and one that is like any other.
async fn written(db: &TestDatabase) -> Vec<EffectId> {
    let worker = worker(db).await;
    let mut ids = vec![db.insert("pay", "plain").await];
    for depth in DEPTHS {
        let payload = format!("'{}'", nested(depth));
        let insert = insert_sql("pay", &format!("deep-{depth}"), &[("payload", &payload)]);
        // SQLite's parser gives up at 1,000 levels, PostgreSQL's where its stack ends.
        match db.sql.try_execute(&insert).await {
            Ok(_) => {
                let key = format!("idempotency_key = 'deep-{depth}'");
                let id = db.sql.number(&format!("SELECT id FROM aftercommit.effects WHERE {key}")).await;
                ids.push(EffectId::new(id));
            }
            Err(refused) => assert!(depth > 900, "{depth}: {refused}"),
        }
    }
    assert!(ids.len() >= 5, "{ids:?}");
    let claims = worker.claim("pay", 20).await;
    assert_eq!(claims.len(), ids.len(), "each is handed out");
    for (claim, depth) in claims.iter().zip(DEPTHS.into_iter().rev().cycle()) {
        let outcome = Outcome {
            response: Some(Response {
                status: Some(422),
                body: nested(depth).into_bytes(),
                truncated: false,
            }),
            ..Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, "too deep")
        };
        let refusal = Decision::Fail("422: too deep".to_owned());
        worker.settle(Settling::of(claim).decided(refusal, &outcome)).await;
    }
    ids
}

async fn deep_payloads_and_answers_break_no_page(db: &TestDatabase) {
    let ids = written(db).await;
    let plain = Settings { access: everybody(), ..Settings::default() };
    // What is read member by member, to hide some of them, is no shallower.
    let mut hiding = Settings { access: everybody(), ..Settings::default() };
    hiding.redact.pointers.push(Pointer::parse("/card/number").expect("a pointer"));
    for settings in [plain, hiding] {
        let site = Site::open(&db.store, settings).await;
        let mut deepest = 0;
        for id in &ids {
            let page = forms::page(&site, &format!("effects/{id}")).await;
            assert!(page.status == 200 && page.body.contains("too deep"), "{id}: {:.300}", page.body);
            let api = by(&site, Role::Operator, "GET", &format!("effects/{id}?payload=true")).send().await;
            assert_eq!(api.status, 200, "{id}: {:.300}", api.body);
            deepest = deepest.max(api.body.matches("[[[[").count());
            let log = by(&site, Role::Viewer, "GET", &format!("effects/{id}/attempts")).send().await;
            assert!(log.status == 200 && log.body.contains("too deep"), "{id}: {:.300}", log.body);
        }
        assert!(deepest > 200, "what is deep was shown: {deepest}");
        let list = forms::page(&site, "effects").await;
        for id in &ids {
            assert!(list.body.contains(&format!("href=\"./effects/{id}\"")), "{id}: {:.300}", list.body);
        }
        for path in ["effects", "effects?error=deep", "causes?state=failed"] {
            let answer = by(&site, Role::Operator, "GET", path).send().await;
            assert_eq!(answer.status, 200, "{path}: {:.300}", answer.body);
        }
    }
}

async fn a_deep_answer_that_somebody_brings_is_stored_or_refused(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = super::site(db).await;
    for depth in DEPTHS {
        for by_form in [false, true] {
            let id = in_doubt(db, &worker, "mail", &format!("m-{depth}-{by_form}")).await;
            quiet(db, id).await;
            let path = format!("effects/{id}/resolve");
            let answer = if by_form {
                let form = forms::page(&site, &format!("{path}?as=applied")).await;
                let answered = nested(depth);
                let more = [("reason", "I saw it"), ("response", answered.as_str())];
                forms::send(&site, &path, &forms::form(&form, &more)).await
            } else {
                let wish = with(seen(db, id).await, &json!({ "as": "applied", "reason": "I saw it" }));
                let wish = wish.to_string().replacen('{', &format!("{{\"response\":{},", nested(depth)), 1);
                by(&site, Role::Operator, "POST", &path).json(&wish).send().await
            };
            let done = matches!(answer.status, 200 | 303);
            assert!(
                done || matches!(answer.status, 400 | 413 | 422),
                "{depth}, form {by_form}: {answer:.300?}"
            );
            assert!(done || depth > 128, "{depth}, form {by_form}: {answer:.300?}");
            let state = if done { State::Succeeded } else { State::InDoubt };
            assert_eq!(db.state(id).await, state, "{depth}, form {by_form}: all of it or nothing");
            let page = forms::page(&site, &format!("effects/{id}")).await;
            assert_eq!(page.status, 200, "{depth}, form {by_form}: {:.300}", page.body);
        }
    }
}

async fn deep_payloads_and_answers_break_no_command(db: &TestDatabase, reach: &Reach) {
    for id in written(db).await {
        let id = id.to_string();
        for words in [
            &["effects", "show", &id][..],
            &["effects", "show", &id, "--payload"],
            &["effects", "show", &id, "--payload", "--json"],
        ] {
            let said = reach.out(words).await;
            assert!(said.contains("too deep"), "{words:?}: {said:.300}");
        }
    }
    let said = reach.out(&["effects", "list", "--json"]).await;
    assert!(said.lines().count() >= 5, "{said:.300}");
}
