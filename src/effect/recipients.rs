//! Several targets of one intent: an effect of each, with keys that follow from one key. The same as
//! `aftercommit.mail_recipients` and `aftercommit.enqueue` make of a mail in SQL, held to shared vectors.

use std::collections::HashSet;

use serde_json::Value;

use super::{IdempotencyKey, InvalidEffect, NewEffect};

/// Most addresses in a mail's `to`, `cc` and `bcc`: each is an effect of its own, with all of the payload.
pub const RECIPIENTS_MAX: usize = 100;

/// Which of several targets' effects one is.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// The same for all of them and for nobody else; their key where none is given.
    pub(crate) of: IdempotencyKey,
    /// The first has the key itself, the others have keys that follow from it.
    pub(crate) is_first: bool,
}

impl NewEffect {
    /// One effect per target, in this order, each target once: for [`crate::Outbox::enqueue_many`]. The first has the key that this
    /// effect would have had, so that no other request can have it; each other has `derive(downstream, KEY, target)`. The same call
    /// again finds the same effects; with the targets in another order it is another request. What happens to one at the downstream
    /// changes nothing about the others.
    #[must_use]
    pub fn for_each_target(self, targets: impl IntoIterator<Item = impl Into<String>>) -> Vec<Self> {
        let of = IdempotencyKey::random();
        let mut seen = HashSet::new();
        let mut each: Vec<Self> = Vec::new();
        for target in targets {
            let target = target.into();
            if seen.insert(target.clone()) {
                let split = Split { of: of.clone(), is_first: each.is_empty() };
                each.push(Self { target: Some(target), split: Some(split), ..self.clone() });
            }
        }
        each
    }

    /// What `enqueue()` in SQL makes of it at a downstream of this kind: a mail is split among its recipients.
    pub(crate) fn at_kind(self, kind: Option<&str>) -> Result<Vec<Self>, InvalidEffect> {
        if kind == Some("smtp") { self.for_each_recipient() } else { Ok(vec![self]) }
    }

    /// [`Self::for_each_target`] for a mail: one effect per recipient in its payload's `to`, `cc` and `bcc`. Itself, where it has a
    /// target, no payload, or only one recipient (who becomes its target where several of the addresses are theirs).
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when the recipients cannot be read, or are more than [`RECIPIENTS_MAX`].
    pub fn for_each_recipient(self) -> Result<Vec<Self>, InvalidEffect> {
        let Some(payload) = self.payload.as_deref().filter(|_payload| self.target.is_none()) else {
            return Ok(vec![self]);
        };
        let addresses = addresses(payload)?;
        let several = addresses.len() > 1;
        let recipients = each_once(addresses);
        match recipients.as_slice() {
            [one] if several => Ok(vec![self.target(one)]),
            [] | [_] => Ok(vec![self]),
            [_, _, ..] => Ok(self.for_each_target(recipients)),
        }
    }
}

/// Who gets a mail: the recipients in its payload's `to`, `cc` and `bcc`, in this order, each once, as bare addresses with their
/// domains in lower case. What [`NewEffect::for_each_recipient`] makes effects for.
///
/// # Errors
///
/// [`InvalidEffect`] when the recipients cannot be read, or are more than [`RECIPIENTS_MAX`].
pub fn recipients_of(payload: &str) -> Result<Vec<String>, InvalidEffect> {
    addresses(payload).map(each_once)
}

fn each_once(addresses: Vec<String>) -> Vec<String> {
    let mut recipients: Vec<String> = Vec::new();
    for address in addresses {
        if !recipients.contains(&address) {
            recipients.push(address);
        }
    }
    recipients
}

/// The addresses of a mail as often as they stand there, in the order to, cc, bcc.
fn addresses(payload: &str) -> Result<Vec<String>, InvalidEffect> {
    let unreadable = || {
        InvalidEffect::column(
            "payload",
            "must have recipients that can be read: an address or a list of addresses in each of to, cc and bcc, and nowhere U+0000 \
             or half of a surrogate pair",
        )
    };
    // PostgreSQL reads no member of an object in which U+0000 stands anywhere.
    if super::holds_nul(payload) {
        return Err(unreadable());
    }
    let payload: Value = serde_json::from_str(payload).map_err(|_error| unreadable())?;
    let mut found: Vec<Option<String>> = Vec::new();
    for field in ["to", "cc", "bcc"] {
        let items = match payload.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(items)) => items.as_slice(),
            Some(item) => std::slice::from_ref(item),
        };
        if found.len() + items.len() > RECIPIENTS_MAX {
            return Err(InvalidEffect::column(
                "payload",
                format!("must name at most {RECIPIENTS_MAX} recipients in to, cc and bcc"),
            ));
        }
        found.extend(items.iter().map(address));
    }
    found.into_iter().collect::<Option<_>>().ok_or_else(unreadable)
}

