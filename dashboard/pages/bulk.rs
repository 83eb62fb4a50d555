//! One verb on many effects: chosen and begun in [`new`], listed and watched here. The server works through a frozen list.

mod new;

use aftercommit::{
    clock::words::span,
    store::{BulkInfo, BulkState, Control},
};
use askama::Template;
use axum::{
    extract::{Path, State as Shared_},
    response::Response,
};

pub(super) use new::{ask, start};

use super::{
    frame::{Frame, Place},
    parts::{Moment, Num, Text, maybe, text},
    shown,
};
use crate::{actions, problem::Problem, routes::Right, security::see_other, shared::Shared};

/// Bulk actions that are listed.
const LISTED: u32 = 100;

#[derive(Template)]
#[template(path = "bulk_list.html")]
struct List {
    frame: Frame,
    rows: Vec<One>,
}

#[derive(Template)]
#[template(path = "bulk_one.html")]
struct Page {
    frame: Frame,
    one: One,
    samples: Vec<Text>,
    may_act: bool,
}

/// A bulk as it is shown.
struct One {
    id: i64,
    verb: Text,
    what: Text,
    who: Text,
    from: Option<Text>,
    reason: Option<Text>,
    state: BulkState,
    total: Num,
    through: Num,
    percent: u64,
    done: Num,
    refused: Num,
    stale: Num,
    gone: Num,
    rate: String,
    began: Moment,
    ended: Option<Moment>,
    took: Option<String>,
}

/// `GET /bulk`.
pub(super) async fn list(frame: Frame, Shared_(shared): Shared_<Shared>) -> Result<Response, Problem> {
    let frame = frame.at(Place::Bulk, "Bulk actions");
    let bulks = shared.eyes().bulks(LISTED).await?;
    let rows = bulks.iter().map(|bulk| self::bulk(bulk, &frame)).collect();
    shown(&List { rows, frame })
}

/// `GET /bulk/{id}`.
pub(super) async fn one(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let info = find(&shared, &id).await?;
    let frame = frame.at(Place::Bulk, &format!("Bulk {}", info.id));
    let samples = info.samples.iter().map(|sample| text(sample)).collect();
    shown(&Page { one: bulk(&info, &frame), samples, may_act: frame.visitor.may(Right::Operate), frame })
}

async fn find(shared: &Shared, id: &str) -> Result<BulkInfo, Problem> {
    let absent = || Problem::not_found("There is no such bulk action, or retention dropped it.");
    let id = id.parse::<i64>().map_err(|_no_number| absent())?;
    shared.eyes().bulk(id).await?.ok_or_else(absent)
}

/// `POST /bulk/{id}/{control}`.
pub(super) async fn control(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path((id, word)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let info = find(&shared, &id).await?;
    let control = match word.as_str() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "cancel" => Control::Cancel,
        _ => return Err(Problem::no_page()),
    };
    actions::control_bulk(&shared, &frame.visitor, info.id, control).await?;
    Ok(see_other(&format!("{}bulk/{}?done=bulk-{word}", frame.root, info.id)))
}

fn bulk(info: &BulkInfo, frame: &Frame) -> One {
    let through =
        u64::from(info.done) + u64::from(info.refused) + u64::from(info.stale) + u64::from(info.gone);
    let total = u64::from(info.total);
    One {
        id: info.id,
        verb: text(&info.verb),
        what: text(&info.what),
        who: text(&info.who),
        from: maybe(info.from.as_deref()),
        reason: maybe(info.reason.as_deref()),
        state: info.state,
        total: Num(total),
        through: Num(through),
        percent: through.saturating_mul(100).checked_div(total).unwrap_or(100),
        done: Num(info.done.into()),
        refused: Num(info.refused.into()),
        stale: Num(info.stale.into()),
        gone: Num(info.gone.into()),
        rate: if info.rate == 0 {
            "as fast as it goes".to_owned()
        } else {
            format!("at most {} a second", info.rate)
        },
        began: Moment::short(info.created_at, frame.now),
        ended: info.finished_at.map(|at| Moment::short(at, frame.now)),
        took: info.finished_at.map(|at| span(at.since(info.created_at))),
    }
}
