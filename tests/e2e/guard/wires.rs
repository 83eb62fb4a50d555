//! Requests in every form that the wire allows, and some that it does not: the same request is the same in any framing, and
//! what did not arrive as a whole did nothing.

use super::{
    client::{Answer, Ask, Exchange, Line, send},
    shop::{REQUEST_LIMIT, Server, Shop},
};
use crate::support::{TestDatabase, on_every_database};

on_every_database!(
    a_request_is_the_same_in_any_framing,
    pipelined_requests_are_answered_in_order_each_once,
    what_does_not_arrive_as_a_whole_does_nothing,
    a_body_above_the_limit_does_nothing
);

/// Says `bytes` on a new connection, and hears one answer.
async fn ask(server: &Server, bytes: impl AsRef<[u8]>) -> Option<Answer> {
    let mut line = Line::open(server.address).await.expect("the server listens");
    // A server that answers early may close before all was written.
    let _early = line.say(bytes).await;
    line.hear().await
}

fn chunked(ask: &Ask, chunks: &[&str], end: &str) -> String {
    let chunks: String = chunks.iter().map(|chunk| format!("{:x};x=y\r\n{chunk}\r\n", chunk.len())).collect();
    format!("{}Transfer-Encoding: chunked\r\n\r\n{chunks}{end}", ask.head("HTTP/1.1"))
}

async fn a_request_is_the_same_in_any_framing(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut server = shop.server(|_| {}).await;
    let order = Ask::order("k", 1500);
    let (start, end) = order.body.split_at(5);
    let old = format!("{}Content-Length: {}\r\n\r\n{}", order.head("HTTP/1.0"), order.body.len(), order.body);
    let kept = old.replacen("\r\n", "\r\nConnection: keep-alive\r\n", 1);
    let forms = [
        String::from_utf8(order.bytes()).expect("text"),
        chunked(&order, &[&order.body], "0\r\n\r\n"),
        chunked(&order, &[start, end], "0\r\n\r\n"),
        chunked(&order, &[start, end], "0\r\nX-Trailer: 1\r\n\r\n"),
        old,
        kept,
    ];
    let mut exchanges = Vec::new();
    for form in &forms {
        let heard = ask(&server, form).await;
        exchanges.push(Exchange { ask: order.clone(), heard });
        assert_eq!(exchanges[exchanges.len() - 1].answer().status, 201, "{form}");
    }
    // Byte by byte, in as many packets.
    let mut line = Line::open(server.address).await.expect("the server listens");
    for byte in order.bytes() {
        line.say([byte]).await.expect("the server reads");
    }
    exchanges.push(Exchange { ask: order.clone(), heard: line.hear().await });
    let evidence = shop.evidence(exchanges).await;
    evidence.assert_kept();
    assert_eq!((evidence.replays(), shop.runs("k")), (forms.len(), 1));
    let fresh = Ask::order("old", 1);
    let form =
        format!("{}Content-Length: {}\r\n\r\n{}", fresh.head("HTTP/1.0"), fresh.body.len(), fresh.body);
    let answer = ask(&server, form).await.expect("HTTP/1.0 is answered");
    assert_eq!(
        (answer.status, answer.has("transfer-encoding")),
        (201, false),
        "chunks are unknown to HTTP/1.0"
    );
    server.is_alive().await;
}

async fn pipelined_requests_are_answered_in_order_each_once(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let server = shop.server(|_| {}).await;
    let keys = ["a", "b", "a", "c", "a", "b", "a", "a"];
    let asks: Vec<Ask> = keys.iter().map(|key| Ask::order(*key, 1)).collect();
    let mut line = Line::open(server.address).await.expect("the server listens");
    line.say(asks.iter().flat_map(Ask::bytes).collect::<Vec<u8>>()).await.expect("the server reads");
    let mut exchanges = Vec::new();
    for ask in asks {
        exchanges.push(Exchange { ask, heard: line.hear().await });
    }
    let replays: Vec<bool> = exchanges.iter().map(|exchange| exchange.answer().is_replay()).collect();
    assert_eq!(replays, [false, false, true, false, true, true, true, true]);
    // A second pipeline whose client closes its side before the first answer, and one whose client is gone.
    let asks: Vec<Ask> = ["d", "e", "d"].iter().map(|key| Ask::order(*key, 1)).collect();
    for listens in [true, false] {
        let mut line = Line::open(server.address).await.expect("the server listens");
        line.say(asks.iter().flat_map(Ask::bytes).collect::<Vec<u8>>()).await.expect("the server reads");
        line.finish().await.expect("it is open");
        for ask in asks.iter().filter(|_| listens) {
            exchanges.push(Exchange { ask: ask.clone(), heard: line.hear().await });
        }
    }
    for ask in &asks {
        exchanges.extend(super::client::insist(server.address, ask).await);
    }
    shop.evidence(exchanges).await.assert_kept();
    assert!(shop.all_runs().values().all(|runs| *runs == 1), "{:?}", shop.all_runs());
}

