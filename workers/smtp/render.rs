//! A mail as bytes: the same on every attempt. Every body is transfer-encoded, every line ends with CR LF, and none is longer
//! than a server must take; what the driver writes is never anybody else's raw text.

use std::time::{Duration, SystemTime};

use aftercommit::{clock::Timestamp, effect::Effect};
use lettre::message::{
    Body, MultiPart, SinglePart,
    header::{
        ContentDisposition, ContentId, ContentTransferEncoding, ContentType, Date, HeaderName, HeaderValue,
        Headers,
    },
};

use super::{
    address::{Mailbox, shown},
    header, identity,
    mail::{Attachment, Mail},
};

/// RFC 5322 §2.1.1: a line without its end.
const LINE_MAX: usize = 998;

/// What a message's parts are built with.
struct Parts<'a> {
    message_id: &'a str,
    payload: &'a str,
}

/// Renders `mail` as whole lines, each ended by CR LF, dots not yet doubled. `key_header` names one more header that carries the key.
pub(super) fn render(
    mail: &Mail,
    effect: &Effect,
    key: &str,
    key_header: Option<&str>,
) -> Result<Vec<u8>, String> {
    let message_id = identity::message_id(key, &effect.downstream, mail.from.address.domain());
    let mut headers = Headers::new();
    let mut put = |name: &str, encoded: String| -> Result<(), String> {
        let header = HeaderName::new_from_ascii(name.to_owned())
            .map_err(|_error| format!("{} is no name of a header", shown(name)))?;
        // Our own encoding: see `header`.
        headers.insert_raw(HeaderValue::dangerous_new_pre_encoded(header, String::new(), encoded));
        Ok(())
    };
    let mut addresses = |name: &str, mailboxes: &[Mailbox]| match mailboxes {
        [] => Ok(()),
        mailboxes => put(name, header::mailboxes(name, mailboxes)),
    };
    addresses("From", std::slice::from_ref(&mail.from))?;
    addresses("To", &mail.to)?;
    addresses("Cc", &mail.cc)?;
    addresses("Reply-To", &mail.reply_to)?;
    if mail.to.is_empty() && mail.cc.is_empty() {
        put("To", "undisclosed-recipients:;".to_owned())?;
    }
    put("Subject", header::text("Subject", mail.subject.as_deref().unwrap_or_default()))?;
    put("Message-ID", message_id.clone())?;
    if let Some(name) = key_header {
        put(name, key.to_owned())?;
    }
    for (name, value) in &mail.headers {
        if key_header.is_some_and(|ours| ours.eq_ignore_ascii_case(name)) {
            return Err(format!("the header {name} carries the key: leave it out"));
        }
        put(name, header::text(name, value))?;
    }
    headers.set(Date::new(when(effect.created_at)));
    let parts = Parts { message_id: &message_id, payload: effect.payload.as_deref().unwrap_or_default() };
    let mut bytes = format!("{headers}MIME-Version: 1.0\r\n").into_bytes();
    bytes.extend(match parts.body(mail)? {
        Part::Single(part) => alone(part.formatted()),
        Part::Multi(part) => part.formatted(),
    });
    check(&bytes, mail.needs_utf8())?;
    Ok(bytes)
}

/// A part is ended by the line end that belongs to the boundary after it. One that stands alone has no boundary: its own last line
/// end is enough.
fn alone(mut part: Vec<u8>) -> Vec<u8> {
    if part.ends_with(b"\r\n\r\n") {
        part.truncate(part.len() - 2);
    }
    part
}

/// Of a time that no calendar holds, the last second of the last year that a header can write.
fn when(at: Timestamp) -> SystemTime {
    const END_OF_9999: u64 = 253_402_300_799;
    let seconds = u64::try_from(at.micros()).unwrap_or(0) / 1_000_000;
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(END_OF_9999))
}

enum Part {
    Single(SinglePart),
    Multi(MultiPart),
}

fn into(multi: MultiPart, part: Part) -> MultiPart {
    match part {
        Part::Single(part) => multi.singlepart(part),
        Part::Multi(part) => multi.multipart(part),
    }
}

