//! The committed Cap'n Proto code is what the schema generates.

use std::path::Path;
use std::process::Command;

/// Run with `LODE_REGENERATE=1` after a change of `lodestore.capnp` to write the code again.
#[test]
fn committed_code_matches_the_schema() {
    if Command::new("capnp").arg("--version").output().is_err() {
        println!("SKIPPED: the `capnp` tool is not installed (Debian: capnproto)");
        return;
    }
    let root = &std::env::current_dir().expect("a current folder");
    let committed = root.join("src/lodestore_capnp.rs");
    let out = tempfile::tempdir().expect("a temporary directory");
    capnpc::CompilerCommand::new()
        .src_prefix(root)
        .file(root.join("lodestore.capnp"))
        .output_path(out.path())
        .run()
        .expect("capnp compiles the schema");
    let generated = out.path().join("lodestore_capnp.rs");
    if std::env::var_os("LODE_REGENERATE").is_some() {
        std::fs::copy(&generated, &committed).expect("the generated code is written");
    }
    let read = |path: &Path| {
        let code = std::fs::read_to_string(path).expect("code is readable");
        let tool_version = |line: &&str| line.starts_with("// capnp binary version");
        code.lines().filter(|line| !tool_version(line)).collect::<Vec<_>>().join("\n")
    };
    assert!(
        read(&generated) == read(&committed),
        "src/lodestore_capnp.rs is not what lodestore.capnp generates: run this test with \
         LODE_REGENERATE=1 and commit the result"
    );
}
