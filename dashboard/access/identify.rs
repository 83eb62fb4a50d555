//! Finding out who asks, from the strongest proof to the weakest. What a request brings that is wrong is refused, and nothing weaker is
//! looked at instead.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::{Client, Guest, Role, Via, Visitor, login, sessions::Known};
use crate::{
    live,
    problem::{Problem, Teller},
    routes::Root,
    settings::{Access, Login, Proxy},
    shared::Shared,
};

/// Longer names are cut off by nobody: they are refused.
const NAME_MAX: usize = 200;

/// Somebody who is not let in.
#[derive(Debug)]
pub(crate) enum Stranger {
    /// They brought nothing, or a session that ended: they may log in.
    Nobody,
    /// They brought something wrong.
    Refused(Problem),
}

impl Stranger {
    /// What they are told: a person, the page to log in.
    pub(crate) fn answer(self, shared: &Shared, request: &Request) -> Response {
        match self {
            Self::Refused(problem) => problem.into_response(),
            Self::Nobody => {
                let root = Root::of_request(request);
                let shows = Teller::of(request, root.clone()).shows;
                let reads = matches!(*request.method(), Method::GET | Method::HEAD);
                if !shows || !login::is_possible(shared) {
                    unauthorized(&shared.settings().access).into_response()
                } else if reads {
                    login::ask(shared, request, &root)
                } else {
                    login::ask_again(shared, &root)
                }
            }
        }
    }
}

/// Who asks.
///
/// # Errors
///
/// [`Stranger`].
pub(crate) fn identify(shared: &Shared, client: &Client, request: &Request) -> Result<Visitor, Stranger> {
    let (known, via) = find(shared, client, request)?;
    let Known { who, role } = known;
    Ok(Visitor { who, role, from: client.from(), via, read_only: shared.settings().read_only })
}

fn find(shared: &Shared, client: &Client, request: &Request) -> Result<(Known, Via), Stranger> {
    let (access, headers) = (&shared.settings().access, request.headers());
    if let Some(Guest { who, role }) = request.extensions().get::<Guest>() {
        return Ok((Known { who: who.clone(), role: *role }, Via::Application));
    }
    if let Some(proxy) = access.proxy.as_ref().filter(|proxy| client.is_behind(&proxy.from))
        && headers.contains_key(proxy.user.as_str())
    {
        return vouched(proxy, headers).map(|known| (known, Via::Proxy)).map_err(Stranger::Refused);
    }
    if access.is_empty() {
        return local(&shared.settings().local, client)
            .map(|known| (known, Via::Local))
            .map_err(Stranger::Refused);
    }
    if headers.contains_key(header::AUTHORIZATION) {
        return by_credentials(shared, client, headers).map_err(Stranger::Refused);
    }
    let ids = shared.cookies().sessions(headers, client.is_encrypted(headers, request.uri()));
    let (sessions, by_itself) = (shared.sessions(), asks_by_itself(request));
    let known =
        ids.into_iter().find_map(|id| if by_itself { sessions.glance(id) } else { sessions.visit(id) });
    known.map(|known| (known, Via::Session)).ok_or(Stranger::Nobody)
}

/// Whether a page asks, and no person: such a request keeps no session alive, or none would end while a page is open. The header that
/// our module sends with its others can do no more than that.
fn asks_by_itself(request: &Request) -> bool {
    live::BY_ITSELF.contains(&request.uri().path()) || request.headers().contains_key(live::REFRESH)
}

/// Where nobody needs credentials, whoever is at this machine may do everything.
fn local(who: &str, client: &Client) -> Result<Known, Problem> {
    if client.is_local() {
        return Ok(Known { who: who.to_owned(), role: Role::Admin });
    }
    let detail = if client.proxied {
        "The request came through a proxy, or looks like it (headers that proxies add, HTTP/1.0, or another name in Origin or Referer), and \
         without `auth` in [dashboard] only this machine itself is let in. Write `auth` with tokens, users or the proxy's headers."
    } else {
        "Without `auth` in [dashboard] only this machine itself is let in. Write `auth` with tokens, users or a proxy's headers."
    };
    Err(Problem::forbidden(detail))
}

