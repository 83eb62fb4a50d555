//! Workers: who carries effects out, and who has fallen silent.

use askama::Template;
use axum::{extract::State as Shared_, response::Response};

use super::{
    frame::{Frame, Place},
    parts::{Moment, Num, Text, plural, text},
    shown,
};
use crate::{problem::Problem, shared::Shared};

#[derive(Template)]
#[template(path = "workers.html")]
struct Workers {
    frame: Frame,
    rows: Vec<Row>,
}

struct Row {
    name: Text,
    /// Where it runs, as far as its name says it.
    process: Option<(Text, u32)>,
    live: bool,
    version: Text,
    downstreams: Text,
    in_flight: Num,
    leases: String,
    lease_until: Option<Moment>,
    started: Moment,
    seen: Moment,
}

/// `GET /workers`.
pub(super) async fn page(frame: Frame, Shared_(shared): Shared_<Shared>) -> Result<Response, Problem> {
    let mut frame = frame.at(Place::Workers, "Workers");
    frame.warn_of_unserved();
    let workers = shared.database().workers().await?;
    let rows = workers.iter().map(|worker| Row {
        name: text(&worker.name),
        process: worker.process().map(|(host, process)| (text(host), process)),
        live: worker.live,
        version: text(&worker.version),
        downstreams: text(&worker.downstreams.join(", ")),
        in_flight: Num(worker.in_flight),
        leases: plural(worker.leases, "lease"),
        lease_until: worker.lease_until.map(|until| Moment::short(until, frame.now)),
        started: Moment::short(worker.started_at, frame.now),
        seen: Moment::short(worker.seen_at, frame.now),
    });
    shown(&Workers { rows: rows.collect(), frame })
}
