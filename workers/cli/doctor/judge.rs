//! What the facts mean. Pure: the same facts, the same words.

use std::time::Duration;

use aftercommit::{
    clock::Timestamp,
    store::{Breaker, DownstreamInfo, Examined, WorkerInfo, identity::Hold},
};

use super::Check;
use crate::cli::{
    context::invocation,
    output::plural,
    times::{span, utc},
};

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
    findings
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