/// Whom the proxy says it has let in.
fn vouched(proxy: &Proxy, headers: &HeaderMap) -> Result<Known, Problem> {
    let mut users = headers.get_all(proxy.user.as_str()).iter();
    // A proxy that adds its header to the client's own would let anybody be anybody.
    let (Some(user), None) = (users.next(), users.next()) else {
        return Err(Problem::bad_request(
            "The header with the user's name came more than once. The proxy has to replace it, not to add one.",
        ));
    };
    let who = user.to_str().unwrap_or_default().trim();
    if !is_name(who) {
        return Err(Problem::bad_request("The header with the user's name holds no name."));
    }
    let groups = proxy.groups.iter().flat_map(|name| headers.get_all(name.as_str()));
    let groups = groups.filter_map(|groups| groups.to_str().ok()).flat_map(|groups| groups.split(','));
    let role = groups.filter_map(|group| proxy.roles.get(group.trim()).copied()).max().or(proxy.role);
    let Some(role) = role else {
        return Err(Problem::forbidden(
            "The proxy let you in, and none of your groups has a role here. Ask whoever runs the dashboard for one (`roles` in auth.proxy).",
        ));
    };
    Ok(Known { who: who.to_owned(), role })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(char::is_control)
}

/// Who has these credentials of a request's header.
fn by_credentials(shared: &Shared, client: &Client, headers: &HeaderMap) -> Result<(Known, Via), Problem> {
    let access = &shared.settings().access;
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let one = match (given.next(), given.next()) {
        (Some(one), None) => one.to_str().unwrap_or_default(),
        _ => return Err(Problem::bad_request("The header Authorization came more than once. Send it once.")),
    };
    let (scheme, value) = one.split_once(' ').unwrap_or((one, ""));
    if scheme.eq_ignore_ascii_case("bearer")
        && let Some(known) = beyond_guessing(shared, client, value.trim())
    {
        return Ok((known, Via::Token));
    }
    let try_all = || match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some((token(access, value.trim())?, Via::Token)),
        "basic" => {
            let decoded = String::from_utf8(BASE64_STANDARD.decode(value.trim()).ok()?).ok()?;
            let (name, password) = decoded.split_once(':')?;
            Some((user(access, name, password)?, Via::Basic))
        }
        _ => None,
    };
    guessed(shared, client, try_all)?.ok_or_else(|| unauthorized(access))
}

/// Whose token it is, of those that nobody can guess: it is looked at however many wrong ones came lately, so that nobody who sends those
/// locks out a program at the same address. The others are not, or guesses would be answered after all.
pub(super) fn beyond_guessing(shared: &Shared, client: &Client, given: &str) -> Option<Known> {
    let tokens = shared.settings().access.tokens.iter();
    let fits = tokens.filter(|login| login.secret.is_long() & login.secret.is(given));
    let found = fits.fold(None, |first, login| first.or(Some(login))).map(known)?;
    shared.throttle().right(client.address);
    Some(found)
}

/// Looks whether credentials are right, unless too many were wrong lately.
///
/// # Errors
///
/// When they are not looked at.
pub(super) fn guessed<T>(
    shared: &Shared,
    client: &Client,
    guess: impl FnOnce() -> Option<T>,
) -> Result<Option<T>, Problem> {
    let throttle = shared.throttle();
    throttle.admit(client.address).map_err(throttled)?;
    let found = guess();
    match &found {
        Some(_) => throttle.right(client.address),
        None => {
            throttle.wrong(client.address);
            tracing::warn!(from = client.from(), "wrong credentials for the dashboard");
        }
    }
    Ok(found)
}

fn throttled(wait: Duration) -> Problem {
    let seconds = wait.as_secs() + 1;
    let detail = format!("Too many wrong credentials came lately. Try again in {seconds} s.");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-guesses", "Too many wrong credentials", detail)
        .retry_after(seconds)
}

