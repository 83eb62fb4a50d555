//! What `downstreams test` shows of a broker, found without any effect.

use std::{collections::BTreeSet, time::Duration};

use aftercommit::check::Check;
use tokio::time::{Instant, timeout_at};

use super::{
    classify::Fault,
    config::Amqp,
    connect::Address,
    declare::{self, NotFound},
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
    let look = async {
        for exchange in exchanges(amqp) {
            checks.extend(look_at_exchange(amqp, &session, exchange).await);
        }
        let queues = queues(amqp);
        for queue in &queues {
            checks.push(look_at_queue(amqp, &session, queue).await);
        }
        if queues.is_empty() && amqp.exchanges().contains(&"") {
            let found = "effects name their queue as target: whether it is there is seen when they are sent";
            checks.push(Check::warn("queue", found, "none, if that is meant; else write routing_key"));
        }
    };
    if timeout_at(deadline, look).await.is_err() {
        let found = "the broker did not say in time what is there";
        checks.push(Check::fail("topology", found, "look at the broker's load"));
    }
    checks
}

/// Every exchange that the configuration names; the default one is always there.
fn exchanges(amqp: &Amqp) -> BTreeSet<&str> {
    let declared = amqp.topology.exchanges.keys().map(String::as_str);
    amqp.exchanges().into_iter().chain(declared).filter(|name| !name.is_empty()).collect()
}

/// Every queue that the configuration names. By the default exchange, the routing key is the queue's name.
fn queues(amqp: &Amqp) -> BTreeSet<&str> {
    let declared = amqp.topology.queues.keys().map(String::as_str);
    amqp.default_exchange_queues().into_iter().chain(declared).collect()
}

async fn look_at_exchange(amqp: &Amqp, session: &Session, name: &str) -> Vec<Check> {
    const WHAT: &str = "exchange";
    let is_declared = amqp.topology.exchanges.contains_key(name);
    let found = match declare::find_exchange(session, name).await {
        Ok(()) if is_declared => {
            Check::ok(WHAT, format!("{name:?} is there; the first message compares its properties"))
        }
        Ok(()) => Check::ok(WHAT, format!("{name:?} is there")),
        Err(NotFound::Missing(_)) if is_declared => {
            let found = format!("{name:?} does not exist yet: it is declared before the first message");
            Check::ok(WHAT, found)
        }
        Err(not_found) => {
            let remedy = "create it, correct exchange, or name it in declare.exchanges";
            return vec![Check::fail(WHAT, Fault::from(not_found).text(), remedy)];
        }
    };
    if amqp.topology.bindings.iter().any(|binding| binding.exchange == name) {
        return vec![found];
    }
    let unseen = format!(
        "whether a queue is bound to {name:?} cannot be seen: a message that no queue is bound for is returned, and its effect fails as unroutable"
    );
    let remedy = "name the queues and bindings in declare, or look with `rabbitmqctl list_bindings`";
    vec![found, Check::warn("binding", unseen, remedy)]
}

async fn look_at_queue(amqp: &Amqp, session: &Session, name: &str) -> Check {
    const WHAT: &str = "queue";
    let is_declared = amqp.topology.queues.contains_key(name);
    match declare::find_queue(session, name).await {
        Ok((messages, consumers)) => {
            let later = if is_declared { "; the first message compares its properties" } else { "" };
            Check::ok(WHAT, format!("{name:?} is there: {messages} messages, {consumers} consumers{later}"))
        }
        Err(NotFound::Missing(_)) if is_declared => Check::ok(
            WHAT,
            format!("{name:?} does not exist yet: it is declared before the first message that needs it"),
        ),
        Err(not_found) => Check::fail(
            WHAT,
            Fault::from(not_found).text(),
            "create it, correct routing_key, or name it in declare.queues",
        ),
    }
}

fn refused(fault: &Fault) -> Check {
    let (check, remedy) = match fault {
        Fault::Refuses(_) => ("login", "mend url or auth, or give the user the rights for the virtual host"),
        Fault::Away(_) | Fault::Amiss(_) | Fault::Local(_) | Fault::Blocked(_) => (
            "connection",
            "look whether the broker is up, and whether host, port and scheme (amqp or amqps) are right",
        ),
    };
    Check::fail(check, fault.text(), remedy)
}
