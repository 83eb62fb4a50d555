//! Behind a real nginx, below a path, configured as `docs/dashboard.md` says: whether nginx takes the prefix away or keeps it, links
//! and forms lead where they should, events come through as they happen, and an action works.

use std::{net::SocketAddr, time::Duration};

use aftercommit::{EffectId, state::State};
use aftercommit_dashboard::{Access, Role, Settings, dashboard};
use axum::Router;
use rustix::process::getuid;
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Answer, Ask,
    api::{failed, in_doubt, worker},
    everybody,
    live::Ear,
    mounts::{MOUNT, crawled, links, resolve},
    settings, token,
};
use crate::{
    e2e::{
        environment,
        processes::{Process, run_ok},
    },
    support::{TestDatabase, eventually, on_sqlite},
};

on_sqlite! {
    every_link_leads_somewhere_where_the_prefix_is_taken_away,
    every_link_leads_somewhere_where_the_prefix_is_kept,
    events_and_actions_come_through_where_the_prefix_is_taken_away,
    events_and_actions_come_through_where_the_prefix_is_kept,
    a_proxy_that_says_nothing_of_itself_lets_in_nobody,
}

const SOON: Duration = Duration::from_secs(30);

/// Whether nginx hands the prefix on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    Taken,
    Kept,
}

/// An nginx in front of a dashboard. It is killed when dropped.
struct Nginx {
    address: SocketAddr,
    // Before its folder, so that it ends first.
    _process: Process,
    _folder: tempfile::TempDir,
    _dashboard: JoinSet<usize>,
}

/// The block of the manual.
fn documented() -> String {
    let manual = std::fs::read_to_string(environment::file("docs/dashboard.md")).expect("the manual");
    let (_, rest) = manual.split_once("```nginx\n").expect("the manual has a block for nginx");
    rest.split("```").next().unwrap_or_default().to_owned()
}

impl Nginx {
    /// As the manual has it.
    async fn open(db: &TestDatabase, prefix: Prefix) -> Self {
        let settings =
            Settings { proxies: vec!["127.0.0.1/32".parse().expect("a network")], ..settings(everybody()).1 };
        let dashboard = dashboard(db.store.clone(), settings);
        let app = match prefix {
            Prefix::Taken => dashboard.router(),
            Prefix::Kept => dashboard.at(MOUNT),
        };
        let pass = "proxy_pass http://127.0.0.1:7799/;";
        let block = documented();
        assert!(block.contains(pass) && block.contains(MOUNT), "{block}");
        let block = match prefix {
            Prefix::Taken => block,
            Prefix::Kept => block.replace(pass, "proxy_pass http://127.0.0.1:7799;"),
        };
        Self::serve(dashboard, app, &block).await
    }

    /// In front of `app`, with this block in which 127.0.0.1:7799 stands for it.
    async fn serve(dashboard: aftercommit_dashboard::Dashboard, app: Router, block: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let behind = listener.local_addr().expect("it is bound");
        let mut task = JoinSet::new();
        task.spawn(async move {
            dashboard.serve_app(app, listener, CancellationToken::new(), Duration::ZERO).await
        });
        let folder = tempfile::Builder::new().prefix("aftercommit-nginx.").tempdir().expect("a folder");
        let block = block.replace("127.0.0.1:7799", &behind.to_string());
        let (address, process) = started(folder.path(), &block).await;
        Self { address, _process: process, _folder: folder, _dashboard: task }
    }

    fn ask(&self, method: &str, path: &str) -> Ask {
        Ask::new(self.address, method, path)
    }

    /// The cookie of somebody who logs in on the page.
    async fn log_in(&self, role: Role) -> String {
        let home = format!("{MOUNT}/");
        let asked = self.ask("GET", &home).shown().send().await;
        assert_eq!(asked.status, 401, "{asked:?}");
        let login = resolve(&home, &links(&asked.body, &["action"])[0]).expect("ours");
        let form = format!("token={}", token(role));
        let entered = self.page_of_ours("POST", &login).form(&form).send().await;
        let to = resolve(&login, entered.header("location").expect("a place"));
        assert_eq!((entered.status, to), (303, Some(home)), "{entered:?}");
        entered.cookie().expect("a cookie")
    }

