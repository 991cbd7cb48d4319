"""Measurements that one site writes otherwise than the others: in another unit, with the other sign, from another zero.

Sites differ, too, where nothing is wrong. So sites are put in order by their medians, and only a gap between neighbours that
the spread within both does not explain parts them; the largest group is "the others".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from datamodules.findings import Finding, finding
from datamodules.tables.measured import Measured, robust_deviation

FEWEST, FEWEST_FOR_SCALE = 10, 5  # values of a site: of fewer, chance may put all on one side
FEWEST_DISTINCT = 5  # with fewer they are codes, or yes and no
# Robust deviations between two medians: in any case, if no value of one site is among the other's, and of temperatures.
FAR, FAR_IF_DISJOINT, FAR_IF_KELVIN = 5.0, 3.0, 2.5
KELVIN, ABOUT = 273.15, 0.15
MOSTLY = 0.95  # of a site's values have its sign
ALIKE = 3.0  # values of the other sign alone differ by a smaller factor than this
GAP = 2.0  # powers of ten between sites of different units


@dataclass(frozen=True)
class Site:
    """The finite values of one client, float64, and its number."""

    client: int
    values: np.ndarray

    @property
    def median(self) -> float:
        return float(np.median(self.values))


def find_sites_apart(columns: Iterable[Measured], owner: np.ndarray, clients: Sequence[str]) -> list[Finding]:
    """Clients whose values have another sign (``sign_differs``), scale (``scale_differs``) or zero (``range_differs``) than
    those of the others; of one column and client the first of these.

    Args:
        columns: Labels or features, M values each.
        owner: Number of each row's client, ``(M,)``, -1 = nobody.
        clients: Their names.
    """
    found = []
    for column in columns:
        sites = _part(column.values, owner, len(clients))
        told: dict[int, Finding] = {}
        for look in (_find_other_sign, _find_other_scale, _find_other_zero):
            for client, one in look(column.what, sites, clients):
                told.setdefault(client, one)
        found += [told[client] for client in sorted(told)]
    return found


def find_constants(columns: Iterable[Measured], owner: np.ndarray, clients: Sequence[str]) -> list[Finding]:
    """Labels that are all the same, of all rows or of one client: nothing can be learnt of them.

    Args:
        columns: Labels, M values each.
        owner: Number of each row's client, ``(M,)``, -1 = nobody.
        clients: Their names; none where a partitioner made them.
    """
    found = []
    for column in columns:
        known = column.values[np.isfinite(column.values)]
        if len(known) > 1 and np.ptp(known) == 0:
            message = f"All {len(known)} {column.what} are {known[0]:g}: there is nothing to learn."
            found.append(finding("constant_labels", None, len(known), message, "Name another column, or correct the file."))
            continue
        for site in _part(column.values, owner, len(clients)):
            if len(site.values) >= FEWEST_FOR_SCALE and np.ptp(site.values) == 0:
                message = (
                    f"All {len(site.values)} {column.what} of client {clients[site.client]!r} are {site.values[0]:g}; "
                    "those of the others are not."
                )
                remedy = "Leave them blank if this was filled in, or nothing if it is meant."
                found.append(finding("constant_labels", site.client, len(site.values), message, remedy))
    return found


def _part(values: np.ndarray, owner: np.ndarray, clients: int) -> list[Site]:
    values = values.astype(np.float64)
    known = np.isfinite(values) & (owner >= 0)
    order = np.flatnonzero(known)[np.argsort(owner[known], kind="stable")]
    ends = np.cumsum(np.bincount(owner[known], minlength=clients))
    return [Site(client, part) for client, part in enumerate(np.split(values[order], ends[:-1]))] if clients else []


def _group(sites: Sequence[Site], apart: Callable[[Site, Site], bool]) -> tuple[np.ndarray, list[Site]]:
    """Values of the largest group of sites in order, and the sites of the other groups."""
    groups = [[site] for site in sites[:1]]
    for one, other in pairwise(sites):
        groups += [[]] if apart(one, other) else []
        groups[-1].append(other)
    most = max(groups, key=lambda group: sum(len(site.values) for site in group), default=[])
    others = [site for group in groups if group is not most for site in group]
    return np.concatenate([site.values for site in most]) if others else np.zeros(0), others


def _find_other_sign(what: str, sites: Sequence[Site], clients: Sequence[str]) -> Iterable[tuple[int, Finding]]:
    parts = [Site(site.client, site.values[site.values != 0]) for site in sites]
    parts = [site for site in parts if len(site.values) >= FEWEST]
    positive = {site.client: float((site.values > 0).mean()) for site in parts}
    if any(1 - MOSTLY < share < MOSTLY for share in positive.values()):
        return  # both signs are usual
    most, others = _group(
        sorted(parts, key=lambda site: positive[site.client]),
        lambda one, other: positive[other.client] - positive[one.client] > 0.5,
    )
    for site in others:
        if 1 / ALIKE < abs(site.median / np.median(most)) < ALIKE:
            mine, theirs = ("negative", "positive") if site.median < 0 else ("positive", "negative")
            message = (
                f"The {what} of client {clients[site.client]!r} are {mine} ({_tell(site.values)}), those of the others "
                f"{theirs} ({_tell(most)}): is it the other sign, as of log and -log?"
            )
            yield site.client, finding("sign_differs", site.client, len(site.values), message, "Turn the sign in the file.")


def _find_other_scale(what: str, sites: Sequence[Site], clients: Sequence[str]) -> Iterable[tuple[int, Finding]]:
    parts = [Site(site.client, np.abs(site.values[site.values != 0])) for site in sites]
    parts = [site for site in parts if len(site.values) >= FEWEST_FOR_SCALE]
    most, others = _group(sorted(parts, key=lambda site: site.median), lambda one, other: other.median > 10**GAP * one.median)
    for site in others:
        ratio = site.median / float(np.median(most))
        thousands = np.log10(ratio) / 3
        if abs(round(thousands)) >= 1 and abs(thousands - round(thousands)) < 1 / 6:
            message = (
                f"The {what} of client {clients[site.client]!r} are about {ratio:.2g} times those of the others "
                "(medians): is it another unit?"
            )
            yield site.client, finding("scale_differs", site.client, len(site.values), message, "Convert them in the file.")


def _find_other_zero(what: str, sites: Sequence[Site], clients: Sequence[str]) -> Iterable[tuple[int, Finding]]:
    parts = [site for site in sites if len(site.values) >= FEWEST and len(np.unique(site.values)) >= FEWEST_DISTINCT]
    most, others = _group(sorted(parts, key=lambda site: site.median), _are_apart)
    for site in others:
        gap = abs(site.median - float(np.median(most)))
        why = (
            f"the medians are about {KELVIN} apart, as kelvin and degrees Celsius are."
            if _is_kelvin(gap)
            else "is it another unit, or another thing that was measured?"
        )
        message = (
            f"The {what} of client {clients[site.client]!r} are {_tell(site.values)}, those of the others {_tell(most)}: {why}"
        )
        remedy = "Convert them in the file, or nothing if this is meant."
        yield site.client, finding("range_differs", site.client, len(site.values), message, remedy)


def _are_apart(one: Site, other: Site) -> bool:
    """Whether two neighbours are farther apart than their values spread."""
    gap, spread = other.median - one.median, max(robust_deviation(one.values), robust_deviation(other.values))
    disjoint = one.values.max() < other.values.min()
    needed = FAR_IF_KELVIN if _is_kelvin(gap) else FAR_IF_DISJOINT if disjoint else FAR
    return bool(gap > needed * spread)


def _is_kelvin(gap: float) -> bool:
    return abs(gap - KELVIN) < ABOUT * KELVIN


def _tell(values: np.ndarray) -> str:
    return f"from {values.min():.4g} to {values.max():.4g}, median {np.median(values):.4g}"
