//! Segments: whatever the file, it is refused, or every row given comes from pages whose checksums
//! held.

use std::path::Path;

use lodestore_graph::PartId;
use lodestore_store::codec::SegmentCodec;
use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::CrashFileSystem;
use lodestore_store::layout::SegmentLayout;
use lodestore_store::plan::{DiskProfile, ReadPlan};
use lodestore_store::reader::{MemoryReader, RowReader};
use lodestore_store::segment::{Segment, SegmentIdentity, SegmentWriter};
use lodestore_store::{Dtype, RowIdx, TensorSpec};
use uuid::Uuid;

use crate::input_file::{PAGE, crc_from, expand, put_u32, seal_page, squeeze, u32_at, u64_at};
use crate::memory::bounded;

/// Opens a segment, and compares its rows with the file. The first byte says which checksums are
/// made right, the second which segment is expected. The rest spells the file.
pub fn run(data: &[u8]) {
    let &[seals, shape, ref spelled @ ..] = data else { return };
    let expected = identity(shape);
    let mut file = expand(spelled);
    reseal(&mut file, seals);
    let (fs, path) = (CrashFileSystem::new(0), Path::new("feat.v1.seg"));
    fs.create(path).and_then(|mut at| at.append(&file)).expect("room in memory");
    let opened = bounded(file.len(), || Segment::open(&fs, path, &expected));
    let Ok(segment) = opened else { return };
    assert_eq!(segment.identity(), &expected);
    check_list(&file, &expected, segment.listed_rows());
    let (layout, n_rows) = (segment.layout().clone(), expected.n_rows);
    let reader = MemoryReader::load(segment).expect("the length was checked");
    let (mut plan, mut row) = (ReadPlan::default(), vec![0; layout.row_bytes()]);
    for row_idx in (0..n_rows).map(RowIdx) {
        plan.build(&[row_idx], &layout, &DiskProfile::default()).expect("a row of the segment");
        let read = bounded(file.len(), || reader.execute(&plan, &mut row));
        if read.is_ok() {
            let pages = layout.row_pages(row_idx).expect("a row of the segment");
            pages.for_each(|page| check_page(&file, &expected, page as usize));
            assert!(stored_row(&file, &layout, row_idx) == row, "{row_idx:?}");
        }
    }
}

/// Returns the row as the file has it, found by other code than that under test.
pub fn stored_row(file: &[u8], layout: &SegmentLayout, row: RowIdx) -> Vec<u8> {
    let span = layout.row_range(row).expect("a row of the segment");
    let stored = &file[PAGE + span.start as usize..PAGE + span.end as usize];
    let Some(groups) = layout.groups() else { return stored.to_vec() };
    let first = groups.first_row(groups.group_of(row)).0;
    let n_rows = groups.group_rows().min(layout.n_rows() - first) as usize;
    let n_bytes = n_rows * layout.row_bytes();
    let mut unpacked = stored.to_vec();
    // A group that does not shrink is stored raw.
    if stored.len() < n_bytes {
        unpacked = zstd::bulk::decompress(stored, n_bytes).expect("what was read can be unpacked");
    }
    let start = (row.0 - first) as usize * layout.row_bytes();
    unpacked[start..start + layout.row_bytes()].to_vec()
}

/// Asserts that the rows of a delta ascend, are those of its list in the file, and are in its
/// partition.
fn check_list(file: &[u8], identity: &SegmentIdentity, listed: &[u32]) {
    let Some(n_all) = identity.delta_of else { return assert!(listed.is_empty()) };
    assert_eq!(listed.len(), identity.n_rows as usize);
    assert!(listed.is_sorted_by(|a, b| a < b) && listed.last().is_none_or(|last| *last < n_all));
    let list = list_at(file, listed.len());
    let found = (0..listed.len()).map(|at| u32_at(file, list + 4 * at));
    assert!(found.eq(listed.iter().copied()), "{listed:?}");
}

/// Returns where the row list of a delta of `n_rows` rows begins: before the footer.
fn list_at(file: &[u8], n_rows: usize) -> usize {
    file.len() - PAGE - (4 * n_rows).next_multiple_of(PAGE)
}

