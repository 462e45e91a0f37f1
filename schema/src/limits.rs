//! Every bound of the wire, in one place. Both ends check them before they allocate.

use std::time::Duration;

/// Bytes of the prefix of a frame.
pub const PREFIX_BYTES: usize = 8;
/// Bytes of the hello that each side sends first.
pub const HELLO_BYTES: usize = 16;
/// Newest version of the wire that this crate speaks.
pub const WIRE_VERSION: u16 = 6;
/// Oldest version of the wire that this crate speaks.
pub const WIRE_VERSION_OLDEST: u16 = 3;
/// First version in which a version is a number and a commit, and a tensor a name and a uuid.
pub const WIRE_VERSION_IDENTITY: u16 = 6;
/// Last version whose hello has no range.
pub const WIRE_VERSION_PLAIN_MAX: u16 = 3;

/// Shortest token that is taken: 16 letters and digits at random cannot be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Longest token.
pub const TOKEN_BYTES_MAX: usize = 128;

/// Largest head of a request. Requests are a few words; the ids travel in the body.
pub const REQUEST_HEAD_BYTES_MAX: usize = 2048;
/// The same for peers of versions before [`WIRE_VERSION_IDENTITY`].
pub const REQUEST_HEAD_BYTES_MAX_BEFORE: usize = 1024;
/// Largest head of a reply: a description with the bounds and states of 65 535 partitions fits.
pub const REPLY_HEAD_BYTES_MAX: usize = 2 << 20;

/// Most ids of one pull; clients split longer lists.
pub const IDS_PER_PULL_MAX: usize = 1 << 18;
/// Most rows of one push; clients split longer puts.
pub const ROWS_PER_PUSH_MAX: usize = 1 << 16;
/// Largest body of a push, ids and rows. A disk's sync is cheap beside so long a body, and several
/// fit the memory of a shard.
pub const PUSH_BODY_BYTES_MAX: usize = 4 << 20;
/// Largest body of a request: that of a push.
pub const REQUEST_BODY_BYTES_MAX: usize = PUSH_BODY_BYTES_MAX;
/// Most bytes of the rows of one put for one partition: they are put by one write.
pub const PUT_BYTES_MAX: u64 = 256 << 20;
/// Longest name of a volatile tensor or of an element type.
pub const NAME_BYTES_MAX: usize = 64;
/// Most ranges that one request claims.
pub const CLAIM_RANGES_MAX: usize = 1 << 16;
/// Most rows of one publication; clients split longer ones. Its body is bounded as that of a push.
pub const ROWS_PER_PUBLISH_MAX: usize = ROWS_PER_PUSH_MAX;
/// Most partitions of which a message names a version of its own.
pub const FLOORS_MAX: usize = 64;
/// Most followers that a description lists, each of one partition.
pub const FOLLOWERS_MAX: usize = 1 << 14;
/// Most partitions of which a description says which server took them over.
pub const MOVED_MAX: usize = 512;
/// Longest address of a server in a message: as a token, so that no request takes more memory for it.
pub const ADDRESS_BYTES_MAX: usize = 120;
/// Longest text about a follower in statistics: where its versions come from, or why none come.
pub const FOLLOW_TEXT_BYTES_MAX: usize = 4096;
/// Furthest that a commit may be beyond the committed version. Servers that were committed apart
/// come together in one commit, which passes over the versions in between; a number that has come
/// from another graph is refused.
pub const COMMIT_AHEAD_MAX: u32 = 1024;

