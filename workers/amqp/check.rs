//! What `downstreams test` shows of a broker, found without any effect.

use std::time::Duration;

use aftercommit::check::Check;
use tokio::time::{Instant, timeout_at};

use super::{
    classify::Fault,
    config::Amqp,
    connect::Address,
    declare::{self, text_of},
    link::Session,
};

/// Connects anew, and looks.
pub(super) async fn check(amqp: &Amqp, address: &Address, limit: Duration) -> Vec<Check> {
    let deadline = Instant::now() + limit;
    let mut checks = Vec::new();
    let opened = timeout_at(deadline, Session::open(address, limit)).await;
    let session = match opened {
        Ok(Ok(session)) => session,
        Ok(Err(fault)) => return vec![refused(&fault)],
        Err(_elapsed) => {
            let found = format!("{} did not let us in within {limit:?}", address.place);
            return vec![Check::fail(
                "connection",
                found,
                "look whether the broker is up and the port is right",
            )];
        }
    };
    let tls = if address.is_tls() { "over TLS, its certificate is trusted" } else { "without TLS" };
    checks.push(Check::ok("connection", format!("{} answers, {tls}", address.place)));
    let found = format!("{} may enter the virtual host {:?}", address.user(), address.vhost());
    checks.push(Check::ok("login", found));
    if let Some(why) = session.shared.blocked() {
        let found = format!("the broker takes no messages (connection.blocked: {why})");
        checks.push(Check::fail(
            "alarm",
            found,
            "free memory or disk there: `rabbitmq-diagnostics alarms` says which",
        ));
        return checks;
    }
    checks.push(Check::ok("alarm", "none: the broker takes messages"));
    for exchange in amqp.exchanges() {
        let looked = timeout_at(deadline, look(amqp, &session, exchange)).await;
        checks.extend(looked.unwrap_or_else(|_elapsed| {
            vec![Check::fail(
                "exchange",
                format!("no answer about {exchange:?} in time"),
                "look at the broker's load",
            )]
        }));
    }
    checks
}

async fn look(amqp: &Amqp, session: &Session, exchange: &str) -> Vec<Check> {
    let unseen = "a message that no queue is bound for is returned, and its effect fails as unroutable";
    if exchange.is_empty() {
        return queues(amqp, session).await;
    }
    if amqp.topology.exchanges.contains_key(exchange) {
        let found = format!("exchange {exchange:?} is declared before the first message");
        return vec![Check::ok("exchange", found)];
    }
    match declare::find_exchange(session, exchange).await {
        Ok(()) => vec![
            Check::ok("exchange", format!("{exchange:?} is there")),
            Check::warn(
                "binding",
                format!("whether a queue is bound to {exchange:?} cannot be seen: {unseen}"),
                "name the queues and bindings in declare, or look with `rabbitmqctl list_bindings`",
            ),
        ],
        Err(fault) => vec![Check::fail(
            "exchange",
            text_of(&fault),
            "create it, correct exchange, or name it in declare.exchanges",
        )],
    }
}

/// By the default exchange, the routing key is the queue's name.
async fn queues(amqp: &Amqp, session: &Session) -> Vec<Check> {
    let mut checks = Vec::new();
    for name in amqp.default_exchange_queues() {
        if amqp.topology.queues.contains_key(name) {
            checks.push(Check::ok("queue", format!("{name:?} is declared before the first message")));
            continue;
        }
        checks.push(match declare::find_queue(session, name).await {
            Ok((messages, consumers)) => {
                Check::ok("queue", format!("{name:?} is there: {messages} messages, {consumers} consumers"))
            }
            Err(fault) => Check::fail(
                "queue",
                text_of(&fault),
                "create it, correct routing_key, or name it in declare.queues",
            ),
        });
    }
    if checks.is_empty() {
        let found = "effects name their queue as target: whether it is there is seen when they are sent";
        checks.push(Check::warn("queue", found, "none, if that is meant; else write routing_key"));
    }
    checks
}

fn refused(fault: &Fault) -> Check {
    let (check, remedy) = match fault {
        Fault::Refuses(_) => ("login", "mend url or auth, or give the user the rights for the virtual host"),
        Fault::Away(_) | Fault::Amiss(_) | Fault::Local(_) | Fault::Blocked(_) => (
            "connection",
            "look whether the broker is up, and whether host, port and scheme (amqp or amqps) are right",
        ),
    };
    Check::fail(check, text_of(fault), remedy)
}
