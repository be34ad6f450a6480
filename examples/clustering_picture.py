"""Scatter plots side by side as one SVG document."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

# Okabe and Ito's colours, which differ for every kind of colour vision; grey is for noise.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
NOISE = "#9a9a9a"
WIDTH, HEIGHT, MARGIN = 520, 420, 52
TICKS = 5


@dataclass(frozen=True)
class Panel:
    """Points in the plane and their clusters (-1: noise), the axes' names, and centres if any."""

    title: str
    points: np.ndarray
    labels: np.ndarray
    axes: tuple[str, ...]
    centres: np.ndarray | None = None


def draw(panels: Sequence[Panel]) -> str:
    """The panels from left to right."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel) -> list[str]:
    low, high = panel.points.min(0), panel.points.max(0)
    room = 0.05 * (high - low) + 1e-9
    low, high = low - room, high + room
    size = np.array([WIDTH - 1.5 * MARGIN, HEIGHT - 2 * MARGIN])

    def place(point: np.ndarray) -> tuple[float, float]:
        x, y = (point - low) / (high - low) * size
        return MARGIN + float(x), HEIGHT - MARGIN - float(y)

    right, top = place(high)
    left, bottom = place(low)
    parts = [
        f'<text x="{left}" y="24" font-size="11">{escape(panel.title)}</text>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#444"/>',
        f'<text x="{(left + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        f"{escape(panel.axes[0])}</text>",
        f'<text transform="translate(14 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.axes[1])}</text>",
    ]
    for share in np.linspace(0.05, 0.95, TICKS):
        at = low + share * (high - low)
        x, y = place(at)
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{at[0]:.1f}</text>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{at[1]:.1f}</text>'
        )
    for point, label in zip(panel.points, panel.labels, strict=True):
        x, y = place(point)
        colour = NOISE if label < 0 else COLOURS[label % len(COLOURS)]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.75"/>'
        )
    for centre in () if panel.centres is None else panel.centres:
        x, y = place(centre)
        parts.append(
            f'<path d="M{x - 7:.1f} {y:.1f}h14m-7 -7v14" stroke="black" stroke-width="2.5"/>'
        )
    return parts
