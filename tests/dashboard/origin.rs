//! Where a request comes from, as browsers and programs say it.

use aftercommit_dashboard::Role;

use super::{Ask, Site, token};

/// Where a request comes from, and what it brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A page of ours, in a browser that says so.
    OurPage,
    /// The address was typed.
    Typed,
    /// Somebody else's page.
    CrossSite,
    /// A page of a neighbour of ours.
    SameSite,
    /// A page of ours, in a browser that names its origin only.
    OurName,
    /// The same, and it is somebody else's.
    OtherName,
    /// The same, and it is at another port.
    OtherPort,
    /// A page that hides where it comes from.
    NullName,
    /// Somebody else's page, with a token.
    CrossSiteWithBearer,
    /// It does not say, and brings a session.
    NothingWithCookie,
    /// It does not say, and brings a token.
    NothingWithBearer,
}

impl Origin {
    /// All of them.
    pub(super) const ALL: [Self; 11] = [
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

    /// Whether a browser says that it comes from somebody else's page.
    pub(super) fn is_strange(self) -> bool {
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
    pub(super) fn send(self, site: &Site, ask: Ask, role: Option<Role>, cookie: Option<&String>) -> Ask {
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
