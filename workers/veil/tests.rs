use aftercommit::outcome::{Finding, Outcome, Phase};

use super::*;

/// `body` as it is stored, once `secret` was hidden in it.
fn stored(secret: &str, body: &str, truncated: bool) -> String {
    let mut outcome = Outcome::new(Finding::Unknown, Phase::Done, "");
    outcome.response = Some(Response { status: Some(500), body: body.into(), truncated });
    Veil(vec![secret.into()]).cover(&mut outcome.reason, outcome.response.as_mut());
    String::from_utf8(outcome.response.unwrap().body).unwrap()
}

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
fn a_secret_is_found_however_it_is_written_and_json_stays_json() {
    let secret = "ab/cd+ef==";
    for written in [
        "ab/cd+ef==",
        r"ab\/cd+ef==",
        r"\u0061b\u002Fcd\u002bef==",
        "ab%2Fcd%2bef%3D%3d",
        "%61b%2Fcd%2Bef==",
        r"AB\/CD%2BEF==",
    ] {
        for around in
            ["Bearer {}", r"\n{}\n", "a%20{}%0A", r"key=\u0022{}\u0022;", r#"{\"token\":\"{}\"}"#, "({})."]
        {
            let echo = around.replace("{}", written);
            let json = format!(r#"{{"{echo}":["{echo}",1.50,null],"kept":"abcdef"}}"#);
            let hidden = json.replace(written, &"*".repeat(written.len()));
            assert_eq!(stored(secret, &json, false), hidden, "{json}");
            assert!(serde_json::from_str::<serde_json::Value>(&hidden).is_ok(), "{hidden}");
            // The same where it is no JSON.
            let text = format!("<p>{echo}</p> é");
            assert_eq!(
                stored(secret, &text, false),
                text.replace(written, &"*".repeat(written.len())),
                "{text}"
            );
        }
    }
}

#[test]
fn what_only_holds_the_secret_is_left_for_later_requests() {
    let secret = "10000001";
    for body in [
        r#"{"id":"ch_10000001"}"#,
        r#"{"id":"10000001_ch","next":"100000010","before":"x-10000001"}"#,
        r#"{"balance":10000001}"#,
        r#"{"balance":10000001.5,"id":"x%3110000001"}"#,
        "ch_10000001 100000010",
    ] {
        assert_eq!(stored(secret, body, false), body);
    }
    assert_eq!(
        stored(secret, r#"{"account":"10000001","balance":10000001}"#, false),
        r#"{"account":"********","balance":10000001}"#
    );
    // An escape is no part of the secret that begins with its letter.
    assert_eq!(stored("needless", r#"{"a":"\needless"}"#, false), r#"{"a":"\needless"}"#);
}

#[test]
fn a_secret_in_the_middle_of_which_the_answer_was_cut_leaves_no_beginning() {
    assert_eq!(stored("s3cret-T0ken", r#"{"echo":"Bearer s3cret-T"#, true), r#"{"echo":"Bearer ********"#);
    assert_eq!(stored("ab/cd+ef==", r#"{"echo":"ab\/cd%2b"#, true), r#"{"echo":"*********"#);
    assert_eq!(stored("s3cret-T0ken", r#"{"echo":"Bearer s3"#, true), r#"{"echo":"Bearer s3"#);
    assert_eq!(stored("s3cret-T0ken", "s3cret-T0ken s3cret-T0", true), "************ *********");
}

#[test]
fn what_is_too_short_to_be_a_secret_hides_nothing() {
    let veil = Veil::new(["ok".to_owned()]);
    let mut outcome = Outcome::new(Finding::Unknown, Phase::Done, "not ok");
    veil.cover(&mut outcome.reason, outcome.response.as_mut());
    assert_eq!(outcome.reason, "not ok");
}
