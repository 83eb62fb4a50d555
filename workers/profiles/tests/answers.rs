//! Each rule of each shipped profile, with the answer that its vendor documents, read by the code that reads real answers.

use std::collections::BTreeSet;

use aftercommit::outcome::Finding;

use super::cases::{CASES, Case};
use crate::{
    config::{AnswerRule, Written},
    http::read_answer,
    profiles::{all, get},
};

fn contract(name: &str) -> Written {
    get(name).unwrap_or_else(|| panic!("there is no profile {name}")).contract().unwrap()
}

#[test]
fn every_documented_answer_is_read_as_its_vendor_means_it() {
    for case in CASES {
        let answers = contract(case.profile).answers().unwrap();
        let outcome = read_answer(&answers, case.status, case.headers, case.body);
        assert_eq!(
            (outcome.finding, outcome.replayed),
            (case.finding, case.replayed),
            "{case:?}: {}",
            outcome.reason
        );
        let kept = outcome.response.as_ref().map(|response| response.body.as_slice());
        assert_eq!(kept, Some(case.body.as_bytes()), "the answer is kept: {case:?}");
    }
}

#[test]
fn every_rule_of_every_shipped_profile_is_met_by_a_documented_answer() {
    for profile in all() {
        let written = profile.contract().unwrap();
        let answers = written.answers().unwrap();
        let cases: Vec<&Case> = CASES.iter().filter(|case| case.profile == profile.name).collect();
        assert!(!cases.is_empty(), "{}: no answer at all", profile.name);
        for (list, rules) in written.lists().into_iter().chain(written.marks()) {
            for rule in rules {
                let met = cases.iter().any(|case| meets(case, list, rule));
                assert!(met, "{}: no case for {list} = [\"{rule}\"]", profile.name);
            }
        }
        if answers.replay_header.is_some() {
            assert!(cases.iter().any(|case| case.replayed), "{}: no replay", profile.name);
            assert!(cases.iter().any(|case| !case.replayed), "{}: no first answer", profile.name);
        }
        if let Some(directive) = &answers.retry_directive {
            let said: BTreeSet<_> = cases
                .iter()
                .map(|case| {
                    case.headers
                        .iter()
                        .find(|(name, _)| name.eq_ignore_ascii_case(&directive.name))
                        .map(|(_, value)| *value)
                })
                .collect();
            assert!(
                said.len() == 3,
                "{}: {} with true, with false, and absent: {said:?}",
                profile.name,
                directive.name
            );
        }
        if answers.stores == aftercommit::contract::Stores::Any {
            let stored = cases.iter().any(|case| case.finding == Finding::StoredError);
            assert!(stored, "{}: no stored server error", profile.name);
        }
    }
}

/// Whether `case` is an answer by this very rule of this list: without the rule it would be read otherwise.
fn meets(case: &Case, list: &str, rule: &AnswerRule) -> bool {
    let without: String = contract(case.profile)
        .shown()
        .into_iter()
        .filter(|(key, _)| *key != list)
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    let others: Vec<String> = contract(case.profile)
        .lists()
        .into_iter()
        .chain(contract(case.profile).marks())
        .filter(|(name, _)| *name == list)
        .flat_map(|(_, rules)| {
            rules.iter().filter(|other| *other != rule).map(ToString::to_string).collect::<Vec<_>>()
        })
        .collect();
    let table = crate::config::parse_toml("test", &format!("{without}{list} = {others:?}\n")).unwrap();
    let log = crate::config::Log::default();
    let written = Written::read(&crate::config::Section::root(&table, &log)).unwrap();
    // Without its already_done a marker of a 409 is refused: then nothing is read at all.
    let Ok(answers) = written.answers() else { return case.finding == Finding::AlreadyDone };
    let outcome = read_answer(&answers, case.status, case.headers, case.body);
    (outcome.finding, outcome.replayed) != (case.finding, case.replayed)
}
