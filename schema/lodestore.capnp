# The wire of Lodestore, version 6; peers of versions 3 to 5 are understood.
#
# A connection opens with a 16-byte hello in both directions, in which the ends agree on the newest version
# that both speak (src/hello.rs); RequestBody::versions has the versions of each request. After it every message
# is a frame (src/frame.rs): an 8-byte prefix with two lengths, a head, a body. The head is one of
# the two structs below in Cap'n Proto's standard stream framing. The body is bulk bytes that no
# struct wraps: node ids of a pull (u32, little-endian) towards the server, rows back to back
# towards the client; of a push, ids and then rows. So bulk is read and written in place, and the
# head stays small enough to be bounded before anything is allocated.
#
# Requests may be sent before earlier ones are answered; answers come in their order. A client that
# closes its end, even for sending alone, has given up what is not answered yet.
#
# Over a Unix socket a client may ask for memory that both map (`share`, where Description.shares says
# that the server knows of it). Larger chunks of rows then come there, see SharedRows, and the client
# sends nothing but `taken` between a pull and the end of its answer. Where Shared.tensors says so it may
# then also ask for a look at the rows that the server keeps in memory (`lend`), and receive their
# places, see LentRows, instead of being given copies.

@0xd4a6f0c1b7e2935c;

struct Request {
  deadlineMs @0 :UInt32;
  # Time the client will still wait, from when it sent this. 0: no deadline.

  sentUs @8 :UInt64;
  # When it sent this, by its own clock, from the start of the connection. The least difference to
  # the server's clock that a connection has had shows how long a later request has waited to be
  # read, without a clock in common. 0: not sent, and the deadline counts from being read.

  graph @9 :UInt64;
  # What the request means, 0 for any: a port may have been given to the server of another graph since it
  # was described, and a tensor may have been dropped and made again. From version 6 on a pull or a push
  # has the tag of its tensor here, and a request for a volatile tensor the tag of its shape; else, and
  # before version 6, the first eight bytes of Description.graph, big-endian. `src/tags.rs` has all three.

  version @10 :UInt32;
  # Of a pull: the only committed version whose rows will do. 0: the newest of each partition.

  atLeast @15 :UInt32;
  # Of a pull: the lowest version of each partition that will do; `behind` where one is lower here.

  floors @16 :List(PartVersion);
  # Partitions of which a higher version than `atLeast` is wanted, or one of another commit, FLOORS_MAX
  # at most.

  atLeastTag @23 :UInt64;
  # From version 6 on: the tag of the commit that made `atLeast`; 0: unknown. A server that has made that
  # version by another commit answers `otherHistory`.

  floorTags @24 :List(UInt64);
  # The same of each of `floors`.

  exactly @25 :Bool;
  # From version 6 on, of a pull: `atLeast` and `floors` are the versions to read, and not the lowest
  # ones.

  union {
    describe @1 :Void;
    pull @2 :Pull;
    stat @3 :Void;
    push @4 :Push;
    commit @5 :Commit;
    compact @6 :Void;  # Starts folding what is committed into segments, or joins what waits to start.
    authenticate @7 :Data;
    # The token, as the first request of a connection where the server wants one. It has no answer of
    # its own: after a wrong one comes a failure, and then the end.
    share @11 :Void;   # Once, and with nothing in flight: memory for the rows of this connection.
    taken @12 :Void;   # The oldest chunk of SharedRows that is awaited has been copied, or all of an
                       # answer of which some rows were lent. No answer.
    copy @13 :Copy;    # A step of moving a partition; its files come by `follow` (docs/replication.md).
    follow @17 :Follow;  # Files of a partition for a server that follows this one.
    lend @14 :UInt16;  # Once for each tensor (its position in Description.tensors), after `share` and
                       # with nothing in flight: the memory of this shard that keeps rows of it.
    # Volatile tensors, from version 5 on: rows in memory alone, each with a stamp. Their names are
    # apart from those of Description.tensors, and any shard answers for all rows of its server.
    declare @18 :Declare;   # The answer is `declared`; nothing happens if it is there as it is wanted.
    volatile @19 :Text;     # What is known of the tensor with this name: `declared`.
    claim @20 :Text;
    # The right to publish rows of the tensor with this name, until the connection ends. The body holds
    # pairs of node ids (u32), first and end, CLAIM_RANGES_MAX at most, each of whole ranges of the tensor.
    # All are claimed or none. What the connection has already is claimed again, without its rows.
    publish @21 :Publish;
    pullVolatile @22 :PullVolatile;
  }
}

