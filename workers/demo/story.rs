//! `aftercommit demo`: the story, told as it happens.

use aftercommit::{
    clock::{Clock as _, SystemClock},
    state::State,
    store::Status,
};
use clap::Args;
use serde_json::json;

use super::{
    act::{catch_between, effects, recorded, settled, work_until},
    figures::{self, Row},
    orders::{self, ORDERS},
    stage::{MARGIN, Stage},
};
use crate::cli::{Context, Exit, data, plural, print_json, program, quoted, talk};

/// The application whose answer never arrives: late enough that others are done, early enough that others wait.
const FATAL: usize = 4;

#[derive(Debug, Args)]
#[command(after_help = "\
It needs no configuration, takes about 15 seconds, and leaves nothing behind
but a temporary folder, whose path it prints.

Examples:
  aftercommit demo
  aftercommit demo --json | jq .downstreams")]
pub(crate) struct DemoArgs {}

/// Tells it. Ends with success only if the figures are right.
pub(crate) async fn run(context: &Context, _args: DemoArgs) -> anyhow::Result<Exit> {
    let start = SystemClock.boot();
    let teller = Teller { json: context.json() };
    let mut stage = Stage::build().await?;
    teller.say("aftercommit demo: what happens when a worker dies between a call and its record\n")?;
    let mut rows = first_act(&teller, &mut stage).await?;
    let (fax, doubt) = second_act(&teller, &mut stage).await?;
    rows.push(fax);
    let effects = u64::try_from(ORDERS).unwrap_or(0);
    let mut wrong: Vec<String> =
        rows[..2].iter().flat_map(|row| figures::wrong_with_keys(row, effects)).collect();
    wrong.extend(figures::wrong_without_keys(&rows[2], effects));
    let seconds = (SystemClock.boot() - start).as_secs_f64();
    if context.json() {
        print_json(&json!({
            "ok": wrong.is_empty(),
            "downstreams": rows,
            "wrong": wrong,
            "in_doubt": doubt.as_ref().map(|effect| effect.id),
            "resolve": doubt.as_ref().map(|effect| resolve_command(&stage, effect)),
            "folder": stage.folder,
            "seconds": seconds,
        }))?;
    } else if wrong.is_empty() {
        teller.say(&format!(
            "\nAll figures are right ({seconds:.0} s). The files stay in\n  {}",
            stage.folder.display()
        ))?;
    }
    if wrong.is_empty() {
        return Ok(Exit::Ok);
    }
    talk!("\nSomething is wrong; this should never be seen:");
    for line in &wrong {
        talk!("  {line}");
    }
    talk!("The database, the configuration and the workers' log are in {}.", stage.folder.display());
    Ok(Exit::Failure)
}

/// Downstreams that honour keys: everything is applied once, without anybody's help.
async fn first_act(teller: &Teller, stage: &mut Stage) -> anyhow::Result<Vec<Row>> {
    orders::with_charges(&mut stage.application).await?;
    teller.say(
        "1. Downstreams that honour an Idempotency-Key\n\n   \
         Ten orders are written, each with a charge and a receipt in the same SQL\n   \
         transaction. A worker starts to carry them out.",
    )?;
    let worker = catch_between(stage, &stage.payments, FATAL).await?;
    let pid = worker.pid();
    worker.kill().await?;
    let open = effects(stage.database.as_ref(), "payments", State::InFlight).await?.len();
    teller.say(&format!(
        "   The payment processor charges a card; before its answer can be recorded,\n   \
         kill -9 {pid}. The database shows {} in flight, and cannot know what\n   \
         became of them.\n   \
         A second worker starts, waits for the lease to end, and asks again with the\n   \
         same keys …",
        plural(u64::try_from(open).unwrap_or(0), "charge")
    ))?;
    let database = stage.database.clone();
    work_until(stage, "the end of every charge and receipt", || {
        settled(database.as_ref(), &["payments", "receipts"])
    })
    .await?;
    let rows = vec![
        figures::row(stage.database.as_ref(), "payments", &stage.payments).await?,
        figures::row(stage.database.as_ref(), "receipts", &stage.receipts).await?,
    ];
    teller.say(&format!("\n{}\n", figures::table(&rows)))?;
    let again = rows[0].seen.calls.saturating_sub(rows[0].seen.applications);
    teller.say(&format!(
        "   Calls beyond applications were repetitions ({again} at the processor): it\n   \
         recognised the key and answered as before. No card was charged twice.\n"
    ))?;
    Ok(rows)
}

/// A downstream that cannot deduplicate: one effect is in doubt, and nothing was sent twice.
async fn second_act(teller: &Teller, stage: &mut Stage) -> anyhow::Result<(Row, Option<Status>)> {
    orders::with_faxes(&mut stage.application).await?;
    teller.say(
        "2. A downstream that cannot deduplicate\n\n   \
         Ten more orders, each with a fax to the warehouse. The fax gateway knows no\n   \
         keys: whatever is sent again is printed again.",
    )?;
    let worker = catch_between(stage, &stage.fax, FATAL).await?;
    recorded(stage, "fax", FATAL - 1).await?;
    let pid = worker.pid();
    worker.kill().await?;
    teller.say(&format!(
        "   The gateway prints a fax; before its answer can be recorded, kill -9 {pid}.\n   \
         A second worker starts …"
    ))?;
    let database = stage.database.clone();
    work_until(stage, "the end of every fax", || settled(database.as_ref(), &["fax"])).await?;
    let row = figures::row(stage.database.as_ref(), "fax", &stage.fax).await?;
    teller.say(&format!("\n{}\n", figures::table(std::slice::from_ref(&row))))?;
    let doubt = effects(stage.database.as_ref(), "fax", State::InDoubt).await?.into_iter().next();
    // Until lease and margin are over the request may still be travelling, and a person's word would be refused.
    tokio::time::sleep(MARGIN).await;
    if let Some(effect) = &doubt {
        teller.say(&format!(
            "   Nine were sent; effect {} ({}) is in doubt: it may have been\n   \
             printed, and sending it again might print it twice. So nothing is sent, and a\n   \
             person decides. Having looked at the printer, say:\n\n{}",
            effect.id,
            effect.idempotency_key,
            resolve_command(stage, effect)
        ))?;
    }
    Ok((row, doubt))
}

/// The command that ends the doubt, as it can be copied.
fn resolve_command(stage: &Stage, effect: &Status) -> String {
    format!(
        "{} --config {} \\\n  effects resolve {} --as applied --reason 'it lies in the tray'",
        program(),
        quoted(&stage.config().display().to_string()),
        effect.id
    )
}

/// Tells the story on stdout, or on stderr where stdout is for JSON.
struct Teller {
    json: bool,
}

impl Teller {
    fn say(&self, text: &str) -> anyhow::Result<()> {
        if self.json {
            talk!("{text}");
        } else {
            data(text)?;
        }
        Ok(())
    }
}
