//! Every route with every role from every origin, read-only or not, called by its own name or a forged one: what happens is what
//! its row says. The rows are written down in [`rows`](super::rows), and held to the router's own table.

use std::collections::{BTreeMap, BTreeSet};

use aftercommit_dashboard::{Right, Role, Route, Settings};

use super::{Answer, Site, everybody, origin::Origin, rows::rows, token};
use crate::{
    e2e::environment,
    support::{Engine, TestDatabase, run},
};

/// What must happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The handler answers, whatever it says.
    Passed,
    /// Refused, with this status and problem.
    Refused(u16, &'static str),
}

#[derive(Clone, Copy, Debug)]
struct Cell<'a> {
    route: &'a Route,
    role: Option<Role>,
    origin: Origin,
    read_only: bool,
    forged: bool,
}

impl Cell<'_> {
    /// As the design has it, written down a second time.
    fn fate(&self) -> Fate {
        let changes = !matches!(self.route.method.as_str(), "GET" | "HEAD");
        let strange = changes && self.origin.is_strange();
        let unsaid = changes && self.origin == Origin::NothingWithCookie;
        let needs = match self.route.right {
            Right::Public => None,
            Right::View => Some(Role::Viewer),
            Right::Operate => Some(Role::Operator),
            Right::Administer => Some(Role::Admin),
        };
        match (needs, self.role) {
            _ if self.forged => Fate::Refused(421, "host-unknown"),
            _ if strange => Fate::Refused(403, "cross-site"),
            (None, _)
                if changes
                    && matches!(self.origin, Origin::NothingWithCookie | Origin::NothingWithBearer) =>
            {
                Fate::Refused(403, "origin-unsaid")
            }
            (None, _) => Fate::Passed,
            (Some(_), None) => Fate::Refused(401, "sender-unknown"),
            (Some(_), Some(_)) if unsaid => Fate::Refused(403, "origin-unsaid"),
            (Some(needs), Some(role)) if role < needs => Fate::Refused(403, "forbidden"),
            (Some(_), Some(_)) if self.read_only && changes => Fate::Refused(403, "read-only"),
            (Some(_), Some(_)) => Fate::Passed,
        }
    }

    fn judge(&self, answer: &Answer) -> Result<(), String> {
        let gate = ["cross-site", "origin-unsaid", "read-only", "sender-unknown", "host-unknown"];
        let problem = answer.problem();
        let fits = match self.fate() {
            Fate::Refused(status, name) => answer.status == status && problem == name,
            Fate::Passed => {
                let refused = matches!(answer.status, 401 | 421) && self.route.right != Right::Public;
                // What the gate says of roles; a handler forbids for other reasons.
                let lacks = problem == "forbidden" && answer.body.contains("\"needs\"");
                !refused
                    && !lacks
                    && answer.status < 500
                    && answer.status != 429
                    && !gate.contains(&problem.as_str())
            }
        };
        if !fits {
            return Err(format!(
                "{self:?}: {:?} was declared, and there came {} {problem:?}",
                self.fate(),
                answer.status
            ));
        }
        let lacking = lacking(answer);
        if lacking.is_empty() {
            Ok(())
        } else {
            Err(format!("{self:?}: the answer lacks {}", lacking.join(", ")))
        }
    }
}

/// Headers that every answer has.
fn lacking(answer: &Answer) -> Vec<&'static str> {
    let wanted = [
        ("content-security-policy", "default-src 'none'; script-src 'self'; style-src 'self'"),
        ("content-security-policy", "frame-ancestors 'none'"),
        ("content-security-policy", "base-uri 'none'"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", ""),
    ];
    let has = |name, part| answer.header(name).is_some_and(|value| value.contains(part));
    wanted.iter().filter(|(name, part)| !has(name, part)).map(|(name, _)| *name).collect()
}

/// A path with something in place of what varies.
fn filled(route: &Route) -> String {
    let part = |part: &str| match part {
        "{id}" => "1".to_owned(),
        "{verb}" => "retry".to_owned(),
        "{control}" => "pause".to_owned(),
        part if part.starts_with('{') => "payments".to_owned(),
        part => part.to_owned(),
    };
    route.path.split('/').map(part).collect::<Vec<_>>().join("/")
}

