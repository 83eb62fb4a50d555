//! The configuration: one file, laid over with environment and flags, read into [`Settings`].
//!
//! Flags > environment > file > defaults. Unknown keys are errors, secrets are references, and every effective value is
//! kept with its source. Keys of things this version does not have are refused, never ignored.

mod answers;
mod broker;
mod check;
mod contract;
mod dashboard;
mod downstream;
mod error;
mod horizon;
mod init;
mod key;
mod kind;
mod operation;
mod pooler;
mod probe;
mod registration;
mod section;
mod show;
#[cfg(test)]
mod tests;
mod tree;
mod values;
mod worker;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use aftercommit::{
    downstream::{Served, endpoint::Endpoint},
    store::{Options, Pooler, RegisteredDownstream},
};

pub(crate) use answers::{AnswerRule, Answers, Marker, Predicate, Wants, is_header_name, is_pointer};
pub(crate) use broker::{Broker, host_port, secrets_of};
pub(crate) use contract::Written;
pub use dashboard::{Auth, Dashboard, Login, Proxy, Redact};
pub use downstream::DownstreamSettings;
pub(crate) use downstream::{Configured, Source};
pub use error::{ConfigError, Finding};
pub use init::init;
pub(crate) use key::{KeyFormat, KeyIn, KeyPlace};
pub(crate) use kind::Kind;
pub(crate) use operation::Operation;
pub(crate) use probe::{Sight, WrittenProbe};
pub use registration::registered;
pub(crate) use section::{Log, Section};
pub(crate) use tree::{Node, Value, parse as parse_toml};
pub use values::SecretRef;
pub(crate) use values::{Secrets, Setting, Size, quoted, show_duration};

use section::Effective;
pub use section::nearest;
pub use show::{Shown, masked_url};
use tree::{Origin, Table};
pub use worker::Worker;

/// Where the configuration is read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, found by the caller.
    pub file: Option<PathBuf>,
    /// The environment. Secrets by `{ env = … }` are taken from here too.
    pub env: Vec<(String, String)>,
    /// Flags: dotted key and value.
    pub overrides: Vec<(String, String)>,
    /// In `dev`, database and environment have defaults.
    pub dev: bool,
}

/// The effective configuration, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database's URL.
    pub database: String,
    /// The environment's name: written by `migrate`, compared at every connect.
    pub environment: String,
    /// What stands between us and the database.
    pub pooler: Pooler,
    /// How a worker runs.
    pub worker: Worker,
    /// How long things are kept.
    pub retention: Retention,
    /// How the dashboard runs.
    pub dashboard: Dashboard,
    /// The downstreams, by name.
    pub downstreams: BTreeMap<String, DownstreamSettings>,
    secrets: Secrets,
    effective: Vec<Effective>,
}

/// `[retention]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Attempt log and responses of finished effects.
    pub history: Duration,
    /// Payloads of finished effects.
    pub payloads: Duration,
    /// Answers of guarded requests.
    pub requests: Duration,
    /// Keys of finished effects.
    pub keys: Duration,
}

impl Retention {
    /// As the engine and `purge` take it.
    pub fn kept(&self) -> aftercommit::store::Retention {
        aftercommit::store::Retention {
            payloads: self.payloads,
            history: self.history,
            keys: self.keys,
            requests: self.requests,
        }
    }
}

