//! What a downstream promises about the idempotency key: data, validated, never code.

use std::time::Duration;

use crate::clock::Timestamp;

/// How a downstream deduplicates, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// By our key, for [`Contract::window`].
    Key,
    /// It cannot, but it can be asked whether something was applied.
    Lookup,
    /// It cannot, and cannot be asked.
    None,
}

/// What follows an unknown outcome at a downstream without deduplication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnUnknown {
    /// Park in doubt: at most one application without a human decision.
    #[default]
    Hold,
    /// Send again with the same key: at least one application, duplicates accepted by name.
    Retry,
}

/// How long the downstream remembers a key, counted from its first receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// For this long.
    For(Duration),
    /// As long as the account exists.
    Forever,
}

impl Window {
    /// The shorter of two windows.
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::Forever, window) | (window, Self::Forever) => window,
            (Self::For(a), Self::For(b)) => Self::For(a.min(b)),
        }
    }

    /// Microseconds as stored; `i64::MAX` is for ever.
    pub fn micros(self) -> i64 {
        match self {
            Self::Forever => i64::MAX,
            Self::For(length) => crate::clock::duration_micros(length),
        }
    }

    /// The inverse of [`Self::micros`]; a negative length is none at all.
    pub fn from_micros(micros: i64) -> Self {
        match u64::try_from(micros) {
            Ok(length) if micros != i64::MAX => Self::For(Duration::from_micros(length)),
            Ok(_) => Self::Forever,
            Err(_) => Self::For(Duration::ZERO),
        }
    }
}

impl serde::Serialize for Window {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.micros())
    }
}

impl<'de> serde::Deserialize<'de> for Window {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self::from_micros)
    }
}

/// Which answers the downstream stores under a key and replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stores {
    /// Only successes; a failure frees the key.
    #[default]
    Success,
    /// Every answer once execution began, errors too.
    Any,
}

/// Which characters a key may have at this downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyCharset {
    /// Printable ASCII, U+0020 to U+007E.
    #[default]
    Printable,
    /// Letters, digits, `_`, `:` and `-`.
    Token,
    /// A UUID in its hyphenated form.
    Uuid,
}

/// What a key must look like for this downstream, the prefix included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeyRule {
    /// Shortest key, in characters.
    pub min_len: u16,
    /// Longest key, in characters.
    pub max_len: u16,
    /// Which characters.
    pub charset: KeyCharset,
}

impl Default for KeyRule {
    fn default() -> Self {
        Self { min_len: 1, max_len: 255, charset: KeyCharset::Printable }
    }
}

impl KeyRule {
    /// The rule that takes whatever either takes.
    #[must_use]
    pub fn widest(self, other: Self) -> Self {
        let charset = match (self.charset, other.charset) {
            (KeyCharset::Printable, _) | (_, KeyCharset::Printable) => KeyCharset::Printable,
            (KeyCharset::Token, _) | (_, KeyCharset::Token) => KeyCharset::Token,
            (KeyCharset::Uuid, KeyCharset::Uuid) => KeyCharset::Uuid,
        };
        Self { min_len: self.min_len.min(other.min_len), max_len: self.max_len.max(other.max_len), charset }
    }

    /// Why `key` (as sent, prefix included) cannot be taken; `None` when it can.
    pub fn refuses(&self, key: &str) -> Option<String> {
        let length = key.chars().count();
        if length < usize::from(self.min_len) || length > usize::from(self.max_len) {
            return Some(format!(
                "the key has {length} characters and this downstream takes {} to {}",
                self.min_len, self.max_len
            ));
        }
        let fits = match self.charset {
            KeyCharset::Printable => key.chars().all(|c| (' '..='~').contains(&c)),
            KeyCharset::Token => {
                key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-'))
            }
            KeyCharset::Uuid => length == 36 && uuid::Uuid::try_parse(key).is_ok(),
        };
        (!fits).then(|| match self.charset {
            KeyCharset::Printable => "the key has a character that is not printable ASCII".to_owned(),
            KeyCharset::Token => {
                "the key may only have letters, digits, '_', ':' and '-' at this downstream".to_owned()
            }
            KeyCharset::Uuid => "the key must be a UUID at this downstream".to_owned(),
        })
    }
}

