//! A dashboard instead of a database: `--server URL`. What it refuses is told in its own words.
//!
//! One request at a time, each with a deadline; no redirect is followed, no proxy is asked, nothing is sent twice: an action whose
//! answer was lost is looked at by the person, not repeated.

mod bulk;
mod people;
mod refusal;
mod token;

use std::time::Duration;

use aftercommit_dashboard::api::json::AboutJson;
use reqwest::{
    Method, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use serde::{Serialize, de::DeserializeOwned};
use url::Url;

pub(crate) use refusal::Refused;
pub(crate) use token::Credentials;

use self::refusal::Asked;
use super::{Exit, fail};

/// No answer of a dashboard takes longer: it asks its database for seconds at most, but to list what a bulk is for.
const DEADLINE: Duration = Duration::from_secs(90);
/// A server that cannot be connected to within this is away.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest answer that is read: a page of a thousand effects with their responses.
const ANSWER_MAX: usize = 256 << 20;

/// A dashboard.
pub(crate) struct Remote {
    client: reqwest::Client,
    /// The API, with a slash at its end.
    api: Url,
    /// As it may be shown.
    shown: String,
    authorization: Option<HeaderValue>,
}

impl Remote {
    /// The dashboard at `server`.
    ///
    /// # Errors
    ///
    /// When that is no URL of one, or the token cannot be used.
    pub(crate) fn new(server: &str, credentials: &Credentials) -> anyhow::Result<Self> {
        let mut api = base(server)?;
        // Either alone is a secret too: a password without a user, a token in the user's place.
        if !api.username().is_empty() || api.password().is_some() {
            return Err(fail(
                Exit::Usage,
                "--server must not hold a user or a password, which others on this machine can read: give a token in AFTERCOMMIT_TOKEN \
                 or with --token-file",
            ));
        }
        let shown = api.to_string();
        api = api.join("api/v1/").map_err(|problem| fail(Exit::Usage, format!("--server: {problem}")))?;
        let client = reqwest::Client::builder();
        // A machine without root certificates can still speak plain HTTP.
        let client = if api.scheme() == "https" { client } else { client.tls_certs_only([]) };
        let client = client
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("aftercommit/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(DEADLINE)
            .build()
            .map_err(|_problem| {
                fail(
                    Exit::Failure,
                    "no HTTP client could be built: are the system's root certificates installed?",
                )
            })?;
        Ok(Self { client, api, shown, authorization: credentials.header()? })
    }

    /// What it says of itself; this is how one finds out whether it is there.
    ///
    /// # Errors
    ///
    /// When it is not, or does not know us.
    pub(crate) async fn about(&self) -> anyhow::Result<AboutJson> {
        self.get(&["about"], &[]).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<T> {
        self.ask(Method::GET, path, query, None).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<T> {
        self.ask(Method::POST, path, &[], Some(serde_json::to_vec(body)?)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> anyhow::Result<T> {
        let url = self.url(path, query)?;
        let (status, bytes) = self.exchange(method.clone(), url.clone(), body).await?;
        let has_token = self.authorization.is_some();
        let asked = Asked { server: &self.shown, method: &method, url: &url, has_token };
        if !status.is_success() {
            return Err(asked.refused(status, &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|problem| asked.misread(status, &problem))
    }

    fn url(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Url> {
        let mut url = self.api.clone();
        let cannot = || fail(Exit::Usage, format!("--server {} cannot have paths", self.shown));
        url.path_segments_mut().map_err(|()| cannot())?.pop_if_empty().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    async fn exchange(
        &self,
        method: Method,
        url: Url,
        body: Option<Vec<u8>>,
    ) -> anyhow::Result<(StatusCode, Vec<u8>)> {
        let acts = method == Method::POST;
        let mut request = self.client.request(method, url).header(ACCEPT, "application/json");
        // What no script of a page can say: a person asks, and not somebody else's page.
        request = request.header("sec-fetch-site", "none");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        if acts {
            request = request.header(CONTENT_TYPE, "application/json").body(body.unwrap_or_default());
        }
        let mut response = request.send().await.map_err(|problem| self.away(&problem, acts))?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|problem| self.away(&problem, acts))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > ANSWER_MAX {
                return Err(fail(Exit::Failure, format!("{} answered without an end", self.shown)));
            }
        }
        Ok((status, bytes))
    }

    /// It does not answer.
    fn away(&self, problem: &reqwest::Error, acts: bool) -> anyhow::Error {
        let mut why = problem.to_string();
        let mut cause = std::error::Error::source(problem);
        // The last of the causes is the one that says what is wrong.
        while let Some(now) = cause {
            why = now.to_string();
            cause = now.source();
        }
        let lost = if acts && !problem.is_connect() {
            " Whether it was done is not known: look before you repeat it."
        } else {
            ""
        };
        fail(
            Exit::Unreachable,
            format!(
                "the dashboard {} did not answer ({why}): is it running, and is --server its address?{lost}",
                self.shown
            ),
        )
    }
}

/// The dashboard's address, with a slash at its end.
fn base(server: &str) -> anyhow::Result<Url> {
    let wrong = |why: String| fail(Exit::Usage, format!("--server {:?}: {why}", harmless(server)));
    let mut url = Url::parse(server).map_err(|problem| {
        wrong(format!("{problem}; write a URL such as https://ops.example.com/effects/"))
    })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong("write a URL that begins with https:// or http://".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("leave out what stands behind ? and #".to_owned()));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// What was given for an address, without what may be a secret in it: whoever stands before the host, and what follows the path.
fn harmless(server: &str) -> String {
    let hidden = match server.rsplit_once('@') {
        Some((before, host)) => match before.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://***@{host}"),
            None => format!("***@{host}"),
        },
        None => server.to_owned(),
    };
    match hidden.find(['?', '#']) {
        Some(end) => format!("{}***", &hidden[..=end]),
        None => hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::exit_of;

    #[test]
    fn a_dashboard_may_be_anywhere() {
        for (given, api) in [
            ("http://127.0.0.1:7799", "http://127.0.0.1:7799/api/v1/effects/17"),
            ("https://ops.example.com/ops/effects", "https://ops.example.com/ops/effects/api/v1/effects/17"),
            ("https://ops.example.com/ops/effects/", "https://ops.example.com/ops/effects/api/v1/effects/17"),
        ] {
            let remote = Remote::new(given, &Credentials::default()).unwrap();
            assert_eq!(remote.url(&["effects", "17"], &[]).unwrap().as_str(), api);
        }
        let remote = Remote::new("http://localhost", &Credentials::default()).unwrap();
        let url = remote.url(&["downstreams", "a/b ü", "pause"], &[("key", "a&b=c".to_owned())]).unwrap();
        assert_eq!(url.as_str(), "http://localhost/api/v1/downstreams/a%2Fb%20%C3%BC/pause?key=a%26b%3Dc");
    }

    #[test]
    fn what_is_no_address_is_a_mistake_that_says_what_to_write() {
        for wrong in [
            "ops",
            "postgres://h/x",
            "http://",
            "http://h/?x",
            "http://h/#x",
            "http://me:secret@h/",
            "http://:secret@h/",
            "http://secret@h/",
            "http://me:se?cret@h/",
            "http://me:secret@h/?x",
            "http://me:secret@h/#secret",
            "http://h/?token=secret",
            "http://me:secret@",
            "postgres://me:secret@h/x",
            "me:secret@h",
        ] {
            let problem = Remote::new(wrong, &Credentials::default()).err().expect(wrong);
            assert_eq!(exit_of(&problem), Exit::Usage, "{wrong}");
            assert!(!["secret", "cret"].iter().any(|word| problem.to_string().contains(word)), "{problem}");
        }
    }
}
