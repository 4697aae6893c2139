//! Events that the program has taken, and must acknowledge.

use parking_lot::{Condvar, Mutex};

/// How many events of an object are taken and not acknowledged. Destroying the object waits until
/// there are none: a thread that has an event in its hands may still look at the object.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    outstanding: Mutex<u32>,
    changed: Condvar,
}

impl Acks {
    /// The program takes an event.
    pub(crate) fn taken(&self) {
        *self.outstanding.lock() += 1;
    }

    /// The program has dealt with `count` events; more than there are count as all.
    pub(crate) fn acknowledged(&self, count: u32) {
        let mut outstanding = self.outstanding.lock();
        *outstanding = outstanding.saturating_sub(count);
        if *outstanding == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut outstanding = self.outstanding.lock();
        self.changed.wait_while(&mut outstanding, |outstanding| *outstanding > 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn waiting_ends_with_the_last_event() {
        let acks = Arc::new(Acks::default());
        acks.wait();
        acks.taken();
        acks.taken();
        acks.acknowledged(1);
        let (waited, ended) = channel();
        let other = acks.clone();
        let thread = std::thread::spawn(move || {
            other.wait();
            waited.send(()).unwrap();
        });
        assert!(ended.try_recv().is_err());
        acks.acknowledged(5);
        ended.recv().unwrap();
        thread.join().unwrap();
    }
}