/// What a downstream promises about the idempotency key, as far as a decision needs it. How the key is written and how
/// answers are read is the business of the downstream's kind.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Contract {
    /// How it deduplicates.
    pub dedupe: Dedupe,
    /// What an unknown outcome means where it does not.
    pub on_unknown: OnUnknown,
    /// How long it remembers a key; `None` is unpublished and promises nothing.
    pub window: Option<Window>,
    /// Taken off the window, and added to the last attempt's deadline before a person may act: clock error and requests
    /// that still travel.
    pub margin: Duration,
    /// Which answers are stored under a key.
    pub stores: Stores,
    /// What a key must look like.
    pub key: KeyRule,
    /// Whether the downstream can be asked about an effect.
    pub can_probe: bool,
    /// With `can_probe`: how long after the last request its effect must be visible.
    pub absent_after: Duration,
}

/// Clock error between the database and the downstream, and requests that still travel when their deadline has passed.
pub const DEFAULT_MARGIN: Duration = Duration::from_secs(300);

impl Contract {
    /// A downstream that cannot deduplicate and cannot be asked.
    pub fn none(on_unknown: OnUnknown) -> Self {
        Self {
            dedupe: Dedupe::None,
            on_unknown,
            window: None,
            margin: DEFAULT_MARGIN,
            stores: Stores::Success,
            key: KeyRule::default(),
            can_probe: false,
            absent_after: Duration::ZERO,
        }
    }

    /// A downstream that deduplicates by our key for `window`.
    pub fn key(window: Option<Window>) -> Self {
        Self { dedupe: Dedupe::Key, window, ..Self::none(OnUnknown::Hold) }
    }

    /// Until when a request that may have been received at `first_sent_at` may be repeated: `None` when the key promises
    /// nothing, [`Timestamp::MAX`] for ever. `window_at_claim` is the window that held when it was first claimed; a window
    /// widened since then does not help, one that was narrowed counts.
    pub fn safe_until(&self, first_sent_at: Timestamp, window_at_claim: Option<Window>) -> Option<Timestamp> {
        if self.dedupe != Dedupe::Key {
            return None;
        }
        match window_at_claim?.min(self.window?) {
            Window::Forever => Some(Timestamp::MAX),
            Window::For(length) => Some(first_sent_at.plus(length).minus(self.margin)),
        }
    }

    /// The contract as people read it.
    pub fn in_words(&self) -> String {
        match (self.dedupe, self.window, self.on_unknown) {
            (Dedupe::Key, Some(Window::Forever), _) => "deduplicates by key, for ever".to_owned(),
            (Dedupe::Key, Some(Window::For(length)), _) => {
                format!("deduplicates by key, for {}", in_units(length))
            }
            (Dedupe::Key, None, _) => "deduplicates by key, for an unpublished time".to_owned(),
            (Dedupe::Lookup, _, _) => "can be asked whether it was applied".to_owned(),
            (Dedupe::None, _, OnUnknown::Hold) => "cannot deduplicate: unknown outcomes are held".to_owned(),
            (Dedupe::None, _, OnUnknown::Retry) => "cannot deduplicate: duplicates are accepted".to_owned(),
        }
    }

    /// Why this contract makes no sense together with `timeout`; `None` when it does.
    pub fn refuses(&self, timeout: Duration) -> Option<String> {
        match (self.dedupe, self.window) {
            (Dedupe::Key, Some(Window::For(window))) if window <= timeout.saturating_add(self.margin) => {
                Some(format!(
                    "window ({window:?}) must be longer than timeout ({timeout:?}) + margin ({:?}), or no retry is ever safe",
                    self.margin
                ))
            }
            (Dedupe::Lookup | Dedupe::None, Some(_)) => {
                Some("window is a promise about the key: it goes with dedupe = \"key\" only".to_owned())
            }
            (Dedupe::Lookup, None) if !self.can_probe => Some("dedupe = \"lookup\" needs a probe".to_owned()),
            _ => None,
        }
    }
}

/// A length of time in the largest unit that divides it: `24h`, `90s`.
fn in_units(length: Duration) -> String {
    let seconds = length.as_secs();
    if length.subsec_nanos() > 0 || seconds == 0 {
        return format!("{length:?}");
    }
    for (unit, size) in [("d", 86_400), ("h", 3600), ("min", 60)] {
        if seconds.is_multiple_of(size) && seconds / size > 1 {
            return format!("{}{unit}", seconds / size);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests;
