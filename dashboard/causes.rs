//! Why effects failed or are in doubt: grouped by what their errors have in common, with numbers, identifiers and keys taken out.
//!
//! The pages and the API show the same groups. Each has an id that stands for all that makes its effects alike; a search or a bulk
//! that names it (`cause:…`) finds the effects of the group, and no others; with a time behind it (`cause:…-24h`) those that ended, or
//! were last attempted, within it.
//!
//! What a new effect took the place of has no cause: nothing is to be done about it. What people said was not applied has one, whatever
//! their reasons were.

mod not_done;

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{CauseRow, Filter, PAGE_MAX, Page},
    verb::{SAID_NOT_APPLIED, is_said_not_applied},
    visible::clean,
};

pub(crate) use not_done::{LINKED_MAX, NotDone, not_done};

use crate::{
    digest::{digest, is_digest},
    problem::Problem,
    shared::Shared,
};

/// Stands where something was taken out.
pub(crate) const GAP: &str = "…";
/// A cause is no longer than this.
const LEN_MAX: usize = 240;

/// The states that have causes.
const STATES: [State; 2] = [State::Failed, State::InDoubt];

/// The cause of what people said was not applied: why they said so differs, and is no cause.
pub(crate) const SAID: &str = "A person said that it was not applied";

/// The times that a group may be narrowed by: their words, and their hours.
pub(crate) const SPANS: [(&str, u64); 3] = [("1h", 1), ("24h", 24), ("7d", 168)];

/// A group, or what of it is of the last hours.
struct Which<'w> {
    id: &'w str,
    hours: Option<u64>,
}

impl<'w> Which<'w> {
    fn of_word(word: &'w str) -> Option<Self> {
        let which = match word.split_once('-') {
            None => Self { id: word, hours: None },
            Some((id, span)) => Self { id, hours: Some(SPANS.iter().find(|(known, _)| *known == span)?.1) },
        };
        is_digest(which.id).then_some(which)
    }
}

/// Whether `word` may name a group.
pub(crate) fn is_cause(word: &str) -> bool {
    Which::of_word(word).is_some()
}

/// What makes two failures alike.
type Alike<'r> = (&'r str, Option<&'r str>, Option<u16>, String);

/// Effects that have the same cause.
pub(crate) struct Group<'r> {
    /// Stands for all that they have in common.
    pub(crate) id: String,
    /// Their downstream.
    pub(crate) downstream: &'r str,
    /// Their operation.
    pub(crate) operation: Option<&'r str>,
    /// The protocol's status of their last answers.
    pub(crate) status: Option<u16>,
    /// What their last errors say.
    pub(crate) cause: String,
    rows: Vec<&'r CauseRow>,
}

impl<'r> Group<'r> {
    fn of(state: State, (downstream, operation, status, cause): Alike<'r>, rows: Vec<&'r CauseRow>) -> Self {
        // What is missing is something else than what is empty.
        let maybe = |value: Option<String>| value.map_or_else(|| "-".to_owned(), |value| format!("+{value}"));
        let (named, coded) =
            (maybe(operation.map(str::to_owned)), maybe(status.map(|status| status.to_string())));
        let id = digest([state.as_str(), downstream, named.as_str(), coded.as_str(), cause.as_str()]);
        Self { id, downstream, operation, status, cause, rows }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        count(self.rows.len())
    }

    /// How many of them are of the last hours.
    pub(crate) fn within(&self, hours: u64, now: Timestamp) -> u64 {
        count(self.rows.iter().filter(|row| row.at >= ago(hours, now)).count())
    }

    /// The word that names those of the last hours, or all.
    pub(crate) fn word(&self, span: Option<&str>) -> String {
        span.map_or_else(|| self.id.clone(), |span| format!("{}-{span}", self.id))
    }

    /// What a search of errors can look for.
    pub(crate) fn search(&self) -> Option<&str> {
        if self.cause == SAID { Some(SAID_NOT_APPLIED.trim()) } else { fragment(&self.cause) }
    }

    /// The newest of them.
    pub(crate) fn newest(&self) -> Option<&'r CauseRow> {
        self.rows.iter().copied().max_by_key(|row| row.at)
    }

    /// Where they were to go.
    pub(crate) fn place(&self) -> String {
        let downstream = self.downstream;
        self.operation.map_or_else(|| downstream.to_owned(), |name| format!("{downstream} / {name}"))
    }

    /// What they are, in words.
    fn in_words(&self, state: State) -> String {
        let status = self.status.map(|status| format!(", status {status}")).unwrap_or_default();
        let cause = if self.cause.is_empty() { NO_ERROR } else { self.cause.as_str() };
        let state = state.as_str().replace('_', " ");
        format!("{state} at {}{status}: {}", clean(&self.place()), clean(cause))
    }
}

