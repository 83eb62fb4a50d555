//! What the facts mean. Pure: the same facts, the same words.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    clock::{
        Timestamp,
        words::{span, utc},
    },
    effect::EffectId,
    store::{Breaker, DownstreamInfo, Examined, WorkerInfo, identity::Hold},
};
use aftercommit_workers::config::nearest;

use super::Check;
use crate::cli::{context::invocation, output::plural};

/// A difference of clocks that log rows and schedules made elsewhere can bear.
const CLOCKS_MAX: Duration = Duration::from_secs(2);
/// Work that has been due for longer is late, although somebody serves it.
const LATE: Duration = Duration::from_secs(600);

/// Two clocks, read at about the same time.
pub(super) struct Clocks {
    pub(super) here: Timestamp,
    pub(super) there: Timestamp,
    /// Between asking and the answer: the difference cannot be told more exactly.
    pub(super) took: Duration,
}

/// Whether our schema is whole, and what stands in it that this version does not carry out.
pub(super) fn schema(examined: &Examined) -> Vec<Check> {
    let mut findings = Vec::new();
    findings.push(if examined.broken_triggers.is_empty() {
        Check::ok("triggers", "INSERTs are checked and queued")
    } else {
        let found = format!(
            "missing or switched off: {}; what is written now is not checked, or not queued",
            examined.broken_triggers.join(", ")
        );
        let remedy = "make it again from the schema (`aftercommit migrate --dry-run` prints it), or enable it; then look for orphans";
        Check::fail("triggers", found, remedy)
    });
    if examined.orphans > 0 {
        let found = format!(
            "{} of the newest {} have neither a queue row nor an outcome: nobody will carry them out",
            plural(examined.orphans, "effect"),
            examined.orphans_among
        );
        let remedy = format!(
            "they are shown in doubt: decide about each (`{} effects list --state in_doubt`, then `effects resolve`)",
            invocation()
        );
        findings.push(Check::fail("orphans", found, remedy));
    } else {
        let found =
            format!("the newest {} are queued or have ended", plural(examined.orphans_among, "effect"));
        findings.push(Check::ok("orphans", found));
    }
    if examined.unswept_claims > 0 {
        let found = format!(
            "{} ended more than a minute ago and nobody judged what became of their calls",
            plural(examined.unswept_claims, "lease")
        );
        findings.push(Check::fail("leases", found, format!("start a worker: `{} work`", invocation())));
    } else {
        findings.push(Check::ok("leases", "none ended without being swept"));
    }
    if !examined.write_backs.is_empty() {
        let found = format!(
            "on_outcome is set for {}, and this version calls no write-back",
            examined.write_backs.join(", ")
        );
        findings.push(Check::warn("on_outcome", found, "read `status` instead, until a version that has it"));
    }
    findings.push(match examined.payload_limit {
        Some(bytes) => Check::ok("payload_limit", plural(bytes, "byte")),
        None => {
            let found = "not set, or no number: the largest payload is not what anybody chose";
            Check::warn("payload_limit", found, "write it into the table meta (1048576 is the default)")
        }
    });
    findings
}

/// Whether anything may be sent at all.
pub(super) fn hold(hold: Option<&Hold>) -> Check {
    let Some(hold) = hold else { return Check::ok("hold", "the fleet is not on hold") };
    let found = format!(
        "on HOLD since {}, found by {}: {}; nothing is sent, probed or swept",
        utc(hold.since),
        hold.found_by,
        hold.reason
    );
    let remedy = format!(
        "check that this is the right database (`{0} hold show`), then `{0} hold lift --reason …`",
        invocation()
    );
    Check::fail("hold", found, remedy)
}

/// How far this machine's clock is from the database's.
pub(super) fn clock(clocks: &Clocks) -> Check {
    let (ahead, difference) = if clocks.here > clocks.there {
        ("ahead of", clocks.here.since(clocks.there))
    } else {
        // The database answered after we looked at our own clock.
        ("behind", clocks.there.since(clocks.here).saturating_sub(clocks.took))
    };
    if difference > CLOCKS_MAX {
        let found = format!("this machine's is {} {ahead} the database's", span(difference));
        return Check::warn(
            "clock",
            found,
            "let both follow a time server; leases and windows go by the database's",
        );
    }
    Check::ok("clock", format!("this machine's and the database's differ by less than {}", span(CLOCKS_MAX)))
}

