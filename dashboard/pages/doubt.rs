//! The inbox: effects whose outcome nobody knows. For each what it is, what we know, what its downstream was asked, what the contract
//! means now, and the ways out.

mod card;

use std::collections::HashMap;

use aftercommit::{
    effect::EffectId,
    state::State,
    store::{Filter, Look, RegisteredTerms, Status},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    effect::Known,
    effects::{Fields, before},
    frame::{Frame, Place},
    parts::{Num, Text, in_query, text},
    shown,
};
use crate::{
    actions,
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    shared::Shared,
};

use card::{Card, card};

/// Each is read with its attempts: more than these nobody decides on at one sitting.
const PAGE: u32 = 20;

#[derive(Template)]
#[template(path = "doubt.html")]
struct Inbox {
    frame: Frame,
    cards: Vec<Card>,
    explained: Vec<Explained>,
    groups: Vec<Group>,
    all: Num,
    of: Option<Text>,
    /// As the counts name it.
    of_raw: String,
    next: Option<String>,
    /// The search for all of them.
    quoted: String,
    may_act: bool,
}

/// Of one downstream.
struct Group {
    name: Text,
    n: Num,
    href: String,
    here: bool,
}

/// Why effects of a downstream are in doubt, told once.
struct Explained {
    place: Text,
    says: Text,
}

/// So many bytes of what an effect carries are read for its card.
const CARRIED: Look = Look::UpTo(64 << 10);

/// `GET /doubt`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let of = asked.get("downstream").filter(|name| !name.is_empty()).cloned();
    let before = before(asked.get("before").map(String::as_str))?;
    let frame = frame.at(Place::Doubt, "In doubt");
    let filter = Filter {
        states: vec![State::InDoubt],
        downstream: of.clone(),
        before,
        limit: PAGE,
        ..Filter::default()
    };
    let found = shared.eyes().effects(&filter).await?;
    let known = known(&shared, &frame, found.effects).await?;
    let cards: Vec<Card> = known.iter().map(|known| card(known, &frame)).collect();
    let mut search = Search::of_state(State::InDoubt);
    if let Some(name) = &of {
        search = search.and(Term::Downstream(name.clone()));
    }
    let more = of.as_ref().map(|name| format!("downstream={}&", in_query(name))).unwrap_or_default();
    shown(&Inbox {
        all: frame.count_of(of.as_deref(), &[State::InDoubt]),
        groups: groups(&frame, of.as_deref()),
        next: found.next.map(|next| format!("doubt?{more}before={next}")),
        quoted: in_query(&search.to_string()),
        of: of.as_deref().map(text),
        of_raw: of.unwrap_or_default(),
        may_act: frame.visitor.may(Right::Operate),
        explained: explained(&cards),
        cards,
        frame,
    })
}

fn groups(frame: &Frame, of: Option<&str>) -> Vec<Group> {
    let counted = frame.downstreams.iter().filter_map(|info| {
        let n = frame.count_of(Some(&info.name), &[State::InDoubt]);
        let here = of == Some(info.name.as_str());
        let href = format!("doubt?downstream={}", in_query(&info.name));
        (!n.is_zero() || here).then(|| Group { name: text(&info.name), n, href, here })
    });
    counted.collect()
}

/// The effects of a page with what is known of each. What they carry is read for all of them at once, and what a downstream promises
/// once for each operation; the attempts are each one's own.
async fn known(shared: &Shared, frame: &Frame, effects: Vec<Status>) -> Result<Vec<Known>, Problem> {
    let eyes = shared.eyes();
    let look = if frame.visitor.sees_content() { CARRIED } else { Look::Size };
    let ids: Vec<EffectId> = effects.iter().map(|effect| effect.id).collect();
    let mut intents = if ids.is_empty() { HashMap::new() } else { eyes.intents(&ids, look).await? };
    let mut terms = HashMap::new();
    let mut all = Vec::with_capacity(effects.len());
    for effect in effects {
        let place = (effect.downstream.clone(), effect.operation.clone());
        let today: Option<RegisteredTerms> = match terms.get(&place) {
            Some(today) => Option::clone(today),
            None => {
                let today = actions::terms(shared, &effect).await?;
                terms.insert(place, today.clone());
                today
            }
        };
        let seen = (eyes.attempts(effect.id).await?, intents.remove(&effect.id));
        all.push(Known::of(shared, effect, seen, today, frame.now));
    }
    Ok(all)
}

/// Why nobody knows of these: each reason once for each downstream, and not beside every effect.
fn explained(cards: &[Card]) -> Vec<Explained> {
    let mut told: Vec<(&Text, &str)> = Vec::new();
    for card in cards {
        let Some(meaning) = card.meaning.as_deref() else { continue };
        if !told.contains(&(&card.place, meaning)) {
            told.push((&card.place, meaning));
        }
    }
    let explained = |(place, says): (&Text, &str)| Explained { place: place.clone(), says: text(says) };
    told.into_iter().map(explained).collect()
}

#[cfg(test)]
pub(super) mod tests;
