//! Where a page of effects begins: the statement that finds its candidates, a part per state with the index that holds it.

use super::statement::Statement;
use crate::{
    effect::EffectId,
    state::State,
    store::{
        Filter,
        search::{self, LANE_FEW, Plan, Source},
    },
};

/// The names in use, by jumps through the unique index: as many looks as there are names.
macro_rules! names {
    () => {
        "names (name) AS (
  (SELECT downstream FROM aftercommit.effects ORDER BY downstream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.downstream FROM aftercommit.effects AS e WHERE e.downstream > n.name ORDER BY e.downstream LIMIT 1)
  FROM names AS n WHERE n.name IS NOT NULL
)"
    };
}
pub(super) use names;

const EACH_NAME: &str = "(SELECT name FROM names WHERE name IS NOT NULL OFFSET 0) AS n";

/// What tells the state of a row of the queue.
const COLUMNS: &str = "q.id, q.downstream, q.lane, q.claimed, q.due_at, q.tries";

/// Every number of an argument stands here, so that its type is known whichever filters are used.
const GIVEN: &str =
    "given AS (SELECT $1::text, $2::int8, $3::int8, $4::int8, $5::int8, $6::text, $7::int8[], $8::text, $9::text,
  $10::text, $11::timestamptz, $12::timestamptz, $13::text[])";

/// Below this number, and at or above that.
pub(super) type Bounds = (Option<EffectId>, Option<EffectId>);

/// The parts of the statement that finds the candidates of a filter.
pub(super) struct Candidates<'f> {
    pub(super) filter: &'f Filter,
    pub(super) bounds: Bounds,
    /// Numbers to choose from.
    pub(super) ids: Option<Vec<i64>>,
    pub(super) metadata: Option<String>,
    pub(super) plan: Plan,
}

