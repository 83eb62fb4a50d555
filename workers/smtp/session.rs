//! From a connection to a server that takes mail of us: greeting, EHLO, TLS, AUTH. No byte of any mail goes over it here.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::time::Instant;
use tokio_rustls::rustls::ClientConfig;

use super::{
    reply::Reply,
    wire::{Lost, Wire},
};
use crate::socket::{self, Place, Stream};

/// When TLS is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    /// From the first byte (smtps).
    Implicit,
    /// By STARTTLS, and nothing goes without it.
    Required,
    /// By STARTTLS where it is offered.
    Opportunistic,
    /// Never.
    None,
}

/// As whom we send.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
    /// It was said by name that the password may travel in the clear, or it does not leave this machine.
    pub(super) in_the_clear: bool,
}

/// A server as it is spoken to.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) place: Place,
    pub(super) tls: Tls,
    pub(super) config: Arc<ClientConfig>,
    pub(super) hello: String,
    pub(super) login: Option<Login>,
}

/// What a server says it can (RFC 5321 §4.1.1.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Largest message, in bytes; 0 is unknown (RFC 1870).
    pub(super) size: Option<u64>,
    pub(super) utf8: bool,
    pub(super) starttls: bool,
    /// Mechanisms, in upper case.
    pub(super) auth: Vec<String>,
}

/// A conversation in which mail can be sent.
pub(super) struct Session {
    pub(super) wire: Wire,
    pub(super) capabilities: Capabilities,
    pub(super) encrypted: bool,
    /// Mails that went over it.
    pub(super) used: u32,
    pub(super) idle_since: Instant,
}

/// At which point no session came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Connect,
    Greeting,
    Hello,
    Tls,
    Auth,
}

/// Why no session came about: nothing of any mail was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotOpened {
    pub(super) step: Step,
    /// A sentence without secrets.
    pub(super) why: String,
    pub(super) reply: Option<Reply>,
    /// It refuses us whatever we send, or is not what the configuration says.
    pub(super) refuses_us: bool,
}

impl NotOpened {
    fn lost(step: Step, doing: &str, Lost(why): Lost) -> Self {
        Self { step, why: format!("{doing}: {why}"), reply: None, refuses_us: false }
    }

    fn refused(step: Step, doing: &str, reply: Reply) -> Self {
        let refuses_us = reply.is_permanent();
        Self { step, why: format!("{doing}: {reply}"), reply: Some(reply), refuses_us }
    }

    fn misconfigured(step: Step, why: String) -> Self {
        Self { step, why, reply: None, refuses_us: true }
    }

    fn failed(step: Step, why: String) -> Self {
        Self { step, why, reply: None, refuses_us: false }
    }
}

/// Told of each step that was gone.
pub(super) type Seen<'a> = &'a mut (dyn FnMut(Step, String) + Send);

/// Opens a session; `seen` hears of each step.
pub(super) async fn open(server: &Server, by: Instant, seen: Seen<'_>) -> Result<Session, NotOpened> {
    let place = &server.place;
    let stream = socket::connect(place, by).await.map_err(|why| NotOpened::failed(Step::Connect, why))?;
    seen(Step::Connect, format!("connected to {place}"));
    let mut encrypted = server.tls == Tls::Implicit;
    let stream: Box<dyn Stream> = if encrypted {
        let stream = encrypt(stream, server, by).await?;
        seen(Step::Tls, "TLS from the first byte, certificate checked".to_owned());
        stream
    } else {
        Box::new(stream)
    };
    let mut wire = Wire::new(stream);
    let greeting =
        wire.reply(by).await.map_err(|lost| NotOpened::lost(Step::Greeting, "no greeting", lost))?;
    if greeting.code != 220 {
        return Err(NotOpened::refused(Step::Greeting, "it greeted us with a refusal", greeting));
    }
    seen(Step::Greeting, format!("greeted with {greeting}"));
    let mut capabilities = hello(&mut wire, server, by).await?;
    if !encrypted && capabilities.starttls && matches!(server.tls, Tls::Required | Tls::Opportunistic) {
        wire = start_tls(wire, server, by).await?;
        encrypted = true;
        seen(Step::Tls, "TLS by STARTTLS, certificate checked".to_owned());
        // What it said before is not to be trusted (RFC 3207 §4.2).
        capabilities = hello(&mut wire, server, by).await?;
    }
    if !encrypted && server.tls == Tls::Required {
        let why = format!("{place} offers no TLS (STARTTLS), and nothing is sent without: see `tls`");
        return Err(NotOpened::misconfigured(Step::Tls, why));
    }
    seen(Step::Hello, capabilities.in_words());
    if let Some(login) = &server.login {
        if !encrypted && !login.in_the_clear {
            let why = format!("{place} offers no TLS, and credentials are not sent without: see `tls`");
            return Err(NotOpened::misconfigured(Step::Auth, why));
        }
        authenticate(&mut wire, &capabilities, login, by).await?;
        seen(Step::Auth, format!("authenticated as {:?}", login.user));
    }
    Ok(Session { wire, capabilities, encrypted, used: 0, idle_since: Instant::now() })
}

