//! `urxe run`: the program is its own, and what cannot run on urxe is told before it is run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration_tests::{compile, run_under, start_under, urxe_run};
use rustix::fs::{XattrFlags, setxattr};
use testkit::binary::urxe_binary;
use testkit::left_out::{left_out, missing};
use testkit::netns::{Namespace, with_namespaces};
use testkit::process::{self, Finished, is_installed};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);
/// The user nobody, and its group, of most distributions.
const NOBODY: u32 = 65534;
const MAIN: &str = "int main(void) { return 3; }";

/// Checks that a program was refused with this status, and that the reason has these words.
fn assert_refused(seen: &Finished, status: i32, words: &[&str]) {
    assert_eq!(seen.status.code(), Some(status), "{seen}");
    assert!(seen.stderr.starts_with("urxe run: "), "{seen}");
    for word in words {
        assert!(seen.stderr.contains(word), "{word} is not in: {seen}");
    }
    assert_eq!(seen.stdout, "", "{seen}");
}

fn script(folder: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = folder.file(name);
    fs::write(&path, text).expect("a file can be written");
    make_executable(&path, 0o755);
    path
}

fn make_executable(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn the_exit_status_is_the_programs() {
    let seen = run_under(["sh", "-c", "echo out; echo err >&2; exit 7"]).unwrap();
    assert_eq!(seen.status.code(), Some(7), "{seen}");
    assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("out\n", "err\n"));
    let seen = run_under(["--", "sh", "-c", "kill -SEGV $$"]).unwrap();
    assert_eq!(seen.status.signal(), Some(11), "{seen}");
}

#[test]
fn signals_reach_the_program() {
    let mut running =
        start_under(["sh", "-c", "trap 'kill $!; exit 5' INT; sleep 60 & echo ready; wait"])
            .unwrap();
    running.wait_for_text("ready", LIMIT).unwrap();
    running.interrupt().unwrap();
    let seen = running.wait(LIMIT).unwrap();
    assert_eq!(seen.status.code(), Some(5), "{seen}");

    let mut running = start_under(["sh", "-c", "echo ready; exec sleep 60"]).unwrap();
    running.wait_for_text("ready", LIMIT).unwrap();
    running.interrupt().unwrap();
    assert_eq!(running.wait(LIMIT).unwrap().status.signal(), Some(2));
}

#[test]
fn the_name_and_arguments_are_as_given() {
    let seen = run_under(["sh", "-c", "echo \"$0|$1|$2\"", "--pcap", "--help", ""]).unwrap();
    assert_eq!(seen.stdout, "--pcap|--help|\n", "{seen}");
    let seen = run_under(["cat", "/proc/self/cmdline"]).unwrap();
    assert_eq!(seen.stdout, "cat\0/proc/self/cmdline\0", "{seen}");
}

#[test]
fn a_program_that_is_not_there_is_told() {
    let scratch = Scratch::new("run-missing").unwrap();
    let missing = run_under(["no-such-program"]).unwrap();
    assert_refused(&missing, 127, &["no-such-program", "PATH"]);
    assert_refused(&run_under(["./no-such-program"]).unwrap(), 127, &["./no-such-program"]);
    assert_refused(&run_under([scratch.path()]).unwrap(), 126, &["is a folder"]);
    let plain = script(&scratch, "plain", "#!/bin/sh\n");
    make_executable(&plain, 0o644);
    assert_refused(&run_under([&plain]).unwrap(), 126, &["plain may not be executed"]);
}

#[test]
fn a_static_program_is_told_and_can_be_forced() {
    let scratch = Scratch::new("run-static").unwrap();
    let Some(program) = compile(&scratch, "static", MAIN, &["-static"]).unwrap() else { return };
    let seen = run_under([&program]).unwrap();
    assert_refused(&seen, 126, &["static is a static program", "--force"]);
    let seen = run_under([Path::new("--force"), &program]).unwrap();
    assert_eq!((seen.status.code(), seen.stderr.as_str()), (Some(3), ""));
    let pie = compile(&scratch, "static-pie", MAIN, &["-static-pie"]).unwrap().unwrap();
    assert_refused(&run_under([&pie]).unwrap(), 126, &["static program"]);
}

