//! One mail over a session: MAIL, RCPT, DATA, the message, the final dot. Each step says what it came to; none is repeated.

use tokio::time::Instant;

use super::{
    reply::Reply,
    session::Session,
    wire::{Lost, Wire},
};

/// What is sent.
pub(super) struct Envelope<'a> {
    pub(super) sender: &'a str,
    pub(super) recipient: &'a str,
    /// Some address needs SMTPUTF8.
    pub(super) utf8: bool,
    /// Whole lines, dots not yet doubled.
    pub(super) message: &'a [u8],
}

/// A step of a mail's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Command {
    Mail,
    Rcpt,
    Data,
    /// The message itself, before its end was written.
    Body,
    /// The final dot: from its first byte on, the server may have the mail.
    Dot,
}

/// How far a mail came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was not begun: the server cannot take it.
    Unfit(String),
    /// The server answered, and that ended it.
    Answered(Command, Reply),
    /// There was no answer to this step.
    Lost(Command, String),
}

/// Sends one mail. `by` ends everything before the final dot, `answer_by` the wait for the answer to it.
pub(super) async fn send(
    session: &mut Session,
    mail: &Envelope<'_>,
    by: Instant,
    answer_by: Instant,
) -> Sent {
    let stuffed = stuffed(mail.message);
    if let Some(limit) = session.capabilities.size
        && u64::try_from(mail.message.len()).is_ok_and(|length| length > limit)
    {
        return Sent::Unfit(format!(
            "the mail has {} bytes, and the server takes at most {limit}: send less, or a link",
            mail.message.len()
        ));
    }
    if mail.utf8 && !session.capabilities.utf8 {
        return Sent::Unfit(
            "an address has letters beyond ASCII, and the server does not offer SMTPUTF8: write an address in ASCII"
                .to_owned(),
        );
    }
    let size = if session.capabilities.size.is_some() {
        format!(" SIZE={}", mail.message.len())
    } else {
        String::new()
    };
    let utf8 = if mail.utf8 { " SMTPUTF8" } else { "" };
    let commands = [
        (Command::Mail, format!("MAIL FROM:<{}>{size}{utf8}", mail.sender)),
        (Command::Rcpt, format!("RCPT TO:<{}>", mail.recipient)),
        (Command::Data, "DATA".to_owned()),
    ];
    let wire = &mut session.wire;
    for (command, line) in commands {
        match wire.ask(&line, by).await {
            Ok(reply) if command == Command::Data && reply.code == 354 => {}
            Ok(reply) if command != Command::Data && reply.is_positive() => {}
            Ok(reply) => return Sent::Answered(command, reply),
            Err(Lost(why)) => return Sent::Lost(command, why),
        }
    }
    if let Err(Lost(why)) = wire.write(&stuffed, by).await {
        return Sent::Lost(Command::Body, why);
    }
    if let Some(sent) = answered_too_early(wire, by).await {
        return sent;
    }
    // A worker that was stopped may go on after its lease has ended: what was ready to be written then must not be.
    if Instant::now() > by {
        return Sent::Lost(Command::Body, "its time was over before the final dot".to_owned());
    }
    // From here on, nobody but the server knows.
    if let Err(Lost(why)) = wire.write(b".\r\n", answer_by).await {
        return Sent::Lost(Command::Dot, why);
    }
    match wire.reply(answer_by).await {
        Ok(reply) => Sent::Answered(Command::Dot, reply),
        Err(Lost(why)) => Sent::Lost(Command::Dot, why),
    }
}

/// A server that gives up in the middle of a message says so, or goes away: without the dot it has no mail.
async fn answered_too_early(wire: &mut Wire, by: Instant) -> Option<Sent> {
    match wire.spoke() {
        Ok(false) => None,
        Ok(true) => Some(match wire.reply(by).await {
            Ok(reply) => Sent::Answered(Command::Body, reply),
            Err(Lost(why)) => Sent::Lost(Command::Body, why),
        }),
        Err(Lost(why)) => Some(Sent::Lost(Command::Body, why)),
    }
}

/// With the dots that begin a line doubled (RFC 5321 §4.5.2). A line begins after LF, whatever is before it.
pub(super) fn stuffed(message: &[u8]) -> Vec<u8> {
    let mut stuffed = Vec::with_capacity(message.len() + message.len() / 64 + 2);
    let mut begins = true;
    for byte in message {
        if begins && *byte == b'.' {
            stuffed.push(b'.');
        }
        stuffed.push(*byte);
        begins = *byte == b'\n';
    }
    if !stuffed.ends_with(b"\r\n") {
        stuffed.extend_from_slice(b"\r\n");
    }
    stuffed
}
