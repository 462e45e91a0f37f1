use super::*;
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use std::io::Write;
use tempfile::TempDir;

fn all(edges: &dyn EdgeStream) -> Result<Vec<[u32; 2]>, EdgeError> {
    let mut out = Vec::new();
    edges.for_each_chunk(&mut |chunk| {
        out.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(out)
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 1).unwrap()
}

/// Writes `bytes` to a file of this name; the folder goes with the test.
fn file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn open(name: &str, bytes: &[u8]) -> Result<Vec<[u32; 2]>, EdgeError> {
    let (_dir, path) = file(name, bytes);
    let edges = TextEdges::open(&path, ExtraColumns::Refuse, None)?;
    let found = all(&edges)?;
    assert_eq!(all(&edges)?, found, "each pass is the same");
    assert_eq!(edges.n_edges(), found.len() as u64);
    let end = found.as_flattened().iter().max().map_or(0, |&max| max + 1);
    assert_eq!(edges.n_nodes(), end);
    Ok(found)
}

/// Returns edges of more than one chunk, as text.
fn many() -> (Vec<[u32; 2]>, Vec<u8>) {
    let edges: Vec<[u32; 2]> = (0..CHUNK_EDGES as u32 * 2 + 9).map(|i| [i % 977, i]).collect();
    let text = edges.iter().map(|[u, v]| format!("{u} {v}\n")).collect::<String>();
    (edges, text.into_bytes())
}

#[test]
fn plain_and_compressed_text_give_the_same_edges() {
    let (edges, text) = many();
    let (first, second) = text.split_at(100_001);
    assert!(open("e.txt", &text).unwrap() == edges);
    assert!(open("e.txt.gz", &gzip(&text)).unwrap() == edges);
    assert!(open("e.csv.zst", &zstd(&text)).unwrap() == edges);
    // Several members or frames, as compressors in parallel write them; cut within a line.
    assert!(open("e.gz", &[gzip(first), gzip(second)].concat()).unwrap() == edges);
    assert!(open("e.zst", &[zstd(first), zstd(second)].concat()).unwrap() == edges);
}

#[test]
fn no_edges_are_no_nodes() {
    assert!(open("e.txt", b"").unwrap().is_empty());
    assert!(open("e.txt.gz", &gzip(b"")).unwrap().is_empty());
    assert!(open("e.txt.zst", &zstd(b"# none\n")).unwrap().is_empty());
    let (_dir, path) = file("e.txt", b"\n");
    assert_eq!(TextEdges::open(&path, ExtraColumns::Refuse, Some(7)).unwrap().n_nodes(), 7);
}

#[test]
fn errors_name_file_and_line() {
    let (_, mut text) = many();
    text.extend(b"1 x\n");
    let line = format!("line {}: ", CHUNK_EDGES * 2 + 10);
    for (name, bytes) in [("e.txt", text.clone()), ("e.gz", gzip(&text)), ("e.zst", zstd(&text))] {
        let error = open(name, &bytes).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(&line), "{error}");
    }
    let (_dir, path) = file("e.txt", b"0 1\n1 2\n");
    let error = TextEdges::open(&path, ExtraColumns::Refuse, Some(2)).unwrap_err().to_string();
    assert!(error.contains("e.txt: line 2: names node 2"), "{error}");
    let missing = TextEdges::open(Path::new("no.txt"), ExtraColumns::Refuse, None);
    assert!(matches!(missing, Err(EdgeError::Io(error)) if error.action == "open"));
}