    /// From a page of ours, in a browser that names its origin and nothing else: as it does over plain HTTP.
    fn page_of_ours(&self, method: &str, path: &str) -> Ask {
        self.ask(method, path).with("Origin", &format!("http://{}", self.address)).shown()
    }
}

/// Starts nginx in `folder` on a free port. As one process, which is what is stopped; not as root.
async fn started(folder: &std::path::Path, block: &str) -> (SocketAddr, Process) {
    for _ in 0..3 {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {what};"))
            .join(" ");
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\n\
             http {{\naccess_log off; {temporary}\nserver {{\nlisten {address};\n{block}}}\n}}\n"
        );
        std::fs::write(folder.join("nginx.conf"), config).expect("it is written");
        let nginx = environment::nginx();
        let mut command = if getuid().is_root() {
            run_ok(Command::new("chown").args(["-R", "www-data:"]).arg(folder), SOON).await;
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "www-data", "--regid", "www-data", "--init-groups"]).arg(nginx);
            command
        } else {
            Command::new(nginx)
        };
        command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "stderr"]);
        let log = folder.join("nginx.log");
        let process = Process::spawn("nginx", &mut command, &log);
        let listens = eventually(SOON, "nginx listens: see nginx.log", async || {
            let taken = process.output().contains("bind() to").then_some(false);
            taken.or(TcpStream::connect(address).await.is_ok().then_some(true))
        })
        .await;
        if listens {
            return (address, process);
        }
    }
    panic!("nginx found no port");
}

/// Something of every kind, so that pages have all their links.
async fn furnished(db: &TestDatabase) -> EffectId {
    let worker = worker(db).await;
    in_doubt(db, &worker, "mail", "m").await;
    let id = failed(db, &worker, "pay", "f").await;
    db.insert_many("pay", "more", 120).await;
    id
}

async fn every_link_leads_somewhere(db: &TestDatabase, prefix: Prefix) {
    furnished(db).await;
    let nginx = Nginx::open(db, prefix).await;
    let cookie = nginx.log_in(Role::Admin).await;
    let get = async |url: &str| nginx.ask("GET", url).shown().cookie(&cookie).send().await;
    let strange = async |url: &str| {
        nginx.ask("POST", url).cookie(&cookie).with("Sec-Fetch-Site", "cross-site").send().await
    };
    let kinds = crawled((MOUNT, &format!("{MOUNT}/")), get, strange).await;
    println!("{prefix:?}: {kinds:?}");
    for page in [
        "/",
        "/doubt",
        "/failures",
        "/effects",
        "/effects/{id}",
        "/effects/{id}/retry",
        "/effects/{id}/resend",
        "/downstreams",
        "/downstreams/pay/pause",
        "/bulk",
        "/workers",
        "/requests",
        "/audit",
        "/about",
    ] {
        assert!(kinds.contains_key(page), "no link leads to {page}: {kinds:?}");
    }
    // Without its slash it leads to the one with it, and takes the query along.
    let bare = nginx.ask("GET", &format!("{MOUNT}?state=failed")).send().await;
    let to = bare.header("location").expect("a place").replace(&format!("http://{}", nginx.address), "");
    assert_eq!((bare.status, to), (308, format!("{MOUNT}/?state=failed")), "{bare:?}");
}

async fn every_link_leads_somewhere_where_the_prefix_is_taken_away(db: &TestDatabase) {
    every_link_leads_somewhere(db, Prefix::Taken).await;
}

async fn every_link_leads_somewhere_where_the_prefix_is_kept(db: &TestDatabase) {
    every_link_leads_somewhere(db, Prefix::Kept).await;
}