async fn open(db: &TestDatabase, read_only: bool) -> Site {
    db.insert("payments", "order-1").await;
    Site::open(&db.store, Settings { access: everybody(), read_only, ..Settings::default() }).await
}

/// What a walk found.
#[derive(Default)]
struct Walked {
    cells: u32,
    by_fate: BTreeMap<String, u32>,
    /// Routes that refused a write because everything is read-only.
    read_only: BTreeSet<String>,
    /// By route, what was not as its row says.
    wrong: Vec<(String, String)>,
}

fn name(route: &Route) -> String {
    format!("{} {}", route.method, route.path)
}

/// Walks these rows as somebody with this role, or with none, from these origins, by our own name and by a forged one.
async fn walk(
    site: &Site,
    rows: &[Route],
    (role, read_only): (Option<Role>, bool),
    origins: &[Origin],
) -> Walked {
    let mut walked = Walked::default();
    let mut cookie = None;
    for route in rows {
        for (origin, forged) in origins.iter().flat_map(|origin| [(*origin, false), (*origin, true)]) {
            // Who leaves is no more in: the next one comes in anew.
            if let Some(role) = role.filter(|_| cookie.is_none() || route.path == "/logout") {
                cookie = Some(site.log_in(&token(role)).await);
            }
            let cell = Cell { route, role, origin, read_only, forged };
            let ask = site.ask(route.method.as_str(), &filled(route));
            let ask = if forged { ask.host("Host: evil.example") } else { ask };
            let answer = origin.send(site, ask, role, cookie.as_ref()).send().await;
            walked.wrong.extend(cell.judge(&answer).err().map(|why| (name(route), why)));
            walked.cells += 1;
            *walked.by_fate.entry(format!("{:?}", cell.fate())).or_default() += 1;
            if answer.problem() == "read-only" {
                walked.read_only.insert(name(route));
            }
        }
    }
    walked
}

/// The whole matrix for this role, or for none.
fn all(role: Option<Role>, read_only: bool) {
    run(Engine::Sqlite, async |db| {
        let (site, rows) = (open(db, read_only).await, rows());
        let walked = walk(&site, &rows, (role, read_only), &Origin::ALL).await;
        let Walked { cells, by_fate, wrong, .. } = walked;
        println!("{cells} cells of {} routes as {role:?}, read-only {read_only}: {by_fate:?}", rows.len());
        let why: Vec<&str> = wrong.iter().map(|(_, why)| why.as_str()).collect();
        assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), why.join("\n"));
        let has =
            |route: &&Route| role.is_some_and(|role| role.has(route.right)) && read_only && route.writes();
        let writes: BTreeSet<String> = rows.iter().filter(has).map(name).collect();
        assert_eq!(
            walked.read_only, writes,
            "each write route that somebody may use, and no other, is refused"
        );
    });
}

/// One test for each: all cells in one go would take minutes.
macro_rules! every_route_lets_through_whom_the_table_says_and_nobody_else {
    ($($name:ident: $role:expr, $read_only:expr;)+) => {
        mod every_route_lets_through_whom_the_table_says_and_nobody_else {
            use super::*;

            $(#[test]
            fn $name() {
                all($role, $read_only);
            })+
        }
    };
}

every_route_lets_through_whom_the_table_says_and_nobody_else! {
    a_stranger: None, false;
    a_viewer: Some(Role::Viewer), false;
    an_operator: Some(Role::Operator), false;
    an_admin: Some(Role::Admin), false;
    a_stranger_read_only: None, true;
    a_viewer_read_only: Some(Role::Viewer), true;
    an_operator_read_only: Some(Role::Operator), true;
    an_admin_read_only: Some(Role::Admin), true;
}

#[test]
fn every_route_has_a_row_and_every_row_a_route() {
    run(Engine::Sqlite, async |db| {
        let site = open(db, false).await;
        let said = |routes: &[Route]| -> BTreeSet<String> {
            routes.iter().map(|route| format!("{} takes {:?}", name(route), route.right)).collect()
        };
        let (rows, table) = (rows(), site.dashboard.table());
        let (wanted, got) = (said(&rows), said(table));
        assert_eq!(got, wanted, "left: the router; right: tests/dashboard/rows.rs");
        assert_eq!((rows.len(), table.len()), (wanted.len(), got.len()), "each once");
    });
}

