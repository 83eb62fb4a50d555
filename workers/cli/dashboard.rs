//! `aftercommit dashboard`: the pages and the API, served until it is told to stop.

use std::{net::SocketAddr, time::Duration};

use aftercommit::store::Options;
use aftercommit_dashboard::{Access, Dashboard, Role, Settings as DashboardSettings};
use aftercommit_workers::config::{self, Settings, Sources, masked_url};
use anyhow::Context as _;
use clap::Args;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Context, Exit, Signals,
    context::program,
    data,
    effects::who,
    fail,
    output::plural,
    sqlite_file, talk,
    work::{open_patiently, say_sources},
};

/// How long open requests may go on once it was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Without [dashboard] in the configuration it listens at 127.0.0.1:7799, and who
is at this machine may do everything. Anything else asks who comes: see `auth`
in what `aftercommit config init` prints. SIGTERM or Ctrl-C ends it once open
requests have their answers; a second one ends it at once.

Examples:
  aftercommit dashboard
  aftercommit dashboard --database sqlite:shop.db --read-only
  aftercommit dashboard --listen 127.0.0.1:0       # any free port")]
pub(crate) struct DashboardArgs {
    /// Listen here; port 0 takes any [default: dashboard.listen, else 127.0.0.1:7799]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Refuse every change, whoever asks
    #[arg(long)]
    read_only: bool,
}

impl DashboardArgs {
    /// As they lie over the configuration.
    fn overrides(&self) -> Vec<(String, String)> {
        let listen = self.listen.map(|listen| ("dashboard.listen".to_owned(), listen.to_string()));
        let read_only = self.read_only.then(|| ("dashboard.read_only".to_owned(), "true".to_owned()));
        listen.into_iter().chain(read_only).collect()
    }
}

/// What it runs with.
struct Run {
    url: String,
    options: Options,
    listen: SocketAddr,
    settings: DashboardSettings,
}

/// Serves it.
pub(super) async fn run(context: &Context, args: &DashboardArgs) -> anyhow::Result<Exit> {
    context.refuse_json("`dashboard` tells its addresses to a person")?;
    let Run { url, options, listen, settings } = prepare(context, args)?;
    let mut signals = Signals::listen()?;
    let listener = bind(listen).await?;
    let address = listener.local_addr()?;
    let Some(database) = open_patiently(&url, &options, &mut signals).await? else { return Ok(Exit::Ok) };
    greet(&url, address, &settings)?;
    let dashboard = aftercommit_dashboard::dashboard(database, settings);
    serve(dashboard, listener, &mut signals).await
}

fn prepare(context: &Context, args: &DashboardArgs) -> anyhow::Result<Run> {
    if context.configured()? {
        let settings = context.settings_over(args.overrides())?;
        say_sources(context, Some(&settings))?;
        let (url, options) = (settings.database.clone(), settings.options());
        return Ok(Run { url, options, listen: settings.dashboard.listen, settings: ready(&settings)? });
    }
    // Somebody looks at a database of which they have no configuration.
    let url = context.database_url()?;
    say_sources(context, None)?;
    let overrides = [("database".to_owned(), url.clone())].into_iter().chain(args.overrides()).collect();
    let sources = Sources { file: None, env: Vec::new(), overrides, dev: true };
    let settings = Settings::load_all(&sources).map_err(|problems| refused(&problems))?;
    let shown = DashboardSettings { environment: String::new(), ..ready(&settings)? };
    Ok(Run { url, options: Options::default(), listen: settings.dashboard.listen, settings: shown })
}

fn ready(settings: &Settings) -> anyhow::Result<DashboardSettings> {
    let mut ready = settings.dashboard().map_err(|problems| refused(&problems))?;
    ready.local = who();
    Ok(ready)
}

fn refused(problems: &[config::ConfigError]) -> anyhow::Error {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    fail(Exit::Usage, lines.join("\n"))
}

