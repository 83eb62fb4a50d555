//! `effects watch`: a live list on a terminal, a line per change elsewhere. It polls: what it shows is what the database
//! said a moment ago.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use aftercommit::{
    clock::{Clock as _, SystemClock, words::utc},
    effect::EffectId,
    store::Status,
    visible::clean,
};
use clap::Args;

use super::list::{self, Which};
use crate::cli::{
    Context, Exit, data,
    json::{self, EffectJson},
    output::on_terminal,
    parse,
    people::People,
    table,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit effects watch
  aftercommit effects watch --downstream payments --for 30s
  aftercommit effects watch --json --for 10s | jq -r '[.id, .state] | @tsv'")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    which: Which,
    /// Stop after this long [default: until Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse::duration)]
    length: Option<Duration>,
    /// How often the database is asked
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse::duration)]
    every: Duration,
}

/// What was printed of an effect, so that only changes are printed again.
type Seen = HashMap<EffectId, (&'static str, u32, Option<String>)>;

/// Watches them.
pub(super) async fn run(context: &Context, args: &WatchArgs) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let clock = SystemClock;
    let end = args.length.map(|length| clock.boot().plus(length));
    let every = args.every.max(Duration::from_millis(50));
    let live = on_terminal() && !context.json();
    let mut seen = Seen::new();
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        if live {
            draw(people.as_ref(), args).await?;
        } else {
            changes(context, people.as_ref(), args, &mut seen).await?;
        }
        let pause = match end {
            Some(end) => clock.boot().until(end).min(every),
            None => every,
        };
        if pause.is_zero() {
            return Ok(Exit::Ok);
        }
        tokio::select! {
            _ = &mut interrupted => return Ok(Exit::Ok),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Draws the list from the top of the screen. As many lines as the terminal has, so that it never scrolls.
async fn draw(people: &dyn People, args: &WatchArgs) -> anyhow::Result<()> {
    let mut filter = args.which.filter(people, None).await?;
    let height = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_row);
    // A terminal that does not know its height says 0.
    let height = if height == 0 { 24 } else { height };
    filter.limit = filter.limit.min(u32::from(height.saturating_sub(5)).max(1));
    let effects = people.effects(&filter).await?.effects;
    let now = people.now().await?;
    let mut text = String::from("\x1b[H\x1b[J");
    writeln!(text, "aftercommit effects, {} (Ctrl-C ends this)\n", utc(now))?;
    if effects.is_empty() {
        text.push_str("No effects yet.");
    } else {
        let grid = list::grid(&effects, now).to_string();
        let lines: Vec<&str> = grid.lines().take(usize::from(height.saturating_sub(3)).max(2)).collect();
        text.push_str(&lines.join("\n"));
    }
    data(text)?;
    Ok(())
}

/// Prints a line for every effect that changed since the last look, oldest first.
async fn changes(
    context: &Context,
    people: &dyn People,
    args: &WatchArgs,
    seen: &mut Seen,
) -> anyhow::Result<()> {
    let effects = people.effects(&args.which.filter(people, None).await?).await?.effects;
    let now = people.now().await?;
    for effect in effects.iter().rev() {
        let mark = (effect.state.as_str(), effect.attempts, effect.held_by.clone());
        if seen.insert(effect.id, mark.clone()) == Some(mark) {
            continue;
        }
        if context.json() {
            json::print(&EffectJson::from(effect))?;
        } else {
            data(format!("{} {}", utc(now), line(effect)))?;
        }
    }
    Ok(())
}

fn line(effect: &Status) -> String {
    let words = format!(
        "effect {} {} {} {} attempts={}",
        effect.id,
        list::place(effect),
        effect.idempotency_key,
        table::state_words(effect.state, effect.held_by.as_deref()),
        effect.attempts
    );
    clean(&words).into_owned()
}
