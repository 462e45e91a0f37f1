use std::{io::Write, thread};

use super::*;
use crate::limits::MAX_MESSAGE_BYTES;

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
    let pass = |_| pass(3, &ours, ours.as_fd(), Duration::from_millis(20)).err();
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

/// Returns what each of four ranks meets with that does as `play` says.
fn errors_of(
    timeout: Duration,
    play: fn(&mut SocketCollective) -> Result<(), CollectiveError>,
) -> Vec<Option<u32>> {
    let (ours, theirs): (Vec<_>, Vec<_>) = (1..4).map(|_| UnixStream::pair().unwrap()).unzip();
    let silent = move |mut rank: SocketCollective| match play(&mut rank) {
        Ok(()) => None,
        Err(CollectiveError::Silent { rank, .. }) => Some(rank),
        Err(other) => panic!("{other}"),
    };
    let followers = (1..).zip(theirs).map(|(rank, socket)| {
        thread::spawn(move || {
            silent(SocketCollective::follower(rank, 4, socket.into(), timeout).unwrap())
        })
    });
    let followers: Vec<_> = followers.collect();
    let leader = silent(SocketCollective::leader(ours, timeout).unwrap());
    [leader].into_iter().chain(followers.into_iter().map(|rank| rank.join().unwrap())).collect()
}

/// Sends a message to each of `to`, and waits for one of each of `from`.
fn exchange(own: &mut SocketCollective, to: &[u32], from: &[u32]) -> Result<(), CollectiveError> {
    let sends: Vec<(u32, &[u8])> = to.iter().map(|&rank| (rank, &[7; 40][..])).collect();
    let mut receives: Vec<(u32, Vec<u8>)> = from.iter().map(|&rank| (rank, vec![])).collect();
    own.transfer(Tag::barrier(), &sends, &mut receives)
}

#[test]
fn a_process_that_hangs_is_named_by_ranks_that_do_not_wait_for_it() {
    // Rank 3 hangs in the first exchange when it has served two of three. Rank 2 alone is left in
    // it, and the others wait for rank 2 in the second.
    let timeout = Duration::from_secs(2);
    let errors = errors_of(timeout, |own| {
        if own.rank() == 3 {
            exchange(own, &[0, 1], &[])?;
            thread::sleep(Duration::from_secs(5));
            return Ok(());
        }
        let others: Vec<u32> = (0..4).filter(|&rank| rank != own.rank()).collect();
        exchange(own, &others, &others)?;
        exchange(own, &others, &others)
    });
    assert_eq!(errors, [Some(3), Some(3), Some(3), None]);
    // Each waits for the next one alone.
    let errors = errors_of(timeout, |own| match own.rank() {
        3 => {
            thread::sleep(Duration::from_secs(5));
            Ok(())
        }
        rank => exchange(own, &[], &[rank + 1]),
    });
    assert_eq!(errors, [Some(3), Some(3), Some(3), None]);
}

#[test]
fn a_process_that_waited_and_then_hangs_is_named() {
    // Rank 2 waits for rank 3 long enough to say so, and hangs afterwards.
    let errors = errors_of(Duration::from_secs(2), |own| match own.rank() {
        2 => {
            exchange(own, &[], &[3])?;
            thread::sleep(Duration::from_secs(5));
            Ok(())
        }
        3 => {
            thread::sleep(Duration::from_millis(1500));
            exchange(own, &[2], &[])
        }
        _ => {
            thread::sleep(Duration::from_millis(1000));
            exchange(own, &[], &[2])
        }
    });
    assert_eq!(errors[..2], [Some(2), Some(2)]);
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
    assert!(!inbound.is_done);
    assert_eq!(bytes, [7; 1000]);
    assert!(bytes.capacity() < 1 << 20, "{} bytes", bytes.capacity());
}
