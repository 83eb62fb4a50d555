//! Hostile bytes in the header: whatever a client sends as its key, it is told 400 or it is a key, and the server lives.

use aftercommit::guard::RequestKey;

use super::{
    client::{Ask, Exchange, Line, TENANT},
    shop::Shop,
};
use crate::support::{Chance, TestDatabase, on_every_database};

const CASES: usize = 400;

on_every_database!(whatever_stands_in_the_header_is_a_key_or_told_400);

/// A value for the header: random bytes, or something close to what is right. CR and LF would end the line: what follows
/// them is another header, which is no case of this test.
fn value(chance: &mut Chance) -> Vec<u8> {
    let length =
        usize::try_from(if chance.percent(5) { chance.below(600) } else { chance.below(24) }).expect("fits");
    let any = |chance: &mut Chance| u8::try_from(chance.below(256)).expect("fits");
    let from =
        |chance: &mut Chance, set: &[u8]| set[usize::try_from(chance.below(set.len() as u64)).expect("fits")];
    let kind = chance.below(4);
    let mut value: Vec<u8> = (0..length)
        .map(|_| match kind {
            0 => any(chance),
            1 => from(chance, b"\"\\, \t;=aZ09-_:/%\x7f\0\xe9\xff"),
            _ => from(chance, b"abcdefghijklmnopqrstuvwxyz0123456789-"),
        })
        .filter(|byte| !matches!(byte, b'\r' | b'\n'))
        .collect();
    if chance.percent(40) {
        value.insert(0, b'"');
        value.push(b'"');
    }
    if chance.percent(10) && !value.is_empty() {
        let at = usize::try_from(chance.below(value.len() as u64)).expect("fits");
        value[at] = from(chance, b"\"\\, \t\0\x01\x7f\x80\xff");
    }
    value
}

async fn whatever_stands_in_the_header_is_a_key_or_told_400(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let shop = Shop::open(db).await;
    let mut server = shop.server(|_| {}).await;
    let mut line = Line::open(server.address).await.expect("the server listens");
    let (mut exchanges, mut refused) = (Vec::new(), 0);
    for _ in 0..CASES {
        let value = value(&mut chance);
        let twice = chance.percent(5);
        let mut bytes = format!("POST /orders HTTP/1.1\r\nHost: shop\r\nX-Tenant: {TENANT}\r\n").into_bytes();
        for _ in 0..=usize::from(twice) {
            bytes.extend_from_slice(b"Idempotency-Key: ");
            bytes.extend_from_slice(&value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"Content-Length: 12\r\n\r\n{\"amount\":1}");
        let key = RequestKey::from_header(&value).ok().filter(|_| !twice);
        let _closed_early = line.say(&bytes).await;
        let heard = line.hear().await;
        let status = heard.as_ref().map(|answer| answer.status);
        let shown = value.escape_ascii();
        if let Some(key) = key {
            assert_eq!(status, Some(201), "the key \"{shown}\"");
            exchanges.push(Exchange { ask: Ask::order(key.as_str(), 1), heard });
        } else {
            assert_eq!(status, Some(400), "the key \"{shown}\", twice: {twice}");
            refused += 1;
            // The HTTP server closes what it cannot read.
            line = Line::open(server.address).await.expect("the server listens");
        }
    }
    println!("fuzz: {CASES} values, {refused} refused, {} keys", exchanges.len());
    assert!(
        refused > CASES / 10 && exchanges.len() > CASES / 10,
        "one side was hardly met: {refused} refused"
    );
    let evidence = shop.evidence(exchanges).await;
    evidence.assert_kept();
    server.is_alive().await;
}
