//! The audit: who did what, when, from where and why.

use aftercommit::{
    effect::EffectId,
    store::{AuditFilter, Audited},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    PAGE,
    effects::Fields,
    frame::{Frame, Place},
    parts::{Moment, Text, in_query, maybe, text},
    shown,
};
use crate::{problem::Problem, shared::Shared};

#[derive(Template)]
#[template(path = "audit.html")]
struct Audit {
    frame: Frame,
    rows: Vec<Row>,
    effect: String,
    downstream: String,
    who: String,
    next: Option<String>,
    filtered: bool,
}

struct Row {
    at: Moment,
    who: Text,
    from: Option<Text>,
    verb: Text,
    effect: Option<i64>,
    downstream: Option<Text>,
    moved: Option<Text>,
    reason: Option<Text>,
    bulk: Option<i64>,
}

/// `GET /audit`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let field = |name: &str| asked.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let number = |name: &str| {
        let Some(word) = field(name) else { return Ok(None) };
        let number = word.trim_start_matches('#').parse::<i64>().ok().filter(|number| *number > 0);
        let wrong = || Problem::bad_request(format!("`{name}` is a number. Leave it out for all."));
        number.map(Some).ok_or_else(wrong)
    };
    let filter = AuditFilter {
        effect: number("effect")?.map(EffectId::new),
        downstream: field("downstream").map(str::to_owned),
        who: field("who").map(str::to_owned),
        before: number("before")?,
        limit: PAGE,
    };
    let found = shared.eyes().audit(&filter).await?;
    let frame = frame.at(Place::Audit, "Audit");
    let full = found.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| {
        let kept = ["effect", "downstream", "who"];
        let kept = kept.into_iter().filter_map(|name| Some(format!("{name}={}&", in_query(field(name)?))));
        format!("audit?{}before={}", kept.collect::<String>(), last.id)
    });
    shown(&Audit {
        rows: found.iter().map(|row| self::row(row, &frame)).collect(),
        filtered: filter.effect.is_some() || filter.downstream.is_some() || filter.who.is_some(),
        effect: field("effect").unwrap_or_default().to_owned(),
        downstream: filter.downstream.unwrap_or_default(),
        who: filter.who.unwrap_or_default(),
        next,
        frame,
    })
}

fn row(row: &Audited, frame: &Frame) -> Row {
    let moved = row.from_state.as_ref().zip(row.to_state.as_ref());
    Row {
        at: Moment::short(row.at, frame.now),
        who: text(&row.who),
        from: maybe(row.from.as_deref()),
        verb: text(&row.verb),
        effect: row.effect_id.map(EffectId::get),
        downstream: maybe(row.downstream.as_deref()),
        moved: moved.map(|(from, to)| text(&format!("{from} → {to}").replace('_', " "))),
        reason: maybe(row.reason.as_deref()),
        bulk: row.bulk,
    }
}
