"""A group as a Markdown table: medians over the runs, the spread of the first
figure (its least and greatest run) and its ratio to the baseline."""


def number(value, column):
    if value is None:
        return ""
    return f"{value / column.divisor:,.{column.digits}f}"


def spread(line, column):
    values = line.values(column.key)
    if len(values) < 2:
        return ""
    return f"{number(min(values), column)} to {number(max(values), column)}"


def table(group):
    first, *others = group.columns
    sections = any(line.section for line in group.lines)
    runs = max((len(line.runs) for line in group.lines), default=0)
    heads = (["load"] if sections else []) + ["", first.label]
    heads += ["spread"] if runs > 1 else []
    heads += [f"÷ {group.baseline}"] if group.baseline else []
    heads += [column.label for column in others]
    rows = [heads, ["---" if head in ("", "load") else "--:" for head in heads]]
    before = None
    for line in group.lines:
        cells = ["" if line.section == before else line.section] if sections else []
        cells += [line.what, number(line.median(first.key), first)]
        cells += [spread(line, first)] if runs > 1 else []
        if group.baseline:
            ratio = group.ratio(line)
            cells.append("" if ratio is None else f"{ratio:.2f}")
        cells += [number(line.median(column.key), column) for column in others]
        rows.append(cells)
        before = line.section
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def markdown(group, level=2):
    """Title, what it says, the table, and with which options it was made."""
    options = ", ".join(f"{name} {told}" for name, told in group.options.items())
    parts = [f"{'#' * level} {group.title}", group.about, table(group), f"Measured with: {options}." if options else ""]
    return "\n\n".join(part for part in parts if part) + "\n"
