//! One verb on many effects: chosen and begun in [`new`], listed and watched here. The server works through a frozen list.

mod new;

use aftercommit::{
    clock::words::span,
    effect::EffectId,
    store::{BULK_REFUSALS_MAX, BulkInfo, BulkState, Control, ItemOutcome},
};
use askama::Template;
use axum::{
    extract::{Path, State as Shared_},
    response::Response,
};

pub(super) use new::{ask, start};

use super::{
    frame::{Frame, Place},
    parts::{Moment, Num, Text, in_query, maybe, plural, text},
    shown,
};
use crate::{actions, causes, problem::Problem, routes::Right, security::see_other, shared::Shared};

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
    not_done: Vec<NotDone>,
    /// More were not done than are told apart.
    and_more: bool,
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
    /// What became of it, in words.
    outcome: String,
    /// It is over, and not all of it was done.
    partly: bool,
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

/// Effects that were not acted on for one reason.
struct NotDone {
    /// "4 refused".
    how: String,
    reason: Text,
    /// The search for the first of them.
    search: String,
    /// How many it finds, and of how many.
    linked: String,
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
    let told = u64::from(BULK_REFUSALS_MAX);
    let page = Page {
        one: bulk(&info, &frame),
        not_done: causes::not_done(&info).iter().map(not_done).collect(),
        and_more: u64::from(info.refused) + u64::from(info.stale) + u64::from(info.gone) > told,
        may_act: frame.visitor.may(Right::Operate),
        frame,
    };
    shown(&page)
}

fn not_done(of: &causes::NotDone) -> NotDone {
    let how = match of.outcome {
        ItemOutcome::Refused => "refused",
        ItemOutcome::Stale => "changed",
        ItemOutcome::NotFound => "gone",
    };
    let ids: Vec<String> = of.ids.iter().map(EffectId::to_string).collect();
    let linked = match of.effects {
        1 => format!("effect {}", ids.concat()),
        n if n > causes::LINKED_MAX as u64 => format!("the first {} of them", ids.len()),
        n => plural(n, "effect"),
    };
    NotDone {
        how: format!("{} {how}", Num(of.effects)),
        reason: text(&of.reason),
        search: in_query(&format!("id:{}", ids.join(","))),
        linked,
    }
}

/// "2 done, 4 refused": what became of the effects. Of one that is not over, how far it is.
fn outcome(info: &BulkInfo) -> String {
    let counted = [(info.refused, "refused"), (info.stale, "changed"), (info.gone, "gone")];
    let others =
        counted.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{} {word}", Num((*n).into())));
    let through = info.done.saturating_add(counted.iter().map(|(n, _)| *n).sum());
    let (through, total) = (u64::from(through), u64::from(info.total));
    let mut parts = match info.state {
        BulkState::Running | BulkState::Paused => vec![format!("{} of {}", Num(through), Num(total))],
        BulkState::Cancelled | BulkState::Finished => vec![format!("{} done", Num(info.done.into()))],
    };
    parts.extend(others);
    if info.state == BulkState::Cancelled && through < total {
        parts.push(format!("{} not begun", Num(total - through)));
    }
    parts.join(", ")
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
        outcome: outcome(info),
        partly: info.state == BulkState::Finished && info.done < info.total,
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

#[cfg(test)]
mod tests {
    use aftercommit::clock::Timestamp;

    use super::*;

    fn info(state: BulkState, [done, refused, stale, gone]: [u32; 4]) -> BulkInfo {
        BulkInfo {
            id: 1,
            verb: "retry".to_owned(),
            what: "state failed".to_owned(),
            who: "ann".to_owned(),
            reason: None,
            from: None,
            rate: 0,
            state,
            total: 1_206,
            done,
            refused,
            stale,
            gone,
            created_at: Timestamp::from_micros(1),
            finished_at: None,
            samples: Vec::new(),
            refusals: Vec::new(),
        }
    }

    #[test]
    fn what_became_of_it_tells_what_was_refused() {
        for (state, counts, told) in [
            (BulkState::Finished, [1_202, 4, 0, 0], "1,202 done, 4 refused"),
            (BulkState::Finished, [1_206, 0, 0, 0], "1,206 done"),
            (BulkState::Finished, [1_200, 1, 2, 3], "1,200 done, 1 refused, 2 changed, 3 gone"),
            (BulkState::Running, [10, 1, 0, 0], "11 of 1,206, 1 refused"),
            (BulkState::Cancelled, [2, 0, 0, 0], "2 done, 1,204 not begun"),
        ] {
            assert_eq!(outcome(&info(state, counts)), told);
        }
    }
}