#[test]
fn a_privileged_program_is_told() {
    let scratch = Scratch::new("run-setuid").unwrap();
    let Some(program) = compile(&scratch, "privileged", MAIN, &[]).unwrap() else { return };
    assert_eq!(run_under([&program]).unwrap().status.code(), Some(3));
    // Its own user's and group's program gets nothing by it, and the loader treats it as any other.
    make_executable(&program, 0o6755);
    assert_eq!(run_under([&program]).unwrap().status.code(), Some(3));
    if chown(&program, Some(NOBODY), None).is_err() {
        // Not root: then a program of root's does.
        let su = run_under(["su", "--version"]).unwrap();
        assert_refused(&su, 126, &["su is setuid", "LD_LIBRARY_PATH"]);
        return;
    }
    // A change of the owner clears the bits.
    make_executable(&program, 0o4755);
    let seen = run_under([&program]).unwrap();
    assert_refused(&seen, 126, &["privileged is setuid", "LD_LIBRARY_PATH", "sudo urxe run"]);
    chown(&program, Some(0), Some(NOBODY)).unwrap();
    make_executable(&program, 0o2755);
    assert_refused(&run_under([&program]).unwrap(), 126, &["privileged is setgid"]);
    // Without the group's right to execute it, the bit means another thing (inode(7)).
    make_executable(&program, 0o2705);
    assert_eq!(run_under([&program]).unwrap().status.code(), Some(3));
}

