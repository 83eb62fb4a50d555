//! A short word that stands for something long: two are the same only if what they stand for is. Pure.

use std::fmt::Write as _;

/// Enough that nobody finds two texts with one digest.
const BYTES: usize = 16;

/// The digest of these parts, in this order: [`LEN`] hexadecimal digits.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for part in parts {
        // Where one part ends and the next begins is a part of it.
        context.update(&part.len().to_le_bytes());
        context.update(part.as_bytes());
    }
    context.finish().as_ref().iter().take(BYTES).fold(String::with_capacity(LEN), |mut text, byte| {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "a string takes everything");
        text
    })
}

/// How long it is.
const LEN: usize = 2 * BYTES;

/// Whether `word` may be one.
pub(crate) fn is_digest(word: &str) -> bool {
    word.len() == LEN && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_parts_have_the_same_digest() {
        let one = digest(["a", "bc"]);
        assert!(is_digest(&one), "{one}");
        assert_eq!(one, digest(["a", "bc"]));
        for other in [&["ab", "c"][..], &["a", "bc", ""], &["bc", "a"], &[]] {
            assert_ne!(one, digest(other.iter().copied()), "{other:?}");
        }
        assert!(!is_digest("state:failed") && !is_digest(&one[1..]) && !is_digest(&one.to_uppercase()));
    }
}
