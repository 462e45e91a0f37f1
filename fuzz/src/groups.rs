//! zstd row groups: a compressed segment that is sound but for what its groups hold.

use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};
use lodestore_graph::PartId;
use lodestore_store::codec::SegmentCodec;
use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::CrashFileSystem;
use lodestore_store::plan::{DiskProfile, ReadPlan};
use lodestore_store::reader::{MemoryReader, RowReader};
use lodestore_store::segment::{Segment, SegmentIdentity, SegmentWriter};
use lodestore_store::{Dtype, RowIdx, TensorSpec};
use uuid::Uuid;

use crate::input_file::{PAGE, put_u32};
use crate::memory::bounded;
use crate::segment::{reseal, stored_row};

/// A segment's shape and what its groups hold.
#[derive(Arbitrary, Debug)]
struct GroupInput<'a> {
    row_bytes: u16,
    n_rows: u8,
    group_rows: u8,
    groups: Vec<Group<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Group<'a> {
    /// Whatever is there.
    Bytes(&'a [u8]),
    /// A frame of other rows, of whatever length.
    Frame { raw: &'a [u8], repeat: u8, level: u8 },
}

/// Opens the segment and reads each row, alone and with its neighbours.
pub fn run(data: &[u8]) {
    let Ok(input) = GroupInput::arbitrary(&mut Unstructured::new(data)) else { return };
    let (identity, codec) = input.identity();
    let file = input.file(&identity, codec);
    let (fs, path) = (CrashFileSystem::new(0), Path::new("feat.v1.seg"));
    fs.create(path).and_then(|mut at| at.append(&file)).expect("room in memory");
    let Ok(segment) = bounded(file.len(), || Segment::open(&fs, path, &identity)) else {
        return;
    };
    let layout = segment.layout().clone();
    let reader = MemoryReader::load(segment).expect("the length was checked");
    let profile = DiskProfile::default();
    let (mut plan, mut row) = (ReadPlan::default(), vec![0; layout.row_bytes()]);
    let mut sound = Vec::new();
    for row_idx in (0..identity.n_rows).map(RowIdx) {
        plan.build(&[row_idx], &layout, &profile).expect("a row of the segment");
        if bounded(file.len(), || reader.execute(&plan, &mut row)).is_ok() {
            assert!(stored_row(&file, &layout, row_idx) == row, "{row_idx:?}");
            sound.push(row_idx);
        }
    }
    plan.build(&sound, &layout, &profile).expect("rows of the segment");
    let mut rows = vec![0; sound.len() * layout.row_bytes()];
    reader.execute(&plan, &mut rows).expect("rows that can be read alone can be read together");
}

impl GroupInput<'_> {
    fn identity(&self) -> (SegmentIdentity, SegmentCodec) {
        let width = u32::from(self.row_bytes % 700) + 1;
        let identity = SegmentIdentity {
            graph: Uuid::from_u128(1),
            segment: Uuid::from_u128(2),
            part: PartId(0),
            version: 1,
            tensor: TensorSpec::new("feat", Dtype::U8, width).expect("a tensor"),
            n_rows: u32::from(self.n_rows % 40),
            delta_of: None,
        };
        let group_rows = u32::from(self.group_rows % 9) + 1;
        (identity, SegmentCodec::Zstd { group_rows })
    }

    /// Returns the file: pages of the groups, tables and footer that fit them.
    fn file(&self, identity: &SegmentIdentity, codec: SegmentCodec) -> Vec<u8> {
        let SegmentCodec::Zstd { group_rows } = codec else { return Vec::new() };
        let n_groups = identity.n_rows.div_ceil(group_rows);
        let groups = (0..n_groups).map(|group| {
            let n_rows = group_rows.min(identity.n_rows - group * group_rows);
            self.stored(group, n_rows as usize * identity.tensor.row_bytes())
        });
        let groups: Vec<Vec<u8>> = groups.collect();
        let data = groups.concat();
        let mut file = header_of(identity, codec);
        file.extend_from_slice(&data);
        file.resize(file.len().next_multiple_of(PAGE), 0);
        let (table_at, n_pages) = (file.len(), data.len().div_ceil(PAGE));
        file.resize((table_at + 4 * n_pages).next_multiple_of(PAGE), 0);
        let lengths = groups.iter().flat_map(|group| (group.len() as u32).to_le_bytes());
        file.extend(lengths);
        file.resize(file.len().next_multiple_of(PAGE), 0);
        let footer_at = file.len();
        file.resize(footer_at + PAGE, 0);
        file[footer_at..footer_at + 8].copy_from_slice(b"LODEEND\0");
        let words =
            [(16, table_at), (24, footer_at - table_at), (32, file.len()), (176, data.len())];
        for (at, word) in words {
            put_u32(&mut file, footer_at + at, word as u32);
        }
        put_u32(&mut file, footer_at + 184, group_rows);
        reseal(&mut file, 0xff);
        file
    }
}

impl GroupInput<'_> {
    /// Returns what the file holds of a group of `raw_bytes`: at least a byte, and no more than
    /// those.
    fn stored(&self, group: u32, raw_bytes: usize) -> Vec<u8> {
        let mut stored = match self.groups.get(group as usize) {
            Some(group) => group.stored(),
            None => vec![group as u8; raw_bytes],
        };
        stored.truncate(raw_bytes);
        stored.resize(stored.len().max(1), 0);
        stored
    }
}

impl Group<'_> {
    fn stored(&self) -> Vec<u8> {
        match self {
            Group::Bytes(bytes) => bytes.to_vec(),
            Group::Frame { raw, repeat, level } => {
                let raw = raw.repeat(usize::from(*repeat) + 1);
                zstd::bulk::compress(&raw, i32::from(level % 4) - 1).expect("room in memory")
            }
        }
    }
}

/// Returns the header page of a sound segment.
fn header_of(identity: &SegmentIdentity, codec: SegmentCodec) -> Vec<u8> {
    let (fs, path) = (CrashFileSystem::new(0), Path::new("s"));
    drop(SegmentWriter::create(&fs, path, identity, codec).expect("a segment"));
    let file = fs.open(path).expect("a segment");
    let mut page = vec![0; PAGE];
    file.read_exact_at(&mut page, 0).expect("a header");
    page
}

/// Returns groups as an import writes them, broken ones, and such as unpack to other lengths.
pub fn seeds() -> Vec<Vec<u8>> {
    // Freely chosen bytes: the first spells the shape, what follows are groups.
    [0u8, 3, 7, 0xff].map(|byte| (0..200u8).map(|i| i.wrapping_mul(byte)).collect()).into()
}
