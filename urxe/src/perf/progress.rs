//! What is being done, on a terminal: results go elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::load::{Kind, Load};
use super::report::bytes;

/// How often the bar is drawn anew.
const TICK: Duration = Duration::from_millis(500);

/// A bar on standard error, if that is a terminal.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Of so many steps.
    pub(super) fn new(steps: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Goes on to the next step, which measures this.
    pub(super) fn step(&self, load: &Load) {
        let kind = match load.kind {
            Kind::Bandwidth => "bandwidth",
            Kind::Latency => "latency",
        };
        let (service, operation) = (load.service.name(), load.operation.name());
        self.say(format!("{service} {operation} {kind} {}", bytes(load.size)));
    }

    /// Goes on to the next step.
    pub(super) fn say(&self, what: String) {
        self.0.set_message(what);
        self.0.inc(1);
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
