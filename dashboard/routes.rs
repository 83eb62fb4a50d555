//! The table of routes. [`Routes::add`] is the only way to get one, so that none lacks a right: the tests walk the table with every
//! role from every origin.

use std::fmt;

use axum::{
    Router,
    extract::{FromRequestParts, OriginalUri, Request},
    handler::Handler,
    http::{Extensions, Method, Uri, request::Parts},
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
    routing::{MethodFilter, on},
};

use crate::{problem::Problem, security, shared::Shared, slow::Patience};

/// What a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Nothing: anybody, without credentials.
    Public,
    /// A viewer. Payloads, answers and headers are not shown to one: see `Visitor::sees_content`.
    View,
    /// An operator.
    Operate,
    /// An admin.
    Administer,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The method; GET answers HEAD too.
    pub method: Method,
    /// The path below wherever the dashboard is mounted, with `{name}` for what varies.
    pub path: String,
    /// What it takes.
    pub right: Right,
}

impl Route {
    /// Whether it may change something: then `read_only` refuses it, and it must come from our own pages or with a bearer token. Who
    /// comes in and goes out changes no effect.
    pub fn writes(&self) -> bool {
        writes(&self.method, self.right)
    }
}

/// [`Route::writes`].
pub(crate) fn writes(method: &Method, right: Right) -> bool {
    !method.is_safe() && right != Right::Public
}

/// The table, being made.
pub(crate) struct Routes {
    router: Router<Shared>,
    table: Vec<Route>,
    shared: Shared,
    patience: Patience,
}

impl Routes {
    pub(crate) fn new(shared: Shared) -> Self {
        Self::within(Patience::default(), shared)
    }

    /// Whose bodies may take so long.
    pub(crate) fn within(patience: Patience, shared: Shared) -> Self {
        Self { router: Router::new(), table: Vec::new(), shared, patience }
    }

    /// Adds a route: `routes.add(Method::GET, "/effects/{id}", Right::View, show)`.
    ///
    /// The handler runs once its right was proved, in a task of its own to its end, whoever hangs up meanwhile. It gets a
    /// [`Visitor`](crate::access::Visitor) and a [`Root`] as extractors, and `State<Shared>`. It may answer `Result<_, Problem>`; what it
    /// refuses is told as a problem to programs and as a page to browsers. A body has at most [`BODY_MAX`](security::BODY_MAX) bytes
    /// unless the handler has a `DefaultBodyLimit` layer of its own.
    ///
    /// # Panics
    ///
    /// When the route was added already, or the method is none that axum knows: mistakes of ours that every start would show.
    pub(crate) fn add<H, T>(&mut self, method: Method, path: &str, right: Right, handler: H)
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        let gate = security::Gate::new(self.shared.clone(), right, self.patience);
        self.put((method, path, right), gate, handler);
    }

    /// Adds a route that anybody may ask. Its handler finds the [`Visitor`](crate::access::Visitor) in the request where somebody is
    /// known: what it tells to others is the same for everybody.
    ///
    /// # Panics
    ///
    /// As [`Self::add`] does.
    pub(crate) fn add_recognizing<H, T>(&mut self, method: Method, path: &str, handler: H)
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        let gate = security::Gate::recognizing(self.shared.clone(), self.patience);
        self.put((method, path, Right::Public), gate, handler);
    }

    fn put<H, T>(&mut self, (method, path, right): (Method, &str, Right), gate: security::Gate, handler: H)
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).expect("a method of HTTP");
        let route = on(filter, handler).route_layer(from_fn_with_state(gate, security::pass));
        self.router = std::mem::take(&mut self.router).route(path, route);
        self.table.push(Route { method, path: path.to_owned(), right });
    }

    /// What everything holds for is laid around it.
    pub(crate) fn finish(self) -> (Router, Vec<Route>) {
        let around = security::Around::new(self.shared.clone(), self.patience);
        let router = self
            .router
            .fallback(async || Problem::no_page())
            .method_not_allowed_fallback(async || Problem::method_not_allowed())
            .layer(axum::extract::DefaultBodyLimit::max(security::BODY_MAX))
            .layer(from_fn_with_state(around, security::around))
            .with_state(self.shared);
        (router, self.table)
    }
}