impl Settings {
    /// Reads and validates the configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first thing that is wrong.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        Self::load_all(sources).map_err(|mut problems| problems.remove(0))
    }

    /// [`Self::load`] that goes on where something is wrong.
    ///
    /// # Errors
    ///
    /// Everything that is wrong and does not follow from something else that is; never empty.
    pub fn load_all(sources: &Sources) -> Result<Self, Vec<ConfigError>> {
        let table = merged(sources).map_err(|problem| vec![problem])?;
        let log = Log::default();
        let root = Section::root(&table, &log);
        part(&log, root.not_yet("source", "run one fleet per database"));
        let database =
            part(&log, given(&root, "database", sources.dev.then_some("sqlite:aftercommit-dev.db")));
        let environment = part(&log, given(&root, "environment", sources.dev.then_some("dev")));
        let pooler = part(&log, pooler::read(&root, sources));
        let worker = part(&log, root.child("worker").and_then(worker::read));
        let retention = part(&log, root.child("retention").and_then(retention));
        let dashboard = part(&log, root.child("dashboard").and_then(dashboard::read));
        let lease = worker.as_ref().map_or(worker::LEASE, |worker| worker.lease);
        let downstreams =
            part(&log, root.child("downstream")).map(|section| downstreams(&section, lease, &log));
        // What is missing is told only after a misspelt key that may be it.
        require(&root, "database", database.as_deref(), DATABASE_REMEDY);
        require(&root, "environment", environment.as_deref(), ENVIRONMENT_REMEDY);
        part(&log, root.finish());
        if let Some(downstreams) = &downstreams {
            part(&log, check::accounts(downstreams));
        }
        let effective = log.into_inner()?;
        let secrets = Secrets(sources.env.iter().cloned().collect());
        let nothing_is_wrong = "everything is there where nothing was noted as wrong";
        Ok(Self {
            database: database.expect(nothing_is_wrong),
            environment: environment.expect(nothing_is_wrong),
            pooler: pooler.expect(nothing_is_wrong),
            worker: worker.expect(nothing_is_wrong),
            retention: retention.expect(nothing_is_wrong),
            dashboard: dashboard.expect(nothing_is_wrong),
            downstreams: downstreams.expect(nothing_is_wrong),
            secrets,
            effective,
        })
    }

    /// Builds every downstream, or those of `names`: secrets resolved, clients ready.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a name is unknown, a secret cannot be read, or a client cannot be built.
    pub fn serve(&self, names: Option<&[String]>) -> Result<Vec<Served>, ConfigError> {
        self.serve_all(names).map_err(|mut problems| problems.remove(0))
    }

    /// [`Self::serve`] that goes on where something is wrong.
    ///
    /// # Errors
    ///
    /// One for each downstream that cannot be served; never empty.
    pub fn serve_all(&self, names: Option<&[String]>) -> Result<Vec<Served>, Vec<ConfigError>> {
        let wanted: Vec<Result<&DownstreamSettings, ConfigError>> = match names {
            None => self.downstreams.values().map(Ok).collect(),
            Some(names) => names
                .iter()
                .map(|name| self.downstreams.get(name).ok_or_else(|| self.unknown(name)))
                .collect(),
        };
        let mut problems = Vec::new();
        let mut served = Vec::new();
        for downstream in wanted {
            match downstream.and_then(|downstream| downstream.serve(&self.secrets)) {
                Ok(downstream) => served.push(downstream),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(served) } else { Err(problems) }
    }

    fn unknown(&self, name: &str) -> ConfigError {
        let known = || self.downstreams.keys().map(String::as_str);
        let hint = nearest(name, known()).map_or_else(
            || format!("configured: {}", known().collect::<Vec<_>>().join(", ")),
            |nearest| format!("did you mean `{nearest}`?"),
        );
        ConfigError::new(
            "the command line",
            format!("downstream {name}"),
            format!("is not configured; {hint}"),
        )
    }

    /// The endpoints of `downstream`, of the configuration and of the database's `rows`, that cannot be called from here, with the
    /// reason: a secret that cannot be read, a URL that may not be called. `None` where it has no endpoints by name.
    pub fn endpoint_problems(&self, downstream: &str, rows: &[Endpoint]) -> Option<Vec<(String, String)>> {
        self.downstreams.get(downstream)?.configured.endpoint_problems(&self.secrets, rows)
    }

    /// How to connect to the database.
    pub fn options(&self) -> Options {
        Options {
            environment: Some(self.environment.clone()),
            pooler: self.pooler.clone(),
            ..Options::default()
        }
    }

    /// What does not go through a pooler: migrations.
    pub fn direct(&self) -> &str {
        match &self.pooler {
            Pooler::None => &self.database,
            Pooler::Transaction { direct } => direct,
        }
    }

    /// Every downstream as `migrate` makes it known. Needs no secret.
    pub fn registered(&self) -> Vec<RegisteredDownstream> {
        self.downstreams.values().map(|downstream| downstream.registered(&self.secrets)).collect()
    }
}

