//! What a probe's answer shows: *found*, *absent*, or nothing that can be relied on. Pure.
//!
//! An answer is read as it is written ([`json`]), so that no number is rounded. A list counts only whole; one item of it that
//! is meant and shows that it was applied is proof wherever it stands.

use std::collections::HashSet;

use aftercommit::outcome::{Probed, Response, Sighting};
use serde_json::value::RawValue;

use super::{classify::Answer, form};
use crate::json::{self, Shape};

/// What is compared with what stands in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Exactly this JSON.
    Json(serde_json::Value),
    /// A string, number or boolean that reads so: an order 17 and an order "17" are the same.
    Reads(String),
}

impl Expected {
    fn is(&self, raw: &RawValue) -> bool {
        match self {
            Self::Json(wanted) => {
                serde_json::from_str::<serde_json::Value>(raw.get()).is_ok_and(|found| found == *wanted)
            }
            Self::Reads(wanted) => reads(raw).is_some_and(|found| found == *wanted),
        }
    }
}

/// What must stand at a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Equals(Expected),
    Differs(Expected),
    Exists,
}

/// A status, and a value in the body, or in the item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Predicate {
    pub(super) status: u16,
    pub(super) pointer: String,
    pub(super) wants: Wants,
}

impl Predicate {
    fn holds(&self, status: u16, body: &RawValue) -> bool {
        let Ok(Some(found)) = json::at(body, &self.pointer) else { return false };
        status == self.status
            && match &self.wants {
                Wants::Equals(wanted) => wanted.is(found),
                Wants::Differs(other) => !other.is(found) && found.get() != "null",
                Wants::Exists => found.get() != "null",
            }
    }
}

/// A question's answer, as it is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recognised {
    /// By one answer.
    One { found: Predicate, absent: Predicate },
    /// By an item of a list, read to its end.
    List { found: Predicate, list: List },
}

/// A list, page by page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// Where it stands.
    pub(super) any: String,
    /// Which item is meant.
    pub(super) matching: Vec<(String, Expected)>,
    /// Where an answer says whether there is more, and how the next page is asked for.
    pub(super) more: Option<(String, Cursor)>,
}

/// The query of the next page: what stands around the last item's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) before: String,
    pub(super) list: String,
    pub(super) item: String,
    pub(super) after: String,
}

/// What follows from a page.
#[derive(Debug)]
pub(super) enum Step {
    /// The question is answered.
    Said(Probed),
    /// The list goes on with this query.
    Ask(String),
}

