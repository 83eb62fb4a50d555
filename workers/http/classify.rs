//! What an answer shows: status, machine code and markers, by the contract's rules and then by the default table.
//!
//! Pure. The reason names the status and a machine code, never anything else that the downstream said.

use aftercommit::{
    clock::Timestamp,
    contract::Stores,
    outcome::{About, Finding, Outcome, Phase, Response},
};
use reqwest::header::{HeaderMap, LOCATION};

use super::retry_after::retry_after;
use crate::{
    config::{AnswerRule, Answers, Marker, Predicate, Wants},
    json,
};

/// An answer that was received whole, or up to the size limit.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    pub(super) truncated: bool,
}

/// What is said where nothing more is known.
const UNKNOWN: &str = "the outcome is unknown; look there for what the key stands for";

const REFUSED: &str = "refused: its answer says why";
const KEY_IN_USE: &str = "the key is in use for another request: write a new effect with a new key";
const KEY_PERHAPS_IN_USE: &str =
    "by its status, the key is in use for another request: its answer says whether it is";

/// Who was asked: whose refusal of credentials an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A place that an operator chose, by `base_url` or as one that gets our credentials.
    Chosen,
    /// A URL that an effect named, without our credentials: there are none to mend.
    Named,
}

/// What the retry directive says, if there is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Directive {
    /// Nothing was done, and it may be tried again.
    NothingDone,
    Again,
    Never,
    Silent,
}

/// What `answer` shows. `place` is the origin, for people; `wall` is for a `Retry-After` date without a `Date`.
pub(super) fn classify(
    answers: &Answers,
    answer: Answer,
    asked: Asked,
    place: &str,
    wall: Timestamp,
) -> Outcome {
    let json = parsed(&answer);
    let codes = codes(answers, json.as_ref());
    let mut reading =
        Reading { answers, answer: &answer, asked, json: json.as_ref(), codes: &codes, replayed: false };
    reading.replayed = reading.is_replay();
    let replayed = reading.replayed;
    let (finding, said) = reading.finding();
    let refuses_us = reading.refuses_us();
    let retry_after = match finding {
        Finding::Applied | Finding::AlreadyDone => None,
        Finding::Rejected(_)
        | Finding::KeyReused
        | Finding::StoredError
        | Finding::NotApplied
        | Finding::Unknown
        | Finding::InProgress
        | Finding::LeaseEnded => retry_after(&answer.headers, wall),
    };
    let reason = match (finding, said) {
        (Finding::Applied, _) => String::new(),
        (_, said) => reason(&answer, &codes, place, said),
    };
    let response = Response { status: Some(answer.status), body: answer.body, truncated: answer.truncated };
    Outcome {
        finding,
        phase: Phase::Done,
        replayed,
        retry_after,
        refuses_us,
        reason,
        response: Some(response),
    }
}

struct Reading<'a> {
    answers: &'a Answers,
    answer: &'a Answer,
    asked: Asked,
    json: Option<&'a serde_json::Value>,
    codes: &'a [String],
    replayed: bool,
}

