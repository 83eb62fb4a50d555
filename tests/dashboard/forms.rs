//! Pages and their forms, as a browser without scripts asks for them and sends them.

use aftercommit_dashboard::Role;

use super::{Answer, Site, token};

/// Asks for a page as an operator's browser does.
pub(super) async fn page(site: &Site, path: &str) -> Answer {
    site.ask("GET", &format!("/{path}")).bearer(&token(Role::Operator)).shown().send().await
}

/// Sends a form as an operator's browser does.
pub(super) async fn send(site: &Site, path: &str, pairs: &[(String, String)]) -> Answer {
    let ask = site.ask("POST", &format!("/{path}")).bearer(&token(Role::Operator)).ours().shown();
    ask.form(&encoded(pairs)).send().await
}

fn encoded(pairs: &[(String, String)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// What the form of a page sends that nobody types.
pub(super) fn form(page: &Answer, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let (_, form) = page
        .body
        .split_once("<form class=\"form\" method=\"post\"")
        .unwrap_or_else(|| panic!("no form: {page:?}"));
    let (form, _) = form.split_once("</form>").expect("it ends");
    let value = |input: &str, name: &str| {
        let (_, rest) = input.split_once(&format!("{name}=\"")).expect("it is there");
        let value = rest.split('"').next().expect("it ends");
        value.replace("&#34;", "\"").replace("&quot;", "\"").replace("&#60;", "<").replace("&#62;", ">")
    };
    let inputs = form.split("<input type=\"hidden\" ").skip(1);
    let sent = inputs.map(|input| (value(input, "name"), value(input, "value")));
    sent.chain(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))).collect()
}

pub(super) fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Where an answer leads.
pub(super) fn to(answer: &Answer) -> &str {
    assert_eq!(answer.status, 303, "{answer:?}");
    answer.header("location").expect("it leads somewhere")
}
