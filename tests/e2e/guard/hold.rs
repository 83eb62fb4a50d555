//! A wire to PostgreSQL that holds one statement: its client has sent it, and the server never gets it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

/// A running wire; it ends when dropped.
pub(super) struct Hold {
    pub(super) address: SocketAddr,
    held: Arc<AtomicU32>,
    _wires: JoinSet<()>,
}

impl Hold {
    /// Leads to `server`, and holds whatever comes with `text` in it (a statement's text, in upper or lower case).
    pub(super) async fn start(server: String, text: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let held = Arc::new(AtomicU32::new(0));
        let mut wires = JoinSet::new();
        let counter = Arc::clone(&held);
        wires.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                open.spawn(wire(client, server.clone(), text, Arc::clone(&counter)));
            }
        });
        Self { address, held, _wires: wires }
    }

    /// How many statements are held.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Ordering::SeqCst)
    }
}

/// Ends, and closes both sides, when either side does.
async fn wire(client: TcpStream, server: String, text: &'static str, held: Arc<AtomicU32>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forwards(from_client, to_server, text, &held) => {}
        () = back(from_server, to_client) => {}
    }
}

/// Hands on what comes, in the pieces in which the client wrote it: one statement is one write.
async fn forwards(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, text: &str, held: &AtomicU32) {
    let mut piece = vec![0; 64 * 1024];
    let mut holding = false;
    while let Ok(length) = from.read(&mut piece).await
        && length > 0
    {
        if !holding && String::from_utf8_lossy(&piece[..length]).to_lowercase().contains(text) {
            holding = true;
            held.fetch_add(1, Ordering::SeqCst);
        }
        if !holding && to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    // Either side may be killed: that ends the wire.
    let _ended = tokio::io::copy(&mut from, &mut to).await;
}
