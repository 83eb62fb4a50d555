//! Accounts and keys: whose keys are whose, and on which requests a key means anything.

use super::{HEAD, Settings, load, load_with, refused};

const STRIPE: &str = "kind = \"http\"\nbase_url = \"https://api.stripe.com\"\nprofile = \"stripe-v1\"\n";

fn told(text: &str) -> Vec<String> {
    let findings = load(text).unwrap().check();
    findings.into_iter().map(|finding| format!("{}: {}", finding.key, finding.message)).collect()
}

fn two(first: &str, second: &str) -> String {
    format!("{HEAD}[downstream.a]\n{STRIPE}{first}[downstream.b]\n{STRIPE}{second}")
}

#[test]
fn two_downstreams_of_one_account_need_distinct_prefixes() {
    let key = "auth = { bearer = { env = \"K\" } }\n";
    let error = refused(&two(key, key));
    assert!(error.contains("key_prefix") && error.contains("same account"), "{error}");
    assert_eq!(
        told(&two(&format!("{key}key_prefix = \"a/\"\n"), &format!("{key}key_prefix = \"b/\"\n"))),
        Vec::<String>::new()
    );
}

#[test]
fn a_prefix_that_begins_another_is_told_since_a_key_could_be_either_ones() {
    let key = "auth = { bearer = { env = \"K\" } }\n";
    let notes = told(&two(key, &format!("{key}key_prefix = \"b/\"\n")));
    assert!(
        notes.len() == 1
            && notes[0].contains("downstream.a.key_prefix: begins the key_prefix of downstream.b"),
        "{notes:?}"
    );
    assert!(notes[0].contains("\"b/\""), "{notes:?}");
}

#[test]
fn two_credentials_at_one_vendor_may_be_one_account_which_is_told_once() {
    let (first, second) = ("auth = { bearer = { env = \"K\" } }\n", "auth = { bearer = { env = \"L\" } }\n");
    let notes = told(&two(first, second));
    assert!(notes.len() == 1 && notes[0].contains("with another credential"), "{notes:?}");
    // A vendor that tells keys apart by the credential leaves no doubt.
    let scoped = two(first, second).replace("stripe-v1", "modern-treasury");
    assert_eq!(told(&scoped), Vec::<String>::new());
}

#[test]
fn a_changed_credential_is_another_request_only_where_the_vendor_tells_keys_apart_by_it() {
    let pin = |profile: &str, secret: &str| {
        let text = format!("{HEAD}[downstream.a]\n{STRIPE}auth = {{ bearer = {{ env = \"K\" }} }}\n");
        let text = text.replace("stripe-v1", profile);
        let settings: Settings = load_with(&text, &[("K", secret)], &[]).unwrap();
        let served = settings.serve(None).unwrap().remove(0);
        assert_eq!(
            settings.registered()[0].operations[0].2,
            served.terms.request_sha256,
            "migrate registers the same"
        );
        served.terms.request_sha256
    };
    assert_eq!(pin("stripe-v1", "one"), pin("stripe-v1", "two"));
    for profile in ["modern-treasury", "svix"] {
        assert_eq!(pin(profile, "one"), pin(profile, "one"));
        assert_ne!(pin(profile, "one"), pin(profile, "two"), "{profile}");
    }
}

#[test]
fn without_the_credential_migrate_leaves_alone_only_the_terms_that_it_is_part_of() {
    let text = format!(
        "{HEAD}[downstream.a]\n{STRIPE}auth = {{ bearer = {{ env = \"K\" }} }}\n\
         [downstream.a.operations.ping]\npath = \"/ping\"\ncontract = {{ scope = [\"account\"], max_key_len = 40 }}\n"
    )
    .replace("stripe-v1", "modern-treasury");
    let registered = |settings: Settings| settings.registered().remove(0);
    let blind = registered(load(&text).unwrap());
    assert_eq!(blind.kept, [None]);
    let known: Vec<_> = blind.operations.iter().map(|(name, ..)| name.as_deref()).collect();
    assert_eq!(known, [Some("ping")]);
    let seeing = registered(load_with(&text, &[("K", "one")], &[]).unwrap());
    assert!(seeing.kept.is_empty() && seeing.operations.len() == 2);
    assert_eq!(blind.key, seeing.key, "what INSERTs are checked against is the same");
    // Where there is no credential, there is nothing to wait for.
    let bare = text.replace("auth = { bearer = { env = \"K\" } }\n", "");
    assert!(registered(load(&bare).unwrap()).kept.is_empty());
}

#[test]
fn a_method_on_which_the_key_means_nothing_needs_a_contract_of_its_own() {
    let operation = |profile: &str, method: &str, contract: &str| {
        let text = format!(
            "{HEAD}[downstream.a]\n{STRIPE}[downstream.a.operations.x]\npath = \"/x\"\nmethod = \"{method}\"\n{contract}"
        );
        load(&text.replace("stripe-v1", profile)).map(|_| ()).map_err(|error| error.to_string())
    };
    let error = operation("stripe-v1", "DELETE", "").unwrap_err();
    assert!(error.contains("operations.x.method") && error.contains("on POST only"), "{error}");
    assert!(operation("mollie", "PATCH", "").is_err());
    assert_eq!(operation("stripe-v1", "POST", ""), Ok(()));
    assert_eq!(operation("stripe-v2", "DELETE", ""), Ok(()));
    assert_eq!(
        operation("stripe-v1", "DELETE", "contract = { dedupe = \"none\", on_unknown = \"retry\" }\n"),
        Ok(())
    );
}