struct Declare {
  name @0 :Text;
  dtype @1 :Text;
  width @2 :UInt32;
  rangeRows @3 :UInt32;
  # Rows that are claimed together, counted from the start of each partition. 0: all of a partition.
}

struct Publish {
  # The body holds nRows node ids (u32) and then as many rows back to back. Rows of one node keep the
  # last. After `older` all rows without a later stamp are published.
  name @0 :Text;
  nRows @1 :UInt32;
  stamp @2 :UInt32;     # 4294967294 at most; the stamps of a row never go back within a claim
}

struct PullVolatile {
  # The body holds the node ids. The answer is that of a pull, zeros for rows that are not there, and
  # then `stamps`.
  name @0 :Text;
  minStamp @1 :UInt32;  # rows with a lower stamp are not there
  waitMs @2 :UInt32;    # how long rows that are not there are waited for
}

struct Copy {
  # A connection copies one partition at a time, and the copy ends with it. Every answer is `copied`.
  part @0 :UInt16;
  step :union {
    open @1 :UInt64;        # Begins; the number of the move, by which the source tells an old one, or 0
                            # for a copy that takes nothing away.
    seal @2 :Void;          # No more puts, commits and compactions for a moment.
    pending @3 :Void;       # Once sealed, the next rows that are not committed; `store/src/transfer/piece.rs`
                            # has what the body is.
    release @4 :Void;       # The source gives the partition up, for good.
    adopt @5 :Void;         # Asked of the target: its folder is there now, serve it. Needs no `open`.
    expect @6 :UInt64;      # Asked of the target: fails unless the copy of the move with this number
                            # comes together in its folder. Needs no `open`.
  }
  to @7 :Text;
  # Of `release`: the address of the server that takes the partition over, as the mover has it; empty:
  # unknown. Earlier servers pass over it.
}

struct PartVersion {
  part @0 :UInt16;
  version @1 :UInt32;
}

struct Follow {
  # A connection holds the files of one version of one partition, from `manifest` on until the next
  # one or its end. Every answer is `followed`.
  part @0 :UInt16;
  step :union {
    manifest @1 :Void;      # The files of the newest version, and what says so as the body.
    read @2 :FollowRead;    # A piece of a file.
    serves @3 :FollowServes;  # From version 6 on: the version that the follower serves.
  }
}

struct FollowServes {
  version @0 :UInt32;
  tag @1 :UInt64;           # of the commit that made it; 0: unknown
  instance @2 :UInt64;      # Description.instance of the follower; 0: it serves nobody yet
}

struct FollowRead {
  file @0 :UInt16;          # position in Followed.files
  offset @1 :UInt64;
}

struct Push {
  # A piece of a put, whose rows take the place of others at the next commit. The body holds nRows node
  # ids (u32), all of one partition, and then as many rows back to back. The rows of all pieces are put
  # by one write when the last has come, or none is; of two rows of one node the later counts.
  tensor @0 :UInt16;
  nRows @1 :UInt32;
  putHigh @2 :UInt64;   # a number of 128 bits that the client has drawn for the put
  putLow @3 :UInt64;
  piece @4 :UInt32;     # counted from 0; a piece that is there already is answered and not read
  isLast @5 :Bool;
  totalRows @6 :UInt32; # of all pieces for this partition
}

