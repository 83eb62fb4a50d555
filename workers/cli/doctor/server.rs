//! What the facts about a server, or a file's library, mean. Pure.

use aftercommit::{
    clock::words::span,
    store::{EngineFacts, Examined, PostgresFacts, SqliteFacts, WorkerInfo},
};

use super::Check;
use crate::cli::{context::invocation, output::plural};

/// So many transactions without vacuum begin to hurt tables that are rewritten all day.
const HORIZON_MAX: u64 = 1_000_000;

/// The server or the library. `each` is how many connections one worker opens at most.
pub(super) fn judge(examined: &Examined, workers: &[WorkerInfo], each: u32) -> Vec<Check> {
    let mut findings = match &examined.engine {
        EngineFacts::Postgres(facts) => {
            let live = workers.iter().filter(|worker| worker.live).count();
            postgres(facts, u32::try_from(live).unwrap_or(u32::MAX), each)
        }
        EngineFacts::Sqlite(facts) => sqlite(facts),
    };
    findings.insert(0, Check::ok("server", examined.server.clone()));
    findings
}

fn postgres(facts: &PostgresFacts, workers: u32, each: u32) -> Vec<Check> {
    let mut findings = vec![
        match facts.encoding.as_str() {
            "UTF8" => Check::ok("encoding", "UTF8"),
            other => {
                Check::fail("encoding", other, "create the database with ENCODING 'UTF8' TEMPLATE template0")
            }
        },
        if facts.standby {
            Check::fail(
                "standby",
                "this is a standby: it cannot be written",
                "name the primary in the database URL",
            )
        } else {
            Check::ok("standby", "this is the primary")
        },
        if facts.fsync {
            Check::ok("fsync", "on")
        } else {
            let found = "off: after a crash claims and outcomes are lost, and what was sent is sent again";
            Check::fail("fsync", found, "set fsync = on and restart the server")
        },
    ];
    if !facts.full_page_writes {
        let found = "off: a crash can tear pages";
        findings.push(Check::warn(
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
            Check::warn("synchronous_commit", found, "set it on for the application's role, unless it may lose orders")
        }
        word => Check::ok("synchronous_commit", word),
    });
    findings.push(connections(facts, workers, each));
    findings.push(if facts.missing_roles.is_empty() {
        Check::ok("roles", "aftercommit_app, _worker, _viewer and _operator are there")
    } else {
        let remedy = format!("run `{} migrate` with a login that may make roles", invocation());
        Check::warn("roles", format!("missing: {}", facts.missing_roles.join(", ")), remedy)
    });
    findings.push(if facts.superuser {
        let remedy = "give the worker a login of its own: CREATE ROLE … LOGIN IN ROLE aftercommit_worker";
        Check::warn("login", format!("{} is a superuser", facts.login), remedy)
    } else {
        Check::ok("login", facts.login.clone())
    });
    findings.extend(sessions(facts));
    findings
}

fn connections(facts: &PostgresFacts, workers: u32, each: u32) -> Check {
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
        return Check::warn("connections", found, remedy);
    }
    Check::ok("connections", found)
}

/// Who keeps vacuum from cleaning up, and locks from being released.
fn sessions(facts: &PostgresFacts) -> Vec<Check> {
    let mut findings: Vec<Check> = facts
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
            Check::warn("sessions", found, remedy)
        })
        .collect();
    if facts.horizon_age > HORIZON_MAX {
        let found = format!(
            "{} keeps what {} transactions left dead from being removed",
            facts.horizon_holder, facts.horizon_age
        );
        findings.push(Check::warn("vacuum horizon", found, "end it, or drop the slot that nobody reads"));
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
        findings.push(Check::ok("sessions", found));
    }
    findings
}

fn sqlite(facts: &SqliteFacts) -> Vec<Check> {
    let journal = if facts.journal_mode == "wal" {
        Check::ok("journal_mode", "wal")
    } else {
        let found = format!("{}: readers and the writer wait for each other", facts.journal_mode);
        Check::fail("journal_mode", found, "run PRAGMA journal_mode = wal on the file")
    };
    let synchronous = match facts.synchronous {
        2 | 3 => Check::ok("synchronous", "full for claims and settles"),
        other => {
            let found =
                format!("{other}: after a power cut claims are lost, and what was sent is sent again");
            Check::fail("synchronous", found, "use the program as it was released: it sets FULL")
        }
    };
    vec![journal, synchronous]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
}
