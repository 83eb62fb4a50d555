//! Defends what lies inside: no URL that an effect brings, and no answer to its name, makes a worker connect to an address
//! that is not allowed (cases SSRF-01, SSRF-03, SSRF-05, HTTP-07). Everything goes through `HttpDownstream::deliver`; only
//! the answers to names are the test's. Traps stand where nothing may arrive, and the tests show that they can be hit.

mod credentials;
mod hostile;
mod ranges;
mod rebinding;
mod settings;

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aftercommit::{downstream::Downstream as _, effect::Effect, outcome::Outcome};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{attempt, effect, server::answer, settings as load};
use crate::{
    config::Secrets,
    http::{HttpDownstream, config::Http},
};

const LONG: Duration = Duration::from_secs(20);
/// Stands for a public host where one has to answer: an address of this machine that the traps do not listen on.
const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// What is answered to a lookup.
type Answer = io::Result<Vec<IpAddr>>;

type Script = dyn Fn(&str, usize) -> Answer + Send + Sync;

/// Answers lookups as a test says: `script` is given the name and which lookup of it this is, from 1.
#[derive(Clone)]
struct Names {
    script: Arc<Script>,
    // Lookups by name: connections count, tests read.
    lookups: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Names {
    fn new(script: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), lookups: Arc::default() }
    }

    fn lookups(&self, name: &str) -> usize {
        self.lookups.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let nth = {
            let mut lookups = self.lookups.lock().unwrap();
            let count = lookups.entry(name.as_str().to_owned()).or_default();
            *count += 1;
            *count
        };
        let found = (self.script)(name.as_str(), nth);
        Box::pin(async move {
            // A port of the resolver's own would be another way to another service.
            let found: Vec<SocketAddr> = found?.into_iter().map(|ip| SocketAddr::new(ip, 1)).collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Listeners on 127.0.0.1 and ::1, on the same ports, that count who connects, and answer as a web server does.
struct Traps {
    ports: Vec<u16>,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Traps {
    /// On `count` ports where `outside` can listen, too.
    async fn set(count: usize) -> Self {
        let (mut ports, mut tasks) = (Vec::new(), JoinSet::new());
        let connections = Arc::new(AtomicUsize::new(0));
        while ports.len() < count {
            let v4 = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
            let port = v4.local_addr().unwrap().port();
            // The port may be another program's on the other address: then another port will do.
            let Ok(v6) = TcpListener::bind((LOOPBACK_V6, port)).await else {
                drop(TcpListener::bind((LOOPBACK_V6, 0)).await.expect("this machine has ::1"));
                continue;
            };
            ports.push(port);
            for listener in [v4, v6] {
                tasks.spawn(serve(listener, Arc::clone(&connections)));
            }
        }
        Self { ports, connections, _tasks: tasks }
    }

    /// How often they were hit. Their listeners' queues are emptied before: a last connection is ours.
    async fn hits(&self) -> usize {
        let before = self.connections.load(Ordering::SeqCst);
        let mut ours = 0;
        for port in &self.ports {
            for address in [LOOPBACK, LOOPBACK_V6] {
                TcpStream::connect((address, *port)).await.expect("a trap listens");
                ours += 1;
            }
        }
        let deadline = tokio::time::Instant::now() + LONG;
        while self.connections.load(Ordering::SeqCst) < before + ours {
            assert!(tokio::time::Instant::now() < deadline, "a trap does not count: look at `serve`");
            tokio::task::yield_now().await;
        }
        self.connections.fetch_sub(ours, Ordering::SeqCst) - ours
    }
}

/// Counts connections, and answers 200 to whatever is sent.
async fn serve(listener: TcpListener, connections: Arc<AtomicUsize>) {
    let mut open = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        open.spawn(async move {
            let mut head = [0; 64 * 1024];
            while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut stream, &mut head).await {
                if stream.write_all(&answer(200, "", "{}")).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// A server at [`OUTSIDE`] on one of the traps' ports, with its count of connections.
async fn outside(port: u16) -> (Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind((OUTSIDE, port)).await.unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, Arc::clone(&connections)));
    (connections, tasks)
}

/// The downstream `shop` of this configuration, with `names` for its resolver.
fn downstream(toml: &str, names: &Names) -> HttpDownstream {
    let settings = load(&format!("dynamic_target = \"url\"\n{toml}"));
    let configured: &dyn Any = &*settings.downstreams["shop"].configured;
    let http: &Http = configured.downcast_ref().expect("it is of kind http");
    let secrets = Secrets([("TOKEN".to_owned(), "sekret-token".to_owned())].into());
    HttpDownstream::build(http, &secrets, Arc::new(names.clone())).expect("it can be built")
}

fn to(target: &str) -> Effect {
    Effect { target: Some(target.to_owned()), ..effect() }
}

async fn deliver(shop: &HttpDownstream, effect: Effect) -> Outcome {
    let attempt = attempt(effect, LONG, Ok(()));
    tokio::time::timeout(LONG, shop.deliver(&attempt)).await.expect("within the attempt's deadline")
}

/// `ports = […]` for these.
fn ports(ports: &[u16]) -> String {
    format!("egress.ports = {ports:?}\n")
}
