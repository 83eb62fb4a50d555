//! The hash of all that an operation's request is rendered from.

use sha2::{Digest as _, Sha256};

/// SHA-256 over `parts`, each with its length in front, so that no two configurations share their bytes.
pub(crate) fn sha256_of(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}
