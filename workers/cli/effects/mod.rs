//! `aftercommit effects`: list, show and watch them, and a person's verbs.

mod act;
mod args;
mod bulk;
mod list;
mod named;
mod recipients;
mod request;
mod several;
mod show;
mod watch;
mod ways;

use clap::Subcommand;

use super::{Context, Exit};

pub(super) use act::actor;
pub(crate) use act::who;
pub(super) use named::absent;

#[derive(Debug, Subcommand)]
pub(crate) enum EffectsCommand {
    /// List effects, newest first
    List(list::ListArgs),
    /// Show one effect, its attempts, and what follows
    Show(show::ShowArgs),
    /// Watch effects change
    Watch(watch::WatchArgs),
    /// Send a failed effect again, in a new history; a scheduled or retrying one becomes due now
    Retry(args::RetryArgs),
    /// Send an in-doubt effect once more with the same key: it may be applied twice
    Resend(args::ResendArgs),
    /// Call an effect off; in flight, that is a request
    Cancel(args::CancelArgs),
    /// Say whether an in-doubt effect was applied
    Resolve(args::ResolveArgs),
    /// Write a new effect with a new key in the place of one that has ended, or is in doubt
    Reissue(args::ReissueArgs),
    /// Drop the payload and the response of an effect that has ended; key and outcome stay
    Redact(args::RedactArgs),
}

/// Runs one of them.
pub(crate) async fn run(context: &Context, command: EffectsCommand) -> anyhow::Result<Exit> {
    match command {
        EffectsCommand::List(args) => list::run(context, &args).await,
        EffectsCommand::Show(args) => show::run(context, &args).await,
        EffectsCommand::Watch(args) => watch::run(context, &args).await,
        EffectsCommand::Retry(args) => act::retry(context, &args).await,
        EffectsCommand::Resend(args) => act::resend(context, &args).await,
        EffectsCommand::Cancel(args) => act::cancel(context, &args).await,
        EffectsCommand::Resolve(args) => act::resolve(context, &args).await,
        EffectsCommand::Reissue(args) => act::reissue(context, &args).await,
        EffectsCommand::Redact(args) => act::redact(context, &args).await,
    }
}
