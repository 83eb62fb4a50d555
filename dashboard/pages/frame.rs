//! What stands around every page: who looks, where they are, how many effects need them, and what is wrong with the fleet.

use aftercommit::{
    clock::{
        Timestamp,
        words::{span, utc},
    },
    state::State,
    store::{Count, DownstreamInfo, identity::Hold},
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};

use super::{
    act,
    parts::{Num, Text, clock, text},
};
use crate::{access::Visitor, problem::Problem, routes::Root, shared::Shared};

/// Where a page stands among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Overview,
    Doubt,
    Failures,
    Effects,
    Bulk,
    Requests,
    Downstreams,
    Workers,
    Audit,
    About,
}

impl Place {
    const ALL: [Self; 10] = [
        Self::Overview,
        Self::Doubt,
        Self::Failures,
        Self::Effects,
        Self::Bulk,
        Self::Requests,
        Self::Downstreams,
        Self::Workers,
        Self::Audit,
        Self::About,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Doubt => "In doubt",
            Self::Failures => "Failures",
            Self::Effects => "Effects",
            Self::Bulk => "Bulk actions",
            Self::Requests => "Requests",
            Self::Downstreams => "Downstreams",
            Self::Workers => "Workers",
            Self::Audit => "Audit",
            Self::About => "About",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Overview => "",
            Self::Doubt => "doubt",
            Self::Failures => "failures",
            Self::Effects => "effects",
            Self::Bulk => "bulk",
            Self::Requests => "requests",
            Self::Downstreams => "downstreams",
            Self::Workers => "workers",
            Self::Audit => "audit",
            Self::About => "about",
        }
    }
}

/// A link to a page.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) here: bool,
    /// A group begins.
    pub(super) gap: bool,
    pub(super) counts: Option<State>,
    pub(super) count: Num,
}

/// What people must not overlook.
pub(super) struct Banner {
    pub(super) class: &'static str,
    pub(super) says: Text,
    /// Below our root, and its words.
    pub(super) link: Option<(String, &'static str)>,
    pub(super) more: Option<Text>,
}

/// Around a page.
pub(super) struct Frame {
    pub(super) title: Text,
    pub(super) root: Root,
    pub(super) visitor: Visitor,
    pub(super) who: Text,
    pub(super) site: Text,
    pub(super) environment: Option<Text>,
    /// It is where real money moves.
    pub(super) loud: bool,
    pub(super) theme: Option<&'static str>,
    /// What stands in the search box.
    pub(super) query: String,
    pub(super) banners: Vec<Banner>,
    /// What a person has just done.
    pub(super) done: Option<&'static str>,
    /// The database's clock.
    pub(super) now: Timestamp,
    pub(super) counts: Vec<Count>,
    pub(super) downstreams: Vec<DownstreamInfo>,
    pub(super) hold: Option<Hold>,
    place: Place,
}

impl FromRequestParts<Shared> for Frame {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Problem> {
        let visitor = Visitor::from_request_parts(parts, shared).await?;
        let (counts, downstreams) = (shared.counts().await?, shared.downstreams().await?);
        let (hold, now) = (shared.eyes().hold().await?, shared.database().now().await?);
        let settings = shared.settings();
        let site = if settings.title.is_empty() { "aftercommit" } else { settings.title.as_str() };
        let mut frame = Self {
            title: Text::default(),
            root: Root::of_parts(parts),
            who: text(&visitor.who),
            visitor,
            site: text(site),
            environment: Some(text(&settings.environment)).filter(|_| !settings.environment.is_empty()),
            loud: matches!(settings.environment.as_str(), "production" | "prod" | "live"),
            theme: theme(&parts.headers),
            query: String::new(),
            banners: Vec::new(),
            done: done(parts.uri.query().unwrap_or_default()),
            now,
            counts: counts.value.to_vec(),
            downstreams: downstreams.value.to_vec(),
            hold,
            place: Place::Overview,
        };
        if counts.age.as_secs() > 10 {
            let says =
                format!("The database has not told how many effects there are for {}", span(counts.age));
            frame.banner("bad", &says, None, None);
        }
        frame.warn_of_hold();
        Ok(frame)
    }
}

impl Frame {
    /// The frame of a page.
    pub(super) fn at(mut self, place: Place, title: &str) -> Self {
        (self.place, self.title) = (place, text(title));
        self
    }