fn merged(sources: &Sources) -> Result<Table, ConfigError> {
    let mut table = match &sources.file {
        None => Table::new(),
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError::new(&name, "the file", format!("cannot be read: {error}")))?;
            tree::parse(&name, &text)?
        }
    };
    let env = |variable: &str| Origin::Env(variable.into());
    if let Some((name, url)) =
        sources.env.iter().find(|(name, url)| name == "DATABASE_URL" && !url.is_empty())
    {
        tree::overlay(&mut table, &["database".to_owned()], url, &env(name))?;
    }
    // Sorted, so that a variable for a whole table comes before one for a key in it.
    let mut variables: Vec<_> = sources
        .env
        .iter()
        .filter_map(|(name, value)| name.strip_prefix("AFTERCOMMIT__").map(|path| (path, name, value)))
        .collect();
    variables.sort();
    for (path, name, value) in variables {
        let path: Vec<_> = path.split("__").map(str::to_ascii_lowercase).collect();
        tree::overlay(&mut table, &path, value, &env(name))?;
    }
    for (key, value) in &sources.overrides {
        let path: Vec<_> = key.split('.').map(str::to_owned).collect();
        tree::overlay(&mut table, &path, value, &Origin::Flag(key.as_str().into()))?;
    }
    Ok(table)
}

const DATABASE_REMEDY: &str =
    "is not set: write database = \"postgres://…\" or \"sqlite:shop.db\", or set DATABASE_URL";
const ENVIRONMENT_REMEDY: &str = "is not set: write environment = \"production\" (or what this is): it keeps a worker from the wrong database";

/// What was read; `None`, and a note, where it was wrong.
fn part<T>(log: &Log, read: Result<T, ConfigError>) -> Option<T> {
    read.map_err(|problem| log.problem(problem)).ok()
}

fn given(root: &Section<'_>, key: &str, default: Option<&str>) -> Result<String, ConfigError> {
    match default {
        Some(default) => root.get_or(key, default.to_owned()),
        None => Ok(root.get(key)?.unwrap_or_default()),
    }
}

/// Notes that `key` is missing.
fn require(root: &Section<'_>, key: &str, value: Option<&str>, remedy: &str) {
    if value.is_none_or(str::is_empty) {
        let mut problem = root.missing(key, remedy);
        if !root.has(key) && problem.key == key {
            problem.place = "the configuration".to_owned();
        }
        root.wrong(problem);
    }
}

fn downstreams(section: &Section<'_>, lease: Duration, log: &Log) -> BTreeMap<String, DownstreamSettings> {
    let mut downstreams = BTreeMap::new();
    for name in section.names() {
        let before = log.problems();
        let read = check_name(section, &name)
            .and_then(|()| section.child(&name))
            .and_then(|section| DownstreamSettings::read(&name, section, lease));
        match read {
            // Where something is wrong, what is judged by the rest could only mislead.
            Ok(_settings) if log.problems() > before => {}
            Ok(settings) => {
                downstreams.insert(name, settings);
            }
            Err(problem) => log.problem(problem),
        }
    }
    downstreams
}

fn retention(section: Section<'_>) -> Result<Retention, ConfigError> {
    // Shorter keys shorten the other defaults; what somebody wrote must not contradict them.
    let default = aftercommit::store::Retention::default();
    let keys = section.get_or("keys", default.keys)?;
    let retention = Retention {
        history: section.get_or("history", default.history.min(keys))?,
        payloads: section.get_or("payloads", default.payloads.min(keys))?,
        requests: section.get_or("requests", default.requests)?,
        keys,
    };
    retention.kept().validate().map_err(|(key, problem)| section.error(key, problem))?;
    section.finish()?;
    Ok(retention)
}

fn address(section: &Section<'_>, text: &str, example: &str) -> Result<std::net::SocketAddr, ConfigError> {
    text.parse().map_err(|_error| {
        section.error("listen", format!("must be an address with a port, such as \"{example}\""))
    })
}

fn check_name(section: &Section<'_>, name: &str) -> Result<(), ConfigError> {
    let valid = !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if valid {
        return Ok(());
    }
    Err(section.error(name, "a downstream's name has 1 to 63 letters, digits, '_', '-' and '.'"))
}
