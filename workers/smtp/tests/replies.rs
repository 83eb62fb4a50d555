//! The reply parser.

use proptest::prelude::*;

use super::super::{
    identity,
    reply::{Gather, Malformed, Reply, first_line},
    transaction::stuffed,
};

fn read(bytes: &[u8]) -> Result<Option<Reply>, Malformed> {
    let (mut gather, mut rest) = (Gather::default(), bytes);
    while let Some((line, length)) = first_line(rest)? {
        if let Some(reply) = gather.line(line)? {
            return Ok(Some(reply));
        }
        rest = &rest[length..];
    }
    Ok(None)
}

#[test]
fn a_reply_is_one_or_more_lines_of_one_code() {
    for (text, code, shown) in [
        ("250 ok\r\n", 250, "250 ok"),
        ("250\r\n", 250, "250 "),
        ("250 ok\n", 250, "250 ok"),
        ("250-a\r\n250-b\r\n250 c\r\n", 250, "250 a b c"),
        ("550-5.1.1 no\r\n550\r\n", 550, "550 5.1.1 no"),
    ] {
        let reply = read(text.as_bytes()).unwrap().unwrap();
        assert_eq!((reply.code, reply.to_string().as_str()), (code, shown), "{text:?}");
    }
    for text in ["", "25", "250-more\r\n"] {
        assert_eq!(read(text.as_bytes()), Ok(None), "{text:?}");
    }
    for text in [
        "xyz\r\n",
        "25\r\n",
        "2500 x\r\n",
        "250_x\r\n",
        "150 x\r\n",
        "999 x\r\n",
        "250-a\r\n251 b\r\n",
        "\u{661}50 x\r\n",
    ] {
        assert!(read(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn dots_that_begin_a_line_are_doubled_whatever_ends_the_line_before() {
    for (message, sent) in [
        (".\r\n", "..\r\n"),
        ("a\r\n.\r\n..b\r\n", "a\r\n..\r\n...b\r\n"),
        ("a\n.\n", "a\n..\n\r\n"),
        ("a.b\r\n", "a.b\r\n"),
        ("", "\r\n"),
        ("a", "a\r\n"),
    ] {
        assert_eq!(String::from_utf8_lossy(&stuffed(message.as_bytes())), sent, "{message:?}");
    }
}

proptest! {
    #[test]
    fn whatever_a_server_says_is_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        if let Ok(Some(reply)) = read(&bytes) {
            prop_assert!(reply.text().len() < 700);
            prop_assert!(!reply.text().chars().any(char::is_control));
        }
    }

    #[test]
    fn two_keys_never_have_one_message_id(a in "[ -~]{1,60}", b in "[ -~]{1,60}", x in "[a-z.$]{1,9}", y in "[a-z.$]{1,9}") {
        let (first, second) = (identity::message_id(&a, &x, "shop.test"), identity::message_id(&b, &y, "shop.test"));
        prop_assert_eq!(first == second, (a, x) == (b, y));
    }

    #[test]
    fn a_message_id_can_stand_in_a_header(key in "[ -~]{1,255}") {
        let id = identity::message_id(&key, "mail", "shop.test");
        prop_assert!(id.len() < 300, "{}", id);
        let left = id.strip_prefix('<').and_then(|id| id.strip_suffix("@shop.test>")).unwrap();
        prop_assert!(left.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&byte)), "{}", id);
        prop_assert!(!left.starts_with('.') && !left.ends_with('.') && !left.contains(".."), "{}", id);
    }
}

#[test]
fn a_long_key_has_an_id_of_its_own() {
    let ids: std::collections::BTreeSet<_> = (0..50)
        .map(|at| identity::message_id(&format!("{}{at}", "/:".repeat(100)), "mail", "shop.test"))
        .collect();
    assert_eq!(ids.len(), 50);
    assert_eq!(identity::message_id("order-17/mail", "mail", "shop.test"), "<order-17/mail$mail@shop.test>");
    assert_eq!(identity::message_id(".a..b c.", "m", "x"), "<=2Ea.=2Eb=20c=2E$m@x>");
}
