"""The clients' part of the similarity exchange: FB-NLL Algorithm 1, lines 4-14 (Eq. 2-5).

They offer eigenvectors and reply with their relevance r(k, j) to those of others, by the fast forms
of ``core.similarity`` where float32 is enough. No label is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from raysim.core.similarity import (
    QuadraticForm,
    num_leading,
    pair_products,
    quadratic_form,
    relevance,
    relevance_block,
    relevance_by_rank,
    relevance_of_energies,
    response_operator,
    similarity_matrix,
)
from raysim.core.spectra import Spectrum, spectrum, truncate
from raysim.protocols import Client, ClientId, Stacked, Tree, stacked
from raysim.seeding import stream
from raysim.steps.arrays import on_device, to_numpy
from raysim.steps.layouts import Layout, block_layout

WIRE = np.float32
"""Type of what clients send: four bytes a number, as the papers count."""
TILE_ROWS = 2048
"""Eigenvectors per product without quadratic forms."""
TILE_PRODUCTS = 8_000_000
"""Products v_a v_b per tile of eigenvectors (32 MB), which all clients of an actor share."""
LARGEST_FORM = 384
"""Feature dimension up to which clients keep quadratic forms (0.3 MB each there)."""
FLOAT32_RANGE = 1e-3
"""Where an eigenvalue is below this share of the largest, its relevance is computed in float64."""


def offered_rank_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, int]:
    """Reply with how many eigenvectors this client can offer (rank q, FB-NLL section V)."""
    return memory, int(_own(client, arguments).vectors.shape[1])


def vectors_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with the top-q eigenvectors V_k; eigenvalues stay here (Eq. 2; lines 6, 11)."""
    return memory, _own(client, arguments).vectors[:, : arguments["rank"]]


def relevance_together(
    clients: Sequence[Client], memories: Sequence[Tree], arguments: Sequence[Mapping[str, Any]]
) -> Iterator[Stacked]:
    """Answer for all clients of an actor (Eq. 3-5); the others come in tiles that fit the cache."""
    shared = arguments[0]
    rows, arrays, rank = shared["others"]["rows"], shared["arrays"], shared["rank"]
    r = np.empty((len(clients), len(rows)), dtype=WIRE)
    answering = {i: _answering(client, shared) for i, client in enumerate(clients)}
    for client in clients:
        client.scratch.pop("own", None)  # its last use: many numbers per client
    stack = _Stack.take(answering, rank, lambda: _layout(rows, arrays, shared.get("clients")))
    exactly: dict[int, list[_Tile]] = {}
    for tile in _tiles(rows):
        blocks = {} if stack is None else stack.blocks(tile, arrays)
        sent = on_device(tile.vectors, arrays)
        for i in range(len(clients)):
            own = answering.get(i)
            if isinstance(own, _Own):
                blocks[i] = relevance_block(own.operator, own.values[:rank], sent)
            if i in blocks:
                r[i, tile.place] = to_numpy(blocks[i])[: tile.known]
            else:
                exactly.setdefault(i, []).append(tile)
    for i, tiles in exactly.items():  # float32 is not enough
        full = truncate(_spectrum(clients[i], arrays), rank)
        for tile in tiles:
            exact = relevance(full, _stack(tile.vectors, rank, arrays))
            r[i, tile.place] = to_numpy(exact)[: tile.known]
    yield Stacked(tuple(client.id for client in clients), tuple(r))


@dataclass(frozen=True, eq=False)
class _Tile:
    """Vectors of some clients, filled up to a fixed number: products of one shape, same bits."""

    start: int
    known: int
    vectors: np.ndarray
    """(clients * Q, D)."""

    @property
    def place(self) -> slice:
        """Where the answers belong."""
        return slice(self.start, self.start + self.known)


def _tiles(rows: np.ndarray) -> Iterator[_Tile]:
    """Yield everyone's vectors (K, Q, D) in tiles."""
    count, rank, dimension = rows.shape
    size = min(_clients_per_tile(dimension, rank), count)
    for start in range(0, count, size):
        part = rows[start : start + size]
        filled = np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])
        yield _Tile(start, len(part), filled.reshape(size * rank, dimension))


@stacked(relevance_together)
def relevance_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with this client's row r(k, .) to everyone's eigenvectors (Eq. 3-5; lines 12-13)."""
    (part,) = relevance_together([client], [memory], [arguments])
    return memory, part.replies[0]


def curve_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with sums of r(k, .) over clients of the own and of other groups, by rank (Q, 2).

    By the first 1, 2, ..., Q eigenvectors (FB-NLL Fig. 5): a diagnosis that no protocol sends.
    """
    arrays, groups = arguments["arrays"], arguments["groups"]
    rows = arguments["others"]["rows"]
    others = _stack(rows.reshape(-1, rows.shape[2]), rows.shape[1], arrays)
    r = to_numpy(relevance_by_rank(_spectrum(client, arrays), others))
    ids = np.array(sorted(groups))
    same = np.array([groups[k] == groups[client.id] for k in ids])
    client.scratch.pop("own", None)  # made for a rank of its own
    within = r[same & (ids != client.id)].sum(axis=0)
    return memory, np.stack([within, r[~same].sum(axis=0)], axis=1)


def self_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with the similarity of two random halves of the client's samples (Eq. 3-6).

    It says how much of the distance to others is chance.
    """
    features = client.world.features("grouping", client.sample_ids)
    first, second = (
        spectrum(on_device(features[ids], arguments["arrays"]))
        for ids in halves(len(features), arguments["seed"], client.id)
    )
    rank = min(arguments["rank"], first.rank, second.rank)
    return memory, WIRE(to_numpy(similarity_matrix([first, second], rank))[0, 1])


def halves(num_samples: int, seed: int, client: ClientId) -> tuple[np.ndarray, np.ndarray]:
    """Return two random halves of a client's samples, ascending; a single sample is in both."""
    order = stream(seed, "halves", client).permutation(num_samples)
    middle = num_samples // 2
    first, second = np.sort(order[middle:]), np.sort(order[:middle])
    return first, second if middle else first


