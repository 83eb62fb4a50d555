//! The `aftercommit` binary: reads the command line, runs it, and turns the result into an exit code.

mod cli;
mod demo;
mod telemetry;

fn main() -> std::process::ExitCode {
    cli::main()
}
