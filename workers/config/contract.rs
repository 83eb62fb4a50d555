//! The contract as it is written: every key optional, laid over a profile, refined by an operation.

mod meaning;

use std::time::Duration;

use aftercommit::contract::{
    Contract, DEFAULT_MARGIN, Dedupe, KeyCharset, KeyRule, OnUnknown, Stores, Window,
};

use super::{
    ConfigError,
    answers::{AnswerRule, Marker, Predicate, StatusRule, is_pointer},
    key::{KeyFormat, KeyIn, KeyPlace},
    probe::WrittenProbe,
    section::Section,
    tree::{Node, Origin},
    values::{Setting, duration, quoted, show_duration},
};

/// How short and how long a key may be where nothing else is said.
const KEY_LEN: (u16, u16) = (1, 255);

/// Methods that an operation can have.
const METHODS: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// A word out of a few.
macro_rules! words {
    ($type:ty, $($word:literal => $value:expr),+) => {
        impl Setting for $type {
            fn read(node: &Node) -> Result<Self, String> {
                let text = String::read(node)?;
                $(if text == $word { return Ok($value); })+
                Err(format!("must be one of {}", [$(quoted($word)),+].join(", ")))
            }

            fn show(&self) -> String {
                $(if *self == $value { return quoted($word); })+
                String::new()
            }
        }
    };
}

words!(KeyFormat, "raw" => Self::Raw, "sf-string" => Self::SfString);
words!(Dedupe, "key" => Self::Key, "lookup" => Self::Lookup, "none" => Self::None);
words!(OnUnknown, "hold" => Self::Hold, "retry" => Self::Retry);
words!(Stores, "success" => Self::Success, "any" => Self::Any);
words!(KeyCharset, "printable" => Self::Printable, "token" => Self::Token, "uuid" => Self::Uuid);

impl Setting for Window {
    fn read(node: &Node) -> Result<Self, String> {
        let text = String::read(node)?;
        if text == "forever" {
            return Ok(Self::Forever);
        }
        duration(&text)
            .map(Self::For)
            .ok_or_else(|| "must be a duration such as \"24h\", or \"forever\"; leave it out where the downstream does not publish one".to_owned())
    }

    fn show(&self) -> String {
        quoted(&match self {
            Self::For(length) => show_duration(*length),
            Self::Forever => "forever".to_owned(),
        })
    }
}

/// A contract as far as it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    pub(crate) dedupe: Option<Dedupe>,
    on_unknown: Option<OnUnknown>,
    key_in: Option<KeyIn>,
    key_format: Option<KeyFormat>,
    key_charset: Option<KeyCharset>,
    min_key_len: Option<u32>,
    max_key_len: Option<u32>,
    methods: Option<Vec<String>>,
    scope: Option<Vec<String>>,
    window: Option<Window>,
    margin: Option<Duration>,
    in_progress: Option<Vec<AnswerRule>>,
    mismatch: Option<Vec<AnswerRule>>,
    already_done: Option<Vec<AnswerRule>>,
    not_applied: Option<Vec<AnswerRule>>,
    rejected: Option<Vec<AnswerRule>>,
    frees_key: Option<Vec<AnswerRule>>,
    unknown: Option<Vec<AnswerRule>>,
    stored: Option<Vec<AnswerRule>>,
    code_at: Option<Vec<String>>,
    success: Option<Predicate>,
    replay_header: Option<Marker>,
    replay_status: Option<Vec<AnswerRule>>,
    retry_directive: Option<Marker>,
    stores: Option<Stores>,
}

impl Written {
    /// Every key that a contract can have, in the order in which it is shown.
    pub(crate) const KEYS: [&str; 25] = [
        "dedupe",
        "on_unknown",
        "key_in",
        "key_format",
        "key_charset",
        "min_key_len",
        "max_key_len",
        "methods",
        "scope",
        "window",
        "margin",
        "in_progress",
        "mismatch",
        "already_done",
        "not_applied",
        "rejected",
        "frees_key",
        "unknown",
        "stored",
        "code_at",
        "success",
        "replay_header",
        "replay_status",
        "retry_directive",
        "stores",
    ];