/// A file's capabilities, as the kernel keeps them (`struct vfs_cap_data`, version 2): that to take
/// ports below 1024, at once.
fn file_capabilities() -> [u8; 20] {
    const VERSION_2_AND_EFFECTIVE: u32 = 0x0200_0001;
    const NET_BIND_SERVICE: u32 = 1 << 10;
    let words = [VERSION_2_AND_EFFECTIVE, NET_BIND_SERVICE, 0, 0, 0];
    let mut bytes = [0; 20];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn a_program_with_file_capabilities_is_told() {
    let scratch = Scratch::new("run-capabilities").unwrap();
    let Some(program) = compile(&scratch, "capable", MAIN, &[]).unwrap() else { return };
    let name = "security.capability";
    if setxattr(&program, name, &file_capabilities(), XattrFlags::empty()).is_err() {
        left_out("file capabilities: only root may give some, where files have attributes");
        return;
    }
    // Root has them all: then it is a program as any other.
    assert_eq!(run_under([&program]).unwrap().status.code(), Some(3));
    // Another user need not be able to reach the command where cargo has put it.
    let command = scratch.file("urxe");
    fs::copy(urxe_binary(), &command).unwrap();
    // It looks for its library, but never loads it.
    fs::write(scratch.file("libibverbs_abi.so"), "").unwrap();
    let mut run = Command::new(command);
    run.arg("run").arg(&program).uid(NOBODY).gid(NOBODY).current_dir("/");
    let seen = process::run("urxe run", &mut run, LIMIT).unwrap();
    assert_refused(&seen, 126, &["capable has file capabilities", "getcap", "LD_LIBRARY_PATH"]);
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let scratch = Scratch::new("run-script").unwrap();
    let fine = script(&scratch, "fine", "#! /bin/sh -e\necho \"$0\"; exit 4\n");
    let seen = run_under([&fine]).unwrap();
    assert_eq!((seen.status.code(), seen.stdout.trim_end()), (Some(4), fine.to_str().unwrap()));
    let by_env = script(&scratch, "by-env", "#!/usr/bin/env sh\nexit 4\n");
    assert_eq!(run_under([&by_env]).unwrap().status.code(), Some(4));

    let lost = script(&scratch, "lost", "#!/no/such/interpreter\n");
    assert_refused(&run_under([&lost]).unwrap(), 126, &["script", "lost", "/no/such/interpreter"]);
    let lost = script(&scratch, "lost", "#!/usr/bin/env no-such-program\n");
    assert_refused(&run_under([&lost]).unwrap(), 127, &["no-such-program in PATH"]);
    let nothing = script(&scratch, "nothing", "exit 4\n");
    assert_refused(&run_under([&nothing]).unwrap(), 126, &["nothing", "#!"]);
    let endless = scratch.file("endless");
    let endless = script(&scratch, "endless", &format!("#!{}\n", endless.display()));
    assert_refused(&run_under([&endless]).unwrap(), 126, &["endless", "more than 5 others"]);

    let Some(program) = compile(&scratch, "static", MAIN, &["-static"]).unwrap() else { return };
    let script = script(&scratch, "of-static", &format!("#!{}\n", program.display()));
    assert_refused(&run_under([&script]).unwrap(), 126, &["static is a static program"]);
}

#[test]
fn a_program_of_another_machine_is_told() {
    let scratch = Scratch::new("run-machine").unwrap();
    let mut header = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\0\0";
    let other: (u16, &str) =
        if cfg!(target_arch = "s390x") { (62, "x86-64") } else { (22, "S/390") };
    header[18..].copy_from_slice(&other.0.to_le_bytes());
    let program = script(&scratch, "foreign", "");
    fs::write(&program, header).unwrap();
    let seen = run_under([&program]).unwrap();
    assert_refused(&seen, 126, &["foreign is built for another machine", other.1]);
    // The same processor with another word size.
    let own = fs::read("/bin/sh").unwrap();
    let narrow = [&own[..4], &[1], &own[5..20]].concat();
    fs::write(&program, narrow).unwrap();
    assert_refused(
        &run_under([&program]).unwrap(),
        126,
        &["another machine", "32 bits", "64 bits"],
    );
    fs::write(&program, &own[..100]).unwrap();
    assert_refused(&run_under([&program]).unwrap(), 126, &["cannot read", "foreign"]);
}

#[test]
fn a_program_with_another_loader_is_told() {
    let scratch = Scratch::new("run-loader").unwrap();
    let musl = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    let Some(program) = compile(&scratch, "musl", MAIN, &[musl]).unwrap() else { return };
    let seen = run_under([&program]).unwrap();
    assert_refused(&seen, 126, &["ld-musl-x86_64.so.1", "glibc", "Debian"]);
    let lost = "-Wl,--dynamic-linker=/no/such/ld.so";
    let program = compile(&scratch, "lost", MAIN, &[lost]).unwrap().unwrap();
    assert_refused(&run_under([&program]).unwrap(), 126, &["/no/such/ld.so", "not there"]);
}

/// A program that prints which library it has, and another library of the name.
const ASKS: &str = "#include <stdio.h>\nextern const char *ibv_wc_status_str(int);\n\
                    int main(void) { puts(ibv_wc_status_str(0)); return 0; }\n";
const OTHER: &str = "const char *ibv_wc_status_str(int s) { return \"the other\"; }\n";

#[test]
fn a_search_path_in_the_program_does_not_keep_urxe_out() {
    let scratch = Scratch::new("run-rpath").unwrap();
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1"];
    let Some(other) = compile(&scratch, "libibverbs.so.1", OTHER, &soname).unwrap() else { return };
    let other = other.to_str().unwrap();
    for tags in ["--disable-new-dtags", "--enable-new-dtags"] {
        let path = format!("-Wl,{tags},-rpath,$ORIGIN");
        let program = compile(&scratch, "asks", ASKS, &[other, &path]).unwrap().unwrap();
        let alone = process::run("asks", &mut Command::new(&program), LIMIT).unwrap();
        assert_eq!(alone.success().unwrap().stdout, "the other\n");
        let seen = run_under([&program]).unwrap().success().unwrap();
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("success\n", ""), "{tags}");
    }
    // Wanted by its path.
    let program = scratch.file("asks-by-path");
    let unnamed = compile(&scratch, "libother.so", OTHER, &soname[..2]).unwrap().unwrap();
    let by_path = scratch.file("path/libibverbs.so.1");
    fs::create_dir(scratch.file("path")).unwrap();
    fs::rename(unnamed, &by_path).unwrap();
    let built = compile(&scratch, "asks-by-path", ASKS, &[by_path.to_str().unwrap()]).unwrap();
    assert_eq!(built.as_deref(), Some(program.as_path()));
    let seen = run_under([&program]).unwrap().success().unwrap();
    assert_eq!(seen.stdout, "success\n");
}

