//! The data of a ping.

/// The first letter of the first message.
const FIRST: u8 = b'A';
/// The last letter; then it begins anew.
const LAST: u8 = b'z';

/// Message `number`, filled up with letters that begin one further each time, and a NUL at the end.
pub(super) fn ping(number: u64, size: usize) -> Vec<u8> {
    let mut data = format!("rdma-ping-{number}: ").into_bytes();
    let letters = u64::from(LAST - FIRST) + 1;
    let start = FIRST + (number % letters) as u8;
    let rest = (start..=LAST).chain((FIRST..=LAST).cycle());
    data.extend(rest.take(size.saturating_sub(data.len())));
    data.truncate(size);
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    data
}

/// The text of a message: up to its NUL.
pub(super) fn text(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_rping() {
        // As the captures have them, of `rping -S 64`.
        assert_eq!(
            text(&ping(0, 64)),
            "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"
        );
        assert_eq!(text(&ping(1, 20)), "rdma-ping-1: BCDEFG");
        assert_eq!(text(&ping(57, 20)), "rdma-ping-57: zABCD");
        assert_eq!(text(&ping(58, 20)), "rdma-ping-58: ABCDE");
        assert_eq!(ping(0, 64).len(), 64);
    }
}
