//! What people did (the audit), and what came in behind the guard.

use std::{fmt, str::FromStr};

use crate::{clock::Timestamp, effect::EffectId};

/// Which audit rows to list: newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only what was done to this effect.
    pub effect: Option<EffectId>,
    /// Only what was done to this downstream, or to an effect of it. (What was done to an effect before schema version 11 does not
    /// say its downstream.)
    pub downstream: Option<String>,
    /// Only what this person did.
    pub who: Option<String>,
    /// Only rows whose number is lower: the keyset of the next page.
    pub before: Option<i64>,
    /// At most this many; [`super::PAGE_MAX`] at most.
    pub limit: u32,
}

/// An audit row.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Audited {
    /// Number.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub who: String,
    /// From which address; `None` where nobody wrote it down.
    pub from: Option<String>,
    /// Which verb.
    pub verb: String,
    /// Which effect.
    pub effect_id: Option<EffectId>,
    /// Which downstream.
    pub downstream: Option<String>,
    /// From which state.
    pub from_state: Option<String>,
    /// To which state.
    pub to_state: Option<String>,
    /// The reason given.
    pub reason: Option<String>,
    /// As part of which bulk, or to which bulk.
    pub bulk: Option<i64>,
}

/// Which guarded requests to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFilter {
    /// Only of this scope.
    pub scope: Option<String>,
    /// Only with this key.
    pub key: Option<String>,
    /// Only those whose time is over, or only those whose time is not.
    pub expired: Option<bool>,
    /// Only those that come after this one in the list: the keyset of the next page.
    pub before: Option<RequestPlace>,
    /// At most this many; [`super::PAGE_MAX`] at most.
    pub limit: u32,
}

/// A guarded request that was answered. What with is shown to nobody but whoever repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// Its number: what its effects carry.
    pub id: i64,
    /// In whose space its key is unique.
    pub scope: String,
    /// The key that the client chose.
    pub key: String,
    /// When it began.
    pub created_at: Timestamp,
    /// Until when its answer is kept, besides as long as its effects are unfinished.
    pub expires_at: Timestamp,
    /// Whether that time is over.
    pub expired: bool,
    /// The answer's status.
    pub status: u16,
    /// Effects that it wrote.
    pub effects: u64,
    /// Those of them that have not ended: while there are some, its answer is kept.
    pub unfinished: u64,
}

impl RequestInfo {
    /// Where it stands in the list.
    pub const fn place(&self) -> RequestPlace {
        RequestPlace { expires_at: self.expires_at, id: self.id }
    }
}

/// Where a request stands in the list, which is by time of expiry and number. As text: `MICROSECONDS.NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPlace {
    /// Until when it is kept.
    pub expires_at: Timestamp,
    /// Its number.
    pub id: i64,
}

impl fmt::Display for RequestPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.expires_at.micros(), self.id)
    }
}

/// A text that names no place in the list of requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place in the list of requests: take it from the page before")]
pub struct UnknownPlace(pub String);

impl FromStr for RequestPlace {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        let parts = text.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.parse().ok()?)));
        let (at, id) = parts.ok_or_else(|| UnknownPlace(text.to_owned()))?;
        Ok(Self { expires_at: Timestamp::from_micros(at), id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = RequestPlace { expires_at: Timestamp::from_micros(-17), id: 4 };
        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "1", "1.", ".1", "a.b", "1.2.3"] {
            assert!(wrong.parse::<RequestPlace>().is_err(), "{wrong}");
        }
    }
}