#[test]
fn a_command_without_its_library_says_where_it_looked() {
    let scratch = Scratch::new("run-no-library").unwrap();
    let bin = scratch.file("bin");
    fs::create_dir(&bin).unwrap();
    let urxe = bin.join("urxe");
    fs::copy(urxe_binary(), &urxe).unwrap();
    let run = || process::run("urxe", Command::new(&urxe).args(["run", "true"]), LIMIT).unwrap();
    let places = [
        format!("{}/libibverbs_abi.so", bin.display()),
        format!("{}/../lib/urxe/libibverbs.so.1", bin.display()),
        "install".to_owned(),
    ];
    assert_refused(&run(), 125, &places.each_ref().map(String::as_str));

    // As installed, but for the preload library: most programs do without.
    let folder = scratch.file("lib/urxe");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(built_library(), folder.join("libibverbs.so.1")).unwrap();
    symlink("libibverbs.so.1", folder.join("librdmacm.so.1")).unwrap();
    let seen = run();
    assert_eq!(seen.status.code(), Some(0), "{seen}");
    assert!(seen.stderr.contains("note: liburxe_preload.so is not beside"), "{seen}");
}

/// The library beside the command that is tested.
fn built_library() -> PathBuf {
    let folder = urxe_binary().parent().expect("it is in a folder");
    folder.join("deps/libibverbs_abi.so")
}

/// The value of a variable in a program that `command` runs.
fn printed(command: &mut Command) -> String {
    let seen = process::run("urxe run", command, LIMIT).and_then(Finished::success);
    seen.expect("it runs, and succeeds").stdout
}

#[test]
fn what_the_caller_has_in_its_environment_stays() {
    let show = ["sh", "-c", "echo \"$LD_LIBRARY_PATH\"; echo \"$LD_PRELOAD\"; echo $URXE_GSO"];
    let alone = printed(&mut urxe_run(show));
    let (folder, preload) = alone.split_once('\n').unwrap();
    let preload = preload.trim_end();
    assert!(Path::new(folder).join("librdmacm.so.1").exists(), "{alone}");
    assert!(preload.ends_with("/liburxe_preload.so"), "{alone}");
    let mut with = urxe_run(show);
    // A library that any program may have preloaded.
    with.envs([("LD_LIBRARY_PATH", "/x:/y"), ("LD_PRELOAD", preload), ("URXE_GSO", "off")]);
    assert_eq!(printed(&mut with), format!("{folder}:/x:/y\n{preload}\noff\n"));
    let without = printed(&mut urxe_run([&["--no-preload"], &show[..]].concat()));
    assert_eq!(without, format!("{folder}\n\n\n"));
}

#[test]
fn sh_can_evaluate_what_print_env_prints() {
    let scratch = Scratch::new("run's folder").unwrap();
    let mut command = Command::new("sh");
    let script = "eval \"$(\"$URXE\" run --print-env --device a=lo --pcap \"it's $NAME\" \
                  --faults drop=1%)\"; \"$URXE\" run --no-preload -- sh -c 'echo $LD_LIBRARY_PATH'; \
                  echo \"$LD_LIBRARY_PATH|$URXE_PCAP|$URXE_FAULTS\"; ls /sys/class/infiniband";
    command.args(["-c", script]).current_dir(scratch.path());
    command.envs([("URXE", urxe_binary().as_os_str()), ("NAME", "$HOME".as_ref())]);
    command.env("LD_LIBRARY_PATH", "/x y");
    command.env_remove("LD_PRELOAD");
    let seen = process::run("sh", &mut command, LIMIT).unwrap();
    assert_eq!(seen.stderr, "", "{seen}");
    let lines: Vec<_> = seen.stdout.lines().collect();
    let &[within, outer, device] = lines.as_slice() else { panic!("{seen}") };
    let fields: Vec<_> = outer.split('|').collect();
    assert_eq!(fields[0], within, "a second time changes nothing");
    assert!(fields[0].ends_with(":/x y") && fields[0].len() > 5, "{seen}");
    let here = fs::canonicalize(scratch.path()).unwrap();
    assert_eq!(fields[1..], [here.join("it's $HOME").to_str().unwrap(), "drop=1%"]);
    assert_eq!(device, "a");
    let both = run_under(["--print-env", "true"]).unwrap();
    assert_eq!(both.status.code(), Some(2), "{both}");
}

