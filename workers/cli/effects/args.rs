//! What a person's verbs take.

use aftercommit::effect::EffectId;
use clap::{Args, ValueEnum};

use super::bulk::Many;
use crate::cli::parse;

/// Which effects: some by number, or all that fit.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Chosen {
    /// The effects' numbers
    #[arg(required_unless_present = "all", value_name = "ID", value_parser = parse::effect_id)]
    pub(super) ids: Vec<EffectId>,
    #[command(flatten)]
    pub(super) many: Many,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
}

impl Chosen {
    /// The effects, each once, in the order given.
    pub(super) fn ids(&self) -> Vec<EffectId> {
        let mut ids: Vec<EffectId> = Vec::with_capacity(self.ids.len());
        for &id in &self.ids {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

/// Which effects, and why.
#[derive(Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects retry 17
  aftercommit effects retry 17 18 --reason 'the API key is valid again'
  aftercommit effects retry --all --state failed --downstream mail --dry-run")]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
While the downstream certainly recognises the key, nothing is applied twice; a
resend that cannot be sent by then is in doubt again. Later, and where it
recognises no key, it may be applied twice: that is confirmed, with a reason.
Where you can, look there first, and use `effects resolve`.

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, 2 when each lacks a reason or --yes, else 4 (the state forbids it).

Examples:
  aftercommit effects resend 17 --reason 'asked the bank, they saw nothing'
  aftercommit effects resend 17 --reason 'a second mail does no harm' --yes
  aftercommit effects resend --all --state in_doubt --downstream mail")]
pub(crate) struct ResendArgs {
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects cancel 17
  aftercommit effects cancel 17 --reason 'the order was withdrawn'
  aftercommit effects cancel --all --state retrying --older-than 2d --yes")]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
applied      it becomes succeeded; --response stores what the downstream said
not-applied  it becomes failed; nothing is sent until `effects retry`

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects resolve 17 --as applied --reason 'charge ch_19 is there'
  aftercommit effects resolve 17 --as applied --reason 'it is there' \\
      --response '{\"id\":\"ch_19\"}'
  aftercommit effects resolve 17 --as not-applied --reason 'no such charge'
  aftercommit effects resolve --all --state in_doubt --downstream mail \\
      --as not-applied --reason 'the relay shows none of them'")]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    /// Why, for the audit: how you found out
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    /// What you found out
    #[arg(long = "as", value_enum)]
    pub(super) verdict: Found,
    /// What the downstream said, as JSON, @FILE or - (with --as applied)
    #[arg(long, value_name = "JSON")]
    pub(super) response: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Payload, body, headers and response go, and what the log quotes of the answer.
Key, state, times and metadata stay: the same request under the key is still
answered as this effect, another one refused. It cannot be sent again.

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Example:
  aftercommit effects redact 17 --reason 'erasure request 2026-118'")]
pub(crate) struct RedactArgs {
    /// The effects' numbers
    #[arg(required = true, value_name = "ID", value_parser = parse::effect_id)]
    pub(super) ids: Vec<EffectId>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The new effect sends the same request under a new key, which its downstream
takes for another request: what was applied is applied twice. The old one is
superseded for good. One that is in doubt is resolved with it (--as).

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects reissue 17 --reason 'the bank forgot the first one'
  aftercommit effects reissue 17 --as not-applied --reason 'not there' --yes
  aftercommit effects reissue --all --state failed --downstream mail \\
      --reason 'the relay stored its refusals'")]
pub(crate) struct ReissueArgs {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    /// What became of one that is in doubt
    #[arg(long = "as", value_enum)]
    pub(super) verdict: Option<Found>,
}

/// What a person found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Found {
    Applied,
    NotApplied,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_that_is_named_twice_is_handled_once() {
        let id = EffectId::new;
        let ids = vec![id(7), id(3), id(7)];
        assert_eq!(Chosen { ids, ..Chosen::default() }.ids(), [id(7), id(3)]);
    }
}
