//! The page, as text. Everything that came from outside goes through [`escape`].

use std::{collections::BTreeMap, fmt::Write as _};

use aftercommit::{
    clock::Timestamp,
    state::State,
    store::{Count, DownstreamInfo, Filter, Status},
};

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --quiet: #777; --good: #18794e; --bad: #c62a2f; --doubt: #ad5700; }
@media (prefers-color-scheme: dark) { :root { --quiet: #999; --good: #4cc38a; --bad: #ff6369; --doubt: #ffa53d; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.25rem; margin: 0 0 .75rem; }
h1 a { color: inherit; text-decoration: none; }
nav { display: flex; flex-wrap: wrap; gap: .25rem .75rem; margin-bottom: 1rem; }
nav a[aria-current] { font-weight: 600; text-decoration: none; color: inherit; }
ol { list-style: none; margin: 0; padding: 0; }
li { border-top: 1px solid var(--line); padding: .6rem 0; display: grid; gap: 0 1rem;
     grid-template-columns: minmax(0, 1fr) auto; }
li > * { overflow-wrap: anywhere; }
.key { font-family: ui-monospace, monospace; font-size: .9em; }
.quiet, time { color: var(--quiet); font-size: .87em; }
.why { grid-column: 1 / -1; font-size: .9em; }
.succeeded { color: var(--good); } .failed { color: var(--bad); } .in_doubt { color: var(--doubt); font-weight: 600; }
";

/// Downstreams whose effects wait and that no live worker serves, each in a sentence.
pub(crate) fn unserved(downstreams: &[DownstreamInfo], now: Timestamp) -> Vec<String> {
    downstreams.iter().filter_map(|info| info.unserved(now)).collect()
}

/// The list of effects, below what nobody serves.
pub(crate) fn effects(counts: &[Count], effects: &[Status], filter: &Filter, unserved: &[String]) -> String {
    let mut body = String::new();
    for sentence in unserved {
        put(&mut body, format_args!("<p class=in_doubt role=alert>{}</p>", escape(sentence)));
    }
    states(&mut body, counts, filter);
    if effects.is_empty() {
        body.push_str("<p class=quiet>No effects here.</p>");
    }
    body.push_str("<ol>");
    for effect in effects {
        item(&mut body, effect);
    }
    body.push_str("</ol>");
    if effects.len() >= usize::try_from(filter.limit).unwrap_or(usize::MAX)
        && let Some(last) = effects.last()
    {
        let state = filter.states.first().map(|state| format!("state={state}&amp;")).unwrap_or_default();
        let downstream = filter
            .downstream
            .as_deref()
            .map(|name| format!("downstream={}&amp;", query(name)))
            .unwrap_or_default();
        put(&mut body, format_args!("<p><a href=\"?{state}{downstream}before={}\">Older</a></p>", last.id));
    }
    whole("Effects", &body)
}

/// The page when the database does not answer.
pub(crate) fn unavailable(problem: &str) -> String {
    whole("No answer", &format!("<p>The database did not answer: {}.</p>", escape(problem)))
}

fn states(body: &mut String, counts: &[Count], filter: &Filter) {
    let mut by_state: BTreeMap<State, u64> = BTreeMap::new();
    for count in counts {
        *by_state.entry(count.state).or_default() += count.effects;
    }
    let current = |here: bool| if here { " aria-current=page" } else { "" };
    put(body, format_args!("<nav><a href=\"?\"{}>all</a>", current(filter.states.is_empty())));
    for state in State::ALL {
        let count = by_state.get(&state).copied().unwrap_or(0);
        if count == 0 && !filter.states.contains(&state) {
            continue;
        }
        let here = current(filter.states.contains(&state));
        put(body, format_args!("<a href=\"?state={state}\"{here}>{} {count}</a>", words(state)));
    }
    body.push_str("</nav>");
}

fn item(body: &mut String, effect: &Status) {
    let operation = effect.operation.as_deref().map(|name| format!("/{}", escape(name))).unwrap_or_default();
    let held = effect.held_by.as_deref().map(|why| format!(" ({})", escape(why))).unwrap_or_default();
    let tries = match effect.attempts {
        0 => String::new(),
        1 => ", 1 attempt".to_owned(),
        more => format!(", {more} attempts"),
    };
    put(
        body,
        format_args!(
            "<li><span>{}{operation} <span class=quiet>#{}</span></span><span class={}>{}{held}</span>\
             <span class=key>{}</span><span class=quiet><time>{}</time>{tries}</span>",
            escape(&effect.downstream),
            effect.id,
            effect.state,
            words(effect.state),
            escape(&effect.idempotency_key),
            to_the_second(&effect.created_at.rfc3339()),
        ),
    );
    let unsettled = !matches!(effect.state, State::Succeeded | State::Cancelled);
    if let Some(why) = effect.last_error.as_deref().filter(|why| unsettled && !why.is_empty()) {
        put(body, format_args!("<span class=why>{}</span>", escape(why)));
    }
    body.push_str("</li>");
}

fn words(state: State) -> String {
    state.as_str().replace('_', " ")
}

fn to_the_second(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

fn whole(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <title>{title} · aftercommit</title><style>{STYLE}</style>\
         <h1><a href=\"?\">aftercommit</a></h1><main>{body}</main></html>\n"
    )
}

fn put(body: &mut String, text: std::fmt::Arguments<'_>) {
    body.write_fmt(text).expect("writing into a String cannot fail");
}

/// Text as it may stand in an element or a quoted attribute.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Text as it may stand in a query, percent-encoded.
fn query(text: &str) -> String {
    let mut safe = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            safe.push(char::from(byte));
        } else {
            put(&mut safe, format_args!("%{byte:02X}"));
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use aftercommit::effect::EffectId;

    use super::*;

    #[test]
    fn what_came_from_outside_is_escaped() {
        assert_eq!(escape("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        assert_eq!(query("a b&c=ü"), "a%20b%26c%3D%C3%BC");
    }

    #[test]
    fn an_effect_cannot_put_markup_into_the_page() {
        let effect = Status {
            id: EffectId::new(7),
            downstream: "<b>pay</b>".to_owned(),
            operation: Some("<i>".to_owned()),
            idempotency_key: "\"><script>alert(1)</script>".to_owned(),
            state: State::InDoubt,
            held_by: None,
            attempts: 1,
            due_at: None,
            first_sent_at: None,
            safe_until: None,
            lease_until: None,
            worker: None,
            last_outcome: None,
            last_error: Some("<img src=x onerror=alert(1)>".to_owned()),
            response_status: None,
            response: None,
            metadata: None,
            refusal_stored: false,
            payload_dropped: false,
            log_dropped: false,
            superseded_by: None,
            created_at: Timestamp::from_micros(0),
            finished_at: None,
            token: 1,
            quiet_at: None,
            uncertain: false,
        };
        let filter = Filter { downstream: Some("\"><b>".to_owned()), limit: 1, ..Filter::default() };
        let html = effects(&[], &[effect], &filter, &["No live worker serves <b>x</b>".to_owned()]);
        for markup in ["<script", "<b>", "<i>", "<img"] {
            assert!(!html.contains(markup), "{markup} in {html}");
        }
        assert!(html.contains("in doubt") && html.contains("#7") && html.contains("1 attempt"), "{html}");
    }
}
