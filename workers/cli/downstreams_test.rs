//! `downstreams test`: looks at a downstream from here, and, only when asked, sends it one thing that no effect stands for.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    IdempotencyKey,
    clock::{Clock as _, SystemClock},
    downstream::{Attempt, Closed, Gate, Served},
    effect::{Effect, EffectId},
    outcome::{Outcome, Verdict},
    visible::clean,
};
use clap::Args;
use serde_json::json;

use super::{Context, Exit, checks, data, endpoints, exit::fail, json as out, parse, talk};

/// Longer than any server that is well takes to greet; short enough to wait for.
const LOOK: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
#[command(after_help = "\
It connects, authenticates, and checks what can be seen of the contract. It
sends nothing that has an effect, unless --send says what; that goes out once,
under a key of its own, and no database is told.

Exit codes: 1 something fails, 2 it is not configured.

Examples:
  aftercommit downstreams test orders
  aftercommit downstreams test mail --send @mail.json --target me@example.com")]
pub(crate) struct TestArgs {
    /// The downstream
    name: String,
    /// Send this payload, once: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    send: Option<String>,
    /// With --send: a named operation [default: the default one]
    #[arg(long, value_name = "NAME", requires = "send")]
    operation: Option<String>,
    /// With --send: path, address, routing key, subject, stream or endpoint
    #[arg(long, requires = "send")]
    target: Option<String>,
}

/// Looks, and sends where that was asked for.
pub(super) async fn run(context: &Context, args: &TestArgs) -> anyhow::Result<Exit> {
    let settings = context.settings()?;
    let served = settings
        .serve(Some(std::slice::from_ref(&args.name)))
        .map_err(|problem| fail(Exit::Usage, problem.to_string()))?;
    let Some(served) = served.first() else {
        return Err(fail(Exit::Usage, format!("downstream {} is not configured", args.name)));
    };
    if let Some(directory) = served.downstream.directory() {
        let (_seen, rows) = endpoints::rows(&*context.open().await?, &args.name).await?;
        directory.put_once(rows);
    }
    let Some(payload) = &args.send else {
        let checks = served.downstream.check(LOOK).await;
        return checks::print(context, &checks);
    };
    let payload = parse::text("--send", payload)?;
    if serde_json::from_str::<serde::de::IgnoredAny>(&payload).is_err() {
        return Err(fail(Exit::Usage, "--send is no JSON"));
    }
    send(context, served, args, payload).await
}

/// One attempt, as a worker would make it, of an effect that no database has.
async fn send(context: &Context, served: &Served, args: &TestArgs, payload: String) -> anyhow::Result<Exit> {
    let Some(terms) = served.terms_of(args.operation.as_deref()) else {
        let name = args.operation.as_deref().unwrap_or_default();
        return Err(fail(Exit::Usage, format!("downstream {} has no operation {name}", args.name)));
    };
    let key = format!("test-{}", IdempotencyKey::random());
    let effect = Effect {
        operation: args.operation.clone(),
        payload: Some(payload),
        target: args.target.clone(),
        ..Effect::new(EffectId::new(0), Arc::clone(&served.name), key.clone(), SystemClock.wall())
    };
    let key = format!("{}{key}", served.key_prefix);
    if let Some(why) = terms.contract.key.refuses(&key) {
        return Err(fail(Exit::Failure, format!("not sent: {why}")));
    }
    talk!("Sending it once, under the key {key} …");
    let attempt = Attempt {
        effect: Arc::new(effect),
        key: key.clone(),
        number: 1,
        timeout: terms.timeout,
        gate: Arc::new(Open),
    };
    print(context, &key, &served.downstream.deliver(&attempt).await)
}

fn print(context: &Context, key: &str, outcome: &Outcome) -> anyhow::Result<Exit> {
    let verdict = outcome.verdict();
    if context.json() {
        out::print(&json!({
            "idempotency_key": key,
            "outcome": verdict.as_str(),
            "phase": outcome.phase.as_str(),
            "response_status": outcome.status(),
            "reason": outcome.stored_reason(),
        }))?;
    } else {
        let word = verdict.as_str().replace('_', " ");
        let why = outcome.stored_reason();
        data(if why.is_empty() { word } else { format!("{word}: {}", clean(&why)) })?;
    }
    Ok(match verdict {
        Verdict::Applied => Exit::Ok,
        Verdict::Rejected | Verdict::NotApplied | Verdict::Unknown => Exit::Failure,
    })
}

/// Nobody else may send this: it stands in no database.
struct Open;

impl Gate for Open {
    fn may_begin(&self) -> Result<(), Closed> {
        Ok(())
    }
}
