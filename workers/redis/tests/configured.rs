//! Guarantee: a configuration that cannot keep its contract is refused where it is read.

use super::table;
use crate::trial::{refused, served};

#[test]
fn what_a_stream_cannot_promise_is_refused_with_a_way_out() {
    let with = |contract: &str| {
        table("127.0.0.1:6379").replace("contract = { dedupe = \"key\", window = \"24h\" }", contract)
    };
    for (contract, says) in [
        ("contract = { dedupe = \"key\" }", "window"),
        ("contract = { dedupe = \"key\", window = \"25h\" }\nidempotency = \"idmp\"", "24h"),
        ("contract = { dedupe = \"key\", window = \"forever\" }\nidempotency = \"idmp\"", "24h"),
        ("contract = { dedupe = \"none\" }\nidempotency = \"magic\"", "idmp"),
        ("contract = { dedupe = \"none\" }\nmaxlen = 0", "at least 1"),
        ("contract = { dedupe = \"none\" }\nmarker_prefix = \"{x}\"", "braces"),
    ] {
        assert!(refused(&with(contract)).contains(says), "{contract}: {}", refused(&with(contract)));
    }
    for url in ["redis://:pw@h", "redis://h/zero", "rediss://h/#insecure", "redis://h?protocol=resp2"] {
        let problem = refused(&table("h").replace("redis://h", url));
        assert!(problem.contains("url") && !problem.contains("insecure"), "{url}: {problem}");
    }
    served(&with("contract = { dedupe = \"key\", window = \"forever\" }"));
    served(
        &with("contract = { dedupe = \"none\", on_unknown = \"retry\" }")
            .replace("redis://127.0.0.1:6379", "rediss://u@h/3"),
    );
}