/// The workers.
pub(super) fn fleet(workers: &[WorkerInfo], version: &str) -> Vec<Check> {
    let live: Vec<&WorkerInfo> = workers.iter().filter(|worker| worker.live).collect();
    if live.is_empty() {
        let remedy = format!("start one: `{} work`", invocation());
        return vec![Check::warn("workers", "no worker is alive", remedy)];
    }
    let count = plural(u64::try_from(live.len()).unwrap_or(0), "live worker");
    let others: Vec<&str> =
        live.iter().map(|worker| worker.version.as_str()).filter(|other| *other != version).collect();
    if others.is_empty() {
        return vec![Check::ok("workers", format!("{count}, version {version}"))];
    }
    let found =
        format!("{count}; {} of another version than this program's {version}: {}", others.len(), others[0]);
    vec![Check::warn("workers", found, "finish the deployment")]
}

/// Every downstream: is it served, is its work late, does it need a person?
pub(super) fn downstreams(downstreams: &[DownstreamInfo], now: Timestamp) -> Vec<Check> {
    if downstreams.is_empty() {
        let remedy = format!("run `{} migrate` with a configuration, or start a worker", invocation());
        return vec![Check::warn("downstreams", "none is known", remedy)];
    }
    downstreams.iter().flat_map(|info| downstream(info, now)).collect()
}

fn downstream(info: &DownstreamInfo, now: Timestamp) -> Vec<Check> {
    const CHECK: &str = "downstream";
    let name = &info.name;
    let age = info.oldest_due_at.map(|due| now.since(due));
    let mut findings = Vec::new();
    if let Some(unserved) = info.unserved(now) {
        let remedy = if info.kind.is_none() {
            "no configuration names it: correct the name where effects are written, or configure it"
                .to_owned()
        } else {
            format!("start `{} work` with a configuration that has it", invocation())
        };
        findings.push(Check::fail(CHECK, unserved, remedy));
    } else if info.workers == 0 {
        let remedy = "start one before effects are written, or ignore a name that is used no more";
        findings.push(Check::warn(
            CHECK,
            format!("no live worker for downstream {name}; nothing waits"),
            remedy,
        ));
    } else if let Some(age) = age.filter(|age| *age > LATE) {
        let found = format!("{name}: served, but its oldest due effect has waited for {}", span(age));
        let remedy = format!(
            "look at what holds it (`{} effects list --downstream {name}`), or raise its concurrency",
            invocation()
        );
        findings.push(Check::warn(CHECK, found, remedy));
    } else {
        let oldest = age.map_or_else(String::new, |age| format!(", the oldest due for {}", span(age)));
        let served = plural(info.workers, "live worker");
        findings.push(Check::ok(CHECK, format!("{name}: {served}, {} pending{oldest}", info.pending)));
    }
    findings.extend(held(info));
    if info.in_doubt > 0 {
        let found = format!("{name}: {} in doubt", plural(info.in_doubt, "effect"));
        let remedy = format!("decide: `{} effects list --state in_doubt --downstream {name}`", invocation());
        findings.push(Check::warn("in doubt", found, remedy));
    }
    if info.failed > 0 {
        let found = format!("{name}: {} failed, never applied", plural(info.failed, "effect"));
        let remedy = format!(
            "see why (`{0} effects list --state failed --downstream {name}`); once the cause is removed `{0} effects retry \
             --all --state failed --downstream {name}`, else they stay until their keys are dropped",
            invocation()
        );
        findings.push(Check::warn("failed", found, remedy));
    }
    findings
}

