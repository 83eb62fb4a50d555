//! `effects show` by a number or a key, at the database itself and through a dashboard.

use serde_json::Value;

use super::{Reach, api::worker, reach::here_and_there};
use crate::support::TestDatabase;

here_and_there! {
    an_effect_is_shown_by_its_number_or_its_key,
    a_key_of_several_downstreams_is_told_with_the_numbers,
}

async fn an_effect_is_shown_by_its_number_or_its_key(db: &TestDatabase, reach: &Reach) {
    worker(db).await;
    let id = db.insert("pay", "order-17/charge").await;
    let odd = db.insert("pay", "a b?c&d=e%2F#f").await;
    let number = db.insert("pay", "4711").await;
    // What reads as another effect's number is that effect: so the dashboard's search reads a word, too.
    let hidden = db.insert("mail", &id.to_string()).await;
    for (word, shown) in [
        ("order-17/charge", id),
        ("a b?c&d=e%2F#f", odd),
        ("4711", number),
        (id.to_string().as_str(), id),
        (format!("#{id}").as_str(), id),
        (hidden.to_string().as_str(), hidden),
    ] {
        let text = reach.out(&["effects", "show", word]).await;
        assert!(text.starts_with(&format!("Effect {shown}\n")), "{word}: {text}");
        let json = reach.out(&["effects", "show", word, "--json"]).await;
        let json: Value = serde_json::from_str(&json).expect("one object");
        assert_eq!(json["id"], shown.get(), "{word}: {json}");
    }
    for (word, says) in
        [("no-such-key", "no effect has the key no-such-key"), ("9999", "there is no effect 9999")]
    {
        let (code, said) = reach.ends(&["effects", "show", word]).await;
        assert!(
            code == Some(3) && said.contains(says) && said.contains("effects list"),
            "{word}: {code:?} {said}"
        );
    }
    assert_eq!(reach.ends(&["effects", "show", ""]).await.0, Some(2));
}

async fn a_key_of_several_downstreams_is_told_with_the_numbers(db: &TestDatabase, reach: &Reach) {
    worker(db).await;
    let (pay, mail) = (db.insert("pay", "order-9").await, db.insert("mail", "order-9").await);
    for words in [&["effects", "show", "order-9"][..], &["effects", "show", "order-9", "--json"]] {
        let (code, said) = reach.ends(words).await;
        assert_eq!(code, Some(2), "{said}");
        for (id, downstream) in [(pay, "pay"), (mail, "mail")] {
            let line = format!("effects show {id}   {downstream}, ready");
            assert!(said.contains(&line), "{line} in {said}");
        }
    }
    let (code, said) = reach.ends(&["effects", "retry", "order-9"]).await;
    assert!(code == Some(2) && said.contains("effects show KEY"), "a verb takes numbers: {said}");
}
