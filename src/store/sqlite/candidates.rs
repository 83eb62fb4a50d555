//! Where a page of effects begins: the statement that finds its candidates, a part per state.

use sqlx::{QueryBuilder, Sqlite};

use super::row::json_ids;
use crate::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{
        Filter,
        search::{self, LANE_FEW, Plan, QUEUE_WINDOW, Source},
    },
};

/// Every name that effects use, by jumps along the unique index instead of a scan.
macro_rules! names {
    () => {
        "names (name) AS (SELECT min(downstream) FROM aftercommit_effects UNION ALL \
         SELECT (SELECT min(e.downstream) FROM aftercommit_effects AS e WHERE e.downstream > names.name) \
         FROM names WHERE names.name IS NOT NULL)"
    };
}
pub(super) use names;

/// The members of a metadata object `m` that are words of aftercommit_metadata: as the trigger of step 11 makes them.
macro_rules! words {
    () => {
        "json_quote(substr(m.key, 1, 200)) || ':' || CASE m.type \
         WHEN 'text' THEN json_quote(substr(m.atom, 1, 200)) \
         WHEN 'integer' THEN printf('%.12g', m.atom) WHEN 'real' THEN printf('%.12g', m.atom) ELSE m.type END"
    };
}
pub(super) use words;

/// The statement that finds the candidates of a filter.
pub(super) struct Candidates<'f> {
    pub(super) filter: &'f Filter,
    /// Below this, and at or above this.
    pub(super) bounds: (Option<EffectId>, Option<EffectId>),
    /// Words that the metadata must have.
    pub(super) words: Vec<String>,
    pub(super) plan: Plan,
    pub(super) now: Timestamp,
}