impl Candidates<'_> {
    /// The newest of one state, at most so many.
    pub(super) fn of_state(filter: &Filter, candidates: u32) -> Candidates<'_> {
        let plan = Plan { candidates, ..Plan::of(filter, None, None) };
        Candidates { filter, bounds: (filter.before, None), ids: None, metadata: None, plan }
    }

    /// `WITH …, c AS (…)`: candidates with their places, newest first.
    pub(super) fn with(&self) -> String {
        let mut tables = vec![GIVEN.to_owned()];
        let from = match self.plan.source {
            Source::Ids => self.effects("e.id = ANY ($7)"),
            Source::Key if self.filter.downstream.is_some() => self.effects("e.idempotency_key = $6"),
            // A key is one effect, or a few where several downstreams have it: by jumps over the names.
            Source::Key => format!(
                "SELECT e.id FROM {EACH_NAME}
                 JOIN aftercommit.effects AS e ON e.downstream = n.name WHERE e.idempotency_key = $6{}",
                self.newest("e.id")
            ),
            Source::All | Source::Metadata => self.effects("true"),
            Source::States => {
                let pending = self.pending();
                if let Some(pending) = &pending {
                    tables.push(pending.clone());
                }
                let mut parts: Vec<String> =
                    search::states(self.filter).into_iter().filter_map(|state| self.of(state)).collect();
                parts.extend(pending.map(|_| "SELECT id FROM pending".to_owned()));
                parts.iter().map(|part| format!("({part})")).collect::<Vec<_>>().join("\nUNION ALL\n")
            }
        };
        tables.push(names!().to_owned());
        let floor =
            if self.has_floor() { " WHERE u.id >= coalesce((SELECT id FROM floor), u.id)" } else { "" };
        tables.push(format!(
            "c AS MATERIALIZED (
  SELECT u.id, row_number() OVER (ORDER BY u.id DESC) AS at FROM ({from}) AS u{floor} ORDER BY u.id DESC LIMIT $5
)"
        ));
        format!("WITH RECURSIVE {}", tables.join(",\n"))
    }

    /// The lowest number of the queue that was looked through, where that was not all.
    pub(super) fn floor(&self) -> &'static str {
        if self.has_floor() { "(SELECT id FROM floor)" } else { "NULL::int8" }
    }

    fn has_floor(&self) -> bool {
        self.plan.source == Source::States && self.pending().is_some()
    }

    fn within(&self, id: &str) -> String {
        let below = self.bounds.0.map_or(String::new(), |_| format!(" AND {id} < $2"));
        let from = self.bounds.1.map_or(String::new(), |_| format!(" AND {id} >= $3"));
        format!("{below}{from}")
    }

    fn newest(&self, id: &str) -> String {
        format!("{} ORDER BY {id} DESC LIMIT $5", self.within(id))
    }

    fn effects(&self, when: &str) -> String {
        let downstream = self.filter.downstream.as_ref().map_or("", |_| " AND e.downstream = $1");
        format!("SELECT e.id FROM aftercommit.effects AS e WHERE {when}{downstream}{}", self.newest("e.id"))
    }

    /// The newest of a state that an index holds by number; of what is pending, see [`Self::pending`].
    fn of(&self, state: State) -> Option<String> {
        let one = self.filter.downstream.is_some();
        Some(match state {
            // By downstream, since so is the index: the newest of each.
            State::InDoubt => self.of_each("SELECT q.id FROM aftercommit.queue AS q WHERE q.lane = 'd'", "q"),
            // OFFSET 0: beside other states the planner has read the whole queue, in the order that is asked for.
            State::InFlight => format!(
                "SELECT q.id FROM aftercommit.claims AS c CROSS JOIN LATERAL unnest(c.ids) AS held (id) CROSS JOIN LATERAL (
                   SELECT q.id FROM aftercommit.queue AS q
                   WHERE q.id = held.id AND q.token = c.token AND q.claimed{} OFFSET 0) AS q WHERE true{}",
                if one { " AND q.downstream = $1" } else { "" },
                self.newest("q.id")
            ),
            // Nearly all of the newest have succeeded: a long look need not go by the names.
            State::Succeeded if !one && !self.plan.rest.is_nothing() => format!(
                "SELECT o.effect_id AS id FROM aftercommit.outcomes AS o WHERE o.state = 'succeeded'{}",
                self.newest("o.effect_id")
            ),
            State::Succeeded => self.of_each(
                "SELECT o.effect_id AS id FROM aftercommit.outcomes AS o WHERE o.state = 'succeeded'",
                "o",
            ),
            State::Failed | State::Cancelled | State::Expired => format!(
                "SELECT o.effect_id AS id FROM aftercommit.outcomes AS o
                 WHERE o.state = '{state}' AND o.state <> 'succeeded'{}{}",
                if one { " AND o.downstream = $1" } else { "" },
                self.newest("o.effect_id")
            ),
            State::Waiting | State::Scheduled | State::Ready | State::Retrying => return None,
        })
    }

    fn of_each(&self, select: &str, alias: &str) -> String {
        let id = if alias == "q" { "q.id" } else { "o.effect_id" };
        if self.filter.downstream.is_some() {
            return format!("{select} AND {alias}.downstream = $1{}", self.newest(id));
        }
        format!(
            "SELECT d.id FROM {EACH_NAME} CROSS JOIN LATERAL (
             {select} AND {alias}.downstream = n.name{}) AS d",
            self.newest(id)
        )
    }

    /// Pending effects stand in lanes, whose indexes are by time. Where a lane holds few they are all taken (`few`); else the newest
    /// of the queue are looked through until there are enough, and where there are not, `floor` says how far. Nothing waits yet:
    /// whoever builds flows gives lane w a place in `few`.
    fn pending(&self) -> Option<String> {
        let asked = search::states(self.filter);
        let later = asked.contains(&State::Scheduled) || asked.contains(&State::Retrying);
        let ready = asked.contains(&State::Ready);
        if !later && !ready && !asked.contains(&State::Waiting) {
            return None;
        }
        let one = if self.filter.downstream.is_some() { " AND q.downstream = $1" } else { "" };
        let many = LANE_FEW + 1;
        let mut few = vec![format!("(SELECT {COLUMNS} FROM aftercommit.queue AS q WHERE false)")];
        if ready {
            few.push(format!(
                "(SELECT {COLUMNS} FROM aftercommit.queue AS q WHERE q.lane = 'r'{one} LIMIT {many})"
            ));
        }
        if later {
            few.push(format!(
                "(SELECT {COLUMNS} FROM aftercommit.queue AS q WHERE q.lane = 't'{one} LIMIT {many})"
            ));
        } else if ready {
            // What is due of the timed ones, without what is scheduled for later.
            let (names, name) = if one.is_empty() { (EACH_NAME, "n.name") } else { ("(SELECT) AS n", "$1") };
            few.push(format!(
                "(SELECT t.* FROM {names} CROSS JOIN LATERAL (
    SELECT {COLUMNS} FROM aftercommit.queue AS q
    WHERE q.downstream = {name} AND q.lane = 't' AND q.due_at <= statement_timestamp() LIMIT {many}) AS t LIMIT {many})"
            ));
        }
        let (when, within, window) = (self.pending_when(), self.within("q.id"), self.plan.queue);
        Some(format!(
            "few AS MATERIALIZED ({}),
pending AS MATERIALIZED (
  (SELECT q.id FROM few AS q WHERE (SELECT count(*) FROM few) <= {LANE_FEW} AND ({when}){within} ORDER BY q.id DESC LIMIT $5)
  UNION ALL
  (SELECT q.id FROM (
    SELECT {COLUMNS} FROM aftercommit.queue AS q WHERE (SELECT count(*) FROM few) > {LANE_FEW}{within}
    ORDER BY q.id DESC LIMIT {window}) AS q
  WHERE ({when}){one} ORDER BY q.id DESC LIMIT $5)
),
floor AS MATERIALIZED (
  SELECT q.id FROM aftercommit.queue AS q
  WHERE (SELECT count(*) FROM few) > {LANE_FEW} AND (SELECT count(*) FROM pending) < $5{within}
  ORDER BY q.id DESC OFFSET {window} - 1 LIMIT 1
)",
            few.join(" UNION ALL ")
        ))
    }

    fn pending_when(&self) -> String {
        let timed = |when: &str| format!("NOT q.claimed AND q.lane = 't' AND {when}");
        let when: Vec<String> = search::states(self.filter)
            .into_iter()
            .filter_map(|state| match state {
                State::Waiting => Some("q.lane = 'w'".to_owned()),
                State::Ready => Some(format!(
                    "NOT q.claimed AND q.lane = 'r' OR {}",
                    timed("q.due_at <= statement_timestamp()")
                )),
                State::Scheduled => Some(timed("q.due_at > statement_timestamp() AND q.tries = 0")),
                State::Retrying => Some(timed("q.due_at > statement_timestamp() AND q.tries > 0")),
                State::InFlight
                | State::InDoubt
                | State::Succeeded
                | State::Failed
                | State::Cancelled
                | State::Expired => None,
            })
            .collect();
        when.join(" OR ")
    }

    pub(super) fn bind<'q>(&self, statement: Statement<'q>) -> Statement<'q> {
        let filter = self.filter;
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        statement
            .bind(filter.downstream.clone())
            .bind(self.bounds.0.map(EffectId::get))
            .bind(self.bounds.1.map(EffectId::get))
            .bind(i64::from(search::rows(filter)))
            .bind(i64::from(self.plan.candidates))
            .bind(filter.key.clone())
            .bind(self.ids.clone())
            .bind(self.metadata.clone())
            .bind(filter.operation.clone())
            .bind(filter.error.clone())
            .bind(filter.created_before)
            .bind(filter.created_after)
            .bind(states.iter().map(|state| (*state).to_owned()).collect::<Vec<String>>())
    }
}
