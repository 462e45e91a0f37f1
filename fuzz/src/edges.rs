//! Edges as text, plain or compressed: however the text is cut, the same edges or the same error.

use std::cell::RefCell;

use lodestore_graph::edges::{
    EdgeParser, EdgeStream, EdgeTextError, ExtraColumns, TextEdges, parse_edges,
};

use crate::input_file::Scratch;
use crate::memory::bounded;

/// Longer compressed texts are not unpacked: they may be some thousand times as long.
const MAX_COMPRESSED_BYTES: usize = 512;

thread_local! {
    static FILES: RefCell<[Scratch; 3]> =
        RefCell::new([Scratch::new(), Scratch::named("e.gz"), Scratch::named("e.zst")]);
}

/// Reads edges whole and in pieces. The first byte says how the rest is compressed and what is done
/// with further columns. The second says where it is cut, the third how many nodes there are.
pub fn run(data: &[u8]) {
    let &[kind, cut, n_nodes, ref text @ ..] = data else { return };
    let extra = if kind & 4 == 0 { ExtraColumns::Refuse } else { ExtraColumns::Ignore };
    let n_nodes = [u32::MAX, 10, 1000, u32::from(n_nodes)][usize::from(n_nodes) % 4];
    if kind % 4 != 0 {
        return compressed(usize::from(kind % 4 - 1), text, extra, n_nodes);
    }
    let whole = bounded(text.len(), || in_pieces(&[text], extra, n_nodes));
    let pieces: Vec<&[u8]> = text.chunks(usize::from(cut) + 1).collect();
    assert_eq!(in_pieces(&pieces, extra, n_nodes), whole);
    if let Ok(edges) = &whole {
        assert!(edges.as_flattened().iter().all(|&id| id < n_nodes));
        assert_eq!(edges.len(), n_edges_of(text));
    }
    if n_nodes == u32::MAX && extra == ExtraColumns::Refuse {
        assert_eq!(parse_edges(text), whole);
    }
    from_file(0, text, extra, n_nodes, whole.ok());
}

fn in_pieces(
    pieces: &[&[u8]],
    extra: ExtraColumns,
    n_nodes: u32,
) -> Result<Vec<[u32; 2]>, EdgeTextError> {
    let (mut parser, mut edges) = (EdgeParser::new(n_nodes, extra), Vec::new());
    pieces.iter().try_for_each(|piece| parser.feed(piece, &mut edges))?;
    parser.finish(&mut edges)?;
    Ok(edges)
}

/// Returns the number of lines that are neither blank nor comments.
fn n_edges_of(text: &[u8]) -> usize {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !matches!(line.first(), None | Some(b'#' | b'%'))).count()
}

/// Reads compressed text as it is, or plain text after compressing it.
fn compressed(kind: usize, text: &[u8], extra: ExtraColumns, n_nodes: u32) {
    if kind < 2 && text.len() <= MAX_COMPRESSED_BYTES {
        return from_file(kind + 1, text, extra, n_nodes, None);
    }
    let packed = zstd::bulk::compress(text, 1).expect("room in memory");
    let edges = in_pieces(&[text], extra, n_nodes).ok();
    from_file(2, &packed, extra, n_nodes, edges);
}

/// Checks that edges that can be opened are the same at every pass, and `known` where it is given.
fn from_file(
    file: usize,
    bytes: &[u8],
    extra: ExtraColumns,
    n_nodes: u32,
    known: Option<Vec<[u32; 2]>>,
) {
    FILES.with_borrow_mut(|files| {
        let path = files[file].with(bytes);
        let Ok(text) = bounded(bytes.len(), || TextEdges::open(path, extra, Some(n_nodes))) else {
            return assert!(known.is_none(), "refused what was parsed");
        };
        let mut edges = Vec::new();
        let mut each = |chunk: &[[u32; 2]]| {
            edges.extend_from_slice(chunk);
            Ok(())
        };
        text.for_each_chunk(&mut each).expect("a second pass of the same");
        assert_eq!(edges.len() as u64, text.n_edges());
        assert!(known.is_none_or(|known| known == edges));
    });
}

/// Returns edges with blanks, commas, comments, columns; plain and compressed.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 6] = [
        b"0 1\n2\t3\r\n# no edge\n\n4,5\n6 , 7",
        b"1 2 0.5\n3 4 x\n% 5 6\n",
        b"4294967294 0\n18446744073709551616 1\n",
        b"12345678901234567890123 1\n-1 2\n",
        b"\xef\xbb\xbf1,2,,x\n3,4,5,6\n7 8 {}\n",
        b"\"0\",\"1.5e3\"\n%%MatrixMarket\n",
    ];
    let plain = texts.iter().flat_map(|text| [0, 4].map(|kind| [&[kind, 3, 0], *text].concat()));
    let packed = zstd::bulk::compress(texts[0], 1).expect("room in memory");
    plain.chain([[&[2, 0, 0], packed.as_slice()].concat()]).collect()
}
