//! What the API is asked, read strictly: a name that nobody knows, in a query or in a body, is an error that names it.

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{Filter, PAGE_MAX},
};
use axum::{
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{StatusCode, header, request::Parts},
};
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use utoipa::IntoParams;

use crate::problem::Problem;

/// As many rows as nobody asked for.
pub(super) const PAGE: u32 = 50;

/// A query, every name of which is known.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        if query.contains("%00") || query.contains('\0') {
            return Err(Problem::bad_request("The query has a NUL character, which nothing here has."));
        }
        let parsed = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|query| Self(query.0)).map_err(|problem| {
            let mut words = String::new();
            let mut cause: Option<&dyn std::error::Error> = Some(&problem);
            // The last of the causes is the one that says what is wrong.
            while let Some(now) = cause {
                words = now.to_string();
                cause = now.source();
            }
            Problem::bad_request(format!("The query cannot be read: {words}."))
        })
    }
}

/// A body: JSON, every member of which is known.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.map(|kind| kind.split(';').next().unwrap_or(kind).trim().to_ascii_lowercase());
        if kind.as_deref() != Some("application/json") {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "media-type",
                "The body is of another type",
                "Send JSON, with Content-Type: application/json.",
            ));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|refused| {
            if refused.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let detail = "The body is longer than what is read here. A payload has at most 1 MiB.";
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large", detail)
            } else {
                Problem::bad_request("The body did not come whole.")
            }
        })?;
        let parsed = serde_json::from_slice(&bytes);
        parsed
            .map(Self)
            .map_err(|problem| Problem::bad_request(format!("The body cannot be read: {problem}.")))
    }
}

/// The number of an effect, or of something else, in a path.
pub(super) struct Number(pub(super) i64);

impl Number {
    /// As an effect's.
    pub(super) fn effect(&self) -> EffectId {
        EffectId::new(self.0)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Number {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text =
            Path::<String>::from_request_parts(parts, state).await.map(|path| path.0).unwrap_or_default();
        let number = text.parse().ok().filter(|number| *number > 0).map(Self);
        number.ok_or_else(|| Problem::bad_request(format!("{text:?} in the path is no number such as 17.")))
    }
}

/// A name, or several, in a path.
pub(super) struct Named<T>(pub(super) T);

impl<T: DeserializeOwned + Send + AsRef<[String]>, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let unreadable =
            || Problem::bad_request("The path cannot be read: names are UTF-8, percent-encoded.");
        let Path(names) =
            Path::<T>::from_request_parts(parts, state).await.map_err(|_refused| unreadable())?;
        if names.as_ref().iter().any(|name| name.contains('\0')) {
            return Err(Problem::bad_request("The path has a NUL character, which no name has."));
        }
        Ok(Self(names))
    }
}

/// Which effects to list. Newest first; what is left out leaves nothing out.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EffectsQuery {
    /// Any of these states, separated by commas.
    #[param(value_type = Option<Vec<String>>, style = Form, explode = false, example = json!(["failed", "in_doubt"]))]
    state: Option<String>,
    /// Only this downstream.
    downstream: Option<String>,
    /// Only this operation.
    operation: Option<String>,
    /// Only this key.
    key: Option<String>,
    /// Whose metadata contains this JSON object.
    #[param(example = "{\"order\":\"A-17\"}")]
    metadata: Option<String>,
    /// In whose last error this stands, whatever the case.
    error: Option<String>,
    /// Written before this time (RFC 3339).
    created_before: Option<String>,
    /// Written at this time (RFC 3339) or after it.
    created_after: Option<String>,
    /// Only these numbers, separated by commas.
    #[param(value_type = Option<Vec<i64>>, style = Form, explode = false)]
    id: Option<String>,
    /// Only effects with a lower number: the `next` of the page before.
    #[param(minimum = 1)]
    before: Option<i64>,
    /// At most this many.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

impl EffectsQuery {
    /// As the store asks for it.
    pub(super) fn filter(self) -> Result<Filter, Problem> {
        let states = list(self.state.as_deref())
            .map(|word| {
                word.parse::<State>().map_err(|problem| Problem::bad_request(format!("state: {problem}.")))
            })
            .collect::<Result<_, _>>()?;
        let ids = self.id.as_deref().map(|ids| {
            let number = |word: &str| word.parse().ok().filter(|number| *number > 0).map(EffectId::new);
            let ids = list(Some(ids)).map(number).collect::<Option<Vec<_>>>();
            ids.ok_or_else(|| Problem::bad_request("id: write numbers, separated by commas."))
        });
        Ok(Filter {
            states,
            downstream: self.downstream,
            operation: self.operation,
            key: self.key,
            metadata: self.metadata.map(object).transpose()?,
            error: self.error,
            created_before: self
                .created_before
                .as_deref()
                .map(|text| at("created_before", text))
                .transpose()?,
            created_after: self.created_after.as_deref().map(|text| at("created_after", text)).transpose()?,
            ids: ids.transpose()?.map(few).transpose()?,
            before: positive("before", self.before)?.map(EffectId::new),
            limit: page(self.limit)?,
        })
    }
}

/// Words that are separated by commas.
fn list(words: Option<&str>) -> impl Iterator<Item = &str> {
    words.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// The number of a row, as [`Number`] is one of a path.
pub(super) fn positive(name: &str, number: Option<i64>) -> Result<Option<i64>, Problem> {
    match number {
        Some(number) if number < 1 => Err(Problem::bad_request(format!(
            "{name}: {number} is no number of anything; write one such as 17."
        ))),
        number => Ok(number),
    }
}

/// How many rows.
pub(super) fn page(limit: Option<u32>) -> Result<u32, Problem> {
    match limit {
        None => Ok(PAGE),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::bad_request(format!("limit: write a number from 1 to {PAGE_MAX}."))),
    }
}

/// A time of this parameter.
pub(super) fn at(name: &str, text: &str) -> Result<Timestamp, Problem> {
    Timestamp::parse(text).ok_or_else(|| {
        Problem::bad_request(format!(
            "{name}: write a time as RFC 3339 has it, such as 2026-11-30T14:03:10Z."
        ))
    })
}

/// No more than a page.
pub(super) fn few(ids: Vec<EffectId>) -> Result<Vec<EffectId>, Problem> {
    let most = usize::try_from(PAGE_MAX).unwrap_or(usize::MAX);
    if ids.len() > most {
        return Err(Problem::bad_request(format!("At most {PAGE_MAX} numbers can be given.")));
    }
    Ok(ids)
}

/// The text of a JSON object.
pub(super) fn object(text: String) -> Result<String, Problem> {
    let is_object = text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(&text).is_ok();
    if !is_object {
        return Err(Problem::bad_request("metadata: write a JSON object, such as {\"order\":\"A-17\"}."));
    }
    Ok(text)
}
