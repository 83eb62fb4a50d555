//! Trap T4, T17; cases SMTP-01, SMTP-07: the table of what each point of failure shows.

use aftercommit::{
    downstream::Closed,
    outcome::{About, Finding, Outcome, Phase},
};

use super::{
    MAIL, attempt, deliver, deliver_to, effect, served_at,
    server::{Say, Script, Server, say},
};

const REJECTED: Finding = Finding::Rejected(About::ThisAttempt);

async fn outcome_of(script: Script) -> Outcome {
    deliver_to(&Server::start([script]).await, MAIL).await
}

fn shown(outcome: &Outcome) -> (Finding, Phase, bool) {
    (outcome.finding, outcome.phase, outcome.refuses_us)
}

#[tokio::test]
async fn an_accepted_mail_is_applied_and_the_server_s_words_are_kept() {
    let outcome = outcome_of(Script::default()).await;
    assert_eq!(shown(&outcome), (Finding::Applied, Phase::Done, false), "{outcome:?}");
    assert_eq!(outcome.status(), Some(250));
    assert!(outcome.reason.contains("queued as 4711"), "{outcome:?}");
}

#[tokio::test]
async fn what_fails_before_a_session_stands_was_not_applied() {
    let one = |change: fn(&mut Script)| {
        let mut script = Script::default();
        change(&mut script);
        script
    };
    let unreachable = served_at(1, "");
    let outcome = deliver(&unreachable, effect(MAIL)).await;
    assert_eq!(shown(&outcome), (Finding::NotApplied, Phase::Connect, false), "{outcome:?}");
    for (script, refuses_us) in [
        (one(|script| script.greeting = say("421 busy")), false),
        (one(|script| script.greeting = say("554 no service for you")), true),
        (one(|script| script.greeting = Say::Close), false),
        (one(|script| script.greeting = Say::Nothing), false),
        (one(|script| script.greeting = say("HTTP/1.1 400 Bad Request")), false),
        (one(|script| script.ehlo = Say::Close), false),
        (one(|script| script.ehlo = say("421 later")), false),
    ] {
        let why = format!("{script:?}");
        let outcome = outcome_of(script).await;
        assert_eq!(shown(&outcome), (Finding::NotApplied, Phase::Connect, refuses_us), "{why}\n{outcome:?}");
    }
}

