//! Servers that lend slots outside their memory, or reply too late: the client rejects their rows.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use lodestore_client::ClientError;
use lodestore_schema::limits::LENT_FOR;
use lodestore_schema::reply::{Description, TensorDescription};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;

const N_SLOTS: usize = 4096;

/// A server that handles one client after another and lends rows in the given slots after a delay.
#[derive(Clone, Copy)]
struct Strange {
    slots: fn(usize) -> u32,
    delay: Duration,
    tier_bytes: u64,
}

impl Strange {
    /// Serves until the client disconnects.
    fn serve(self, mut stream: UnixStream) -> std::io::Result<()> {
        let mut theirs = [0; HELLO_BYTES];
        stream.read_exact(&mut theirs)?;
        stream.write_all(&WireVersions::SPOKEN.answer(&theirs).0.unwrap())?;
        let tier = memory((N_SLOTS * ROW_BYTES) as u64);
        loop {
            let mut prefix = [0; PREFIX_BYTES];
            stream.read_exact(&mut prefix)?;
            let prefix = Prefix::of_request(prefix).unwrap();
            let (mut head, mut body) = (vec![0; prefix.head_bytes], vec![0; prefix.body_bytes]);
            stream.read_exact(&mut head)?;
            stream.read_exact(&mut body)?;
            let n_ids = body.len() / 4;
            match Request::decode(&head).unwrap().body {
                RequestBody::Describe => send(&stream, &Reply::Description(description()), None),
                RequestBody::Share => {
                    let (n_bytes, n_tensors) = (1 << 20, 1);
                    let ring = memory(n_bytes.into());
                    send(&stream, &Reply::Shared { n_bytes, n_tensors }, Some(&ring));
                }
                RequestBody::Lend { tensor: 0 } => {
                    send(
                        &stream,
                        &Reply::Lent { n_bytes: self.tier_bytes, offset: 0 },
                        Some(&tier),
                    );
                }
                RequestBody::Pull { .. } => {
                    std::thread::sleep(self.delay);
                    let mut frame = Vec::new();
                    let versions = lodestore_schema::Versions::default();
                    let rows = Reply::LentRows { first_row: 0, n_rows: n_ids as u32, versions };
                    rows.append_to(n_ids * 4, &mut frame);
                    frame.extend((0..n_ids).flat_map(|at| (self.slots)(at).to_le_bytes()));
                    stream.write_all(&frame)?;
                }
                RequestBody::Taken => {}
                other => panic!("{other:?} from the client"),
            }
        }
    }
}

fn description() -> Description {
    let tensor = TensorDescription {
        name: "feat".into(),
        dtype: "f32".into(),
        width: WIDTH,
        row_bytes: ROW_BYTES as u32,
        uuid: [0; 16],
        stripe_rows: 64,
    };
    Description {
        graph: [7; 16],
        bounds: vec![0, N_NODES],
        parts: vec![0],
        tensors: vec![tensor],
        n_shards: 1,
        version: 1,
        shares: true,
        instance: 7,
        ..Description::default()
    }
}

fn memory(n_bytes: u64) -> File {
    let file = File::from(memfd_create(c"rows", MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(n_bytes).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

fn send(stream: &UnixStream, reply: &Reply, with: Option<&File>) {
    let mut frame = Vec::new();
    reply.append_to(0, &mut frame);
    let descriptors: Vec<_> = with.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(&frame)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Returns the result of a pull from such a server.
fn pull_of(strange: Strange) -> Result<Vec<u8>, ClientError> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    for path in [socket.clone(), shard_socket(&socket, 0)] {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Returns an error when the client disconnects.
                let _ = strange.serve(stream);
            }
        });
    }
    let deadline = 2 * LENT_FOR + Duration::from_secs(5);
    let config = ClientConfig { attempts: 1, deadline, ..ClientConfig::default() };
    let client = Client::connect(&[format!("unix:{}", socket.display())], config)?;
    let mut out = vec![0xEE; 2000 * ROW_BYTES];
    client.sync_pull("feat", &ids(2000), &mut out)?;
    Ok(out)
}

const SOUND: Strange = Strange {
    slots: |at| at as u32,
    delay: Duration::ZERO,
    tier_bytes: (N_SLOTS * ROW_BYTES) as u64,
};

#[test]
fn slots_outside_the_lent_memory_are_rejected() {
    assert_eq!(pull_of(SOUND).unwrap(), vec![0; 2000 * ROW_BYTES], "rows in valid slots");
    let liars: [fn(usize) -> u32; 3] =
        [|at| at as u32 + 3000, |_| u32::MAX, |at| if at == 1999 { N_SLOTS as u32 } else { 0 }];
    for slots in liars {
        let error = pull_of(Strange { slots, ..SOUND }).unwrap_err();
        assert!(matches!(error, ClientError::Wire { .. }), "{error}");
    }
    // The client borrows nothing from a server that overstates the size of its tier. This server
    // lends rows all the same.
    let tier_bytes = SOUND.tier_bytes + 1;
    let error = pull_of(Strange { tier_bytes, ..SOUND }).unwrap_err();
    assert!(error.to_string().contains("not shared their memory"), "{error}");
}

#[test]
fn rows_copied_after_the_end_of_a_loan_are_rejected() {
    let delay = LENT_FOR + Duration::from_millis(100);
    let error = pull_of(Strange { delay, ..SOUND }).unwrap_err();
    assert!(matches!(error, ClientError::Unavailable { .. }), "{error}");
}