#[test]
fn compressed_text_that_is_cut_or_damaged_is_an_error_at_every_byte() {
    let text: Vec<u8> =
        (0..300).flat_map(|i| format!("{} {i}\n", i * 7 % 301).into_bytes()).collect();
    for (name, whole) in [("e.gz", gzip(&text)), ("e.zst", zstd(&text))] {
        for len in 0..whole.len() {
            let error = open(name, &whole[..len]).unwrap_err();
            let is_named = |action: &str| action == "open" || action.starts_with("read on ");
            let named = matches!(&error, EdgeError::Io(error) if is_named(&error.action));
            assert!(named && error.to_string().contains(name), "{name} of {len} bytes: {error}");
        }
        let garbage = [whole.as_slice(), b"garbage"].concat();
        let error = open(name, &garbage).unwrap_err().to_string();
        assert!(error.contains("cannot read on after line "), "{name}: {error}");
    }
    // A checksum catches what the format itself does not.
    let whole = gzip(&text);
    for byte in 10..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1;
        assert!(open("e.gz", &damaged).is_err(), "byte {byte}");
    }
}

#[test]
fn compression_is_known_by_the_bytes_and_padding_is_skipped() {
    let text = b"0 1\n1 2\n";
    assert_eq!(open("e.csv", &gzip(text)).unwrap(), [[0, 1], [1, 2]]);
    assert_eq!(open("e.txt", &zstd(text)).unwrap(), [[0, 1], [1, 2]]);
    assert_eq!(open("e.csv.gz", &[gzip(text), vec![0; 512]].concat()).unwrap(), [[0, 1], [1, 2]]);
    let error = open("e.csv.gz", text).unwrap_err().to_string();
    assert!(error.contains("e.csv.gz: not compressed as its name says"), "{error}");
    assert!(open("e.csv.zst", &gzip(text)).is_err());
}

#[test]
fn a_pipe_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe.txt");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = super::super::EdgeFile::at(path).open(None).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("a pipe or a device"), "{error}");
}

#[test]
fn a_bomb_takes_no_memory() {
    // 64 MiB of blank lines in a few kilobytes.
    let blank = vec![b'\n'; 1 << 26];
    for (name, bytes) in [("e.gz", gzip(&blank)), ("e.zst", zstd(&blank))] {
        assert!(bytes.len() < 1 << 20);
        assert!(open(name, &bytes).unwrap().is_empty());
    }
    let line = vec![b'1'; 1 << 26];
    let error = open("e.zst", &zstd(&line)).unwrap_err();
    let too_long = EdgeTextError { line: 1, fault: EdgeTextFault::TooLong };
    assert!(matches!(error, EdgeError::Text { error, .. } if error == too_long));
}

#[test]
fn ids_out_of_proportion_are_damage_unless_nodes_are_given() {
    let (_dir, path) = file("e.txt", b"0 4294967294\n");
    let opened = TextEdges::open(&path, ExtraColumns::Refuse, None);
    assert!(matches!(opened, Err(EdgeError::Sparse { found: u32::MAX, n_edges: 1, .. })));
    assert!(TextEdges::open(&path, ExtraColumns::Refuse, Some(u32::MAX)).is_ok());
}

#[test]
fn a_file_that_changes_between_passes_is_an_error() {
    let (_dir, path) = file("e.txt", b"0 1\n1 0\n");
    let edges = TextEdges::open(&path, ExtraColumns::Refuse, None).unwrap();
    let change = |text: &[u8]| {
        File::options().write(true).truncate(true).open(&path).unwrap().write_all(text).unwrap();
        all(&edges).unwrap_err()
    };
    assert!(matches!(change(b"0 1\n"), EdgeError::Changed { expected: 2, found: 1, .. }));
    // Ids stay below the nodes that were promised, whatever happens.
    assert!(matches!(change(b"0 1\n1 2\n"), EdgeError::Text { .. }));
}

#[test]
fn extra_columns_are_ignored_if_asked_for() {
    let (_dir, path) = file("e.tsv", b"0\t1\t0.25\n1\t2\t0.5\n");
    assert!(TextEdges::open(&path, ExtraColumns::Refuse, None).is_err());
    let edges = TextEdges::open(&path, ExtraColumns::Ignore, None).unwrap();
    assert_eq!(all(&edges).unwrap(), [[0, 1], [1, 2]]);
}
