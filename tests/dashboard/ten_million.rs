//! Guarantee: people do not wait, however much there is. Ten million effects, every page, list, filter and look-up, over a socket:
//! by hand, `./tests/run --long ten-million`. What CI holds with fewer, without a clock, is in `store::search::explained`.

use std::{fs, net::SocketAddr, time::Duration};

use aftercommit::{
    clock::{Clock as _, SystemClock},
    store::{self, Options},
    verb::Actor,
};
use aftercommit_dashboard::Settings;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::process::Command;

use super::{Ask, Site, command};
use crate::{
    e2e::{processes::Process, servers::PostgresServer},
    store::search::filled::{DOWNSTREAMS, fill},
    support::{Chance, Report},
};

const ALL: i64 = 10_000_000;
const WARM_UP: usize = 20;
/// Nobody waits longer, in ninety-nine of a hundred cases.
const BAR: Duration = Duration::from_millis(200);

/// As on a small server of one's own. Its commits are durable; that nothing replicates makes the filling shorter.
const SERVER: &[&str] = &[
    "shared_buffers=4GB",
    "effective_cache_size=12GB",
    "maintenance_work_mem=1GB",
    "max_wal_size=16GB",
    "checkpoint_timeout=15min",
    "wal_level=minimal",
    "max_wal_senders=0",
];

/// What somebody asks for, again and again, each time of another effect.
struct Look {
    name: &'static str,
    path: fn(&mut Chance) -> String,
    status: u16,
}

const fn look(name: &'static str, path: fn(&mut Chance) -> String) -> Look {
    Look { name, path, status: 200 }
}

/// A search of the page of effects.
fn found(search: &str) -> String {
    format!(
        "/effects?q={}",
        search.replace('"', "%22").replace(' ', "%20").replace('<', "%3C").replace('>', "%3E")
    )
}

fn any(chance: &mut Chance) -> u64 {
    1 + chance.below(ALL.unsigned_abs())
}

/// One of the finished, nearly all of which have succeeded.
fn old(chance: &mut Chance) -> u64 {
    1 + chance.below(ALL.unsigned_abs() / 10 * 9)
}

fn downstream(chance: &mut Chance) -> &'static str {
    DOWNSTREAMS[usize::try_from(chance.below(4)).expect("few")]
}

/// The number of one that is in doubt, and of one that has failed.
fn doubtful(chance: &mut Chance) -> u64 {
    chance.below(ALL.unsigned_abs() / 10 * 9 / 450 - 1) * 450 + 7
}

fn failed(chance: &mut Chance) -> u64 {
    doubtful(chance) + 90
}

const PAGES: &[Look] = &[
    look("overview", |_| "/".to_owned()),
    look("overview: a week", |_| "/?span=7d".to_owned()),
    look("in doubt", |_| "/doubt".to_owned()),
    look("in doubt: of a downstream", |chance| format!("/doubt?downstream={}", downstream(chance))),
    look("in doubt: a next page", |chance| format!("/doubt?before={}", old(chance))),
    look("failures", |_| "/failures".to_owned()),
    look("failures: of a downstream", |chance| format!("/failures?downstream={}", downstream(chance))),
    look("failures: in doubt", |_| "/failures?state=in_doubt".to_owned()),
    look("downstreams", |_| "/downstreams".to_owned()),
    look("workers", |_| "/workers".to_owned()),
    look("audit", |_| "/audit".to_owned()),
    look("audit: of an effect", |chance| format!("/audit?effect={}", doubtful(chance))),
    look("audit: of a person", |chance| format!("/audit?who=who{}", chance.below(50))),
    look("requests", |_| "/requests".to_owned()),
    look("bulk actions", |_| "/bulk".to_owned()),
    look("effect: any", |chance| format!("/effects/{}", any(chance))),
    look("effect: in doubt", |chance| format!("/effects/{}", doubtful(chance))),
    look("effect: failed", |chance| format!("/effects/{}", failed(chance))),
];

