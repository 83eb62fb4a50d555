//! Who is slow holds up nobody: a body that does not come in time ends, and so does a connection that nobody reads.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Of anybody.
    pub(crate) body: Duration,
    /// Of who brought no credentials, where none are asked for.
    pub(crate) of_strangers: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { body: Duration::from_secs(30), of_strangers: Duration::from_secs(10) }
    }
}

/// A body that must be complete in time.
pub(crate) struct Timed {
    body: Body,
    over: Pin<Box<Sleep>>,
}

impl Timed {
    pub(crate) fn new(body: Body, within: Duration) -> Self {
        Self { body, over: Box::pin(sleep(within)) }
    }
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.over.as_mut().poll(cx));
        let slow = io::Error::new(io::ErrorKind::TimedOut, "the body did not come in time");
        Poll::Ready(Some(Err(axum::Error::new(slow))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose other end takes what is written: it breaks off when nothing could be written for too long.
pub(crate) struct Unstalled<S> {
    stream: S,
    within: Duration,
    /// When the write that waits has waited too long.
    over: Option<Pin<Box<Sleep>>>,
}

impl<S> Unstalled<S> {
    pub(crate) fn new(stream: S, within: Duration) -> Self {
        Self { stream, within, over: None }
    }

    /// What became of a write, and of one that waits, whether it has waited too long.
    fn judge<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.over = None;
            return written;
        }
        let within = self.within;
        let over = self.over.get_or_insert_with(|| Box::pin(sleep(within)));
        ready!(over.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads what is answered")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unstalled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unstalled<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(ended, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        task::JoinSet,
    };

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_reads_breaks_off_and_one_that_is_read_does_not() {
        let (near, mut far) = duplex(1);
        let mut near = Unstalled::new(near, Duration::from_secs(60));
        let mut writer = JoinSet::new();
        writer.spawn(async move { near.write_all(b"answer").await.map(|()| near) });
        let mut heard = [0; 6];
        far.read_exact(&mut heard).await.unwrap();
        let mut near = writer.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!((&heard, near.over.is_none()), (b"answer", true));
        near.within = Duration::from_millis(50);
        let error = near.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
