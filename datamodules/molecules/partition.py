r"""Which training molecule belongs to which client: pure functions over the group (scaffold) of each molecule.

``scaffold_lda``       for each group k: p_k ~ Dirichlet(alpha 1_n), counts ~ Multinomial(n_k, p_k); nothing is lost
``official_partition`` the authors' code as it is, for its exact sizes (docs/papers/fedchem.md#data): loses the last group
``iid_partition``, ``label_partition``, ``column_partition``

Each returns one sorted array of positions per client. ``scaffold_lda`` balances sizes as the paper does: a client that
holds its fair share N / n gets no more while others have room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def scaffold_lda(
    groups: np.ndarray,
    num_clients: int,
    alpha: float,
    seed: int = 0,
    min_size: int = 1,
    tries: int = 100,
    balanced: bool = True,
) -> list[np.ndarray]:
    """Latent-Dirichlet split of groups among clients.

    Args:
        groups: Group of each of N molecules, shape ``(N,)``.
        num_clients: Number of clients n, at most N.
        alpha: Dirichlet concentration: small = each scaffold with few clients, large = near-uniform.
        seed: Seed of the one generator that draws everything.
        min_size: Molecules that each client must get. Failing draws are repeated ``tries`` times, then the last one
            is repaired by moving random molecules from the largest client.
        tries: Bound of the repetitions.
        balanced: Give a client that holds N / n molecules no more while another has room.

    Returns:
        n sorted arrays of positions; disjoint, and together all of ``0 .. N-1``.

    Raises:
        ValueError: ``alpha <= 0``, fewer molecules than clients, or ``min_size`` that N molecules cannot satisfy.
    """
    groups = np.asarray(groups)
    _check(len(groups), num_clients, min_size)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ValueError(f"`data.init_args.alpha` must be a positive number, got {alpha}.")
    rng = np.random.default_rng(seed)
    pools = _members_by_group(groups)
    for _ in range(max(tries, 1)):
        owner = _draw(pools, len(groups), num_clients, alpha, rng, balanced)
        if np.bincount(owner, minlength=num_clients).min() >= min_size:
            break
    else:
        _repair(owner, num_clients, min_size, rng)
    return [np.flatnonzero(owner == client) for client in range(num_clients)]


def _draw(
    pools: list[np.ndarray], size: int, num_clients: int, alpha: float, rng: np.random.Generator, balanced: bool
) -> np.ndarray:
    owner = np.empty(size, dtype=np.int64)
    held = np.zeros(num_clients, dtype=np.int64)
    for pool in pools:
        p = dirichlet(alpha, num_clients, rng)
        if balanced:
            room = held < size / num_clients
            p = p * room if (p * room).sum() > 0 else room.astype(float)
        counts = rng.multinomial(len(pool), p / p.sum())
        owner[rng.permutation(pool)] = np.repeat(np.arange(num_clients), counts)
        held += counts
    return owner


def dirichlet(alpha: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """A symmetric Dirichlet draw that stays a distribution for every ``alpha > 0``.

    Gamma draws underflow to zero for tiny ``alpha``; the limit of the distribution there is one random corner.
    """
    p = rng.dirichlet(np.full(size, alpha)) if size > 1 else np.ones(1)
    if not np.isfinite(p).all() or not p.sum() > 0:
        p = np.zeros(size)
        p[rng.integers(size)] = 1.0
    return p / p.sum()


def _repair(owner: np.ndarray, num_clients: int, min_size: int, rng: np.random.Generator) -> None:
    sizes = np.bincount(owner, minlength=num_clients)
    while sizes.min() < min_size:
        short, donor = int(sizes.argmin()), int(sizes.argmax())
        moved = rng.choice(np.flatnonzero(owner == donor))
        owner[moved] = short
        sizes[short] += 1
        sizes[donor] -= 1


def official_partition(
    groups: np.ndarray, num_clients: int, alpha: float, min_size: int = 64, tries: int = 1000
) -> list[np.ndarray]:
    """The authors' partition, bit for bit (docs/papers/fedchem.md#data); there is no seed to choose.

    Kept as it is: the generator is re-seeded before each group, counts are rounded down (so a single molecule always
    goes to the last client with room), and the group numbered last is never given to anybody.

    Returns:
        n sorted arrays of positions; the last group is in none of them.

    Raises:
        ValueError: No draw within ``tries`` reaches ``min_size`` (the authors' code goes on silently), with the sizes.
    """
    groups = np.asarray(groups)
    _check(len(groups), num_clients, 0)
    labels = np.unique(groups, return_inverse=True)[1] + 1
    sizes: list[int] = []
    for seed in range(2, 2 + max(tries, 1)):
        parts: list[list[int]] = [[] for _ in range(num_clients)]
        for k in range(int(labels.max())):  # 1 .. K-1 of 1 .. K
            members = np.flatnonzero(labels == k)
            rng = np.random.RandomState(seed)
            rng.shuffle(members)
            p = rng.dirichlet(np.full(num_clients, alpha))
            p = p * np.array([len(part) < len(groups) / num_clients for part in parts])
            if not p.sum() > 0:  # all full: the authors' code divides 0 / 0
                parts = [[] for _ in range(num_clients)]
                break
            cuts = (np.cumsum(p / p.sum()) * len(members)).astype(int)[:-1]
            for part, chunk in zip(parts, np.split(members, cuts), strict=True):
                part.extend(chunk.tolist())
        sizes = [len(part) for part in parts]
        if min(sizes) >= min_size:
            return [np.sort(np.array(part, dtype=np.int64)) for part in parts]
    raise ValueError(
        f"`data.init_args.partition: official` found no split of {len(groups)} molecules in which each of "
        f"{num_clients} clients has {min_size} (last sizes: {sizes}; short: "
        f"{[i for i, size in enumerate(sizes) if size < min_size]}). Use `partition: scaffold_lda`, fewer "
        f"clients, or a smaller `data.init_args.min_client_size`."
    )


def iid_partition(size: int, num_clients: int, seed: int = 0) -> list[np.ndarray]:
    """A random split into n parts whose sizes differ by at most one."""
    _check(size, num_clients, 1)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(size), num_clients)]


def label_groups(values: np.ndarray, regression: bool, bins: int = 10) -> np.ndarray:
    """Groups of equal label: the class, or the quantile bin of a continuous value; a missing label is a group too.

    Args:
        values: One label per molecule, ``nan`` where missing, shape ``(N,)``.
        regression: Bin the values into at most ``bins`` quantile bins.
        bins: Number of bins.
    """
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values)
    groups = np.zeros(len(values), dtype=np.int64)
    if regression and known.any():
        edges = np.unique(np.quantile(values[known], np.linspace(0, 1, bins + 1)[1:-1]))
        groups[known] = np.searchsorted(edges, values[known], side="right") + 1
    elif known.any():
        groups[known] = np.unique(values[known], return_inverse=True)[1] + 1
    return groups


def label_partition(
    values: np.ndarray, num_clients: int, alpha: float, regression: bool, seed: int = 0, min_size: int = 1
) -> list[np.ndarray]:
    """``scaffold_lda`` over groups of equal label instead of scaffold: label skew. Arguments as there and in
    ``label_groups``."""
    return scaffold_lda(label_groups(values, regression), num_clients, alpha, seed, min_size)


def column_partition(column: Sequence[object]) -> tuple[list[np.ndarray], list[str]]:
    """One client per distinct value of a column, in sorted order (numbers by value).

    Returns:
        The positions of each client and the clients' names.

    Raises:
        ValueError: A blank value, with the rows.
    """
    blank = [i for i, value in enumerate(column) if value is None or value != value or not str(value).strip()]
    if blank:
        raise ValueError(
            f"`data.init_args.client_column` is blank for {len(blank)} molecules (positions "
            f"{blank[:10]}): each molecule needs a client."
        )
    names = sorted(set(column), key=str)
    try:
        values = [float(name) for name in names]  # type: ignore[arg-type]  # what is no number raises
    except (TypeError, ValueError):
        values = [np.nan]
    if np.isfinite(values).all():  # `nan` and `inf` are names, and have no order
        names.sort(key=float)  # type: ignore[arg-type]  # all are numbers
    index = {name: i for i, name in enumerate(names)}
    owner = np.array([index[value] for value in column], dtype=np.int64)
    return [np.flatnonzero(owner == client) for client in range(len(names))], [str(name) for name in names]


def total_variation(groups: np.ndarray, members: Sequence[np.ndarray]) -> np.ndarray:
    r"""Distance of each client's group histogram from that of all: :math:`\frac12 \sum_k |p^{(l)}_k - p_k|`.

    Args:
        groups: Group of each of N molecules, numbered from zero, shape ``(N,)``.
        members: Positions of each client.

    Returns:
        One value in [0, 1] per client; ``nan`` for a client without molecules.
    """
    size = int(groups.max()) + 1 if len(groups) else 0
    whole = np.bincount(groups, minlength=size) / max(len(groups), 1)
    return np.array(
        [
            0.5 * np.abs(np.bincount(groups[part], minlength=size) / len(part) - whole).sum() if len(part) else np.nan
            for part in members
        ]
    )


def _members_by_group(groups: np.ndarray) -> list[np.ndarray]:
    labels = np.unique(groups, return_inverse=True)[1]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _check(size: int, num_clients: int, min_size: int) -> None:
    if not isinstance(num_clients, (int, np.integer)) or isinstance(num_clients, bool) or num_clients < 1:
        raise ValueError(f"`data.init_args.num_clients` must be a whole number of at least 1, got {num_clients!r}.")
    if num_clients > size:
        raise ValueError(f"`data.init_args.num_clients` is {num_clients}, but there are only {size} training molecules.")
    if min_size * num_clients > size:
        fair = [len(part) for part in np.array_split(np.arange(size), num_clients)]
        raise ValueError(
            f"{size} training molecules cannot give each of {num_clients} clients {min_size}: the most "
            f"even sizes are {fair}, so client(s) {[i for i, n in enumerate(fair) if n < min_size]} would "
            "be short. Use a smaller `data.init_args.min_client_size` or a smaller "
            "`data.init_args.num_clients`."
        )
