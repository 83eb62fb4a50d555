//! Probes of the `http` kind: the question about an effect, rendered from its stored row, and the pages of its answer.
//!
//! The same client as for attempts: no redirect is followed, nothing is resent, the origin is the downstream's own.

use aftercommit::{
    downstream::Probe,
    effect::{Effect, PAYLOAD_DEPTH_MAX, depth},
    outcome::{Contact, Probed, Sighting},
};
use reqwest::Method;
use tokio::time::Instant;

use super::{
    HttpDownstream,
    config::Call,
    predicate::{Cursor, Expected, List, Predicate, Reading, Recognised, Step, Wants},
    request,
    retry_after::retry_after,
    send::{self, Failure},
    template::{self, Template, Text},
};
use crate::config::{ConfigError, Operation, Section, Sight, Wants as Written, WrittenProbe, is_pointer};

/// How an operation is asked about, as it is configured.
#[derive(Clone, Debug)]
pub(super) struct Question {
    method: Method,
    path: Template,
    found: Sought,
    by: By,
}

/// How an absence is recognised.
#[derive(Clone, Debug)]
enum By {
    Answer(Sought),
    List { any: String, matching: Vec<(String, Value)>, more: Option<(String, Cursor)>, max: u32 },
}

/// A predicate with placeholders.
#[derive(Clone, Debug)]
struct Sought {
    status: u16,
    pointer: String,
    wants: SoughtValue,
}

#[derive(Clone, Debug)]
enum SoughtValue {
    Equals(Value),
    Differs(Value),
    Exists,
}

/// A value to compare with.
#[derive(Clone, Debug)]
enum Value {
    Json(serde_json::Value),
    Text(Text),
}

impl Question {
    /// Reads the probe of an operation, if its contract has one.
    pub(super) fn read(section: &Section<'_>, operation: &Operation) -> Result<Option<Self>, ConfigError> {
        let Some(written) = operation.probe.as_ref().filter(|_| operation.contract.can_probe) else {
            return Ok(None);
        };
        Self::of(written).map(Some).map_err(|(key, problem)| {
            let key = if key.is_empty() { "probe".to_owned() } else { format!("probe.{key}") };
            section.error(&key, problem)
        })
    }

    /// The error is (key, problem).
    fn of(written: &WrittenProbe) -> Result<Self, (&'static str, String)> {
        let method = match written.method.as_deref() {
            None | Some("GET") => Method::GET,
            Some("POST") => Method::POST,
            Some(_) => return Err(("method", "must be \"GET\" or \"POST\"".to_owned())),
        };
        let path = written.path.as_deref().ok_or(("path", "is missing: it says where to ask".to_owned()))?;
        let path = Template::parse(path).map_err(|problem| ("path", problem))?;
        let missing = "is missing: it says by what body one knows that it was applied";
        let found = written.found.as_ref().ok_or(("found", missing.to_owned()))?;
        let found = Sought::of(found).map_err(|problem| ("found", problem))?;
        let by = match (&written.any, &written.matching) {
            (None, None) if written.pages.is_some() => {
                return Err(("pages", "goes with any and where: they say which list is read".to_owned()));
            }
            (None, None) => {
                let missing = "is missing: it says by what body one knows that it is not there";
                let absent = written.absent.as_ref().ok_or(("absent", missing.to_owned()))?;
                let absent = Sought::of(absent).map_err(|problem| ("absent", problem))?;
                if !exclusive(&found, &absent) && !exclusive(&absent, &found) {
                    return Err((
                        "absent",
                        "and found could both hold of one answer: let them ask for another status, or for other values at one pointer".to_owned(),
                    ));
                }
                By::Answer(absent)
            }
            (Some(any), Some(matching)) if is_pointer(any) => list(written, any, &matching.0)?,
            (Some(_), Some(_)) => return Err(("any", "must be a JSON pointer such as \"/data\"".to_owned())),
            (Some(_), None) => {
                return Err(("where", "is missing: it says which item of the list is meant".to_owned()));
            }
            (None, Some(_)) => {
                return Err((
                    "any",
                    "is missing: it says where the list stands, such as \"/data\"".to_owned(),
                ));
            }
        };
        Ok(Self { method, path, found, by })
    }