struct Commit {
  version @0 :UInt32;
  # What was put becomes this version. Nothing happens if it is committed already, so that a commit
  # whose answer was lost can be repeated.
  step @1 :CommitStep;
  labelHigh @2 :UInt64;
  labelLow @3 :UInt64;
  # From version 6 on: the id of the commit, drawn once by the client for all servers. 0: the server draws
  # one. The first `prepare` of a version fixes its label.
}

enum CommitStep {
  prepare @0;  # Everything that the version needs is made durable, and not visible.
  publish @1;  # Readers see the version.
}

struct Pull {
  tensor @0 :UInt16;
  # Position in Description.tensors. The body holds the node ids.
  kind @1 :PullKind;
}

enum PullKind {
  sync @0;    # SyncPull: the miss set of a batch, latency-bound.
  vector @1;  # VectorPull: bulk, throughput-bound.
}

struct Reply {
  union {
    rows @0 :Rows;
    description @1 :Description;
    failure @2 :Failure;
    stats @3 :Stats;
    pushed @4 :Pushed;
    committed @5 :Committed;
    compacting @6 :Compacting;
    shared @7 :Shared;
    sharedRows @8 :SharedRows;
    copied @9 :Copied;
    lent @10 :Lent;
    lentRows @11 :LentRows;
    followed @12 :Followed;
    declared @13 :Declared;
    claimed @14 :Claimed;
    published @15 :Published;
    stamps @16 :Stamps;
  }
}

struct Declared {
  dtype @0 :Text;
  width @1 :UInt32;
  rowBytes @2 :UInt32;
  rangeRows @3 :UInt32;
}

struct Claimed {
  nRows @0 :UInt64;   # of all ranges that were claimed
}

struct Published {
  nRows @0 :UInt32;
}

struct Stamps {
  # After the last chunk of `pullVolatile`: the body holds for each id the stamp of its row (u32), or
  # 4294967295 for a row that is not there.
  nRows @0 :UInt32;
}

struct Copied {
  version @0 :UInt32;             # the partition's committed version; of `seal` and `adopt`
  isGivenUp @1 :Bool;             # of `open`: this move has taken the partition away before
  isLast @2 :Bool;                # of `pending`: no piece comes after this one
  crc32 @3 :UInt32;               # of the body: rows
}

struct Followed {
  version @0 :UInt32;             # of `manifest`
  files @1 :List(FollowedFile);   # of `manifest`
  isLast @2 :Bool;                # of `read`: no piece comes after this one
  crc32 @3 :UInt32;               # of the body
}

struct FollowedFile {
  name @0 :Text;
  nBytes @1 :UInt64;
}

struct Pushed {
  # After the last piece: the rows are durable, and readers see them from the version's commit on.
  version @0 :UInt32;  # that they are for; 0 after another piece
}

struct Committed {
  version @0 :UInt32;  # the newest one that has come so far; that asked for or later
  labelHigh @1 :UInt64;
  labelLow @2 :UInt64;
  # From version 6 on: the label of the version that was asked for, as this server has fixed it; 0: unknown.
}

struct Compacting {
  run @0 :UInt64;  # done when Updates.runsEnded has reached it
}

struct Rows {
  # One chunk of a pull's answer. Chunks come in order and cover the request's ids without gaps;
  # the body holds nRows rows back to back.
  firstRow @0 :UInt32;
  nRows @1 :UInt32;
  version @2 :UInt32;
  # In the last chunk: the versions that the rows are of. This is the lowest of the partitions involved.
  above @3 :List(PartVersion);
  # Partitions of which they are of a higher one, or of another commit, FLOORS_MAX at most.
  tag @4 :UInt64;               # of the commit that made `version`; 0: unknown, or before version 6
  aboveTags @5 :List(UInt64);   # the same of each of `above`
}

struct Shared {
  # With the first byte of this frame comes the descriptor of a memfd (SCM_RIGHTS), which the server
  # has sealed: its size does not change, and the server alone writes to it.
  nBytes @0 :UInt32;
  tensors @1 :UInt16;  # how many may be asked for by `lend`: those at positions below
}

