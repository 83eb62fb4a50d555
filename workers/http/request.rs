//! Rendering: the request that an effect is, purely and deterministically. Credentials are added when it is sent.
//!
//! Whatever cannot be rendered is an error with a sentence for people; nothing is cut, re-cased or guessed.

use aftercommit::effect::Effect;
use bytes::Bytes;
use reqwest::{
    Method,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use url::Url;

use super::{
    config::{Auth, Call, Encoding, Http},
    egress::{Egress, Target},
    form,
    headers::{ATTRIBUTE, is_ours},
    template,
};
use crate::{
    cloudevents::{self, Envelope},
    config::{KeyFormat, KeyIn},
    json,
    message::{self, Message},
};

/// A request without its credentials.
#[derive(Clone, Debug)]
pub(crate) struct Rendered {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The request of `effect`, with `key` as it is sent.
pub(super) fn render(http: &Http, call: &Call, effect: &Effect, key: &str) -> Result<Rendered, String> {
    if let Some(problem) = call.key_rule.refuses(key) {
        return Err(problem);
    }
    message::check_depth(effect)?;
    let (body, content_type) = body(call, effect, key)?;
    let url = url(http, call, effect, key)?;
    let mut headers = headers(http, call, effect, key)?;
    let (body, content_type) = match &http.envelope {
        None => (body, content_type),
        Some(envelope) => event(envelope, effect, key, (body, content_type), &mut headers)?,
    };
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    Ok(Rendered { method: call.method.clone(), url, headers, body })
}

fn body(call: &Call, effect: &Effect, key: &str) -> Result<(Bytes, Option<HeaderValue>), String> {
    let given = if effect.body.is_some() { Encoding::Raw } else { Encoding::Json };
    let json_type = || match &effect.content_type {
        None => Ok(HeaderValue::from_static("application/json")),
        Some(given) => content_type_value(given),
    };
    let key_at = match &call.key_in {
        KeyIn::Body(pointer) => Some(pointer),
        KeyIn::Header(_) | KeyIn::Query(_) | KeyIn::Path => None,
    };
    match (call.encoding.unwrap_or(given), &effect.payload, &effect.body) {
        (_, Some(_), Some(_)) => Err("the effect has both a payload and a body".to_owned()),
        (Encoding::Json | Encoding::Form, None, Some(_)) => {
            Err("the operation sends the payload, and the effect has a body: set encoding = \"raw\""
                .to_owned())
        }
        (Encoding::Raw, Some(_), None) => {
            Err("the operation sends the body, and the effect has a payload: set encoding = \"json\""
                .to_owned())
        }
        (Encoding::Raw, None, _) if key_at.is_some() => {
            Err("the key belongs into the body, and the effect's body is not JSON".to_owned())
        }
        (Encoding::Raw, None, Some(body)) => {
            let named = effect.content_type.as_deref().unwrap_or("application/octet-stream");
            Ok((Bytes::copy_from_slice(body), Some(content_type_value(named)?)))
        }
        (Encoding::None, _, Some(_)) => Err("the operation sends no body, and the effect has one".to_owned()),
        (Encoding::None, _, None) | (Encoding::Raw, None, None) => Ok((Bytes::new(), None)),
        (Encoding::Json, payload, None) => {
            let text = match (payload, key_at) {
                (None, None) => return Ok((Bytes::new(), None)),
                (Some(text), None) => json::value(text).map(|_checked| text.clone()),
                (text, Some(pointer)) => json::splice(text.as_deref().unwrap_or("{}"), pointer, key),
            };
            Ok((text.map_err(|problem| format!("payload {problem}"))?.into(), Some(json_type()?)))
        }
        (Encoding::Form, payload, None) => form_body(payload.as_deref(), key_at.map(String::as_str), key),
    }
}

/// The event whose data is that body; its attributes go into `headers`.
fn event(
    envelope: &Envelope,
    effect: &Effect,
    key: &str,
    (body, content_type): (Bytes, Option<HeaderValue>),
    headers: &mut HeaderMap,
) -> Result<(Bytes, Option<HeaderValue>), String> {
    let data = Message {
        body: body.to_vec(),
        content_type: content_type
            .as_ref()
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
        headers: Vec::new(),
        traceparent: message::traceparent(effect),
        attributes: Vec::new(),
    };
    let event = envelope.around(data, effect, key)?;
    for (name, value) in event.attributes_as(ATTRIBUTE)? {
        let (name, value) = header(&name, &cloudevents::header_value(value))?;
        headers.insert(name, value);
    }
    let content_type =
        if event.content_type.is_empty() { None } else { Some(content_type_value(&event.content_type)?) };
    Ok((event.body.into(), content_type))
}

fn form_body(
    payload: Option<&str>,
    key_at: Option<&str>,
    key: &str,
) -> Result<(Bytes, Option<HeaderValue>), String> {
    let mut pairs = match payload {
        None => Vec::new(),
        Some(text) => {
            json::value(text).and_then(form::pairs).map_err(|problem| format!("payload {problem}"))?
        }
    };
    if let Some(pointer) = key_at {
        let name = form::name_at(pointer);
        if pairs.iter().any(|(standing, value)| *standing == name && value != key) {
            return Err(format!("payload already has another value at {pointer}, where the key belongs"));
        }
        if !pairs.iter().any(|(standing, _)| *standing == name) {
            pairs.push((name, key.to_owned()));
        }
    }
    let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
    Ok((form::join(&pairs).into(), Some(form_type)))
}

fn content_type_value(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text)
        .ok()
        .filter(|value| !value.is_empty() && value.to_str().is_ok())
        .ok_or_else(|| "content_type cannot stand in a header".to_owned())
}

fn url(http: &Http, call: &Call, effect: &Effect, key: &str) -> Result<Url, String> {
    if call.key_in == KeyIn::Path && !call.path.as_ref().is_some_and(template::Template::has_key) {
        return Err("the key belongs into the path, and this operation's path has no {key}".to_owned());
    }
    if let (Target::Url(egress), Some(target), None) = (&http.target, &effect.target, &call.path) {
        return whole_url(egress, call, target, key);
    }
    let base = http
        .base
        .as_ref()
        .ok_or("target is missing: the downstream has no base_url, each effect brings a whole URL")?;
    let (path, mut queries) = target(http, base, call, effect, key)?;
    queries.extend(base.query().map(str::to_owned));
    // What is configured comes first, as it is written.
    queries.reverse();
    let mut query = queries.join("&");
    if let KeyIn::Query(name) = &call.key_in {
        put_key(&mut query, name, key)?;
    }
    placed(base, &path, &query)
}

/// A request that asks and applies nothing: at `path` below the base URL, with these parts of a query.
pub(super) fn question(
    http: &Http,
    method: &Method,
    path: &str,
    queries: &[Option<&str>],
) -> Result<Rendered, String> {
    let base = http.base.as_ref().ok_or("the downstream has no base_url, and a probe asks there")?;
    let path = format!("{}{path}", base.path().trim_end_matches('/'));
    let queries: Vec<&str> = std::iter::once(base.query()).chain(queries.iter().copied()).flatten().collect();
    let mut headers = HeaderMap::new();
    for (name, value) in &http.headers {
        let (name, value) = header(name, value)?;
        headers.insert(name, value);
    }
    let url = placed(base, &path, &queries.join("&"))?;
    Ok(Rendered { method: method.clone(), url, headers, body: Bytes::new() })
}

/// At the downstream's own origin, whatever path and query say.
fn placed(base: &Url, path: &str, query: &str) -> Result<Url, String> {
    let mut text = format!("{}{path}", base.origin().ascii_serialization());
    if !query.is_empty() {
        text.push('?');
        text.push_str(query);
    }
    let url = Url::parse(&text).map_err(|_error| "the path cannot stand in a URL".to_owned())?;
    // A parser that resolves or re-encodes anything would send another request than the one that was rendered.
    if url.path() != path || url.query().unwrap_or_default() != query {
        return Err(
            "the path cannot stand in a URL as it is: percent-encode it, and leave out \".\" and \"..\""
                .to_owned(),
        );
    }
    Ok(url)
}

/// The effect's own URL, with the key where it stands in the query.
fn whole_url(egress: &Egress, call: &Call, target: &str, key: &str) -> Result<Url, String> {
    let mut url = egress.accept(target).map_err(|problem| format!("target {problem}"))?;
    if let KeyIn::Query(name) = &call.key_in {
        let mut query = url.query().unwrap_or_default().to_owned();
        put_key(&mut query, name, key)?;
        url.set_query(Some(&query));
    }
    Ok(url)
}

/// `host:port`: all that a message for people says of a URL.
pub(super) fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn target(
    http: &Http,
    url: &Url,
    call: &Call,
    effect: &Effect,
    key: &str,
) -> Result<(String, Vec<String>), String> {
    let base = url.path().trim_end_matches('/');
    match (&call.path, &effect.target) {
        (Some(_), Some(_)) => Err("target cannot be used: the operation has a path of its own".to_owned()),
        (None, Some(_)) if http.target == Target::None => {
            Err("target cannot be used: the downstream does not say dynamic_target = \"path\"".to_owned())
        }
        (None, None) => Ok((url.path().to_owned(), Vec::new())),
        (Some(template), None) => {
            let (path, query) = template.render(effect, key)?;
            Ok((format!("{base}{path}"), query.into_iter().collect()))
        }
        (None, Some(target)) => {
            let (path, query) = match target.split_once('?') {
                Some((path, query)) => (path, Some(query)),
                None => (target.as_str(), None),
            };
            let path = path.strip_prefix('/').unwrap_or(path);
            let wrong = |problem: String| format!("target {problem}");
            template::literal(path).map_err(wrong)?;
            template::literal(query.unwrap_or_default()).map_err(wrong)?;
            // An empty segment would make another host of what follows "//" at some servers.
            // "..;x" is ".." to servers that cut parameters off a segment.
            let bare = |segment: &str| segment.split(';').next().is_some_and(template::is_dots);
            if path.split('/').any(|segment| segment.is_empty() || bare(segment)) {
                return Err("target must be a path without empty segments, \".\" and \"..\"".to_owned());
            }
            Ok((format!("{base}/{path}"), query.map(str::to_owned).into_iter().collect()))
        }
    }
}

fn put_key(query: &mut String, name: &str, key: &str) -> Result<(), String> {
    let mut standing =
        url::form_urlencoded::parse(query.as_bytes()).filter(|(other, _)| other == name).peekable();
    if standing.peek().is_some() {
        return if standing.all(|(_, value)| value == key) {
            Ok(())
        } else {
            Err(format!("the query already has another value for {name}, where the key belongs"))
        };
    }
    drop(standing);
    if !query.is_empty() {
        query.push('&');
    }
    query.push_str(&format!("{}={}", form::encoded(name), form::encoded(key)));
    Ok(())
}

fn headers(http: &Http, call: &Call, effect: &Effect, key: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &http.headers {
        let (name, value) = header(name, value)?;
        headers.insert(name, value);
    }
    let key_name = match &call.key_in {
        KeyIn::Header(name) => Some(name.to_ascii_lowercase()),
        KeyIn::Body(_) | KeyIn::Query(_) | KeyIn::Path => None,
    };
    for (name, value) in message::headers(effect)? {
        let (name, value) = header(&name, &value)?;
        let credential = matches!(&http.auth, Auth::Header { name: owned, .. } if *owned == name);
        if is_ours(name.as_str()) || http.is_attribute(name.as_str()) || credential {
            return Err(format!("headers must not set {name}: it belongs to the request, not the effect"));
        }
        if key_name.as_deref() == Some(name.as_str()) {
            if value.as_bytes() == written_key(call, key).as_bytes() {
                continue;
            }
            return Err(format!("headers set {name} to another value than the key"));
        }
        if headers.insert(name.clone(), value).is_some() {
            return Err(format!("headers set {name} twice, or against the configuration"));
        }
    }
    if let Some(name) = key_name {
        let (name, value) = header(&name, &written_key(call, key))?;
        headers.insert(name, value);
    }
    if let Some(trace) = message::traceparent(effect) {
        let (name, value) = header("traceparent", &trace)?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn written_key(call: &Call, key: &str) -> String {
    match call.key_format {
        KeyFormat::Raw => key.to_owned(),
        KeyFormat::SfString => format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// A header of the effect's or the configuration's.
pub(crate) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_error| format!("headers has {name:?}, which is no header's name"))?;
    let printable = value.bytes().all(|byte| (b' '..=b'~').contains(&byte) || byte == b'\t');
    match HeaderValue::from_str(value) {
        Ok(value) if printable => Ok((parsed, value)),
        Ok(_) | Err(_) => {
            Err(format!("the value of header {parsed} must be printable ASCII without line breaks"))
        }
    }
}