#[tokio::test]
async fn a_reply_to_a_command_is_decisive() {
    let change = |command: &str, reply: &str| {
        let mut script = Script::default();
        match command {
            "MAIL" => script.mail = say(reply),
            "RCPT" => script.rcpt = say(reply),
            "DATA" => script.data = say(reply),
            _ => script.dot = say(reply),
        }
        script
    };
    for (command, reply, finding, refuses_us) in [
        ("MAIL", "451 try later", Finding::NotApplied, false),
        ("MAIL", "421 closing", Finding::NotApplied, false),
        ("MAIL", "530 authentication required", Finding::NotApplied, true),
        ("MAIL", "553 sender not allowed", REJECTED, false),
        ("RCPT", "450 greylisted", Finding::NotApplied, false),
        ("RCPT", "452 4.2.2 full", Finding::NotApplied, false),
        ("RCPT", "550 5.1.1 no such user", REJECTED, false),
        ("RCPT", "550 5.7.1 relaying denied", REJECTED, false),
        ("RCPT", "552 5.2.2 mailbox full", REJECTED, false),
        ("DATA", "451 not now", Finding::NotApplied, false),
        ("DATA", "554 no valid recipients", REJECTED, false),
        ("DATA", "250 what data?", Finding::NotApplied, false),
        ("dot", "451 local error", Finding::NotApplied, false),
        ("dot", "421 closing", Finding::NotApplied, false),
        ("dot", "554 5.7.1 spam", REJECTED, false),
        ("dot", "354 go on?", Finding::Unknown, false),
    ] {
        let outcome = outcome_of(change(command, reply)).await;
        assert_eq!(shown(&outcome), (finding, Phase::Done, refuses_us), "{command} {reply}: {outcome:?}");
        assert_eq!(outcome.status(), reply[..3].parse().ok(), "{command} {reply}");
        assert!(outcome.reason.contains(&reply[4..]), "the server's words: {outcome:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_before_the_final_dot_carried_no_mail() {
    for step in [Say::Close, Say::Reset, Say::Nothing] {
        for command in ["MAIL", "RCPT", "DATA", "body"] {
            let mut script = Script::default();
            match command {
                "MAIL" => script.mail = step.clone(),
                "RCPT" => script.rcpt = step.clone(),
                "DATA" => script.data = step.clone(),
                _ if matches!(step, Say::Nothing) => continue,
                _ => script.body = Some(step.clone()),
            }
            let server = Server::start([script]).await;
            let served = served_at(server.port, "timeout = \"400ms\"\ndata_timeout = \"10s\"\n");
            // Larger than what the network takes without a reader.
            let text = "all work and no play\\n".repeat(40_000);
            let mail = format!(r#"{{"from":"a@shop.test","to":"b@shop.test","text":"{text}"}}"#);
            let outcome = deliver(&served, effect(&mail)).await;
            assert_eq!(outcome.finding, Finding::NotApplied, "{command} {step:?}: {outcome:?}");
            assert!(server.messages().is_empty());
        }
    }
}

/// A worker that is stopped beyond its lease finds the answer to DATA when it goes on, and must not end the mail.
#[tokio::test]
async fn a_mail_whose_time_is_over_gets_no_final_dot() {
    let data = Say::Standstill(b"354 go on\r\n".to_vec(), std::time::Duration::from_millis(900));
    let server = Server::start([Script { data, ..Script::default() }]).await;
    let served = served_at(server.port, "timeout = \"500ms\"\ndata_timeout = \"10s\"\n");
    let outcome = deliver(&served, effect(MAIL)).await;
    assert_eq!(outcome.finding, Finding::NotApplied, "{outcome:?}");
    assert!(server.commands().iter().any(|command| command.starts_with("DATA")), "it came that far");
    assert!(server.messages().is_empty());
}

/// SMTP-01.
#[tokio::test]
async fn without_an_answer_after_the_final_dot_nobody_knows() {
    for step in [Say::Close, Say::Reset, Say::Nothing, Say::Bytes(b"25".to_vec()), say("no code at all")] {
        let server = Server::start([Script { dot: step.clone(), ..Script::default() }]).await;
        let outcome = deliver_to(&server, MAIL).await;
        assert_eq!(outcome.finding, Finding::Unknown, "{step:?}: {outcome:?}");
        assert!(
            outcome.phase.may_have_reached() && outcome.reason.contains("may have taken it over"),
            "{outcome:?}"
        );
        assert_eq!(server.messages().len(), 1, "it was sent once: {step:?}");
    }
}

/// Trap T17: the answer to the final dot has a time of its own.
#[tokio::test]
async fn the_answer_to_the_final_dot_is_waited_for_longer_than_the_rest_may_take() {
    let server = Server::start([Script { dot: Say::Nothing, ..Script::default() }]).await;
    let served = served_at(server.port, "timeout = \"300ms\"\ndata_timeout = \"1500ms\"\n");
    assert_eq!(served.terms.timeout.as_millis(), 1800);
    assert!(served.lease >= served.terms.timeout + std::time::Duration::from_secs(2));
    let begun = tokio::time::Instant::now();
    let outcome = deliver(&served, effect(MAIL)).await;
    assert_eq!(outcome.finding, Finding::Unknown, "{outcome:?}");
    assert!(begun.elapsed().as_millis() >= 1500, "it was given up after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_mail_that_may_not_begin_is_not_sent() {
    let server = Server::start([Script::default()]).await;
    let served = served_at(server.port, "");
    let outcome = served.downstream.deliver(&attempt(&served, effect(MAIL), Err(Closed::Held))).await;
    assert_eq!(shown(&outcome), (Finding::NotApplied, Phase::Connect, false));
    assert!(!server.commands().iter().any(|command| command.starts_with("MAIL")));
}

#[tokio::test]
async fn a_server_that_takes_only_smaller_mails_gets_none() {
    let ehlo = say("250-shop.test\r\n250 SIZE 100");
    let server = Server::start([Script { ehlo, ..Script::default() }]).await;
    let outcome = deliver_to(&server, MAIL).await;
    assert_eq!((outcome.finding, outcome.phase), (REJECTED, Phase::Render), "{outcome:?}");
    assert!(outcome.reason.starts_with("not sent: the mail has "), "{outcome:?}");
    assert!(!server.commands().iter().any(|command| command.starts_with("MAIL")));
}

#[tokio::test]
async fn letters_beyond_ascii_need_a_server_that_offers_them() {
    let mail = r#"{"from":"a@shop.test","to":"jürgen@shop.test","text":"x"}"#;
    let server = Server::start([Script { ehlo: say("250 shop.test"), ..Script::default() }]).await;
    let outcome = deliver_to(&server, mail).await;
    assert_eq!((outcome.finding, outcome.phase), (REJECTED, Phase::Render), "{outcome:?}");
    let server = Server::start([Script::default()]).await;
    assert_eq!(deliver_to(&server, mail).await.finding, Finding::Applied);
    let commands = server.commands();
    assert!(
        commands
            .iter()
            .any(|line| line.starts_with("MAIL FROM:<a@shop.test> SIZE=") && line.ends_with(" SMTPUTF8")),
        "{commands:?}"
    );
    assert!(commands.contains(&"RCPT TO:<jürgen@shop.test>".to_owned()), "{commands:?}");
    // A domain does not: it travels as punycode.
    let server = Server::start([Script { ehlo: say("250 shop.test"), ..Script::default() }]).await;
    let mail = r#"{"from":"a@shop.test","to":"ann@bücher.test","text":"x"}"#;
    assert_eq!(deliver_to(&server, mail).await.finding, Finding::Applied);
    assert!(server.commands().contains(&"RCPT TO:<ann@xn--bcher-kva.test>".to_owned()));
}

#[tokio::test]
async fn an_old_server_that_knows_only_helo_is_sent_to() {
    let server = Server::start([Script { ehlo: say("250 shop.test"), ..Script::default() }]).await;
    assert_eq!(deliver_to(&server, MAIL).await.finding, Finding::Applied);
    let refusing = Script { ehlo: say("502 what?"), ..Script::default() };
    let outcome = outcome_of(refusing).await;
    assert_eq!(shown(&outcome), (Finding::NotApplied, Phase::Connect, true), "{outcome:?}");
}
