//! The description of the API: OpenAPI 3.1, made from the handlers, checked in as `openapi.json`.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        self, ContentBuilder, OpenApi as Document, RefOr, ResponseBuilder,
        security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
    },
};

use super::{bulks, causes, effects, fleet, json::ProblemJson, log, verbs};
use crate::live;

/// The document, written once. A test compares it with what is checked in as `openapi.json`.
static DOCUMENT: LazyLock<String> = LazyLock::new(openapi);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "aftercommit",
        description = "What effects stand where, and a person's verbs. Every action carries the state and the token that it was decided \
                       on; one that is stale is refused with 409 and the present ones. Names that nobody knows, in a query or in a \
                       body, are refused with 400.",
        license(name = "MIT OR Apache-2.0")
    ),
    servers((url = "../v1", description = "This dashboard")),
    paths(
        log::about,
        effects::list,
        effects::create,
        effects::show,
        effects::attempts,
        verbs::retry,
        verbs::resend,
        verbs::cancel,
        verbs::skip,
        verbs::resolve,
        verbs::reissue,
        verbs::redact,
        bulks::start,
        bulks::list,
        bulks::show,
        bulks::pause,
        bulks::resume,
        bulks::cancel,
        fleet::downstreams,
        fleet::pause,
        fleet::resume,
        fleet::endpoints,
        fleet::disable,
        fleet::enable,
        fleet::workers,
        log::counts,
        causes::causes,
        log::traffic,
        log::latencies,
        log::requests,
        log::audit,
        live::events,
        document
    ),
    components(schemas(ProblemJson)),
    tags(
        (name = "look", description = "Reading: viewers may."),
        (name = "act", description = "Acting: operators may, unless the dashboard is read-only.")
    ),
    modifiers(&Whole)
)]
struct Api;

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "look",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value))
)]
pub(crate) async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// The document, as the handlers say it.
///
/// # Panics
///
/// Never: it is made of strings.
pub fn openapi() -> String {
    let mut text = Api::openapi().to_pretty_json().expect("a document of strings can be written");
    text.push('\n');
    text
}

/// What holds for every route: who may ask, and how refusals are told.
struct Whole;

impl Modify for Whole {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        for (name, scheme) in [("token", HttpAuthScheme::Bearer), ("password", HttpAuthScheme::Basic)] {
            components.add_security_scheme(name, SecurityScheme::Http(Http::new(scheme)));
        }
        // At the machine itself nobody needs credentials where none are configured.
        document.security = Some(vec![
            SecurityRequirement::default(),
            SecurityRequirement::new::<_, _, String>("token", []),
            SecurityRequirement::new::<_, _, String>("password", []),
        ]);
        for (path, item) in &mut document.paths.paths {
            for (method, operation) in [("get", &mut item.get), ("post", &mut item.post)] {
                operation.iter_mut().for_each(|operation| complete(operation, name(method, path)));
            }
        }
    }
}

/// The name of an operation, by which generated clients call it: `post_effects_id_retry`. A handler's own name is not unique.
fn name(method: &str, path: &str) -> String {
    let words = path.split(|mark: char| !mark.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// Adds what every route may answer, and gives all refusals their form.
fn complete(operation: &mut openapi::path::Operation, name: String) {
    operation.operation_id = Some(name);
    let responses = &mut operation.responses.responses;
    for status in ["400", "401", "403", "421", "429", "500", "503"] {
        responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(openapi::Response::new("")));
    }
    for (status, response) in responses.iter_mut().filter(|(status, _)| *status >= &"400".to_owned()) {
        let content =
            ContentBuilder::new().schema(Some(openapi::Ref::from_schema_name("ProblemJson"))).build();
        let told =
            ResponseBuilder::new().description(words(status)).content("application/problem+json", content);
        *response = RefOr::T(told.build());
    }
}

fn words(status: &str) -> &'static str {
    match status {
        "400" => "The request cannot be read, or names what nobody knows.",
        "401" => "Credentials are needed.",
        "403" => "They do not suffice, the dashboard is read-only, or it is asked from somebody else's page.",
        "404" => "There is no such thing.",
        "409" => {
            "It changed since it was looked at, or its state forbids it: the present state and token are told."
        }
        "413" => "The body is too large.",
        "415" => "The body is no JSON.",
        "421" => "The dashboard does not know the host name that it was called by.",
        "422" => {
            "The request can be read, and cannot be done: a reason or a confirmation is missing, or a value is wrong."
        }
        "429" => "Too many wrong credentials came lately: Retry-After says when they are looked at again.",
        "500" => "The dashboard failed.",
        "503" => "The database does not answer, or too many listen: try again later.",
        _ => "It is refused.",
    }
}
