//! `aftercommit profiles`: the contracts that are shipped, what each stands on, and what is not known.

use std::path::PathBuf;

use aftercommit::visible::clean;
use aftercommit_workers::{
    config::ConfigError,
    profiles::{Confidence, Contents, Profile, all, get},
};
use anyhow::Context as _;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Context, Exit, Grid, data, fail, json,
    output::{plural, width, wrapped},
    table, talk,
};

#[derive(Debug, Subcommand)]
pub(crate) enum ProfilesCommand {
    /// List the shipped profiles
    #[command(after_help = "Example:\n  aftercommit profiles list")]
    List,
    /// Print a profile: its contract, what each value stands on, what is not known
    #[command(after_help = "\
Examples:
  aftercommit profiles show stripe-v1
  aftercommit profiles show square-payments --json | jq -r '.open[].decide'")]
    Show {
        /// Its name
        name: String,
    },
    /// Say what a profile lacks: every value needs a dated source, everything unknown an advice
    #[command(after_help = "\
Examples:
  aftercommit profiles check my-vendor.toml
  aftercommit profiles check")]
    Check {
        /// The profile's file; every shipped one where none is given
        file: Option<PathBuf>,
    },
}

/// Runs one of them.
pub(super) fn run(context: &Context, command: &ProfilesCommand) -> anyhow::Result<Exit> {
    match command {
        ProfilesCommand::List => list(context),
        ProfilesCommand::Show { name } => show(context, name),
        ProfilesCommand::Check { file } => check(context, file.as_ref()),
    }
}

fn list(context: &Context) -> anyhow::Result<Exit> {
    let mut grid = Grid::new(&["NAME", "READ", "CONFIDENCE", "WHAT"]).below(&[3]);
    for profile in all() {
        let contents = profile.contents()?;
        if context.json() {
            json::print(&summary(profile.name, &contents))?;
        }
        grid.row(vec![
            table::cell(profile.name),
            table::cell(&contents.date),
            table::cell(contents.confidence().as_str()),
            table::cell(&contents.summary),
        ]);
    }
    if !context.json() {
        data(grid)?;
    }
    Ok(Exit::Ok)
}

fn summary(name: &str, contents: &Contents) -> Value {
    json!({
        "name": name, "summary": contents.summary, "date": contents.date,
        "confidence": contents.confidence().as_str(), "sources": contents.sources(),
    })
}

fn show(context: &Context, name: &str) -> anyhow::Result<Exit> {
    let Some(profile) = get(name) else {
        let names: Vec<&str> = all().iter().map(|profile| profile.name).collect();
        return Err(fail(
            Exit::NotFound,
            format!("there is no profile {name}; shipped are {}", names.join(", ")),
        ));
    };
    let contents = profile.contents()?;
    if context.json() {
        json::print(&whole(profile, &contents)?)?;
    } else {
        data(wrapped(&in_words(profile.name, &contents), width(), 6))?;
    }
    Ok(Exit::Ok)
}

fn whole(profile: &Profile, contents: &Contents) -> anyhow::Result<Value> {
    let facts: Vec<Value> = contents
        .facts
        .iter()
        .map(|fact| {
            json!({
                "about": fact.about, "says": fact.says, "source": fact.source, "date": fact.date,
                "confidence": fact.confidence.as_str(),
            })
        })
        .collect();
    let open: Vec<Value> = contents
        .open
        .iter()
        .map(|open| json!({ "about": open.about, "says": open.says, "decide": open.decide }))
        .collect();
    let contract = toml::from_str::<toml::Table>(profile.text)?.remove("contract");
    let mut whole = summary(profile.name, contents);
    for (key, value) in [
        ("contract", serde_json::to_value(contract)?),
        ("facts", facts.into()),
        ("open", open.into()),
        ("toml", profile.text.into()),
    ] {
        whole[key] = value;
    }
    Ok(whole)
}

fn in_words(name: &str, contents: &Contents) -> String {
    let mut lines = vec![
        format!("{name}: {}", contents.summary),
        format!("Last read {}; confidence {}.", contents.date, contents.confidence().as_str()),
        String::new(),
        "The contract".to_owned(),
    ];
    lines.extend(contents.set().into_iter().map(|(key, value)| format!("  {key} = {value}")));
    lines.extend([String::new(), "What it stands on".to_owned()]);
    for fact in &contents.facts {
        let about = if fact.about.is_empty() { "besides".to_owned() } else { fact.about.join(", ") };
        lines.push(format!("  {about}: {}", fact.says));
        let unused = if fact.confidence == Confidence::Low { ", hence not used" } else { "" };
        lines.push(format!(
            "    {}, {}, confidence {}{unused}",
            fact.source,
            fact.date,
            fact.confidence.as_str()
        ));
    }
    if !contents.open.is_empty() {
        lines.extend([String::new(), "Not known, or yours to decide".to_owned()]);
    }
    for open in &contents.open {
        lines.push(format!("  {}: {}", open.about.join(", "), open.says));
        lines.push(format!("    {}", open.decide));
    }
    lines.join("\n")
}

/// What is wrong with a profile, or missing in it.
struct Checked {
    name: String,
    problems: Vec<String>,
}

impl Checked {
    fn of(name: &str, text: &str) -> Self {
        let unreadable = |problems: Vec<ConfigError>| problems.iter().map(ToString::to_string).collect();
        let problems = match Contents::read(name, text) {
            Ok(contents) => contents.lacks(),
            Err(problems) => unreadable(problems),
        };
        Self { name: name.to_owned(), problems }
    }
}

fn check(context: &Context, file: Option<&PathBuf>) -> anyhow::Result<Exit> {
    let checked = match file {
        None => all().iter().map(|profile| Checked::of(profile.name, profile.text)).collect(),
        Some(path) => {
            let name = path.display().to_string();
            let text =
                std::fs::read_to_string(path).with_context(|| format!("reading the profile {name}"))?;
            vec![Checked::of(&name, &text)]
        }
    };
    let mut exit = Exit::Ok;
    for profile in &checked {
        if !profile.problems.is_empty() {
            exit = Exit::Usage;
        }
        if context.json() {
            json::print(&json!({
                "profile": profile.name, "ok": profile.problems.is_empty(), "problems": profile.problems,
            }))?;
        } else if profile.problems.is_empty() {
            talk!("{}: complete", clean(&profile.name));
        } else {
            for problem in &profile.problems {
                talk!("{}: {}", clean(&profile.name), clean(problem));
            }
            let count = u64::try_from(profile.problems.len()).unwrap_or(u64::MAX);
            talk!("{}: {}", clean(&profile.name), plural(count, "problem"));
        }
    }
    Ok(exit)
}