struct Lent {
  # The descriptor comes as that of Shared, sealed like it, to be read. The memory is one slot after the
  # other, a row long each, from an offset in the file on. 0 bytes: rows of it are not lent, and no
  # descriptor comes.
  nBytes @0 :UInt64;
  offset @1 :UInt64;
}

struct LentRows {
  # A chunk as Rows has it, whose rows are taken from the memory that was lent; the body holds for
  # each row its slot there (u32). All such chunks of an answer come before all others. The rows stay
  # there until the client says `taken`, once, after the last chunk of the answer, or asks for something
  # else, or leaves; one that does neither has them for 5 s from when it sent the pull: what it has
  # copied later than that it must not believe. A failure in place of a later chunk ends it immediately.
  firstRow @0 :UInt32;
  nRows @1 :UInt32;
  version @2 :UInt32;            # as in Rows
  above @3 :List(PartVersion);
  tag @4 :UInt64;
  aboveTags @5 :List(UInt64);
}

struct SharedRows {
  # A chunk as Rows has it, whose rows are in the shared memory; there is no body.
  firstRow @0 :UInt32;
  nRows @1 :UInt32;
  offset @2 :UInt32;   # of its first byte, in the memory
  awaited @3 :Bool;
  # Whether the server waits for `taken` before it writes there again. What is not awaited may be
  # overwritten by the answer to the next pull.
  version @4 :UInt32;            # as in Rows
  above @5 :List(PartVersion);
  tag @6 :UInt64;
  aboveTags @7 :List(UInt64);
}

struct Description {
  graph @0 :Data;               # 16-byte uuid
  nEdges @1 :UInt64;
  bounds @2 :List(UInt32);      # partition book, parts + 1 entries
  parts @3 :List(UInt16);       # partitions that this server holds
  tensors @4 :List(Tensor);
  shardPorts @5 :List(UInt16);  # TCP port of each shard; empty when the server has no TCP listener
  nShards @6 :UInt16;
  version @7 :UInt32;           # the lowest that its partitions have
  writable @8 :Bool;            # whether pushes, commits and compactions are taken
  shares @9 :Bool;              # whether `share` is known, over Unix sockets
  roams @10 :Bool;              # whether partitions come and go: `copy` may release and adopt them
  obsolete11 @11 :List(UInt32);
  obsolete12 @12 :List(UInt16);
  arriving @13 :List(UInt16);   # partitions that are on their way to this server
  obsolete14 @14 :List(UInt64);
  instance @15 :UInt64;
  # Drawn by the server when it started, never 0: of two addresses that tell the same it has both.
  versions @16 :List(UInt32);   # the committed version of each of `parts`; from version 4 on
  roles @17 :List(Role);        # what the server is to each of `parts`; from version 4 on
  tags @18 :List(UInt64);
  # The tag of the commit that made each of `versions`, 0 where it is unknown; from version 6 on.
  followers @19 :List(Follower);  # those that fetch versions from this server; from version 6 on
  moved @20 :List(Moved);
  # Partitions that this server gave up, and the servers that took them over, as far as that is known;
  # MOVED_MAX at most.
}

struct Moved {
  part @0 :UInt16;
  to @1 :Text;          # address, as `copy.to` of `release` had it
}

struct Follower {
  part @0 :UInt16;
  version @1 :UInt32;   # as it has said last (`follow.serves`)
  tag @2 :UInt64;
  instance @3 :UInt64;  # its own Description.instance
}

enum Role {
  reader @0;    # It takes no puts, and no versions from anywhere.
  writer @1;    # It takes puts: the one server that does.
  follower @2;  # It fetches versions from the writer.
}

struct Tensor {
  name @0 :Text;
  dtype @1 :Text;
  width @2 :UInt32;
  rowBytes @3 :UInt32;
  stripeRows @4 :UInt32;  # rows of a stripe: stripe s of partition p belongs to shard (s + p) mod nShards
  uuid @5 :Data;          # 16 bytes: by it a tensor is told from one of the same name that was dropped; from version 6 on
}

