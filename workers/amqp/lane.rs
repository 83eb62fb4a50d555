//! The one task that publishes on a channel, and tells each attempt what became of its message.
//!
//! Two things that lapin leaves to chance are settled here. It numbers a message and queues its frames in two steps, so that
//! two tasks that publish at once may swap their numbers: here one task publishes. And it hands a returned message to
//! whichever confirm comes next, in no order when one confirm covers many: so a confirm counts only after every confirm
//! that was there before it was looked at, and a return belongs to the message whose id it carries.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use lapin::{Channel, Confirmation, ConnectionStatus, Error, options::BasicPublishOptions};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    classify::{Fault, Told},
    connect::Socket,
    link::Track,
    loss::{channel_closed, is_about_the_routing_key, of_channel},
    order::{Order, Publish},
    outstanding::{End, Outstanding, Sent},
    render::Publication,
    suspects::Suspects,
    topology::name_of,
};

/// Messages that lapin may hold unwritten: it cannot be asked to give one back, and a connection that the broker blocks
/// would keep them for later.
const UNWRITTEN_MAX: usize = 32;
/// What a frame of properties needs besides them: its head, class, weight, body size and flags.
const FRAME_ROOM: usize = 64;

/// What a lane shares with its session.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) status: ConnectionStatus,
    /// Why the broker blocks us, if it does.
    pub(super) blocked: tokio::sync::watch::Receiver<Option<String>>,
    /// Confirms that this connection brought.
    pub(super) heard: Arc<AtomicU64>,
    /// Shut when its last owner is gone.
    pub(super) socket: Arc<Socket>,
    /// Longest frame that the broker takes.
    pub(super) frame_max: usize,
    /// `host:port`.
    pub(super) place: Arc<str>,
}

impl Shared {
    pub(super) fn blocked(&self) -> Option<String> {
        // The library notes it in the same breath in which it stops to write, its event comes a little later.
        let noted = self.blocked.borrow().clone();
        noted.or_else(|| self.status.blocked().then(|| "an alarm".to_owned()))
    }
}

/// The channel of an exchange, or of what is suspected there.
pub(super) struct Lane {
    channel: Channel,
    exchange: String,
    /// One message at a time, always.
    alone: bool,
    shared: Shared,
    suspects: Arc<Suspects>,
    orders: mpsc::UnboundedReceiver<Order>,
    /// Nobody gives orders any more.
    closed: bool,
    /// The channel ended: why whatever is still queued was not sent.
    ended: Option<Fault>,
    queue: VecDeque<Box<Publish>>,
    outstanding: Vec<Outstanding>,
    keys: HashSet<String>,
    /// Returned and not yet confirmed, by message id.
    returned: HashMap<String, (u16, String)>,
    /// A first confirm came: the exchange takes our messages. Until then they go one by one, so that a refusal closes the
    /// channel on nobody else.
    proven: bool,
    /// What a message under way wakes; shared with each of them.
    woken: Arc<AtomicWaker>,
}

