//! `downstreams test NAME`: everything up to the first mail, and no mail.

use std::time::Duration;

use aftercommit::check::Check;
use tokio::time::Instant;

use super::{
    pool,
    session::{self, NotOpened, Server, Step, Tls},
};

const fn name(step: Step) -> &'static str {
    match step {
        Step::Connect => "connection",
        Step::Greeting => "greeting",
        Step::Hello => "capabilities",
        Step::Tls => "tls",
        Step::Auth => "auth",
    }
}

/// What to do where a step failed.
pub(super) const fn remedy(step: Step) -> &'static str {
    match step {
        Step::Connect => {
            "compare host and port of `server` with what the mail provider says; look whether a firewall lets port 465 or 587 out"
        }
        Step::Greeting => {
            "the server does not want this machine: ask its operator, or look up this machine's address in block lists"
        }
        Step::Hello => "set `hello` to this machine's full host name",
        Step::Tls => {
            "smtps:// goes with port 465, smtp:// with 587; name a private authority's certificates in `tls_ca`; `tls = \"none\"` sends in the clear"
        }
        Step::Auth => "compare `auth` with the user and password that the mail provider gave",
    }
}

/// Looks as far as a session goes.
pub(super) async fn look(server: &Server, timeout: Duration) -> Vec<Check> {
    let by = Instant::now() + timeout;
    let mut checks = Vec::new();
    let opened =
        session::open(server, by, &mut |step, found| checks.push(Check::ok(name(step), found))).await;
    match opened {
        Ok(session) => {
            if !session.encrypted {
                checks.push(in_the_clear(server));
            }
            if server.login.is_none() {
                let found = "no credentials are configured: only a server that knows this machine takes mail";
                checks.push(Check::ok("auth", found));
            }
            pool::close(session).await;
        }
        Err(NotOpened { step, why, .. }) => checks.push(Check::fail(name(step), why, remedy(step))),
    }
    checks
}

fn in_the_clear(server: &Server) -> Check {
    if server.place.is_loopback() {
        return Check::ok("tls", "none: it does not leave this machine");
    }
    let remedy = match server.tls {
        Tls::None => "take out tls = \"none\" where the server offers TLS",
        Tls::Opportunistic | Tls::Required | Tls::Implicit => {
            "set tls = \"required\" where the server should offer TLS"
        }
    };
    Check::warn("tls", "none: mails travel in the clear", remedy)
}
