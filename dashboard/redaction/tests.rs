//! What is taken away, and that nothing else is.

use super::*;

fn redaction(pointers: &[&str], patterns: &[&str]) -> Redaction {
    let mut redact = Redact::default();
    redact.pointers.extend(pointers.iter().map(|text| Pointer::parse(text).unwrap()));
    redact.patterns.extend(patterns.iter().map(|text| Pattern::parse(text).unwrap()));
    Redaction::new(&redact)
}

#[test]
fn what_is_chosen_is_taken_away_and_all_else_is_left_byte_by_byte() {
    let redaction = redaction(&["/card/number", "/items/*/secret", "/a~1b", "/list/1"], &[]);
    for (written, shown) in [
        (
            r#"{ "card" : {"number": "4242", "exp":"12/30"},"big":12345678901234567890.10 }"#,
            r#"{ "card" : {"number": "•••", "exp":"12/30"},"big":12345678901234567890.10 }"#,
        ),
        (r#"{"items":[{"secret":{"x":[1,"]"]}},{"n":1}]}"#, r#"{"items":[{"secret":"•••"},{"n":1}]}"#),
        (r#"{"a/b":null,"a":{"b":1}}"#, r#"{"a/b":"•••","a":{"b":1}}"#),
        (r#"{"list":[1,{"2":3},4]}"#, r#"{"list":[1,"•••",4]}"#),
        (
            r#"{"card":{"number":1},"card":{"number":2}}"#,
            r#"{"card":{"number":"•••"},"card":{"number":"•••"}}"#,
        ),
        ("[]", "[]"),
        (" {} ", " {} "),
        (r#""\u00fc\n""#, r#""\u00fc\n""#),
    ] {
        assert_eq!(redaction.content(written), shown);
    }
}

#[test]
fn known_secrets_are_never_shown() {
    let redaction = redaction(&[], &[]);
    for secret in [
        "sk_live_51Habcdefgh",
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        "ghp_0123456789abcdefghijABCDEFGHIJ",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ] {
        let json = serde_json::json!({ "note": format!("it is {secret}!") }).to_string();
        for text in [json, format!("token={secret}")] {
            let shown = redaction.content(&text);
            assert!(shown.contains(MASK) && !shown.contains(&secret[8..]), "{text} is shown as {shown}");
        }
    }
    assert!(redaction.hides_header("AUTHORIZATION") && !redaction.hides_header("x-request-id"));
}

#[test]
fn what_is_escaped_is_seen_as_it_is_meant() {
    let shown = redaction(&[], &[]).content(r#"{"a":"\u0073k_live_51Habcdefgh","b":"x"}"#).into_owned();
    assert_eq!(shown, r#"{"a":"•••","b":"x"}"#);
}

#[test]
fn a_number_that_a_pattern_hides_leaves_json() {
    let shown = redaction(&[], &[r"\b\d{16}\b"]).content(r#"{"pan":4242424242424242,"n":[1]}"#).into_owned();
    assert_eq!(shown, r#"{"pan":"•••","n":[1]}"#);
}

#[test]
fn depth_and_brokenness_harm_nobody() {
    let redaction = redaction(&["/card"], &[]);
    let deep = format!("{}\"sk_live_51Habcdefgh\"{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(redaction.content(&deep).contains(MASK));
    for broken in
        ["{", "{\"a\"", "[1,", "{\"a\":}", "]", "{\"card\":[}", "\"", "\"\\", "{\"ü\":ü}", "1 2", ""]
    {
        assert_eq!(redaction.content(broken), broken);
    }
}

#[test]
fn a_pattern_or_pointer_that_makes_no_sense_is_refused() {
    assert!(Pattern::parse("(").is_err() && Pattern::parse("a*").is_err());
    assert!(Pointer::parse("card").is_err() && Pointer::parse("").is_err());
}
