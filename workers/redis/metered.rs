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

/// Bytes without the end of a reply that no reply of ours comes near.
pub(super) const REPLY_MAX: usize = 1 << 20;
/// What a reply that is expected may add to it: an id, or an error.
pub(super) const SHORT: usize = 1 << 10;
/// The same of a reply that repeats entries whole: the description of a stream holds its first and its last.
pub(super) const ENTRIES: usize = 16 << 20;

/// What was read, and how much may be. Shared by the stream and the attempts.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes since the last reply was heard.
    read: AtomicUsize,
    /// What the replies under way may have together.
    expected: AtomicUsize,
    exceeded: AtomicBool,
}

impl Meter {
    /// A reply was heard: what comes now belongs to the next one.
    pub(super) fn heard(&self) {
        self.read.store(0, Ordering::Relaxed);
    }

    /// Whether the server sent more than the replies have: the connection was ended for that.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::SeqCst)
    }

    /// A reply of so many bytes is expected while the value lives.
    pub(super) fn expect(&self, bytes: usize) -> Expected<'_> {
        self.expected.fetch_add(bytes, Ordering::SeqCst);
        Expected { meter: self, bytes }
    }

    fn count(&self, bytes: usize) -> io::Result<()> {
        let max = self.expected.load(Ordering::SeqCst).saturating_add(REPLY_MAX);
        if self.read.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > max {
            self.exceeded.store(true, Ordering::SeqCst);
        }
        // Once it was too much it stays so, whatever is heard of it.
        if self.is_exceeded() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

/// A reply under way.
pub(super) struct Expected<'a> {
    meter: &'a Meter,
    bytes: usize,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.meter.expected.fetch_sub(self.bytes, Ordering::SeqCst);
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
        for _ in 0..3 {
            assert!(meter.count(REPLY_MAX).is_ok());
            meter.heard();
        }
        let replies: Vec<_> = (0..100).map(|_| meter.expect(SHORT)).collect();
        assert!(meter.count(REPLY_MAX + 100 * SHORT).is_ok(), "many that nobody has listened to yet");
        drop(replies);
        let entries = meter.expect(ENTRIES);
        assert!(meter.count(ENTRIES - 100 * SHORT).is_ok());
        meter.heard();
        drop(entries);
        assert!(meter.count(REPLY_MAX).is_ok() && !meter.is_exceeded());
        assert!(meter.count(1).is_err());
        meter.heard();
        assert!(meter.count(1).is_err() && meter.is_exceeded(), "a connection that was ended stays so");
    }
}