/// Whose token it is. Every one is compared, so that the time says nothing.
pub(super) fn token(access: &Access, given: &str) -> Option<Known> {
    let fits = access.tokens.iter().filter(|login| login.secret.is(given));
    fits.fold(None, |first, login| first.or(Some(login))).map(known)
}

/// Whose name and password they are.
pub(super) fn user(access: &Access, name: &str, password: &str) -> Option<Known> {
    let fits = access.basic.iter().filter(|login| login.secret.is(password) & (login.name == name));
    fits.fold(None, |first, login| first.or(Some(login))).map(known)
}

fn known(login: &Login) -> Known {
    Known { who: login.name.clone(), role: login.role }
}

/// Without a challenge for basic authentication: a browser would ask with a window of its own over the page's.
fn unauthorized(access: &Access) -> Problem {
    let detail = match (access.tokens.is_empty(), access.basic.is_empty()) {
        (false, _) => {
            "Nobody is known to have sent this. A program sends a token of its own as `Authorization: Bearer TOKEN`; a person logs in."
        }
        (true, false) => {
            "Nobody is known to have sent this. A program sends name and password by basic authentication; a person logs in."
        }
        (true, true) => "Nobody is known to have sent this. Come through the proxy that lets people in.",
    };
    Problem::new(StatusCode::UNAUTHORIZED, "sender-unknown", "Nobody is known to have sent this", detail)
        .challenge()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::settings::Secret;

    fn proxy() -> Proxy {
        Proxy {
            from: vec!["10.0.0.0/8".parse().unwrap()],
            user: "X-Forwarded-User".to_owned(),
            groups: Some("X-Forwarded-Groups".to_owned()),
            roles: [("dev".to_owned(), Role::Viewer), ("sre".to_owned(), Role::Admin)].into(),
            role: None,
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn of_several_groups_the_strongest_counts() {
        let user = ("x-forwarded-user", "ann");
        let role = |groups| {
            vouched(&proxy(), &headers(&[user, ("x-forwarded-groups", groups)])).map(|known| known.role)
        };
        assert_eq!(role("dev"), Ok(Role::Viewer));
        assert_eq!(role("all, dev,sre"), Ok(Role::Admin));
        assert_eq!(role("everybody").unwrap_err().status(), StatusCode::FORBIDDEN);
        let open = Proxy { role: Some(Role::Viewer), ..proxy() };
        assert_eq!(vouched(&open, &headers(&[user])).unwrap().role, Role::Viewer);
    }

    #[test]
    fn a_name_that_came_twice_is_nobodys() {
        let twice = headers(&[
            ("x-forwarded-user", "mallory"),
            ("x-forwarded-user", "ann"),
            ("x-forwarded-groups", "sre"),
        ]);
        assert_eq!(vouched(&proxy(), &twice).unwrap_err().status(), StatusCode::BAD_REQUEST);
        for empty in ["", "  ", "\t"] {
            let none = headers(&[("x-forwarded-user", empty), ("x-forwarded-groups", "sre")]);
            assert_eq!(vouched(&proxy(), &none).unwrap_err().status(), StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn a_token_is_no_password_and_a_password_no_token() {
        let login = |name: &str, secret: &str, role| Login {
            name: name.to_owned(),
            role,
            secret: Secret::new(secret),
        };
        let access = Access {
            tokens: vec![login("ops", "token-of-ops", Role::Operator)],
            basic: vec![
                login("ann", "password-of-ann", Role::Viewer),
                login("bob", "password-of-bob", Role::Admin),
            ],
            proxy: None,
        };
        assert_eq!(token(&access, "token-of-ops").unwrap().who, "ops");
        assert_eq!(user(&access, "bob", "password-of-bob").unwrap().role, Role::Admin);
        for wrong in ["", "token-of-op", "token-of-ops ", "password-of-ann", "ops"] {
            assert_eq!(token(&access, wrong), None, "{wrong}");
        }
        for (name, password) in
            [("ann", "password-of-bob"), ("ops", "token-of-ops"), ("", "password-of-ann"), ("ann", "")]
        {
            assert_eq!(user(&access, name, password), None, "{name}:{password}");
        }
    }
}
