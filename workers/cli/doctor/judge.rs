//! What the facts mean. Pure: the same facts, the same words.

use std::time::Duration;

use aftercommit::{
    clock::Timestamp,
    store::{DownstreamInfo, EngineFacts, Examined, PostgresFacts, SqliteFacts, WorkerInfo},
};

use super::Finding;
use crate::cli::{context::invocation, output::plural, times::span};

/// A difference of clocks that log rows and schedules made elsewhere can bear.
const CLOCKS_MAX: Duration = Duration::from_secs(2);
/// Work that has been due for longer is late, although somebody serves it.
const LATE: Duration = Duration::from_secs(600);
/// So many transactions without vacuum begin to hurt tables that are rewritten all day.
const HORIZON_MAX: u64 = 1_000_000;

/// Two clocks, read at about the same time.
pub(super) struct Clocks {
    pub(super) here: Timestamp,
    pub(super) there: Timestamp,
    /// Between asking and the answer: the difference cannot be told more exactly.
    pub(super) took: Duration,
}

/// The server or the library. `each` is how many connections one worker opens at most.
pub(super) fn engine(examined: &Examined, workers: &[WorkerInfo], each: u32) -> Vec<Finding> {
    let mut findings = match &examined.engine {
        EngineFacts::Postgres(facts) => {
            let live = workers.iter().filter(|worker| worker.live).count();
            postgres(facts, u32::try_from(live).unwrap_or(u32::MAX), each)
        }
        EngineFacts::Sqlite(facts) => sqlite(facts),
    };
    findings.insert(0, Finding::ok("server", examined.server.clone()));
    findings
}

fn postgres(facts: &PostgresFacts, workers: u32, each: u32) -> Vec<Finding> {
    let mut findings = vec![
        match facts.encoding.as_str() {
            "UTF8" => Finding::ok("encoding", "UTF8"),
            other => Finding::fail(
                "encoding",
                other,
                "create the database with ENCODING 'UTF8' TEMPLATE template0",
            ),
        },
        if facts.standby {
            Finding::fail(
                "standby",
                "this is a standby: it cannot be written",
                "name the primary in the database URL",
            )
        } else {
            Finding::ok("standby", "this is the primary")
        },
        if facts.fsync {
            Finding::ok("fsync", "on")
        } else {
            let found = "off: after a crash claims and outcomes are lost, and what was sent is sent again";
            Finding::fail("fsync", found, "set fsync = on and restart the server")
        },
    ];
    if !facts.full_page_writes {
        let found = "off: a crash can tear pages";
        findings.push(Finding::warn(
            "full_page_writes",
            found,
            "set it on, unless the file system writes whole pages",
        ));
    }
    findings.push(match facts.synchronous_commit.as_str() {
        word @ ("off" | "local") => {
            let found = format!(
                "{word} for this login: claims and settles raise it to on; the application's own commits may be lost in a crash"
            );
            Finding::warn("synchronous_commit", found, "set it on for the application's role, unless it may lose orders")
        }
        word => Finding::ok("synchronous_commit", word),
    });
    findings.push(connections(facts, workers, each));
    findings.push(if facts.missing_roles.is_empty() {
        Finding::ok("roles", "aftercommit_app, _worker, _viewer and _operator are there")
    } else {
        let remedy = format!("run `{} migrate` with a login that may make roles", invocation());
        Finding::warn("roles", format!("missing: {}", facts.missing_roles.join(", ")), remedy)
    });
    findings.push(if facts.superuser {
        let remedy = "give the worker a login of its own: CREATE ROLE … LOGIN IN ROLE aftercommit_worker";
        Finding::warn("login", format!("{} is a superuser", facts.login), remedy)
    } else {
        Finding::ok("login", facts.login.clone())
    });
    findings.extend(sessions(facts));
    findings
}

fn connections(facts: &PostgresFacts, workers: u32, each: u32) -> Finding {
    let PostgresFacts { connections_max: max, connections_used: used, .. } = *facts;
    let ours = workers.saturating_mul(each);
    let found = format!(
        "{used} of {max} in use; {} may open {ours} at most ({each} each)",
        plural(workers, "live worker")
    );
    let crowded = used.saturating_mul(10) >= max.saturating_mul(9);
    if crowded || ours >= max {
        let remedy =
            "raise max_connections, run fewer workers, or find who holds the connections (pg_stat_activity)";
        return Finding::warn("connections", found, remedy);
    }
    Finding::ok("connections", found)
}

