//! The JSON API below `/api/v1`: what the pages and the command line do, for programs.
//!
//! Handlers read what they are asked (`ask`), call the store or `actions`, and answer [`json`]. What is refused is a
//! `Problem`. [`openapi`] describes it all; a test holds routes and description to each other.

mod ask;
mod bulks;
mod causes;
mod effects;
mod enqueue;
mod fleet;
pub mod json;
mod log;
mod openapi;
mod show;
mod verbs;

use axum::{extract::DefaultBodyLimit, handler::Handler as _, http::Method};

pub use enqueue::Unwritable;
pub(crate) use enqueue::refused;
pub use openapi::openapi;

use crate::routes::{Right, Routes};

/// A payload of 1 MiB in base64, and what stands around it.
const EFFECT_MAX: usize = 2 << 20;

pub(crate) fn routes(routes: &mut Routes) {
    use Right::{Operate, View};
    let (get, post) = (Method::GET, Method::POST);
    routes.add(get.clone(), "/api/v1/about", View, log::about);
    routes.add(get.clone(), "/api/v1/openapi.json", View, openapi::document);
    routes.add(get.clone(), "/api/v1/effects", View, effects::list);
    let create = effects::create.layer(DefaultBodyLimit::max(EFFECT_MAX));
    routes.add(post.clone(), "/api/v1/effects", Operate, create);
    routes.add(get.clone(), "/api/v1/effects/{id}", View, effects::show);
    routes.add(get.clone(), "/api/v1/effects/{id}/attempts", View, effects::attempts);
    routes.add(post.clone(), "/api/v1/effects/{id}/retry", Operate, verbs::retry);
    routes.add(post.clone(), "/api/v1/effects/{id}/resend", Operate, verbs::resend);
    routes.add(post.clone(), "/api/v1/effects/{id}/cancel", Operate, verbs::cancel);
    routes.add(post.clone(), "/api/v1/effects/{id}/skip", Operate, verbs::skip);
    let resolve = verbs::resolve.layer(DefaultBodyLimit::max(EFFECT_MAX));
    routes.add(post.clone(), "/api/v1/effects/{id}/resolve", Operate, resolve);
    routes.add(post.clone(), "/api/v1/effects/{id}/reissue", Operate, verbs::reissue);
    routes.add(post.clone(), "/api/v1/effects/{id}/redact", Operate, verbs::redact);
    routes.add(post.clone(), "/api/v1/bulk", Operate, bulks::start);
    routes.add(get.clone(), "/api/v1/bulk", View, bulks::list);
    routes.add(get.clone(), "/api/v1/bulk/{id}", View, bulks::show);
    routes.add(post.clone(), "/api/v1/bulk/{id}/pause", Operate, bulks::pause);
    routes.add(post.clone(), "/api/v1/bulk/{id}/resume", Operate, bulks::resume);
    routes.add(post.clone(), "/api/v1/bulk/{id}/cancel", Operate, bulks::cancel);
    routes.add(get.clone(), "/api/v1/downstreams", View, fleet::downstreams);
    routes.add(post.clone(), "/api/v1/downstreams/{name}/pause", Operate, fleet::pause);
    routes.add(post.clone(), "/api/v1/downstreams/{name}/resume", Operate, fleet::resume);
    routes.add(get.clone(), "/api/v1/downstreams/{name}/endpoints", View, fleet::endpoints);
    let endpoint = "/api/v1/downstreams/{name}/endpoints/{endpoint}";
    routes.add(post.clone(), &format!("{endpoint}/disable"), Operate, fleet::disable);
    routes.add(post, &format!("{endpoint}/enable"), Operate, fleet::enable);
    routes.add(get.clone(), "/api/v1/workers", View, fleet::workers);
    routes.add(get.clone(), "/api/v1/counts", View, log::counts);
    routes.add(get.clone(), "/api/v1/causes", View, causes::causes);
    routes.add(get.clone(), "/api/v1/traffic", View, log::traffic);
    routes.add(get.clone(), "/api/v1/latencies", View, log::latencies);
    routes.add(get.clone(), "/api/v1/requests", View, log::requests);
    routes.add(get, "/api/v1/audit", View, log::audit);
}
