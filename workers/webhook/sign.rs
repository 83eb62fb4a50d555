//! Signatures of Standard Webhooks: HMAC-SHA256 (`v1`) and Ed25519 (`v1a`) over `id.timestamp.body`.
//!
//! Source: standard-webhooks/standard-webhooks `spec/standard-webhooks.md`, "Signature scheme".

use aws_lc_rs::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// How many random bytes a symmetric secret has, by the specification.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// An Ed25519 seed; a private key may carry its public half behind it.
const SEED_BYTES: usize = 32;

/// A secret that signs. It never prints.
pub(super) enum Key {
    Symmetric(Box<hmac::Key>),
    Asymmetric(Ed25519KeyPair),
}

impl Key {
    /// Parses `whsec_…` or `whsk_…`. The error says what is wrong and repeats nothing of it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("whpk_") {
            return Err(
                "is a public key: the receiver gets that, and the sender signs with whsk_…".to_owned()
            );
        }
        let symmetric = text.strip_prefix("whsec_");
        let Some(encoded) = symmetric.or_else(|| text.strip_prefix("whsk_")) else {
            return Err("must begin with whsec_ (symmetric) or whsk_ (Ed25519)".to_owned());
        };
        let bytes = STANDARD
            .decode(encoded)
            .map_err(|_error| "must be base64 after its prefix, with its padding".to_owned())?;
        if symmetric.is_some() {
            if !SECRET_BYTES.contains(&bytes.len()) {
                return Err(format!("must hold 24 to 64 random bytes, and holds {}", bytes.len()));
            }
            return Ok(Self::Symmetric(Box::new(hmac::Key::new(hmac::HMAC_SHA256, &bytes))));
        }
        let pair = match bytes.split_at_checked(SEED_BYTES) {
            Some((seed, [])) => Ed25519KeyPair::from_seed_unchecked(seed),
            Some((seed, public)) => Ed25519KeyPair::from_seed_and_public_key(seed, public),
            None => {
                return Err(format!(
                    "must hold 32 bytes (or 64, with the public key), and holds {}",
                    bytes.len()
                ));
            }
        };
        pair.map(Self::Asymmetric).map_err(|_error| "is no Ed25519 private key".to_owned())
    }

    /// The signature as the header has it.
    fn sign(&self, signed: &[u8]) -> String {
        match self {
            Self::Symmetric(key) => format!("v1,{}", STANDARD.encode(hmac::sign(key, signed))),
            Self::Asymmetric(pair) => format!("v1a,{}", STANDARD.encode(pair.sign(signed))),
        }
    }

    /// What a receiver needs to verify, where that is no secret.
    pub(super) fn public(&self) -> Option<String> {
        match self {
            Self::Symmetric(_) => None,
            Self::Asymmetric(pair) => Some(format!("whpk_{}", STANDARD.encode(pair.public_key().as_ref()))),
        }
    }
}

/// `webhook-signature`: one signature for each secret, the present one first.
pub(super) fn signatures(keys: &[Key], id: &str, timestamp: i64, body: &[u8]) -> String {
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    keys.iter().map(|key| key.sign(&signed)).collect::<Vec<_>>().join(" ")
}
