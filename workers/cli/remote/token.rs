//! What proves to a dashboard who we are. Never on the command line, where everybody on the machine reads it.

use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;

use crate::cli::{Exit, fail};

/// Longer than any token; more is another file by mistake.
const TOKEN_MAX: u64 = 16 << 10;

/// A token, wherever it comes from. It never prints.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    token: Option<String>,
    file: Option<PathBuf>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Of a file that was named, else of the environment.
    pub(crate) fn of(file: Option<&Path>) -> Self {
        let token = std::env::var("AFTERCOMMIT_TOKEN").ok().filter(|token| !token.is_empty());
        Self { token: token.filter(|_| file.is_none()), file: file.map(Path::to_owned) }
    }

    /// The header that carries it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or what it holds is no token.
    pub(super) fn header(&self) -> anyhow::Result<Option<HeaderValue>> {
        let (token, place) = match (&self.file, &self.token) {
            (Some(file), _) => (read(file)?, format!("the token file {}", file.display())),
            (None, Some(token)) => (token.clone(), "AFTERCOMMIT_TOKEN".to_owned()),
            (None, None) => return Ok(None),
        };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(fail(
                Exit::Usage,
                format!("{place} holds no token: it is one word of printable characters"),
            ));
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_unprintable| fail(Exit::Usage, format!("{place} holds no token")))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    use std::io::Read as _;
    let unreadable = |problem: std::io::Error| {
        fail(Exit::Usage, format!("the token file {} cannot be read: {problem}", file.display()))
    };
    let mut text = String::new();
    let file = std::fs::File::open(file).map_err(unreadable)?;
    file.take(TOKEN_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_never_prints() {
        let of = |token: &str| Credentials { token: Some(token.to_owned()), file: None };
        assert_eq!(of("hush\n").header().unwrap().unwrap(), "Bearer hush");
        for wrong in ["", "two words", "ü", "a\nb"] {
            assert!(of(wrong).header().is_err(), "{wrong:?}");
        }
        let shown = format!("{:?} {:?}", of("hush"), of("hush").header().unwrap());
        assert!(!shown.contains("hush"), "{shown}");
        let file = Credentials { token: None, file: Some("/no/such/file".into()) };
        assert!(file.header().unwrap_err().to_string().contains("/no/such/file"));
    }
}
