//! The dashboard below a path, whoever puts it there: every link of every page leads to a page of ours.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
};

use aftercommit_dashboard::Role;
use axum::Router;
use tokio::{net::TcpListener, task::JoinSet};

use super::{Answer, Ask, everybody, settings, token};
use crate::support::{Engine, TestDatabase, run};

/// Where it is mounted.
pub(super) const MOUNT: &str = "/ops/effects";
/// Pages of one kind that are looked at: the same links stand on each.
const OF_A_KIND: usize = 12;

/// Who puts it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// At the root of an application.
    Merged,
    /// axum's `nest`.
    Nested,
    /// `Dashboard::at`.
    At,
    /// A proxy that takes the prefix away.
    Stripped,
    /// A proxy that takes a prefix away, and a `nest` behind it.
    StrippedAndNested,
}

/// An application with the dashboard in it, and how it is called from outside.
struct Mounted {
    address: SocketAddr,
    way: Way,
    _task: JoinSet<()>,
}

impl Mounted {
    async fn new(db: &TestDatabase, way: Way) -> Self {
        let dashboard = aftercommit_dashboard::dashboard(db.store.clone(), settings(everybody()).1);
        let app = match way {
            Way::Merged | Way::Stripped => Router::new().merge(dashboard.router()),
            Way::Nested | Way::StrippedAndNested => Router::new().nest(MOUNT, dashboard.router()),
            Way::At => Router::new().merge(dashboard.at(MOUNT)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, mut task) = (listener.local_addr().expect("it is bound"), JoinSet::new());
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        task.spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        Self { address, way, _task: task }
    }

    /// What stands before every path, as a browser sees it.
    fn prefix(&self) -> &'static str {
        match self.way {
            Way::Merged => "",
            Way::Nested | Way::At | Way::Stripped => MOUNT,
            Way::StrippedAndNested => "/outer/ops/effects",
        }
    }

    /// The overview's address.
    fn home(&self) -> String {
        match self.way {
            Way::Nested | Way::StrippedAndNested => self.prefix().to_owned(),
            Way::Merged | Way::At | Way::Stripped => format!("{}/", self.prefix()),
        }
    }

    /// What is asked for when a browser is at `url`; none when it left the dashboard.
    fn ask(&self, method: &str, url: &str) -> Option<Ask> {
        let taken = match self.way {
            Way::Merged | Way::Nested | Way::At => "",
            Way::Stripped => MOUNT,
            Way::StrippedAndNested => "/outer",
        };
        url.strip_prefix(self.prefix()).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']))?;
        let path = url.strip_prefix(taken)?;
        Some(Ask::new(self.address, method, path))
    }

    async fn get(&self, url: &str) -> Answer {
        let ask = self
            .ask("GET", url)
            .unwrap_or_else(|| panic!("{:?}: {url} leads out of the dashboard", self.way));
        ask.shown().bearer(&token(Role::Admin)).send().await
    }
}

/// Where a browser at `base` goes for `link`; none for one that leads elsewhere on purpose.
pub(super) fn resolve(base: &str, link: &str) -> Option<String> {
    let base = url::Url::parse(&format!("http://localhost{base}")).expect("a URL");
    let url = base.join(link).expect("a link");
    let here = url.host_str() == Some("localhost");
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    here.then(|| format!("{}{query}", url.path()))
}

/// The values of these attributes.
pub(super) fn links(html: &str, attributes: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for attribute in attributes {
        for (at, _) in html.match_indices(&format!(" {attribute}=\"")) {
            let value = &html[at + attribute.len() + 3..];
            found.push(
                value.split('"').next().unwrap_or_default().replace("&amp;", "&").replace("&#38;", "&"),
            );
        }
    }
    found
}

/// The kind of page that is at this address, below the dashboard's root.
fn kind(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let kind = |part: &str| if part.parse::<u64>().is_ok() { "{id}".to_owned() } else { part.to_owned() };
    path.split('/').map(kind).collect::<Vec<_>>().join("/")
}

