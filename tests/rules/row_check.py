"""Which rules have no row, and which rows no rule; with where a row is added."""

from collections.abc import Set

WHERE = (
    "A row of a law of an algebra group is a function of its name under @row, in the file of "
    "tests/rules/ that is named after the law's own: algebra_rows.py (some laws of sums are in "
    "distribute_rows.py), scatter_rows.py, distribute_rows.py, power_rows.py, "
    "mask_rows.py, rounding_rows.py, carry_rows.py. That of a rule of kernels is an entry of "
    "value_rows() or schedule_rows() in tests/rules/test_kernel_rules.py."
)


def row_faults(rules: Set[str], rows: Set[str]) -> str:
    """What is missing and how to mend it; empty where every rule has its row."""
    found: list[str] = []
    if forgotten := sorted(rules - rows):
        found.append(f"No row tests the rule {', '.join(forgotten)}. Add one. {WHERE}")
    if left_over := sorted(rows - rules):
        found.append(f"There is no rule {', '.join(left_over)}. Rename its row, or delete it.")
    return "\n".join(found)