impl Reading<'_> {
    /// The finding, and what it means where the status does not say it.
    fn finding(&self) -> (Finding, &'static str) {
        let status = self.answer.status;
        let by_rule = self.by_rule();
        let (finding, said) = match by_rule {
            Some(found) => found,
            None => self.by_status(status),
        };
        match finding {
            Finding::Rejected(_) if self.replayed => {
                (Finding::Rejected(About::FirstRequest), "the stored answer to the first request")
            }
            Finding::Rejected(_) | Finding::Unknown if self.directive() == Directive::NothingDone => {
                (Finding::NotApplied, "the downstream says that nothing was done, and to try again")
            }
            Finding::Rejected(_) if self.directive() == Directive::Again => {
                (Finding::Unknown, "the downstream says to try again")
            }
            Finding::Rejected(_) if self.is_stored_kind() => (Finding::Rejected(About::StoredKind), said),
            Finding::Applied | Finding::AlreadyDone if self.directive() == Directive::NothingDone => {
                (Finding::Unknown, "it reads as done, and the downstream says that nothing was")
            }
            Finding::Unknown if status >= 500 || self.is_listed_unknown() => self.of_no_use_again(said),
            Finding::Applied
            | Finding::AlreadyDone
            | Finding::Rejected(_)
            | Finding::KeyReused
            | Finding::StoredError
            | Finding::NotApplied
            | Finding::Unknown
            | Finding::InProgress
            | Finding::LeaseEnded => (finding, said),
        }
    }

    /// A server error, or what the contract lists as unknown, is final where it is stored under the key: repeating the
    /// request repeats the answer.
    fn of_no_use_again(&self, said: &'static str) -> (Finding, &'static str) {
        match (self.answers.stores, self.directive()) {
            (Stores::Success, _) | (Stores::Any, Directive::Again | Directive::NothingDone) => {
                (Finding::Unknown, said)
            }
            (Stores::Any, Directive::Never) => (Finding::StoredError, "the downstream says not to try again"),
            (Stores::Any, Directive::Silent) if self.replayed => {
                (Finding::StoredError, "the stored answer to the first request")
            }
            (Stores::Any, Directive::Silent) => (Finding::Unknown, said),
        }
    }

    /// The contract's rules: one with a machine code before one without, an exact status before a class of them.
    fn by_rule(&self) -> Option<(Finding, &'static str)> {
        let this = Finding::Rejected(About::ThisAttempt);
        let lists: [(&[AnswerRule], Finding, &'static str); 7] = [
            (&self.answers.mismatch, Finding::KeyReused, KEY_IN_USE),
            (&self.answers.in_progress, Finding::InProgress, "a request with this key is in progress"),
            (&self.answers.already_done, Finding::AlreadyDone, "it had been done before"),
            (
                &self.answers.frees_key,
                Finding::StoredError,
                "the key is free again: a repetition would be another request",
            ),
            (&self.answers.unknown, Finding::Unknown, UNKNOWN),
            (&self.answers.not_applied, Finding::NotApplied, "not applied"),
            (&self.answers.rejected, this, REFUSED),
        ];
        let fits = lists.iter().flat_map(|(rules, finding, said)| {
            rules.iter().filter(|rule| self.fits(rule)).map(move |rule| (rule, *finding, *said))
        });
        // Of equally exact rules the first list wins: the loudest.
        let (rule, finding, said) = fits.min_by_key(|(rule, _, _)| (rule.code.is_none(), rule.status))?;
        // A status alone may mean something else too, which whoever looks into it must know.
        let unsure = finding == Finding::KeyReused && rule.code.is_none();
        Some((finding, if unsure { KEY_PERHAPS_IN_USE } else { said }))
    }

    fn fits(&self, rule: &AnswerRule) -> bool {
        rule.status.fits(self.answer.status)
            && rule.code.as_ref().is_none_or(|code| self.codes.iter().any(|said| said == code))
    }

    fn is_listed_unknown(&self) -> bool {
        self.answers.unknown.iter().any(|rule| self.fits(rule))
    }

    fn is_stored_kind(&self) -> bool {
        self.answers.stores == Stores::Any && self.answers.stored.iter().any(|rule| self.fits(rule))
    }

    /// A rule of the contract knows better: some vendors refuse a single request with 403 and a machine code.
    fn refuses_us(&self) -> bool {
        self.asked == Asked::Chosen
            && matches!(self.answer.status, 401 | 403 | 407)
            && !self.replayed
            && self.by_rule().is_none()
    }

    /// The default table.
    fn by_status(&self, status: u16) -> (Finding, &'static str) {
        match status {
            200..=299 => self.success(),
            303 => {
                (Finding::Unknown, "the answer stands elsewhere, and redirects are not followed: look there")
            }
            300..=399 => {
                (Finding::Rejected(About::ThisAttempt), "redirects are not followed: correct the URL")
            }
            // Asked again, it would say the same: nobody pauses for it, and nobody mends what was not sent.
            401 | 403 | 407 if self.asked == Asked::Named => (
                Finding::Rejected(About::ThisAttempt),
                "refused; our credentials go to no origin but those in egress.auth_origins",
            ),
            401 | 403 | 407 => {
                (Finding::NotApplied, "the credentials were refused: renew the secret that auth names")
            }
            421 | 425 | 429 => (Finding::NotApplied, "not now"),
            408 => (Finding::Unknown, "the downstream timed out; look there for what the key stands for"),
            400..=499 => (Finding::Rejected(About::ThisAttempt), REFUSED),
            _ => (Finding::Unknown, UNKNOWN),
        }
    }

    fn success(&self) -> (Finding, &'static str) {
        let Some(predicate) = &self.answers.success else { return (Finding::Applied, "") };
        if self.json.is_some_and(|json| holds(predicate, json)) {
            return (Finding::Applied, "");
        }
        (
            Finding::Unknown,
            "the body does not show the success that the contract asks for: look there, and at contract.success",
        )
    }

    fn directive(&self) -> Directive {
        let Some(marker) = &self.answers.retry_directive else { return Directive::Silent };
        let said = self.answer.headers.get(&marker.name).map(|value| value.as_bytes().to_ascii_lowercase());
        match (&marker.value, said.as_deref()) {
            (Some(wanted), Some(said)) if wanted.as_bytes().eq_ignore_ascii_case(said) => {
                Directive::NothingDone
            }
            (Some(_), _) => Directive::Never,
            (None, Some(b"true")) => Directive::Again,
            (None, Some(b"false")) => Directive::Never,
            (None, Some(_) | None) => Directive::Silent,
        }
    }

    fn is_replay(&self) -> bool {
        let answers = self.answers;
        answers.replay_header.as_ref().is_some_and(|marker| is_marked(marker, &self.answer.headers))
            || answers.replay_status.iter().any(|rule| self.fits(rule))
    }
}

