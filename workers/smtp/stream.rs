//! The connection below the commands: resolution, TCP, TLS.

use std::{io, net::IpAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

/// Bytes both ways.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Place {
    /// It is this machine: nobody else reads what goes there.
    pub(super) fn is_loopback(&self) -> bool {
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
pub(super) async fn connect(place: &Place, by: Instant) -> Result<TcpStream, String> {
    let timed_out = |_elapsed| format!("{place} did not answer in time");
    let addresses = timeout_at(by, tokio::net::lookup_host((place.host.as_str(), place.port)))
        .await
        .map_err(|_elapsed| format!("the name of {place} was not resolved in time"))?
        .map_err(|error| format!("the name of {place} cannot be resolved: {error}"))?;
    let addresses: Vec<_> = addresses.collect();
    let mut why = format!("{place} has no address");
    for (at, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let share = u32::try_from(addresses.len() - at).unwrap_or(1);
        let until = now + by.saturating_duration_since(now) / share;
        match timeout_at(until, TcpStream::connect(address)).await.map_err(timed_out) {
            Ok(Ok(stream)) => {
                // Commands are short and wait for their answers.
                stream.set_nodelay(true).map_err(|error| format!("{place}: {error}"))?;
                return Ok(stream);
            }
            Ok(Err(error)) => why = format!("{place} cannot be reached: {}", kind(&error)),
            Err(timed_out) => why = timed_out,
        }
    }
    Err(why)
}

/// A failure of the network in words that hold nothing of ours.
pub(super) fn kind(error: &io::Error) -> String {
    error.get_ref().map_or_else(|| error.to_string(), |_inner| error.kind().to_string())
}

/// TLS as this machine trusts it, and the certificates of `ca` (a PEM file) beside.
pub(super) fn tls(ca: Option<&str>) -> Result<Arc<ClientConfig>, String> {
    let mut extra = Vec::new();
    if let Some(path) = ca {
        let unreadable = || format!("{path} is no readable file of PEM certificates");
        for certificate in CertificateDer::pem_file_iter(path).map_err(|_error| unreadable())? {
            extra.push(certificate.map_err(|_error| unreadable())?);
        }
        if extra.is_empty() {
            return Err(format!("{path} holds no certificate"));
        }
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let broken = |error| format!("TLS cannot be set up on this machine: {error}");
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

/// `stream` within TLS, the server's certificate checked against its name.
pub(super) async fn encrypt<S>(
    stream: S,
    place: &Place,
    tls: &Arc<ClientConfig>,
    by: Instant,
) -> Result<Box<dyn Stream>, String>
where
    S: Stream + 'static,
{
    let name = ServerName::try_from(place.host.clone())
        .map_err(|_error| format!("{} is no name that a certificate can have", place.host))?;
    let connecting = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
    match timeout_at(by, connecting).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) => Err(format!("TLS with {place} failed: {error}")),
        Err(_elapsed) => Err(format!("TLS with {place} was not ready in time")),
    }
}
