//! A mail as an effect's payload writes it, read and checked: what is wrong is a sentence, and nothing was sent.

use std::collections::BTreeSet;

use aftercommit::effect::{Effect, RECIPIENTS_MAX};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::value::RawValue;

use super::address::{Address, Mailbox, is_one_line, shown};
use crate::{
    json::{self, Shape},
    message,
};

/// A mail, and the one recipient that this effect sends it to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mail {
    pub(super) from: Mailbox,
    pub(super) to: Vec<Mailbox>,
    pub(super) cc: Vec<Mailbox>,
    pub(super) reply_to: Vec<Mailbox>,
    pub(super) recipient: Address,
    pub(super) subject: Option<String>,
    pub(super) text: Option<String>,
    pub(super) html: Option<String>,
    pub(super) attachments: Vec<Attachment>,
    pub(super) headers: Vec<(String, String)>,
}

/// A file that goes with a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) filename: Option<String>,
    pub(super) content_type: String,
    pub(super) content: Vec<u8>,
    /// What `cid:` in the HTML refers to.
    pub(super) inline: Option<String>,
}

/// The names that a payload may have.
const FIELDS: [&str; 10] =
    ["from", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "attachments", "headers"];

/// An object's members by name; of equal names the last counts, as in most readers.
struct Members<'a> {
    of: &'static str,
    members: Vec<(String, &'a RawValue)>,
}

impl<'a> Members<'a> {
    fn read(raw: &'a RawValue, of: &'static str, known: &[&str]) -> Result<Self, String> {
        let Shape::Object(members) = json::shape(raw).map_err(|problem| format!("{of} {problem}"))? else {
            return Err(format!("{of} must be an object"));
        };
        if let Some((name, _)) = members.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            return Err(format!("{of} has {}, which is none of {}", shown(name), known.join(", ")));
        }
        Ok(Self { of, members })
    }

    fn shape(&self, name: &str) -> Result<Option<Shape<'a>>, String> {
        let Some((_, raw)) = self.members.iter().rev().find(|(member, _)| member == name) else {
            return Ok(None);
        };
        match json::shape(raw).map_err(|problem| format!("{name} of {} {problem}", self.of))? {
            Shape::Null => Ok(None),
            shape @ (Shape::Object(_) | Shape::Array(_) | Shape::Text(_) | Shape::Plain(_)) => {
                Ok(Some(shape))
            }
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, String> {
        match self.shape(name)? {
            None => Ok(None),
            Some(Shape::Text(text)) => Ok(Some(text)),
            Some(Shape::Object(_) | Shape::Array(_) | Shape::Plain(_) | Shape::Null) => {
                Err(format!("{name} of {} must be a string", self.of))
            }
        }
    }

    /// Text for a header: one line.
    fn line(&self, name: &str) -> Result<Option<String>, String> {
        let text = self.text(name)?;
        if text.as_deref().is_some_and(|text| !is_one_line(text)) {
            return Err(format!("{name} of {} holds a line break or a control character", self.of));
        }
        Ok(text)
    }

    /// One address or a list of them.
    fn mailboxes(&self, name: &str) -> Result<Vec<Mailbox>, String> {
        let one = |shape| mailbox(shape).map_err(|problem| format!("{name}: {problem}"));
        match self.shape(name)? {
            None => Ok(Vec::new()),
            Some(Shape::Array(items)) => items
                .into_iter()
                .map(|raw| json::shape(raw).map_err(|problem| format!("{name} {problem}")).and_then(one))
                .collect(),
            Some(shape) => Ok(vec![one(shape)?]),
        }
    }
}

fn mailbox(shape: Shape<'_>) -> Result<Mailbox, String> {
    const FORM: &str = "an address must be a string, or an object of name and address";
    match shape {
        Shape::Text(text) => Mailbox::parse(&text),
        Shape::Object(members) => {
            let members = Members { of: "an address", members };
            let (name, address) = (members.text("name")?, members.text("address")?.ok_or(FORM)?);
            Mailbox::with_name(name.as_deref().unwrap_or_default(), &address)
        }
        Shape::Array(_) | Shape::Plain(_) | Shape::Null => Err(FORM.to_owned()),
    }
}

impl Mail {
    /// The mail that `effect` is; `from` stands in where the payload names no sender.
    pub(super) fn of(effect: &Effect, from: Option<&Mailbox>) -> Result<Self, String> {
        message::check_depth(effect)?;
        let payload = effect.payload.as_deref().ok_or("a mail is a payload, and this effect has none")?;
        let raw = json::value(payload).map_err(|problem| format!("the payload {problem}"))?;
        let members = Members::read(raw, "the payload", &FIELDS)?;
        let (to, cc, bcc) = (members.mailboxes("to")?, members.mailboxes("cc")?, members.mailboxes("bcc")?);
        if to.len() + cc.len() + bcc.len() > RECIPIENTS_MAX {
            return Err(format!("the payload names more than {RECIPIENTS_MAX} recipients in to, cc and bcc"));
        }
        let recipient = recipient(effect.target.as_deref(), [&to, &cc, &bcc])?;
        let mut senders = members.mailboxes("from")?.into_iter();
        let from = senders.next().or_else(|| from.cloned()).ok_or("the payload has no from")?;
        if senders.next().is_some() {
            return Err("from must be one address".to_owned());
        }
        let mail = Self {
            from,
            to,
            cc,
            reply_to: members.mailboxes("reply_to")?,
            recipient,
            subject: members.line("subject")?,
            text: members.text("text")?,
            html: members.text("html")?,
            attachments: attachments(&members)?,
            headers: headers(effect, &members)?,
        };
        if mail.text.is_none() && mail.html.is_none() && mail.attachments.is_empty() {
            return Err("the payload has no text, html or attachments".to_owned());
        }
        if mail.html.is_none() && mail.attachments.iter().any(|file| file.inline.is_some()) {
            return Err("an inline attachment needs html that shows it".to_owned());
        }
        Ok(mail)
    }