#[test]
fn wrong_options_are_told_before_the_program_runs() {
    for (options, words) in [
        (["--device", "mlx5_0"], "\"mlx5_0\"; there"),
        (["--device", "a=lo,rxe_lo"], "rxe_lo is named twice"),
        (["--device", "a/b=lo"], "\"a/b\" can be no name"),
        (["--faults", "drop=x"], "--faults: "),
        (["--pcap", "/no/such/folder/f.pcap"], "/no/such/folder is no folder"),
    ] {
        let seen = run_under([&options[..], &["sh", "-c", "echo ran"]].concat()).unwrap();
        assert_refused(&seen, 125, &[words]);
    }
    let mut command = urxe_run(["true"]);
    let seen = process::run("urxe run", command.env("URXE_DEVICES", "lo,"), LIMIT).unwrap();
    assert_refused(&seen, 125, &["URXE_DEVICES", "names no device"]);
}

#[test]
fn the_program_sees_the_devices_of_its_namespace() {
    with_namespaces("the_program_sees_the_devices_of_its_namespace", || {
        let namespace = Namespace::new("run").unwrap();
        let run = |arguments: &[&str]| {
            let arguments = ["run"].iter().chain(arguments);
            let mut command = namespace.command(urxe_binary());
            process::run("urxe run", command.args(arguments), LIMIT).unwrap().success().unwrap()
        };
        assert_eq!(run(&["ls", "/sys/class/infiniband"]).stdout, "rxe_lo\n");
        let lo = run(&["-d", "mlx5_0=lo", "ls", "-L", "/sys/class/infiniband/mlx5_0/device/net"]);
        assert_eq!(lo.stdout, "lo\n");
        let file = "/sys/class/infiniband/rxe_lo/ports/1/gid_attrs/types/1";
        assert_eq!(run(&["cat", file]).stdout, "RoCE v2\n");
        let device = run(&["sh", "-c", "test -c /dev/infiniband/uverbs0 && echo yes"]);
        assert_eq!(device.stdout, "yes\n");
        if is_installed("ibv_devices") {
            let listed = run(&["-d", "mlx5_0=lo", "ibv_devices"]).stdout;
            assert!(listed.contains("mlx5_0") && !listed.contains("rxe_lo"), "{listed}");
        } else {
            missing("a part: ibv_devices (package ibverbs-utils) is not installed");
        }
    });
}

#[test]
fn ucx_finds_the_devices_that_it_looks_for_in_sysfs() {
    with_namespaces("ucx_finds_the_devices_that_it_looks_for_in_sysfs", || {
        if !is_installed("ucx_info") {
            missing("UCX: ucx_info (package ucx-utils) is not installed");
            return;
        }
        let namespace = Namespace::new("ucx").unwrap();
        let transports = |options: &[&str]| {
            let arguments = [&["run"], options, &["ucx_info", "-d"]].concat();
            let mut command = namespace.command(urxe_binary());
            let seen = process::run("ucx_info", command.args(arguments), LIMIT).unwrap();
            let seen = seen.success().unwrap().stdout;
            let lines: Vec<_> = seen.lines().map(|line| line.trim_matches(['#', ' '])).collect();
            let of_device = lines.windows(2).filter(|pair| pair[1].ends_with("rxe_lo:1"));
            of_device.map(|pair| pair[0].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(transports(&[]), ["Transport: rc_verbs", "Transport: ud_verbs"]);
        // Without the preloaded library it does not, or this would show nothing.
        assert_eq!(transports(&["--no-preload"]), Vec::<String>::new());
    });
}
