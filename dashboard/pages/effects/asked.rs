//! What the list of effects is asked for, by its address.

use std::collections::BTreeMap;

use super::columns::Columns;
use crate::search::{Reference, Search, Term};

/// As the address has it.
pub(in crate::pages) type Fields = BTreeMap<String, String>;

/// What is asked for: a search, and the fields that a form without scripts sends. What cannot be read of either is a problem: a list
/// that silently lost a term would be acted on as if it had not.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) said: String,
    pub(super) search: Search,
    /// What fields ask for besides.
    pub(super) fields: Vec<Term>,
    pub(super) before: Option<String>,
    /// The columns that the address names, as far as there are such.
    pub(super) columns: Option<Columns>,
    /// They are to be remembered, and not only shown.
    pub(super) remember: bool,
}

impl Asked {
    pub(super) fn of(pairs: Vec<(String, String)>) -> Self {
        let mut fields = Fields::new();
        let mut problems = Vec::new();
        // A form sends one of them for each box that is ticked.
        let (columns, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(name, _)| name == "columns");
        for (name, value) in pairs {
            let value = value.trim().to_owned();
            if !KNOWN.contains(&name.as_str()) {
                problems.push(format!("{name}: is no field that can be asked for"));
            } else if !value.is_empty() && fields.insert(name.clone(), value).is_some() {
                problems.push(format!("{name}: stands twice"));
            }
        }
        let said = fields.remove("q").unwrap_or_default();
        let before = fields.remove("before");
        let remember = fields.remove("remember").is_some();
        let columns = Columns::of(columns.iter().flat_map(|(_, words)| words.split(',')));
        let mut search = Search::parse(&said);
        let fields = terms(&fields, &mut problems);
        search.problems.extend(problems);
        Self { said, search, fields, before, columns, remember }
    }
}

/// Names that may stand in the address.
const KNOWN: [&str; 12] = [
    "q",
    "before",
    "done",
    "remember",
    "state",
    "downstream",
    "operation",
    "key",
    "error",
    "reference",
    "value",
    "age",
];

/// What the fields ask for.
fn terms(fields: &Fields, problems: &mut Vec<String>) -> Vec<Term> {
    let field = |name: &str| fields.get(name).cloned();
    let mut terms = Vec::new();
    if let Some(word) = field("state") {
        match word.parse() {
            Ok(state) => terms.push(Term::State(vec![state])),
            Err(unknown) => problems.push(format!("state: {unknown}")),
        }
    }
    terms.extend(field("downstream").map(Term::Downstream));
    terms.extend(field("operation").map(Term::Operation));
    terms.extend(field("key").map(Term::Key));
    terms.extend(field("error").map(Term::Error));
    match (field("reference"), field("value")) {
        (Some(name), Some(value)) => terms.push(Term::Metadata(Reference::other(&name, &value))),
        (Some(name), None) => problems.push(format!("reference: say what stands under {name}")),
        (None, Some(value)) => problems.push(format!("reference: say under which name {value} stands")),
        (None, None) => {}
    }
    if let Some(age) = field("age") {
        let mut read = Search::parse(&format!("age:{age}"));
        match (read.terms.pop(), read.terms.is_empty() && read.problems.is_empty()) {
            (Some(term), true) => terms.push(term),
            (_, _) => problems.push(format!("age: {age} is none; write >1h, or <30m")),
        }
    }
    terms
}

/// The search with what the fields ask for: that takes the place of what the search said about the same.
pub(super) fn merged(search: &Search, fields: &[Term]) -> Search {
    let kept = search.terms.iter().filter(|term| fields.iter().all(|new| new.name() != term.name()));
    Search { terms: kept.chain(fields).cloned().collect(), problems: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> Asked {
        Asked::of(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn what_fields_say_joins_the_search_and_takes_the_place_of_the_same() {
        let asked = asked(&[
            ("q", "state:failed key:k"),
            ("state", "in_doubt"),
            ("downstream", "pay"),
            ("error", ""),
            ("reference", "order"),
            ("value", "A-17"),
            ("age", ">1h"),
        ]);
        assert!(asked.search.problems.is_empty(), "{asked:?}");
        let merged = merged(&asked.search, &asked.fields).to_string();
        assert_eq!(merged, "key:k state:in_doubt downstream:pay metadata.order:A-17 age:>1h");
    }

    #[test]
    fn no_term_is_lost_without_a_word() {
        for (pairs, named) in [
            (&[("q", "state:failed age:1h"), ("downstream", "pay")][..], "age"),
            (&[("q", "state:bogus"), ("downstream", "pay")], "bogus"),
            (&[("state", "bogus")], "bogus"),
            (&[("age", "bogus")], "bogus"),
            (&[("age", ">1h state:failed")], "age"),
            (&[("reference", "order")], "order"),
            (&[("value", "A-17")], "A-17"),
            (&[("status", "failed")], "status"),
            (&[("state", "failed"), ("state", "in_doubt")], "state"),
            (&[("q", "state:failed"), ("q", "key:k")], "q"),
        ] {
            let asked = asked(pairs);
            let told = asked.search.problems.join("; ");
            assert!(told.contains(named), "{pairs:?}: {asked:?}");
        }
    }

    #[test]
    fn columns_are_named_together_or_one_by_one_and_none_is_a_problem() {
        for pairs in [&[("columns", "error,state")][..], &[("columns", "state"), ("columns", "error,bogus")]]
        {
            let asked = asked(pairs);
            let link = asked.columns.as_ref().map(Columns::link);
            assert_eq!(link.as_deref(), Some("&columns=state,error"), "{pairs:?}");
            assert!(asked.search.problems.is_empty() && !asked.remember, "{asked:?}");
        }
        let asked = asked(&[("columns", "bogus"), ("columns", "<script>"), ("remember", "columns")]);
        assert!(asked.columns.is_none() && asked.remember && asked.search.problems.is_empty(), "{asked:?}");
    }
}
