//! Passes version and commit to `lode --version`.

#[path = "src/commit.rs"]
mod commit;

use std::path::Path;

use commit::{SourceCommit, shortened};

/// Variable by which packagers name the commit of a tree that does not say it.
const VARIABLE: &str = "LODE_COMMIT";

fn main() {
    // Read when this runs: a target directory may outlive the checkout in which this was compiled.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&package).parent().expect("the workspace's folder");
    let found = SourceCommit::of_tree(root, include_str!("archived-commit"));
    let named = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    if let Some(text) = named.as_deref().filter(|text| shortened(text).is_none()) {
        println!(
            "cargo::error={VARIABLE}: expected a commit of 40 or 64 hex digits, found `{text}`"
        );
    }
    let short = named.as_deref().and_then(shortened).or(found.short);
    let version = env!("CARGO_PKG_VERSION");
    match short {
        Some(short) => println!("cargo::rustc-env=LODE_VERSION={version} ({short})"),
        None => println!("cargo::rustc-env=LODE_VERSION={version}"),
    }
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=archived-commit");
    println!("cargo::rerun-if-changed=src/commit.rs");
    for path in found.watched {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