    pub(super) fn banner(
        &mut self,
        class: &'static str,
        says: &str,
        link: Option<(String, &'static str)>,
        more: Option<&str>,
    ) {
        self.banners.push(Banner { class, says: text(says), link, more: more.map(text) });
    }

    fn warn_of_hold(&mut self) {
        let Some(hold) = &self.hold else { return };
        let says = format!("The fleet is on HOLD since {}: nothing is sent", clock(hold.since));
        let more = format!(
            "{} found: {}. Find out what the database lost, then lift it: aftercommit hold lift",
            hold.found_by,
            hold.reason.trim_end_matches('.')
        );
        self.banner("bad", &says, None, Some(&more));
    }

    /// Downstreams that nobody serves although effects wait for them.
    pub(super) fn warn_of_unserved(&mut self) {
        for info in self.downstreams.clone() {
            let Some(unserved) = info.unserved(self.now) else { continue };
            // The library's sentence is a part of one.
            let (_, rest) = unserved.split_once(": ").unwrap_or(("", &unserved));
            let says = format!("No live worker serves {}: {rest}", info.name);
            let more =
                "They wait, and nothing is lost. Start a worker whose configuration has it: aftercommit work";
            self.banner("bad", &says, Some(("workers".to_owned(), "Workers")), Some(more));
        }
    }

    /// Effects in any of these states.
    pub(super) fn count(&self, states: &[State]) -> Num {
        self.count_of(None, states)
    }

    /// The same, of one downstream.
    pub(super) fn count_of(&self, downstream: Option<&str>, states: &[State]) -> Num {
        let of = self.counts.iter().filter(|count| {
            states.contains(&count.state) && downstream.is_none_or(|name| name == count.downstream)
        });
        Num(of.map(|count| count.effects).sum())
    }

    /// All effects.
    pub(super) fn total(&self) -> Num {
        self.count(&State::ALL)
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        let entry = |place: Place| {
            let counts = match place {
                Place::Doubt => Some(State::InDoubt),
                Place::Failures => Some(State::Failed),
                Place::Overview
                | Place::Effects
                | Place::Bulk
                | Place::Requests
                | Place::Downstreams
                | Place::Workers
                | Place::Audit
                | Place::About => None,
            };
            Entry {
                name: place.name(),
                path: place.path(),
                here: place == self.place,
                gap: matches!(place, Place::Effects | Place::Downstreams | Place::Audit),
                counts,
                count: counts.map(|state| self.count(&[state])).unwrap_or_default(),
            }
        };
        Place::ALL.map(entry).into_iter().collect()
    }

    pub(super) fn now_exact(&self) -> String {
        utc(self.now)
    }

    pub(super) fn now_words(&self) -> String {
        clock(self.now)
    }

    /// What the visitor may do.
    pub(super) fn role_words(&self) -> &'static str {
        use crate::access::Role;
        match (self.visitor.role, self.visitor.read_only) {
            (_, true) => "You may look. This dashboard is read-only.",
            (Role::Viewer, false) => "Viewer: you may look, but not at payloads and answers.",
            (Role::Operator, false) => "Operator: you may look and act.",
            (Role::Admin, false) => "Admin: you may do everything.",
        }
    }
}

/// The look that was chosen; the browser keeps it.
fn theme(headers: &HeaderMap) -> Option<&'static str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    match pairs.find(|(name, _)| *name == "aftercommit-look")?.1 {
        "light" => Some("light"),
        "dark" => Some("dark"),
        _ => None,
    }
}

/// What was done, in words of ours: an address says nothing of its own.
fn done(query: &str) -> Option<&'static str> {
    let word = query.split('&').find_map(|pair| pair.strip_prefix("done="))?;
    act::done(word)
}