/// The address of an item, its domain in lower case. A list in one string is none: of `"Ann" <a@x.test>, "Bob" <b@x.test>` nobody
/// must get lost.
fn address(item: &Value) -> Option<String> {
    let blank = [' ', '\t'];
    let written = item.as_str().or_else(|| item.get("address")?.as_str())?.trim_matches(blank);
    let framed = written.strip_suffix('>').and_then(|rest| rest.rsplit_once('<'));
    let (name, bare) = framed.unwrap_or(("", written));
    let name = name.trim_matches(blank);
    if !is_quoted(name) && name.contains(['<', '>', '@', ',', ';']) {
        return None;
    }
    let bare = bare.trim_matches(blank);
    match bare.rsplit_once('@') {
        _ if bare.is_empty() => None,
        Some((local, domain)) => Some(format!("{local}@{}", domain.to_ascii_lowercase())),
        None => Some(bare.to_owned()),
    }
}

/// Whether `text` is one quoted string from end to end (RFC 5322 §3.2.4).
pub fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let mut escaped = false;
    for c in inner.chars() {
        if c == '"' && !escaped {
            return false;
        }
        escaped = c == '\\' && !escaped;
    }
    !escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Shared {
        vectors: Vec<Vector>,
    }

    #[derive(serde::Deserialize)]
    struct Vector {
        case: String,
        payload: String,
        recipients: Option<Vec<String>>,
        targeted: bool,
        keys: Vec<String>,
    }

    /// The same file is held against the functions of PostgreSQL.
    #[test]
    fn recipients_and_their_keys_are_those_of_the_shared_vectors() {
        let shared: Shared =
            serde_json::from_str(include_str!("../../tests/vectors/mail_recipients.json")).unwrap();
        assert!(shared.vectors.len() >= 12);
        for vector in shared.vectors {
            let mail = NewEffect::to("mail").key(IdempotencyKey::parse("order-17").unwrap());
            let each = mail.json_text(vector.payload).unwrap().for_each_recipient();
            let Some(recipients) = vector.recipients else {
                assert!(each.is_err(), "{}", vector.case);
                continue;
            };
            let each = each.unwrap_or_else(|error| panic!("{}: {error}", vector.case));
            let targets: Vec<_> = each.iter().filter_map(|one| one.target.clone()).collect();
            assert_eq!(targets, if vector.targeted { recipients } else { Vec::new() }, "{}", vector.case);
            let keys: Vec<_> = each.iter().map(|one| crate::key::of_effect(one, None).to_string()).collect();
            assert_eq!(keys, vector.keys, "{}", vector.case);
        }
    }

    #[test]
    fn a_mail_has_at_most_a_hundred_recipients() {
        let mail = |to: usize, cc: usize| {
            let many = |count: usize| (0..count).map(|n| format!("a{n}@x.test")).collect::<Vec<_>>();
            let payload = serde_json::json!({ "to": many(to), "cc": many(cc) });
            NewEffect::to("mail").json(&payload).unwrap().for_each_recipient()
        };
        assert_eq!(mail(100, 0).unwrap().len(), 100);
        assert_eq!(mail(50, 50).unwrap().len(), 50, "each once");
        for (to, cc) in [(101, 0), (51, 50), (0, 50_000)] {
            assert!(mail(to, cc).unwrap_err().to_string().contains("at most 100 recipients"), "{to} {cc}");
        }
    }

    #[test]
    fn only_one_string_from_end_to_end_is_quoted() {
        for yes in [r#""""#, r#""Lee, Ann""#, r#""a \"b\" <c@d>""#, r#""\\""#] {
            assert!(is_quoted(yes), "{yes}");
        }
        for no in ["", "\"", "Ann", r#""a" "b""#, r#""Ann" <a@x.test>, "Bob""#, r#""a\""#, r#""a\\"b""#] {
            assert!(!is_quoted(no), "{no}");
        }
    }

    #[test]
    fn without_a_key_the_targets_still_have_keys_of_one_origin() {
        let each = NewEffect::to("hooks").for_each_target(["a", "b", "a"]);
        let keys: Vec<_> = each.iter().map(|one| crate::key::of_effect(one, None)).collect();
        assert_eq!(each.len(), 2);
        assert_eq!(keys[1], crate::key::derive("hooks", keys[0].as_str(), "b"));
        assert_eq!(keys[0], crate::key::of_effect(&each[0], None), "asked twice");
    }
}
