//! Which effect somebody means: by its number, or by its idempotency key. The dashboard reads a word that is looked for in the same order.

use std::fmt::Write as _;

use aftercommit::{
    effect::EffectId,
    store::{Filter, Page, Status},
    visible::clean,
};

use super::list;
use crate::cli::{
    Exit,
    context::{invocation, quoted},
    exit::fail,
    parse,
    people::People,
};

/// Of a key that effects of more downstreams have, so many are named.
const NAMED_MAX: u32 = 20;

/// The effect whose number `word` is, else the one whose key it is.
///
/// # Errors
///
/// When there is none, or effects of several downstreams have the key.
pub(super) async fn find(people: &dyn People, word: &str) -> anyhow::Result<Status> {
    let number = parse::effect_id(word.trim_start_matches('#')).ok();
    if let Some(id) = number
        && let Some(effect) = people.effect(id).await?
    {
        return Ok(effect);
    }
    let key = Filter { key: Some(word.to_owned()), limit: NAMED_MAX, ..Filter::default() };
    let found = people.effects(&key).await?;
    match (found.effects.as_slice(), number) {
        // A list may tell less of each than is asked for here.
        ([one], _) => people.effect(one.id).await?.ok_or_else(|| absent(one.id)),
        ([], Some(id)) => Err(absent(id)),
        ([], None) => Err(unknown_key(word)),
        ([_, _, ..], _) => Err(several(word, &found)),
    }
}

/// The error for a number that no effect has.
pub(crate) fn absent(id: EffectId) -> anyhow::Error {
    let command = format!("{} effects list", invocation());
    fail(Exit::NotFound, format!("there is no effect {id}; `{command}` shows what there is"))
}

/// The error for a key that no effect has.
fn unknown_key(key: &str) -> anyhow::Error {
    let command = format!("{} effects list", invocation());
    fail(Exit::NotFound, format!("no effect has the key {}; `{command}` shows what there is", clean(key)))
}

/// The error for a key that effects of several downstreams have: a key means an effect within its downstream only.
fn several(key: &str, found: &Page) -> anyhow::Error {
    let mut words =
        format!("effects of several downstreams have the key {}; name one by its number:", clean(key));
    for effect in &found.effects {
        let command = format!("{} effects show {}", invocation(), effect.id);
        let (place, state) = (list::place(effect), effect.state.as_str().replace('_', " "));
        write!(words, "\n  {command}   {}, {state}", clean(&place)).ok();
    }
    if found.next.is_some() {
        let command = format!("{} effects list --key {}", invocation(), quoted(key));
        write!(words, "\nand more: `{}` shows all", clean(&command)).ok();
    }
    fail(Exit::Usage, words)
}
