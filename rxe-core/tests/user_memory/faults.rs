//! Each access to memory that is not there is an error, and nothing else.

use std::ptr;
use std::sync::Arc;

use rxe_core::mem::{Backing, Fault, UserMemory, catch_faults};

use crate::pages::{PAGE, Pages};

/// The fault of an access.
fn unmapped(pages: &Pages, offset: usize, len: usize) -> Fault {
    Fault::Unmapped { addr: pages.addr() + offset as u64, len }
}

/// Lengths on all paths of the copies, up to more than a page.
const LENGTHS: [usize; 18] =
    [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 63, 64, 100, 255, 256, 500, 4096, 5000];

#[test]
fn copies_of_what_was_unmapped_fail() {
    let pages = Pages::anonymous(3);
    let memory = pages.backing();
    pages.unmap(1, 1);
    for len in LENGTHS {
        let mut to = vec![0; len];
        // Up to the hole, across it, and wholly within.
        let before = PAGE - len % PAGE;
        if len < PAGE {
            assert_eq!(memory.write_at(before, &vec![7; len]), Ok(()), "{len}");
            assert_eq!(memory.read_at(before, &mut to), Ok(()));
            assert_eq!(to, vec![7; len]);
        }
        let offset = PAGE - len.min(PAGE) / 2;
        assert_eq!(memory.write_at(offset, &vec![9; len]), Err(unmapped(&pages, offset, len)));
        assert_eq!(memory.read_at(offset, &mut to), Err(unmapped(&pages, offset, len)));
        assert_eq!(memory.write_at(PAGE, &vec![9; len]), Err(unmapped(&pages, PAGE, len)));
        assert_eq!(memory.read_at(PAGE, &mut to), Err(unmapped(&pages, PAGE, len)));
    }
    // What is behind the hole is as it was.
    assert_eq!(pages.byte(2 * PAGE), 0);
    assert_eq!(memory.read_at(PAGE, &mut []), Ok(()), "no bytes, no fault");
}

#[test]
fn a_copy_that_fails_has_written_from_the_first_byte_on() {
    let pages = Pages::anonymous(2);
    let memory = pages.backing();
    pages.unmap(1, 1);
    memory.write_at(PAGE - 300, &[5; 600]).unwrap_err();
    let written = (PAGE - 300..PAGE).take_while(|&offset| pages.byte(offset) == 5).count();
    assert!((PAGE - 300 + written..PAGE).all(|offset| pages.byte(offset) == 0), "{written}");
}

#[test]
fn words_that_are_not_there_are_not_worked_on() {
    let pages = Pages::anonymous(2);
    let memory = pages.backing();
    pages.unmap(1, 1);
    for offset in [PAGE, 2 * PAGE - 8] {
        let fault = unmapped(&pages, offset, 8);
        assert_eq!(memory.load_u64(offset), Err(fault));
        assert_eq!(memory.fetch_add_u64(offset, 1), Err(fault));
        assert_eq!(memory.compare_swap_u64(offset, 0, 1), Err(fault));
    }
    assert_eq!(memory.load_u64(PAGE - 8), Ok(0));
}

#[test]
#[cfg(all(target_arch = "x86_64", not(rxe_strict_mem)))]
fn words_that_are_there_are_worked_on_by_the_processor() {
    let pages = Pages::anonymous(1);
    let memory = pages.backing();
    assert_eq!(memory.fetch_add_u64(8, u64::MAX), Ok(0));
    assert_eq!(memory.compare_swap_u64(8, 1, 5), Ok(u64::MAX));
    assert_eq!(memory.compare_swap_u64(8, u64::MAX, 5), Ok(u64::MAX));
    assert_eq!(memory.load_u64(8), Ok(5));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| assert!(memory.fetch_add_u64(0, 1).is_ok())));
        }
    });
    assert_eq!(memory.load_u64(0), Ok(4000));
}

#[test]
fn memory_that_may_only_be_read_is_read_but_not_written() {
    let pages = Pages::anonymous(1);
    let memory = pages.backing();
    memory.write_at(8, b"read me").unwrap();
    pages.protect(0, 1, libc::PROT_READ);
    let mut to = [0; 7];
    memory.read_at(8, &mut to).unwrap();
    assert_eq!(&to, b"read me");
    assert_eq!(memory.load_u64(16), Ok(0));
    assert_eq!(memory.write_at(8, b"written"), Err(unmapped(&pages, 8, 7)));
    assert_eq!(memory.fetch_add_u64(8, 1), Err(unmapped(&pages, 8, 8)));
    pages.protect(0, 1, libc::PROT_NONE);
    assert_eq!(memory.read_at(8, &mut to), Err(unmapped(&pages, 8, 7)));
    // And all is well once it may be accessed again.
    pages.protect(0, 1, libc::PROT_READ | libc::PROT_WRITE);
    memory.write_at(8, b"written").unwrap();
    assert_eq!(pages.byte(8), b'w');
}