struct Failure {
  code @0 :FailureCode;
  message @1 :Text;
  retryAfterMs @2 :UInt32;
}

enum FailureCode {
  invalid @0;      # the request is wrong and will stay wrong
  tooLarge @1;     # past a limit
  notFound @2;     # no such tensor, node or partition here
  damaged @3;      # the data on disk failed its checksum
  overloaded @4;   # try again after retryAfterMs
  deadline @5;     # the deadline passed before the answer was ready
  stopping @6;     # the server is going down
  internal @7;     # a fault of the server
  readOnly @8;     # the server takes no updates
  unauthenticated @9;  # a token is wanted first, and this was none or another
  elsewhere @10;   # another graph is served here, or not this partition: ask `describe` again
  otherVersion @11;  # there are no rows of the version that was asked for
  unsupported @12;   # not a request of this connection's wire version; from version 4 on
  behind @13;      # a lower version is here than the lowest that will do: ask another, or later
  putLost @14;     # pieces of the put are missing here: send all of it again
  held @15;        # another connection has claimed the rows; from version 5 on, as those below
  notOwned @16;    # the rows are to be claimed before they are published
  older @17;       # a row is there with a later stamp
  otherHistory @18;  # the version is here by another commit; from version 6 on
}

struct Stats {
  shards @0 :List(ShardStats);
  updates @1 :Updates;
  volatileTensors @2 :UInt32; # declared
  volatileBytes @3 :UInt64;   # memory that they may take
}

struct Updates {
  version @0 :UInt32;         # the newest committed one
  writable @1 :Bool;          # whether pushes, commits and compactions are taken
  committedRows @2 :UInt64;   # rows over segments that a compaction would fold in
  pendingRows @3 :UInt64;     # rows put for the version that comes after
  runsAsked @4 :UInt64;       # compactions since the server started, those that wait included
  runsEnded @5 :UInt64;
  runBytes @6 :UInt64;        # written by the compaction that runs
  runBytesTotal @7 :UInt64;   # that it will write
  runFailure @8 :Text;        # why the compaction that ended last has failed; empty if it has not
  publishes @9 :Bool;         # whether versions are published in a bucket
  published @10 :UInt32;      # the lowest published version of its partitions; 0 before the first
  follows @11 :Text;
  # Of a follower: where its versions come from, addresses or a URL, separated by commas; else empty.
  versionsBehind @12 :UInt32; # the most that a partition lags behind its source, as last seen
  lookAgeMs @13 :UInt64;      # time since a source was last seen, the longest of all partitions
  followFault @14 :Text;      # why a partition cannot be fetched; empty if all can
}

struct ShardStats {
  requests @0 :UInt64;
  rows @1 :UInt64;
  bytes @2 :UInt64;
  tierHits @3 :UInt64;
  tierMisses @4 :UInt64;
  tierBytes @5 :UInt64;       # bytes that the host tier may hold
  readExtents @6 :UInt64;
  readBytes @7 :UInt64;       # bytes read from disk, whole pages
  forwardedRows @8 :UInt64;   # rows fetched from another shard for a client that is not shard-aware
  failures @9 :UInt64;
  connections @10 :UInt32;    # open now
  pushes @11 :UInt64;         # acknowledged
  pushedRows @12 :UInt64;     # rows of these
  deltaRows @13 :UInt64;      # rows read from deltas
  sharedBytes @14 :UInt64;    # of the bytes of rows, those through memory shared with the client
  preloadedBytes @15 :UInt64; # bytes of rows that were loaded into the tier ahead of pulls
  preloadBytes @16 :UInt64;   # that are to be
  publishedRows @17 :UInt64;  # rows of volatile tensors that were published
  volatileRows @18 :UInt64;   # that were pulled
  lackingRows @19 :UInt64;    # that were asked for and not there in time
}
