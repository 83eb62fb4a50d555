//! A step gate: stops the whole server process (SIGSTOP, by itself) right after a named step of a guarded request.
//!
//! sqlx tells `tracing` of every statement after it ran, and its SQLite thread enters the caller's span for every command. Both
//! happen on the way to the next statement, so that nothing has run in between. PostgreSQL's BEGIN is told to nobody: for it
//! the next statement is held on the wire ([`super::hold`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::layer::{Context, Layer};

use super::server::Journal;

/// The steps of a guarded request, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Step {
    BeforeBegin,
    AfterBegin,
    AfterBeginRequest,
    AfterSavepoint,
    AfterOrder,
    AfterEffect,
    AfterHandler,
    InAnswerBody,
    AfterFinish,
    AfterCommit,
    BeforeFirstByte,
}

impl Step {
    pub(super) const ALL: [Self; 11] = [
        Self::BeforeBegin,
        Self::AfterBegin,
        Self::AfterBeginRequest,
        Self::AfterSavepoint,
        Self::AfterOrder,
        Self::AfterEffect,
        Self::AfterHandler,
        Self::InAnswerBody,
        Self::AfterFinish,
        Self::AfterCommit,
        Self::BeforeFirstByte,
    ];

    /// Whether the request's transaction has committed.
    pub(super) fn has_committed(self) -> bool {
        self >= Self::AfterCommit
    }

    /// Whether its transaction is open.
    pub(super) fn is_inside(self) -> bool {
        self >= Self::AfterBegin && !self.has_committed()
    }

    /// Whether the handler has run, or begun to.
    pub(super) fn has_run(self) -> bool {
        self >= Self::AfterOrder
    }

    /// The step that a statement ends, on either database.
    fn of(statement: &str) -> Option<Self> {
        let says = |part: &str| statement.contains(part);
        if says("aftercommit.begin_request(") || says("insert into aftercommit_requests") {
            Some(Self::AfterBeginRequest)
        } else if says("aftercommit.finish_request(")
            || says("update aftercommit_requests set response_status")
        {
            Some(Self::AfterFinish)
        } else if says("insert into orders") {
            Some(Self::AfterOrder)
        } else if says("insert into aftercommit.effects")
            || says("aftercommit.enqueue(")
            || says("insert into aftercommit_effects")
        {
            Some(Self::AfterEffect)
        } else if statement.starts_with("savepoint aftercommit_request") {
            Some(Self::AfterSavepoint)
        } else if statement.starts_with("commit") {
            Some(Self::AfterCommit)
        } else {
            None
        }
    }
}

/// The look without the write lock, on SQLite: BEGIN IMMEDIATE is the command after it.
const LOOK: &str = "from aftercommit_requests as r";

/// Stops the process once.
pub(super) struct Gate {
    stop_after: Option<Step>,
    journal: Arc<Journal>,
    armed: AtomicBool,
    // Commands of the SQLite thread until BEGIN, or COMMIT, is over; 0: not counting.
    commands: AtomicU32,
}

impl Gate {
    pub(super) fn new(stop_after: Option<Step>, journal: Arc<Journal>) -> Self {
        Self { stop_after, journal, armed: AtomicBool::new(true), commands: AtomicU32::new(0) }
    }

    /// A request has got here. Returns after SIGCONT if this is where to stop.
    pub(super) fn reached(&self, step: Step) {
        if self.stop_after == Some(step) && self.armed.swap(false, Ordering::SeqCst) {
            self.journal.write(&["stopped", &format!("{step:?}")]);
            kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
            // The signal may take a moment to stop this thread.
            self.wait();
        } else if self.stop_after == Some(Step::AfterCommit) && step == Step::BeforeFirstByte {
            // SQLite's thread says that it has committed, and then gets to its stop.
            self.wait();
        }
    }

    /// Until the test says so, before its SIGCONT.
    fn wait(&self) {
        while !self.journal.may_go_on() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn ran(&self, statement: &str) {
        let counts = match self.stop_after {
            Some(Step::AfterBegin) => statement.contains(LOOK),
            Some(Step::AfterCommit) => Step::of(statement) == Some(Step::AfterFinish),
            _ => false,
        };
        if counts && is_sqlite_thread() {
            // The command that ran this statement, and the next one.
            self.commands.store(2, Ordering::SeqCst);
        }
        if let Some(step) = Step::of(statement) {
            self.reached(step);
        }
    }
}

fn is_sqlite_thread() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("sqlx-sqlite-worker"))
}

/// The gate as a `tracing` layer.
pub(super) struct Statements(pub(super) Arc<Gate>);

impl<S: Subscriber> Layer<S> for Statements {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" {
            let mut text = Text::default();
            event.record(&mut text);
            let statement = if text.whole.is_empty() { text.summary } else { text.whole };
            let words: Vec<&str> = statement.split_whitespace().collect();
            self.0.ran(&words.join(" ").to_lowercase());
        }
    }

    fn on_exit(&self, _: &span::Id, _: Context<'_, S>) {
        let gate = &self.0;
        if is_sqlite_thread() && gate.commands.load(Ordering::SeqCst) > 0 {
            let left = gate.commands.fetch_sub(1, Ordering::SeqCst) - 1;
            if left == 0
                && let Some(step) = gate.stop_after
            {
                gate.reached(step);
            }
        }
    }
}

#[derive(Default)]
struct Text {
    summary: String,
    whole: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.whole),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
