//! Everything that is wrong is told at once, of every kind's table too, and nothing that follows from something else.

use super::*;

/// `key: problem` for everything that is wrong.
fn wrong(text: &str) -> Vec<String> {
    let file = file(text);
    let sources = Sources { file: Some(file.path.clone()), ..Sources::default() };
    let problems = Settings::load_all(&sources).unwrap_err();
    problems.into_iter().map(|problem| format!("{}: {}", problem.key, problem.problem)).collect()
}

/// Exactly these keys of the downstream's table are wrong, each told once.
#[track_caller]
fn wrong_keys(table: &str, keys: &[&str]) {
    let all = wrong(&format!("{HEAD}[downstream.shop]\n{table}"));
    let mut found: Vec<_> = all
        .iter()
        .map(|line| line.split(": ").next().unwrap().trim_start_matches("downstream.shop."))
        .collect();
    found.sort_unstable();
    let mut wanted = keys.to_vec();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{all:#?}");
}

#[test]
fn everything_that_is_wrong_is_told_at_once_and_nothing_that_follows_from_it() {
    let all = wrong(
        "databse = \"sqlite:x.db\"\nenviroment = \"test\"\n[worker]\npol = \"1s\"\nlease = 5\n\
         [downstream.a]\nknd = \"http\"\n[downstream.b]\nkind = \"http\"\nbase_url = 7\ntimeout = \"40\"\n\
         [downstream.c]\nkind = \"http\"\nbase_url = \"https://c.example\"\ncontract = { dedupe = \"nnoe\" }\n",
    );
    for words in [
        "databse: unknown key; did you mean `database`?",
        "enviroment: unknown key; did you mean `environment`?",
        "worker.pol: unknown key",
        "worker.lease: must be a duration",
        "downstream.a.knd: unknown key; did you mean `kind`?",
        "downstream.b.timeout: must be",
        "downstream.b.base_url: must be",
        "downstream.c.contract.dedupe: must be one of",
    ] {
        assert!(all.iter().any(|line| line.starts_with(words)), "{words} in {all:#?}");
    }
    assert!(!all.iter().any(|line| line.contains("not set") || line.contains("missing")), "{all:#?}");
    let mut keys: Vec<_> = all.iter().map(|line| line.split(':').next().unwrap()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all.len(), "a line for a key: {all:#?}");
    assert_eq!(wrong("").len(), 2);
}

#[test]
fn what_every_kind_has_is_read_to_its_end() {
    wrong_keys(
        "kind = \"http\"\nbase_url = \"ftp://x\"\nkey_prefix = \"a b\"\nconcurrency = 0\nrate = \"x\"\ntimeout = \"1ms\"\n\
         lease = \"5s\"\nprofile = \"strpe\"\nretry = { initial = \"0s\", factor = 0.5, max_attempts = 0 }\nmispelt = 1\n\
         on_outcome = \"x\"\nprobe = { path = \"/x\" }\ncontract = { code_at = [\"x\"], methods = [\"GET\"] }\n",
        &[
            "base_url",
            "key_prefix",
            "concurrency",
            "rate",
            "timeout",
            "profile",
            "retry.initial",
            "retry.factor",
            "retry.max_attempts",
            "mispelt",
            "on_outcome",
            "probe.absent_after",
            "contract.code_at",
            "contract.methods",
        ],
    );
}

#[test]
fn an_http_table_is_read_to_its_end() {
    wrong_keys(
        "kind = \"http\"\nauth = { bearer = { env = \"A\" }, basic = {} }\nheaders = { Host = \"x\" }\nmax_response = \"x\"\n\
         dynamic_target = \"both\"\negress = { ports = [0] }\ncloudevents = { mode = \"both\", type = \"{op}\" }\n\
         [downstream.shop.operations.a]\nmethod = \"GET\"\npath = \"x{\"\nencoding = \"xml\"\n\
         [downstream.shop.operations.b]\ntimeout = \"1ms\"\nmthod = \"PUT\"\n",
        &[
            "auth",
            "headers",
            "max_response",
            "dynamic_target",
            "cloudevents.mode",
            "cloudevents.source",
            "cloudevents.type",
            "operations.a.method",
            "operations.a.path",
            "operations.a.encoding",
            "operations.b.timeout",
            "operations.b.mthod",
        ],
    );
}

#[test]
fn a_webhooks_table_is_read_to_its_end() {
    wrong_keys(
        "kind = \"webhook\"\nkey_prefix = \"a.\"\nsecrets_from = [\"HOOK_\"]\nendpoint_concurrency = 0\n\
         headers = { webhook-id = \"x\" }\negress = { auth_origins = [\"https://x.test\"], allow = [\"a b\"] }\n\
         [downstream.shop.endpoints.acme]\nurl = \"http://plain.test\"\nheaders = { ce-id = \"x\" }\nrate = \"1/s\"\n\
         [downstream.shop.endpoints.other]\nurl = \"https://x.test/\"\nscret = { env = \"X\" }\n",
        &[
            "key_prefix",
            "secrets_from",
            "endpoint_concurrency",
            "headers",
            "egress.auth_origins",
            "egress.allow",
            "endpoints.acme.url",
            "endpoints.acme.headers",
            "endpoints.acme.rate",
            "endpoints.acme.secret",
            "endpoints.other.scret",
        ],
    );
}

#[cfg(feature = "smtp")]
#[test]
fn a_mail_servers_table_is_read_to_its_end() {
    wrong_keys(
        "kind = \"smtp\"\ntls = \"maybe\"\nhello = \"a b\"\nfrom = \"nobody\"\ndata_timeout = \"1ms\"\nkey_header = \"To\"\n\
         auth = { user = \"me\" }\nsrver = \"smtp://x\"\ncontract = { dedupe = \"lookup\" }\n\
         probe = { path = \"/x\", absent_after = \"1m\" }\n[downstream.shop.operations.a]\n",
        &["tls", "hello", "from", "data_timeout", "key_header", "auth", "srver", "contract"],
    );
}

#[cfg(feature = "amqp")]
#[test]
fn a_brokers_table_is_read_to_its_end() {
    wrong_keys(
        &format!(
            "kind = \"amqp\"\nurl = \"http://x\"\nheartbeat = \"1ms\"\nexchange = \"{0}\"\nrouting_key = \"{0}\"\n\
             contract = {{ dedupe = \"key\", window = \"24h\", key_in = \"header:X\" }}\n\
             [downstream.shop.declare]\non_mismatch = \"both\"\nbindings = [{{ exchange = \"a\" }}, {{ queue = \"b\" }}]\n\
             queues = [{{ nme = \"q\" }}]\n[downstream.shop.operations.a]\nexchange = \"{0}\"\n",
            "x".repeat(256)
        ),
        &[
            "url",
            "heartbeat",
            "exchange",
            "routing_key",
            "contract.key_in",
            "contract",
            "declare.on_mismatch",
            "declare.bindings[0].queue",
            "declare.bindings[1].exchange",
            "declare.queues[0].nme",
            "operations.a.exchange",
        ],
    );
}

#[cfg(feature = "nats")]
#[test]
fn a_streams_table_is_read_to_its_end() {
    wrong_keys(
        "kind = \"nats\"\nurl = \"x\"\nservers = [\"http://x\"]\ntoken = { env = \"A\" }\nnkey = { env = \"B\" }\nstraem = \"S\"\n\
         subject = \"a b\"\ncontract = { dedupe = \"key\" }\n[downstream.shop.operations.a]\nsubject = \"a..b\"\n\
         [downstream.shop.operations.b]\ncontract = { window = \"forever\" }\n",
        &[
            "url",
            "servers",
            "auth",
            "straem",
            "subject",
            "contract",
            "operations.a.subject",
            "operations.b.contract",
        ],
    );
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_table_is_read_to_its_end() {
    wrong_keys(
        "kind = \"redis\"\nidempotency = \"both\"\nmarker_prefix = \"{\"\nproducer = \"\"\nmaxlen = 0\nstream = \"\"\n\
         contract = { dedupe = \"key\" }\ncloudevents = {}\n[downstream.shop.operations.a]\nstream = \"\"\n",
        &[
            "url",
            "idempotency",
            "marker_prefix",
            "producer",
            "maxlen",
            "stream",
            "contract",
            "cloudevents.source",
            "operations.a.stream",
        ],
    );
}

#[test]
fn where_the_key_stands_is_shown_for_kinds_that_can_be_told_and_refused_for_the_others() {
    let shown = |kind: &str, table: &str| {
        let text =
            format!("{HEAD}[downstream.shop]\nkind = \"{kind}\"\n{table}\n[downstream.shop.operations.a]\n");
        load(&text).unwrap().show()
    };
    assert!(shown("http", "base_url = \"https://x.test\"").contains("key_in = "));
    for (kind, table) in [
        ("webhook", "profile = \"standard-webhooks\"\nsecrets_from = [\"env:HOOK_\"]"),
        #[cfg(feature = "smtp")]
        ("smtp", "server = \"smtp://localhost\""),
        #[cfg(feature = "amqp")]
        ("amqp", "url = \"amqp://localhost\""),
        #[cfg(feature = "nats")]
        ("nats", "url = \"nats://localhost\"\nstream = \"S\""),
        #[cfg(feature = "redis")]
        ("redis", "url = \"redis://localhost\""),
    ] {
        let text = shown(kind, table);
        assert!(!text.contains("key_in") && !text.contains("key_format"), "{kind}: {text}");
        assert!(text.contains("max_key_len"), "{kind}: {text}");
        for given in ["key_in = \"query:k\"", "key_format = \"sf-string\""] {
            let contract = format!("contract = {{ dedupe = \"none\", {given} }}");
            let table = table.replace("profile = \"standard-webhooks\"\n", "");
            let error =
                refused(&format!("{HEAD}[downstream.shop]\nkind = \"{kind}\"\n{table}\n{contract}\n"));
            assert!(error.contains("cannot be set for this kind"), "{kind}: {error}");
        }
    }
}
