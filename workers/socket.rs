//! TCP and TLS to a server, for the kinds whose client library leaves them to us or asks us whom to trust.
//!
//! It connects once and never again by itself. What it says of a failure are our words: they hold nothing of ours, and end with
//! what to do.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        CertificateError, ClientConfig, Error as TlsError,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};
use url::{Host, Url};

/// Bytes both ways.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Place {
    /// Of a URL that names a host; `usual` is the port of one that names none.
    pub(crate) fn of(url: &Url, usual: u16) -> Self {
        let host = match url.host() {
            // Without the brackets of a URL: they belong to no address.
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(Host::Domain(_) | Host::Ipv4(_)) | None => url.host_str().unwrap_or_default().to_owned(),
        };
        Self { host, port: url.port_or_known_default().unwrap_or(usual) }
    }

    /// It is this machine: nobody else reads what goes there.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A connection to `place`, whichever of its addresses answers first in their order; each gets its share of the time.
pub(crate) async fn connect(place: &Place, by: Instant) -> Result<TcpStream, String> {
    let addresses: Vec<_> = timeout_at(by, tokio::net::lookup_host((place.host.as_str(), place.port)))
        .await
        .map_err(|_elapsed| {
            format!("the name of {place} was not resolved in time: look at this machine's name service")
        })?
        .map_err(|_error| {
            format!(
                "the name of {place} cannot be resolved: correct the host, or look at this machine's name service"
            )
        })?
        .collect();
    connect_to(place, &addresses, by).await
}

/// A connection to one of the `addresses` of `place`.
pub(crate) async fn connect_to(
    place: &Place,
    addresses: &[SocketAddr],
    by: Instant,
) -> Result<TcpStream, String> {
    let mut why = format!("{place} has no address: correct the host");
    for (at, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let share = u32::try_from(addresses.len() - at).unwrap_or(1);
        let until = now + by.saturating_duration_since(now) / share;
        match timeout_at(until, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are short and wait for their answers.
                stream.set_nodelay(true).map_err(|error| format!("{place}: {}", error.kind()))?;
                return Ok(stream);
            }
            Ok(Err(error)) => {
                why = format!(
                    "no connection to {place}: {}; look whether it is up, and whether host and port are right",
                    error.kind()
                );
            }
            Err(_elapsed) => {
                why = format!(
                    "{place} did not answer in time: look whether it is up, and whether a firewall lets us there"
                );
            }
        }
    }
    Err(why)
}

/// TLS as this machine trusts it, and the certificates of `ca` (a PEM file) beside.
pub(crate) fn trust(ca: Option<&str>) -> Result<Arc<ClientConfig>, String> {
    let extra = ca.map(certificates).transpose()?.unwrap_or_default();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let broken = |error| {
        format!(
            "TLS cannot be set up on this machine ({error}): are the system's root certificates installed?"
        )
    };
    let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(extra, Arc::clone(&provider))
        .map_err(broken)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The certificates in a PEM file.
pub(crate) fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = std::fs::read(path).map_err(|error| format!("the file {path} cannot be read: {error}"))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(format!("the file {path} holds no certificate in PEM, or a broken one")),
    }
}

/// `stream` within TLS, the server's certificate checked against its name; `authority` says where a private one is named.
pub(crate) async fn encrypt<S>(
    stream: S,
    place: &Place,
    (tls, authority): (&Arc<ClientConfig>, &str),
    by: Instant,
) -> Result<Box<dyn Stream>, String>
where
    S: Stream + 'static,
{
    let name = ServerName::try_from(place.host.clone()).map_err(|_error| {
        format!("{} is no name that a certificate can have: correct the host", place.host)
    })?;
    let connecting = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
    match timeout_at(by, connecting).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) => Err(no_tls(&error, place, authority)),
        Err(_elapsed) => Err(format!(
            "TLS with {place} was not ready in time: look whether it speaks TLS on this port, and at its load"
        )),
    }
}

/// Where a private authority is named, by the kinds that have a key for it.
pub(crate) const CA: &str = "name its authority's certificate (a PEM file) in ca";

/// Why there is no TLS with `place`, and what to do about it.
pub(crate) fn no_tls(error: &io::Error, place: impl std::fmt::Display, authority: &str) -> String {
    let problem = match tls_error(error) {
        Some(TlsError::InvalidCertificate(certificate)) => of_certificate(certificate, authority),
        Some(TlsError::AlertReceived(alert)) => format!(
            "it broke the handshake off ({alert:?}): its log says why; certificates of clients are not supported"
        ),
        Some(_) | None => {
            "it does not speak TLS there: compare scheme and port with what it offers".to_owned()
        }
    };
    format!("TLS with {place} failed: {problem}")
}

/// Whether the failure is one of TLS, not of the network below it.
pub(crate) fn is_of_tls(error: &io::Error) -> bool {
    tls_error(error).is_some()
}

fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

fn of_certificate(error: &CertificateError, authority: &str) -> String {
    use CertificateError as Is;
    if matches!(error, Is::NotValidForName | Is::NotValidForNameContext { .. }) {
        return "its certificate is for another name: write the host as the certificate has it".to_owned();
    }
    if matches!(
        error,
        Is::Expired | Is::ExpiredContext { .. } | Is::NotValidYet | Is::NotValidYetContext { .. }
    ) {
        return "its certificate is not valid at this time: have it renewed there, and compare both clocks"
            .to_owned();
    }
    if matches!(error, Is::Revoked) {
        return "its certificate was revoked: have it replaced there".to_owned();
    }
    format!(
        "its certificate is signed by nobody whom this machine trusts ({error}): {authority}, if this is the right server"
    )
}
