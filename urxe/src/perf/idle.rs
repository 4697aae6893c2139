//! What the device's threads do while its queue pairs are connected and nobody uses them: nothing,
//! if all is well.

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long after the last message it is not counted yet: leases end, timers run out.
const SETTLING: Duration = Duration::from_millis(500);
/// What the names of the device's threads begin with. Others, such as the one that draws the
/// progress, are none of its business.
const PREFIX: &str = "urxe-";

/// What the device's threads of a process did in a while.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Idleness {
    /// Seconds on a processor.
    pub processor: f64,
    /// How often one of them was put on a processor.
    pub wake_ups: u64,
}

impl Idleness {
    /// Of all threads that this process has now, since each began: `schedstat` of proc(5).
    fn now() -> io::Result<Self> {
        let mut sum = Self::default();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            // A thread that has ended meanwhile is not there.
            let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
            if !name.starts_with(PREFIX) {
                continue;
            }
            let Ok(text) = fs::read_to_string(task.join("schedstat")) else { continue };
            let (processor, wake_ups) = parse(&text).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("schedstat says {text:?}"))
            })?;
            sum.processor += processor;
            sum.wake_ups += wake_ups;
        }
        Ok(sum)
    }

    /// Does nothing for so long, and tells what the device's threads did meanwhile.
    ///
    /// # Errors
    ///
    /// Those of reading `/proc`.
    pub(super) fn of(time: Duration) -> io::Result<Self> {
        thread::sleep(SETTLING);
        let before = Self::now()?;
        thread::sleep(time);
        let after = Self::now()?;
        Ok(Self {
            // A thread may have ended, and have taken its part along.
            processor: (after.processor - before.processor).max(0.0),
            wake_ups: after.wake_ups.saturating_sub(before.wake_ups),
        })
    }

    /// With what happened in another while.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            processor: self.processor + other.processor,
            wake_ups: self.wake_ups + other.wake_ups,
        }
    }

    /// In words.
    pub(super) fn show(self) -> String {
        let (millis, times) = (self.processor * 1e3, self.wake_ups);
        format!("{millis:.3} ms on a processor in {times} wake-ups")
    }
}

/// Seconds on a processor, and how often, of a line of three numbers: nanoseconds that the thread
/// ran, nanoseconds that it waited for a processor, and how often it got one.
fn parse(text: &str) -> Option<(f64, u64)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (ran, _, times) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some((ran as f64 / 1e9, times))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_line_of_schedstat() {
        assert_eq!(parse("1500000000 7 42\n"), Some((1.5, 42)));
        assert_eq!((parse("1 2"), parse("a 2 3"), parse("")), (None, None, None));
    }

    #[test]
    fn only_threads_of_the_device_count() {
        let count_of = |name: &str| {
            let (wake, woken) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            let thread = thread::Builder::new().name(name.to_owned());
            let thread = thread
                .spawn(move || woken.iter().try_for_each(|()| tell.send(())))
                .expect("a thread");
            let before = Idleness::now().expect("before").wake_ups;
            for _ in 0..20 {
                wake.send(()).expect("asked");
                told.recv().expect("answered");
            }
            let after = Idleness::now().expect("after").wake_ups;
            drop(wake);
            thread.join().expect("joined").expect("told");
            after - before
        };
        // Other tests of this process may have devices.
        assert!(count_of("urxe-x") >= 20);
    }
}
