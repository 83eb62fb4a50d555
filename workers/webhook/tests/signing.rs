//! Signatures, held against the specification's own vector and its rules for secrets.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{SECRET, SEED};
use crate::webhook::sign::{Key, signatures};

const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap_or_else(|problem| panic!("{problem}"))
}

#[test]
fn the_vector_of_the_specification_is_reproduced() {
    let signed = signatures(&[key(SECRET)], ID, 1_649_367_553, BODY);
    assert_eq!(signed, "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
}

#[test]
fn every_secret_signs_during_a_rotation_and_a_public_key_verifies_the_asymmetric_one() {
    let keys = [key(SECRET), key(SEED)];
    let signed = signatures(&keys, ID, 1_649_367_553, BODY);
    let (symmetric, asymmetric) = signed.split_once(' ').expect("two signatures");
    assert_eq!(symmetric, signatures(&keys[..1], ID, 1_649_367_553, BODY));
    let signature = STANDARD.decode(asymmetric.strip_prefix("v1a,").unwrap()).unwrap();
    let public = keys[1].public().expect("an asymmetric key has a public half");
    let public = STANDARD.decode(public.strip_prefix("whpk_").unwrap()).unwrap();
    let verifier = UnparsedPublicKey::new(&ED25519, public);
    let mut content = format!("{ID}.1649367553.").into_bytes();
    content.extend_from_slice(BODY);
    verifier.verify(&content, &signature).expect("it verifies");
    content.push(b' ');
    verifier.verify(&content, &signature).expect_err("another body does not");
    assert!(keys[0].public().is_none(), "a symmetric secret has no public half");
}

#[test]
fn what_is_no_secret_is_refused_without_being_repeated() {
    let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
    for good in [of(24), of(32), of(64)] {
        key(&good);
    }
    let seed = |bytes: usize| format!("whsk_{}", STANDARD.encode(vec![7; bytes]));
    let bad = [
        of(23),
        of(65),
        seed(31),
        seed(33),
        seed(64),
        "whsec_".to_owned(),
        "whsec_####################".to_owned(),
        "C2FVsBQIhrscChlQIMV+b5sSYspob7oD".to_owned(),
        "whpk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".to_owned(),
        "WHSEC_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".to_owned(),
        String::new(),
    ];
    for bad in &bad {
        let problem = Key::parse(bad).err().unwrap_or_else(|| panic!("{bad:?} was taken"));
        let secret = bad.split_once('_').map_or(bad.as_str(), |(_, secret)| secret);
        assert!(secret.is_empty() || !problem.contains(secret), "{problem}");
    }
}
