//! What a mail's way shows: the table of RFC 5321 and RFC 1047. Before the final dot nothing was taken over; after it a reply is
//! decisive, and without one nobody knows.

use aftercommit::outcome::{About, Finding, Outcome, Phase, Response};

use super::{
    reply::Reply,
    session::NotOpened,
    transaction::{Command, Sent},
};

impl Command {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Mail => "the sender (MAIL)",
            Self::Rcpt => "the recipient (RCPT)",
            Self::Data => "the message (DATA)",
            Self::Body => "the message before it was whole",
            Self::Dot => "the message",
        }
    }
}

/// No session came about.
pub(super) fn not_opened(failure: &NotOpened) -> Outcome {
    let mut outcome = Outcome::new(Finding::NotApplied, Phase::Connect, failure.why.clone());
    outcome.refuses_us = failure.refuses_us;
    outcome.response = failure.reply.as_ref().map(response);
    outcome
}

/// A mail went so far.
pub(super) fn sent(sent: &Sent) -> Outcome {
    match sent {
        Sent::Unfit(why) => {
            Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, format!("not sent: {why}"))
        }
        Sent::Answered(command, reply) => answered(*command, reply),
        Sent::Lost(Command::Dot, why) => {
            let why =
                format!("the whole message was sent, and then {why}: the server may have taken it over");
            Outcome::new(Finding::Unknown, Phase::Send, why)
        }
        Sent::Lost(command @ (Command::Mail | Command::Rcpt | Command::Data | Command::Body), why) => {
            let why = format!("{why} at {}: without its end the server has no mail", command.in_words());
            Outcome::new(Finding::NotApplied, Phase::Send, why)
        }
    }
}

fn answered(command: Command, reply: &Reply) -> Outcome {
    let at = command.in_words();
    let (finding, what) = if command == Command::Dot && reply.is_positive() {
        (Finding::Applied, "accepted".to_owned())
    } else if reply.is_transient() {
        // RFC 5321 §4.2.1: it did not take the mail, and will not deliver it.
        (Finding::NotApplied, format!("not now, {at}"))
    } else if command < Command::Body && is_about_us(reply.code) {
        (Finding::NotApplied, format!("refused us at {at}"))
    } else if reply.is_permanent() {
        (Finding::Rejected(About::ThisAttempt), format!("refused {at}"))
    } else if command == Command::Dot {
        (Finding::Unknown, format!("answered neither yes nor no to {at}"))
    } else {
        (Finding::NotApplied, format!("answered out of turn to {at}"))
    };
    Outcome {
        refuses_us: command < Command::Body && is_about_us(reply.code),
        response: Some(response(reply)),
        ..Outcome::new(finding, Phase::Done, format!("{what}: {reply}"))
    }
}

/// Authentication required, too weak, failed, or to be encrypted (RFC 4954 §6): whatever the mail.
const fn is_about_us(code: u16) -> bool {
    matches!(code, 530 | 534 | 535 | 538)
}

fn response(reply: &Reply) -> Response {
    Response { status: Some(reply.code), body: reply.text().into_bytes(), truncated: false }
}
