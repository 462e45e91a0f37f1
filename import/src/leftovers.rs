//! Folders that killed imports have left behind.

use std::path::Path;

/// Returns a warning for each folder beside `out` of an import to it that has not ended. They are
/// not removed: one may belong to an import that still runs.
pub(crate) fn warnings(out: &Path) -> Vec<String> {
    let warning = |name: String| {
        format!(
            "{} is of an import that was killed, unless it still runs; it can be deleted",
            out.with_file_name(name).display()
        )
    };
    names(out).into_iter().map(warning).collect()
}

/// Returns their names, sorted.
fn names(out: &Path) -> Vec<String> {
    let parent = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let prefix = format!("{}.importing-", out.file_name().unwrap_or_default().display());
    // A folder that cannot be listed has its own error when the import begins.
    let entries = parent.read_dir().into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_the_same_graph_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["g.importing-1", "g.importing-0", "gg.importing-2", "g", "g.importing"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(names(&dir.path().join("g")), ["g.importing-0", "g.importing-1"]);
        assert!(names(&dir.path().join("none/g")).is_empty());
        assert!(names(Path::new("/")).is_empty());
    }
}