/// The endpoints of a downstream that has many: each problem is a name, and why it cannot be called from here.
pub(super) fn endpoints(downstream: &str, problems: &[(String, String)]) -> Vec<Check> {
    let remedy = || {
        format!(
            "set the secret where the workers run, or correct the endpoint; then `{} downstreams test {downstream}`",
            invocation()
        )
    };
    let of = |(name, why): &(String, String)| {
        let found = format!("{downstream}: nothing can be sent to the endpoint {name}: {why}");
        Check::fail("endpoint", found, remedy())
    };
    problems.iter().map(of).collect()
}

/// Effects that wait, and the operations that they name, held against those that their downstream has in this configuration.
pub(super) fn operations(downstream: &str, known: &[&str], waiting: &[(EffectId, String)]) -> Vec<Check> {
    let mut strange: BTreeMap<&str, (u64, EffectId)> = BTreeMap::new();
    for (id, name) in waiting.iter().filter(|(_, name)| !known.contains(&name.as_str())) {
        let (count, first) = strange.entry(name).or_insert((0, *id));
        (*count, *first) = (*count + 1, (*first).min(*id));
    }
    let of = |(name, (count, first)): (&str, (u64, EffectId))| {
        let found = format!(
            "{downstream}: {} for the operation {name}, which it does not have in this configuration; none of them can be \
             sent (the first is {first})",
            plural(count, "waiting effect")
        );
        let hint = nearest(name, known.iter().copied())
            .map_or_else(String::new, |nearest| format!(" (is {nearest} meant?)"));
        let remedy = format!(
            "correct the name where effects are written{hint} and cancel these, or add \
             [downstream.{downstream}.operations.{name}] for the workers"
        );
        Check::fail("operation", found, remedy)
    };
    strange.into_iter().map(of).collect()
}

/// What keeps its effects from being sent, if anything does.
fn held(info: &DownstreamInfo) -> Option<Check> {
    let name = &info.name;
    let why = |reason: Option<&String>| reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    if let Some(paused) = &info.paused {
        let found =
            format!("{name}: nothing is sent, paused by {}{}", paused.who, why(paused.reason.as_ref()));
        let remedy = format!("mend what was refused, then `{} downstreams resume {name}`", invocation());
        return Some(Check::warn("paused", found, remedy));
    }
    if info.breaker != Breaker::Closed {
        let origin = info.origin.as_deref().unwrap_or(name);
        let found = format!("{name}: {origin} does not answer{}", why(info.hold_reason.as_ref()));
        let remedy = format!("look at it from here: `{} downstreams test {name}`", invocation());
        return Some(Check::warn("breaker", found, remedy));
    }
    None
}

#[cfg(test)]
mod tests {
    use aftercommit::{check::Level, store::PausedBy};

    use super::*;

    fn info(kind: Option<&str>, workers: u32, pending: u64, due: Option<i64>) -> DownstreamInfo {
        DownstreamInfo {
            name: "payments".to_owned(),
            kind: kind.map(str::to_owned),
            workers,
            pending,
            oldest_due_at: due.map(Timestamp::from_micros),
            ..DownstreamInfo::default()
        }
    }

    /// CRASH-14.
    #[test]
    fn effects_that_nobody_serves_are_a_failure_and_their_age_is_told() {
        let now = Timestamp::from_micros(3_600_000_000);
        for kind in [Some("http"), None] {
            let finding = &downstream(&info(kind, 0, 3, Some(0)), now)[0];
            assert_eq!(finding.level, Level::Fail);
            let found = &finding.found;
            assert!(found.contains("no live worker for downstream payments"), "{found}");
            assert!(found.contains('3') && found.contains("60 min"), "{found}");
        }
        assert_eq!(downstream(&info(Some("http"), 0, 0, None), now)[0].level, Level::Warn);
        assert_eq!(downstream(&info(Some("http"), 1, 3, Some(0)), now)[0].level, Level::Warn, "late");
        assert_eq!(downstream(&info(Some("http"), 1, 3, Some(3_599_000_000)), now)[0].level, Level::Ok);
    }

