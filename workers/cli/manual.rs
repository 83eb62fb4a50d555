//! `completions` and `man`: what the command line says of itself, for shells and for `man`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Context, Exit, data, output::plural, talk};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit completions bash > /etc/bash_completion.d/aftercommit
  aftercommit completions zsh > ~/.zfunc/_aftercommit
  aftercommit completions fish > ~/.config/fish/completions/aftercommit.fish")]
pub(crate) struct CompletionsArgs {
    /// For this shell
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit man | man -l -
  aftercommit man --into /usr/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write a page per command into this folder
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

/// `completions`.
pub(super) fn completions(context: &Context, args: &CompletionsArgs) -> anyhow::Result<Exit> {
    context.refuse_json("`completions` prints a shell script")?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "aftercommit", &mut script);
    data(String::from_utf8(script)?.trim_end())?;
    Ok(Exit::Ok)
}

/// `man`.
pub(super) fn man(context: &Context, args: &ManArgs) -> anyhow::Result<Exit> {
    context.refuse_json("`man` prints a manual page")?;
    let Some(folder) = &args.into else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        data(String::from_utf8(page)?.trim_end())?;
        return Ok(Exit::Ok);
    };
    let place = || format!("writing manual pages into {}", folder.display());
    std::fs::create_dir_all(folder).with_context(place)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(place)?;
    let pages = std::fs::read_dir(folder).with_context(place)?.count();
    talk!("{} in {}.", plural(u64::try_from(pages).unwrap_or(0), "page"), folder.display());
    Ok(Exit::Ok)
}