/// Whoever adds a route in another way than `Routes::add` gets past the table. What `operations` has besides is for workers, whose
/// processes serve nothing else.
#[test]
fn routes_are_added_in_one_place() {
    let (mut folders, mut read) = (vec![environment::file("dashboard")], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("readable").path();
            let is_code = path.extension().is_some_and(|kind| kind == "rs");
            if path.is_dir() {
                folders.push(path);
            } else if is_code
                && !["dashboard/routes.rs", "dashboard/operations.rs"].iter().any(|file| path.ends_with(file))
            {
                let text = std::fs::read_to_string(&path).expect("it is text");
                read += 1;
                let dot = |way: &&&str| text.contains(&format!(".{way}("));
                let ways = [
                    "route",
                    "route_service",
                    "nest",
                    "nest_service",
                    "merge",
                    "fallback",
                    "fallback_service",
                ];
                let found: Vec<_> = ways.iter().filter(dot).collect();
                assert!(found.is_empty(), "{} adds routes by {found:?}: use Routes::add", path.display());
            }
        }
    }
    assert!(read > 50, "the sources of the dashboard: {read}");
}

/// The matrix finds a row that says too much or too little, of every route, and a write that goes through where none may.
#[test]
fn a_wrong_row_is_found() {
    run(Engine::Sqlite, async |db| {
        let site = open(db, false).await;
        let found = async |from: Right, to: Right, as_: (Role, bool)| {
            let changed: Vec<Route> = rows()
                .into_iter()
                .filter(|route| route.right == from)
                .map(|route| Route { right: to, ..route })
                .collect();
            let walked = walk(&site, &changed, (Some(as_.0), as_.1), &[Origin::OurPage]).await;
            let found: BTreeSet<String> = walked.wrong.into_iter().map(|(route, _)| route).collect();
            (found, changed)
        };
        for (from, to, as_) in [
            (Right::View, Right::Operate, (Role::Viewer, false)),
            (Right::Operate, Right::View, (Role::Viewer, false)),
            (Right::Operate, Right::Administer, (Role::Operator, false)),
            (Right::Operate, Right::Operate, (Role::Operator, true)),
        ] {
            let (found, changed) = found(from, to, as_).await;
            let is_seen = |route: &&Route| !as_.1 || route.writes();
            let wanted: BTreeSet<String> = changed.iter().filter(is_seen).map(name).collect();
            assert_eq!(found, wanted, "{from:?} said to be {to:?}, as {as_:?}");
            assert!(!wanted.is_empty());
        }
    });
}

#[test]
fn what_the_table_lacks_does_not_exist() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await;
        let admin = token(Role::Admin);
        let table = site.dashboard.table();
        let mut asked = 0;
        for path in table.iter().map(|route| &route.path) {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
                let known = |route: &Route| route.path == *path && route.method.as_str() == method;
                if table.iter().any(known) {
                    continue;
                }
                let filled = filled(&Route { path: path.clone(), ..table[0].clone() });
                let answer = site.ask(method, &filled).bearer(&admin).send().await;
                assert_eq!(answer.status, 405, "{method} {path}: {answer:?}");
                assert!(
                    answer.header("allow").is_some() && lacking(&answer).is_empty(),
                    "{method} {path}: {answer:?}"
                );
                asked += 1;
            }
        }
        for path in
            ["/nothing", "/api/v1/nothing", "/.git/config", "//", "/effects/1/../../etc/passwd", "/%2e%2e/x"]
        {
            let answer = site.ask("GET", path).bearer(&admin).send().await;
            assert_eq!(answer.status, 404, "{path}: {answer:?}");
            assert!(lacking(&answer).is_empty(), "{path}: {answer:?}");
        }
        println!("{asked} methods that no route has");
    });
}

#[test]
fn every_right_is_of_a_kind_with_its_method() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, Settings::default()).await;
        for route in site.dashboard.table() {
            let changes = !matches!(route.method.as_str(), "GET" | "HEAD");
            let public = ["/login", "/logout", "/healthz", "/readyz", "/assets/{file}"];
            let is_public = route.right == Right::Public;
            assert_eq!(
                is_public,
                public.contains(&route.path.as_str()),
                "{route:?}: what is public is written down here"
            );
            assert!(
                !changes || is_public || route.right >= Right::Operate,
                "{route:?}: a viewer changes nothing"
            );
            assert_eq!(route.writes(), changes && !is_public, "{route:?}");
        }
    });
}
