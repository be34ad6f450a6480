"""Tables of the records: on the terminal, and as the Markdown that the README embeds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

Record = Mapping[str, Any]
COLUMNS = ("case", "ours ms", "best peer ms", "ratio", "predicted ms", "floor ms", "error", "peers")

RANDOM_COLUMNS = ("case", "best predicted ms", "of", "best random ms", "of", "ratio", "won by")
HOST_COLUMNS = ("case", "ratio", "measured / predicted", "error", "time of each peer over ours")


def best_peer(record: Record) -> Record | None:
    """The fastest peer that was right."""
    timed = [e for e in record["contenders"] if e["name"] != "eqsat" and "median_ms" in e]
    return min(timed, key=lambda entry: entry["median_ms"], default=None)


def ours(record: Record) -> Record | None:
    """Our own entry, where there is one."""
    return next((e for e in record["contenders"] if e["name"] == "eqsat"), None)


def ratio(record: Record) -> float | None:
    """The best peer's median over ours: above 1, ours is faster."""
    own, peer = ours(record), best_peer(record)
    if own is None or peer is None or "median_ms" not in own:
        return None
    return peer["median_ms"] / own["median_ms"]


def row(record: Record) -> tuple[str, ...]:
    """The cells of one record, in the order of COLUMNS."""
    own, peer, faster = ours(record), best_peer(record), ratio(record)
    mine = _median(own) if own and "median_ms" in own else record["status"].upper()
    remarks = [] if record["scale"] == "full" else [record["scale"]]
    if not record.get("rotation", {}).get("enough", True):
        remarks.append("warm cache")
    return (
        f"{record['case']} ({', '.join(remarks)})" if remarks else record["case"],
        mine,
        f"{_median(peer)} {peer['name']}" if peer else "none",
        f"{faster:.2f}x" if faster else "-",
        _number(record.get("predicted_ms")),
        f"{_number(record['floor_ms'])} {record['floor_bound'].split()[0]}",
        _error(own) if own else "-",
        ", ".join(_peer_cell(e) for e in record["contenders"] if e["name"] != "eqsat"),
    )


def host_row(record: Record) -> tuple[str, ...]:
    """The cells of one record in the order of HOST_COLUMNS: ratios alone."""
    name, mine, _, faster, _, _, error, _ = row(record)
    own = ours(record)
    if own is None or "median_ms" not in own:
        return name, mine, "-", error, "-"
    predicted = record.get("predicted_ms")
    peers = (
        f"{e['name']} {e['median_ms'] / own['median_ms']:.2f}x"
        if "median_ms" in e
        else _peer_cell(e)
        for e in record["contenders"]
        if e["name"] != "eqsat"
    )
    over = f"{own['median_ms'] / predicted:.2f}" if predicted else "-"
    return name, faster, over, error, ", ".join(peers)


def _peer_cell(entry: Record) -> str:
    if entry["status"] == "ok":
        return f"{entry['name']} {_number(entry.get('median_ms'))} ({_error(entry)})"
    if entry["status"] == "wrong":
        return f"{entry['name']} WRONG ({_error(entry)})"
    return f"{entry['name']} {entry['status']}: {entry['message'].splitlines()[0][:60]}"


def _median(entry: Record) -> str:
    half = (entry["upper_quartile_ms"] - entry["lower_quartile_ms"]) / 2
    spread = half / entry["median_ms"] if entry["median_ms"] else 0.0
    return f"{_number(entry['median_ms'])} ±{spread:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _error(entry: Record) -> str:
    if "error" not in entry:
        return "-"
    return "not finite" if entry["error"] is None else f"{entry['error']:.0e}"


def rich_table(records: Iterable[Record], title: str) -> Table:
    """For the terminal."""
    table = Table(title=title)
    for name in COLUMNS:
        right = name not in ("case", "peers", "best peer ms")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for record in records:
        table.add_row(*row(record))
    return table


def variants_table(record: Record) -> Table:
    """The candidates of a row and what is left without each family of rules."""
    own = ours(record) or {}
    base = own.get("median_ms")
    table = Table("variant", "predicted ms", "measured ms", "of ours", "error", "what")
    first = {**own, "predicted_ms": record.get("predicted_ms")}
    for entry in (first, *record["variants"]):
        measured = entry.get("median_ms")
        table.add_row(
            entry["name"],
            _number(entry.get("predicted_ms")),
            _number(measured) if measured else entry["status"].upper(),
            f"{measured / base:.2f}x" if measured and base else "-",
            _error(entry),
            entry.get("about") or entry.get("message", "").split("\n")[0][:100],
        )
    table.title = f"{record['case']}: candidates, and rules left out"
    return table


def random_row(record: Record) -> tuple[str, ...]:
    """The cells of a race against random candidates, in the order of RANDOM_COLUMNS."""
    found = record["random"]
    best, drawn, part = found["best"], found["drawn"], found["ratio"]
    others = [one for one in (best, drawn) if one]
    winner = min(others, key=lambda one: one["median_ms"], default={"name": "none"})
    return (
        record["case"],
        _number(best and best["median_ms"]),
        str(best["count"] if best else 0),
        _number(drawn and drawn["median_ms"]),
        str(drawn["count"] if drawn else 0),
        "-" if part is None else f"{part:.3f}",
        winner["name"],
    )


def random_table(records: Iterable[Record]) -> Table:
    """Every race against random candidates; ratio: the best of all over the best predicted."""
    shown = Table(*RANDOM_COLUMNS, title="the best predicted and random legal candidates")
    for record in records:
        if record.get("random"):
            shown.add_row(*random_row(record))
    return shown


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """One table for each run, under a line that says where and with what it was made."""
    return "\n\n".join(_markdown_run(run) for run in runs) + "\n"


def _markdown_run(run: Mapping[str, Any]) -> str:
    shared = "threads" in run["environment"]["device"]  # times of a shared host mean nothing alone
    columns, cells = (HOST_COLUMNS, host_row) if shared else (COLUMNS, row)
    lines = [
        "| " + " | ".join(columns) + " |",
        "|---|" + "---:|" * (len(columns) - 2) + "---|",
        *("| " + " | ".join(_escaped(cell) for cell in cells(r)) + " |" for r in run["results"]),
    ]
    raced = [record for record in run["results"] if record.get("random")]
    if raced:
        lines += ["", "| " + " | ".join(RANDOM_COLUMNS) + " |"]
        lines += ["|---|" + "---:|" * (len(RANDOM_COLUMNS) - 2) + "---|"]
        lines += ["| " + " | ".join(map(_escaped, random_row(record))) + " |" for record in raced]
    return _heading(run) + "\n\n" + "\n".join(lines)


def _heading(run: Mapping[str, Any]) -> str:
    found, settings = run["environment"], run["settings"]
    device, spec = found["device"], found["spec"]
    libraries = ", ".join(f"{name} {version}" for name, version in device["libraries"].items())
    threads = f", {device['threads']} threads" if "threads" in device else ""
    driver = "" if device["driver"] == "none" else f", driver {device['driver']}"
    commit = found["commit"][:12] + ("+" if found["commit"].endswith("+") else "")
    return (
        f"{device['name']}{threads}{driver}; spec {spec['name']} {spec['fingerprint'][:12]}; "
        f"{libraries}; commit {commit}; {found['date'][:10]}; median ± half the "
        f"interquartile range of {settings['rounds']} rounds, ratio = best peer / ours."
    )


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