/// Who keeps vacuum from cleaning up, and locks from being released.
fn sessions(facts: &PostgresFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts
        .idle_in_transaction
        .iter()
        .map(|session| {
            let found = format!(
                "{} (process {}) has held a transaction open for {} without doing anything",
                session.who,
                session.pid,
                span(session.open)
            );
            let remedy = format!(
                "end it (SELECT pg_terminate_backend({})), and set idle_in_transaction_session_timeout for its role",
                session.pid
            );
            Finding::warn("sessions", found, remedy)
        })
        .collect();
    if facts.horizon_age > HORIZON_MAX {
        let found = format!(
            "{} keeps what {} transactions left dead from being removed",
            facts.horizon_holder, facts.horizon_age
        );
        findings.push(Finding::warn("vacuum horizon", found, "end it, or drop the slot that nobody reads"));
    } else if findings.is_empty() {
        let seen = if facts.sees_sessions {
            ""
        } else {
            "; this login sees its own sessions only (GRANT pg_monitor)"
        };
        let found = format!(
            "no transaction is held open idly; the vacuum horizon is {} old{seen}",
            plural(facts.horizon_age, "transaction")
        );
        findings.push(Finding::ok("sessions", found));
    }
    findings
}

fn sqlite(facts: &SqliteFacts) -> Vec<Finding> {
    let journal = if facts.journal_mode == "wal" {
        Finding::ok("journal_mode", "wal")
    } else {
        let found = format!("{}: readers and the writer wait for each other", facts.journal_mode);
        Finding::fail("journal_mode", found, "run PRAGMA journal_mode = wal on the file")
    };
    let synchronous = match facts.synchronous {
        2 | 3 => Finding::ok("synchronous", "full for claims and settles"),
        other => {
            let found =
                format!("{other}: after a power cut claims are lost, and what was sent is sent again");
            Finding::fail("synchronous", found, "use the program as it was released: it sets FULL")
        }
    };
    vec![journal, synchronous]
}

/// Whether our schema is whole, and what stands in it that this version does not carry out.
pub(super) fn schema(examined: &Examined) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.push(if examined.broken_triggers.is_empty() {
        Finding::ok("triggers", "INSERTs are checked and queued")
    } else {
        let found = format!(
            "missing or switched off: {}; what is written now is not checked, or not queued",
            examined.broken_triggers.join(", ")
        );
        let remedy = "make it again from the schema (`aftercommit migrate --dry-run` prints it), or enable it; then look for orphans";
        Finding::fail("triggers", found, remedy)
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
        findings.push(Finding::fail("orphans", found, remedy));
    } else {
        let found =
            format!("the newest {} are queued or have ended", plural(examined.orphans_among, "effect"));
        findings.push(Finding::ok("orphans", found));
    }
    if examined.unswept_claims > 0 {
        let found = format!(
            "{} ended more than a minute ago and nobody judged what became of their calls",
            plural(examined.unswept_claims, "lease")
        );
        findings.push(Finding::fail("leases", found, format!("start a worker: `{} work`", invocation())));
    } else {
        findings.push(Finding::ok("leases", "none ended without being swept"));
    }
    if !examined.write_backs.is_empty() {
        let found = format!(
            "on_outcome is set for {}, and this version calls no write-back",
            examined.write_backs.join(", ")
        );
        findings.push(Finding::warn(
            "on_outcome",
            found,
            "read `status` instead, until a version that has it",
        ));
    }
    findings.push(match examined.payload_limit {
        Some(bytes) => Finding::ok("payload_limit", plural(bytes, "byte")),
        None => {
            let found = "not set, or no number: the largest payload is not what anybody chose";
            Finding::warn("payload_limit", found, "write it into the table meta (1048576 is the default)")
        }
    });
    findings
}

/// How far this machine's clock is from the database's.
pub(super) fn clock(clocks: &Clocks) -> Finding {
    let (ahead, difference) = if clocks.here > clocks.there {
        ("ahead of", clocks.here.since(clocks.there))
    } else {
        // The database answered after we looked at our own clock.
        ("behind", clocks.there.since(clocks.here).saturating_sub(clocks.took))
    };
    if difference > CLOCKS_MAX {
        let found = format!("this machine's is {} {ahead} the database's", span(difference));
        return Finding::warn(
            "clock",
            found,
            "let both follow a time server; leases and windows go by the database's",
        );
    }
    Finding::ok(
        "clock",
        format!("this machine's and the database's differ by less than {}", span(CLOCKS_MAX)),
    )
}

/// The workers.
pub(super) fn fleet(workers: &[WorkerInfo], version: &str) -> Vec<Finding> {
    let live: Vec<&WorkerInfo> = workers.iter().filter(|worker| worker.live).collect();
    if live.is_empty() {
        let remedy = format!("start one: `{} work`", invocation());
        return vec![Finding::warn("workers", "no worker is alive", remedy)];
    }
    let count = plural(u64::try_from(live.len()).unwrap_or(0), "live worker");
    let others: Vec<&str> =
        live.iter().map(|worker| worker.version.as_str()).filter(|other| *other != version).collect();
    if others.is_empty() {
        return vec![Finding::ok("workers", format!("{count}, version {version}"))];
    }
    let found =
        format!("{count}; {} of another version than this program's {version}: {}", others.len(), others[0]);
    vec![Finding::warn("workers", found, "finish the deployment")]
}