const LISTS: &[Look] = &[
    look("effects", |_| "/effects".to_owned()),
    look("effects: a next page", |chance| format!("/effects?before={}", any(chance))),
    look("state:ready", |_| found("state:ready")),
    look("state:ready: a next page", |chance| format!("{}&before={}", found("state:ready"), any(chance))),
    look("state:scheduled", |_| found("state:scheduled")),
    look("state:retrying", |_| found("state:retrying")),
    look("state:in_flight", |_| found("state:in_flight")),
    look("state:in_doubt", |_| found("state:in_doubt")),
    look("state:succeeded", |_| found("state:succeeded")),
    look("state:succeeded: a next page", |chance| {
        format!("{}&before={}", found("state:succeeded"), any(chance))
    }),
    look("state:failed", |_| found("state:failed")),
    look("state:failed: a next page", |chance| format!("{}&before={}", found("state:failed"), old(chance))),
    look("state:cancelled", |_| found("state:cancelled")),
    look("state:expired", |_| found("state:expired")),
    look("state:failed,in_doubt", |_| found("state:failed,in_doubt")),
    look("all pending states", |_| found("state:ready,scheduled,retrying,waiting")),
    look("every state", |_| {
        found("state:ready,scheduled,retrying,in_flight,in_doubt,succeeded,failed,cancelled,expired")
    }),
    look("downstream", |chance| found(&format!("downstream:{}", downstream(chance)))),
    look("downstream: a next page", |chance| {
        format!("{}&before={}", found(&format!("downstream:{}", downstream(chance))), any(chance))
    }),
    look("state:ready downstream", |chance| found(&format!("state:ready downstream:{}", downstream(chance)))),
    look("state:scheduled, a downstream with few", |_| found("state:scheduled downstream:tax")),
    look("state:failed downstream", |chance| {
        found(&format!("state:failed downstream:{}", downstream(chance)))
    }),
    look("state:succeeded downstream", |chance| {
        found(&format!("state:succeeded downstream:{}", downstream(chance)))
    }),
    look("operation", |_| found("operation:refund")),
    look("operation: none has it", |_| found("operation:nothing")),
    look("state:failed operation", |_| found("state:failed operation:refund")),
    look("error", |_| found("state:failed error:declined")),
    look("error: any state", |_| found("error:declined")),
    look("error: none has it", |_| found("state:failed error:\"never said\"")),
    look("error: none has it, in doubt", |_| found("state:in_doubt error:\"never said\"")),
    look("error: none has it, any state", |_| found("error:\"never said\"")),
    look("age:<1h", |_| found("age:<1h")),
    look("age:>30d", |_| found("age:>30d")),
    look("state:failed age:>30d downstream", |chance| {
        found(&format!("state:failed age:>30d downstream:{}", downstream(chance)))
    }),
    look("state:in_flight age:>10m", |_| found("state:in_flight age:>10m")),
];

const LOOK_UPS: &[Look] = &[
    look("key", |chance| found(&format!("key:order-{}/charge", any(chance)))),
    look("id", |chance| found(&format!("id:{},{}", any(chance), any(chance)))),
    look("metadata", |chance| found(&format!("metadata.order:A-{}", any(chance)))),
    look("metadata and state", |chance| found(&format!("state:failed metadata.order:A-{}", failed(chance)))),
    look("metadata: none has it", |chance| found(&format!("metadata.order:B-{}", any(chance)))),
    look("metadata: all have it", |_| found("metadata.country:de")),
    look("metadata: all have it, failed", |_| found("state:failed metadata.country:de")),
    look("metadata: all have it, an error that none has", |_| {
        found("metadata.country:de error:\"never said\"")
    }),
    Look { name: "a number alone", path: |chance| found(&any(chance).to_string()), status: 303 },
    Look { name: "a key alone", path: |chance| found(&format!("order-{}/charge", any(chance))), status: 303 },
    Look { name: "a reference alone", path: |chance| found(&format!("A-{}", any(chance))), status: 303 },
    Look {
        name: "a word that nothing has",
        path: |chance| found(&format!("nobody-{}", any(chance))),
        status: 404,
    },
];

const API: &[Look] = &[
    look("API: effects", |_| "/api/v1/effects".to_owned()),
    look("API: effects, a next page", |chance| format!("/api/v1/effects?before={}", any(chance))),
    look("API: effects, 1,000 of them", |chance| {
        format!("/api/v1/effects?limit=1000&before={}", any(chance))
    }),
    look("API: failed, in doubt", |chance| {
        format!("/api/v1/effects?state=failed,in_doubt&before={}", old(chance))
    }),
    look("API: ready of a downstream", |chance| {
        format!("/api/v1/effects?state=ready&downstream={}", downstream(chance))
    }),
    look("API: by key", |chance| format!("/api/v1/effects?key=order-{}/charge", any(chance))),
    look("API: by metadata", |chance| {
        format!("/api/v1/effects?metadata=%7B%22order%22:%22A-{}%22%7D", any(chance))
    }),
    look("API: an effect", |chance| format!("/api/v1/effects/{}", any(chance))),
    look("API: an effect that is held", |chance| format!("/api/v1/effects/{}", 1 + old(chance) / 900 * 900)),
    look("API: its attempts", |chance| format!("/api/v1/effects/{}/attempts", failed(chance))),
    look("API: counts", |_| "/api/v1/counts".to_owned()),
    look("API: downstreams", |_| "/api/v1/downstreams".to_owned()),
    look("API: workers", |_| "/api/v1/workers".to_owned()),
    look("API: causes", |_| "/api/v1/causes?state=failed".to_owned()),
    look("API: traffic", |_| "/api/v1/traffic?since=2020-01-01T00:00:00Z&per=hour".to_owned()),
    look("API: audit", |_| "/api/v1/audit".to_owned()),
    look("API: requests", |_| "/api/v1/requests".to_owned()),
    look("API: about", |_| "/api/v1/about".to_owned()),
];