async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|problem| {
        let kind = problem.kind();
        let remedy = if kind == std::io::ErrorKind::AddrInUse {
            format!(
                "stop what has it, or take another with `{} dashboard --listen {}:0`",
                program(),
                host(listen)
            )
        } else if kind == std::io::ErrorKind::PermissionDenied {
            "ports below 1024 belong to root: take a higher one (--listen)".to_owned()
        } else {
            "correct dashboard.listen, or give --listen".to_owned()
        };
        fail(Exit::Failure, format!("{listen} cannot be listened at ({problem}): {remedy}"))
    })
}

fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

async fn serve(dashboard: Dashboard, listener: TcpListener, signals: &mut Signals) -> anyhow::Result<Exit> {
    let stop = CancellationToken::new();
    let mut task = JoinSet::new();
    let inner = stop.clone();
    task.spawn(async move { dashboard.serve(listener, inner, GRACE).await });
    loop {
        tokio::select! {
            done = task.join_next() => {
                let cut = done.context("the dashboard's task vanished")?.context("the dashboard ended in a panic")?;
                if cut > 0 {
                    let cut = plural(u64::try_from(cut).unwrap_or(0), "connection");
                    talk!("{cut} did not end within {} s and was cut off.", GRACE.as_secs());
                }
                return Ok(Exit::Ok);
            }
            signal = signals.next() => {
                if stop.is_cancelled() {
                    return Ok(Exit::Failure);
                }
                tracing::info!(signal, "stopping: open requests get their answers; a second signal stops at once");
                stop.cancel();
            }
        }
    }
}

fn greet(url: &str, address: SocketAddr, settings: &DashboardSettings) -> anyhow::Result<()> {
    let name = if address.ip().is_unspecified() {
        settings.hosts.first().cloned().unwrap_or_else(|| "localhost".to_owned())
    } else {
        host(address)
    };
    let root = format!("http://{name}:{}", address.port());
    let place = sqlite_file(url).map_or_else(|| masked_url(url), |path| path.display().to_string());
    let changes =
        if settings.read_only { "nothing can be changed (read_only)" } else { "everybody by their role" };
    data(format!(
        "\n  aftercommit {}  dashboard\n\n  \
         Pages     {root}/\n  \
         API       {root}/api/v1\n  \
         Health    {root}/healthz and {root}/readyz\n  \
         Metrics   {root}/metrics\n  \
         Database  {place}\n  \
         For       {}\n  \
         Changes   {changes}\n\n  \
         Ctrl-C ends it.\n",
        env!("CARGO_PKG_VERSION"),
        audience(&settings.access),
    ))?;
    if address.ip().is_unspecified() && settings.hosts.is_empty() {
        talk!("It answers when it is called localhost or 127.0.0.1: write dashboard.hosts for other names.");
    }
    Ok(())
}

/// Who is let in, in words.
fn audience(access: &Access) -> String {
    if access.is_empty() {
        return format!("whoever is at this machine, as {}", Role::Admin.as_str());
    }
    let count = |of: &[aftercommit_dashboard::Login], what: &str| {
        let n = u64::try_from(of.len()).unwrap_or(0);
        (n > 0).then(|| plural(n, what))
    };
    let proxy = access.proxy.as_ref().map(|proxy| {
        let from: Vec<String> = proxy.from.iter().map(ToString::to_string).collect();
        format!("whom the proxy at {} lets in", from.join(", "))
    });
    let parts: Vec<String> =
        [count(&access.tokens, "token"), count(&access.basic, "user"), proxy].into_iter().flatten().collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use aftercommit_dashboard::{Login, Secret};

    use super::*;

    #[test]
    fn it_says_for_whom_it_is() {
        assert_eq!(audience(&Access::default()), "whoever is at this machine, as admin");
        let login = || Login { name: "a".to_owned(), role: Role::Viewer, secret: Secret::new("x") };
        let access = Access { tokens: vec![login(), login()], basic: vec![login()], proxy: None };
        assert_eq!(audience(&access), "2 tokens, 1 user");
    }
}