/// Stands for the cause of what has no error.
pub(crate) const NO_ERROR: &str = "no error was written down";

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn ago(hours: u64, now: Timestamp) -> Timestamp {
    now.minus(Duration::from_secs(hours * 3_600))
}

/// How many of these a new effect took the place of.
pub(crate) fn superseded(rows: &[CauseRow]) -> u64 {
    count(rows.iter().filter(|row| row.superseded).count())
}

/// Those of `state` that have the same cause. `hidden` takes away what nobody is shown.
pub(crate) fn groups(rows: &[CauseRow], state: State, hidden: impl Fn(&str) -> String) -> Vec<Group<'_>> {
    let mut alike: BTreeMap<Alike<'_>, Vec<&CauseRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.superseded) {
        let error = row.error.as_deref().unwrap_or_default();
        // What the last answer was has nothing to do with what a person found out.
        let (status, cause) = if state == State::Failed && is_said_not_applied(error) {
            (None, SAID.to_owned())
        } else {
            (row.response_status, cause(&hidden(error)))
        };
        let key = (row.downstream.as_str(), row.operation.as_deref(), status, cause);
        alike.entry(key).or_default().push(row);
    }
    alike.into_iter().map(|(key, rows)| Group::of(state, key, rows)).collect()
}

/// The effects of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members {
    /// What they are, in words.
    pub(crate) words: String,
    /// Which, the newest first.
    pub(crate) ids: Vec<EffectId>,
}

/// The effects of the group that `word` names at `now`, among those that a page of causes of the same states and downstream groups.
/// `None`: there is no such group any more.
///
/// # Errors
///
/// When the database does not answer.
pub(crate) async fn members(
    shared: &Shared,
    word: &str,
    (filter, now): (&Filter, Timestamp),
) -> Result<Option<Members>, Problem> {
    let Some(which) = Which::of_word(word) else { return Ok(None) };
    let hidden = |error: &str| shared.redaction().words(error).into_owned();
    for state in STATES {
        if !(filter.states.is_empty() || filter.states.contains(&state)) {
            continue;
        }
        let found = shared.eyes().causes(state, filter.downstream.as_deref()).await?;
        if let Some(group) = groups(&found.rows, state, hidden).into_iter().find(|group| group.id == which.id)
        {
            let is_asked = |row: &&&CauseRow| which.hours.is_none_or(|hours| row.at >= ago(hours, now));
            let mut ids: Vec<EffectId> = group.rows.iter().filter(is_asked).map(|row| row.id).collect();
            ids.sort_unstable_by(|a, b| b.cmp(a));
            let lately = which.hours.map_or_else(String::new, |hours| format!(" (of the last {hours} h)"));
            return Ok(Some(Members { words: group.in_words(state) + &lately, ids }));
        }
    }
    Ok(None)
}

impl Members {
    /// A page of those that `filter` leaves of them: the store takes only so many numbers at once.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub(crate) async fn page(&self, shared: &Shared, filter: &Filter) -> Result<Page, Problem> {
        let asked = |id: &EffectId| filter.ids.as_ref().is_none_or(|asked| asked.contains(id));
        let left = self.ids.iter().copied();
        let left = left.filter(|id| filter.before.is_none_or(|before| *id < before) && asked(id));
        let left: Vec<EffectId> = left.collect();
        let mut parts = left.chunks(usize::try_from(PAGE_MAX).unwrap_or(usize::MAX)).peekable();
        while let Some(part) = parts.next() {
            let of_these = Filter { ids: Some(part.to_vec()), ..filter.clone() };
            let mut page = shared.eyes().effects(&of_these).await?;
            if parts.peek().is_some() {
                page.next = page.next.or(part.last().copied());
            }
            if !page.effects.is_empty() || page.next.is_none() {
                return Ok(page);
            }
        }
        Ok(Page::default())
    }
}

