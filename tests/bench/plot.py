"""A bar chart of one group as an SVG:

    python -m bench.plot results.json chart.svg [--group compare]

A bar is the median of the group's first figure, the line on it the spread."""

import argparse
from html import escape
from pathlib import Path

from .report import number
from .results import Results

# Pixels.
WIDTH, LABELS, VALUES = 860, 250, 90
ROW, BAR, MARGIN = 30, 18, 20

BACKGROUND, INK, FAINT = "#ffffff", "#1f2933", "#66788a"
OURS, OTHER = "#0b6e99", "#b8c4ce"
# Shown in colour, where a group compares with others.
OUR_LINES = ("wal2delta", "feed on")


def chart(group):
    column = group.columns[0]
    lines = [line for line in group.lines if line.values(column.key)]
    most = max((max(line.values(column.key)) for line in lines), default=0) or 1
    scale = (WIDTH - LABELS - VALUES - 2 * MARGIN) / most
    parts = [text(MARGIN, MARGIN + 10, group.title, size=16, weight="bold")]
    parts.append(text(MARGIN, MARGIN + 30, f"{column.label}: median, least and greatest of the runs", FAINT))
    y = MARGIN + 46
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            parts.append(text(MARGIN, y + 20, section, FAINT))
            y += ROW
        parts += bar(line, column, y, scale, line.what in OUR_LINES or not group.baseline)
        y += ROW
    height = y + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" role="img" aria-label="{escape(group.title)}">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="{BACKGROUND}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def bar(line, column, y, scale, ours):
    left, middle = MARGIN + LABELS, y + ROW / 2
    values = line.values(column.key)
    width = line.median(column.key) * scale
    low, high = (left + value * scale for value in (min(values), max(values)))
    parts = [
        text(left - 10, middle + 5, line.what, anchor="end", weight="bold" if ours else "normal"),
        rectangle(left, middle - BAR / 2, max(width, 1), OURS if ours else OTHER),
    ]
    if len(values) > 1:
        ends = f'y1="{middle - 4}" y2="{middle + 4}"'
        parts.append(f'<g stroke="{INK}"><line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
        parts += [f'<line x1="{x:.1f}" x2="{x:.1f}" {ends}/>' for x in (low, high)]
        parts.append("</g>")
    parts.append(text(max(left + width, high) + 8, middle + 5, number(line.median(column.key), column)))
    return parts


def rectangle(x, y, width, fill):
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{fill}"/>'


def text(x, y, words, fill=INK, size=13, anchor="start", weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description=__doc__)
    parser.add_argument("results")
    parser.add_argument("chart")
    parser.add_argument("--group", default="compare")
    options = parser.parse_args()
    Path(options.chart).write_text(chart(Results.read(options.results).groups[options.group]))


if __name__ == "__main__":
    main()
