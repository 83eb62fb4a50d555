//! What is planted: the secrets by where they stand, the configuration and the effects that hold them.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::e2e::{database::Database, shop::WORKER};

// By where they are planted. Ours are those that authenticate us; they must not even be stored when they come back.
pub(super) const DATABASE_PASSWORD: &str = "pgPasswordCanary01";
pub(super) const BEARER: &str = "sk_live_bearerCanary02";
pub(super) const BASIC_PASSWORD: &str = "basicPasswordCanary03";
pub(super) const API_KEY: &str = "apiKeyHeaderCanary04";
pub(super) const FILE_TOKEN: &str = "fileTokenCanary05";
pub(super) const BASE_PATH: &str = "T0basePathCanary06";
pub(super) const BASE_QUERY: &str = "baseQueryCanary07";
pub(super) const EFFECT_HEADER: &str = "effectHeaderCanary08";
pub(super) const TARGET_PATH: &str = "targetPathCanary09";
pub(super) const TARGET_QUERY: &str = "targetQueryCanary10";
pub(super) const URL_PATH: &str = "urlPathCanary11";
pub(super) const URL_QUERY: &str = "urlQueryCanary12";
pub(super) const REFUSED_URL: &str = "refusedUrlCanary13";
pub(super) const BROKEN_URL: &str = "brokenUrlCanary14";
pub(super) const PAYLOAD: &str = "payloadCanary15";
pub(super) const FORM_FIELD: &str = "formFieldCanary16";
pub(super) const BODY: &str = "bodyBytesCanary17";
pub(super) const REASON_PHRASE: &str = "reasonPhraseCanary18";
pub(super) const ANSWER_HEADER: &str = "answerHeaderCanary19";
pub(super) const LOCATION: &str = "locationCanary20";
pub(super) const CONTENT_TYPE: &str = "contentTypeCanary21";
pub(super) const CUT_ANSWER: &str = "cutAnswerCanary22";

/// Shown by design: that it is found shows that the search finds what there is.
pub(super) const METADATA: &str = "metadataShown90";
/// In the response by design, and nowhere else.
pub(super) const ANSWER: &str = "answerBodyShown91";

/// What must not be in any output, nor in any column but those of the effect's own row.
pub(super) fn canaries() -> Vec<String> {
    let mut canaries: Vec<String> = [
        DATABASE_PASSWORD,
        BEARER,
        BASIC_PASSWORD,
        API_KEY,
        FILE_TOKEN,
        BASE_PATH,
        BASE_QUERY,
        EFFECT_HEADER,
        TARGET_PATH,
        TARGET_QUERY,
        URL_PATH,
        URL_QUERY,
        REFUSED_URL,
        BROKEN_URL,
        PAYLOAD,
        FORM_FIELD,
        BODY,
        REASON_PHRASE,
        ANSWER_HEADER,
        LOCATION,
        CONTENT_TYPE,
        CUT_ANSWER,
    ]
    .map(str::to_owned)
    .into();
    canaries.push(basic_pair());
    canaries
}

pub(super) fn basic_pair() -> String {
    STANDARD.encode(format!("me:{BASIC_PASSWORD}"))
}

/// The last words of the keys: what the downstream makes of each.
const ANSWERS: [&str; 6] = ["error", "code", "moved", "text", "cut", "done"];

