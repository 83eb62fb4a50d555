//! What the story comes to: a row per downstream, and whether it is right.

use aftercommit::{
    state::State,
    store::{Count, Database},
};

use super::sink::{Seen, Sink};
use crate::cli::{Grid, cell};

/// One downstream's figures: the database's, and what the downstream itself saw.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Row {
    pub(super) downstream: &'static str,
    pub(super) effects: u64,
    pub(super) succeeded: u64,
    pub(super) in_doubt: u64,
    #[serde(flatten)]
    pub(super) seen: Seen,
}

/// Reads a downstream's figures.
pub(super) async fn row(
    database: &dyn Database,
    downstream: &'static str,
    sink: &Sink,
) -> anyhow::Result<Row> {
    let counts = database.counts().await?;
    let of = |state: State| count(&counts, downstream, Some(state));
    Ok(Row {
        downstream,
        effects: count(&counts, downstream, None),
        succeeded: of(State::Succeeded),
        in_doubt: of(State::InDoubt),
        seen: sink.seen(),
    })
}

/// Effects of a downstream, in one state or in all.
pub(super) fn count(counts: &[Count], downstream: &str, state: Option<State>) -> u64 {
    counts
        .iter()
        .filter(|count| count.downstream == downstream && state.is_none_or(|state| count.state == state))
        .map(|count| count.effects)
        .sum()
}

/// The rows as a table.
pub(super) fn table(rows: &[Row]) -> String {
    let mut grid = Grid::new(&["DOWNSTREAM", "EFFECTS", "CALLS", "APPLICATIONS", "KEYS", "IN DOUBT"])
        .numbers(&[1, 2, 3, 4, 5]);
    for row in rows {
        grid.row(vec![
            cell(row.downstream),
            cell(row.effects),
            cell(row.seen.calls),
            cell(row.seen.applications),
            cell(row.seen.keys),
            cell(row.in_doubt),
        ]);
    }
    grid.to_string().lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// What is wrong with a downstream that honours keys: every effect must have been applied exactly once.
pub(super) fn wrong_with_keys(row: &Row, effects: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    expect(&mut wrong, row, "effects", row.effects, effects);
    expect(&mut wrong, row, "effects that succeeded", row.succeeded, effects);
    expect(&mut wrong, row, "applications", row.seen.applications, effects);
    expect(&mut wrong, row, "keys", row.seen.keys, effects);
    expect(&mut wrong, row, "applications of one key at most", row.seen.most_per_key, 1);
    expect(&mut wrong, row, "effects in doubt", row.in_doubt, 0);
    wrong
}

/// What is wrong with one that cannot deduplicate: one effect must be in doubt, and nothing applied twice.
pub(super) fn wrong_without_keys(row: &Row, effects: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    expect(&mut wrong, row, "effects", row.effects, effects);
    expect(&mut wrong, row, "effects that succeeded", row.succeeded, effects.saturating_sub(1));
    expect(&mut wrong, row, "applications", row.seen.applications, effects);
    expect(&mut wrong, row, "calls", row.seen.calls, effects);
    expect(&mut wrong, row, "applications of one key at most", row.seen.most_per_key, 1);
    expect(&mut wrong, row, "effects in doubt", row.in_doubt, 1);
    wrong
}

fn expect(wrong: &mut Vec<String>, row: &Row, what: &str, is: u64, right: u64) {
    if is != right {
        wrong.push(format!("{}: {what}: {is}, and {right} would be right", row.downstream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(calls: u64, applications: u64, most_per_key: u64, in_doubt: u64) -> Row {
        let seen = Seen { calls, applications, keys: 10, most_per_key };
        Row { downstream: "payments", effects: 10, succeeded: 10 - in_doubt, in_doubt, seen }
    }

    #[test]
    fn a_double_charge_is_noticed() {
        assert!(wrong_with_keys(&row(12, 10, 1, 0), 10).is_empty());
        let wrong = wrong_with_keys(&row(12, 11, 2, 0), 10);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(!wrong_with_keys(&row(12, 10, 2, 0), 10).is_empty());
    }

    #[test]
    fn without_keys_exactly_one_may_be_in_doubt() {
        assert!(wrong_without_keys(&row(10, 10, 1, 1), 10).is_empty());
        assert!(!wrong_without_keys(&row(11, 11, 2, 0), 10).is_empty());
        assert!(!wrong_without_keys(&row(10, 10, 1, 2), 10).is_empty());
    }

    #[test]
    fn the_table_fits_eighty_columns() {
        let text = anstream::adapter::strip_str(&table(&[row(12, 10, 1, 0)])).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
