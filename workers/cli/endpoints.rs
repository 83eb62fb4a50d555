//! `endpoints`: the many places of one downstream, what became of them, and a message to see whether one answers.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    IdempotencyKey,
    clock::{Timestamp, words::utc},
    downstream::{Attempt, Closed, Gate, endpoint::Endpoint},
    effect::{Effect, EffectId},
    outcome::Verdict,
    store::Database,
    visible::clean,
};
use clap::{Args, Subcommand};

use super::{
    Context, Exit, Grid, data,
    effects::actor,
    exit::fail,
    json::{self, EndpointJson},
    people::People,
    table, talk,
};

#[derive(Debug, Subcommand)]
pub(crate) enum EndpointsCommand {
    /// List the endpoints, where they are, and which are disabled
    #[command(after_help = "\
Of a URL only the host is shown: the rest may be all that keeps strangers out.

Examples:
  aftercommit endpoints list hooks
  aftercommit endpoints list hooks --json")]
    List(OfDownstream),
    /// Send nothing more to an endpoint: what is due there fails, unsent
    #[command(after_help = "\
Exit codes: 3 there is no such endpoint, 4 it is disabled already.

Example:
  aftercommit endpoints disable hooks acme --reason 'the customer left'")]
    Disable(Switch),
    /// Send to an endpoint again, and forget its failures
    #[command(after_help = "\
What failed meanwhile stays failed until it is retried. Exit codes: 3 there is
no such endpoint, 4 it is not disabled.

Examples:
  aftercommit endpoints enable hooks acme --reason 'they answer again'
  aftercommit effects retry --all --state failed --downstream hooks")]
    Enable(Switch),
    /// Send a signed test message, also to a disabled endpoint, and tell the answer
    #[command(after_help = "\
The message is {\"type\":\"aftercommit.test\"}; its webhook-id begins with test_.
It is no effect: nothing is retried, and nothing is written to the database.

Example:
  aftercommit endpoints test hooks acme")]
    Test(Test),
}

#[derive(Debug, Args)]
pub(crate) struct OfDownstream {
    /// The downstream
    downstream: String,
}

#[derive(Debug, Args)]
pub(crate) struct Switch {
    /// The downstream
    downstream: String,
    /// The endpoint
    name: String,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// The downstream
    downstream: String,
    /// The endpoint
    name: String,
    /// As this operation
    #[arg(long, value_name = "OPERATION")]
    operation: Option<String>,
}

/// `endpoints …`.
pub(super) async fn run(context: &Context, command: &EndpointsCommand) -> anyhow::Result<Exit> {
    match command {
        EndpointsCommand::List(args) => list(context, &args.downstream).await,
        EndpointsCommand::Disable(args) => switch(context, args, Some(&args.reason)).await,
        EndpointsCommand::Enable(args) => switch(context, args, None).await,
        EndpointsCommand::Test(args) => test(context, args).await,
    }
}

/// The rows of the database.
///
/// # Errors
///
/// When the database fails, or this login may not see where the endpoints are.
pub(super) async fn rows(
    store: &dyn Database,
    downstream: &str,
) -> anyhow::Result<(Timestamp, Vec<Endpoint>)> {
    store.endpoints(downstream).await.map_err(|problem| {
        if !problem.is_forbidden() {
            return problem.into();
        }
        fail(
            Exit::Failure,
            "this login may not see the endpoints in the database: their URLs may hold their owners' tokens. Ask somebody \
             whose login has the role aftercommit_operator; what a viewer may read is SELECT downstream, name, state, \
             disabled_at, disabled_reason, failing_since FROM aftercommit.endpoints",
        )
    })
}

/// The endpoints, wherever they stand: in this configuration, where the database is asked itself, and in the database.
async fn known(
    context: &Context,
    people: &dyn People,
    downstream: &str,
) -> anyhow::Result<Vec<EndpointJson>> {
    let here = context.remote()?.is_none() && context.configured()?;
    let configured = if here {
        context
            .settings()?
            .downstreams
            .get(downstream)
            .map(|settings| settings.endpoints())
            .unwrap_or_default()
    } else {
        Vec::new()
    };
    let mut known = people.endpoints(downstream).await?;
    for (name, host) in configured {
        match known.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                known.source = "configuration".to_owned();
                known.host = host;
            }
            None => known.push(EndpointJson::of(downstream, (&name, &host, "configuration"), None)),
        }
    }
    known.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(known)
}

