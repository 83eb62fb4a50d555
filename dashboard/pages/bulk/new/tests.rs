//! What is offered, and what is acted on: never more than was chosen.

use aftercommit::verb::Resolved;

use super::*;

#[test]
fn every_verb_that_is_offered_is_one() {
    for (word, ..) in VERBS {
        assert_eq!(verb(word).map(|verb| verb.as_str()), Some(word));
    }
    assert_eq!(verb("drop"), None);
    let resolve = Verb::Reissue { resolve: Some(Resolved::NotApplied) };
    assert_eq!(verb("reissue not-applied"), Some(resolve));
}

#[test]
fn only_verbs_that_take_the_state_are_offered() {
    let words: Vec<_> = offers(&Search::parse("state:in_doubt")).iter().map(|offer| offer.word).collect();
    assert_eq!(words, ["resolve applied", "resolve not-applied", "resend", "reissue not-applied"]);
    let words: Vec<_> = offers(&Search::parse("state:failed")).iter().map(|offer| offer.word).collect();
    assert_eq!(words, ["retry", "reissue", "redact"]);
}

#[test]
fn ticks_are_what_is_acted_on() {
    let pairs = |pairs: &[(&str, &str)]| -> Pairs {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert_eq!(chosen(&pairs(&[("id", "7"), ("id", "9"), ("q", "state:failed")])).to_string(), "id:7,9");
    assert_eq!(chosen(&pairs(&[("q", "state:failed")])).to_string(), "state:failed");
    let odd = chosen(&pairs(&[("id", "x"), ("q", "state:failed")]));
    assert!(!odd.problems.is_empty(), "what was ticked is never taken for the whole search: {odd:?}");
    assert!(is_nothing(&pairs(&[("verb", "cancel")])) && !is_nothing(&pairs(&[("q", "")])));
}

#[test]
fn a_state_that_the_verb_does_not_take_never_becomes_every_state() {
    let cancel = |text: &str| narrowed(&Search::parse(text), &Verb::Cancel).to_string();
    assert_eq!(cancel("state:failed,ready"), "state:ready");
    assert_eq!(cancel("state:failed downstream:pay"), "state:failed downstream:pay", "it is refused as such");
    assert_eq!(cancel("downstream:pay"), "downstream:pay");
}