/// A name, and the bytes that stand for a request.
type Form<'a> = (&'a str, &'a dyn Fn(&Ask) -> String);

/// A client that cut itself off, or wrote nonsense: no order, and its key is free for the whole request.
async fn what_does_not_arrive_as_a_whole_does_nothing(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut server = shop.server(|_| {}).await;
    let cut = |ask: &Ask| {
        format!("{}Content-Length: {}\r\n\r\n{}", ask.head("HTTP/1.1"), ask.body.len(), &ask.body[..7])
    };
    let lines = |ask: &Ask, framing: &str| format!("{}{framing}\r\n\r\n{}", ask.head("HTTP/1.1"), ask.body);
    let forms: [Form<'_>; 9] = [
        ("cut-body", &cut),
        ("cut-head", &|ask| ask.head("HTTP/1.1")),
        ("cut-chunk", &|ask| {
            format!("{}Transfer-Encoding: chunked\r\n\r\nff\r\n{}", ask.head("HTTP/1.1"), ask.body)
        }),
        ("cut-before-the-last-chunk", &|ask| chunked(ask, &[&ask.body], "")),
        ("bad-chunk-size", &|ask| {
            format!("{}Transfer-Encoding: chunked\r\n\r\nzz\r\n{}", ask.head("HTTP/1.1"), ask.body)
        }),
        ("huge-chunk-size", &|ask| {
            format!(
                "{}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
                ask.head("HTTP/1.1"),
                ask.body
            )
        }),
        ("two-lengths", &|ask| lines(ask, "Content-Length: 14\r\nContent-Length: 13")),
        ("negative-length", &|ask| lines(ask, "Content-Length: -1")),
        ("unknown-coding", &|ask| lines(ask, "Transfer-Encoding: gzip")),
    ];
    let mut exchanges = Vec::new();
    for (name, form) in forms {
        let order = Ask::order(name, 1);
        for reset in [false, true] {
            let mut line = Line::open(server.address).await.expect("the server listens");
            let _refused_early = line.say(form(&order)).await;
            if reset {
                line.reset();
                exchanges.push(Exchange { ask: order.clone(), heard: None });
            } else {
                let _gone = line.finish().await;
                exchanges.push(Exchange { ask: order.clone(), heard: line.hear().await });
            }
        }
        assert_eq!((shop.orders(name).await, shop.runs(name)), (0, 0), "{name}");
        let whole = send(server.address, &order).await;
        assert_eq!((whole.answer().status, whole.answer().is_replay()), (201, false), "{name}");
        exchanges.push(whole);
    }
    shop.evidence(exchanges).await.assert_kept();
    server.is_alive().await;
}

async fn a_body_above_the_limit_does_nothing(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut server = shop.server(|_| {}).await;
    let fill = |length: usize| {
        let frame = "{\"amount\":1,\"x\":\"\"}".len();
        format!("{{\"amount\":1,\"x\":\"{}\"}}", "x".repeat(length - frame))
    };
    let mut exchanges = Vec::new();
    for (key, length, status) in
        [("at", REQUEST_LIMIT, 201), ("above", REQUEST_LIMIT + 1, 413), ("far", 40 * REQUEST_LIMIT, 413)]
    {
        let order = Ask::new(key, fill(length));
        assert_eq!(order.body.len(), length);
        let (start, end) = order.body.split_at(length / 2);
        for form in
            [String::from_utf8(order.bytes()).expect("text"), chunked(&order, &[start, end], "0\r\n\r\n")]
        {
            let heard = ask(&server, form).await;
            // Far above, the server may close while the client still writes: then the answer is lost on the way.
            assert!(
                heard.as_ref().map_or(key == "far", |answer| answer.status == status),
                "{key}: {heard:?}"
            );
            exchanges.push(Exchange { ask: order.clone(), heard });
        }
    }
    // The answer comes before the body: nobody is asked to send what will not be read.
    let promised = Ask::order("promised", 1);
    let head = format!("{}Content-Length: 99999999999\r\n\r\n{{", promised.head("HTTP/1.1"));
    let mut line = Line::open(server.address).await.expect("the server listens");
    line.say(head).await.expect("the server reads");
    line.finish().await.expect("it is open");
    let heard = line.hear().await;
    assert!(heard.as_ref().is_none_or(|answer| matches!(answer.status, 400 | 413)), "{heard:?}");
    exchanges.push(Exchange { ask: promised, heard });
    shop.evidence(exchanges).await.assert_kept();
    assert_eq!((shop.runs("at"), shop.runs("above"), shop.runs("far"), shop.runs("promised")), (1, 0, 0, 0));
    server.is_alive().await;
}
