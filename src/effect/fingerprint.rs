//! What makes two effects of one key the same request, once retention has dropped the payload: the same bytes as the SQL
//! function `aftercommit.fingerprint`, held to shared vectors.

use sha2::{Digest, Sha256};

use super::NewEffect;

/// A request's parts, in the order in which they are hashed. `needs` is a JSON array without spaces, `undoes` a number as
/// text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) operation: Option<&'a str>,
    pub(crate) payload: Option<&'a str>,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) headers: Option<&'a str>,
    pub(crate) target: Option<&'a str>,
    pub(crate) ordering_key: Option<&'a str>,
    pub(crate) needs: Option<&'a str>,
    pub(crate) bindings: Option<&'a str>,
    pub(crate) undoes: Option<&'a str>,
}

impl<'a> Parts<'a> {
    /// Of an effect that is to be written.
    pub(crate) fn of(effect: &'a NewEffect) -> Self {
        Self {
            operation: effect.operation.as_deref(),
            payload: effect.payload.as_deref(),
            body: effect.body.as_deref(),
            content_type: effect.content_type.as_deref(),
            headers: effect.headers.as_deref(),
            target: effect.target.as_deref(),
            ..Self::default()
        }
    }

    /// SHA-256; before each part whether it is there and how long it is, so that no two requests share their bytes.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let parts = [
            self.operation.map(str::as_bytes),
            self.payload.map(str::as_bytes),
            self.body,
            self.content_type.map(str::as_bytes),
            self.headers.map(str::as_bytes),
            self.target.map(str::as_bytes),
            self.ordering_key.map(str::as_bytes),
            self.needs.map(str::as_bytes),
            self.bindings.map(str::as_bytes),
            self.undoes.map(str::as_bytes),
        ];
        for part in parts {
            match part {
                None => hash.update([0]),
                Some(bytes) => {
                    hash.update([1]);
                    hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
                    hash.update(bytes);
                }
            }
        }
        hash.finalize().into()
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
        operation: Option<String>,
        payload: Option<String>,
        body_hex: Option<String>,
        content_type: Option<String>,
        headers: Option<String>,
        target: Option<String>,
        ordering_key: Option<String>,
        needs: Option<String>,
        bindings: Option<String>,
        undoes: Option<String>,
        sha256: String,
    }

    /// The same file is held against the function of PostgreSQL.
    #[test]
    fn fingerprints_are_those_of_the_shared_vectors() {
        let shared: Shared =
            serde_json::from_str(include_str!("../../tests/vectors/fingerprint.json")).unwrap();
        assert!(shared.vectors.len() >= 12);
        let mut seen = std::collections::HashSet::new();
        for vector in &shared.vectors {
            let body = vector.body_hex.as_deref().map(|text| hex::decode(text).unwrap());
            let parts = Parts {
                operation: vector.operation.as_deref(),
                payload: vector.payload.as_deref(),
                body: body.as_deref(),
                content_type: vector.content_type.as_deref(),
                headers: vector.headers.as_deref(),
                target: vector.target.as_deref(),
                ordering_key: vector.ordering_key.as_deref(),
                needs: vector.needs.as_deref(),
                bindings: vector.bindings.as_deref(),
                undoes: vector.undoes.as_deref(),
            };
            assert_eq!(hex::encode(parts.fingerprint()), vector.sha256, "{}", vector.case);
            assert!(seen.insert(vector.sha256.clone()), "{} is another request's", vector.case);
        }
    }
}