/// What a form sends that is sent as it stands.
fn hidden(page: &Answer) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    for tag in page.body.split("<input ").skip(1).filter(|tag| tag.starts_with("type=\"hidden\"")) {
        let tag = format!(" {}", tag.split('>').next().unwrap_or_default());
        let of = |name: &str| links(&tag, &[name]).into_iter().next().unwrap_or_default();
        form.append_pair(&of("name"), &of("value"));
    }
    form.finish()
}

async fn events_and_actions_come_through(db: &TestDatabase, prefix: Prefix) {
    let id = furnished(db).await;
    let nginx = Nginx::open(db, prefix).await;
    let cookie = nginx.log_in(Role::Operator).await;
    let mut ear =
        Ear::at(nginx.address, &format!("{MOUNT}/api/v1/events"), &format!("Cookie: {cookie}\r\n")).await;
    ear.counts("how things stand now", |_| true).await;

    let ask = format!("{MOUNT}/effects/{id}/retry");
    let page = nginx.ask("GET", &ask).shown().cookie(&cookie).send().await;
    assert_eq!(page.status, 200, "{page:?}");
    let forms = links(&page.body, &["action"]);
    let to = forms.iter().filter_map(|to| resolve(&ask, to)).find(|to| *to == ask).expect("the form's own");
    let form = format!("{}&reason=the+key+is+valid+again", hidden(&page));
    let acted = nginx.page_of_ours("POST", &to).cookie(&cookie).form(&form).send().await;
    assert_eq!(acted.status, 303, "{acted:?}");
    let next = resolve(&to, acted.header("location").expect("a place")).expect("ours");
    assert_eq!(next, format!("{MOUNT}/effects/{id}?done=retry"));
    let shown = nginx.ask("GET", &next).shown().cookie(&cookie).send().await;
    assert!(shown.status == 200 && shown.body.contains("Done: it is due again"), "{shown:?}");
    assert_eq!(db.state(id).await, State::Ready);

    ear.counts("the retried effect is counted as ready", |counts| {
        let counts = counts["counts"].as_array().expect("a list");
        !counts.iter().any(|count| count["state"] == "failed" && count["effects"] != 0)
    })
    .await;
    // Somebody else's page is told from ours behind a proxy, too.
    let forged = nginx.ask("POST", &to).with("Origin", "https://evil.example").cookie(&cookie).form(&form);
    assert_eq!(forged.send().await.problem(), "cross-site");
}

async fn events_and_actions_come_through_where_the_prefix_is_taken_away(db: &TestDatabase) {
    events_and_actions_come_through(db, Prefix::Taken).await;
}

async fn events_and_actions_come_through_where_the_prefix_is_kept(db: &TestDatabase) {
    events_and_actions_come_through(db, Prefix::Kept).await;
}

/// Told nothing but where to lead, nginx calls us by our own address and says nothing of whom it speaks for: who comes through it is
/// not at this machine all the same.
async fn a_proxy_that_says_nothing_of_itself_lets_in_nobody(db: &TestDatabase) {
    let id = furnished(db).await;
    let dashboard = dashboard(db.store.clone(), settings(Access::default()).1);
    let app = dashboard.router();
    let nginx = Nginx::serve(dashboard, app, "location / { proxy_pass http://127.0.0.1:7799; }\n").await;
    for path in ["/", "/api/v1/effects", &format!("/effects/{id}")] {
        let answer = nginx.ask("GET", path).send().await;
        assert_eq!((answer.status, answer.problem().as_str()), (403, "forbidden"), "{path}: {answer:?}");
        assert!(answer.body.contains("came through a proxy"), "{answer:?}");
    }
    let acts = nginx.ask("POST", &format!("/api/v1/effects/{id}/retry")).ours().json("{}").send().await;
    assert_eq!((acts.status, acts.problem().as_str()), (403, "forbidden"), "{acts:?}");
}
