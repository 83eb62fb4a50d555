//! Commands out, replies in, one after the other: each has its own end in time, and what is read is bounded. It never logs what
//! goes over it.

use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout_at},
};

use super::reply::{Gather, Malformed, Reply, first_line};
use crate::socket::Stream;

/// A conversation with a server.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    /// Read, and not yet part of a reply.
    unread: Vec<u8>,
}

/// Why there is no reply: nothing more can be said on this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost(pub(super) String);

impl From<Malformed> for Lost {
    fn from(Malformed(why): Malformed) -> Self {
        Self(why.to_owned())
    }
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, unread: Vec::new() }
    }

    /// The stream, for TLS to be laid over it. What was said before must not be taken for something said within (CVE-2011-0411).
    pub(super) fn into_stream(self) -> Result<Box<dyn Stream>, Lost> {
        if self.unread.is_empty() { Ok(self.stream) } else { Err(out_of_turn()) }
    }

    /// Says `command` and hears the reply.
    pub(super) async fn ask(&mut self, command: &str, by: Instant) -> Result<Reply, Lost> {
        if !self.unread.is_empty() {
            return Err(out_of_turn());
        }
        let line = format!("{command}\r\n");
        self.write(line.as_bytes(), by).await?;
        self.reply(by).await
    }

    /// Writes, and waits until the network has it.
    pub(super) async fn write(&mut self, bytes: &[u8], by: Instant) -> Result<(), Lost> {
        let written = timeout_at(by, async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Lost(format!("the connection was lost: {}", error.kind()))),
            Err(_elapsed) => Err(Lost("it did not take what was sent in time".to_owned())),
        }
    }

    /// The next reply.
    pub(super) async fn reply(&mut self, by: Instant) -> Result<Reply, Lost> {
        let mut gather = Gather::default();
        loop {
            while let Some((line, length)) = first_line(&self.unread)? {
                let reply = gather.line(line)?;
                self.unread.drain(..length);
                if let Some(reply) = reply {
                    return Ok(reply);
                }
            }
            match timeout_at(by, self.fill()).await {
                Ok(filled) => filled?,
                Err(_elapsed) => return Err(Lost("it did not answer in time".to_owned())),
            }
        }
    }

    /// Whether it said something, or went away, without being asked: looked at, not waited for.
    pub(super) fn spoke(&mut self) -> Result<bool, Lost> {
        if self.unread.is_empty()
            && let Some(filled) = self.fill().now_or_never()
        {
            filled?;
        }
        Ok(!self.unread.is_empty())
    }

    async fn fill(&mut self) -> Result<(), Lost> {
        match self.stream.read_buf(&mut self.unread).await {
            Ok(0) => Err(Lost("it closed the connection".to_owned())),
            Ok(_more) => Ok(()),
            Err(error) => Err(Lost(format!("the connection was lost: {}", error.kind()))),
        }
    }
}

fn out_of_turn() -> Lost {
    Lost("it spoke out of turn".to_owned())
}
