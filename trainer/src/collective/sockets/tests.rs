use std::{io::Write, thread};

use super::*;
use crate::collective::MAX_MESSAGE_BYTES;

#[test]
fn waiting_is_counted_in_slices_and_ends_when_something_comes() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let link = Link::new(ours).unwrap();
    let mut bytes = Vec::new();
    let inbound = [Inbound::new(1, &link, Tag::barrier(), &mut bytes)];
    let (mut left, start) = (3 * SLICE, Instant::now());
    while !left.is_zero() {
        wait(&[], &inbound, &mut left);
    }
    assert!(start.elapsed() >= 3 * SLICE);
    // A late message takes only the time that it took.
    let mut left = 100 * SLICE;
    let late = thread::spawn(move || {
        thread::sleep(SLICE + SLICE / 2);
        theirs.write_all(&[0]).unwrap();
        theirs
    });
    wait(&[], &inbound, &mut left);
    wait(&[], &inbound, &mut left);
    assert!(left <= 99 * SLICE && left > 90 * SLICE, "{left:?}");
    let (before, _theirs) = (left, late.join().unwrap());
    wait(&[], &inbound, &mut left);
    assert!(before - left < SLICE, "it was there");
}

#[test]
fn a_process_that_is_gone_before_it_joins_is_named_by_all() {
    let (ours, mut theirs): (Vec<_>, Vec<_>) = (1..4).map(|_| UnixStream::pair().unwrap()).unzip();
    drop(theirs.remove(1));
    let timeout = Duration::from_secs(60);
    let mut leader = SocketCollective::leader(ours, timeout).unwrap();
    let others = theirs.into_iter().zip([1, 3]).map(|(socket, rank)| {
        thread::spawn(move || {
            let mut rank = SocketCollective::follower(rank, 4, socket.into(), timeout).unwrap();
            rank.barrier().unwrap_err().to_string()
        })
    });
    let others: Vec<_> = others.collect();
    let gone = "process 2 of the run is gone";
    assert_eq!(leader.barrier().unwrap_err().to_string(), gone);
    assert_eq!(leader.barrier().unwrap_err().to_string(), "process 1 of the run is gone");
    others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), gone));
}

#[test]
fn a_process_that_takes_no_sockets_is_named() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let pass = |_| pass((3, &ours), ours.as_fd(), Duration::from_millis(20)).err();
    let error = (0..100_000).find_map(pass);
    assert!(matches!(error, Some(CollectiveError::Silent { rank: 3, .. })), "{error:?}");
}

#[test]
fn a_follower_without_a_leader_says_so() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let timeout = Duration::from_millis(50);
    let error = SocketCollective::follower(1, 3, theirs.try_clone().unwrap().into(), timeout);
    assert!(matches!(error, Err(CollectiveError::Silent { rank: 0, .. })), "{error:?}");
    drop(ours);
    let error = SocketCollective::follower(1, 3, theirs.into(), timeout);
    assert!(matches!(error, Err(CollectiveError::Gone { rank: 0 })), "{error:?}");
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = SocketCollective::follower(1, 3, file.into(), timeout);
    assert!(matches!(error, Err(CollectiveError::Connect { .. })), "{error:?}");
}

#[test]
fn memory_grows_with_bytes_that_come_and_not_with_the_length_that_is_announced() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (link, tag, mut bytes) = (Link::new(ours).unwrap(), Tag::barrier(), Vec::new());
    theirs.write_all(&tag.number().to_le_bytes()).unwrap();
    theirs.write_all(&MAX_MESSAGE_BYTES.to_le_bytes()).unwrap();
    theirs.write_all(&[7; 1000]).unwrap();
    let mut inbound = Inbound::new(1, &link, tag, &mut bytes);
    assert!(inbound.advance().unwrap());
    assert!(!inbound.is_done());
    assert_eq!(bytes, [7; 1000]);
    assert!(bytes.capacity() < 1 << 20, "{} bytes", bytes.capacity());
}