/// Goes from `home` on to wherever links and forms lead, below `prefix`, and looks whether something is there. The kinds of pages that
/// were seen, each with how many of them.
pub(super) async fn crawled(
    (prefix, home): (&str, &str),
    get: impl AsyncFn(&str) -> Answer,
    write: impl AsyncFn(&str) -> Answer,
) -> BTreeMap<String, usize> {
    let (mut seen, mut ahead) = (BTreeSet::from([home.to_owned()]), VecDeque::from([home.to_owned()]));
    let (mut kinds, mut forms) = (BTreeMap::new(), BTreeSet::new());
    while let Some(url) = ahead.pop_front() {
        let below = url.strip_prefix(prefix).unwrap_or_else(|| panic!("{url} leads out of the dashboard"));
        let of_a_kind: &mut usize = kinds.entry(kind(below)).or_default();
        if *of_a_kind >= OF_A_KIND {
            continue;
        }
        *of_a_kind += 1;
        let page = get(&url).await;
        // What cannot be done as it stands is a page that says so.
        assert!(page.status < 400 || page.status == 409, "{url} gives {}: {}", page.status, page.body);
        let links = links(&page.body, &["href", "src"]);
        ahead
            .extend(links.iter().filter_map(|link| resolve(&url, link)).filter(|to| seen.insert(to.clone())));
        for form in page.body.split("<form ").skip(1) {
            let tag = format!(" {}", form.split('>').next().unwrap_or_default());
            let Some(to) = links_of_form(&url, &tag).filter(|to| forms.insert(to.clone())) else { continue };
            let answer = write(&to).await;
            assert_eq!(answer.problem(), "cross-site", "the form of {url} leads to {to}: {answer:?}");
        }
    }
    assert!(forms.len() > 2, "forms were seen: {forms:?}");
    kinds
}

/// Where a form that writes leads.
fn links_of_form(url: &str, tag: &str) -> Option<String> {
    let writes = tag.contains(" method=\"post\"");
    let action = links(tag, &["action"]).into_iter().next().filter(|_| writes)?;
    resolve(url, &action)
}

#[test]
fn every_link_of_every_page_leads_somewhere_below_every_mount() {
    run(Engine::Sqlite, async |db| {
        db.insert_many("payments", "order", 60).await;
        for way in [Way::Merged, Way::Nested, Way::At, Way::Stripped, Way::StrippedAndNested] {
            let site = Mounted::new(db, way).await;
            let strange = async |url: &str| {
                let ask = site.ask("POST", url).unwrap_or_else(|| panic!("{way:?}: {url} leads out"));
                ask.with("Sec-Fetch-Site", "cross-site").send().await
            };
            let get = async |url: &str| site.get(url).await;
            let kinds = crawled((site.prefix(), &site.home()), get, strange).await;
            println!("{way:?}: {kinds:?}");
            assert!(kinds.len() > 5, "{way:?}: the overview links to nothing");
        }
    });
}

#[test]
fn a_mount_without_its_slash_leads_to_the_one_with_it() {
    run(Engine::Sqlite, async |db| {
        let site = Mounted::new(db, Way::At).await;
        let answer = site.get(&format!("{MOUNT}?state=failed")).await;
        assert_eq!(
            (answer.status, answer.header("location")),
            (308, Some("effects/?state=failed")),
            "{answer:?}"
        );
        assert_eq!(resolve(MOUNT, "effects/?state=failed"), Some(format!("{MOUNT}/?state=failed")));
        assert!(answer.header("content-security-policy").is_some(), "{answer:?}");
        assert_eq!(site.get(&format!("{MOUNT}/?state=failed")).await.status, 200);
    });
}

#[test]
fn people_log_in_and_out_below_every_mount() {
    run(Engine::Sqlite, async |db| {
        for way in [Way::Merged, Way::Nested, Way::At, Way::Stripped, Way::StrippedAndNested] {
            let site = Mounted::new(db, way).await;
            let home = site.home();
            let ask = |method: &str, url: &str| {
                site.ask(method, url).unwrap_or_else(|| panic!("{way:?}: {url} leads out")).shown()
            };
            let asked = ask("GET", &home).send().await;
            assert_eq!(asked.status, 401, "{way:?}");
            let action = links(&asked.body, &["action"]).into_iter().next().expect("a form");
            let login = resolve(&home, &action).expect("ours");
            let form = format!("token={}", token(Role::Viewer));
            let entered = ask("POST", &login).ours().form(&form).send().await;
            assert_eq!(entered.status, 303, "{way:?}: {entered:?}");
            let cookie = entered.cookie().expect("a cookie");
            let next = resolve(&login, entered.header("location").expect("a place")).expect("ours");
            assert_eq!(next, home, "{way:?}");
            assert_eq!(ask("GET", &next).cookie(&cookie).send().await.status, 200, "{way:?}");
            let logout = resolve(&login, "logout").expect("ours");
            let left = ask("POST", &logout).ours().cookie(&cookie).send().await;
            let next = resolve(&logout, left.header("location").expect("a place")).expect("ours");
            assert_eq!(next, login, "{way:?}");
            assert_eq!(ask("GET", &next).send().await.status, 200, "{way:?}");
        }
    });
}
