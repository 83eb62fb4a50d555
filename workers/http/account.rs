//! Whose keys an `http` downstream writes: origin and credential.

use sha2::{Digest, Sha256};

use super::{
    config::{Auth, Http},
    send,
};
use crate::config::Secrets;

/// A hash of the credential, with the origin as its key: for vendors that tell keys apart by the API key they came with.
/// `None` where there is no credential; the error says why one cannot be read: then nothing is sent either.
pub(super) fn credential_sha256(http: &Http, secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
    let Some((name, value)) = send::credential(&http.auth, secrets)? else { return Ok(None) };
    let origin = http.base.as_ref().map(|base| base.origin().ascii_serialization()).unwrap_or_default();
    let mut hash = Sha256::new();
    for part in [origin.as_bytes(), name.as_str().as_bytes(), value.as_bytes()] {
        // Each part with its length in front, so that no two credentials share their bytes.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    Ok(Some(hash.finalize().into()))
}

impl Http {
    /// The credential by its reference, never by its value.
    pub(super) fn secret(&self) -> Option<String> {
        match &self.auth {
            Auth::None => None,
            Auth::Bearer(secret) => Some(secret.to_string()),
            Auth::Basic { user, password } => Some(format!("{user}:{password}")),
            Auth::Header { name, value } => Some(format!("{name}:{value}")),
        }
    }
}
