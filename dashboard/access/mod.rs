//! Who comes: [`Visitor`], found out from a proxy that is trusted, credentials, a session, or from being at this machine.
//!
//! Everything about people is judged here, and nothing about effects: what a visitor may do is a [`Right`] of the route.

mod client;
mod cookie;
mod identify;
mod login;
mod sessions;
mod throttle;

use axum::{
    extract::FromRequestParts,
    http::{Method, request::Parts},
};

pub(crate) use client::{Client, is_proxy, strip};
pub(crate) use cookie::Cookies;
pub(crate) use identify::identify;
pub(crate) use sessions::Sessions;
pub(crate) use throttle::{Throttle, network};

use crate::{
    problem::Problem,
    routes::{Right, Routes},
};

/// What somebody may do; each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look, but not at payloads, answers and headers.
    Viewer,
    /// Look at everything, and act.
    Operator,
    /// Everything.
    Admin,
}

impl Role {
    /// Every role, the weakest first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// The word in the configuration and on the pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Whether it has `right`.
    pub fn has(self, right: Right) -> bool {
        match right {
            Right::Public | Right::View => true,
            Right::Operate => self >= Self::Operator,
            Right::Administer => self >= Self::Admin,
        }
    }
}

/// Put into a request's extensions by an application that has the dashboard inside and knows itself who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Who, as the audit will say.
    pub who: String,
    /// What they may do.
    pub role: Role,
}

/// How we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// At this machine, where nobody needs credentials.
    Local,
    /// A bearer token.
    Token,
    /// HTTP's basic authentication.
    Basic,
    /// A trusted proxy's headers.
    Proxy,
    /// Logged in on the page.
    Session,
    /// The application around us.
    Application,
}

/// Who asks. An extractor: every route but public ones has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visitor {
    /// The name that goes into the audit.
    pub(crate) who: String,
    /// What they may do.
    pub(crate) role: Role,
    /// Their address, as far as it is known.
    pub(crate) from: String,
    /// How we know.
    pub(crate) via: Via,
    /// Nothing can be changed by anybody.
    pub(crate) read_only: bool,
}

impl Visitor {
    /// Whether a route that takes `right` and writes would let them: for what a page offers.
    pub(crate) fn may(&self, right: Right) -> bool {
        self.role.has(right) && !(self.read_only && right > Right::View)
    }

    /// Whether they are shown payloads, answers, headers and bodies.
    pub(crate) fn sees_content(&self) -> bool {
        self.role >= Role::Operator
    }

    /// Whether the page offers to log out.
    pub(crate) fn has_session(&self) -> bool {
        self.via == Via::Session
    }
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(Problem::failed)
    }
}

/// Login and logout.
pub(crate) fn routes(routes: &mut Routes) {
    routes.add(Method::GET, "/login", Right::Public, login::show);
    routes.add(Method::POST, "/login", Right::Public, login::enter);
    routes.add(Method::POST, "/logout", Right::Public, login::leave);
}
