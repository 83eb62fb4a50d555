//! What can be seen of an HTTP downstream without any effect: HEAD is safe (RFC 9110, section 9.2.1), and tells whether there is
//! an answer and whether our credentials are refused. What a contract promises shows in no answer to it.

use std::time::Duration;

use aftercommit::{check::Check, contract::Dedupe};
use reqwest::Method;

use super::{
    HttpDownstream,
    config::Auth,
    request,
    send::{self, Failure},
};

impl HttpDownstream {
    /// Looks at `base_url`.
    pub(super) async fn look(&self, timeout: Duration) -> Vec<Check> {
        let Some(base) = &self.http.base else {
            let found = "each effect brings its own URL: there is no base_url to look at";
            return vec![Check::warn(
                "connection",
                found,
                "send something to one of them with --send and --target",
            )];
        };
        let place = request::place(base);
        let mut rendered = match request::question(&self.http, &Method::HEAD, "", &[]) {
            Ok(rendered) => rendered,
            Err(problem) => return vec![Check::fail("connection", problem, "correct base_url or headers")],
        };
        send::authenticate(&mut rendered.headers, self.credential.as_ref());
        let deadline = tokio::time::Instant::now() + timeout;
        let answered = send::exchange(&self.client, rendered, &place, deadline, self.http.max_response).await;
        let status = match answered {
            Ok(answer) => answer.status,
            Err(Failure::Cut(answer, _why)) => answer.status,
            Err(Failure::NotBegun(why) | Failure::NoAnswer(why)) => {
                let remedy = "check base_url, the name service, the network, and the certificate";
                return vec![Check::fail("connection", why, remedy)];
            }
        };
        let tls = if base.scheme() == "https" { "over TLS" } else { "in the clear" };
        let connection = Check::ok("connection", format!("{place} answers {tls}: HEAD was told {status}"));
        vec![connection, self.credentials(status), self.contract()]
    }

    fn credentials(&self, status: u16) -> Check {
        const CHECK: &str = "credentials";
        let refused = matches!(status, 401 | 403 | 407);
        match (&self.http.auth, refused) {
            (Auth::None, false) => Check::ok(CHECK, "none are configured, and none were asked for"),
            (Auth::None, true) => {
                let found = format!("none are configured, and HEAD was refused with {status}");
                Check::warn(CHECK, found, "configure auth, unless only HEAD is refused")
            }
            (Auth::Bearer(_) | Auth::Basic { .. } | Auth::Header { .. }, true) => {
                let found = format!("HEAD with our credentials was refused with {status}");
                Check::fail(CHECK, found, "renew the secret that auth names, unless only HEAD is refused")
            }
            (Auth::Bearer(_) | Auth::Basic { .. } | Auth::Header { .. }, false) => {
                Check::ok(CHECK, "our credentials were not refused; what they may do does not show in a HEAD")
            }
        }
    }

    fn contract(&self) -> Check {
        let promise = match self.http.default.dedupe {
            Dedupe::Key => "that it deduplicates by the key",
            Dedupe::Lookup => "that what was sent can be found again",
            Dedupe::None => {
                return Check::ok(
                    "contract",
                    "it promises nothing about the key, so there is nothing to see",
                );
            }
        };
        let found = format!("the configuration says {promise}; that cannot be seen without an effect");
        Check::warn(
            "contract",
            found,
            "the vendor's documentation says it, or --send the same thing twice in a test account",
        )
    }
}
