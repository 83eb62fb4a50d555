use super::*;

#[test]
fn keys_are_printable_and_unpadded() {
    for bad in ["", " a", "a ", "a\tb", "a\0b", "é", &"x".repeat(256)] {
        assert!(IdempotencyKey::parse(bad).is_err(), "{bad:?}");
    }
    for good in ["a", "order-17/charge", "a b", &"x".repeat(255)] {
        assert_eq!(IdempotencyKey::parse(good).unwrap().as_str(), good);
    }
}

#[test]
fn metadata_may_hold_a_backslash_before_u0000_but_not_the_character() {
    let metadata = |text: &str| NewEffect::to("p").metadata(&serde_json::json!({ "a": text }));
    for good in ["\\u0000", "\\\\u0000"] {
        assert!(metadata(good).is_ok(), "{good}");
    }
    for bad in ["\0", "\\\0"] {
        assert!(metadata(bad).is_err(), "{bad:?}");
    }
    let named = NewEffect::to("p").metadata(&std::collections::BTreeMap::from([("\0", 1)]));
    assert!(named.is_err(), "in a name, too");
}

#[test]
fn payload_text_is_kept_and_depth_is_bounded() {
    let text = r#"{ "id": 9007199254740993, "big":1234567890123456789012345, "nul":"\u0000" }"#;
    assert_eq!(NewEffect::to("p").json_text(text).unwrap().payload.as_deref(), Some(text));
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(NewEffect::to("p").json_text(nested(127)).is_ok());
    assert!(NewEffect::to("p").json_text(nested(129)).is_err());
    assert_eq!(depth(r#"{"a":"[[[\"[[","b":[1]}"#), 2);
}