/// Every downstream: is it served, is its work late, does it need a person?
pub(super) fn downstreams(downstreams: &[DownstreamInfo], now: Timestamp) -> Vec<Finding> {
    if downstreams.is_empty() {
        let remedy = format!("run `{} migrate` with a configuration, or start a worker", invocation());
        return vec![Finding::warn("downstreams", "none is known", remedy)];
    }
    downstreams.iter().flat_map(|info| downstream(info, now)).collect()
}

fn downstream(info: &DownstreamInfo, now: Timestamp) -> Vec<Finding> {
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
        findings.push(Finding::fail(CHECK, unserved, remedy));
    } else if info.workers == 0 {
        let remedy = "start one before effects are written, or ignore a name that is used no more";
        findings.push(Finding::warn(
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
        findings.push(Finding::warn(CHECK, found, remedy));
    } else {
        let oldest = age.map_or_else(String::new, |age| format!(", the oldest due for {}", span(age)));
        let served = plural(info.workers, "live worker");
        findings.push(Finding::ok(CHECK, format!("{name}: {served}, {} pending{oldest}", info.pending)));
    }
    if info.in_doubt > 0 {
        let found = format!("{name}: {} in doubt", plural(info.in_doubt, "effect"));
        let remedy = format!("decide: `{} effects list --state in_doubt --downstream {name}`", invocation());
        findings.push(Finding::warn("in doubt", found, remedy));
    }
    findings
}

#[cfg(test)]
mod tests {
    use aftercommit::store::Session;

    use super::*;
    use crate::cli::doctor::Level;

    fn well() -> PostgresFacts {
        PostgresFacts {
            encoding: "UTF8".to_owned(),
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            connections_max: 97,
            connections_used: 12,
            login: "worker".to_owned(),
            sees_sessions: true,
            ..PostgresFacts::default()
        }
    }

    fn worst(facts: &PostgresFacts) -> Vec<(&'static str, Level)> {
        let findings = postgres(facts, 2, 10);
        let bad = findings.iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| {
            assert!(finding.remedy.is_some(), "{finding:?} says what to do");
            (finding.check, finding.level)
        })
        .collect()
    }

    #[test]
    fn a_server_that_is_well_gives_no_warning() {
        assert_eq!(worst(&well()), []);
    }

    /// T1 and DB cases: what loses a claim in a crash is a failure.
    #[test]
    fn what_loses_claims_fails() {
        assert_eq!(worst(&PostgresFacts { fsync: false, ..well() }), [("fsync", Level::Fail)]);
        assert_eq!(worst(&PostgresFacts { standby: true, ..well() }), [("standby", Level::Fail)]);
        let commit = PostgresFacts { synchronous_commit: "off".to_owned(), ..well() };
        assert_eq!(worst(&commit), [("synchronous_commit", Level::Warn)]);
        let file = SqliteFacts { journal_mode: "delete".to_owned(), synchronous: 1 };
        assert!(sqlite(&file).iter().all(|finding| finding.level == Level::Fail));
    }

    /// T26.
    #[test]
    fn a_session_that_holds_a_transaction_open_is_named() {
        let open = Duration::from_secs(900);
        let idle = Session { pid: 4711, who: "reports (cron)".to_owned(), open };
        let facts = PostgresFacts { idle_in_transaction: vec![idle], ..well() };
        let finding = &sessions(&facts)[0];
        assert!(finding.found.contains("reports (cron)") && finding.found.contains("15 min"), "{finding:?}");
        assert!(finding.remedy.as_deref().unwrap().contains("pg_terminate_backend(4711)"));
        let held = PostgresFacts {
            horizon_age: 5_000_000,
            horizon_holder: "the replication slot s".to_owned(),
            ..well()
        };
        assert!(sessions(&held)[0].found.contains("replication slot s"));
    }

    #[test]
    fn connections_are_counted_against_the_fleet() {
        assert_eq!(worst(&PostgresFacts { connections_used: 90, ..well() }), [("connections", Level::Warn)]);
        assert_eq!(worst(&PostgresFacts { connections_max: 20, ..well() }), [("connections", Level::Warn)]);
    }

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
    fn clocks_that_differ_are_told_and_the_asking_is_not_held_against_them() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let took = Duration::from_secs(5);
        assert_eq!(clock(&Clocks { here: at(100), there: at(104), took }).level, Level::Ok);
        assert_eq!(clock(&Clocks { here: at(100), there: at(110), took }).level, Level::Warn);
        assert!(clock(&Clocks { here: at(100), there: at(90), took }).found.contains("10 s ahead of"));
    }
}
