//! Findings that are allowed, by rule and area, each with the reason. A count may only fall.

/// Rules, and what each asks for.
pub(crate) const RULES: &[(&str, &str)] = &[
    ("bare bools", "no public function has a parameter of type `bool`"),
    ("beginnings", "no sentence of a doc comment or document begins with What, Who or Of"),
    ("circles", "no circle of imports between files but inside one concept"),
    ("columns", "comments have at most 100 columns"),
    ("dead paths", "paths and functions in documents exist"),
    ("document lengths", "documents have the lengths that their readers have time for"),
    ("file names", "files have the names that the field uses"),
    ("impl spread", "inherent `impl` blocks of a type are in at most three files"),
    ("long files", "source files have at most 500 lines"),
    ("long sentences", "sentences of doc comments and documents have at most 25 words"),
    ("messages", "strings have none of the banned phrases"),
    ("module style", "a module with files of its own is `mod.rs` in its folder"),
    ("parameters", "functions have at most five parameters"),
    ("places", "nothing names machines, their paths, or hosts of registries"),
    ("root imports", "a crate imports from the module that defines"),
    ("short files", "product files have at least 60 lines"),
    ("test names", "names of tests have none of the banned phrases"),
    ("tuple parameters", "no function takes a tuple apart in its parameters"),
    ("type names", "a crate uses the name of a type once"),
    ("unfinished", "nothing is marked as unfinished"),
    ("unsafe", "`unsafe` is in the listed modules, with its reason"),
    ("verbs", "docs of functions begin with a verb in the third person"),
    ("words", "comments and documents have none of the banned phrases"),
];

/// Rule, area, and number of findings that are allowed.
pub(crate) const ALLOWED: &[(&str, &str, usize)] = &[
    ("circles", "python", 1),
    ("impl spread", "bucket", 1),
    ("impl spread", "client", 2),
    ("impl spread", "server", 2),
    ("impl spread", "store", 2),
    ("parameters", "python", 7),
    ("short files", "cache", 4),
    ("short files", "cli", 6),
    ("short files", "fuzz", 3),
    ("short files", "graph", 10),
    ("short files", "lab", 1),
    ("short files", "schema", 2),
    ("short files", "server", 2),
    ("short files", "store", 4),
];

/// The reason for all rows of a rule.
pub(crate) const REASONS: &[(&str, &str)] = &[
    ("circles", "a class of Python and the objects that it makes name each other"),
    ("impl spread", "a file for each operation of the type; together they pass 500 lines"),
    ("parameters", "keyword arguments of functions of Python"),
    (
        "short files",
        "each is the home of one concept: a policy, a partitioner, a source, an identifier",
    ),
];
