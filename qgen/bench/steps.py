"""One decode step of a model: its products in order, and where in memory the weights of each lie. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from qgen.bench.cases import Shape, Skipped
from qgen.errors import QgenError
from qgen.models import Model, Part

# Roles of dense models in the catalog that read one activation of their layer.
_TOGETHER = (frozenset({"q", "k", "v"}), frozenset({"gdn_qkv", "gdn_z"}), frozenset({"gate", "up"}))


@dataclass(frozen=True)
class Product:
    """One matrix of the step. layer: from 0 up; the output head counts as one more."""

    role: str
    shape: Shape
    layer: int


@dataclass(frozen=True)
class Slot:
    """Memory of one distinct matrix: `nbytes` from byte `offset` of the buffer on."""

    shape: Shape
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Placement:
    """Which memory each product of each step reads.

    slots:  the distinct matrices, back to back
    rounds: for each step of a graph, the slot of each product in order
    layers: of the model, the head among them; distinct: those with memory of their own in one step
    nbytes: from the first slot's begin to the last one's end, gaps for alignment included
    """

    slots: tuple[Slot, ...]
    rounds: tuple[tuple[int, ...], ...]
    layers: int
    distinct: int
    nbytes: int

    @property
    def order(self) -> tuple[int, ...]:
        """The slots of all steps, one after another."""
        return tuple(slot for steps in self.rounds for slot in steps)


def products(model: Model) -> tuple[list[Product], list[Skipped]]:
    """A token's products in order: layer by layer attention, then MLP, and the head; and what is left out, with reason.

    The catalog says how many layers of each kind there are, not which: they are spread evenly over the depth.
    Raises QgenError for a model with experts, whose step is no chain of plain products.
    """
    if any(part.kind == "experts" for part in model.parts):
        raise QgenError(
            stage="bench",
            subject=model.name,
            found="expert layers, which are mul_mat_id",
            allowed="a model whose layers are all dense: no family serves mul_mat_id yet",
            next="choose one like --model Qwen3-8B",
        )
    mixers = _spread([part for part in model.parts if part.kind == "mixer"])
    mlps = _spread([part for part in model.parts if part.kind == "mlp"])
    heads = [part for part in model.parts if part.kind == "head"]
    layers: list[list[Part]] = [[p for p in pair if p] for pair in zip_longest(mixers, mlps)]
    found: list[Product] = []
    for number, parts in enumerate([*layers, heads]):
        for part in parts:
            found += [
                Product(matrix.role, Shape(matrix.N, matrix.K), number)
                for matrix in part.matrices
                if matrix.group != "aux"
            ]
    small = [m for m in model.matrices if m.group == "aux"]
    return found, [Skipped(f"{m.role} {m.N}x{m.K}", "small, and kept in f32 by engines") for m in small]


def together(step: Sequence[Product]) -> list[range]:
    """The numbers of the products that one call makes, call by call: neighbours in a layer that take the same x.

    Those are q, k and v; gate and up; the two of gated delta attention. Every other product is alone.
    """
    found: list[range] = []
    for number, product in enumerate(step):
        if found and _take_one_x([*(step[i] for i in found[-1]), product]):
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def _take_one_x(products: Sequence[Product]) -> bool:
    roles = {p.role for p in products}
    places = {(p.layer, p.shape.columns) for p in products}
    return len(places) == 1 and len(roles) == len(products) and any(roles <= known for known in _TOGETHER)


def alike(step: Sequence[Product]) -> dict[Shape, Shape]:
    """For each shape one that stands for all whose products take one x with its own, directly or by way of others."""
    found = {product.shape: product.shape for product in step}
    for group in together(step):
        joined = [found[step[i].shape] for i in group]
        found = {shape: joined[0] if own in joined else own for shape, own in found.items()}
    return found


def _spread(parts: Sequence[Part]) -> list[Part]:
    """Each part as often as it has layers, all evenly mixed."""
    places = [((i + 0.5) / part.layers, n, part) for n, part in enumerate(parts) for i in range(part.layers)]
    return [part for _, _, part in sorted(places, key=lambda place: place[:2])]


def place(step: Sequence[Product], size: Callable[[Shape], int], *, unit: int, available: int, cold: int) -> Placement:
    """Give every matrix memory of its own, as far as it fits.

    size:      bytes of a matrix; unit: slots begin at multiples of it
    available: bytes there are
    cold:      bytes that must be read between two reads of a slot, in a step or across steps

    A model smaller than `cold` has several copies, which steps take in turn. Of a model larger than `available` each
    kind of layer has as many distinct layers as fit, in a ring. Raises QgenError where even that is too little.
    """
    layers: dict[int, list[Product]] = {}
    for product in step:
        layers.setdefault(product.layer, []).append(product)

    def padded(products: Sequence[Product]) -> int:
        return sum(-(-size(p.shape) // unit) * unit for p in products)

    kinds: dict[tuple[tuple[str, Shape], ...], list[int]] = {}
    for number, own in layers.items():
        kinds.setdefault(tuple((p.role, p.shape) for p in own), []).append(number)
    most = max(len(numbers) for numbers in kinds.values())
    whole = padded(step)
    # Where a ring does not come out even, a step ends on slots that the next one begins with: then a smaller one.
    for share in range(most, 0, -1) if whole > available else [most]:
        rings = {key: max(1, len(numbers) * share // most) for key, numbers in kinds.items()}
        for copies in range(1, 2 + available // whole):
            made = _place(layers, kinds, rings, copies, size, unit)
            if made.nbytes <= available and _least_between(made) >= cold:
                return made
    raise QgenError(
        stage="bench",
        subject="the weights of the model",
        found=f"{whole / 1e6:.6g} MB a step, {available / 1e6:.6g} MB free",
        allowed=f"room for the head, layers of each kind, and {cold / 1e6:.6g} MB between two reads of a matrix",
        next="free the device, or choose a smaller model or format",
    )


def _place(
    layers: dict[int, list[Product]],
    kinds: dict[tuple[tuple[str, Shape], ...], list[int]],
    rings: dict[tuple[tuple[str, Shape], ...], int],
    copies: int,
    size: Callable[[Shape], int],
    unit: int,
) -> Placement:
    slots: list[Slot] = []
    rounds: list[tuple[int, ...]] = []
    offset = 0
    for _ in range(copies):
        owned: dict[int, list[int]] = {}  # slots of a layer that has its own
        of_layer: dict[int, list[int]] = {}
        for number, own in layers.items():
            key = tuple((p.role, p.shape) for p in own)
            turn = kinds[key].index(number)
            if turn < rings[key]:
                owned[number] = []
                for product in own:
                    owned[number].append(len(slots))
                    slots.append(Slot(product.shape, offset, size(product.shape)))
                    offset += -(-slots[-1].nbytes // unit) * unit
            of_layer[number] = owned[kinds[key][turn % rings[key]]]
        rounds.append(tuple(slot for number in layers for slot in of_layer[number]))
    return Placement(tuple(slots), tuple(rounds), len(layers), sum(rings.values()), offset)


def _least_between(placement: Placement) -> int:
    """The fewest bytes read between two reads of one slot, when the steps are walked again and again."""
    ends: dict[int, int] = {}
    read, least = 0, placement.nbytes
    for slot in placement.order * 2:
        if slot in ends:
            least = min(least, read - ends[slot])
        read += placement.slots[slot].nbytes
        ends[slot] = read
    return least
