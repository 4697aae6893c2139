//! A group of programs: each is run where it should, and has a row.

use std::fmt::Write;

use integration_tests::{Case, Ends, Packages, Place};
use testkit::netns::{Joined, Namespace, VethOptions};

use crate::PROGRAMS;

/// A program, where it is run, and what tells that it went well.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) on_veth: bool,
    /// Whether what was printed is right.
    pub(crate) judge: fn(&Ends) -> bool,
}

/// Runs all of a group, and checks its section.
pub(crate) fn check(title: &str, note: &str, packages: &Packages, rows: &[Row]) {
    let namespace = Namespace::new("programs").expect("a namespace can be made");
    let joined = Joined::new(VethOptions::default()).expect("two namespaces can be made");
    let mut text = format!("{note}\n\n| program | options | lo | veth |\n|---|---|---|---|\n");
    let mut wrong = Vec::new();
    for row in rows {
        let mut play = |place| {
            let seen = row.play(place, packages);
            seen.unwrap_or_else(|why| {
                wrong.push(format!("{} with {}: {why}", row.case, place.device()));
                "no".into()
            })
        };
        let lo = play(Place::Loopback(&namespace));
        let veth = if row.on_veth { play(Place::Veth(&joined)) } else { String::new() };
        let Case { program, options, environment, .. } = &row.case;
        let shown = environment.iter().filter(|(name, _)| name == "UCX_TLS");
        let shown = shown.map(|(name, value)| format!("{name}={value} ")).collect::<String>();
        let options = shown + options;
        let options = options.trim();
        let options = if options.is_empty() { String::new() } else { format!("`{options}`") };
        writeln!(text, "| {program} | {options} | {lo} | {veth} |").expect("to memory");
    }
    assert!(wrong.is_empty(), "{} runs went wrong:\n{}", wrong.len(), wrong.join("\n"));
    PROGRAMS.check(title, text);
}

/// Runs all, and returns how many runs it were.
///
/// # Panics
///
/// With all that went wrong, when something did.
pub(crate) fn play_all(packages: &Packages, rows: &[Row]) -> usize {
    let namespace = Namespace::new("programs").expect("a namespace can be made");
    let joined = Joined::new(VethOptions::default()).expect("two namespaces can be made");
    let (mut runs, mut wrong) = (0, Vec::new());
    for row in rows {
        let veth = row.on_veth.then_some(Place::Veth(&joined));
        for place in [Some(Place::Loopback(&namespace)), veth].into_iter().flatten() {
            runs += 1;
            if let Err(why) = row.play(place, packages) {
                let told = format!("{} with {}: {why}", row.case, place.device());
                eprintln!("{told}");
                wrong.push(told);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {runs} runs went wrong:\n{}", wrong.len(), wrong.join("\n"));
    runs
}

impl Row {
    /// A program that is run on one host alone.
    pub(crate) fn new(case: Case, judge: fn(&Ends) -> bool) -> Self {
        Self { case, on_veth: false, judge }
    }

    /// What the table says of a run, or what was not as it should be.
    fn play(&self, place: Place<'_>, packages: &Packages) -> Result<String, String> {
        let seen = match self.case.run(place, packages) {
            Ok(ends) if (self.judge)(&ends) => Ok(()),
            Ok(Ends { client, server }) => Err(format!("wrong output:\n{client}\n{server}")),
            Err(failure) => Err(failure.to_string()),
        };
        match (seen, self.case.missing) {
            (Ok(()), None) => Ok("yes".into()),
            (Err(why), Some(words)) if why.contains(words) => Ok(format!("no: {words}")),
            (Ok(()), Some(words)) => Err(format!("it runs, though it should say {words:?}")),
            (Err(why), _) => Err(why),
        }
    }
}
