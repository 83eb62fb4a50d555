//! Our own secrets in what a downstream says: an echo must not carry them into the database, a log or a page.

use aftercommit::outcome::Response;
use base64::Engine as _;

use super::config::Auth;
use crate::config::Secrets;

/// Shorter texts are no secrets, and hiding them would make every second word unreadable.
const SECRET_MIN: usize = 8;
/// Replaces each byte of a secret: JSON stays JSON, and a length stays what it was.
const VEIL: u8 = b'*';

/// A downstream's secrets, in the forms in which they are sent. It never prints.
pub(super) struct Veil(Vec<Vec<u8>>);

impl Veil {
    /// Of a downstream's credentials, which have been resolved before.
    pub(super) fn of(auth: &Auth, secrets: &Secrets) -> Self {
        let resolved = |reference| secrets.resolve(reference).unwrap_or_default();
        let forms = match auth {
            Auth::None => Vec::new(),
            Auth::Bearer(secret) => vec![resolved(secret)],
            Auth::Header { value, .. } => vec![resolved(value)],
            Auth::Basic { user, password } => {
                let password = resolved(password);
                let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
                vec![password, pair]
            }
        };
        Self(forms.into_iter().filter(|form| form.len() >= SECRET_MIN).map(String::into_bytes).collect())
    }

    /// Hides them in whatever will be stored or shown. Letters' case does not matter: a host repeats a secret in lower case.
    pub(super) fn cover(&self, reason: &mut String, mut response: Option<&mut Response>) {
        for secret in &self.0 {
            *reason = covered(std::mem::take(reason), secret);
            if let Some(response) = &mut response {
                cover(&mut response.body, secret);
            }
        }
    }
}

fn covered(text: String, secret: &[u8]) -> String {
    let mut bytes = text.into_bytes();
    cover(&mut bytes, secret);
    // A secret that begins or ends inside a character leaves none of it: then less is shown rather than more.
    String::from_utf8_lossy(&bytes).into_owned()
}

fn cover(bytes: &mut [u8], secret: &[u8]) {
    let mut at = 0;
    while at + secret.len() <= bytes.len() {
        let here = &mut bytes[at..at + secret.len()];
        if here.eq_ignore_ascii_case(secret) {
            here.fill(VEIL);
            at += secret.len();
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::outcome::{Finding, Outcome, Phase};

    use super::*;

    #[test]
    fn a_secret_is_hidden_wherever_it_stands_and_nothing_else_moves() {
        let veil = Veil(vec![b"s3cret-T0ken".to_vec()]);
        let body = r#"{"echo":["Bearer s3cret-T0ken","s3cret-T0kens3cret-T0ken"],"é":"s3cret-T0ke"}"#;
        let mut outcome = Outcome::new(Finding::Unknown, Phase::Done, "HTTP 500 (S3CRET-T0KEN): é");
        outcome.response = Some(Response { status: Some(500), body: body.into(), truncated: false });
        veil.cover(&mut outcome.reason, outcome.response.as_mut());
        assert_eq!(outcome.reason, "HTTP 500 (************): é");
        let covered = String::from_utf8(outcome.response.unwrap().body).unwrap();
        assert_eq!(covered, body.replace("s3cret-T0ken", "************"));
        assert!(serde_json::from_str::<serde_json::Value>(&covered).is_ok());
    }

    #[test]
    fn what_is_too_short_to_be_a_secret_hides_nothing() {
        let secrets = Secrets([("S".to_owned(), "ok".to_owned())].into());
        let veil = Veil::of(&Auth::Bearer(crate::config::SecretRef::Env("S".to_owned())), &secrets);
        let mut outcome = Outcome::new(Finding::Unknown, Phase::Done, "not ok");
        veil.cover(&mut outcome.reason, outcome.response.as_mut());
        assert_eq!(outcome.reason, "not ok");
    }
}
