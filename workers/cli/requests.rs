//! `requests`: what came in behind the guard and was answered. Never what it was answered with: that may hold anything.

use aftercommit::{
    clock::words::{relative, utc},
    store::{PAGE_MAX, RequestFilter, RequestInfo},
};
use clap::Args;

use super::{
    Context, Exit, Grid, data,
    json::{self, RequestJson},
    parse,
    people::People,
    table, talk,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Those first that are kept longest: where all are kept equally long, the newest.
Past EXPIRES an answer is kept while an effect of its request has not ended.

Examples:
  aftercommit requests
  aftercommit requests --scope tenant-7 --key 8e03978e-40d5-43e8-bc93
  aftercommit requests --limit 1000 --json")]
pub(crate) struct RequestsArgs {
    /// Only of this scope: the tenant or principal that the application guards by
    #[arg(long)]
    scope: Option<String>,
    /// Only with this Idempotency-Key
    #[arg(long)]
    key: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: u32,
}

/// Lists them.
pub(super) async fn run(context: &Context, args: &RequestsArgs) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let found = find(people.as_ref(), args).await?;
    if context.json() {
        for info in &found {
            json::print(&RequestJson::from(info))?;
        }
        return Ok(Exit::Ok);
    }
    if found.is_empty() {
        let narrowed = args.scope.is_some() || args.key.is_some();
        talk!("{}", if narrowed { "No such request is kept." } else { "No guarded request is kept here." });
        return Ok(Exit::Ok);
    }
    let now = people.now().await?;
    let mut grid = Grid::new(&["SCOPE", "KEY", "STATUS", "EFFECTS", "BEGAN", "EXPIRES"])
        .numbers(&[2, 3])
        .cut(&[0, 1])
        .below(&[5]);
    for info in &found {
        grid.row(vec![
            table::cell(&info.scope),
            table::cell(&info.key),
            table::cell(info.status),
            table::cell(info.effects),
            table::cell(utc(info.created_at)),
            table::cell(relative(info.expires_at, now)),
        ]);
    }
    data(grid)?;
    Ok(Exit::Ok)
}

/// A page is bounded; whoever asks for more gets more pages.
async fn find(people: &dyn People, args: &RequestsArgs) -> anyhow::Result<Vec<RequestInfo>> {
    let mut found: Vec<RequestInfo> = Vec::new();
    let mut before = None;
    loop {
        let left = args.limit.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
        let limit = left.min(PAGE_MAX);
        if limit == 0 {
            return Ok(found);
        }
        let (scope, key) = (args.scope.clone(), args.key.clone());
        let filter = RequestFilter { scope, key, expired: None, before, limit };
        let page = people.requests(&filter).await?;
        let full = page.len() == usize::try_from(limit).unwrap_or(usize::MAX);
        before = page.last().map(RequestInfo::place);
        found.extend(page);
        if !full {
            return Ok(found);
        }
    }
}
