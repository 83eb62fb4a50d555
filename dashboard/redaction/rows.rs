//! Rows of the database as they may be shown: their free text without what patterns hide, their JSON without hidden members too. Names,
//! numbers and keys are what rows are found by: they stay. Pure.

use std::{borrow::Cow, collections::BTreeMap};

use aftercommit::{
    downstream::endpoint::{Disabled, Endpoint},
    store::{
        Audited, BulkInfo, BulkRefusal, CauseRow, Content, DownstreamInfo, Filter, Intent, LoggedAttempt,
        PausedBy, Status, identity::Hold, json_contains,
    },
};
use serde_json::{Value, value::RawValue};

use super::{MASK, Redaction};

impl Redaction {
    pub(crate) fn effect(&self, effect: Status) -> Status {
        Status {
            last_error: self.maybe(effect.last_error),
            response: effect.response.and_then(|response| self.raw(&response)),
            metadata: effect.metadata.and_then(|metadata| self.raw(&metadata)),
            ..effect
        }
    }

    pub(crate) fn attempt(&self, attempt: LoggedAttempt) -> LoggedAttempt {
        LoggedAttempt { error: self.maybe(attempt.error), ..attempt }
    }

    /// What an effect carries.
    pub(crate) fn intent(&self, intent: Intent) -> Intent {
        let kind = intent.content_type.as_deref();
        let content = match intent.content {
            Content::Json(text) => Content::Json(text.map(|text| self.document(&text).into_owned())),
            Content::Bytes(bytes) => Content::Bytes(bytes.map(|bytes| self.body(kind, &bytes).into_owned())),
            content @ (Content::None | Content::Dropped) => content,
        };
        Intent {
            target: self.maybe(intent.target),
            headers: intent.headers.map(|headers| self.headers(&headers)),
            ordering_key: self.maybe(intent.ordering_key),
            trace_context: self.maybe(intent.trace_context),
            content,
            ..intent
        }
    }

    pub(crate) fn downstream(&self, info: DownstreamInfo) -> DownstreamInfo {
        let paused = info.paused.map(|paused| PausedBy { reason: self.maybe(paused.reason), ..paused });
        DownstreamInfo { hold_reason: self.maybe(info.hold_reason), paused, ..info }
    }

    pub(crate) fn endpoint(&self, endpoint: Endpoint) -> Endpoint {
        let disabled = endpoint
            .disabled
            .map(|disabled| Disabled { reason: self.words(&disabled.reason).into_owned(), ..disabled });
        Endpoint { disabled, ..endpoint }
    }

    pub(crate) fn audited(&self, row: Audited) -> Audited {
        Audited { reason: self.maybe(row.reason), ..row }
    }

    pub(crate) fn bulk(&self, bulk: BulkInfo) -> BulkInfo {
        let samples = bulk.samples.iter().map(|sample| self.words(sample).into_owned()).collect();
        let hidden =
            |refusal: BulkRefusal| BulkRefusal { words: self.words(&refusal.words).into_owned(), ..refusal };
        BulkInfo {
            what: self.words(&bulk.what).into_owned(),
            reason: self.maybe(bulk.reason),
            samples,
            refusals: bulk.refusals.into_iter().map(hidden).collect(),
            ..bulk
        }
    }

    pub(crate) fn cause(&self, row: CauseRow) -> CauseRow {
        CauseRow { error: self.maybe(row.error), ..row }
    }

    pub(crate) fn hold(&self, hold: Hold) -> Hold {
        Hold { reason: self.words(&hold.reason).into_owned(), ..hold }
    }

