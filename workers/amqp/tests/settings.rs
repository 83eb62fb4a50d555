//! Guarantee: a configuration that cannot work is refused with what to write instead, and no secret is shown.

use super::settings;

const PLACE: &str = "url = \"amqp://127.0.0.1\"\n";

#[track_caller]
fn refused(toml: &str, words: &str) {
    let settings = settings(toml);
    let error = match settings {
        Err(error) => error.to_string(),
        Ok(settings) => settings.serve(None).expect_err("this configuration must be refused").to_string(),
    };
    assert!(error.contains(words) && !error.contains("sekret"), "{error}");
}

#[test]
fn a_broker_promises_nothing_about_a_key() {
    refused(
        &format!("{PLACE}contract = {{ dedupe = \"key\", window = \"1h\" }}"),
        "dedupe = \"key\" is not possible",
    );
    refused(
        &format!("{PLACE}[downstream.orders.operations.x.contract]\ndedupe = \"key\"\nwindow = \"1h\""),
        "dedupe = \"key\" is not possible",
    );
    for on_unknown in ["hold", "retry"] {
        settings(&format!("{PLACE}contract = {{ dedupe = \"none\", on_unknown = \"{on_unknown}\" }}"))
            .unwrap();
    }
}

#[test]
fn a_url_is_what_it_looks_like() {
    refused("url = \"amqp://shop:sekret@host\"", "must not hold a password");
    refused("url = \"http://host\"", "amqp:// or amqps://");
    refused("url = \"amqp://host/\"", "leave it out for the default one");
    refused("url = \"amqp://host/a/b\"", "%2f");
    refused("url = \"amqp://host?heartbeat=1\"", "keys of their own");
    refused(&format!("{PLACE}ca = \"/nowhere/ca.pem\""), "/nowhere/ca.pem cannot be read");
    refused(&format!("{PLACE}heartbeat = \"10ms\""), "from 1s to 10m");
    refused(&format!("{PLACE}exchange = \"{}\"", "x".repeat(256)), "at most 255 bytes");
    settings("url = { env = \"WHOLE\" }").unwrap().serve(None).unwrap();
}

#[test]
fn a_topology_is_read_and_a_wrong_one_refused() {
    let good = "
[downstream.orders.declare]
on_mismatch = \"use\"
exchanges = [{ name = \"orders\", type = \"topic\" }]
queues = [{ name = \"billing\", arguments = { x-queue-type = \"quorum\", x-max-length = 5 } }, { name = \"mail\", durable = false }]
bindings = [{ exchange = \"orders\", queue = \"billing\", routing_key = \"order.#\" }]";
    let settings = settings(&format!("{PLACE}{good}")).unwrap();
    let warnings = settings.downstreams["orders"].configured.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("mail is not durable")), "{warnings:?}");
    let declare = |line: &str| format!("{PLACE}[downstream.orders.declare]\n{line}");
    refused(
        &declare("queues = [{ name = \"q\", arguments = { x = 1.5 } }]"),
        "strings, whole numbers and booleans",
    );
    refused(&declare("queues = [{ durable = true }]"), "is missing");
    refused(&declare("queues = [{ name = \"q\", colour = 1 }]"), "unknown key");
    refused(&declare("on_mismatch = \"maybe\""), "refuse");
}

/// A changed exchange is another request: an effect in doubt is not sent there.
#[test]
fn what_is_pinned_changes_with_where_messages_go_and_not_with_how() {
    let hash = |more: &str| {
        let settings = settings(&format!("{PLACE}{more}")).unwrap();
        settings.downstreams["orders"].configured.request_sha256(None)
    };
    let plain = hash("exchange = \"a\"");
    assert_ne!(plain, hash("exchange = \"b\""));
    assert_ne!(plain, hash("exchange = \"a\"\nrouting_key = \"k\""));
    assert_ne!(plain, hash("exchange = \"a\"\nkey_prefix = \"p\""));
    assert_eq!(plain, hash("exchange = \"a\"\nheartbeat = \"30s\"\nsingle_queue = true\ntimeout = \"5s\""));
}
