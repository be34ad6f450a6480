"""An explanation as text, JSON or HTML."""

import html
import json
import textwrap
from collections.abc import Callable

from eqsat.errors import ArgumentError
from eqsat.explain.explanation import Explanation, to_json
from eqsat.explain.story import Row, Section, sections

FORMATS = ("text", "json", "html")
Style = Callable[[str, str], str]
WIDTH = 100

PAGE_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #1d2733; background: #fff; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ccd; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dt { color: #5a6b7d; } dd { margin: 0; }
pre { background: #f4f6f9; padding: .7rem 1rem; overflow-x: auto; font-size: 13px;
      line-height: 1.4; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: #5a6b7d; font-weight: 500; }
td, th { padding: .45rem .6rem; vertical-align: top; border-top: 1px solid #e3e8ee; }
td pre { margin: .3rem 0 0; padding: .4rem .6rem; }
.number, .cost { white-space: nowrap; color: #5a6b7d; } .rule { font-weight: 600; }
.place { color: #5a6b7d; font-size: 13px; }
@media (prefers-color-scheme: dark) {
  body { color: #dde4ec; background: #14191f; } pre { background: #1d242c; }
  td, th { border-color: #2c3540; } h2 { border-color: #2c3540; } }
"""


def render(explanation: Explanation, format: str = "text") -> str:
    """The explanation in one of FORMATS."""
    if format == "text":
        return text(explanation)
    if format == "json":
        return json.dumps(to_json(explanation), allow_nan=False)
    if format == "html":
        return page(explanation)
    raise ArgumentError(f"format is {format!r}; use one of {', '.join(FORMATS)}.")


def _plain(kind: str, words: str) -> str:
    return words


def text(explanation: Explanation, style: Style = _plain) -> str:
    """The explanation as lines. `style(kind, words)` may mark up headings, rules and costs."""
    lines: list[str] = []
    for section in sections(explanation):
        lines += ["", *_section_lines(section, style)]
    return "\n".join(lines[1:]) + "\n"


def _section_lines(section: Section, style: Style) -> list[str]:
    rule = "=" if section.level == 1 else "-"
    lines = [style("heading", section.title)]
    lines.append(style("quiet", rule * len(section.title)))
    wide = max((len(name) for name, _ in section.facts), default=0)
    for name, words in section.facts:
        first, *rest = textwrap.wrap(words, WIDTH - wide - 4) or [""]
        lines.append(f"  {style('quiet', name.ljust(wide))}  {style('', first)}")
        lines += [f"  {' ' * wide}  {style('', line)}" for line in rest]
    lines += [f"  {style('code', line)}" for line in section.code]
    if section.rows and section.facts:
        lines.append("")
    for row in section.rows:
        lines += _row_lines(row, style)
    return lines


def _row_lines(row: Row, style: Style) -> list[str]:
    head = f"{row.number:>5}  {row.title}"
    gap = " " * max(2, WIDTH - len(head) - len(row.cost))
    lines = [
        f"{row.number:>5}  {style('rule', row.title)}{gap if row.cost else ''}"
        f"{style('cost', row.cost)}"
    ]
    where = [f"at {row.place}"] if row.place else []
    for words in (row.law, *where):
        lines += [f"       {style('quiet', line)}" for line in textwrap.wrap(words, WIDTH - 7)]
    return lines + [f"         {style('code', line)}" for line in row.change]


def page(explanation: Explanation) -> str:
    """The explanation as one HTML page that loads nothing."""
    escape = html.escape
    body = [_section_html(section, first=i == 0) for i, section in enumerate(sections(explanation))]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>\n'
        f"<title>{escape(explanation.title)}</title>\n<style>{PAGE_STYLE}</style></head>\n"
        f"<body>\n{''.join(body)}</body></html>\n"
    )


def _section_html(section: Section, first: bool) -> str:
    escape = html.escape
    tag = "h1" if first else f"h{section.level + 1}"
    parts = [f"<{tag}>{escape(section.title)}</{tag}>\n"]
    if section.facts:
        facts = "".join(f"<dt>{escape(n)}</dt><dd>{escape(t)}</dd>" for n, t in section.facts)
        parts.append(f"<dl>{facts}</dl>\n")
    if section.code:
        parts.append(f"<pre>{escape(chr(10).join(section.code))}</pre>\n")
    if section.rows:
        rows = "".join(map(_row_html, section.rows))
        parts.append(
            f"<table><tr><th>Step</th><th>Rule, place and change</th><th>Predicted time</th></tr>\n"
            f"{rows}</table>\n"
        )
    return "".join(parts)


def _row_html(row: Row) -> str:
    escape = html.escape
    place = f'<div class="place">at {escape(row.place)}</div>' if row.place else ""
    change = f"<pre>{escape(chr(10).join(row.change))}</pre>" if row.change else ""
    return (
        f'<tr><td class="number">{escape(row.number)}</td><td><span class="rule">'
        f"{escape(row.title)}</span> &#160; {escape(row.law)}{place}{change}</td>"
        f'<td class="cost">{escape(row.cost)}</td></tr>\n'
    )
