//! A word alone: the number of an effect, its key, or a business reference.

use std::collections::BTreeSet;

use aftercommit::{effect::EffectId, store::Filter};

use crate::{
    problem::Problem,
    redaction::MASK,
    search::{Reference, Search, Term},
    shared::Shared,
};

/// The newest effects, whose references show under which names there are some.
const LOOKED_AT: u32 = 100;
/// Names that are looked under.
const NAMES_MAX: usize = 12;

/// Where a word leads.
pub(super) enum Jump {
    /// To this effect.
    Effect(EffectId),
    /// To several.
    Search(Search),
    /// To none; in words.
    Nothing(String),
}

/// Looks `word` up: as a number, as a key, as a reference.
pub(super) async fn find(shared: &Shared, word: &str) -> Result<Jump, Problem> {
    let eyes = shared.eyes();
    if let Ok(number) = word.trim_start_matches('#').parse::<i64>()
        && let Some(effect) = eyes.effect(EffectId::new(number)).await?
    {
        return Ok(Jump::Effect(effect.id));
    }
    let key = Filter { key: Some(word.to_owned()), limit: 2, ..Filter::default() };
    match eyes.effects(&key).await?.effects.as_slice() {
        [] => {}
        [one] => return Ok(Jump::Effect(one.id)),
        _ => return Ok(Jump::Search(of(Term::Key(word.to_owned())))),
    }
    let names = names(shared).await?;
    for name in &names {
        for search in of(Term::Metadata(Reference::other(name, word))).readings() {
            let filter = search.filter(aftercommit::clock::Timestamp::MIN);
            match eyes.effects(&Filter { limit: 2, ..filter }).await?.effects.as_slice() {
                [] => {}
                [one] => return Ok(Jump::Effect(one.id)),
                _ => return Ok(Jump::Search(search)),
            }
        }
    }
    let under: Vec<String> = names.into_iter().collect();
    let under =
        if under.is_empty() { String::new() } else { format!(" (looked for under {})", under.join(", ")) };
    Ok(Jump::Nothing(format!("No effect has the number, key or reference \"{word}\"{under}.")))
}

fn of(term: Term) -> Search {
    Search { terms: vec![term], problems: Vec::new() }
}

/// Under which names the newest effects have references: nobody tells us, so we look.
async fn names(shared: &Shared) -> Result<BTreeSet<String>, Problem> {
    let newest = Filter { limit: LOOKED_AT, ..Filter::default() };
    let mut names = BTreeSet::new();
    for effect in shared.eyes().effects(&newest).await?.effects {
        let Some(metadata) = &effect.metadata else { continue };
        let Ok(members) = serde_json::from_str::<
            std::collections::BTreeMap<String, &serde_json::value::RawValue>,
        >(metadata.get()) else {
            continue;
        };
        for (name, value) in members {
            if names.len() < NAMES_MAX && !name.contains(MASK) && !value.get().starts_with(['{', '[', 'n']) {
                names.insert(name);
            }
        }
    }
    Ok(names)
}
