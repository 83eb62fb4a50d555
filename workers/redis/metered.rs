//! The stream below the client: it counts what a server sends between two replies, and ends the connection beyond a limit.
//!
//! The client reads a reply whole, however long the server makes it. Replies come in the order of the commands, so while one is
//! unfinished no other can end: what has come since the last one is what the client holds of it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::socket::Stream;

/// Bytes of replies that none of ours comes near, with many of them under way.
pub(super) const REPLY_MAX: usize = 1 << 20;
/// The same while a reply is expected that repeats entries whole: a description of a stream holds its first and its last.
const ENTRIES_MAX: usize = 16 << 20;

/// What was read, and how much may be. Shared by the stream and the attempts.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes since the last reply was heard.
    read: AtomicUsize,
    /// Replies under way that repeat entries.
    long: AtomicUsize,
    exceeded: AtomicBool,
}

impl Meter {
    /// A reply was heard: what comes now belongs to the next one.
    pub(super) fn heard(&self) {
        self.read.store(0, Ordering::Relaxed);
    }

    /// Whether the server sent more than any reply has: the connection was ended for that.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::SeqCst)
    }

    /// Lets a reply be long while the value lives.
    pub(super) fn expect_entries(&self) -> LongReply<'_> {
        self.long.fetch_add(1, Ordering::SeqCst);
        LongReply(self)
    }

    fn count(&self, bytes: usize) -> io::Result<()> {
        let max = if self.long.load(Ordering::SeqCst) > 0 { ENTRIES_MAX } else { REPLY_MAX };
        if self.read.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > max {
            self.exceeded.store(true, Ordering::SeqCst);
        }
        // Once it was too much it stays so, whatever is heard of it.
        if self.is_exceeded() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

/// A reply under way that may be long.
pub(super) struct LongReply<'a>(&'a Meter);

impl Drop for LongReply<'_> {
    fn drop(&mut self) {
        self.0.long.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A stream whose reads are counted.
pub(super) struct Metered {
    stream: Box<dyn Stream>,
    meter: Arc<Meter>,
}

impl Metered {
    pub(super) fn new(stream: Box<dyn Stream>, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.meter.count(buffer.filled().len() - before))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reply_that_is_heard_makes_room_for_the_next() {
        let meter = Meter::default();
        assert!(meter.count(REPLY_MAX).is_ok());
        meter.heard();
        assert!(meter.count(REPLY_MAX).is_ok());
        let long = meter.expect_entries();
        assert!(meter.count(ENTRIES_MAX - REPLY_MAX).is_ok());
        meter.heard();
        drop(long);
        assert!(meter.count(REPLY_MAX).is_ok() && !meter.is_exceeded());
        assert!(meter.count(1).is_err());
        meter.heard();
        assert!(meter.count(1).is_err() && meter.is_exceeded(), "a connection that was ended stays so");
    }
}