@dataclass(frozen=True, eq=False)
class _Own:
    """What a client keeps of its spectrum, about a tenth; the rest can be computed again."""

    values: Any
    """All eigenvalues (R,)."""
    vectors: np.ndarray
    """The eigenvectors it offers (D, Q), as they are sent."""
    operator: Any = None
    """``response_operator`` (R, D), float32; None where ``form`` stands for it."""
    form: QuadraticForm | None = None


def _own(client: Client, arguments: Mapping[str, Any]) -> _Own:
    """Return what the client keeps, computed once per process (Procedure 1, lines 2-7)."""
    if "own" not in client.scratch:
        full = _spectrum(client, arguments["arrays"])
        offered = arguments["how"].num_offered(full)
        vectors = to_numpy(full.vectors[:, :offered]).astype(WIRE)
        # Half of D^2 products per vector, or R D: a client with few samples has few directions.
        if 2 * full.rank > full.dimension and full.dimension <= LARGEST_FORM:
            own = _Own(full.values, vectors, form=quadratic_form(full))
        else:
            own = _Own(full.values, vectors, operator=response_operator(full))
        client.scratch["own"] = own
    kept: _Own = client.scratch["own"]
    return kept


@dataclass(frozen=True, eq=False)
class _Stack:
    """Quadratic forms of many clients: one product answers for all of them."""

    layout: Layout
    clients: tuple[int | None, ...]
    """The client at each place of each block."""
    values: Any
    """First Q eigenvalues (B, Q)."""
    leading: Any
    packed: Any
    floors: np.ndarray

    @classmethod
    def take(
        cls,
        answering: dict[int, _Own | Spectrum],
        rank: int,
        layout: Callable[[], Layout],
    ) -> _Stack | None:
        """Return the stack of all forms, moved out of ``answering``; None where there is none."""
        forms = {
            i: (own.values[:rank], own.form)
            for i, own in answering.items()
            if isinstance(own, _Own) and own.form is not None
        }
        if not forms:
            return None
        for i in forms:
            del answering[i]
        how = layout()
        clients = _seated(list(forms), how)
        anyone = next(iter(forms.values()))
        filled = [anyone if i is None else forms[i] for i in clients]
        xp = array_namespace(anyone[1].packed)
        return cls(
            how,
            clients,
            xp.stack([values for values, _ in filled]),
            xp.stack([form.leading for _, form in filled]),
            xp.stack([form.packed for _, form in filled]),
            np.array([form.floor for _, form in filled]),
        )

    def blocks(self, tile: _Tile, arrays: Any) -> dict[int, Any]:
        """Return r(k, .) by client, but for those whose response is too faint for float32."""
        columns = on_device(np.ascontiguousarray(tile.vectors.T), arrays)
        products = pair_products(columns)
        r: dict[int, Any] = {}
        for start in range(0, len(self.floors), self.layout.block):
            own = slice(start, start + self.layout.block)
            squares = self.layout.energies(
                self.leading[own, :, :], self.packed[own, :], columns, products
            )
            block = relevance_of_energies(self.values[own, :], squares)
            faint = to_numpy(array_namespace(squares).min(squares, axis=1)) < self.floors[own]
            for b, i in enumerate(self.clients[own]):
                if i is not None and not faint[b]:
                    r[i] = block[b, :]
        return r


def _seated(clients: Sequence[int], layout: Layout) -> tuple[int | None, ...]:
    """Return who sits at each place, in as many blocks as needed; None where nobody does."""
    seats: list[int | None] = []
    room = len(layout.places)
    for start in range(0, len(clients), room):
        part = dict(zip(layout.places, clients[start : start + room], strict=False))
        seats += [part.get(place) for place in range(layout.block)]
    return tuple(seats)


def _layout(rows: np.ndarray, arrays: Any, clients: int | None) -> Layout:
    """Return the layout of blocks that answer to vectors (J, Q, D), tile by tile.

    ``clients`` counts those of all actors that answer; None: as many as ask.
    """
    count, rank, dimension = rows.shape
    size = min(_clients_per_tile(dimension, rank), count)
    columns = size * rank
    return block_layout(clients or count, num_leading(dimension), dimension, columns, arrays)


def _clients_per_tile(dimension: int, rank: int) -> int:
    """Return how many clients' vectors are multiplied at once."""
    if dimension > LARGEST_FORM:
        return max(TILE_ROWS // rank, 1)
    return max(TILE_PRODUCTS // (dimension * (dimension + 1) // 2) // rank, 1)


def _answering(client: Client, arguments: Mapping[str, Any]) -> _Own | Spectrum:
    """Return what answers for a client: float32 forms, or its spectrum if those fall short."""
    own, rank = _own(client, arguments), arguments["rank"]
    values = to_numpy(own.values)
    if values[rank - 1] > FLOAT32_RANGE * values[0]:
        return own
    return truncate(_spectrum(client, arguments["arrays"]), rank)


def _stack(rows: np.ndarray, rank: int, arrays: Any) -> Any:
    plain = rows.astype(np.float64).reshape(-1, rank, rows.shape[1])
    return on_device(np.ascontiguousarray(plain.transpose(0, 2, 1)), arrays)


def _spectrum(client: Client, arrays: Any) -> Spectrum:
    """Return all eigenpairs of the covariance of the client's features (Eq. 2; line 5)."""
    return spectrum(on_device(client.world.features("grouping", client.sample_ids), arrays))
