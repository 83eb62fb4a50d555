//! Before the first message of a way: what the configuration asks for is declared, what it does not is looked for.
//!
//! Each question has a channel of its own: a broker that says no closes the channel it was asked on.

use lapin::{
    Error, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};

use super::{
    classify::Fault,
    link::Session,
    loss::{away, said},
    render::Publication,
    topology::{Binding, Exchange, Queue, Topology, name_of},
};

/// Messages that stand or fall together: those to one exchange, or to one declared queue by the default exchange.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Exchange(String),
    Queue(String),
}

impl Way {
    /// The way of a message. There are as many as the configuration names exchanges and queues.
    pub(super) fn of(publication: &Publication, topology: &Topology) -> Self {
        let key = publication.routing_key.as_str();
        if publication.exchange.is_empty() && topology.queues.contains_key(key) {
            return Self::Queue(key.to_owned());
        }
        Self::Exchange(publication.exchange.clone())
    }

    /// The exchange that is published to.
    pub(super) fn exchange(&self) -> &str {
        match self {
            Self::Exchange(name) => name,
            Self::Queue(_) => "",
        }
    }
}

/// Declares and looks for all that `way` needs.
pub(super) async fn prepare(session: &Session, way: &Way, topology: &Topology) -> Result<(), Fault> {
    match way {
        Way::Queue(name) => match topology.queues.get(name) {
            // What goes to other queues goes on.
            Some(queue) => declare_queue(session, name, queue, topology).await.map_err(|fault| match fault {
                Fault::Amiss(text) => Fault::Local(text),
                Fault::Away(_) | Fault::Refuses(_) | Fault::Local(_) | Fault::Blocked(_) => fault,
            }),
            None => Ok(()),
        },
        // The default exchange is always there.
        Way::Exchange(name) if name.is_empty() => Ok(()),
        Way::Exchange(name) => {
            match topology.exchanges.get(name) {
                Some(exchange) => declare_exchange(session, name, exchange, topology).await?,
                None => find_exchange(session, name).await?,
            }
            for binding in topology.bindings.iter().filter(|binding| binding.exchange == *name) {
                if let Some(queue) = topology.queues.get(&binding.queue) {
                    declare_queue(session, &binding.queue, queue, topology).await?;
                }
                bind(session, binding).await?;
            }
            Ok(())
        }
    }
}

/// Why something was not found.
pub(super) enum NotFound {
    /// It does not exist.
    Missing(Fault),
    /// The broker did not say.
    Unsaid(Fault),
}

impl NotFound {
    fn of(session: &Session, what: &str, error: &Error) -> Self {
        let missing = said(error).is_some_and(|(code, _)| code == 404);
        let fault = fault(session, what, error);
        if missing { Self::Missing(fault) } else { Self::Unsaid(fault) }
    }
}

impl From<NotFound> for Fault {
    fn from(not_found: NotFound) -> Self {
        let (NotFound::Missing(fault) | NotFound::Unsaid(fault)) = not_found;
        fault
    }
}

/// Whether the exchange is there.
pub(super) async fn find_exchange(session: &Session, name: &str) -> Result<(), NotFound> {
    let channel = session.channel().await.map_err(NotFound::Unsaid)?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let found =
        channel.exchange_declare(name_of(name), ExchangeKind::Direct, options, FieldTable::default()).await;
    found.map_err(|error| NotFound::of(session, &format!("exchange {name:?}"), &error))
}

/// Whether the queue is there: how many messages it holds, and how many consumers it has.
pub(super) async fn find_queue(session: &Session, name: &str) -> Result<(u32, u32), NotFound> {
    let channel = session.channel().await.map_err(NotFound::Unsaid)?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(name_of(name), options, FieldTable::default()).await;
    let queue = found.map_err(|error| NotFound::of(session, &format!("queue {name:?}"), &error))?;
    Ok((queue.message_count(), queue.consumer_count()))
}

async fn declare_exchange(
    session: &Session,
    name: &str,
    exchange: &Exchange,
    topology: &Topology,
) -> Result<(), Fault> {
    let channel = session.channel().await?;
    let kind = ExchangeKind::Custom(exchange.kind.clone());
    let options = ExchangeDeclareOptions { durable: exchange.durable, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(name_of(name), kind, options, exchange.arguments.table()).await;
    settle(session, &format!("exchange {name:?}"), declared, topology)
}

async fn declare_queue(
    session: &Session,
    name: &str,
    queue: &Queue,
    topology: &Topology,
) -> Result<(), Fault> {
    let channel = session.channel().await?;
    let options = QueueDeclareOptions { durable: queue.durable, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(name_of(name), options, queue.arguments.table()).await;
    settle(session, &format!("queue {name:?}"), declared.map(|_queue| ()), topology)
}

async fn bind(session: &Session, binding: &Binding) -> Result<(), Fault> {
    let channel = session.channel().await?;
    let Binding { exchange, queue, routing_key, arguments } = binding;
    let (queue_name, exchange_name, key) = (name_of(queue), name_of(exchange), name_of(routing_key));
    let bound = channel
        .queue_bind(queue_name, exchange_name, key, QueueBindOptions::default(), arguments.table())
        .await;
    bound.map_err(|error| {
        fault(session, &format!("the binding of queue {queue:?} to exchange {exchange:?}"), &error)
    })
}

/// What exists with other properties is refused, or taken as it is: as the configuration says.
fn settle(
    session: &Session,
    what: &str,
    declared: Result<(), Error>,
    topology: &Topology,
) -> Result<(), Fault> {
    let Err(error) = declared else { return Ok(()) };
    let fault = fault(session, what, &error);
    if topology.takes_what_is_there && said(&error).is_some_and(|(code, _)| code == 406) {
        tracing::warn!(place = %session.shared.place, "{}; until then it is used as it is (on_mismatch)", fault.text());
        return Ok(());
    }
    Err(fault)
}

/// The broker's words name the argument that differs, and both of its values.
fn fault(session: &Session, what: &str, error: &Error) -> Fault {
    let place = &session.shared.place;
    match said(error) {
        Some((406, text)) => Fault::Amiss(format!(
            "{what} exists at {place} with other properties than declare says: {text}; correct declare, or make it anew there"
        )),
        Some((404, text)) => Fault::Amiss(format!(
            "{what} does not exist at {place}: {text}; create it, correct its name, or write it under declare"
        )),
        Some((_, text)) if error.is_amqp_soft_error() => {
            Fault::Amiss(format!("{place} refuses {what}: {text}; permit it to this user"))
        }
        Some(_) | None => away(place, error),
    }
}
