//! What a mail's way shows: the table of RFC 5321 and RFC 1047. Before the final dot nothing was taken over; after it a reply is
//! decisive, and without one nobody knows.

use aftercommit::outcome::{About, Finding, Outcome, Phase, Response};

use super::{
    check,
    reply::Reply,
    session::{NotOpened, Step},
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
    let next = match (failure.step, &failure.reply) {
        (Step::Greeting | Step::Hello | Step::Auth, Some(_)) => format!("; {}", check::remedy(failure.step)),
        (Step::Greeting | Step::Hello | Step::Auth, None) if !failure.refuses_us => {
            "; look at the server's load and log".to_owned()
        }
        // These say it themselves.
        (Step::Connect | Step::Greeting | Step::Hello | Step::Tls | Step::Auth, _) => String::new(),
    };
    let why = format!("{}{next}", failure.why);
    let mut outcome = Outcome::new(Finding::NotApplied, Phase::Connect, why);
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
            let why = format!(
                "{why} after the whole message was sent: the server may have taken it over; look for its Message-ID in the server's log"
            );
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
    let (finding, what, next) = if command == Command::Dot && reply.is_positive() {
        (Finding::Applied, "accepted".to_owned(), "")
    } else if reply.is_transient() {
        // RFC 5321 §4.2.1: it did not take the mail, and will not deliver it.
        (Finding::NotApplied, format!("not now, {at}"), "; it takes it later, or its operator says why not")
    } else if command < Command::Body && is_about_us(reply.code) {
        (Finding::NotApplied, format!("refused us at {at}"), "; correct auth or tls")
    } else if reply.is_permanent() {
        (Finding::Rejected(About::ThisAttempt), format!("refused {at}"), after_refusal(command))
    } else if command == Command::Dot {
        let next = "; look for its Message-ID in the server's log";
        (Finding::Unknown, format!("answered neither yes nor no to {at}"), next)
    } else {
        (Finding::NotApplied, format!("answered out of turn to {at}"), "; look what answers there")
    };
    Outcome {
        refuses_us: command < Command::Body && is_about_us(reply.code),
        response: Some(response(reply)),
        ..Outcome::new(finding, Phase::Done, format!("{what}: {reply}{next}"))
    }
}

/// What to do once the server refused for good.
const fn after_refusal(command: Command) -> &'static str {
    match command {
        Command::Mail => "; correct from, or have the server take this sender",
        Command::Rcpt => "; correct the address, in a new effect",
        Command::Data | Command::Body | Command::Dot => {
            "; correct the mail, in a new effect, or ask the server's operator why"
        }
    }
}

/// Authentication required, too weak, failed, or to be encrypted (RFC 4954 §6): whatever the mail.
const fn is_about_us(code: u16) -> bool {
    matches!(code, 530 | 534 | 535 | 538)
}

fn response(reply: &Reply) -> Response {
    Response { status: Some(reply.code), body: reply.text().into_bytes(), truncated: false }
}