/// How a page links to others, wherever the dashboard is mounted and whatever prefix a proxy took away: always relative to the
/// page that is shown. `{{ root }}effects` links to the effects, `{{ root.home() }}` to the overview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    base: String,
    home: String,
}

/// Put into a request where the root of the dashboard has a trailing slash.
#[derive(Clone, Copy)]
struct Slashed;

impl Root {
    /// For a page at `inner` below our root that was asked for as `outer`.
    fn of(outer: &str, inner: &str, slashed: bool) -> Self {
        let mount = outer.strip_suffix(inner).filter(|mount| !mount.is_empty());
        if inner == "/" && !outer.ends_with('/') {
            // Nested at a path: axum routes that path, and none with a slash after it.
            let last = last_segment(outer);
            return Self { base: format!("{last}/"), home: last.to_owned() };
        }
        let depth = inner.matches('/').count().saturating_sub(1);
        let base = if depth == 0 { "./".to_owned() } else { "../".repeat(depth) };
        let home = match mount {
            Some(mount) if !slashed => format!("{}{}", "../".repeat(depth + 1), last_segment(mount)),
            Some(_) | None => base.clone(),
        };
        Self { base, home }
    }

    /// The overview.
    pub(crate) fn home(&self) -> &str {
        &self.home
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

fn last_segment(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Root {
    /// Of a request.
    pub(crate) fn of_request(request: &Request) -> Self {
        Self::found(request.uri(), request.extensions())
    }

    /// Of a request that an extractor reads.
    pub(crate) fn of_parts(parts: &Parts) -> Self {
        Self::found(&parts.uri, &parts.extensions)
    }

    fn found(uri: &Uri, extensions: &Extensions) -> Self {
        let inner = uri.path();
        let outer = extensions.get::<OriginalUri>().map_or(inner, |original| original.0.path());
        Self::of(outer, inner, extensions.get::<Slashed>().is_some())
    }
}

impl<S: Sync> FromRequestParts<S> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of_parts(parts))
    }
}

/// Everything below `path`.
pub(crate) fn at(path: &str, router: Router) -> Router {
    let path = format!("/{}", path.trim_matches('/'));
    if path == "/" {
        return router;
    }
    Router::new().nest_service(&path, router.layer(from_fn(slash)))
}

async fn slash(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Slashed);
    next.run(request).await
}

/// Where the root without its trailing slash leads: relative links from there would miss it.
pub(crate) fn slashed(request: &Request) -> Option<String> {
    request.extensions().get::<Slashed>()?;
    let outer = &request.extensions().get::<OriginalUri>()?.0;
    if request.uri().path() != "/" || outer.path().ends_with('/') {
        return None;
    }
    let query = outer.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some(format!("{}/{query}", last_segment(outer.path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a browser that shows `page` goes for `link`.
    fn leads(page: &str, link: &str) -> String {
        let mut parts: Vec<&str> = page.split('/').collect();
        parts.pop();
        for part in link.split('/') {
            match part {
                "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        parts.join("/")
    }

    #[test]
    fn links_lead_to_the_same_place_from_every_page_of_every_mount() {
        for (mount, slashed) in
            [("", false), ("", true), ("/ops/effects", false), ("/ops/effects", true), ("/a", false)]
        {
            for inner in ["/", "/effects", "/effects/17", "/effects/17/retry"] {
                // Nested, the root has no slash; mounted by `at`, it always has one.
                let outer = if inner == "/" && !slashed && !mount.is_empty() {
                    mount.to_owned()
                } else {
                    format!("{mount}{inner}")
                };
                let root = Root::of(&outer, inner, slashed);
                assert_eq!(leads(&outer, &format!("{root}effects")), format!("{mount}/effects"), "{outer}");
                let home = if slashed || mount.is_empty() { format!("{mount}/") } else { mount.to_owned() };
                assert_eq!(leads(&outer, root.home()), home, "{outer}");
            }
        }
    }

    #[test]
    fn a_prefix_that_a_proxy_took_away_needs_no_configuration() {
        let root = Root::of("/effects/17", "/effects/17", false);
        assert_eq!(leads("/ops/effects/effects/17", &format!("{root}audit")), "/ops/effects/audit");
        assert_eq!(leads("/ops/effects/effects/17", root.home()), "/ops/effects/");
    }
}