#[test]
#[ignore = "a quarter of an hour, and 20 GB: ./tests/run --long ten-million"]
fn people_wait_for_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run());
}

/// A server of the run's own, with the schema in it.
struct Own {
    // Ended before its folder goes: fields are dropped in order.
    postgres: PostgresServer,
    _folder: tempfile::TempDir,
}

impl Own {
    async fn start() -> Self {
        let folder =
            tempfile::Builder::new().prefix("aftercommit-test.").tempdir().expect("a scratch folder");
        let postgres = PostgresServer::start_with(folder.path(), SERVER).await;
        store::migrate(&postgres.url("postgres"), Some("test")).await.expect("migrate makes the schema");
        Self { postgres, _folder: folder }
    }
}

/// The dashboard that is asked: the one of a binary, which is what people run, or else this process's own.
struct Asked {
    address: SocketAddr,
    build: &'static str,
    _own: Option<Site>,
    _process: Option<(Process, tempfile::TempDir)>,
}

impl Asked {
    async fn open(database: &std::sync::Arc<dyn store::Database>, url: &str) -> Self {
        let Ok(binary) = std::env::var("AFTERCOMMIT_LONG_BINARY") else {
            let site = Site::open(database, Settings::default()).await;
            let build = if cfg!(debug_assertions) { "development" } else { "release" };
            return Self { address: site.address, build, _own: Some(site), _process: None };
        };
        let folder =
            tempfile::Builder::new().prefix("aftercommit-test.").tempdir().expect("a scratch folder");
        let mut dashboard = Command::new(binary);
        dashboard.current_dir(folder.path()).env_remove("AFTERCOMMIT_CONFIG").arg("dashboard");
        let (process, address) = command::started(dashboard, url, folder.path()).await;
        Self { address, build: "release", _own: None, _process: Some((process, folder)) }
    }

    fn ask(&self, path: &str) -> Ask {
        Ask::new(self.address, "GET", path)
    }
}

async fn run() {
    let begun = Report::begin("ten-million");
    let requests = std::env::var("AFTERCOMMIT_LONG_REQUESTS").map_or(300, |n| n.parse().expect("a number"));
    let mut chance = Chance::seeded();
    let seed = chance.seed();
    let (_server, url) = match std::env::var("AFTERCOMMIT_LONG_DATABASE") {
        // Whoever works on a page does not fill a database for each try: one that is filled stays as it is.
        Ok(url) => {
            store::migrate(&url, Some("test")).await.expect("migrate makes the schema");
            (None, url)
        }
        Err(_) => {
            let server = Own::start().await;
            let url = server.postgres.url("postgres");
            (Some(server), url)
        }
    };
    let database = store::connect(&url, &Options::default()).await.expect("the store connects");
    let start = SystemClock.boot();
    let empty = exact(&url).await.is_empty();
    if empty {
        fill(&url, &database, ALL).await;
    }
    let filled_s = (SystemClock.boot() - start).as_secs_f64();
    println!("filled in {filled_s:.0} s");
    let ann =
        Actor { who: "ann".to_owned(), reason: Some("the vendor is away".to_owned()), ..Actor::default() };
    database.pause("mail", &ann).await.expect("pausing works");
    let site = Asked::open(&database, &url).await;
    let rows = exact(&url).await;
    assert_shown(&site, &rows).await;
    let load = load();
    let mut looks = Vec::new();
    for look in [PAGES, LISTS, LOOK_UPS, API].into_iter().flatten() {
        looks.push(measured(&site, look, (requests, &mut chance)).await);
    }
    let slow: Vec<&Value> = looks
        .iter()
        .filter(|one| {
            one["p99_ms"].as_f64().is_none_or(|ms| ms > BAR.as_secs_f64() * 1e3) || one["stopped"] != 0
        })
        .collect();
    let counted: i64 = rows.iter().map(|row| row.2).sum();
    begun.write(
        "every page, list, filter and look-up of a dashboard over a database with ten million effects, over HTTP, one after the other",
        json!({
            "seed": seed, "build": site.build,
            "postgres": { "version": word(&url, "SHOW server_version").await, "settings": SERVER,
                "size": word(&url, "SELECT pg_size_pretty(pg_database_size(current_database()))").await },
            "filled_s": empty.then_some(filled_s.round()), "load_average": { "before": load, "after": self::load() },
            "effects": counted, "counts": rows, "requests_each": requests, "warm_up": WARM_UP, "bar_p99_ms": 200,
            "slower_than_the_bar": slow.iter().map(|one| &one["look"]).collect::<Vec<_>>(), "looks": looks,
        }),
    );
    assert_eq!(counted, ALL);
    assert!(slow.is_empty(), "these take longer than {BAR:?}: {slow:#?}");
}

fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// How long it took: of a hundred times the slowest but one, and so on.
async fn measured(site: &Asked, look: &Look, (requests, chance): (usize, &mut Chance)) -> Value {
    let (mut took, mut refused) = (Vec::with_capacity(requests), 0);
    for round in 0..WARM_UP + requests {
        let path = (look.path)(chance);
        let ask = site.ask(&path).shown();
        let start = SystemClock.boot();
        let answer = ask.send().await;
        let time = SystemClock.boot() - start;
        // A statement that took too long is stopped, and says so.
        assert!([look.status, 503].contains(&answer.status), "{path}: {answer:?}");
        refused += u32::from(answer.status == 503);
        if round >= WARM_UP {
            took.push(time);
        }
    }
    took.sort_unstable();
    let at = |per_mille: usize| {
        (took[(requests * per_mille).div_ceil(1000) - 1].as_secs_f64() * 1e4).round() / 10.0
    };
    let found = json!({
        "look": look.name, "path": (look.path)(chance), "p50_ms": at(500), "p99_ms": at(990), "max_ms": at(1000), "stopped": refused,
    });
    println!("{:>9} {:>9} {:>9}  {}", at(500), at(990), at(1000), look.name);
    found
}

/// By downstream and state, counted one by one.
async fn exact(url: &str) -> Vec<(String, String, i64)> {
    let mut connection = PgConnection::connect(url).await.expect("the server answers");
    sqlx::query_as(
        "SELECT downstream, state, count(*) FROM aftercommit.outcomes GROUP BY 1, 2 UNION ALL
         SELECT downstream, CASE WHEN lane = 'd' THEN 'in_doubt' WHEN claimed THEN 'in_flight'
           WHEN lane = 'r' OR due_at <= now() THEN 'ready' WHEN tries > 0 THEN 'retrying' ELSE 'scheduled' END, count(*)
         FROM aftercommit.queue GROUP BY 1, 2 ORDER BY 1, 2",
    )
    .fetch_all(&mut connection)
    .await
    .expect("counted")
}

async fn word(url: &str, sql: &'static str) -> String {
    let mut connection = PgConnection::connect(url).await.expect("the server answers");
    sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a word")
}

/// The API and the overview show exactly as many.
async fn assert_shown(site: &Asked, rows: &[(String, String, i64)]) {
    let answer = site.ask("/api/v1/counts").send().await;
    let counts: Value = serde_json::from_str(&answer.body).expect("JSON");
    let counts = counts["counts"].as_array().expect("a list");
    let shown: Vec<(String, String, i64)> = counts
        .iter()
        .map(|count| {
            let text = |name: &str| count[name].as_str().expect("a word").to_owned();
            (text("downstream"), text("state"), count["effects"].as_i64().expect("a number"))
        })
        .collect();
    assert_eq!(shown, rows);
    let overview = site.ask("/").shown().send().await.body;
    for states in ["in_doubt", "failed", "ready", "in_flight", "retrying"] {
        let all: i64 = rows.iter().filter(|(_, state, _)| state == states).map(|row| row.2).sum();
        let tile = format!("<b data-count=\"{states}\">");
        let digits: String = overview
            .split_once(&tile)
            .unwrap_or_else(|| panic!("{tile} is missing: {overview}"))
            .1
            .chars()
            .take_while(|c| *c != '<')
            .filter(char::is_ascii_digit)
            .collect();
        assert_eq!(digits, all.to_string(), "{states}");
    }
}