    /// Reads a `contract` table.
    pub(crate) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        section.not_yet("window_entries", "leave it out and give a window that holds under your load")?;
        let written = Self {
            dedupe: section.get("dedupe")?,
            on_unknown: section.get("on_unknown")?,
            key_in: section.get("key_in")?,
            key_format: section.get("key_format")?,
            key_charset: section.get("key_charset")?,
            min_key_len: section.get("min_key_len")?,
            max_key_len: section.get("max_key_len")?,
            methods: section.get("methods")?,
            scope: section.get("scope")?,
            window: section.get("window")?,
            margin: section.get("margin")?,
            in_progress: section.get("in_progress")?,
            mismatch: section.get("mismatch")?,
            already_done: section.get("already_done")?,
            not_applied: section.get("not_applied")?,
            rejected: section.get("rejected")?,
            frees_key: section.get("frees_key")?,
            unknown: section.get("unknown")?,
            stored: section.get("stored")?,
            code_at: section.get("code_at")?,
            success: section.get("success")?,
            replay_header: section.get("replay_header")?,
            replay_status: section.get("replay_status")?,
            retry_directive: section.get("retry_directive")?,
            stores: section.get("stores")?,
        };
        written.validate(section)?;
        section.finished()?;
        Ok(written)
    }

    fn validate(&self, section: &Section<'_>) -> Result<(), ConfigError> {
        let pointers = self.code_at.iter().flatten().all(|pointer| is_pointer(pointer));
        let pointers = section.noting(if pointers {
            Ok(())
        } else {
            Err(section.error("code_at", "must be a list of JSON pointers such as \"/error/code\""))
        });
        let methods = self.methods.iter().flatten().all(|method| METHODS.contains(&method.as_str()));
        let methods = section.noting(if methods {
            Ok(())
        } else {
            Err(section.error("methods", "must be a list of \"POST\", \"PUT\", \"PATCH\", \"DELETE\""))
        });
        // Answers before execution, and those that say nothing about the first request, are never its stored answer.
        let never = |rule: &AnswerRule| match rule.status {
            StatusRule::Exactly(status) => matches!(status, 401 | 403 | 404 | 429 | 500..=599),
            StatusRule::Class(_) => true,
        };
        if let Some(rule) = self.stored.iter().flatten().find(|rule| never(rule)) {
            return Err(section.error(
                "stored",
                format!("must not hold {rule}: 401, 403, 404, 429, 5xx and whole classes prove nothing about the first request"),
            ));
        }
        pointers.and(methods)
    }

    /// Whether it says where the key stands, and in which header.
    pub(super) fn says_where(&self) -> (Option<&KeyIn>, bool) {
        (self.key_in.as_ref(), self.key_format.is_some())
    }

    /// `self` where it says something, else `base`.
    pub(crate) fn over(self, base: &Self) -> Self {
        // A promise about the key does not survive a refinement that says there is no such promise.
        let same_dedupe = self.dedupe.is_none() || self.dedupe == base.dedupe;
        let window = self.window.or(if same_dedupe { base.window } else { None });
        let stores = self.stores.or(if same_dedupe { base.stores } else { None });
        Self {
            dedupe: self.dedupe.or(base.dedupe),
            on_unknown: self.on_unknown.or(base.on_unknown),
            key_in: self.key_in.or_else(|| base.key_in.clone()),
            key_format: self.key_format.or(base.key_format),
            key_charset: self.key_charset.or(base.key_charset),
            min_key_len: self.min_key_len.or(base.min_key_len),
            max_key_len: self.max_key_len.or(base.max_key_len),
            methods: self.methods.or_else(|| base.methods.clone()),
            scope: self.scope.or_else(|| base.scope.clone()),
            window,
            margin: self.margin.or(base.margin),
            in_progress: self.in_progress.or_else(|| base.in_progress.clone()),
            mismatch: self.mismatch.or_else(|| base.mismatch.clone()),
            already_done: self.already_done.or_else(|| base.already_done.clone()),
            not_applied: self.not_applied.or_else(|| base.not_applied.clone()),
            rejected: self.rejected.or_else(|| base.rejected.clone()),
            frees_key: self.frees_key.or_else(|| base.frees_key.clone()),
            unknown: self.unknown.or_else(|| base.unknown.clone()),
            stored: self.stored.or_else(|| base.stored.clone()),
            code_at: self.code_at.or_else(|| base.code_at.clone()),
            success: self.success.or_else(|| base.success.clone()),
            replay_header: self.replay_header.or_else(|| base.replay_header.clone()),
            replay_status: self.replay_status.or_else(|| base.replay_status.clone()),
            retry_directive: self.retry_directive.or_else(|| base.retry_directive.clone()),
            stores,
        }
    }

    /// The contract, as decisions need it; validated against `timeout`.
    pub(crate) fn contract(
        &self,
        timeout: Duration,
        probe: Option<&WrittenProbe>,
    ) -> Result<Contract, String> {
        let dedupe = self.dedupe.ok_or_else(|| {
            "dedupe is missing: write \"key\" (with a window) or \"none\", or name a profile".to_owned()
        })?;
        let absent_after = probe.and_then(|probe| probe.absent_after(dedupe));
        let key = KeyRule {
            min_len: key_len("min_key_len", self.min_key_len, KEY_LEN.0)?,
            max_len: key_len("max_key_len", self.max_key_len, KEY_LEN.1)?,
            charset: self.key_charset.unwrap_or_default(),
        };
        if key.min_len > key.max_len {
            return Err(format!(
                "min_key_len ({}) must not exceed max_key_len ({})",
                key.min_len, key.max_len
            ));
        }
        let contract = Contract {
            dedupe,
            on_unknown: self.on_unknown.unwrap_or_default(),
            window: self.window,
            margin: self.margin.unwrap_or(DEFAULT_MARGIN),
            stores: self.stores.unwrap_or_default(),
            key,
            can_probe: absent_after.is_some(),
            absent_after: absent_after.unwrap_or_default(),
        };
        if let (Dedupe::Key, Some(Window::For(window))) = (dedupe, contract.window)
            && window <= timeout.saturating_add(contract.margin)
        {
            return Err(format!(
                "window ({}) must be longer than timeout ({}) + margin ({}), or no retry is ever safe: where the downstream remembers for no longer, lower them (timeout = \"5s\" beside the contract, margin = \"10s\" in it)",
                show_duration(window),
                show_duration(timeout),
                show_duration(contract.margin)
            ));
        }
        contract.refuses(timeout).map_or(Ok(contract), Err)
    }

    /// Notes what stands in no file: what `base` brought, and defaults, so that the effective contract can be shown. Where the key
    /// stands is no part of it for a kind that knows that itself.
    pub(crate) fn note_into(&self, section: &Section<'_>, base: &Self, source: &Origin, place: KeyPlace) {
        let brought = base.shown();
        let has_meaning = |key: &str| place == KeyPlace::Written || !KeyPlace::KEYS.contains(&key);
        for (key, value) in self.shown() {
            if section.has(key) || !has_meaning(key) {
                continue;
            }
            let from_base = brought.iter().any(|(known, _)| *known == key);
            section.note(key, value, if from_base { source } else { &Origin::Default });
        }
        for (key, value) in self.defaults().into_iter().filter(|(key, _)| has_meaning(key)) {
            section.note(key, value, &Origin::Default);
        }
    }

    /// What is written, as it would be written.
    pub(crate) fn shown(&self) -> Vec<(&'static str, String)> {
        fn show<T: Setting>(key: &'static str, value: Option<&T>) -> Option<(&'static str, String)> {
            value.map(|value| (key, value.show()))
        }
        let all = [
            show("dedupe", self.dedupe.as_ref()),
            show("on_unknown", self.on_unknown.as_ref()),
            show("key_in", self.key_in.as_ref()),
            show("key_format", self.key_format.as_ref()),
            show("key_charset", self.key_charset.as_ref()),
            show("min_key_len", self.min_key_len.as_ref()),
            show("max_key_len", self.max_key_len.as_ref()),
            show("methods", self.methods.as_ref()),
            show("scope", self.scope.as_ref()),
            show("window", self.window.as_ref()),
            show("margin", self.margin.as_ref()),
            show("in_progress", self.in_progress.as_ref()),
            show("mismatch", self.mismatch.as_ref()),
            show("already_done", self.already_done.as_ref()),
            show("not_applied", self.not_applied.as_ref()),
            show("rejected", self.rejected.as_ref()),
            show("frees_key", self.frees_key.as_ref()),
            show("unknown", self.unknown.as_ref()),
            show("stored", self.stored.as_ref()),
            show("code_at", self.code_at.as_ref()),
            show("success", self.success.as_ref()),
            show("replay_header", self.replay_header.as_ref()),
            show("replay_status", self.replay_status.as_ref()),
            show("retry_directive", self.retry_directive.as_ref()),
            show("stores", self.stores.as_ref()),
        ];
        all.into_iter().flatten().collect()
    }

    /// What holds where nothing is written, as far as that is a value.
    fn defaults(&self) -> Vec<(&'static str, String)> {
        let hold = self.dedupe == Some(Dedupe::None) && self.on_unknown.is_none();
        let key = self.dedupe == Some(Dedupe::Key);
        let all = [
            hold.then(|| ("on_unknown", OnUnknown::default().show())),
            self.key_in.is_none().then(|| ("key_in", self.key_in().show())),
            self.key_format.is_none().then(|| ("key_format", self.key_format().show())),
            self.key_charset.is_none().then(|| ("key_charset", KeyCharset::default().show())),
            self.min_key_len.is_none().then(|| ("min_key_len", KEY_LEN.0.to_string())),
            self.max_key_len.is_none().then(|| ("max_key_len", KEY_LEN.1.to_string())),
            self.margin.is_none().then(|| ("margin", DEFAULT_MARGIN.show())),
            (key && self.stores.is_none()).then(|| ("stores", Stores::default().show())),
        ];
        all.into_iter().flatten().collect()
    }

    /// Why a key means nothing on `method`; `None` where it does, or where nobody relies on it.
    pub(crate) fn refuses_method(&self, method: &str) -> Option<String> {
        let honoured =
            self.methods.as_ref().filter(|methods| !methods.iter().any(|known| known == method))?;
        (self.dedupe == Some(Dedupe::Key)).then(|| {
            format!(
                "the downstream honours the key on {} only: write contract = {{ dedupe = \"none\", on_unknown = \"retry\" }} for this operation where repeating it is harmless, or \"hold\" where it is not",
                honoured.join(", ")
            )
        })
    }

    /// Whether the downstream tells keys apart by the credential that they came with.
    pub(crate) fn is_scoped_by_credential(&self) -> bool {
        self.scope.iter().flatten().any(|word| word == "api-key")
    }

    /// Where the key stands.
    pub(crate) fn key_in(&self) -> KeyIn {
        self.key_in.clone().unwrap_or_else(|| KeyIn::Header("Idempotency-Key".to_owned()))
    }

    /// How the key is written.
    pub(crate) fn key_format(&self) -> KeyFormat {
        self.key_format.unwrap_or_default()
    }
}

fn key_len(key: &str, length: Option<u32>, default: u16) -> Result<u16, String> {
    match length.map(u16::try_from) {
        None => Ok(default),
        Some(Ok(length)) if (1..=255).contains(&length) => Ok(length),
        Some(_) => Err(format!("{key} must be from 1 to 255")),
    }
}
