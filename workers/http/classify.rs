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
use crate::config::{AnswerRule, Answers, Predicate, Wants};

/// An answer that was received whole, or up to the size limit.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    pub(super) truncated: bool,
}

/// What the retry directive says, if there is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Directive {
    Again,
    Never,
    Silent,
}

/// What `answer` shows. `place` is the origin, for people; `wall` is for a `Retry-After` date without a `Date`.
pub(super) fn classify(answers: &Answers, answer: Answer, place: &str, wall: Timestamp) -> Outcome {
    let json = parsed(&answer);
    let codes = codes(answers, json.as_ref());
    let replayed = is_replay(answers, &answer.headers);
    let reading = Reading { answers, answer: &answer, json: json.as_ref(), codes: &codes, replayed };
    let (finding, said) = reading.finding();
    let credentials_refused = reading.credentials_refused();
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
        credentials_refused,
        reason,
        response: Some(response),
    }
}

struct Reading<'a> {
    answers: &'a Answers,
    answer: &'a Answer,
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
            Finding::Rejected(_) if self.directive() == Directive::Again => {
                (Finding::Unknown, "the downstream says to try again")
            }
            Finding::Rejected(_) if self.is_stored_kind() => (Finding::Rejected(About::StoredKind), said),
            Finding::Unknown if status >= 500 => self.server_error(said),
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

    /// A server error is final where it is stored under the key: repeating the request repeats the answer.
    fn server_error(&self, said: &'static str) -> (Finding, &'static str) {
        match (self.answers.stores, self.directive()) {
            (Stores::Success, _) | (Stores::Any, Directive::Again) => (Finding::Unknown, said),
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
        let lists: [(&[AnswerRule], Finding, &'static str); 5] = [
            (&self.answers.mismatch, Finding::KeyReused, "the key is in use for another request"),
            (&self.answers.in_progress, Finding::InProgress, "a request with this key is in progress"),
            (&self.answers.already_done, Finding::AlreadyDone, "it had been done before"),
            (&self.answers.not_applied, Finding::NotApplied, "not applied"),
            (&self.answers.rejected, this, "refused"),
        ];
        let fits = lists.iter().flat_map(|(rules, finding, said)| {
            rules.iter().filter(|rule| self.fits(rule)).map(move |rule| (rule, *finding, *said))
        });
        // Of equally exact rules the first list wins: the loudest.
        fits.min_by_key(|(rule, _, _)| (rule.code.is_none(), rule.status))
            .map(|(_, finding, said)| (finding, said))
    }

    fn fits(&self, rule: &AnswerRule) -> bool {
        rule.status.fits(self.answer.status)
            && rule.code.as_ref().is_none_or(|code| self.codes.iter().any(|said| said == code))
    }

    fn is_stored_kind(&self) -> bool {
        self.answers.stores == Stores::Any && self.answers.stored.iter().any(|rule| self.fits(rule))
    }

    /// A rule of the contract knows better: some vendors refuse a single request with 403 and a machine code.
    fn credentials_refused(&self) -> bool {
        matches!(self.answer.status, 401 | 403 | 407) && !self.replayed && self.by_rule().is_none()
    }

    /// The default table.
    fn by_status(&self, status: u16) -> (Finding, &'static str) {
        match status {
            200..=299 => self.success(),
            303 => (Finding::Unknown, "the answer stands elsewhere; redirects are not followed"),
            300..=399 => (Finding::Rejected(About::ThisAttempt), "redirects are not followed"),
            401 | 403 | 407 => (Finding::NotApplied, "the credentials were refused"),
            421 | 425 | 429 => (Finding::NotApplied, "not now"),
            408 => (Finding::Unknown, "the downstream timed out"),
            400..=499 => (Finding::Rejected(About::ThisAttempt), "refused"),
            _ => (Finding::Unknown, "the outcome is unknown"),
        }
    }

    fn success(&self) -> (Finding, &'static str) {
        let Some(predicate) = &self.answers.success else { return (Finding::Applied, "") };
        if self.json.is_some_and(|json| holds(predicate, json)) {
            return (Finding::Applied, "");
        }
        (Finding::Unknown, "the body does not show the success that the contract asks for")
    }

    fn directive(&self) -> Directive {
        let header = self.answers.retry_directive.as_ref().and_then(|name| self.answer.headers.get(name));
        match header.map(|value| value.as_bytes().to_ascii_lowercase()).as_deref() {
            Some(b"true") => Directive::Again,
            Some(b"false") => Directive::Never,
            Some(_) | None => Directive::Silent,
        }
    }
}

/// The body as JSON. A depth that no reader takes, or a body that was cut, is none.
fn parsed(answer: &Answer) -> Option<serde_json::Value> {
    if answer.truncated { None } else { serde_json::from_slice(&answer.body).ok() }
}

fn codes(answers: &Answers, json: Option<&serde_json::Value>) -> Vec<String> {
    let Some(json) = json else { return Vec::new() };
    let at = |pointer: &String| match json.pointer(pointer)? {
        serde_json::Value::String(code) => Some(code.clone()),
        serde_json::Value::Number(code) => Some(code.to_string()),
        serde_json::Value::Bool(code) => Some(code.to_string()),
        serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => None,
    };
    answers.code_at.iter().filter_map(at).collect()
}

fn is_replay(answers: &Answers, headers: &HeaderMap) -> bool {
    let Some(marker) = &answers.replay_header else { return false };
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
