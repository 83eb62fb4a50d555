//! Logs: to stderr, readable on a terminal and JSON lines otherwise, times in UTC. What is logged is chosen with
//! `AFTERCOMMIT_LOG`, else `RUST_LOG`. Payloads, responses and secrets are never logged, at any level: what the libraries
//! below us would say of them under `trace` is cut off here, whatever the filter asks for.

use std::io::{self, IsTerminal};

use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, filter::filter_fn, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// What a command logs unless the environment says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// A long-running process tells its story.
    Worker,
    /// A command for people speaks for itself: warnings only.
    Quiet,
}

impl Verbosity {
    const fn directives(self) -> &'static str {
        match self {
            Self::Worker => "info,sqlx=warn",
            Self::Quiet => "warn",
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging, in `format` or, where nobody chose one, as the reader of stderr needs it. An unreadable filter is said on
/// stderr and replaced by the default: a worker that does not start because of its log filter would be worse.
pub(crate) fn start(verbosity: Verbosity, format: Option<Format>) {
    let filter = filter(verbosity);
    let terminal = io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { Format::Text } else { Format::Json });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A second start in one process changes nothing: the first one's subscriber stays.
    match format {
        Format::Text => {
            let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let subscriber = builder.with_ansi(colours).with_target(false).finish();
            subscriber.with(filter_fn(is_ours_or_grave)).try_init().ok();
        }
        Format::Json => {
            let subscriber = builder.json().flatten_event(true).with_current_span(false).finish();
            subscriber.with(filter_fn(is_ours_or_grave)).try_init().ok();
        }
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let said = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(place, "panic: {said}");
    }));
}

/// Our own events, and others' from `warn` up: below that, HTTP and database libraries print headers, frames, statements and
/// what the server tells its clients. Nothing of the brokers' clients: `lapin` warns of a returned message by printing all of
/// it, body and headers, and what matters of theirs the kind says itself.
fn is_ours_or_grave(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let of_a_client = ["lapin", "async_nats", "redis"].iter().any(|client| target.starts_with(client));
    target.starts_with("aftercommit") || (*metadata.level() <= Level::WARN && !of_a_client)
}

fn filter(verbosity: Verbosity) -> EnvFilter {
    for name in ["AFTERCOMMIT_LOG", "RUST_LOG"] {
        let Ok(directives) = std::env::var(name) else { continue };
        if directives.is_empty() {
            continue;
        }
        match EnvFilter::try_new(&directives) {
            Ok(filter) => return filter,
            Err(problem) => crate::cli::talk!("{name} is no log filter ({problem}); using the default."),
        }
    }
    EnvFilter::new(verbosity.directives())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_library_warns_of_is_shown_but_never_a_returned_message() {
        let written = Written::default();
        let writer = written.clone();
        let builder =
            tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(move || writer.clone());
        let subscriber = builder.finish().with(filter_fn(is_ours_or_grave));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "lapin::returned_messages", "Server returned us a message: its body");
            tracing::warn!(target: "another_library", "something grave");
            tracing::debug!(target: "another_library", "something small");
            tracing::debug!(target: "aftercommit::engine", "something of ours");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("grave") && text.contains("ours"), "{text}");
        assert!(!text.contains("body") && !text.contains("small"), "{text}");
    }
}