    fn recognised(&self, effect: &Effect, key: &str) -> Result<Recognised, String> {
        let found = self.found.render(effect, key)?;
        Ok(match &self.by {
            By::Answer(absent) => Recognised::One { found, absent: absent.render(effect, key)? },
            By::List { any, matching, more, .. } => {
                let render = |(pointer, value): &(String, Value)| {
                    value.render(effect, key).map(|value| (pointer.clone(), value))
                };
                let matching = matching.iter().map(render).collect::<Result<_, String>>()?;
                Recognised::List { found, list: List { any: any.clone(), matching, more: more.clone() } }
            }
        })
    }

    fn pages_max(&self) -> u32 {
        match self.by {
            By::Answer(_) => 1,
            By::List { max, .. } => max,
        }
    }
}

fn list(
    written: &WrittenProbe,
    any: &str,
    matching: &std::collections::BTreeMap<String, serde_json::Value>,
) -> Result<By, (&'static str, String)> {
    if written.absent.as_ref().is_some_and(|absent| absent.body.is_some() || absent.status.is_some()) {
        return Err((
            "absent",
            "is that no item of the whole list is meant by where: leave it out beside any".to_owned(),
        ));
    }
    let pages = written.pages.as_ref().ok_or((
        "pages",
        "is missing: a list counts only whole, so say how it goes on, or { max = 1 } where one answer is always the whole list".to_owned(),
    ))?;
    let value = |(pointer, value): (&String, &serde_json::Value)| {
        Value::of(value).map(|value| (pointer.clone(), value))
    };
    let matching =
        matching.iter().map(value).collect::<Result<_, _>>().map_err(|problem| ("where", problem))?;
    let more = match &pages.more {
        None => None,
        Some((more, next)) => {
            Some((more.clone(), Cursor::parse(next).map_err(|problem| ("pages", problem))?))
        }
    };
    Ok(By::List { any: any.to_owned(), matching, more, max: pages.max })
}

impl Cursor {
    fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "next must hold {last:LIST:ITEM} once, such as \"starting_after={last:/data:/id}\"";
        let (before, rest) = text.split_once("{last:").ok_or(FORM)?;
        let (mark, after) = rest.split_once('}').ok_or(FORM)?;
        let (list, item) = mark.split_once(':').ok_or(FORM)?;
        if !is_pointer(list) || !is_pointer(item) || before.is_empty() {
            return Err(FORM.to_owned());
        }
        for part in [before, after] {
            template::literal(part).map_err(|problem| format!("next {problem}"))?;
        }
        Ok(Self {
            before: before.to_owned(),
            list: list.to_owned(),
            item: item.to_owned(),
            after: after.to_owned(),
        })
    }
}

impl Sought {
    fn of(sight: &Sight) -> Result<Self, String> {
        let Some((pointer, wants)) = &sight.body else {
            return Err(
                "must name a pointer and what stands there: a status alone may be anybody's".to_owned()
            );
        };
        let wants = match wants {
            Written::Equals(value) => SoughtValue::Equals(Value::of(value)?),
            Written::Differs(value) => SoughtValue::Differs(Value::of(value)?),
            Written::Exists => SoughtValue::Exists,
        };
        Ok(Self { status: sight.status.unwrap_or(200), pointer: pointer.clone(), wants })
    }

    fn render(&self, effect: &Effect, key: &str) -> Result<Predicate, String> {
        let wants = match &self.wants {
            SoughtValue::Equals(value) => Wants::Equals(value.render(effect, key)?),
            SoughtValue::Differs(value) => Wants::Differs(value.render(effect, key)?),
            SoughtValue::Exists => Wants::Exists,
        };
        Ok(Predicate { status: self.status, pointer: self.pointer.clone(), wants })
    }
}

impl Value {
    fn of(value: &serde_json::Value) -> Result<Self, String> {
        let text = value.as_str().map(Text::parse).transpose()?.flatten();
        Ok(text.map_or_else(|| Self::Json(value.clone()), Self::Text))
    }

    fn render(&self, effect: &Effect, key: &str) -> Result<Expected, String> {
        match self {
            Self::Json(value) => Ok(Expected::Json(value.clone())),
            Self::Text(text) => text.render(effect, key).map(Expected::Reads),
        }
    }
}