impl Parts<'_> {
    /// RFC 2046 §5.1: mixed [ alternative [ text, related [ html, inline … ] ], attachment … ], each only where there is more
    /// than one part for it.
    fn body(&self, mail: &Mail) -> Result<Part, String> {
        let text = mail.text.as_deref().map(|text| Part::Single(text_part(text, ContentType::TEXT_PLAIN)));
        let shown = match (text, self.html(mail)?) {
            (Some(text), Some(html)) => {
                let both = MultiPart::alternative().boundary(self.boundary("alternative")).build();
                Some(Part::Multi(into(into(both, text), html)))
            }
            (text, html) => text.or(html),
        };
        let mut files = mail.attachments.iter().filter(|file| file.inline.is_none()).peekable();
        if files.peek().is_none() {
            return shown.ok_or_else(|| "the payload has no text, html or attachments".to_owned());
        }
        let mixed = MultiPart::mixed().boundary(self.boundary("mixed")).build();
        let mixed = shown.into_iter().fold(mixed, into);
        files.try_fold(mixed, |mixed, file| Ok(mixed.singlepart(file_part(file)?))).map(Part::Multi)
    }

    fn html(&self, mail: &Mail) -> Result<Option<Part>, String> {
        let Some(html) = &mail.html else { return Ok(None) };
        let html = text_part(html, ContentType::TEXT_HTML);
        let mut files = mail.attachments.iter().filter(|file| file.inline.is_some()).peekable();
        if files.peek().is_none() {
            return Ok(Some(Part::Single(html)));
        }
        let related = MultiPart::related().boundary(self.boundary("related")).singlepart(html);
        let related =
            files.try_fold(related, |related, file| Ok::<_, String>(related.singlepart(file_part(file)?)))?;
        Ok(Some(Part::Multi(related)))
    }

    fn boundary(&self, level: &str) -> String {
        identity::boundary(self.message_id, self.payload, level)
    }
}

/// Text with lines as mail has them.
fn text_part(text: &str, content_type: ContentType) -> SinglePart {
    let lines = text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n");
    // Whichever is shorter, so that it stays readable wherever it can.
    let mostly_ascii = lines.bytes().filter(u8::is_ascii).count() * 3 >= lines.len() * 2;
    let encoding =
        if mostly_ascii { ContentTransferEncoding::QuotedPrintable } else { ContentTransferEncoding::Base64 };
    let body = Body::new_with_encoding(lines, encoding).unwrap_or_else(Body::new);
    SinglePart::builder().header(content_type).body(body)
}

fn file_part(file: &Attachment) -> Result<SinglePart, String> {
    let wrong = || {
        format!(
            "content_type of an attachment must be like application/pdf, and is {}",
            shown(&file.content_type)
        )
    };
    if !file.content_type.is_ascii() {
        return Err(wrong());
    }
    let content_type = ContentType::parse(&file.content_type).map_err(|_error| wrong())?;
    let mut part = SinglePart::builder().header(content_type);
    let disposition = match (&file.inline, &file.filename) {
        (Some(_), Some(name)) => ContentDisposition::inline_with_name(name),
        (Some(_), None) => ContentDisposition::inline(),
        (None, name) => ContentDisposition::attachment(name.as_deref().unwrap_or_default()),
    };
    if let Some(id) = &file.inline {
        part = part.header(ContentId::from(format!("<{id}>")));
    }
    let body = Body::new_with_encoding(file.content.clone(), ContentTransferEncoding::Base64)
        .unwrap_or_else(Body::new);
    Ok(part.header(disposition).body(body))
}

/// What must hold of every message, whoever rendered it.
fn check(bytes: &[u8], utf8: bool) -> Result<(), String> {
    let body = bytes.strip_suffix(b"\r\n").ok_or("the rendered mail does not end with a line")?;
    for line in body.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > LINE_MAX {
            return Err(format!("a line of the mail would be longer than {LINE_MAX} bytes"));
        }
        if line.iter().any(|byte| matches!(byte, b'\r' | b'\0') || (!utf8 && !byte.is_ascii())) {
            return Err("a line of the mail would hold what no line may hold".to_owned());
        }
    }
    let bare =
        bytes.windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r') || bytes.first() == Some(&b'\n');
    if bare {
        return Err("the rendered mail would have a line that does not end as lines do".to_owned());
    }
    Ok(())
}
