#!/usr/bin/env python3
"""Writes benches/RESULTS.md and its charts from the csv files of this folder.

make.py            write the files
make.py --check    exit with 1 and a message unless they are as written, and every link holds

One row of a csv file is one figure; `-` means no value. `table` is where RESULTS.md has it:
budgets (with `goal`, the name in BUDGETS), beside (others), figures (checked alone, or a missed aim
where `state` is missed) or readme (README's table). `chart` names a chart, with `:peer` for others'
bars. `peer` and `peer_value` are lists that `; ` separates. `note` is a file of benches/notes and
the anchor of a heading in it. missed.csv has the reason of each row that is missed.
"""

import csv
import re
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = HERE.parent / "RESULTS.md"
PLOTS = HERE.parent / "plots"
MAX_BYTES = 15 * 1024

# Budgets of the design contract: those that hold today, then its numbered goals and its bounds.
BUDGETS = [
    "embedded gather", "cold window", "window over rows", "server pull", "Arrow Flight",
    "leased rows", "sampler", "oracle", "refined partitions", "1", "2", "3", "4",
    "5", "6, rows", "6, int8", "7", "8", "9", "10", "11",
    "11, speed", "11, quality", "memory bound", "SyncPull beside bulk",
]  # fmt: skip

# Charts by this script: name, title, unit.
CHARTS = [
    ("cold-gathers", "Cold rows of 512 B, 4.1 GB table in 1.5 GiB of memory", "k rows/s"),
    ("servers", "Resident rows of 400 B, 15,000 a request, one client", "M rows/s"),
    ("bytes-by-strategy", "Remote bytes of a batch by strategy", "MB"),
    ("partition-memory", "Memory of partitioners, 2 M nodes, 52 M edges, p = 4 to 16", "MB"),
]

COLUMNS = [
    "metric", "value", "unit", "table", "goal", "state", "budget", "limit", "peer", "peer_value",
    "chart", "command", "note",
]  # fmt: skip
TABLES = ["budgets", "beside", "figures", "readme", "-"]
STATES = ["met", "missed", "open", "-"]
# Files with columns of their own.
SPECIAL = {
    "papers": ["paper", "claim", "published", "ours", "note"],
    "missed": ["metric", "reason"],
    "not_kept": ["tried", "outcome", "note"],
}

TEMPLATE = """# Results

`benches/results/make.py` writes this page from `benches/results/*.csv`; edit those. Notes under
[`benches/notes/`](notes) have every table with its commands.

- **Machine** (virtual): 2 cores (Intel Xeon, or AMD EPYC where the note says so), 24 GiB,
  ext4 on virtio, Linux 6.18, loopback network. Server, client and peer share the cores.
- **Date and commit**: 2026-11-20 to 2026-11-26, up to commit 32cc710a. `git log -S VALUE benches`
  finds the commit of a figure.
- **Noise**: compare figures of one run only. Notes say what else ran.
- **Limit**: what the hardware or a plain loop does in the same run.
- **Commands** run from the root after `./x build`, which prints the path of `lode`. Notes have them
  in full.

## Budgets

Budgets of the design contract. Bold: missed, or open (not measured as the budget asks).

{budgets}

## Charts

{charts}

## Beside others

{beside}

## Papers

{papers}

## Missed aims

{missed}

## Tried and not kept

{not_kept}

{links}
"""


class Problem(Exception):
    """A fault of the files that the message describes."""


