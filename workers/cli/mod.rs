//! The command line: what may be said ([`Cli`]), and who carries it out (one module per noun).
//!
//! Data goes to stdout, talk to stderr. Every command ends in an [`exit::Exit`]; nothing here decides about effects.

mod bench;
mod checks;
mod config;
mod connect;
mod context;
mod dashboard;
mod doctor;
mod downstreams_test;
mod effects;
mod endpoints;
mod enqueue;
mod exit;
mod fleet;
mod hold;
mod journal;
mod json;
mod manual;
mod migrate;
mod output;
mod parse;
mod people;
mod place;
mod profiles;
mod purge;
mod remote;
mod requests;
mod serve;
mod source;
mod table;
mod work;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use connect::{Writer, sqlite as open_sqlite};
pub(crate) use context::{
    Context, DEV_DATABASE, open as open_database, program, quoted, sqlite_file, without_password,
};
pub(crate) use effects::who;
pub(crate) use exit::{Exit, fail};
pub(crate) use json::print as print_json;
pub(crate) use migrate::migrate;
pub(crate) use output::{data, plural, say, talk};
pub(crate) use table::{Grid, cell};
pub(crate) use work::{Signals, engine_config, worker_name};

use crate::telemetry::{self, Verbosity};

/// Side effects, after the commit, once.
///
/// A business transaction writes what is to happen outside as a row; workers carry it out after the commit, with one
/// idempotency key for its whole life. What cannot be known is parked in doubt for a person to decide.
#[derive(Debug, Parser)]
#[command(name = "aftercommit", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  aftercommit demo      see a worker killed between a call and its record
  aftercommit dev       a playground in one process, no configuration
  aftercommit config init > aftercommit.toml
  aftercommit migrate && aftercommit work
  aftercommit effects list --state in_doubt

Exit codes: 0 ok, 1 failure, 2 usage or configuration, 3 not found,
            4 the state forbids it, 5 partly done, 69 service unreachable.")]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that every command takes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Global {
    /// The configuration [default: AFTERCOMMIT_CONFIG, else ./aftercommit.toml]
    #[arg(
        long,
        global = true,
        env = "AFTERCOMMIT_CONFIG",
        hide_env = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub(crate) config: Option<PathBuf>,
    /// The database: postgres://… or sqlite:FILE [default: DATABASE_URL, else the configuration's]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) database: Option<String>,
    /// A dashboard to work through, instead of a database [default: AFTERCOMMIT_SERVER]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        conflicts_with = "database",
        help_heading = "Global options"
    )]
    pub(crate) server: Option<String>,
    /// The file that holds the token for it [default: AFTERCOMMIT_TOKEN, the token itself]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print data as JSON: one object, or one per line for lists
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// How log lines on stderr look [default: AFTERCOMMIT_LOG_FORMAT, else text on a terminal and JSON elsewhere]
    #[arg(
        long,
        global = true,
        env = "AFTERCOMMIT_LOG_FORMAT",
        hide_env = true,
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true,
        help_heading = "Global options"
    )]
    pub(crate) log_format: Option<telemetry::Format>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything in one process on SQLite, without configuration
    Dev(crate::demo::DevArgs),
    /// Kill a worker between a call and its record, and see what the downstreams saw
    Demo(crate::demo::DemoArgs),
    /// Create the schema or bring it up to date, and make the configured downstreams known
    Migrate(migrate::MigrateArgs),
    /// Look at configuration, database and fleet: what is well, what is not, what to do
    Doctor(doctor::DoctorArgs),
    /// Check, show or write a configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Look at the shipped contracts of well-known downstreams
    #[command(subcommand)]
    Profiles(profiles::ProfilesCommand),
    /// Run a worker until it is told to stop
    Work(work::WorkArgs),
    /// Serve the pages and the API until it is told to stop
    Dashboard(dashboard::DashboardArgs),
    /// Write one effect
    Enqueue(enqueue::EnqueueArgs),
    /// Look at effects, and decide what a machine must not
    #[command(subcommand)]
    Effects(effects::EffectsCommand),
    /// Look at downstreams
    #[command(subcommand)]
    Downstreams(fleet::DownstreamsCommand),
    /// Look at the endpoints of a downstream that has many, switch them, send one a test
    #[command(subcommand)]
    Endpoints(endpoints::EndpointsCommand),
    /// List the workers and what they serve
    #[command(after_help = "Example:\n  aftercommit workers")]
    Workers,
    /// List guarded requests that were answered: whose, when, with what status
    Requests(requests::RequestsArgs),
    /// Drop what was kept long enough, now and to the end
    Purge(purge::PurgeArgs),
    /// List who did what to which effect, newest first
    Audit(fleet::AuditArgs),
    /// Look at what stopped the fleet, and let it go on
    #[command(subcommand)]
    Hold(hold::HoldCommand),
    /// Measure this database and this machine
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print a shell's completions
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one page per command
    Man(manual::ManArgs),
}