/// Largest row that can be served.
pub const ROW_BYTES_MAX: usize = 1 << 20;
/// Bytes of a chunk of an answer's rows, about (at least one row). A chunk stays in a core's cache
/// between the gather and the socket, and is long enough to hide a system call.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Most bytes of memory that a client maps for the rows of one connection.
pub const SHARED_BYTES_MAX: usize = 16 << 20;
/// Shorter chunks than this travel in the socket although there is shared memory: it gains nothing
/// there (benches/notes/server-pulls.md, Rows through shared memory).
pub const SHARED_CHUNK_BYTES_MIN: usize = 32 << 10;
/// Most bytes of a memory of resident rows that a client maps: what an address space has room for.
pub const LENT_BYTES_MAX: u64 = 1 << 44;
/// Bytes of a huge page, on most processors. A mapping with huge pages has the same offset from a
/// multiple of them in the file and in the address space.
pub const LENT_PAGE_BYTES: usize = 2 << 20;
/// Bytes of the file around the rows, so that both ends find such an offset. Rows begin at one page
/// at least and below two, and another two follow them.
pub const LENT_SLACK_BYTES: usize = 4 * LENT_PAGE_BYTES;
/// Time that lent rows stay unchanged, from their request on. This holds for an answer that comes
/// whole, until the client sends another request or leaves.
pub const LENT_FOR: Duration = Duration::from_secs(5);
/// Rows of a chunk that is lent: few enough that the client soon has the first, enough to hide a
/// system call.
pub const LENT_CHUNK_ROWS: usize = 512;
/// Answers with fewer bytes than this are not lent: to say that they have been taken costs more
/// than another copy.
pub const LENT_PULL_BYTES_MIN: usize = 128 << 10;
/// Most bytes of a file in one piece of a copy of its partition, and of pending rows unless one row
/// is longer.
pub const COPY_PIECE_BYTES: usize = 1 << 20;
/// Bytes that a pending row takes in a piece beside itself: whose it is.
pub const COPY_ROW_BYTES_MAX: usize = 4 << 10;
/// Largest body of a reply: a row, or a pending one.
pub const REPLY_BODY_BYTES_MAX: usize = ROW_BYTES_MAX + COPY_ROW_BYTES_MAX;

/// Most words that a decoder may follow in a request; a head is read once, each list once.
pub(crate) const REQUEST_TRAVERSAL_WORDS_MAX: usize = REQUEST_HEAD_BYTES_MAX / 8;
/// Most words that a decoder may follow in a reply.
pub(crate) const REPLY_TRAVERSAL_WORDS_MAX: usize = TRAVERSAL_PER_WORD * REPLY_HEAD_BYTES_MAX / 8;
/// Most words that it may follow for each word of a head, beside a few.
pub(crate) const TRAVERSAL_PER_WORD: usize = 4;
/// These few.
pub(crate) const TRAVERSAL_WORDS_MIN: usize = 64;
/// Deepest nesting of a message; ours are 4 deep.
pub(crate) const NESTING_MAX: i32 = 8;

const _: () = assert!(WIRE_VERSION_OLDEST <= WIRE_VERSION);
const _: () = assert!(WIRE_VERSION > WIRE_VERSION_PLAIN_MAX);
const _: () = assert!(TOKEN_BYTES_MAX + 128 <= REQUEST_HEAD_BYTES_MAX);
const _: () = assert!(2 * NAME_BYTES_MAX + 256 <= REQUEST_HEAD_BYTES_MAX);
const _: () = assert!(ADDRESS_BYTES_MAX + 256 <= REQUEST_HEAD_BYTES_MAX_BEFORE);
const _: () = assert!(2 * CLAIM_RANGES_MAX * size_of::<u32>() <= REQUEST_BODY_BYTES_MAX);
const _: () = assert!(IDS_PER_PULL_MAX * size_of::<u32>() <= REPLY_BODY_BYTES_MAX);
const _: () = assert!(16 * FLOORS_MAX + 256 <= REQUEST_HEAD_BYTES_MAX);
const _: () = assert!(8 * FLOORS_MAX + 256 <= REQUEST_HEAD_BYTES_MAX_BEFORE);
const _: () = assert!(CHUNK_BYTES <= REPLY_BODY_BYTES_MAX);
const _: () = assert!(COPY_PIECE_BYTES <= REPLY_BODY_BYTES_MAX);
const _: () = assert!(SHARED_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(LENT_CHUNK_ROWS * size_of::<u32>() <= REPLY_BODY_BYTES_MAX);
const _: () = assert!(REPLY_BODY_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(REQUEST_BODY_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(IDS_PER_PULL_MAX * size_of::<u32>() <= REQUEST_BODY_BYTES_MAX);
const _: () = assert!(size_of::<u32>() + ROW_BYTES_MAX <= PUSH_BODY_BYTES_MAX);
const _: () = assert!(
    REPLY_HEAD_BYTES_MAX
        >= 4 * (u16::MAX as usize + 1)
            + 18 * u16::MAX as usize
            + 24 * FOLLOWERS_MAX
            + MOVED_MAX * (ADDRESS_BYTES_MAX + 32)
);