/// The pages of one probe, as they come in.
pub(super) struct Reading<'a> {
    recognised: &'a Recognised,
    place: &'a str,
    /// Marks of the items seen: one that comes twice tells that the list changed while it was read.
    marks: HashSet<String>,
    /// The object stands there, and does not show that it was applied.
    unproven: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn of(recognised: &'a Recognised, place: &'a str) -> Self {
        Self { recognised, place, marks: HashSet::new(), unproven: false }
    }

    /// Reads one answer.
    pub(super) fn page(&mut self, answer: &Answer) -> Step {
        let place = self.place;
        let said = |sighting, what: &str| {
            let reason = format!("HTTP {} from {place}: {what}", answer.status);
            Step::Said(Probed::new(sighting, reason))
        };
        if answer.truncated {
            return said(Sighting::Unknown, "the answer was cut");
        }
        let body = std::str::from_utf8(&answer.body).ok().and_then(|text| json::value(text).ok());
        let Some(body) = body else { return said(Sighting::Unknown, "the answer is not JSON") };
        match self.recognised {
            Recognised::One { found, absent } => {
                match (found.holds(answer.status, body), absent.holds(answer.status, body)) {
                    (true, true) => said(Sighting::Unknown, "it would be both found and absent"),
                    (true, false) => found_as(said(Sighting::Applied, "found"), answer.status, body),
                    (false, true) => said(Sighting::Absent, "absent"),
                    (false, false) if answer.status == found.status => {
                        said(Sighting::Unproven, "neither found as applied nor absent")
                    }
                    (false, false) => said(Sighting::Unknown, "an answer that shows nothing"),
                }
            }
            Recognised::List { found, list } => match self.items(found, list, answer.status, body) {
                Ok(Step::Said(probed)) => Step::Said(probed),
                Ok(Step::Ask(query)) => Step::Ask(query),
                Err(what) => said(Sighting::Unknown, what),
            },
        }
    }

    fn items(
        &mut self,
        found: &Predicate,
        list: &List,
        status: u16,
        body: &RawValue,
    ) -> Result<Step, &'static str> {
        const NO_LIST: &str = "an answer that holds no list";
        if status != found.status {
            return Err("an answer that shows nothing");
        }
        let at = json::at(body, &list.any).ok().flatten().ok_or(NO_LIST)?;
        let Ok(Shape::Array(items)) = json::shape(at) else { return Err(NO_LIST) };
        let place = self.place;
        let said = |sighting, what: &str| {
            Step::Said(Probed::new(sighting, format!("HTTP {status} from {place}: {what}")))
        };
        for item in &items {
            let stands = |(pointer, expected): &(String, Expected)| {
                json::at(item, pointer).ok().flatten().is_some_and(|found| expected.is(found))
            };
            if !list.matching.iter().all(stands) {
                continue;
            }
            if found.holds(status, item) {
                return Ok(found_as(said(Sighting::Applied, "found in the list"), status, item));
            }
            self.unproven = true;
        }
        let next = match &list.more {
            None => None,
            Some((more, cursor)) => self.next(more, cursor, body)?,
        };
        Ok(match next {
            Some(query) => Step::Ask(query),
            None if self.unproven => said(Sighting::Unproven, "found in the list, and not as applied"),
            None => said(Sighting::Absent, "absent from the whole list"),
        })
    }

    /// The query of the next page; `None` when this was the last.
    fn next(&mut self, more: &str, cursor: &Cursor, body: &RawValue) -> Result<Option<String>, &'static str> {
        let goes_on = match json::at(body, more).ok().flatten().map(RawValue::get) {
            Some("true") => true,
            Some("false") => false,
            Some(_) | None => return Err("the list does not say whether it goes on"),
        };
        let at = json::at(body, &cursor.list).ok().flatten().map(json::shape);
        let Some(Ok(Shape::Array(items))) = at else { return Err("an answer that holds no list") };
        let mut last = None;
        for item in items {
            let mark = json::at(item, &cursor.item).ok().flatten().and_then(reads);
            let mark = mark.ok_or("an item of the list has no mark to go on from")?;
            if !self.marks.insert(mark.clone()) {
                return Err("the list changed while it was read: an item came twice");
            }
            last = Some(mark);
        }
        match (goes_on, last) {
            (false, _) => Ok(None),
            (true, Some(mark)) => {
                Ok(Some(format!("{}{}{}", cursor.before, form::encoded(&mark), cursor.after)))
            }
            (true, None) => Err("the list says that it goes on, and this page is empty"),
        }
    }
}

/// A string, number or boolean as text.
fn reads(raw: &RawValue) -> Option<String> {
    match json::shape(raw).ok()? {
        Shape::Text(text) => Some(text),
        Shape::Plain(text) => Some(text.to_owned()),
        Shape::Object(_) | Shape::Array(_) | Shape::Null => None,
    }
}

/// With the object as the effect's response.
fn found_as(step: Step, status: u16, object: &RawValue) -> Step {
    match step {
        Step::Said(probed) => {
            let body = object.get().as_bytes().to_vec();
            let response = Some(Response { status: Some(status), body, truncated: false });
            Step::Said(Probed { response, ..probed })
        }
        Step::Ask(query) => Step::Ask(query),
    }
}