/// Whether `other` cannot hold of an answer of which `one` holds.
fn exclusive(one: &Sought, other: &Sought) -> bool {
    if one.status != other.status {
        return true;
    }
    // Known are only the bytes that `one` asks for: what stands below its pointer, or at it.
    let SoughtValue::Equals(Value::Json(value)) = &one.wants else { return false };
    let Some(below) = other.pointer.strip_prefix(&one.pointer) else { return false };
    if !below.is_empty() && !below.starts_with('/') {
        return false;
    }
    match (value.pointer(below), &other.wants) {
        (None, _) => true,
        (Some(found), SoughtValue::Exists) => found.is_null(),
        (Some(found), SoughtValue::Equals(Value::Json(wanted))) => found != wanted,
        (Some(found), SoughtValue::Differs(Value::Json(unwanted))) => found == unwanted,
        // What an effect brings is a string, number or boolean, and never empty.
        (Some(found), SoughtValue::Equals(Value::Text(_))) => {
            found.is_null() || found.is_array() || found.is_object() || found.as_str() == Some("")
        }
        (Some(_), SoughtValue::Differs(Value::Text(_))) => false,
    }
}

impl HttpDownstream {
    /// Asks page by page.
    pub(super) async fn ask(&self, call: &Call, question: &Question, probe: &Probe) -> Probed {
        let deadline = Instant::now() + probe.timeout;
        let impossible = |problem: String| {
            Probed::new(Sighting::Impossible, format!("it cannot be asked about: {problem}"))
        };
        let effect = &probe.effect;
        let place = self.http.base.as_ref().map(request::place).unwrap_or_default();
        for text in [&effect.payload, &effect.metadata] {
            if text.as_ref().is_some_and(|text| depth(text) > PAYLOAD_DEPTH_MAX) {
                return impossible(format!("it nests deeper than {PAYLOAD_DEPTH_MAX} levels"));
            }
        }
        let rendered = question.path.render(effect, &probe.key);
        let (path, query) = match rendered {
            Ok(rendered) => rendered,
            Err(problem) => return impossible(problem),
        };
        let recognised = match question.recognised(effect, &probe.key) {
            Ok(recognised) => recognised,
            Err(problem) => return impossible(format!("the probe {problem}")),
        };
        let mut reading = Reading::of(&recognised, &place);
        let mut next: Option<String> = None;
        for _page in 0..question.pages_max() {
            let queries = [query.as_deref(), next.as_deref()];
            let mut rendered = match request::question(&self.http, &question.method, &path, &queries) {
                Ok(rendered) => rendered,
                Err(problem) => return impossible(problem),
            };
            send::authenticate(&mut rendered.headers, self.credential.as_ref());
            if let Err(closed) = probe.may_begin() {
                return Probed::new(Sighting::Unknown, send::not_begun(closed));
            }
            let until = deadline.min(Instant::now() + call.timeout);
            let exchanged =
                send::exchange(&self.client, rendered, &place, until, self.http.max_response).await;
            let answer = match exchanged {
                Ok(answer) => answer,
                Err(Failure::NotBegun(why) | Failure::NoAnswer(why) | Failure::Cut(_, why)) => {
                    let contact = Contact::Failed;
                    return Probed { contact, ..Probed::new(Sighting::Unknown, why) };
                }
            };
            match reading.page(&answer) {
                Step::Ask(query) => next = Some(query),
                Step::Said(probed) => {
                    let asked = retry_after(&answer.headers, self.clock.wall());
                    let contact = contact(probed.sighting, answer.status);
                    return Probed { contact, retry_after: asked, ..probed };
                }
            }
        }
        let max = question.pages_max();
        let unread = format!("the list has more than {max} pages, and was not read whole");
        Probed { contact: Contact::Answered, ..Probed::new(Sighting::Unknown, unread) }
    }
}

/// What an answer says of the origin, as a call's would: one that the contract recognises is a sound one, whatever its status.
fn contact(sighting: Sighting, status: u16) -> Contact {
    match (sighting, status) {
        (Sighting::Applied | Sighting::Unproven | Sighting::Absent | Sighting::Impossible, _) => {
            Contact::Answered
        }
        (Sighting::Unknown, 401 | 403 | 407) => Contact::Refused,
        (Sighting::Unknown, 408 | 500..) => Contact::Failed,
        (Sighting::Unknown, _) => Contact::Answered,
    }
}
