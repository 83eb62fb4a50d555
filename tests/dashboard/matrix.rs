//! Every route with every role from every origin, read-only or not, called by its own name or a forged one: what happens is what
//! the table says. The cells come from the router's own table, so that a new route is in it with its first build.

use std::collections::BTreeMap;

use aftercommit_dashboard::{Right, Role, Route, Settings};

use super::{Answer, Ask, Site, everybody, token};
use crate::support::{Engine, run};

/// Where a request comes from, and what it brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    OurPage,
    Typed,
    CrossSite,
    SameSite,
    OurName,
    OtherName,
    OtherPort,
    NullName,
    CrossSiteWithBearer,
    NothingWithCookie,
    NothingWithBearer,
}

impl Origin {
    const ALL: [Self; 11] = [
        Self::OurPage,
        Self::Typed,
        Self::CrossSite,
        Self::SameSite,
        Self::OurName,
        Self::OtherName,
        Self::OtherPort,
        Self::NullName,
        Self::CrossSiteWithBearer,
        Self::NothingWithCookie,
        Self::NothingWithBearer,
    ];

    fn is_strange(self) -> bool {
        match self {
            Self::CrossSite
            | Self::SameSite
            | Self::OtherName
            | Self::OtherPort
            | Self::NullName
            | Self::CrossSiteWithBearer => true,
            Self::OurPage
            | Self::Typed
            | Self::OurName
            | Self::NothingWithCookie
            | Self::NothingWithBearer => false,
        }
    }

    fn has_bearer(self) -> bool {
        matches!(self, Self::CrossSiteWithBearer | Self::NothingWithBearer)
    }

    /// The request as it comes from here. `cookie` is of whoever comes, if they have a session.
    fn send(self, site: &Site, ask: Ask, role: Option<Role>, cookie: Option<&String>) -> Ask {
        let ask = match (self.has_bearer(), role, cookie) {
            (true, Some(role), _) => ask.bearer(&token(role)),
            (false, Some(_), Some(cookie)) => ask.cookie(cookie),
            _ => ask,
        };
        let site = site.address;
        match self {
            Self::OurPage => {
                ask.with("Sec-Fetch-Site", "same-origin").with("Origin", &format!("http://{site}"))
            }
            Self::Typed => ask.with("Sec-Fetch-Site", "none"),
            Self::CrossSite | Self::CrossSiteWithBearer => {
                ask.with("Sec-Fetch-Site", "cross-site").with("Origin", "https://evil.example")
            }
            Self::SameSite => {
                ask.with("Sec-Fetch-Site", "same-site").with("Origin", "http://other.localhost")
            }
            Self::OurName => ask.with("Origin", &format!("http://{site}")),
            Self::OtherName => ask.with("Origin", "https://evil.example"),
            Self::OtherPort => ask.with("Origin", "http://127.0.0.1:1"),
            Self::NullName => ask.with("Origin", "null"),
            Self::NothingWithCookie | Self::NothingWithBearer => ask,
        }
    }
}

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
                !refused && answer.status < 500 && answer.status != 429 && !gate.contains(&problem.as_str())
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

/// Walks the whole table as somebody with this role, or with none.
fn walk(role: Option<Role>, read_only: bool) {
    run(Engine::Sqlite, async |db| {
        db.insert("payments", "order-1").await;
        let settings = Settings { access: everybody(), read_only, ..Settings::default() };
        let site = Site::open(&db.store, settings).await;
        let (mut cells, mut wrong, mut by_fate) = (0, Vec::new(), BTreeMap::<String, u32>::new());
        let mut cookie = None;
        for route in site.dashboard.table() {
            for (origin, forged) in
                Origin::ALL.into_iter().flat_map(|origin| [(origin, false), (origin, true)])
            {
                // Who leaves is no more in: the next one comes in anew.
                if let Some(role) = role.filter(|_| cookie.is_none() || route.path == "/logout") {
                    cookie = Some(site.log_in(&token(role)).await);
                }
                let cell = Cell { route, role, origin, read_only, forged };
                let ask = site.ask(route.method.as_str(), &filled(route));
                let ask = if forged { ask.host("Host: evil.example") } else { ask };
                let answer = origin.send(&site, ask, role, cookie.as_ref()).send().await;
                wrong.extend(cell.judge(&answer).err());
                cells += 1;
                *by_fate.entry(format!("{:?}", cell.fate())).or_default() += 1;
            }
        }
        let routes = site.dashboard.table().len();
        println!("{cells} cells of {routes} routes as {role:?}, read-only {read_only}: {by_fate:?}");
        assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
    });
}

/// One test for each: all cells in one go would take minutes.
macro_rules! every_route_lets_through_whom_the_table_says_and_nobody_else {
    ($($name:ident: $role:expr, $read_only:expr;)+) => {
        mod every_route_lets_through_whom_the_table_says_and_nobody_else {
            use super::*;

            $(#[test]
            fn $name() {
                walk($role, $read_only);
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
            let public = ["/login", "/logout", "/healthz", "/readyz", "/metrics", "/assets/{file}"];
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