/// The cause that `error` is one of many of. Status codes stay: they tell causes apart.
fn cause(error: &str) -> String {
    let mut out = String::with_capacity(error.len());
    let mut rest = error;
    while let Some(c) = rest.chars().next() {
        if !is_inside(c) {
            // White space of any kind and length is one space.
            if !(c.is_whitespace() && out.ends_with(' ')) {
                out.push(if c.is_whitespace() { ' ' } else { c });
            }
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let end = rest.find(|c| !is_inside(c)).unwrap_or(rest.len());
        // What ends a sentence or a clause is no part of a word.
        let end = rest[..end].trim_end_matches(['.', ':', '/']).len().max(1);
        let (word, after) = rest.split_at(end);
        out.push_str(if is_one_of_many(word) { GAP } else { word });
        rest = after;
    }
    match out.char_indices().nth(LEN_MAX) {
        Some((end, _)) => format!("{}{GAP}", &out[..end]),
        None => out.trim().to_owned(),
    }
}

/// The longest part of a cause that every error of it holds: what a search can look for.
fn fragment(cause: &str) -> Option<&str> {
    cause.split(GAP).map(str::trim).filter(|part| part.chars().count() >= 3).max_by_key(|part| part.len())
}

fn is_inside(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

/// It has a digit and is no status: a number, a UUID, a key, an address, an identifier.
fn is_one_of_many(word: &str) -> bool {
    let digits = word.chars().any(|c| c.is_ascii_digit());
    let status = word.len() == 3 && word.parse::<u16>().is_ok_and(|number| (100..600).contains(&number));
    digits && !status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_numbers_and_names_have_one_cause() {
        for (error, wanted) in [
            ("503 with Retry-After 60", "503 with Retry-After …"),
            ("402: card card_1A2b3C declined for order-A-17", "402: card … declined for …"),
            ("no row 018f3c2e-7b1a-7c33-9a51-0242ac120002 in eu", "no row … in eu"),
            ("connect to 10.0.0.12:8443 failed", "connect to … failed"),
            ("timed  out\nafter 5s", "timed out after …"),
        ] {
            assert_eq!(cause(error), wanted, "{error}");
        }
        assert_eq!(cause("card a-1 declined"), cause("card b-22 declined"));
        assert_ne!(cause("502 from the bank"), cause("503 from the bank"));
    }

    fn row(id: i64, operation: Option<&str>, status: Option<u16>, error: Option<&str>) -> CauseRow {
        CauseRow {
            id: EffectId::new(id),
            downstream: "pay".to_owned(),
            operation: operation.map(str::to_owned),
            error: error.map(str::to_owned),
            response_status: status,
            superseded: false,
            at: Timestamp::from_micros(id),
        }
    }

    #[test]
    fn what_people_said_is_one_cause_whatever_they_said() {
        let said = |id, status, who: &str| {
            row(id, Some("charge"), status, Some(&format!("{SAID_NOT_APPLIED}{who}")))
        };
        let rows = [
            said(1, Some(503), "ann: no such charge"),
            said(2, None, "ben: asked the bank, they saw nothing"),
            row(3, Some("charge"), None, Some("card declined")),
            CauseRow { superseded: true, ..said(4, None, "ann: sent anew") },
        ];
        let found = groups(&rows, State::Failed, str::to_owned);
        let mut told: Vec<_> =
            found.iter().map(|group| (group.cause.as_str(), group.len(), group.search())).collect();
        told.sort_unstable();
        assert_eq!(
            told,
            [(SAID, 2, Some("resolved as not applied by")), ("card declined", 1, Some("card declined"))]
        );
        assert_eq!(superseded(&rows), 1, "nothing is to be done about it");
    }

    #[test]
    fn a_group_is_named_whole_or_for_a_time() {
        let rows = [row(1, None, None, Some("card declined"))];
        let group = &groups(&rows, State::Failed, str::to_owned)[0];
        for (word, hours) in [(group.word(None), None), (group.word(Some("7d")), Some(168))] {
            let which = Which::of_word(&word).unwrap();
            assert_eq!((which.id, which.hours), (group.id.as_str(), hours));
        }
        for other in ["", "-1h", "declined", &format!("{}-2h", group.id), &format!("{}-", group.id)] {
            assert!(!is_cause(other), "{other}");
        }
    }

    #[test]
    fn an_id_stands_for_all_that_a_group_has_in_common() {
        let rows = [
            row(1, None, Some(402), Some("card_1 declined")),
            row(2, None, Some(402), Some("card_2 declined")),
            row(3, Some(""), Some(402), Some("card_3 declined")),
            row(4, Some("charge"), Some(402), Some("card_4 declined")),
            row(5, None, None, Some("card_5 declined")),
            row(6, None, Some(402), Some("declined")),
            row(7, None, Some(402), None),
        ];
        let groups = |rows: &[CauseRow], state| {
            let found = super::groups(rows, state, str::to_owned);
            found.iter().map(|group| (group.id.clone(), group.len())).collect::<BTreeMap<_, _>>()
        };
        let failed = groups(&rows, State::Failed);
        assert_eq!(failed.len(), 6, "{failed:?}");
        assert_eq!(failed.values().max(), Some(&2));
        assert!(groups(&rows, State::InDoubt).keys().all(|id| !failed.contains_key(id)), "of another state");
        assert_eq!(groups(&rows[1..], State::Failed), groups(&rows[1..], State::Failed));
        assert!(
            groups(&rows[1..2], State::Failed).keys().all(|id| failed.contains_key(id)),
            "it stays the same"
        );
    }

    #[test]
    fn a_cause_can_be_searched_for() {
        assert_eq!(fragment(&cause("402: card card_1A declined for order-17")), Some("declined for"));
        assert_eq!(fragment("…"), None);
        assert!(cause(&"ü".repeat(500)).chars().count() <= LEN_MAX + 1);
    }
}