pub(super) fn settings(echo: &str, closed: &str) -> String {
    let head = |name: &str, rest: &str| {
        format!(
            "[downstream.{name}]\nkind = \"http\"\ntimeout = \"2s\"\n\
             contract = {{ dedupe = \"none\", on_unknown = \"retry\", code_at = [\"/error/code\"] }}\n\
             retry = {{ initial = \"20ms\", max = \"50ms\", max_attempts = 2, max_age = \"3s\" }}\n{rest}\n"
        )
    };
    let secret_url = |origin: &str| format!("base_url = \"{origin}/{BASE_PATH}?token={BASE_QUERY}\"\n");
    let here = format!("base_url = \"http://{echo}\"\n");
    let port = echo.rsplit_once(':').map_or("0", |(_, port)| port);
    let bearer = "auth = { bearer = { env = \"BEARER\" } }\n";
    [
        WORKER.to_owned(),
        head("bearer", &format!("{}{bearer}[downstream.bearer.operations.pay]\nencoding = \"form\"\n", secret_url(&format!("http://{echo}")))),
        head("basic", &format!("{here}dynamic_target = \"path\"\nauth = {{ basic = {{ user = \"me\", password = {{ env = \"BASIC\" }} }} }}")),
        head("header", &format!("{here}auth = {{ header = {{ name = \"X-Api-Key\", value = {{ env = \"API_KEY\" }} }} }}")),
        head("file", &format!("{here}auth = {{ bearer = {{ file = \"token\" }} }}")),
        head("hooks", &format!("dynamic_target = \"url\"\negress = {{ http = true, allow = [\"127.0.0.1\"], ports = [{port}] }}")),
        head("closed", &format!("{}{bearer}", secret_url(&format!("http://{closed}")))),
        head("tls", &format!("{}{bearer}", secret_url(&format!("https://{echo}")))),
    ]
    .concat()
}

/// One more effect.
struct Planted<'p> {
    downstream: &'p str,
    operation: &'p str,
    key: &'p str,
    target: Option<String>,
    /// Bytes instead of a payload.
    body: bool,
}

fn insert(database: &Database, planted: &Planted<'_>) -> String {
    let (effects, bytes) = match database {
        Database::Postgres(_) => ("aftercommit.effects", format!("convert_to('<x>{BODY}</x>', 'UTF8')")),
        Database::Sqlite(_) => ("aftercommit_effects", format!("CAST('<x>{BODY}</x>' AS BLOB)")),
    };
    let text = |value: Option<&str>| value.map_or_else(|| "NULL".to_owned(), |value| format!("'{value}'"));
    let operation = (!planted.operation.is_empty()).then_some(planted.operation);
    let payload = format!(r#"{{"card":"{PAYLOAD}","nested":{{"field":"{FORM_FIELD}"}}}}"#);
    format!(
        "INSERT INTO {effects} (downstream, operation, idempotency_key, payload, body, headers, target, metadata)
         VALUES ('{}', {}, '{}', {}, {}, '{{\"X-Signature\":\"{EFFECT_HEADER}\"}}', {}, '{{\"order\":\"{METADATA}\"}}')",
        planted.downstream,
        text(operation),
        planted.key,
        text((!planted.body).then_some(payload.as_str())),
        if planted.body { bytes } else { "NULL".to_owned() },
        text(planted.target.as_deref()),
    )
}

pub(super) async fn plant(database: &Database, echo: &str) {
    let mut effects = Vec::new();
    for answer in ANSWERS {
        for (downstream, operation) in [("bearer", "pay"), ("bearer", ""), ("header", ""), ("file", "")] {
            let key = format!("{downstream}{operation}/{answer}");
            effects.push((downstream, operation, key, None, false));
        }
        let target = format!("/hooks/{TARGET_PATH}?token={TARGET_QUERY}");
        effects.push(("basic", "", format!("basic/{answer}"), Some(target), true));
        let target = format!("http://{echo}/hooks/{URL_PATH}?token={URL_QUERY}");
        effects.push(("hooks", "", format!("hooks/{answer}"), Some(target), true));
    }
    for (n, target) in [
        format!("http://10.0.0.1/hooks/{REFUSED_URL}?token={REFUSED_URL}"),
        format!("http://{REFUSED_URL}:{REFUSED_URL}@{echo}/"),
        format!("https://{echo}1/{REFUSED_URL}"),
        format!("{BROKEN_URL} is no URL?{BROKEN_URL}"),
        format!("http://{echo}/{BROKEN_URL}\\{BROKEN_URL}"),
        format!("ftp://{echo}/{BROKEN_URL}"),
    ]
    .into_iter()
    .enumerate()
    {
        effects.push(("hooks", "", format!("refused/{n}"), Some(target), false));
    }
    for downstream in ["closed", "tls"] {
        effects.push((downstream, "", format!("{downstream}/1"), None, false));
    }
    for (downstream, operation, key, target, body) in &effects {
        let planted = Planted { downstream, operation, key, target: target.clone(), body: *body };
        database.execute(&insert(database, &planted)).await;
    }
}
