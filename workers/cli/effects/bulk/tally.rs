//! What became of many effects: counted, told, and turned into an exit code.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    store::Acted,
    verb::{Outlook, Refusal, Verb},
};
use serde::Serialize;

use super::{List, left_out};
use crate::cli::{Context, Exit, json, output::plural, talk};

/// The counts.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// How many there were.
    pub(super) effects: usize,
    /// The verb was carried out.
    pub(super) done: usize,
    /// They changed after they were seen: left alone.
    pub(super) stale: usize,
    /// They are gone.
    pub(super) gone: usize,
    /// By why they were refused.
    pub(super) refused: BTreeMap<String, usize>,
    /// The database did not say what became of them.
    pub(super) failed: usize,
    /// How many matched besides, and were not in the list.
    pub(super) left_out: u64,
    /// Nobody asked for so few: the list was cut off.
    #[serde(skip)]
    pub(super) cut_off: bool,
    /// Not begun: it was stopped, or the database went away.
    pub(super) not_begun: usize,
    /// Somebody stopped it.
    pub(super) interrupted: bool,
    #[serde(skip)]
    pub(super) problem: Option<String>,
    #[serde(skip)]
    pub(super) unreachable: bool,
    #[serde(skip)]
    pub(super) took: Duration,
}

/// How many would be refused, by why.
pub(super) fn refused(outlook: &Outlook) -> BTreeMap<&str, u64> {
    outlook.refused.iter().map(|refused| (refused.words.as_str(), refused.effects)).collect()
}

impl Tally {
    /// With what matched and was not on the list: what would have been refused counts as refused.
    pub(super) fn with(mut self, list: &List) -> Self {
        for (why, n) in refused(&list.outlook) {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            self.effects += n;
            *self.refused.entry(why.to_owned()).or_default() += n;
        }
        (self.left_out, self.cut_off) = (list.outlook.left_out, list.cut_off);
        self
    }

    /// Counts one answer.
    pub(super) fn count(&mut self, acted: &Acted) {
        match acted {
            Acted::Done(..) => self.done += 1,
            Acted::NotFound => self.gone += 1,
            Acted::Refused(Refusal::Stale { .. }) => self.stale += 1,
            Acted::Refused(refusal) => *self.refused.entry(refusal.of_many()).or_default() += 1,
        }
    }

    /// The exit code: 0 all, 5 some, also where the list was cut off; none: 4 when the states forbade it, else that of the failure.
    pub(super) fn exit(&self) -> Exit {
        match self.done {
            done if done == self.effects && !self.cut_off => Exit::Ok,
            0 if self.unreachable => Exit::Unreachable,
            0 if self.failed + self.not_begun > 0 => Exit::Failure,
            0 => Exit::Forbidden,
            _ => Exit::Partly,
        }
    }

    /// Prints them.
    pub(super) fn tell(&self, context: &Context, verb: &Verb) -> anyhow::Result<()> {
        if context.json() {
            #[derive(Serialize)]
            struct Told<'a> {
                verb: &'a str,
                #[serde(flatten)]
                tally: &'a Tally,
                seconds: f64,
            }
            return json::print(&Told { verb: verb.as_str(), tally: self, seconds: self.took.as_secs_f64() });
        }
        for line in self.lines() {
            talk!("{line}");
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        let effects = |n: usize| plural(u64::try_from(n).unwrap_or(u64::MAX), "effect");
        let refused = match self.refused.values().sum::<usize>() {
            0 => String::new(),
            n => format!(", {n} refused,"),
        };
        let mut lines = vec![format!(
            "{} of {} done{refused} in {:.1} s.",
            self.done,
            effects(self.effects),
            self.took.as_secs_f64()
        )];
        let mut line = |n: usize, what: &str| {
            if n > 0 {
                lines.push(format!("  {}: {what}", effects(n)));
            }
        };
        line(self.stale, "changed since they were listed, and left alone");
        for (why, n) in &self.refused {
            line(*n, why);
        }
        line(self.gone, "gone");
        line(self.failed, "the database did not say whether it was done");
        let stopped = if self.interrupted { "not begun: you stopped it" } else { "not begun" };
        line(self.not_begun, stopped);
        if self.left_out > 0 {
            lines.push(format!("  {}", left_out(self.left_out)));
        }
        lines.extend(self.problem.as_ref().map(|problem| format!("  {problem}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::{clock::Timestamp, state::State};

    use super::*;

    fn tally(effects: usize, refusals: &[Refusal]) -> Tally {
        let mut tally = Tally { effects, done: effects - refusals.len(), ..Tally::default() };
        refusals.iter().for_each(|refusal| tally.count(&Acted::Refused(refusal.clone())));
        tally
    }

    #[test]
    fn refusals_are_counted_by_reason_and_stale_ones_apart() {
        let until = |us| Refusal::StillTravelling { until: Timestamp::from_micros(us) };
        let stale = Refusal::Stale { state: State::Ready, token: 7 };
        let tally = tally(5, &[until(1), until(2), Refusal::Superseded, stale]);
        assert_eq!((tally.done, tally.stale, tally.refused.len()), (1, 1, 2));
        assert!(tally.refused.values().any(|n| *n == 2), "{:?}", tally.refused);
        let lines = tally.lines().join("\n");
        assert!(
            lines.contains("1 of 5 effects done, 3 refused, in") && lines.contains("changed since"),
            "{lines}"
        );
        assert_eq!(tally.exit(), Exit::Partly);
    }

    #[test]
    fn the_exit_code_says_how_much_was_done() {
        assert_eq!(tally(2, &[]).exit(), Exit::Ok);
        assert_eq!(tally(1, &[Refusal::Superseded]).exit(), Exit::Forbidden);
        let away = Tally { effects: 2, not_begun: 2, unreachable: true, ..Tally::default() };
        assert_eq!(away.exit(), Exit::Unreachable);
        let cut_off = Tally { left_out: 7, cut_off: true, ..tally(2, &[]) };
        assert_eq!(cut_off.exit(), Exit::Partly, "more matched than were done");
        assert!(cut_off.lines().join("\n").contains("7 more match"), "{:?}", cut_off.lines());
        assert_eq!(Tally { left_out: 7, ..tally(2, &[]) }.exit(), Exit::Ok, "so few were asked for");
        let stopped = Tally { effects: 2, not_begun: 2, interrupted: true, ..Tally::default() };
        assert_eq!(stopped.exit(), Exit::Failure);
        assert!(stopped.lines().join("\n").contains("you stopped it"));
    }
}