async fn list(context: &Context, downstream: &str) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let all = known(context, people.as_ref(), downstream).await?;
    if context.json() {
        all.iter().try_for_each(json::print)?;
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        talk!("{} has no endpoints, neither in this configuration nor in the database.", clean(downstream));
        return Ok(Exit::Ok);
    }
    let mut grid = Grid::new(&["NAME", "HOST", "FROM", "STATE", "SINCE", "WHY"]).cut(&[0]).below(&[5]);
    for known in &all {
        let disabled = known.disabled();
        let (since, why) = match (&disabled, known.failing_since) {
            (Some(disabled), _) => (Some(disabled.since), disabled.reason.as_str()),
            (None, Some(since)) => (Some(since.0), "it has shown nothing but failures"),
            (None, None) => (None, ""),
        };
        grid.row(vec![
            table::cell(&known.name),
            table::cell(&known.host),
            table::cell(&known.source),
            table::cell(&known.state),
            table::maybe(since.map(utc)),
            table::cell(why),
        ]);
    }
    data(grid)?;
    Ok(Exit::Ok)
}

async fn switch(context: &Context, args: &Switch, disable: Option<&str>) -> anyhow::Result<Exit> {
    let Switch { downstream, name, reason } = args;
    let people = context.people().await?;
    if !known(context, people.as_ref(), downstream).await?.iter().any(|known| known.name == *name) {
        let command = format!("{} endpoints list {downstream}", context.invocation());
        return Err(fail(
            Exit::NotFound,
            format!("{downstream} has no endpoint {name}; `{command}` shows what there is"),
        ));
    }
    let actor = actor(Some(reason.clone()));
    let changed = people.switch_endpoint(downstream, name, disable, &actor).await?;
    let what = if disable.is_some() { "disabled" } else { "enabled" };
    if !changed {
        return Err(fail(Exit::Forbidden, format!("{name} is {what} already")));
    }
    data(format!("{} of {} is {what}.", clean(name), clean(downstream)))?;
    Ok(Exit::Ok)
}

/// Nothing holds a test back.
struct Open;

impl Gate for Open {
    fn may_begin(&self) -> Result<(), Closed> {
        Ok(())
    }
}

async fn test(context: &Context, args: &Test) -> anyhow::Result<Exit> {
    context.refuse_server("`endpoints test` sends from here, with a configuration")?;
    let Test { downstream, name, operation } = args;
    let settings = context.settings()?;
    let served = settings.serve(Some(std::slice::from_ref(downstream)));
    let served = served.map_err(|problem| fail(Exit::Usage, problem.to_string()))?.remove(0);
    let Some(directory) = served.downstream.directory() else {
        return Err(fail(
            Exit::Usage,
            format!("{downstream} has no endpoints: it is of kind {}", served.kind),
        ));
    };
    let store = context.open().await?;
    let (now, rows) = rows(&*store, downstream).await?;
    // Whoever tests one that is disabled wants to know whether to enable it.
    let rows = rows.into_iter().map(|row| Endpoint { disabled: None, ..row }).collect();
    directory.put_once(rows);
    let key = format!("{}test_{}", served.key_prefix, IdempotencyKey::random());
    let effect = Effect {
        operation: operation.clone(),
        payload: Some(format!(r#"{{"type":"aftercommit.test","timestamp":"{now}","data":{{}}}}"#)),
        target: Some(name.clone()),
        ..Effect::new(EffectId::new(0), Arc::clone(&served.name), key.clone(), now)
    };
    let timeout =
        served.terms_of(operation.as_deref()).map_or(Duration::from_secs(20), |terms| terms.timeout);
    let attempt = Attempt { effect: Arc::new(effect), key, number: 1, timeout, gate: Arc::new(Open) };
    let outcome = served.downstream.deliver(&attempt).await;
    let status = outcome.status().map(|status| format!("HTTP {status}")).unwrap_or_default();
    if outcome.verdict() == Verdict::Applied {
        data(format!("{} took the test message: {status}.", clean(name)))?;
        return Ok(Exit::Ok);
    }
    Err(fail(Exit::Failure, format!("{} did not take the test message: {}", clean(name), outcome.reason)))
}