    /// Only a server with SMTPUTF8 takes it: an address has a local part beyond ASCII.
    pub(super) fn needs_utf8(&self) -> bool {
        let shown = [&self.to, &self.cc, &self.reply_to].into_iter().flatten().chain([&self.from]);
        self.recipient.needs_utf8() || shown.into_iter().any(|mailbox| mailbox.address.needs_utf8())
    }
}

/// The envelope's recipient: the effect's target, else the only one of the payload.
fn recipient(target: Option<&str>, lists: [&Vec<Mailbox>; 3]) -> Result<Address, String> {
    if let Some(target) = target {
        return Ok(Mailbox::parse(target).map_err(|problem| format!("target: {problem}"))?.address);
    }
    let mut several = lists.into_iter().flatten().map(|mailbox| &mailbox.address);
    let first = several.next().ok_or("the payload has no recipient in to, cc or bcc")?;
    if several.any(|other| other != first) {
        return Err("the payload has several recipients and the effect no target: an effect sends to one, enqueue() makes one of each".to_owned());
    }
    Ok(first.clone())
}

fn attachments(members: &Members<'_>) -> Result<Vec<Attachment>, String> {
    match members.shape("attachments")? {
        None => Ok(Vec::new()),
        Some(Shape::Array(items)) => items.into_iter().map(attachment).collect(),
        Some(Shape::Object(_) | Shape::Text(_) | Shape::Plain(_) | Shape::Null) => {
            Err("attachments must be a list".to_owned())
        }
    }
}

fn attachment(raw: &RawValue) -> Result<Attachment, String> {
    let fields = ["filename", "content_type", "content", "text", "inline"];
    let members = Members::read(raw, "an attachment", &fields)?;
    let (content, usual) = match (members.text("content")?, members.text("text")?) {
        (Some(encoded), None) => {
            let encoded: String = encoded.split_ascii_whitespace().collect();
            let content =
                STANDARD.decode(encoded).map_err(|_error| "content of an attachment is not base64")?;
            (content, "application/octet-stream")
        }
        (None, Some(text)) => (text.into_bytes(), "text/plain; charset=utf-8"),
        (None, None) | (Some(_), Some(_)) => {
            return Err("an attachment must have either content (base64) or text".to_owned());
        }
    };
    let content_type = members.line("content_type")?.unwrap_or_else(|| usual.to_owned());
    let container = ["multipart/", "message/"];
    if container.iter().any(|kind| content_type.trim().to_ascii_lowercase().starts_with(kind)) {
        // RFC 2046 §5.2.1: base64 is not allowed there, and what is not encoded could be changed on the way.
        return Err(format!(
            "an attachment cannot be {}: attach it as application/octet-stream",
            shown(&content_type)
        ));
    }
    let inline = members.line("inline")?;
    if inline.as_deref().is_some_and(|id| !is_content_id(id)) {
        return Err("inline of an attachment must be letters, digits and any of . _ - + @".to_owned());
    }
    let filename = members.line("filename")?;
    if filename.is_none() && inline.is_none() {
        return Err("an attachment must have a filename".to_owned());
    }
    Ok(Attachment { filename, content_type, content, inline })
}

fn is_content_id(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte);
    (1..=200).contains(&id.len()) && id.bytes().all(plain) && id.matches('@').count() <= 1
}

/// The effect's own headers and the payload's, in the order in which they were written.
fn headers(effect: &Effect, members: &Members<'_>) -> Result<Vec<(String, String)>, String> {
    let mut all = message::headers(effect)?;
    match members.shape("headers")? {
        None => {}
        Some(Shape::Object(given)) => {
            let given = Members { of: "headers", members: given };
            for (name, _) in &given.members {
                all.push((name.clone(), given.text(name)?.ok_or("headers must be an object of strings")?));
            }
        }
        Some(Shape::Array(_) | Shape::Text(_) | Shape::Plain(_) | Shape::Null) => {
            return Err("headers must be an object of strings".to_owned());
        }
    }
    let mut seen = BTreeSet::new();
    for (name, value) in &all {
        let is_name = (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        if !is_name {
            return Err(format!("{} is no name of a header", shown(name)));
        }
        if !is_one_line(value) {
            return Err(format!("the header {name} holds a line break or a control character"));
        }
        let lower = name.to_ascii_lowercase();
        if is_ours(&lower) {
            return Err(format!(
                "the header {name} is not yours to set: it follows from the rest of the mail"
            ));
        }
        if !seen.insert(lower) {
            return Err(format!("the header {name} stands there twice"));
        }
    }
    Ok(all)
}

/// Headers that the mail's own fields, the key or the way it travels make, in lower case.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with("content-")
        || name.starts_with("resent-")
        || name.starts_with("arc-")
        || matches!(
            name,
            "from"
                | "sender"
                | "to"
                | "cc"
                | "bcc"
                | "reply-to"
                | "subject"
                | "date"
                | "message-id"
                | "mime-version"
                | "return-path"
                | "received"
                | "delivered-to"
                | "dkim-signature"
                | "authentication-results"
        )
}