async fn encrypt<S: Stream + 'static>(
    stream: S,
    server: &Server,
    by: Instant,
) -> Result<Box<dyn Stream>, NotOpened> {
    let authority = "name its authority's certificate (a PEM file) in tls_ca";
    socket::encrypt(stream, &server.place, (&server.config, authority), by)
        .await
        .map_err(|why| NotOpened::failed(Step::Tls, why))
}

async fn hello(wire: &mut Wire, server: &Server, by: Instant) -> Result<Capabilities, NotOpened> {
    let lost = |lost| NotOpened::lost(Step::Hello, "no answer to EHLO", lost);
    let reply = wire.ask(&format!("EHLO {}", server.hello), by).await.map_err(lost)?;
    if reply.code == 250 {
        return Ok(Capabilities::of(&reply));
    }
    // RFC 5321 §3.2: an old server knows only HELO, and none of what EHLO offers.
    if matches!(reply.code, 500 | 502 | 504) {
        let reply = wire.ask(&format!("HELO {}", server.hello), by).await.map_err(lost)?;
        if reply.code == 250 {
            return Ok(Capabilities::default());
        }
        return Err(NotOpened::refused(Step::Hello, "it refused HELO", reply));
    }
    Err(NotOpened::refused(Step::Hello, "it refused EHLO", reply))
}

async fn start_tls(mut wire: Wire, server: &Server, by: Instant) -> Result<Wire, NotOpened> {
    let lost = |lost| NotOpened::lost(Step::Tls, "STARTTLS", lost);
    let reply = wire.ask("STARTTLS", by).await.map_err(lost)?;
    if reply.code != 220 {
        // It offered it a moment ago: nothing that a person could mend here.
        return Err(NotOpened {
            refuses_us: false,
            ..NotOpened::refused(Step::Tls, "it refused STARTTLS", reply)
        });
    }
    let stream = wire.into_stream().map_err(lost)?;
    Ok(Wire::new(encrypt(stream, server, by).await?))
}

/// RFC 4954, with the mechanisms that every server has: PLAIN (RFC 4616), LOGIN.
async fn authenticate(
    wire: &mut Wire,
    capabilities: &Capabilities,
    login: &Login,
    by: Instant,
) -> Result<(), NotOpened> {
    let offers = |name: &str| capabilities.auth.iter().any(|offered| offered == name);
    let lost = |lost| NotOpened::lost(Step::Auth, "AUTH", lost);
    let reply = if offers("PLAIN") {
        wire.ask(&format!("AUTH PLAIN {}", plain(login)), by).await.map_err(lost)?
    } else if offers("LOGIN") {
        let mut reply = wire.ask("AUTH LOGIN", by).await.map_err(lost)?;
        for answer in [&login.user, &login.password] {
            if reply.code != 334 {
                break;
            }
            reply = wire.ask(&STANDARD.encode(answer), by).await.map_err(lost)?;
        }
        reply
    } else {
        let offered =
            if capabilities.auth.is_empty() { "nothing".to_owned() } else { capabilities.auth.join(", ") };
        let why = format!(
            "the server offers no AUTH with PLAIN or LOGIN (it offers {offered}): take `auth` out, or use another port"
        );
        return Err(NotOpened::misconfigured(Step::Auth, why));
    };
    if reply.is_positive() {
        return Ok(());
    }
    Err(NotOpened::refused(Step::Auth, "it did not accept our credentials", reply))
}

/// The initial response of AUTH PLAIN.
fn plain(login: &Login) -> String {
    STANDARD.encode(format!("\0{}\0{}", login.user, login.password))
}

/// A login in the forms in which it is sent, and may be repeated to us.
pub(super) fn secrets(login: &Login) -> [String; 3] {
    [login.password.clone(), STANDARD.encode(&login.password), plain(login)]
}

impl Capabilities {
    fn of(reply: &Reply) -> Self {
        let mut found = Self::default();
        // The first line greets.
        for line in reply.lines.iter().skip(1) {
            let mut words = line.split_ascii_whitespace().map(str::to_ascii_uppercase);
            let Some(word) = words.next() else { continue };
            match word.as_str() {
                "SIZE" => {
                    found.size = words.next().and_then(|size| size.parse().ok()).filter(|size| *size > 0)
                }
                "SMTPUTF8" => found.utf8 = true,
                "STARTTLS" => found.starttls = true,
                "AUTH" => found.auth.extend(words),
                // As some old servers write it.
                _ => found.auth.extend(word.strip_prefix("AUTH=").map(str::to_owned)),
            }
        }
        found
    }

    fn in_words(&self) -> String {
        let mut words = Vec::new();
        words.push(
            self.size.map_or_else(
                || "no limit of size said".to_owned(),
                |size| format!("mails up to {size} bytes"),
            ),
        );
        words.push(if self.utf8 { "SMTPUTF8" } else { "no SMTPUTF8" }.to_owned());
        if !self.auth.is_empty() {
            words.push(format!("AUTH {}", self.auth.join(" ")));
        }
        words.join(", ")
    }
}
