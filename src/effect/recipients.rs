//! Several targets of one intent: an effect of each, with keys that follow from one key. The same as
//! `aftercommit.mail_recipients` and `aftercommit.enqueue` make of a mail in SQL, held to shared vectors.

use serde_json::Value;

use super::{IdempotencyKey, NewEffect};

impl NewEffect {
    /// One effect per target, in this order, each target once: for [`crate::Outbox::enqueue_many`]. Each has the key
    /// `derive(downstream, KEY, target)`, where KEY is what this effect's would have been; so the same call again finds the same
    /// effects. A failure of one changes nothing about the others.
    #[must_use]
    pub fn for_each_target(self, targets: impl IntoIterator<Item = impl Into<String>>) -> Vec<Self> {
        let base = IdempotencyKey::random();
        let mut each: Vec<Self> = Vec::new();
        for target in targets {
            let target = Some(target.into());
            if each.iter().all(|other| other.target != target) {
                each.push(Self { target, split_of: Some(base.clone()), ..self.clone() });
            }
        }
        each
    }

    /// [`Self::for_each_target`] for a mail: one effect per recipient in its payload's `to`, `cc` and `bcc`. Itself, where it has a
    /// target, only one recipient, or a payload in which they cannot be read.
    #[must_use]
    pub fn for_each_recipient(self) -> Vec<Self> {
        let payload = self.payload.as_deref().filter(|_payload| self.target.is_none());
        match payload.and_then(recipients) {
            Some(several) if several.len() > 1 => self.for_each_target(several),
            Some(_) | None => vec![self],
        }
    }
}

/// The recipients of a mail, each once, in the order to, cc, bcc; `None` where some of it cannot be read.
fn recipients(payload: &str) -> Option<Vec<String>> {
    let payload: Value = serde_json::from_str(payload).ok()?;
    let mut found: Vec<String> = Vec::new();
    for field in ["to", "cc", "bcc"] {
        let items = match payload.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(items)) => items.as_slice(),
            Some(item) => std::slice::from_ref(item),
        };
        for item in items {
            let address = address(item)?;
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    Some(found)
}

/// The address of an item, its domain in lower case.
fn address(item: &Value) -> Option<String> {
    let blank = [' ', '\t'];
    let written = item.as_str().or_else(|| item.get("address")?.as_str())?.trim_matches(blank);
    let bare = written.strip_suffix('>').and_then(|rest| Some(rest.rsplit_once('<')?.1)).unwrap_or(written);
    let bare = bare.trim_matches(blank);
    match bare.rsplit_once('@') {
        _ if bare.is_empty() || bare.contains('\0') => None,
        Some((local, domain)) => Some(format!("{local}@{}", domain.to_ascii_lowercase())),
        None => Some(bare.to_owned()),
    }
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
        #[serde(default)]
        keys: Vec<String>,
    }

    /// The same file is held against the functions of PostgreSQL.
    #[test]
    fn recipients_and_their_keys_are_those_of_the_shared_vectors() {
        let shared: Shared =
            serde_json::from_str(include_str!("../../tests/vectors/mail_recipients.json")).unwrap();
        assert!(shared.vectors.len() >= 12);
        for vector in shared.vectors {
            assert_eq!(recipients(&vector.payload), vector.recipients, "{}", vector.case);
            let mail = NewEffect::to("mail").key(IdempotencyKey::parse("order-17").unwrap());
            let each = mail.json_text(vector.payload).unwrap().for_each_recipient();
            if vector.keys.is_empty() {
                assert!(each.len() == 1 && each[0].target.is_none(), "{}", vector.case);
                assert_eq!(crate::key::of_effect(&each[0], None).as_str(), "order-17", "{}", vector.case);
            } else {
                let keys: Vec<_> =
                    each.iter().map(|one| crate::key::of_effect(one, None).to_string()).collect();
                assert_eq!(keys, vector.keys, "{}", vector.case);
            }
        }
    }

    #[test]
    fn without_a_key_the_targets_still_have_keys_of_one_origin() {
        let each = NewEffect::to("hooks").for_each_target(["a", "b", "a"]);
        let keys: Vec<_> = each.iter().map(|one| crate::key::of_effect(one, None)).collect();
        assert_eq!(each.len(), 2);
        assert_ne!(keys[0], keys[1]);
        assert_eq!(keys[0], crate::key::of_effect(&each[0], None), "asked twice");
    }
}