    #[test]
    fn what_keeps_effects_from_being_sent_is_told_with_the_way_out() {
        let by = PausedBy {
            at: Timestamp::from_micros(0),
            who: "worker w1".to_owned(),
            reason: Some("535 wrong password".to_owned()),
        };
        let paused = DownstreamInfo { paused: Some(by), ..info(Some("smtp"), 1, 3, None) };
        let broken = DownstreamInfo { breaker: Breaker::Open, ..info(Some("smtp"), 1, 3, None) };
        for (info, found, remedy) in [
            (paused, "paused by worker w1: 535 wrong password", "downstreams resume payments"),
            (broken, "does not answer", "downstreams test payments"),
        ] {
            let checks = downstream(&info, Timestamp::from_micros(0));
            let told = checks
                .iter()
                .find(|check| check.found.contains(found))
                .unwrap_or_else(|| panic!("{checks:?}"));
            assert_eq!(told.level, Level::Warn);
            assert!(told.remedy.as_ref().is_some_and(|said| said.contains(remedy)), "{told:?}");
        }
    }

    #[test]
    fn failed_effects_are_counted_with_what_to_do() {
        let failed = DownstreamInfo { failed: 3, ..info(Some("http"), 1, 0, None) };
        let checks = downstream(&failed, Timestamp::from_micros(0));
        let told = checks.iter().find(|check| check.check == "failed").expect("they are told");
        assert_eq!(
            (told.level, told.found.as_str()),
            (Level::Warn, "payments: 3 effects failed, never applied")
        );
        let remedy = told.remedy.as_deref().unwrap_or_default();
        assert!(remedy.contains("effects list --state failed --downstream payments"), "{remedy}");
        assert!(remedy.contains("effects retry --all --state failed --downstream payments"), "{remedy}");
        let none = downstream(&info(Some("http"), 1, 0, None), Timestamp::from_micros(0));
        assert!(none.iter().all(|check| check.check != "failed"));
    }

    #[test]
    fn an_endpoint_that_cannot_be_called_is_a_failure() {
        let problems = [("acme".to_owned(), "HOOK_ACME is not set".to_owned())];
        let checks = endpoints("hooks", &problems);
        assert_eq!((checks.len(), checks[0].level), (1, Level::Fail));
        assert!(checks[0].found.contains("endpoint acme: HOOK_ACME is not set"), "{checks:?}");
        assert!(endpoints("hooks", &[]).is_empty());
    }

    #[test]
    fn effects_for_an_operation_that_nobody_configured_are_a_failure() {
        let all = [(9, "refnd"), (7, "refund"), (4, "refnd")];
        let all = all.map(|(id, name)| (EffectId::new(id), name.to_owned()));
        let checks = operations("payments", &["charge", "refund"], &all);
        assert_eq!((checks.len(), checks[0].level), (1, Level::Fail));
        let found = &checks[0].found;
        assert!(found.contains("2 waiting effects for the operation refnd"), "{found}");
        assert!(found.contains("the first is 4"), "{found}");
        let remedy = checks[0].remedy.as_deref().unwrap_or_default();
        assert!(remedy.contains("is refund meant?"), "{remedy}");
        assert!(remedy.contains("[downstream.payments.operations.refnd]"), "{remedy}");
        assert!(operations("payments", &["refund"], &all[1..2]).is_empty());
    }

    #[test]
    fn a_hold_is_a_failure_that_says_what_to_do() {
        assert_eq!(hold(None).level, Level::Ok);
        let held = Hold {
            since: Timestamp::from_micros(0),
            found_by: "w1".to_owned(),
            reason: "the database went back".to_owned(),
            went_back: true,
            marked: true,
        };
        let finding = hold(Some(&held));
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.found.contains("the database went back"), "{finding:?}");
        assert!(finding.remedy.is_some_and(|remedy| remedy.contains("hold lift")));
    }

    #[test]
    fn clocks_that_differ_are_told_and_the_asking_is_not_held_against_them() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let took = Duration::from_secs(5);
        assert_eq!(clock(&Clocks { here: at(100), there: at(104), took }).level, Level::Ok);
        assert_eq!(clock(&Clocks { here: at(100), there: at(110), took }).level, Level::Warn);
        assert!(clock(&Clocks { here: at(100), there: at(90), took }).found.contains("10 s ahead of"));
    }
}