def read_csv(path: Path, columns: list[str]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != columns:
            raise Problem(f"{path.name}: columns are {reader.fieldnames}, expected {columns}")
        rows = list(reader)
    for number, row in enumerate(rows, start=2):
        for column in columns:
            if not (row[column] or "").strip() or row.get(None):
                raise Problem(
                    f"{path.name}, line {number}: column {column} is empty, or there are too many"
                )
        for column, allowed in (("table", TABLES), ("state", STATES)):
            if row.get(column, "-") not in allowed:
                raise Problem(
                    f"{path.name}, line {number}: {column} is {row[column]}, expected {allowed}"
                )
    return rows


def read_all() -> tuple[list[dict[str, str]], dict[str, list[dict[str, str]]]]:
    figures = []
    for path in sorted(HERE.glob("*.csv")):
        if path.stem not in SPECIAL:
            figures += read_csv(path, COLUMNS)
    special = {name: read_csv(HERE / f"{name}.csv", columns) for name, columns in SPECIAL.items()}
    return figures, special


def headings(path: Path) -> set[str]:
    """Anchors of the headings of a Markdown file, as GitHub makes them."""
    anchors, fenced = set(), False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and re.match(r"#+ ", line):
            text = line.lstrip("#").strip().lower()
            anchors.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return anchors


def check_note(note: str) -> None:
    name, _, anchor = note.partition("#")
    path = HERE.parent / "notes" / name
    if not path.is_file():
        raise Problem(f"note {note}: {path.relative_to(ROOT)} is missing")
    if not anchor or anchor not in headings(path):
        raise Problem(f"note {note}: {path.relative_to(ROOT)} has no heading #{anchor}")


class Notes:
    """Numbers of notes in the order of their use, and the definitions of their links."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def link(self, note: str) -> str:
        if note == "-":
            return ""
        number = self.numbers.setdefault(note, len(self.numbers) + 1)
        return f"[{number}]"

    def definitions(self) -> str:
        # Paragraphs of ten: a longer one counts as a long sentence.
        lines = [f"[{number}]: notes/{note}" for note, number in self.numbers.items()]
        return "\n\n".join("\n".join(lines[at : at + 10]) for at in range(0, len(lines), 10))


def table(head: list[str], rows: list[list[str]]) -> str:
    rule = "|" + "---|" * len(head)
    lines = [
        "|" + "|".join(cell.replace("|", "\\|") for cell in line) + "|" for line in [head, *rows]
    ]
    return "\n".join([lines[0], rule, *lines[1:]])


def shown(value: str, unit: str = "") -> str:
    return "" if value == "-" else f"{value} {unit}".strip()


def peers(names: str, values: str) -> str:
    """Joins lists of names and values that `; ` separates to `name: value; name: value`."""
    name_list, value_list = names.split("; "), values.split("; ")
    if len(name_list) != len(value_list):
        raise Problem(
            f"peers {names!r} have the values {values!r}, which is another number of them"
        )
    pairs = zip(name_list, value_list, strict=True)
    return "; ".join(
        name if value == "-" else f"{name}: {value}" for name, value in pairs if name != "-"
    )


def budget_rows(figures: list[dict[str, str]], notes: Notes) -> list[list[str]]:
    rows = []
    for goal in BUDGETS:
        matching = [f for f in figures if f["table"] == "budgets" and f["goal"] == goal]
        if not matching:
            raise Problem(f"no csv row has the budget {goal}")
        for f in matching:
            measured = shown(f["value"], "" if f["value"] == "not measured" else f["unit"])
            if f["state"] != "met":
                measured = (
                    f"**{measured}, {f['state']}**" if f["value"] != "not measured" else "**open**"
                )
            name = f"{goal}: {f['metric']}" if goal[0].isdigit() else f["metric"]
            peer = peers(f["peer"], f["peer_value"])
            command = f"`{f['command']}`"
            rows.append(
                [
                    name,
                    f["budget"],
                    measured,
                    shown(f["limit"]),
                    peer,
                    command,
                    notes.link(f["note"]),
                ]
            )
    known = set(BUDGETS)
    for f in figures:
        if f["table"] == "budgets" and f["goal"] not in known:
            raise Problem(f"{f['metric']}: {f['goal']} is no budget that make.py lists")
    return rows


def missed_rows(
    figures: list[dict[str, str]], reasons: list[dict[str, str]], notes: Notes
) -> list[list[str]]:
    missed: dict[str, list[dict[str, str]]] = {}
    for f in figures:
        if f["state"] == "missed":
            missed.setdefault(f["metric"], []).append(f)
    listed = [row["metric"] for row in reasons]
    if sorted(missed) != sorted(listed):
        differing = sorted(set(missed) ^ set(listed)) or listed
        raise Problem(f"missed.csv and rows of state missed differ in {differing}")
    rows = []
    for row in reasons:
        f = missed[row["metric"]][0]
        # The table of budgets has the figures of its own rows.
        above = f["table"] == "budgets"
        aim, measured = ("above", "") if above else (f["budget"], shown(f["value"], f["unit"]))
        rows.append([row["metric"], aim, measured, row["reason"], notes.link(f["note"])])
    return rows


def render(figures: list[dict[str, str]], special: dict[str, list[dict[str, str]]]) -> str:
    notes = Notes()
    beside = [f for f in figures if f["table"] == "beside"]
    charts = [f"[{title}](plots/{name}.svg)" for name, title, _ in CHARTS]
    charts.append("[Policies against the optimum](plots/policies-1m.svg)")
    for f in figures:
        if f["note"] != "-" or f["value"] != "not measured":
            check_note(f["note"])
    for name in ("papers", "not_kept"):
        for row in special[name]:
            check_note(row["note"])
    return TEMPLATE.format(
        budgets=table(
            ["metric", "budget", "measured", "physical limit", "best peer", "command", "note"],
            budget_rows(figures, notes),
        ),
        charts="\n".join(f"- {chart}" for chart in charts),
        beside=table(
            ["metric", "ours", "peers", "note"],
            [
                [
                    f["metric"],
                    shown(f["value"], f["unit"]),
                    peers(f["peer"], f["peer_value"]),
                    notes.link(f["note"]),
                ]
                for f in beside
            ],
        ),
        papers=table(
            ["paper", "claim", "published", "ours", "note"],
            [
                [r["paper"], r["claim"], r["published"], r["ours"], notes.link(r["note"])]
                for r in special["papers"]
            ],
        ),
        missed=table(
            ["metric", "aim", "measured", "reason", "note"],
            missed_rows(figures, special["missed"], notes),
        ),
        not_kept="\n".join(
            f"- {r['tried']}: {r['outcome']} {notes.link(r['note'])}" for r in special["not_kept"]
        ),
        links=notes.definitions(),
    )


def chart(name: str, title: str, unit: str, figures: list[dict[str, str]]) -> str:
    """A chart of horizontal bars; peers have another colour."""
    bars = [f for f in figures if f["chart"].partition(":")[0] == name]
    if not bars:
        raise Problem(f"no csv row belongs to the chart {name}")
    numbers = [float(f["value"].replace(",", "")) for f in bars]
    left, width, step = 330, 330, 26
    height = 50 + step * len(bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="24" font-size="15">{escape(title)} ({escape(unit)})</text>',
    ]
    for place, (f, number) in enumerate(zip(bars, numbers, strict=True)):
        y = 42 + step * place
        length = round(width * number / max(numbers), 1)
        colour = "#999999" if f["chart"].endswith(":peer") else "#1f77b4"
        lines += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(f["metric"])}</text>',
            f'<rect x="{left}" y="{y}" width="{length}" height="18" fill="{colour}"/>',
            f'<text x="{left + length + 6}" y="{y + 14}">{escape(f["value"])}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def check_readme(figures: list[dict[str, str]]) -> None:
    """Checks that csv rows have each number of README's table, with the note of its line."""
    number = re.compile(r"\d[\d,]*(?:\.\d+)?")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| measured on .*\n\|[-|]+\n((?:\|.*\n)+)", readme, re.MULTILINE)
    if not rows:
        raise Problem("README.md: no table that begins with `| measured on`")
    for line in rows.group(1).splitlines():
        link = re.match(r"\| \[[^\]]*\]\(benches/notes/([^)]+)\)", line)
        if not link:
            raise Problem(
                f"README.md: this line of figures links no note under benches/notes/: {line}"
            )
        note = link.group(1)
        check_note(note)
        known = {
            n
            for f in figures
            if f["note"] == note
            for n in number.findall(" ".join((f["value"], f["unit"], f["limit"], f["peer_value"])))
        }
        for value in number.findall("|".join(line.split("|")[2:])):
            if value not in known:
                raise Problem(
                    f"README.md: {value} of the line with {note} is in no csv row with this note"
                )


def main() -> None:
    figures, special = read_all()
    wanted = {RESULTS: render(figures, special)}
    for name, title, unit in CHARTS:
        wanted[PLOTS / f"{name}.svg"] = chart(name, title, unit, figures)
    size = len(wanted[RESULTS].encode())
    if size > MAX_BYTES:
        raise Problem(f"RESULTS.md would have {size} bytes, at most {MAX_BYTES} are allowed")
    if sys.argv[1:] == ["--check"]:
        for path, text in wanted.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                name = path.relative_to(ROOT)
                raise Problem(f"{name} differs from the csv files; run benches/results/make.py")
        for plot in re.findall(r"\((plots/[^)]+)\)", wanted[RESULTS]):
            if not (HERE.parent / plot).is_file():
                raise Problem(f"RESULTS.md links {plot}, which is missing")
        check_readme(figures)
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(f"make.py: {problem}")
