//! DASH-02: what stands in an address is text on every page, wherever it comes back, and what should be a number and is none is refused.

use aftercommit_dashboard::Role;

use super::{
    super::{
        Site,
        api::{assert_problem, by, failed, worker},
        token,
    },
    site,
};
use crate::support::{TestDatabase, on_every_database};

on_every_database! {
    what_is_no_number_is_refused_on_pages_and_by_the_api,
    nothing_that_is_asked_comes_back_as_markup,
}

const NO_NUMBERS: [&str; 9] =
    ["-1", "0", "1e9", "1.5", "0x10", "NaN", "9223372036854775808", "%22%3E", "1%201"];

async fn what_is_no_number_is_refused_on_pages_and_by_the_api(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    for word in NO_NUMBERS {
        for page in ["effects?before=", "doubt?before=", "audit?before=", "audit?effect=", "effects?q=id:"] {
            let ask = site.ask("GET", &format!("/{page}{word}")).bearer(&token(Role::Viewer)).shown();
            let answer = ask.send().await;
            assert_eq!(answer.status, 400, "{page}{word}: {answer:?}");
            let html = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
            assert!(html && answer.body.contains("<h1"), "a page says so: {page}{word}: {answer:?}");
        }
        for path in [
            "effects?before=",
            "effects?limit=",
            "effects?id=",
            "audit?before=",
            "audit?effect=",
            "bulk?limit=",
        ] {
            let answer = by(&site, Role::Viewer, "GET", &format!("{path}{word}")).send().await;
            assert_problem(&answer, 400, "request-malformed");
        }
        let one = by(&site, Role::Viewer, "GET", &format!("effects/{word}")).send().await;
        assert_problem(&one, 400, "request-malformed");
    }
    // What is one is taken.
    for (path, status) in
        [("effects?before=2", 200), ("doubt?before=2", 200), ("audit?effect=2&before=9", 200)]
    {
        let answer = site.ask("GET", &format!("/{path}")).bearer(&token(Role::Viewer)).shown().send().await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    assert_eq!(by(&site, Role::Viewer, "GET", &format!("effects?id={id}")).send().await.status, 200);
}

/// Where a visitor's own words may stand in what they ask.
async fn nothing_that_is_asked_comes_back_as_markup(db: &TestDatabase) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    let hostile = "%22%3E%3Cscript%3Ewindow.ran=1%3C/script%3E%3Cimg%20src=x%20onerror=window.ran=1%3E";
    let raw = "\"><script>window.ran=1</script><img src=x onerror=window.ran=1>";
    let mut asked = 0;
    let table: Vec<_> =
        site.dashboard.table().iter().filter(|route| route.method == "GET").cloned().collect();
    for route in table.iter().filter(|route| !route.path.ends_with("/events")) {
        let filled = |word: &str| {
            let part = |part: &str| if part.starts_with('{') { word.to_owned() } else { part.to_owned() };
            route.path.split('/').map(part).collect::<Vec<_>>().join("/")
        };
        let names =
            ["q", "sort", "page", "before", "state", "done", "span", "as", "verb", "next", "who", "scope"];
        let queries = names.map(|name| format!("?{name}={hostile}"));
        let mut paths = vec![filled(hostile)];
        paths.extend(queries.iter().map(|query| format!("{}{query}", filled("1"))));
        for path in paths {
            let ask = || site.ask("GET", &path).bearer(&token(Role::Admin)).shown();
            for ask in
                [ask(), ask().cookie(&format!("aftercommit-look={raw}; x={raw}")), ask().with("Referer", raw)]
            {
                is_text(&path, &ask.send().await);
                asked += 1;
            }
        }
    }
    for path in [
        format!("/{hostile}"),
        format!("/nothing/{hostile}?{hostile}={hostile}"),
        format!("/login?next={hostile}"),
    ] {
        is_text(&path, &site.ask("GET", &path).bearer(&token(Role::Admin)).shown().send().await);
        is_text(&path, &site.ask("GET", &path).shown().send().await);
        asked += 2;
    }
    is_text_without_a_session(&site, hostile).await;
    println!("{asked} addresses");
    assert!(asked > 500, "{asked}");
}

fn is_text(path: &str, answer: &super::Answer) {
    assert!(answer.status < 500, "{path}: {answer:?}");
    for markup in ["<script>window", "<img src=x", "onerror=window.ran=1>"] {
        let html = answer.header("content-type").is_some_and(|kind| kind.contains("html"));
        assert!(!html || !answer.body.contains(markup), "{path}: {answer:?}");
    }
    let headers = format!("{:?}", answer.headers);
    assert!(!headers.contains("<script") && !headers.contains("window.ran=1</"), "{path}: {headers}");
}

/// The page to log in keeps where somebody wanted to go.
async fn is_text_without_a_session(site: &Site, hostile: &str) {
    for path in [format!("/effects?q={hostile}"), format!("/?{hostile}"), format!("/effects/{hostile}")] {
        is_text(&path, &site.ask("GET", &path).shown().send().await);
        let form = format!("token={}&next=effects%3Fq%3D{hostile}", token(Role::Viewer));
        is_text(&path, &site.ask("POST", "/login").ours().shown().form(&form).send().await);
        let wrong = format!("token={hostile}&next={hostile}");
        is_text(&path, &site.ask("POST", "/login").ours().shown().form(&wrong).send().await);
    }
}
