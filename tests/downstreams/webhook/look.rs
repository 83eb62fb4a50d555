//! Guarantee: a look at endpoints goes where a call would go, judges what a call would judge, and sends nothing.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aftercommit::{
    check::{Check, Level},
    clock::Timestamp,
    downstream::endpoint::{Disabled, Endpoint},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::TcpListener,
    process::Command,
    sync::mpsc,
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::{Receiver, SECRET, hooks};
use crate::{
    downstreams::certificates::Certificates,
    e2e::processes::{aftercommit, run},
};

const SOON: Duration = Duration::from_secs(60);

/// One who listens, over TLS, and tells how many bytes each connection brought within it.
struct Listener {
    place: SocketAddr,
    heard: mpsc::UnboundedReceiver<usize>,
    _tasks: JoinSet<()>,
}

impl Listener {
    async fn start(certificates: &Certificates) -> Self {
        let [certificate, key] = certificates.server();
        let chain = CertificateDer::pem_file_iter(certificate).expect("a file").collect::<Result<_, _>>();
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let config = ServerConfig::builder_with_provider(
            tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().into(),
        )
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain.expect("certificates"), key)
        .expect("they fit");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let place = listener.local_addr().expect("it is bound");
        let (tell, heard) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let bytes = match acceptor.accept(stream).await {
                    Ok(stream) => all(stream).await,
                    Err(_refused) => 0,
                };
                if tell.send(bytes).is_err() {
                    return;
                }
            }
        });
        Self { place, heard, _tasks: tasks }
    }
}

async fn all(mut stream: impl AsyncRead + Unpin) -> usize {
    let mut bytes = Vec::new();
    // Whoever hangs up without taking leave said nothing more either.
    stream.read_to_end(&mut bytes).await.unwrap_or(0);
    bytes.len()
}

fn table(ports: &[u16], endpoints: &[(&str, String)]) -> String {
    let mut toml = format!("egress = {{ allow = [\"127.0.0.1\"], http = true, ports = {ports:?} }}\n");
    for (name, url) in endpoints {
        toml += &format!(
            "[downstream.hooks.endpoints.{name}]\nurl = \"{url}/SECRET-PATH\"\nsecret = {{ env = \"HOOK_ACME\" }}\n"
        );
    }
    toml
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_is_reached_over_tls_and_hears_nothing() {
    let certificates = Certificates::make();
    let mut trusted = Listener::start(&certificates).await;
    let port = trusted.place.port();
    let plain = Receiver::start(204).await;
    let nobody =
        TcpListener::bind(("127.0.0.1", 0)).await.expect("a port").local_addr().expect("bound").port();
    let endpoints = [
        ("plain", plain.url.clone()),
        ("gone", format!("https://127.0.0.1:{nobody}")),
        ("unknown", format!("https://127.0.0.1:{port}")),
        ("untls", format!("https://127.0.0.1:{}", plain.port)),
    ];
    let toml = table(&[port, plain.port, nobody], &endpoints);
    let served = hooks(&format!("secrets_from = [\"env:HOOK_\"]\n{toml}"));
    let row = |name: &str, disabled: Option<&str>, url: String| Endpoint {
        name: name.into(),
        url: Some(url),
        secrets: Some("env:HOOK_ACME".to_owned()),
        disabled: disabled
            .map(|reason| Disabled { since: Timestamp::from_micros(0), reason: reason.to_owned() }),
        failing_since: None,
    };
    served.downstream.directory().expect("it has endpoints").put_once(vec![
        row("inside", None, format!("https://10.1.2.3:{port}/x")),
        row("left", Some("they left"), format!("{}/x", plain.url)),
    ]);
    let checks = served.downstream.check(Duration::from_secs(15)).await;
    let of = |name: &str| -> &Check {
        let found = checks.iter().find(|check| check.found.starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {checks:?}"))
    };
    assert!(
        of("plain").level == Level::Ok && of("plain").found.contains("answers in the clear"),
        "{checks:?}"
    );
    assert!(of("gone").level == Level::Fail && of("gone").found.contains("connection refused"), "{checks:?}");
    let unknown = "signed by nobody whom this machine trusts";
    assert!(of("unknown").level == Level::Fail && of("unknown").found.contains(unknown), "{checks:?}");
    assert!(
        of("untls").level == Level::Fail && of("untls").found.contains("look whether it speaks TLS"),
        "{checks:?}"
    );
    assert!(of("inside").level == Level::Fail && of("inside").found.contains("egress guard"), "{checks:?}");
    let left = of("left");
    assert!(
        left.level == Level::Warn && left.found.contains("they left; it answers in the clear"),
        "{checks:?}"
    );
    assert!(!format!("{checks:?}").contains("SECRET-PATH"), "{checks:?}");
    assert_eq!(trusted.heard.recv().await, Some(0));
    assert_eq!(plain.seen(), 0, "no request was made");
    // A machine that trusts the authority.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:{}\"\nenvironment = \"test\"\n[downstream.hooks]\nkind = \"webhook\"\nprofile = \"standard-webhooks\"\n{}",
        folder.path().join("shop.db").display(),
        table(&[port], &[("known", format!("https://127.0.0.1:{port}"))]),
    );
    std::fs::write(&file, text).expect("it is writable");
    let command = |words: &[&str]| -> Command {
        let mut command = aftercommit();
        command.env("HOOK_ACME", SECRET).env("SSL_CERT_FILE", certificates.ca());
        command.arg("--config").arg(&file).args(words);
        command
    };
    let (status, out, err) = run(&mut command(&["migrate"]), SOON).await;
    assert!(status.success(), "{out}\n{err}");
    let (status, out, err) = run(&mut command(&["downstreams", "test", "hooks"]), SOON).await;
    assert!(status.success() && out.contains("answers over TLS, its certificate is trusted"), "{out}\n{err}");
    assert_eq!(trusted.heard.recv().await, Some(0), "nothing was said within TLS");
}
