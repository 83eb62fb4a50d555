//! Derived keys: the same bytes as the SQL function `aftercommit.derive_key`, held to shared vectors.

use sha2::{Digest, Sha256};

use crate::{
    effect::{IdempotencyKey, NewEffect},
    guard::{RequestKey, Scope},
};

/// The key that `scope`, `request_key` and `name` determine: each part with its length in front (64 bits, big-endian), so
/// that no two triples share their bytes; SHA-256; the first 16 bytes rendered as a UUIDv8 (RFC 9562 §5.8).
pub fn derive(scope: &str, request_key: &str, name: &str) -> IdempotencyKey {
    let mut hash = Sha256::new();
    for part in [scope, request_key, name] {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    let uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
    IdempotencyKey::parse(uuid.to_string()).expect("a UUID is 36 printable characters")
}

/// The key that an effect without one has: derived inside a guarded request, so that the same request, should it run again,
/// finds the same effects; random outside.
pub(crate) fn of_effect(effect: &NewEffect, request: Option<&(Scope, RequestKey)>) -> IdempotencyKey {
    let key = of_intent(effect, request);
    match &effect.split {
        None => key,
        Some(split) if split.is_first => key,
        Some(_) => derive(&effect.downstream, key.as_str(), effect.target.as_deref().unwrap_or_default()),
    }
}

/// The key before it is split among several targets.
fn of_intent(effect: &NewEffect, request: Option<&(Scope, RequestKey)>) -> IdempotencyKey {
    match (&effect.key, request) {
        (Some(key), _) => key.clone(),
        (None, None) => effect.split.as_ref().map_or_else(IdempotencyKey::random, |split| split.of.clone()),
        (None, Some((scope, key))) => {
            let operation = effect.operation.as_deref().unwrap_or_default();
            let place = || format!("{}/{operation}", effect.downstream);
            derive(scope.as_str(), key.as_str(), &effect.name.clone().unwrap_or_else(place))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(derive("a", "bc", "d"), derive("ab", "c", "d"));
        assert_ne!(derive("", "a", "b"), derive("a", "", "b"));
        let key = derive("shop", "k-1", "payments/charge");
        assert_eq!(key.as_str().len(), 36);
        assert_eq!(&key.as_str()[14..15], "8");
    }

    #[derive(serde::Deserialize)]
    struct Shared {
        vectors: Vec<Vector>,
    }

    #[derive(serde::Deserialize)]
    struct Vector {
        case: String,
        scope: Part,
        request_key: Part,
        name: Part,
        key: String,
    }

    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Part {
        Text(String),
        Long { repeat: (String, usize) },
    }

    impl Part {
        fn text(&self) -> String {
            match self {
                Self::Text(text) => text.clone(),
                Self::Long { repeat: (text, times) } => text.repeat(*times),
            }
        }
    }

    /// The same file is held against the function of every database.
    #[test]
    fn keys_are_those_of_the_shared_vectors() {
        let shared: Shared = serde_json::from_str(include_str!("../tests/vectors/derive_key.json")).unwrap();
        assert!(shared.vectors.len() >= 12);
        for vector in shared.vectors {
            let key = derive(&vector.scope.text(), &vector.request_key.text(), &vector.name.text());
            assert_eq!(key.as_str(), vector.key, "{}", vector.case);
        }
    }
}