impl Lane {
    pub(super) fn new(
        channel: Channel,
        track: &Track,
        shared: Shared,
        suspects: Arc<Suspects>,
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> Self {
        Self {
            channel,
            exchange: track.way.exchange().to_owned(),
            alone: track.alone,
            shared,
            suspects,
            orders,
            closed: false,
            ended: None,
            queue: VecDeque::new(),
            outstanding: Vec::new(),
            keys: HashSet::new(),
            returned: HashMap::new(),
            proven: false,
            woken: Arc::default(),
        }
    }

    /// Publishes until the channel ends, or nobody gives orders any more; then it waits for the last confirms, no longer
    /// than `linger`.
    pub(super) async fn run(mut self, linger: Duration) {
        poll_fn(|context| self.work(context, |lane| lane.closed || lane.ended.is_some())).await;
        self.orders.close();
        let rest = poll_fn(|context| self.work(context, |lane| lane.outstanding.is_empty() && lane.closed));
        if timeout(linger, rest).await.is_err() {
            tracing::debug!(place = %self.shared.place, "confirms that nobody waits for were given up");
        }
    }

    fn work(&mut self, context: &mut Context<'_>, done: impl Fn(&Self) -> bool) -> Poll<()> {
        self.woken.register(context.waker());
        loop {
            self.listen(context);
            // First what became of those under way: a message that was written makes room for another.
            let heard = self.sweep();
            self.leave_alarm();
            let handed = self.hand_over();
            if done(self) {
                return Poll::Ready(());
            }
            if !handed && !heard {
                return Poll::Pending;
            }
        }
    }

    fn listen(&mut self, context: &mut Context<'_>) {
        while !self.closed {
            match self.orders.poll_recv(context) {
                Poll::Ready(Some(Order::Publish(publish))) => self.queue.push_back(publish),
                Poll::Ready(Some(Order::Look)) => {}
                Poll::Ready(None) => self.closed = true,
                Poll::Pending => return,
            }
        }
    }

    /// While the broker blocks us the library keeps what it has not written, and would write it when the alarm ends: not
    /// after its attempt has ended. An attempt that sees its own end does the same.
    fn leave_alarm(&self) {
        let forgotten = |one: &Outstanding| one.is_unwritten() && one.sent.answer.is_closed();
        if self.shared.blocked().is_some() && self.outstanding.iter().any(forgotten) {
            self.shared.socket.shut();
        }
    }

    /// Hands messages to the library, as many as it may hold. Whether there was one.
    fn hand_over(&mut self) -> bool {
        let mut handed = false;
        loop {
            let unsendable = self.ended.clone().or_else(|| self.shared.blocked().map(Fault::Blocked));
            let limit = if self.proven { UNWRITTEN_MAX } else { 1 };
            let waiting = if self.proven {
                self.outstanding.iter().filter(|one| one.is_unwritten()).count()
            } else {
                self.outstanding.len()
            };
            if unsendable.is_none() && waiting >= limit {
                return handed;
            }
            let Some(publish) = self.queue.pop_front() else { return handed };
            match unsendable {
                Some(fault) => tell(publish.answer, Told::NotSent(fault)),
                None => self.begin(*publish),
            }
            handed = true;
        }
    }

    fn begin(&mut self, publish: Publish) {
        let Publish { publication, gate, stage, answer } = publish;
        if answer.is_closed() {
            return;
        }
        let most = self.shared.frame_max.saturating_sub(FRAME_ROOM);
        if publication.properties_len > most {
            let why = format!(
                "its headers need {} bytes, and the broker's frames take {most}: send less in headers, or raise frame_max there",
                publication.properties_len
            );
            return tell(answer, Told::TooLong(why));
        }
        if self.keys.contains(&publication.key) {
            return tell(answer, Told::StillWaiting);
        }
        if let Err(closed) = gate.may_begin() {
            return tell(answer, Told::Closed(closed));
        }
        if !stage.begin() {
            return;
        }
        let Publication { exchange, routing_key, key, body, properties, properties_len: _ } = publication;
        let (channel, wire_key) = (self.channel.clone(), routing_key.to_string());
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let writing = async move {
            channel.basic_publish(name_of(&exchange), routing_key, options, &body, properties).await
        };
        self.keys.insert(key.clone());
        let sent = Sent { key, routing_key: wire_key, stage, answer };
        self.outstanding.push(Outstanding::new(sent, Box::pin(writing), self.woken.clone()));
    }

    /// Looks at every message that is under way. Whether something became of one.
    fn sweep(&mut self) -> bool {
        let mut ends = self.pass();
        let any = !ends.is_empty();
        while !ends.is_empty() {
            // A return goes to the confirm that the library looked at first: it was resolved before the one whose message
            // was returned, so this second look finds it.
            let later = self.pass();
            let alone = ends.len() == 1 && later.is_empty() && self.outstanding.is_empty();
            for (sent, end) in ends {
                self.keys.remove(&sent.key);
                let told = self.told(&sent, end, alone);
                tell(sent.answer, told);
            }
            ends = later;
        }
        if self.outstanding.is_empty() {
            self.returned.clear();
        }
        any
    }

    fn pass(&mut self) -> Vec<(Sent, End)> {
        let (mut ends, mut at) = (Vec::new(), 0);
        while at < self.outstanding.len() {
            let Poll::Ready(end) = self.outstanding[at].look() else {
                at += 1;
                continue;
            };
            let Outstanding { sent, .. } = self.outstanding.swap_remove(at);
            if let End::Confirmed(confirmation) = &end {
                self.note_return(confirmation);
            }
            ends.push((sent, end));
        }
        ends
    }

    fn note_return(&mut self, confirmation: &Confirmation) {
        let (Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) = confirmation else {
            return;
        };
        let Some(id) = message.delivery.properties.message_id() else { return };
        let said = (message.reply_code, message.reply_text.to_string());
        self.returned.insert(id.as_str().to_owned(), said);
    }

    fn told(&mut self, sent: &Sent, end: End, alone: bool) -> Told {
        match end {
            End::Confirmed(confirmation) if *confirmation == Confirmation::NotRequested => Told::NotRequested,
            End::Confirmed(confirmation) => {
                self.proven = !self.alone;
                self.suspects.clear(&sent.key, &self.exchange, &sent.routing_key);
                self.shared.heard.fetch_add(1, Ordering::Relaxed);
                match (self.returned.remove(&sent.key), confirmation.is_ack()) {
                    (Some((code, text)), _) => Told::Returned(code, text),
                    (None, true) => Told::Acked,
                    (None, false) => Told::Nacked,
                }
            }
            End::Unwritten(error) => self.failed(sent, &error, alone, Told::NotSent),
            End::Failed(error) => {
                self.failed(sent, &error, alone, |fault| Told::Lost(fault.text().to_owned()))
            }
        }
    }

    /// The channel or the connection ended. Where nobody knows on which message, it `counts` as that.
    fn failed(&mut self, sent: &Sent, error: &Error, alone: bool, counts: fn(Fault) -> Told) -> Told {
        let fault = of_channel(&self.shared.place, &self.exchange, error);
        self.ended.get_or_insert_with(|| fault.clone());
        // Before anybody is told: whoever hears of it and comes again finds the lane closed, and makes another.
        self.orders.close();
        let Some((code, text)) = channel_closed(error) else { return counts(fault) };
        self.suspects.message(&sent.key);
        // Nothing else was under way on this channel: the broker closed it on this message.
        match (alone, code) {
            (true, 403) if is_about_the_routing_key(&text) => {
                self.suspects.route(&self.exchange, &sent.routing_key);
                Told::Forbidden(fault.text().to_owned())
            }
            (true, 403 | 404) => Told::Refused(fault),
            (true, 311 | 406) => Told::Malformed(text),
            (true | false, _) => counts(fault),
        }
    }
}

/// An attempt that is gone needs no answer.
fn tell(answer: oneshot::Sender<Told>, told: Told) {
    answer.send(told).ok();
}