    /// Whether what `filter` looked for in free text and metadata is still there in what is shown of `effect`. A row that was found by
    /// what nobody is shown would tell it, letter by letter, to whoever asks often enough.
    pub(crate) fn is_found(&self, effect: &Status, filter: &Filter) -> bool {
        // What nothing is hidden of is as the database says.
        let hidden = |text: Cow<'_, str>| match text {
            Cow::Borrowed(_) => None,
            Cow::Owned(shown) => Some(shown),
        };
        let error = effect.last_error.as_deref().and_then(|error| hidden(self.words(error)));
        let metadata = effect.metadata.as_ref().and_then(|metadata| hidden(self.document(metadata.get())));
        let has_error = match (&filter.error, error) {
            (Some(asked), Some(shown)) => shown.to_lowercase().contains(&asked.to_lowercase()),
            (_, _) => true,
        };
        has_error
            && match (&filter.metadata, metadata) {
                (Some(asked), Some(shown)) => json_contains(&shown, asked),
                (_, _) => true,
            }
    }

    fn maybe(&self, text: Option<String>) -> Option<String> {
        text.map(|text| self.words(&text).into_owned())
    }

    /// JSON stays JSON, digit by digit.
    fn raw(&self, json: &RawValue) -> Option<Box<RawValue>> {
        RawValue::from_string(self.document(json.get()).into_owned()).ok()
    }

    /// A JSON object of headers, those that nobody is shown without their values. Of one that cannot be read nothing is shown.
    fn headers(&self, headers: &str) -> String {
        let hidden = || format!("\"{MASK}\"");
        let Ok(members) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(headers) else {
            return hidden();
        };
        let member = |(name, value): (&String, &RawValue)| {
            let value =
                if self.hides_header(name) { hidden() } else { self.content(value.get()).into_owned() };
            format!("{}:{value}", Value::from(name.as_str()))
        };
        let members: Vec<String> = members.iter().map(|(name, value)| member((name, value))).collect();
        format!("{{{}}}", members.join(","))
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::{clock::Timestamp, effect::EffectId, outcome::Verdict, state::State};

    use super::{
        super::{Pointer, Redact},
        *,
    };

    const SECRET: &str = "sk_live_51Habcdefgh";

    fn redaction(pointers: &[&str]) -> Redaction {
        let mut redact = Redact::default();
        redact.pointers.extend(pointers.iter().map(|text| Pointer::parse(text).unwrap()));
        Redaction::new(&redact)
    }

    fn some() -> Option<String> {
        Some(format!("it said {SECRET}"))
    }

    fn json() -> Option<Box<RawValue>> {
        RawValue::from_string(format!("{{\"n\":9007199254740993,\"key\":\"{SECRET}\"}}")).ok()
    }

    fn effect() -> Status {
        Status {
            id: EffectId::new(17),
            downstream: "pay".to_owned(),
            operation: None,
            idempotency_key: "k".to_owned(),
            state: State::Failed,
            held_by: None,
            attempts: 1,
            due_at: None,
            first_sent_at: None,
            safe_until: None,
            lease_until: None,
            worker: None,
            last_outcome: Some(Verdict::Rejected),
            last_error: some(),
            response_status: None,
            response: json(),
            metadata: json(),
            refusal_stored: false,
            payload_dropped: false,
            log_dropped: false,
            superseded_by: None,
            created_at: Timestamp::from_micros(1),
            finished_at: None,
            token: 1,
            quiet_at: None,
            uncertain: false,
        }
    }

    fn intent(content: Content) -> Intent {
        Intent {
            target: Some(format!("/hooks/{SECRET}")),
            content_type: None,
            headers: Some(format!(
                "{{\"X-Api-Key\":\"hush\",\"x-n\":9007199254740993,\"x-a\":\"{SECRET}\"}}"
            )),
            ordering_key: some(),
            trace_context: some(),
            enqueued_by: None,
            request_id: None,
            expires_at: None,
            bytes: Some(1),
            content,
        }
    }

    /// What prints is what could be shown.
    fn shows(of: &impl std::fmt::Debug) -> String {
        format!("{of:?}")
    }

    #[test]
    fn no_row_shows_a_known_secret() {
        let redaction = redaction(&[]);
        let effect = redaction.effect(effect());
        assert!(
            shows(&effect).contains("9007199254740993") && !shows(&effect).contains(SECRET),
            "{effect:?}"
        );
        let at = Timestamp::from_micros(1);
        let paused = PausedBy { at, who: "ann".to_owned(), reason: some() };
        let info = DownstreamInfo { hold_reason: some(), paused: Some(paused), ..DownstreamInfo::default() };
        let info = redaction.downstream(info);
        assert!(!shows(&info).contains(SECRET) && shows(&info).contains("ann"), "{info:?}");
        let disabled = Some(Disabled { since: at, reason: some().unwrap() });
        let (name, failing_since) = ("acme".into(), None);
        let endpoint =
            redaction.endpoint(Endpoint { name, url: None, secrets: None, disabled, failing_since });
        assert!(!shows(&endpoint).contains(SECRET), "{endpoint:?}");
        let hold = Hold {
            since: at,
            found_by: "w".to_owned(),
            reason: some().unwrap(),
            went_back: true,
            marked: true,
        };
        assert!(!shows(&redaction.hold(hold)).contains(SECRET));
    }

    #[test]
    fn what_an_effect_carries_shows_no_known_secret_also_as_bytes() {
        let redaction = redaction(&[]);
        let binary = [&b"\xff\xfe"[..], SECRET.as_bytes(), b"\x80 rest"].concat();
        for (content, stays) in [
            (Content::Json(Some(format!("{{\"key\":\"{SECRET}\",\"n\":1.50}}"))), "1.50"),
            (Content::Bytes(Some(format!("key={SECRET}&n=1.50").into_bytes())), "1.50"),
            (Content::Bytes(Some(binary)), "rest"),
        ] {
            let shown = redaction.intent(intent(content));
            let text = if let Content::Bytes(Some(bytes)) = &shown.content {
                String::from_utf8_lossy(bytes).into_owned()
            } else {
                shows(&shown.content)
            };
            assert!(text.contains(stays) && text.contains(MASK) && !text.contains(SECRET), "{text}");
            let rest = shows(&Intent { content: Content::None, ..shown });
            assert!(!rest.contains(SECRET) && !rest.contains("hush"), "{rest}");
            assert!(rest.contains("9007199254740993"), "{rest}");
        }
    }

    #[test]
    fn what_says_that_it_is_json_and_cannot_be_read_is_withheld_while_members_are_hidden() {
        let broken = "{\"card\":\"4242\",";
        let bytes = |kind: &str, text: &[u8]| Intent {
            content_type: Some(kind.to_owned()),
            ..intent(Content::Bytes(Some(text.to_vec())))
        };
        let hidden = redaction(&["/card"]);
        for kind in ["application/json", "application/vnd.x+JSON; charset=utf-8"] {
            for text in [broken.as_bytes(), b"{\"card\":\"4242\xff\"}", b"{\"card\":\"4242\"}"] {
                let shown = hidden.intent(bytes(kind, text)).content;
                let Content::Bytes(Some(shown)) = shown else { panic!("{shown:?}") };
                let shown = String::from_utf8(shown).unwrap();
                assert!(shown.contains(MASK) && !shown.contains("4242"), "{kind}: {shown}");
            }
        }
        assert_eq!(redaction(&[]).document(broken), broken, "nothing of it is hidden");
        // Half a character makes no JSON unreadable.
        let half = "{\"n\":\"\\ud800\",\"card\":\"4242\"}";
        assert_eq!(hidden.document(half), "{\"n\":\"\\ud800\",\"card\":\"•••\"}");
        let unread = Intent { headers: Some("{\"x-api-key\":\"hush\"".to_owned()), ..intent(Content::None) };
        assert_eq!(hidden.intent(unread).headers.as_deref(), Some("\"•••\""));
    }

    #[test]
    fn a_search_finds_no_row_by_what_is_hidden_in_it() {
        let redaction = redaction(&["/pin"]);
        let by_error = |words: &str| Filter { error: Some(words.to_owned()), ..Filter::default() };
        let by_metadata = |json: &str| Filter { metadata: Some(json.to_owned()), ..Filter::default() };
        let effect = Status {
            metadata: RawValue::from_string("{\"pin\":1234,\"order\":\"A-17\",\"n\":1.0}".to_owned()).ok(),
            ..effect()
        };
        for found in [by_error("SAID"), by_metadata("{\"order\":\"A-17\"}"), by_metadata("{\"n\":1}")] {
            assert!(redaction.is_found(&effect, &found), "{found:?}");
        }
        for hidden in [by_error("sk_live_5"), by_error("said sk"), by_metadata("{\"pin\":1234}")] {
            assert!(!redaction.is_found(&effect, &hidden), "{hidden:?}");
        }
        let plain = Status { last_error: Some("said sk".to_owned()), metadata: None, ..effect };
        assert!(redaction.is_found(&plain, &by_error("said sk")), "nothing of it is hidden");
    }
}