/// Returns sound segments of several shapes and codecs, as they are spelled, and deltas with bad
/// lists. A bad list is out of order, has a row twice, or has one that is not of the partition,
/// with checksums that hold.
pub fn seeds() -> Vec<Vec<u8>> {
    let spelled = |shape: u8, codec| {
        let (fs, path, identity) = (CrashFileSystem::new(0), Path::new("s"), identity(shape));
        let rows: Vec<u32> = (0..identity.n_rows).map(listed_row).collect();
        let writer = match identity.delta_of {
            Some(_) => SegmentWriter::create_delta(&fs, path, &identity, codec, &rows),
            None => SegmentWriter::create(&fs, path, &identity, codec),
        };
        let mut writer = writer.expect("a segment");
        for row in 0..identity.n_rows {
            let bytes: Vec<u8> = (0..identity.tensor.row_bytes())
                .map(|column| if column % 97 == row as usize % 5 { row as u8 } else { 0 })
                .collect();
            writer.write_rows(&bytes).expect("a row");
        }
        writer.finish().expect("a segment");
        let file = fs.open(path).expect("a segment");
        let mut bytes = vec![0; file.len_bytes().expect("a length") as usize];
        file.read_exact_at(&mut bytes, 0).expect("bytes");
        bytes
    };
    let codecs = [SegmentCodec::Raw, SegmentCodec::Zstd { group_rows: 3 }];
    let seeds = (0..16).filter(|shape| shape % 8 != 0 || *shape == 0);
    let seeds = seeds.flat_map(|shape| codecs.map(|codec| (shape, codec)));
    let seeds = seeds.flat_map(|(shape, codec)| [0, 0xff].map(|seals| (seals, shape, codec)));
    let sound = seeds.map(|(seals, shape, codec)| {
        [vec![seals, shape], squeeze(&spelled(shape, codec))].concat()
    });
    // In the delta with seven rows.
    let edits = [(2, listed_row(4)), (2, listed_row(1)), (6, listed_row(6) + 2), (6, u32::MAX)];
    let wrong = edits.map(|(at, row)| {
        let mut file = spelled(10, SegmentCodec::Raw);
        let list = list_at(&file, 7);
        put_u32(&mut file, list + 4 * at, row);
        [vec![0xff, 10], squeeze(&file)].concat()
    });
    sound.chain(wrong).collect()
}

/// Returns the row of the partition that is in place `at` of a delta.
fn listed_row(at: u32) -> u32 {
    2 * at + 1
}

/// Returns one of sixteen segments: those from the ninth on are deltas.
fn identity(shape: u8) -> SegmentIdentity {
    let (n_rows, dtype, width) = match shape % 8 {
        0 => (0, Dtype::F32, 3),
        1 => (1, Dtype::U8, 1),
        2 => (7, Dtype::F32, 2),
        3 => (3, Dtype::I64, 1),
        4 => (9, Dtype::F16, 300),
        5 => (2, Dtype::U8, 5000),
        6 => (900, Dtype::U8, 5),
        _ => (4, Dtype::BF16, 2048),
    };
    SegmentIdentity {
        graph: Uuid::from_u128(0x6000),
        segment: Uuid::from_u128(0x5e60),
        part: PartId(3),
        version: 1,
        tensor: TensorSpec::new("feat", dtype, width).expect("a tensor"),
        n_rows,
        delta_of: (shape % 16 >= 8).then_some(2 * n_rows + 1),
    }
}

/// Makes right what `seals` names: header, copy and lengths in the footer, table, footer, pages.
pub fn reseal(file: &mut [u8], seals: u8) {
    if file.len() < 2 * PAGE || !file.len().is_multiple_of(PAGE) {
        return;
    }
    let footer_at = file.len() - PAGE;
    if seals & 1 != 0 {
        seal_page(&mut file[..PAGE]);
    }
    let table_at = u64_at(file, footer_at + 16) as usize;
    let table = PAGE..footer_at;
    if seals & 2 != 0 && table.contains(&table_at) {
        for page in 0..table_at / PAGE - 1 {
            let (from, to) = (PAGE * (page + 1), table_at + 4 * page);
            let crc = crc_from(page_seed(file, page), &[&file[from..from + PAGE]]);
            if to + 4 <= footer_at {
                put_u32(file, to, crc);
            }
        }
    }
    if seals & 4 != 0 && (PAGE..=footer_at).contains(&table_at) {
        let crc = crc32fast::hash(&file[table_at..footer_at]);
        put_u32(file, footer_at + 8, crc);
    }
    if seals & 8 != 0 {
        let (header, footer) = file.split_at_mut(footer_at);
        put_u32(footer, 12, u32_at(header, PAGE - 4));
        footer[40..176].copy_from_slice(&header[..136]);
        footer[184..196].copy_from_slice(&header[136..148]);
    }
    if seals & 16 != 0 {
        seal_page(&mut file[footer_at..]);
    }
}

fn page_seed(file: &[u8], page: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&file[32..48]);
    hasher.update(&(page as u64).to_le_bytes());
    hasher.finalize()
}

/// Asserts that the page's checksum, computed here, is the one in the table.
fn check_page(file: &[u8], identity: &SegmentIdentity, page: usize) {
    assert_eq!(&file[32..48], identity.segment.as_bytes());
    let table_at = u64_at(file, file.len() - PAGE + 16) as usize;
    let found = crc_from(page_seed(file, page), &[&file[PAGE * (page + 1)..][..PAGE]]);
    assert_eq!(found, u32_at(file, table_at + 4 * page), "page {page}");
}
