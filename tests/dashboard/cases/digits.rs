//! ENCODING-03: what was written and what was answered is shown digit by digit, on pages, in the API and by the command line, and a new
//! effect that takes the place of an old one carries the same.

use aftercommit::decision::Decision;
use aftercommit_dashboard::Role;
use serde_json::json;

use super::{
    super::{
        Answer,
        api::{by, post, worker},
        forms,
        reach::{Reach, here_and_there},
    },
    seen, site, unescaped, with,
};
use crate::support::{Settling, TestDatabase, answer, on_every_database};

on_every_database! {
    pages_show_and_copy_every_digit,
    what_is_reissued_carries_every_digit,
    numbers_in_references_are_shown_and_found_as_they_are,
}
here_and_there! {
    the_command_line_prints_every_digit,
}

/// Numbers that no floating point number is.
pub(crate) const NUMBERS: &str = r#"{"id":9007199254740993,"big":1234567890123456789012345,"neg":-9223372036854775809,"dec":0.1000000000000000055511151231257827,"exp":1.50e+3,"zero":-0.0,"huge":1E400}"#;
const REFERENCES: &str = r#"{"order":9007199254740993,"big":1234567890123456789012345}"#;

/// A refused effect that carries these, and was answered them.
async fn refused(db: &TestDatabase) -> aftercommit::EffectId {
    let worker = worker(db).await;
    let columns = [("payload", format!("'{NUMBERS}'")), ("metadata", format!("'{REFERENCES}'"))];
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let id = db.insert_with("pay", "k", &columns).await;
    let claim = worker.claim_one("pay").await;
    assert_eq!(claim.effect.payload.as_deref(), Some(NUMBERS), "it is sent as it was written");
    let refusal = Decision::Fail("402: declined".to_owned());
    worker.settle(Settling::of(&claim).decided(refusal, &answer(402, NUMBERS))).await;
    id
}

/// The text under this heading of an effect's page, without the white space that is ours.
fn sheet(page: &Answer, label: &str) -> String {
    let (_, rest) = page.body.split_once(&format!("aria-label=\"{label}\">")).expect("it is shown");
    let shown = unescaped(rest.split("</pre>").next().expect("it ends"));
    shown.split_whitespace().collect()
}

async fn pages_show_and_copy_every_digit(db: &TestDatabase) {
    let id = refused(db).await;
    let site = site(db).await;
    let page = forms::page(&site, &format!("effects/{id}")).await;
    for label in ["Payload", "Answer"] {
        assert_eq!(sheet(&page, label), NUMBERS, "{label}");
    }
    let copies = page.body.split("data-copy=\"").skip(1);
    let copies = copies.filter(|rest| unescaped(rest.split('"').next().expect("it ends")) == NUMBERS);
    assert_eq!(copies.count(), 2, "what is copied is what was written: {}", page.body);
}

async fn what_is_reissued_carries_every_digit(db: &TestDatabase) {
    let id = refused(db).await;
    let site = site(db).await;
    let words = json!({ "reason": "the bank forgot it", "confirmation": format!("reissue {id}") });
    let reissued = post(&site, &format!("effects/{id}/reissue"), &with(seen(db, id).await, &words)).await;
    assert_eq!(reissued.status, 200, "{reissued:?}");
    let new = db.status(id).await.superseded_by.expect("a new effect").get();
    let claim = worker(db).await.claim_one("pay").await;
    assert_eq!((claim.effect.id.get(), claim.effect.payload.as_deref()), (new, Some(NUMBERS)));
    let page = forms::page(&site, &format!("effects/{new}")).await;
    assert_eq!(sheet(&page, "Payload"), NUMBERS);
}

async fn numbers_in_references_are_shown_and_found_as_they_are(db: &TestDatabase) {
    let id = refused(db).await;
    let site = site(db).await;
    let list = forms::page(&site, "effects").await;
    for shown in ["9007199254740993", "1234567890123456789012345"] {
        assert!(list.body.contains(&format!("</span> {shown}<")), "{shown}: {}", list.body);
    }
    for (name, number, found) in [
        ("order", "9007199254740993", true),
        ("order", "9007199254740992", false),
        ("order", "9007199254740994", false),
        ("big", "1234567890123456789012345", true),
        ("big", "1234567890123456789012346", false),
    ] {
        // Not read as JSON: what is in it is more than a parser of ours would hold.
        let path = format!("effects?metadata=%7B%22{name}%22:{number}%7D");
        let page = by(&site, Role::Operator, "GET", &path).send().await;
        let effects = page.body.matches("\"idempotency_key\"").count();
        assert_eq!((page.status, effects == 1), (200, found), "{name} {number}: {page:?}");
        let list = forms::page(&site, &format!("effects?q=metadata.{name}:{number}")).await;
        assert_eq!(
            list.body.contains(&format!("href=\"./effects/{id}\"")),
            found,
            "{name} {number}: {list:?}"
        );
    }
}

async fn the_command_line_prints_every_digit(db: &TestDatabase, reach: &Reach) {
    let id = refused(db).await.to_string();
    let said = reach.out(&["effects", "show", &id, "--payload"]).await;
    assert!(said.contains(NUMBERS), "{said}");
    let said = reach.out(&["effects", "show", &id, "--payload", "--json"]).await;
    assert!(said.contains(&format!("\"response\":{NUMBERS}")), "{said}");
    assert!(said.contains(&json!(NUMBERS).to_string()), "the payload is told as its text: {said}");
    for (words, times) in [(&["effects", "list", "--json"][..], 2), (&["effects", "show", &id], 2)] {
        let said = reach.out(words).await;
        // Of the references and of the answer; where a table would not hold it, it is cut and says so.
        let found = said.matches("1234567890123456789012345").count();
        assert!(found >= times - 1, "{words:?}: {said}");
        assert!(!said.contains("9007199254740992") && !said.contains("e+24"), "{words:?}: {said}");
    }
}