/// What lies behind the end of a file is a SIGBUS.
#[test]
fn memory_of_a_file_that_was_truncated_fails() {
    let pages = Pages::of_file(2);
    let memory = pages.backing();
    memory.write_at(PAGE - 2, b"four").unwrap();
    pages.truncate(1);
    let mut to = [0; 4];
    assert_eq!(memory.read_at(PAGE - 2, &mut to), Err(unmapped(&pages, PAGE - 2, 4)));
    assert_eq!(memory.write_at(PAGE, b"four"), Err(unmapped(&pages, PAGE, 4)));
    assert_eq!(memory.load_u64(PAGE), Err(unmapped(&pages, PAGE, 8)));
    memory.read_at(PAGE - 4, &mut to).unwrap();
    assert_eq!(&to, b"\0\0fo");
    pages.truncate(2);
    memory.write_at(PAGE, b"four").unwrap();
}

/// The first page, the half of the address space that has no addresses, and that of the kernel.
#[test]
fn all_of_memory_is_judged_by_faults_alone() {
    catch_faults().unwrap();
    // SAFETY: faults are caught, and this test writes to its own pages alone.
    let all = unsafe { UserMemory::new(ptr::null_mut(), usize::MAX) }.unwrap();
    let all: Arc<dyn Backing> = Arc::new(all);
    let pages = Pages::anonymous(1);
    let at = pages.addr() as usize;
    all.write_at(at + 5, b"here").unwrap();
    let mut to = [0; 4];
    all.read_at(at + 5, &mut to).unwrap();
    assert_eq!((&to, pages.byte(5)), (b"here", b'h'));
    for addr in [0, 8, 1 << 63, 0x8000_0000_0000, 0xffff_8000_0000_0000, usize::MAX - 7] {
        let fault = |len| Err(Fault::Unmapped { addr: addr as u64, len });
        assert_eq!(all.read_at(addr, &mut to), fault(4), "0x{addr:x}");
        assert_eq!(all.write_at(addr, &to), fault(4), "0x{addr:x}");
        if addr % 8 == 0 && addr < usize::MAX - 8 {
            assert_eq!(all.load_u64(addr), fault(8).map(|()| 0), "0x{addr:x}");
        }
    }
    assert!(matches!(all.read_at(usize::MAX - 2, &mut to), Err(Fault::Outside { .. })));
}

#[test]
fn memory_is_populated_as_it_would_be_pinned() {
    let pages = Pages::anonymous(4);
    let memory = pages.user_memory();
    assert_eq!(memory.populate(true), Ok(()));
    pages.protect(2, 1, libc::PROT_READ);
    assert_eq!(memory.populate(false), Ok(()));
    #[cfg(all(target_arch = "x86_64", not(rxe_strict_mem)))]
    assert_eq!(memory.populate(true), Err(unmapped(&pages, 2 * PAGE, PAGE)));
    pages.unmap(3, 1);
    assert_eq!(memory.populate(false), Err(unmapped(&pages, 3 * PAGE, PAGE)));
}

/// One thread takes pages away and gives them back, others copy: each copy is whole, or an error.
#[test]
fn pages_that_come_and_go_while_others_copy() {
    let pages = Pages::anonymous(2);
    let memory = pages.backing();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let faults = std::thread::scope(|scope| {
        let copy = |value: u8| {
            let (mut faults, mut to) = (0, [0; 600]);
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let write = memory.write_at(PAGE + 100, &[value; 600]);
                let read = memory.read_at(PAGE + 100, &mut to);
                faults += usize::from(write.is_err()) + usize::from(read.is_err());
                if read.is_ok() {
                    assert!(to.iter().all(|&byte| byte <= 2));
                }
            }
            faults
        };
        let threads = [1, 2].map(|value| scope.spawn(move || copy(value)));
        for _ in 0..2000 {
            pages.protect(1, 1, libc::PROT_NONE);
            std::thread::yield_now();
            pages.protect(1, 1, libc::PROT_READ | libc::PROT_WRITE);
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(faults.iter().any(|&faults| faults > 0), "nobody has met a page that was away");
}
