//! An effect as an event keeps its key, its time and its payload's bytes.

use aftercommit::{
    clock::Timestamp,
    effect::{Effect, EffectId},
};

use super::*;
use crate::config::{Log, parse_toml};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const PAYLOAD: &str = "{ \"b\":1.0, \"a\":\"é\u{2028}/\", \"n\":12345678901234567890, \"b\":2 }";

fn envelope(table: &str) -> Result<Envelope, String> {
    let log = Log::default();
    let table = parse_toml("test", &format!("[cloudevents]\n{table}")).unwrap();
    let read = Envelope::read(&Section::root(&table, &log)).map_err(|error| error.to_string());
    log.into_inner().map_err(|problems| problems[0].to_string())?;
    read.map(|envelope| envelope.expect("the table is there"))
}

fn effect() -> Effect {
    Effect {
        operation: Some("charged".to_owned()),
        payload: Some(PAYLOAD.to_owned()),
        metadata: Some(r#"{"order":"A 17 €"}"#.to_owned()),
        trace_context: Some(TRACE.to_owned()),
        ..Effect::new(
            EffectId::new(17),
            "shop",
            "order-17/charge",
            Timestamp::from_micros(1_522_893_384_000_007),
        )
    }
}

fn value<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

#[test]
fn a_binary_event_leaves_the_body_alone_and_names_itself_beside_it() {
    let envelope = envelope(
        "source = \"/shop\"\ntype = \"com.example.{operation}.v1\"\nsubject = \"order/{metadata:/order}\"\n\
         dataschema = \"https://schemas.example.com/charge.json\"",
    )
    .unwrap();
    let message = envelope.message(&effect(), "live-order-17/charge").unwrap();
    assert_eq!(
        (message.body.as_slice(), message.content_type.as_str()),
        (PAYLOAD.as_bytes(), "application/json")
    );
    for (name, wanted) in [
        ("specversion", Some("1.0")),
        ("id", Some("live-order-17/charge")),
        ("source", Some("/shop")),
        ("type", Some("com.example.charged.v1")),
        ("subject", Some("order/A 17 €")),
        ("time", Some("2018-04-05T01:56:24.000007Z")),
        ("dataschema", Some("https://schemas.example.com/charge.json")),
        ("traceparent", Some(TRACE)),
        ("datacontenttype", None),
    ] {
        assert_eq!(value(&message, name), wanted, "{name}");
    }
    let named = message.attributes_as("ce-").unwrap();
    assert!(named.contains(&("ce-subject".to_owned(), "order/A 17 €")));
    // The example of the specification, and what it lists.
    assert_eq!(header_value("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
    assert_eq!(header_value("a\"b%c/~!"), "a%22b%25c/~!");
}

#[test]
fn a_structured_event_holds_the_payloads_own_bytes() {
    let envelope = envelope("mode = \"structured\"\nsource = \"/shop\"").unwrap();
    let message = envelope.message(&effect(), "k").unwrap();
    assert_eq!(message.content_type, "application/cloudevents+json");
    assert!(message.attributes.is_empty(), "they stand in the body");
    let wanted = format!(
        "{{\"specversion\":\"1.0\",\"id\":\"k\",\"source\":\"/shop\",\"type\":\"charged\",\
         \"time\":\"2018-04-05T01:56:24.000007Z\",\"traceparent\":\"{TRACE}\",\
         \"datacontenttype\":\"application/json\",\"data\":{PAYLOAD}}}"
    );
    assert_eq!(String::from_utf8(message.body).unwrap(), wanted);
    let of = |payload: Option<&str>, body: Option<&[u8]>, content_type: Option<&str>| {
        let effect = Effect {
            payload: payload.map(str::to_owned),
            body: body.map(<[u8]>::to_vec),
            content_type: content_type.map(str::to_owned),
            ..effect()
        };
        let message = envelope.message(&effect, "k").unwrap();
        serde_json::from_slice::<serde_json::Value>(&message.body).expect("the event is JSON")
    };
    let event = of(None, Some(b"{\"a\":1}"), Some("application/vnd.shop+json; charset=utf-8"));
    assert_eq!(event["data"]["a"], 1, "a body that says it is JSON, and is");
    for (body, content_type) in
        [(&b"\xff\0"[..], None), (b"plain", Some("text/plain")), (b"{", Some("application/json"))]
    {
        let event = of(None, Some(body), content_type);
        assert!(event.get("data").is_none(), "{event}");
        let encoded = base64::engine::general_purpose::STANDARD.encode(body);
        assert_eq!(event["data_base64"], encoded, "{event}");
        assert_eq!(event["datacontenttype"], content_type.unwrap_or("application/octet-stream"));
    }
    let event = of(Some("null"), None, None);
    assert!(event.as_object().unwrap().contains_key("data"), "an explicit null is data");
    let event = of(None, None, None);
    for absent in ["data", "data_base64", "datacontenttype"] {
        assert!(event.get(absent).is_none(), "{event}");
    }
}

#[test]
fn what_cannot_be_an_event_is_refused_unsent_and_named() {
    let plain = envelope("source = \"/shop\"").unwrap();
    let without = Effect { operation: None, ..effect() };
    let problem = plain.message(&without, "k").unwrap_err();
    assert!(problem.contains("type takes the operation"), "{problem}");
    let literal = envelope("source = \"/shop\"\ntype = \"com.example.order\"").unwrap();
    assert_eq!(value(&literal.message(&without, "k").unwrap(), "type"), Some("com.example.order"));
    let subject = envelope("source = \"/shop\"\nsubject = \"{/nowhere}\"").unwrap();
    let problem = subject.message(&effect(), "k").unwrap_err();
    assert!(problem.contains("subject") && problem.contains("/nowhere"), "{problem}");
    let subject = envelope("source = \"/shop\"\nsubject = \"{metadata:/order}\"").unwrap();
    for bad in ["\"\"", "\"a\\nb\"", "\"\\ufdd0\"", "[1]"] {
        let effect = Effect { metadata: Some(format!("{{\"order\":{bad}}}")), ..effect() };
        assert!(subject.message(&effect, "k").is_err(), "{bad}");
    }
    let taken = Effect { headers: Some(r#"{"CE-Id":"another"}"#.to_owned()), ..effect() };
    let problem = plain.message(&taken, "k").unwrap().attributes_as("ce-").unwrap_err();
    assert!(problem.contains("CE-Id"), "{problem}");
}

#[test]
fn a_configuration_that_makes_no_events_is_refused() {
    for (table, wanted) in [
        ("", "source: is missing"),
        ("source = \"\"", "source"),
        ("source = \"a b\"", "source"),
        ("source = \"/s\"\nmode = \"both\"", "mode"),
        ("source = \"/s\"\ntype = \"\"", "type"),
        ("source = \"/s\"\ntype = \"{op}\"", "type"),
        ("source = \"/s\"\nsubject = \"{\"", "subject"),
        ("source = \"/s\"\ndataschema = \"charge.json\"", "dataschema"),
        ("source = \"/s\"\ntypo = \"x\"", "typo"),
    ] {
        let problem = envelope(table).expect_err(table);
        assert!(problem.contains(wanted), "{table:?}: {problem}");
    }
    let pins: Vec<String> = [
        "source = \"/s\"",
        "source = \"/t\"",
        "source = \"/s\"\nmode = \"structured\"",
        "source = \"/s\"\ntype = \"x\"",
        "source = \"/s\"\nsubject = \"x\"",
        "source = \"/s\"\nsubject = \"{/x}\"",
        "source = \"/s\"\ndataschema = \"https://example.com\"",
    ]
    .map(|table| envelope(table).unwrap().pinned())
    .into();
    let distinct: std::collections::BTreeSet<_> = pins.iter().collect();
    assert_eq!(distinct.len(), pins.len(), "each setting is part of the pinned request");
}
