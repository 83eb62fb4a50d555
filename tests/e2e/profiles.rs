//! `profiles` on the command line: a contributor is told what a file lacks, a user what nobody knows.

use super::processes::aftercommit;

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn profiles(arguments: &[&str]) -> Said {
    let output = aftercommit().arg("profiles").args(arguments).output().await.expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[tokio::test]
async fn a_contributed_profile_is_told_what_it_lacks_and_the_shipped_ones_lack_nothing() {
    let shipped = profiles(&["check"]).await;
    assert_eq!(shipped.code, Some(0), "{}", shipped.err);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("vendor.toml");
    let text =
        "summary = \"a vendor\"\ndate = \"2026-11-29\"\n[contract]\ndedupe = \"key\"\nwindow = \"24h\"\n";
    std::fs::write(&file, text).expect("the folder is writable");
    let file = file.to_str().expect("text");
    let told = profiles(&["check", file]).await;
    assert_eq!(told.code, Some(2));
    for words in [
        "contract.window stands on nothing",
        "nothing says what it answers when the key comes with another request",
    ] {
        assert!(told.err.contains(words), "{words} in {}", told.err);
    }
    let told = profiles(&["check", file, "--json"]).await;
    let said: serde_json::Value = serde_json::from_str(&told.out).expect("one object");
    assert_eq!((said["ok"].as_bool(), told.code), (Some(false), Some(2)), "{said:#}");
    let missing = profiles(&["check", "/nowhere/vendor.toml"]).await;
    assert!(missing.code != Some(0) && missing.err.contains("/nowhere/vendor.toml"), "{}", missing.err);
}

#[tokio::test]
async fn a_profile_is_shown_with_what_it_stands_on_and_what_is_not_known() {
    let shown = profiles(&["show", "square-payments"]).await;
    for words in [
        "key_in = \"body:/idempotency_key\"",
        "confidence high",
        "Not known",
        "promises nothing after an unknown outcome",
    ] {
        assert!(shown.out.contains(words), "{words} in {}", shown.out);
    }
    let shown = profiles(&["show", "square-payments", "--json"]).await;
    let said: serde_json::Value = serde_json::from_str(&shown.out).expect("one object");
    assert_eq!(
        (&said["contract"]["max_key_len"], &said["contract"]["window"]),
        (&45.into(), &serde_json::Value::Null)
    );
    assert!(said["facts"].as_array().is_some_and(|facts| facts.iter().all(|fact| fact["date"].is_string())));
    assert_eq!(profiles(&["show", "nobody"]).await.code, Some(3));
}
