//! The page on which people say who they are, and how they leave.

use askama::Template;
use axum::{
    Extension, Form,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{Html, IntoResponse, Response},
};

use super::{Client, identify};
use crate::{
    problem::Problem,
    routes::Root,
    security::see_other,
    settings::{Access, Settings},
    shared::Shared,
};

/// A longer address is forgotten over the login.
const NEXT_MAX: usize = 2000;

/// What the form says.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Entered {
    token: String,
    user: String,
    password: String,
    /// Where the person wanted to go, from the root.
    next: String,
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    root: &'a Root,
    settings: &'a Settings,
    access: &'a Access,
    next: &'a str,
    /// What was wrong.
    problem: &'a str,
}

#[derive(Template)]
#[template(path = "moment.html")]
struct MomentPage;

/// Whether there is anything to log in with on a page.
pub(super) fn is_possible(shared: &Shared) -> bool {
    let access = &shared.settings().access;
    !(access.tokens.is_empty() && access.basic.is_empty())
}

/// Asks who wanted to see a page who they are, in its place.
///
/// Who comes by a link from elsewhere brings no cookie that is SameSite=Strict, though they may have a session: their browser is sent to
/// the same address once more, by a page of our own.
pub(super) fn ask(shared: &Shared, request: &Request, root: &Root) -> Response {
    let headers = request.headers();
    let from_elsewhere =
        headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site" || site == "same-site");
    if from_elsewhere && !shared.cookies().was_sent_back(headers) {
        let page = MomentPage.render().unwrap_or_default();
        let cookie = [(header::SET_COOKIE, shared.cookies().sent_back())];
        return (StatusCode::UNAUTHORIZED, cookie, Html(page)).into_response();
    }
    let uri = request.uri();
    let wanted = uri.path_and_query().map_or("", |wanted| wanted.as_str()).trim_start_matches('/');
    let next = if is_inside(wanted) { wanted } else { "" };
    page(shared, root, StatusCode::UNAUTHORIZED, next, "")
}

/// Asks who wanted to change something: what they sent is gone.
pub(super) fn ask_again(shared: &Shared, root: &Root) -> Response {
    page(
        shared,
        root,
        StatusCode::UNAUTHORIZED,
        "",
        "You are not logged in, or not any more. Nothing was done: log in and do it again.",
    )
}

fn page(shared: &Shared, root: &Root, status: StatusCode, next: &str, problem: &str) -> Response {
    let settings = shared.settings();
    let page = LoginPage { root, settings, access: &settings.access, next, problem };
    match page.render() {
        Ok(page) => (status, Html(page)).into_response(),
        Err(error) => {
            tracing::error!(%error, "the login page could not be written");
            Problem::failed().into_response()
        }
    }
}

/// `GET /login`.
pub(super) async fn show(State(shared): State<Shared>, root: Root) -> Response {
    if !is_possible(&shared) {
        return see_other(root.home());
    }
    page(&shared, &root, StatusCode::OK, "", "")
}

/// `POST /login`.
pub(super) async fn enter(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    root: Root,
    uri: Uri,
    headers: HeaderMap,
    Form(entered): Form<Entered>,
) -> Response {
    let access = &shared.settings().access;
    let next = if is_inside(&entered.next) { entered.next.as_str() } else { "" };
    if entered.token.trim().is_empty() && entered.user.trim().is_empty() {
        return page(&shared, &root, StatusCode::UNAUTHORIZED, next, "Nothing was entered.");
    }
    let token = entered.token.trim();
    let guess = || {
        if token.is_empty() {
            identify::user(access, entered.user.trim(), &entered.password)
        } else {
            identify::token(access, token)
        }
    };
    let found = match identify::beyond_guessing(&shared, &client, token) {
        Some(known) => Ok(Some(known)),
        None => identify::guessed(&shared, &client, guess),
    };
    let known = match found {
        Ok(Some(known)) => known,
        Ok(None) => {
            return page(
                &shared,
                &root,
                StatusCode::UNAUTHORIZED,
                next,
                "That is not right. Check it and try again.",
            );
        }
        Err(problem) => return problem.into_response(),
    };
    // Whatever session the browser had before, also one that somebody else gave it, is none of this person's.
    for id in shared.cookies().all(&headers) {
        shared.sessions().end(id);
    }
    tracing::info!(who = known.who, from = client.from(), "logged in to the dashboard");
    let Some(id) = shared.sessions().begin(known) else { return Problem::failed().into_response() };
    let to = if next.is_empty() { root.home().to_owned() } else { format!("{root}{next}") };
    let mut answer = see_other(&to);
    answer
        .headers_mut()
        .append(header::SET_COOKIE, shared.cookies().begin(&id, client.is_encrypted(&headers, &uri)));
    answer
}

/// `POST /logout`.
pub(super) async fn leave(State(shared): State<Shared>, root: Root, headers: HeaderMap) -> Response {
    for id in shared.cookies().all(&headers) {
        shared.sessions().end(id);
    }
    let mut answer = see_other(&format!("{root}login"));
    for cookie in shared.cookies().end() {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}

/// Whether `next` leads to a page of ours, wherever it is put behind our root: no scheme, no other host, no way up.
fn is_inside(next: &str) -> bool {
    let path = next.split(['?', '#']).next().unwrap_or_default();
    next.len() <= NEXT_MAX
        && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && !path.contains(':')
        && path.split('/').all(|part| {
            !matches!(part.to_ascii_lowercase().as_str(), "." | ".." | "%2e" | "%2e%2e" | ".%2e" | "%2e.")
        })
        && !path.split_inclusive('/').any(|part| part == "/")
        && !matches!(path.split('/').next(), Some("login" | "logout"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_login_nobody_is_sent_elsewhere() {
        for inside in ["", "effects", "effects/17", "effects?state=failed&q=http://x", "downstreams/a%2Fb"] {
            assert!(is_inside(inside), "{inside}");
        }
        for elsewhere in [
            "//evil.example",
            "/effects",
            "https://evil.example",
            "javascript:alert(1)",
            "effects//evil",
            "\\\\evil.example",
            "../../other",
            "effects/%2E%2e/x",
            "a b",
            "a\r\nSet-Cookie: x=y",
            "logout",
            "login?x",
            "ü",
        ] {
            assert!(!is_inside(elsewhere), "{elsewhere}");
        }
    }
}