impl Candidates<'_> {
    /// Whether every state that is asked for stands in the queue, whose index is by downstream. Differs from the other database,
    /// where outcomes have one too: an index more would slow every settle.
    pub(super) fn knows_downstream(filter: &Filter, plan: &Plan) -> bool {
        match plan.source {
            Source::Ids | Source::Key => true,
            Source::Metadata | Source::All => false,
            Source::States => search::states(filter).into_iter().all(|state| !state.is_terminal()),
        }
    }

    /// `WITH …, c (id) AS (…)`: candidates, newest first; then `floor (id)`, the lowest number of the queue that was looked through,
    /// where that was not all.
    pub(super) fn with(&self) -> QueryBuilder<Sqlite> {
        let mut query = QueryBuilder::<Sqlite>::new("WITH RECURSIVE ");
        query.push(names!());
        if self.plan.source == Source::States {
            self.queue(&mut query);
        } else {
            query.push(", floor (id) AS (SELECT NULL WHERE 0)");
        }
        query.push(", c (id) AS MATERIALIZED (SELECT u.id FROM (");
        match self.plan.source {
            Source::Ids => {
                let ids = self.filter.ids.iter().flatten().map(|id| id.get());
                query.push(
                    "SELECT i.id FROM aftercommit_effects AS i WHERE i.id IN (SELECT value FROM json_each(",
                );
                query.push_bind(json_ids(ids)).push("))");
                // By the numbers, not by the index of the downstream: that has all of its effects.
                self.downstream(&mut query, "+i.downstream");
                self.newest(&mut query, "i.id");
            }
            Source::Key => {
                query.push("SELECT i.id FROM aftercommit_effects AS i WHERE i.idempotency_key = ");
                query.push_bind(self.filter.key.clone());
                // Without a downstream the unique index still serves, one name after the other.
                query.push(" AND i.downstream IN (SELECT name FROM names)");
                self.downstream(&mut query, "i.downstream");
                self.newest(&mut query, "i.id");
            }
            Source::Metadata => self.of_words(&mut query),
            Source::All => {
                query.push("SELECT i.id FROM aftercommit_effects AS i WHERE 1");
                self.newest(&mut query, "i.id");
            }
            Source::States => self.of_states(&mut query),
        }
        query.push(") AS u WHERE u.id >= coalesce((SELECT id FROM floor), u.id) ORDER BY u.id DESC LIMIT ");
        query.push_bind(i64::from(self.plan.candidates)).push(")");
        query
    }

    fn downstream(&self, query: &mut QueryBuilder<Sqlite>, column: &str) {
        if let Some(downstream) = &self.filter.downstream {
            query.push(format_args!(" AND {column} = ")).push_bind(downstream.clone());
        }
    }

    fn within(&self, query: &mut QueryBuilder<Sqlite>, id: &str) {
        if let Some(below) = self.bounds.0 {
            query.push(format_args!(" AND {id} < ")).push_bind(below.get());
        }
        if let Some(from) = self.bounds.1 {
            query.push(format_args!(" AND {id} >= ")).push_bind(from.get());
        }
    }

    fn newest(&self, query: &mut QueryBuilder<Sqlite>, id: &str) {
        self.within(query, id);
        query.push(format_args!(" ORDER BY {id} DESC LIMIT ")).push_bind(i64::from(self.plan.candidates));
    }

    /// In the order of the numbers within one word; the others are looked up.
    fn of_words(&self, query: &mut QueryBuilder<Sqlite>) {
        query.push("SELECT i.effect_id AS id FROM aftercommit_metadata AS i WHERE 1");
        for (place, word) in self.words.iter().enumerate() {
            if place == 0 {
                query.push(" AND i.word = ").push_bind(word.clone());
            } else {
                query.push(" AND EXISTS (SELECT 1 FROM aftercommit_metadata AS o WHERE o.word = ");
                query.push_bind(word.clone()).push(" AND o.effect_id = i.effect_id)");
            }
        }
        self.newest(query, "i.effect_id");
    }

    fn of_states(&self, query: &mut QueryBuilder<Sqlite>) {
        let asked = search::states(self.filter);
        query.push("SELECT * FROM (SELECT q.id FROM few AS q WHERE (SELECT count(*) FROM few) <= ");
        query.push_bind(i64::from(LANE_FEW)).push(" AND (0");
        for state in &asked {
            self.when(query, *state);
        }
        query.push(")");
        self.newest(query, "q.id");
        // In the order of the numbers, whatever index there is.
        query.push(") UNION ALL SELECT * FROM (SELECT q.id FROM aftercommit_queue AS q NOT INDEXED WHERE (SELECT count(*) FROM few) > ");
        query
            .push_bind(i64::from(LANE_FEW))
            .push(" AND q.id >= coalesce((SELECT id FROM floor), q.id) AND (0");
        for state in &asked {
            self.when(query, *state);
        }
        query.push(")");
        self.downstream(query, "q.downstream");
        self.newest(query, "q.id");
        query.push(")");
        if asked.contains(&State::InFlight) {
            query.push(" UNION ALL SELECT * FROM (SELECT i.id FROM aftercommit_queue AS i INDEXED BY aftercommit_queue_token ");
            query.push("WHERE i.claimed = 1");
            self.downstream(query, "i.downstream");
            self.newest(query, "i.id");
            query.push(")");
        }
        for state in asked.into_iter().filter(|state| state.is_terminal()) {
            query.push(" UNION ALL SELECT * FROM (SELECT i.effect_id FROM aftercommit_outcomes AS i WHERE i.state = ");
            query.push_bind(state.as_str());
            self.newest(query, "i.effect_id");
            query.push(")");
        }
    }

    /// Unclaimed effects of the queue stand in lanes, whose index is by time. Where the lanes hold few they are all taken (`few`);
    /// else the newest of the queue are looked through, and `floor` says how far, where that is not to its end.
    fn queue(&self, query: &mut QueryBuilder<Sqlite>) {
        let asked = search::states(self.filter);
        let has = |states: &[State]| states.iter().any(|state| asked.contains(state));
        let mut lanes = Vec::new();
        if has(&[State::Ready]) {
            lanes.push("'r'");
        }
        if has(&[State::Ready, State::Scheduled, State::Retrying]) {
            lanes.push("'t'");
        }
        if has(&[State::Waiting]) {
            lanes.push("'w'");
        }
        if has(&[State::InDoubt]) {
            lanes.push("'d'");
        }
        if lanes.is_empty() {
            lanes.push("''");
        }
        let columns = "q.id, q.downstream, q.lane, q.claimed, q.due_at, q.tries";
        query.push(format_args!(
            ", few AS MATERIALIZED (SELECT {columns} FROM names AS n CROSS JOIN aftercommit_queue AS q \
             INDEXED BY aftercommit_queue_lane ON q.downstream = n.name WHERE q.claimed = 0 AND q.lane IN ({})",
            lanes.join(", ")
        ));
        self.downstream(query, "n.name");
        query.push(" LIMIT ").push_bind(i64::from(LANE_FEW) + 1);
        query.push("), floor (id) AS MATERIALIZED (SELECT q.id FROM aftercommit_queue AS q WHERE (SELECT count(*) FROM few) > ");
        query.push_bind(i64::from(LANE_FEW));
        self.within(query, "q.id");
        query.push(" ORDER BY q.id DESC LIMIT 1 OFFSET ").push_bind(i64::from(QUEUE_WINDOW) - 1).push(")");
    }

    fn when(&self, query: &mut QueryBuilder<Sqlite>, state: State) {
        match state {
            State::InDoubt => query.push(" OR q.lane = 'd'"),
            State::Waiting => query.push(" OR q.lane = 'w' AND q.claimed = 0"),
            State::Ready => query
                .push(" OR q.claimed = 0 AND (q.lane = 'r' OR (q.lane = 't' AND q.due_at <= ")
                .push_bind(self.now.micros())
                .push("))"),
            State::Retrying => query
                .push(" OR q.claimed = 0 AND q.lane = 't' AND q.tries > 0 AND q.due_at > ")
                .push_bind(self.now.micros()),
            State::Scheduled => query
                .push(" OR q.claimed = 0 AND q.lane = 't' AND q.tries = 0 AND q.due_at > ")
                .push_bind(self.now.micros()),
            State::InFlight | State::Succeeded | State::Failed | State::Cancelled | State::Expired => query,
        };
    }
}