/// The body as JSON. A depth that no reader takes, or a body that was cut, is none.
fn parsed(answer: &Answer) -> Option<serde_json::Value> {
    if answer.truncated { None } else { serde_json::from_slice(&answer.body).ok() }
}

/// The machine codes of an answer: whatever plain values stand at the contract's pointers.
fn codes(answers: &Answers, json: Option<&serde_json::Value>) -> Vec<String> {
    let mut codes = Vec::new();
    for pointer in &answers.code_at {
        let Some(json) = json else { break };
        let steps: Vec<_> = json::steps(pointer).collect();
        collect(json, &steps, &mut codes);
    }
    codes
}

/// Adds what stands at `steps` below `json`. A step `*` is every item of a list: which of several errors the code is of, no
/// vendor promises.
fn collect(json: &serde_json::Value, steps: &[String], codes: &mut Vec<String>) {
    let Some((step, rest)) = steps.split_first() else {
        match json {
            serde_json::Value::String(code) => codes.push(code.clone()),
            serde_json::Value::Number(code) => codes.push(code.to_string()),
            serde_json::Value::Bool(code) => codes.push(code.to_string()),
            serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => {}
        }
        return;
    };
    match json {
        serde_json::Value::Array(items) if step == "*" => {
            items.iter().for_each(|item| collect(item, rest, codes));
        }
        serde_json::Value::Array(items) => {
            if let Some(item) = step.parse().ok().and_then(|index: usize| items.get(index)) {
                collect(item, rest, codes);
            }
        }
        serde_json::Value::Object(members) => {
            if let Some(member) = members.get(step) {
                collect(member, rest, codes);
            }
        }
        serde_json::Value::Null
        | serde_json::Value::String(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::Bool(_) => {}
    }
}

fn is_marked(marker: &Marker, headers: &HeaderMap) -> bool {
    headers.get_all(&marker.name).iter().any(|value| match &marker.value {
        Some(wanted) => value.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()),
        None => !value.as_bytes().eq_ignore_ascii_case(b"false"),
    })
}

fn holds(predicate: &Predicate, json: &serde_json::Value) -> bool {
    let found = json.pointer(&predicate.pointer);
    match &predicate.wants {
        Wants::Equals(wanted) => found == Some(wanted),
        Wants::Differs(other) => found.is_some_and(|found| found != other),
        Wants::Exists => found.is_some_and(|found| !found.is_null()),
    }
}

/// Longest machine code that a reason repeats, in bytes: they are words, not messages.
const CODE_MAX: usize = 64;

fn reason(answer: &Answer, codes: &[String], place: &str, said: &str) -> String {
    let mut reason = format!("HTTP {} from {place}", answer.status);
    let word = |code: &&String| {
        code.len() <= CODE_MAX
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    let words: Vec<_> = codes.iter().filter(word).map(String::as_str).collect();
    if !words.is_empty() {
        reason.push_str(&format!(" ({})", words.join(", ")));
    }
    reason.push_str(": ");
    reason.push_str(said);
    if (300..400).contains(&answer.status) {
        reason.push_str(&match location(&answer.headers) {
            Some(location) => format!("; Location: {location}"),
            None => "; without a Location".to_owned(),
        });
    }
    reason
}

/// Where a redirect leads, as far as it can be shown: a path or query may repeat a secret of ours.
fn location(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(LOCATION)?.to_str().ok()?;
    let shown = match url::Url::parse(text) {
        Ok(url) => match url.host_str() {
            Some(host) => {
                let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                format!("{}://{host}{port}/…", url.scheme())
            }
            None => format!("{}:…", url.scheme()),
        },
        Err(_) => "a path of the same origin".to_owned(),
    };
    Some(shown)
}
