"""The values of a kernel over other index names, which operations of a spec may take better.

Each way of it is searched for schedules beside the plain one, and the price decides; a kernel that
came from one says so among its rules.
"""

from collections.abc import Callable, Iterator, Mapping

from eqsat.errors import TraceError
from eqsat.layout.coalesce import coalesce, with_few_names
from eqsat.layout.pixels import merged_pixels, walks_windows
from eqsat.price.rates import Rates
from eqsat.schedule.joined_reads import joined_reads
from eqsat.schedule.merged_batches import merged_batches
from eqsat.schedule.merged_rows import merged_rows
from eqsat.schedule.merged_sums import merged_sums
from eqsat.schedule.pieces import in_pieces
from eqsat.schedule.single_rows import is_multiplied, with_single_rows
from eqsat.schedule.whole_rows import with_whole_rows
from eqsat.terms.algebra import Facts
from eqsat.terms.form import Form, Stored, form

Values = tuple[tuple[Stored, ...], Facts]


def _merged(
    merge: Callable[[tuple[Stored, ...], Facts], Values | None],
) -> Callable[[Values], Form | None]:
    """The form of values over merged names."""

    def make(values: Values) -> Form | None:
        found = merge(*values)
        return form(*found) if found else None

    return make


def _with_single_rows(values: Values) -> Form | None:
    return with_single_rows(form(*values))


def _with_whole_rows(values: Values) -> Form | None:
    return with_whole_rows(form(*values))


RECASTS: Mapping[str, Callable[[Values], Form | None]] = {
    "along pixels": _merged(merged_pixels),
    "single rows": _with_single_rows,
    "one sum": _merged(merged_sums),
    "along batches": _merged(merged_batches),
    "rows together": _merged(merged_rows),
    "whole rows": _with_whole_rows,
    "in pieces": _merged(in_pieces),
    "pieces joined": _merged(joined_reads),
}
"""The ways besides the plain one; None where values have no such form."""
FOR_PRODUCTS = RECASTS.keys() - {"in pieces"}
"""Those that only serve operations on matrices."""


def recast(how: str, stored: tuple[Stored, ...], facts: Facts) -> Form:
    """The form of values over as few axes as will do, recast in a way unless `how` is empty.

    Raises TraceError where the values have no such form.
    """
    values = coalesce(stored, facts)
    if not how:
        return form(*values)
    found = RECASTS[how](values) if how in RECASTS else None
    if found is None:
        raise TraceError(f"{stored[0].buffer} has no form {how!r}; known are {', '.join(RECASTS)}")
    return found


def before_schedules(stored: tuple[Stored, ...], facts: Facts, rates: Rates) -> Form:
    """The form that tells the price of values before schedules are searched for: over as few axes
    as will do, what lies in pieces as one read where a spec copies boxes.
    """
    values = with_few_names(stored, facts)
    if walks_windows(rates.spec, rates.operations):
        values = joined_reads(*values) or values
    return form(*values)


def recasts(stored: tuple[Stored, ...], facts: Facts, rates: Rates) -> Iterator[tuple[str, Form]]:
    """The other forms that may make better kernels for a spec, of values over as few axes as will
    do.
    """
    found = {how: make((stored, facts)) for how, make in RECASTS.items()}
    if (made := found["along pixels"]) and walks_windows(rates.spec, rates.operations):
        yield "along pixels", made
    if (made := found["single rows"]) and is_multiplied(made, rates):
        yield "single rows", made
    if (made := found["whole rows"]) and rates.overlap:
        yield "whole rows", made
    if made := found["in pieces"]:
        yield "in pieces", made
    if (made := found["pieces joined"]) and walks_windows(rates.spec, rates.operations):
        yield "pieces joined", made
    if (made := found["one sum"]) and rates.overlap:
        yield "one sum", made
    if (made := found["along batches"]) and walks_windows(rates.spec, rates.operations):
        yield "along batches", made
    if (made := found["rows together"]) and rates.overlap:
        yield "rows together", made
