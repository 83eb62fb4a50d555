//! SMTP-09: connections between mails.

use aftercommit::outcome::Finding;

use super::{
    MAIL, deliver, effect, served_at,
    server::{Say, Script, Server, say},
};

#[tokio::test]
async fn mails_follow_each_other_over_one_connection() {
    let server = Server::start([Script::default()]).await;
    let served = served_at(server.port, "");
    for _ in 0..5 {
        assert_eq!(deliver(&served, effect(MAIL)).await.finding, Finding::Applied);
    }
    assert_eq!((server.connections(), server.messages().len()), (1, 5));
}

#[tokio::test]
async fn a_connection_that_fell_silent_while_it_was_idle_is_replaced() {
    for rset in [Say::Nothing, Say::Close, Say::Reset, say("421 idle for too long"), say("what?")] {
        let server =
            Server::start([Script { rset: rset.clone(), ..Script::default() }, Script::default()]).await;
        let served = served_at(server.port, "timeout = \"1500ms\"\ndata_timeout = \"2s\"\n");
        for _ in 0..2 {
            let outcome = deliver(&served, effect(MAIL)).await;
            assert_eq!(outcome.finding, Finding::Applied, "{rset:?}: {outcome:?}");
        }
        assert_eq!((server.connections(), server.messages().len()), (2, 2), "{rset:?}");
    }
}

#[tokio::test]
async fn a_connection_on_which_something_failed_is_not_used_again() {
    let broken = Script { mail: say("250-never\r\n250-ends"), ..Script::default() };
    let closing = Script { rcpt: say("421 going down"), ..Script::default() };
    let refusing = Script { rcpt: say("550 no such user"), ..Script::default() };
    for (script, connections) in [(broken, 2), (closing, 2), (refusing, 1)] {
        let server = Server::start([script, Script::default()]).await;
        let served = served_at(server.port, "timeout = \"400ms\"\ndata_timeout = \"2s\"\n");
        assert_ne!(deliver(&served, effect(MAIL)).await.finding, Finding::Applied);
        deliver(&served, effect(MAIL)).await;
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test]
async fn a_dead_server_is_not_called_by_everybody_at_once() {
    let server = Server::start([Script { greeting: Say::Nothing, ..Script::default() }]).await;
    let served = served_at(server.port, "timeout = \"500ms\"\ndata_timeout = \"1s\"\nconcurrency = 100\n");
    let all = futures_util::future::join_all((0..100).map(|_| deliver(&served, effect(MAIL)))).await;
    assert!(all.iter().all(|outcome| outcome.finding == Finding::NotApplied));
    assert!(server.connections() <= 8, "{} connections", server.connections());
}

#[tokio::test]
async fn an_attempt_that_is_dropped_leaves_no_half_used_connection_behind() {
    let stuck = Script { dot: Say::Nothing, ..Script::default() };
    let server = Server::start([stuck, Script::default()]).await;
    let served = served_at(server.port, "timeout = \"3s\"\ndata_timeout = \"30s\"\n");
    {
        let attempt = super::attempt(&served, effect(MAIL), Ok(()));
        let mut dropped = std::pin::pin!(served.downstream.deliver(&attempt));
        loop {
            tokio::select! {
                outcome = &mut dropped => panic!("it was answered: {outcome:?}"),
                () = tokio::task::yield_now() => if !server.messages().is_empty() { break },
            }
        }
    }
    assert_eq!(deliver(&served, effect(MAIL)).await.finding, Finding::Applied);
    assert_eq!((server.connections(), server.messages().len()), (2, 2));
}
