//! All that Debian 12 links with libibverbs or librdmacm loads on urxe, with every symbol and version.

use integration_tests::{Elf, Packages};

/// Packages that `.ci/run` installs.
const INSTALLED: [&str; 5] = ["ibverbs-utils", "libucx0", "perftest", "python3-pyverbs", "qperf"];

fn check(files: &[Elf], packages: &Packages) {
    let mut wrong = Vec::new();
    let mut symbols = 0;
    for elf in files {
        match elf.check(packages) {
            Ok(()) => symbols += elf.needs.len(),
            Err(error) => wrong.push(format!("{}: {error}", elf.file)),
        }
    }
    println!("{} of {} files load: {symbols} symbols", files.len() - wrong.len(), files.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "the list is of amd64")]
fn what_is_installed_loads() {
    let wanted: Vec<_> = Elf::all();
    let wanted: Vec<_> = wanted.iter().filter(|elf| INSTALLED.contains(&elf.package)).collect();
    assert_eq!(wanted.len(), 33);
    let files: Vec<_> = wanted.iter().map(|elf| (elf.file, elf.package)).collect();
    let Some(packages) = Packages::find("what_is_installed_loads", &files) else { return };
    // And what else there is by chance.
    let there = |elf: &Elf| packages.path(elf.file).exists();
    check(&Elf::all().into_iter().filter(there).collect::<Vec<_>>(), &packages);
}

/// All 116: `integration-tests/all-elfs` fetches the packages for it.
#[test]
#[ignore = "needs 30 packages: integration-tests/all-elfs"]
fn every_file_loads() {
    let all = Elf::all();
    let files: Vec<_> = all.iter().map(|elf| (elf.file, elf.package)).collect();
    let packages = Packages::find("every_file_loads", &files);
    check(&all, &packages.expect("all of them are at hand"));
}
