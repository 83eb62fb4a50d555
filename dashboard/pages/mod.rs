//! The pages: each reads what it shows through the library's seams, makes a view of it, and renders a template. They work without
//! scripts; `assets/app.js` keeps them fresh and adds keys.
//!
//! What others wrote reaches a template as [`parts::Text`] and nothing else, and templates escape it. Actions are
//! [`crate::actions`]', shared with the API: [`act`] and [`bulk`] only ask, show what would follow, and tell what came of it.

mod about;
mod act;
pub(crate) mod assets;
mod audit;
mod bulk;
mod doubt;
mod downstreams;
mod effect;
mod effects;
mod failures;
mod frame;
mod json;
mod jump;
mod overview;
pub(crate) mod parts;
mod promise;
pub(crate) mod prose;
mod requests;
mod row;
mod trial;
mod ways;
mod workers;

use askama::Template;
use axum::{
    http::Method,
    response::{Html, IntoResponse, Response},
};

use crate::{
    problem::Problem,
    routes::{Right, Routes},
};

/// Rows on a page.
const PAGE: u32 = 50;

/// The keys, as the module has them.
const KEYS: [(&str, &str); 14] = [
    ("/", "search"),
    ("j", "the next row"),
    ("k", "the row before"),
    ("Enter", "open the row"),
    ("x", "tick the row (with Shift: all rows up to it)"),
    ("r", "retry the effect"),
    ("n", "the next page"),
    ("g o", "overview"),
    ("g d", "in doubt"),
    ("g f", "failures"),
    ("g e", "effects"),
    ("g s", "downstreams"),
    ("?", "this list"),
    ("Esc", "leave a field, close a list"),
];

/// Adds the pages.
pub(crate) fn routes(routes: &mut Routes) {
    let (get, post) = (Method::GET, Method::POST);
    routes.add(get.clone(), "/assets/{file}", Right::Public, assets::serve);
    routes.add(get.clone(), "/", Right::View, overview::page);
    routes.add(get.clone(), "/doubt", Right::View, doubt::page);
    routes.add(get.clone(), "/failures", Right::View, failures::page);
    routes.add(get.clone(), "/effects", Right::View, effects::page);
    routes.add(get.clone(), "/effects/{id}", Right::View, effect::page);
    routes.add(get.clone(), "/effects/{id}/{verb}", Right::Operate, act::ask);
    routes.add(post.clone(), "/effects/{id}/{verb}", Right::Operate, act::act);
    routes.add(get.clone(), "/bulk", Right::View, bulk::list);
    routes.add(get.clone(), "/bulk/new", Right::Operate, bulk::ask);
    routes.add(post.clone(), "/bulk/new", Right::Operate, bulk::start);
    routes.add(get.clone(), "/bulk/{id}", Right::View, bulk::one);
    routes.add(post.clone(), "/bulk/{id}/{control}", Right::Operate, bulk::control);
    routes.add(get.clone(), "/downstreams", Right::View, downstreams::page);
    routes.add(get.clone(), "/downstreams/{name}/{verb}", Right::Operate, downstreams::ask);
    routes.add(post.clone(), "/downstreams/{name}/{verb}", Right::Operate, downstreams::act);
    routes.add(post, "/trial", Right::Operate, trial::send);
    routes.add(get.clone(), "/workers", Right::View, workers::page);
    routes.add(get.clone(), "/requests", Right::View, requests::page);
    routes.add(get.clone(), "/audit", Right::View, audit::page);
    routes.add(get, "/about", Right::View, about::page);
}

/// A page as it is sent.
fn shown(page: &impl Template) -> Result<Response, Problem> {
    match page.render() {
        Ok(html) => Ok(Html(html).into_response()),
        Err(error) => {
            tracing::error!(%error, "a page could not be rendered");
            Err(Problem::failed())
        }
    }
}