impl Command {
    const fn verbosity(&self) -> Verbosity {
        match self {
            Self::Dev(_) | Self::Work(_) | Self::Dashboard(_) => Verbosity::Worker,
            Self::Demo(_)
            | Self::Migrate(_)
            | Self::Doctor(_)
            | Self::Config(_)
            | Self::Profiles(_)
            | Self::Enqueue(_)
            | Self::Effects(_)
            | Self::Downstreams(_)
            | Self::Endpoints(_)
            | Self::Workers
            | Self::Audit(_)
            | Self::Requests(_)
            | Self::Hold(_)
            | Self::Purge(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => Verbosity::Quiet,
        }
    }
}

impl Command {
    /// What works on the database itself, and so through no dashboard: what it is, as a sentence begins.
    const fn needs_the_database(&self) -> Option<&'static str> {
        match self {
            Self::Dev(_) => Some("the playground has a database of its own"),
            Self::Demo(_) => Some("the demo has a database of its own"),
            Self::Migrate(_) => Some("`migrate` changes the database itself"),
            Self::Doctor(_) => Some("`doctor` looks at the database itself"),
            Self::Work(_) => Some("a worker carries effects out from the database itself"),
            Self::Purge(_) => Some("`purge` drops rows of the database itself"),
            Self::Hold(_) => Some("`hold` compares the database itself with what it was"),
            Self::Bench(_) => Some("`bench` measures the database itself"),
            Self::Dashboard(_) => Some("`dashboard` is the server itself"),
            Self::Config(_)
            | Self::Profiles(_)
            | Self::Enqueue(_)
            | Self::Effects(_)
            | Self::Downstreams(_)
            | Self::Endpoints(_)
            | Self::Workers
            | Self::Requests(_)
            | Self::Audit(_)
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }
}

/// Reads the command line, runs it, and says what went wrong in a sentence or two.
pub(crate) fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|problem| problem.exit());
    telemetry::start(cli.command.verbosity(), cli.global.log_format);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(problem) => {
            talk!("aftercommit: the runtime could not be started: {problem}");
            return Exit::Failure.into();
        }
    };
    let result = runtime.block_on(run(cli));
    // Open calls and idle connections must not hold up the end: what is unsettled is the sweep's.
    runtime.shutdown_background();
    match result {
        Ok(exit) => exit.into(),
        Err(problem) => exit::report(&problem).into(),
    }
}

async fn run(cli: Cli) -> anyhow::Result<Exit> {
    let context = Context::new(cli.global);
    context.announce();
    if let Some(what) = cli.command.needs_the_database() {
        context.refuse_server(what)?;
    }
    match cli.command {
        Command::Dev(args) => crate::demo::dev(&context, args).await,
        Command::Demo(args) => crate::demo::demo(&context, args).await,
        Command::Migrate(args) => migrate::run(&context, &args).await,
        Command::Doctor(args) => doctor::run(&context, &args).await,
        Command::Config(command) => config::run(&context, &command),
        Command::Profiles(command) => profiles::run(&context, &command),
        Command::Work(args) => work::run(&context, &args).await,
        Command::Dashboard(args) => dashboard::run(&context, &args).await,
        Command::Enqueue(args) => enqueue::run(&context, args).await,
        Command::Effects(command) => effects::run(&context, command).await,
        Command::Downstreams(command) => fleet::downstreams(&context, &command).await,
        Command::Endpoints(command) => endpoints::run(&context, &command).await,
        Command::Workers => fleet::workers(&context).await,
        Command::Requests(args) => requests::run(&context, &args).await,
        Command::Purge(args) => purge::run(&context, &args).await,
        Command::Audit(args) => fleet::audit(&context, &args).await,
        Command::Hold(command) => hold::run(&context, &command).await,
        Command::Bench(command) => bench::run(&context, command).await,
        Command::Completions(args) => manual::completions(&context, &args),
        Command::Man(args) => manual::man(&context, &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            if command.get_subcommands().next().is_none() {
                let help = command.get_after_help().unwrap_or_default().to_string();
                assert!(help.contains("Example"), "{path} has no examples");
                for line in help.lines() {
                    assert!(line.chars().count() <= 80, "{path}: too wide for a terminal: {line}");
                }
            }
            for sub in command.get_subcommands() {
                check(sub, &path);
            }
        }
        check(&Cli::command(), "");
    }

    #[test]
    fn global_flags_stand_before_or_after_the_command() {
        for words in [
            ["aftercommit", "--json", "effects", "list"],
            ["aftercommit", "effects", "--json", "list"],
            ["aftercommit", "effects", "list", "--json"],
        ] {
            assert!(Cli::try_parse_from(words).unwrap().global.json, "{words:?}");
        }
    }
}
