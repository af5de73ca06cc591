"""`Parallel`: which rows, and which part of them, a process gets under every kind of parallelism.

Data-parallel ranks share the rows, context-parallel ranks get slices of the same rows, and all
others (tensor, pipeline, expert) get the same rows. `docs/parallelism.md` shows how to say it.
"""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

from millstream.arguments import integer, one_of
from millstream.batches.row_slice import ContextLayout, RowSlice
from millstream.errors import UsageError
from millstream.load.ranks import find_rank, find_world

_ROLES = {
    "data": "dp data ddp fsdp hsdp batch replicate shard dp_replicate dp_shard",
    "context": "cp context",
    "same rows": "tp tensor mp model pp pipe pipeline ep expert etp expert_tensor",
}
"""the usual names of mesh dimensions, in lower case and without '_parallel'"""
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names.split()}
_MAX_RANKS = 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """The share of a process: rows of rank `rank` of `ranks`, and the slice of them that it gets.

    Processes with equal values get equal batches.

    >>> Parallel.from_sizes({"dp": 2, "cp": 2, "tp": 2}, rank=6)
    Parallel(rank=1, ranks=2, context_rank=1, context_ranks=2, context_layout='zigzag')
    """

    rank: int
    """among the data-parallel ranks"""
    ranks: int
    """how many data-parallel ranks share the rows"""
    context_rank: int = 0
    """among the ranks that share a row"""
    context_ranks: int = 1
    """how many ranks share a row; 1 for whole rows"""
    context_layout: ContextLayout = "zigzag"
    """how a row is cut: 'zigzag' balances causal attention, 'contiguous' keeps neighbours"""

    def __post_init__(self) -> None:
        for rank, ranks in [("rank", "ranks"), ("context_rank", "context_ranks")]:
            count = integer(ranks, getattr(self, ranks), 1, _MAX_RANKS)
            number = integer(rank, getattr(self, rank), 0, count - 1)
            object.__setattr__(self, ranks, count)
            object.__setattr__(self, rank, number)
        one_of("context_layout", self.context_layout, get_args(ContextLayout))

    def __str__(self) -> str:
        share = f"rank {self.rank} of {self.ranks}"
        if self.context_ranks > 1:
            share += f", context rank {self.context_rank} of {self.context_ranks}"
        return share

    @property
    def row_slice(self) -> RowSlice | None:
        """The slice of every row that this process gets; None for whole rows."""
        if self.context_ranks == 1:
            return None
        return RowSlice(
            part=self.context_rank, parts=self.context_ranks, layout=self.context_layout
        )

    @classmethod
    def from_mesh(
        cls,
        mesh: Any,
        *,
        data: str | Collection[str] | None = None,
        context: str | Collection[str] | None = None,
        context_layout: ContextLayout = "zigzag",
    ) -> Self:
        """Return the share of this process in a torch `DeviceMesh`.

        Arguments:
            mesh: of all processes that train, or a submesh that has all data-parallel dimensions.
            data: the dimensions that share the rows; several count in the order of the mesh, the
                last one fastest. None finds the usual names, such as 'dp' or 'dp_shard'.
            context: the dimensions that slice a row; () for none, None for 'cp' or 'context'.
            context_layout: how a row is cut.

        All other dimensions get the same rows.
        """
        module = sys.modules.get("torch.distributed.device_mesh")
        if module is None or not isinstance(mesh, module.DeviceMesh):
            raise UsageError(
                f"the mesh is {mesh!r:.60}; it must be a torch DeviceMesh (or, as parallel= of a "
                "loader, a millstream.Parallel)"
            )
        names = mesh.mesh_dim_names
        if not names:
            if mesh.ndim > 1:
                raise UsageError(
                    f"the dimensions of the mesh, of sizes {_listed(mesh.shape)}, have no names; "
                    'pass mesh_dim_names=("dp", …) to init_device_mesh'
                )
            names = ("dp",)
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise UsageError(
                f"this process is not in the mesh of {mesh.size()} processes; create the loader "
                "only on those that are"
            )
        share = _Dims("mesh", names, mesh.shape, coordinate).share(data, context)
        if data is None:
            _check_root(mesh, names, share["rank"], share["ranks"])
        return cls(**share, context_layout=context_layout)

    @classmethod
    def from_sizes(
        cls,
        sizes: Mapping[str, int],
        *,
        rank: int | None = None,
        data: str | Collection[str] | None = None,
        context: str | Collection[str] | None = None,
        context_layout: ContextLayout = "zigzag",
    ) -> Self:
        """Return the share of a process, from the sizes of all dimensions, the outermost first.

        Arguments:
            sizes: such as {"pp": 2, "dp": 4, "tp": 2}: neighbouring ranks differ in the last one.
            rank: among all processes; None takes it from torch.distributed or the environment.
            data, context, context_layout: as in `from_mesh`.
        """
        if not isinstance(sizes, Mapping):
            raise UsageError(f'sizes is {sizes!r:.60}; it must be a dict such as {{"dp": 4}}')
        shape = [integer(f"the size of {name!r}", size, 1) for name, size in sizes.items()]
        count, world = math.prod(shape), find_world()
        if world is None and rank is None and count > 1:
            raise UsageError(
                f"the sizes are for {count:,} processes, but this one has no rank: initialize "
                "torch.distributed, set RANK and WORLD_SIZE, or pass rank="
            )
        if world is not None and count != world[1]:
            raise UsageError(
                f"the sizes {_listed(shape)} of {_listed(sizes)} are for {count:,} processes, but "
                f"there are {world[1]:,}"
            )
        if rank is None:
            rank = world[0] if world else 0
        rest = integer("rank", rank, 0, count - 1)
        coordinate = [0] * len(shape)
        for dim in reversed(range(len(shape))):
            rest, coordinate[dim] = divmod(rest, shape[dim])
        share = _Dims("sizes", list(sizes), shape, coordinate).share(data, context)
        return cls(**share, context_layout=context_layout)


def find_share(parallel: Any, rank: int | None, ranks: int | None) -> Parallel:
    """Return the share that a loader's arguments name, or else the one of the environment."""
    if parallel is None:
        rank, ranks = find_rank(rank, ranks)
        return Parallel(rank=rank, ranks=ranks)
    if rank is not None or ranks is not None:
        raise UsageError("parallel= names the share of this process; leave out rank= and ranks=")
    if isinstance(parallel, Mapping):
        raise UsageError(
            f"parallel is a dict; write parallel=Parallel.from_sizes({parallel!r:.80})"
        )
    return parallel if isinstance(parallel, Parallel) else Parallel.from_mesh(parallel)


@dataclass(frozen=True, slots=True)
class _Dims:
    """The dimensions of a mesh, and where this process is in them."""

    kind: str
    """'mesh' or 'sizes', for messages"""
    names: Sequence[str]
    sizes: Sequence[int]
    coordinate: Sequence[int]

    def share(
        self, data: str | Collection[str] | None, context: str | Collection[str] | None
    ) -> dict[str, int]:
        """Return the ranks and their numbers, as arguments of `Parallel`."""
        chosen_data = self._chosen("data", data)
        chosen_context = self._chosen("context", context)
        if data is None:
            self._refuse_unknown(chosen_context)
            chosen_data -= chosen_context
        elif context is None:
            chosen_context -= chosen_data
        both = sorted(chosen_data & chosen_context)
        if both:
            raise UsageError(f"{_listed(both)} cannot be both in data= and in context=")
        rank, ranks = self.rank_along(chosen_data)
        context_rank, context_ranks = self.rank_along(chosen_context)
        return {
            "rank": rank,
            "ranks": ranks,
            "context_rank": context_rank,
            "context_ranks": context_ranks,
        }

    def _chosen(self, role: str, given: str | Collection[str] | None) -> set[str]:
        if given is None:
            return {name for name in self.names if _role_of(name) == role}
        chosen = {given} if isinstance(given, str) else _names(role, given)
        missing = sorted(chosen.difference(self.names))
        if missing:
            raise UsageError(
                f"{role}= names {_listed(missing)}; the dimensions of the {self.kind} are "
                f"{_listed(self.names)}"
            )
        return chosen

    def _refuse_unknown(self, context: set[str]) -> None:
        unknown = [name for name in self.names if _role_of(name) is None and name not in context]
        if not unknown:
            return
        shown = [name for name in self.names if _role_of(name) == "data"] or ["dp"]
        example = ", ".join(f'"{name}"' for name in shown)
        raise UsageError(
            f"which rows do the ranks along {_listed(unknown)} get? The dimensions of the "
            f"{self.kind} are {_listed(self.names)}. Name those that share the rows, as in "
            f"data=({example},), and with context= those that slice a row, such as Ulysses' "
            '("sp",); all others get the same rows'
        )

    def rank_along(self, chosen: Collection[str]) -> tuple[int, int]:
        """Return the rank of this process along some dimensions, and how many there are."""
        rank, ranks = 0, 1
        for name, size, index in zip(self.names, self.sizes, self.coordinate, strict=True):
            if name in chosen:
                rank, ranks = rank * size + index, ranks * size
        return rank, ranks


def _names(role: str, given: Any) -> set[str]:
    if not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{role} is {given!r:.60}; it must be a name or a tuple of names")
    return set(given)


def _role_of(name: str) -> str | None:
    return _ROLE_OF.get(name.lower().replace("-", "_").removesuffix("_parallel"))


def _listed(values: Collection[Any]) -> str:
    return ", ".join(repr(value) for value in values)


def _check_root(mesh: Any, names: Sequence[str], rank: int, ranks: int) -> None:
    """Raise if a submesh deals out rows differently from the mesh that it was taken from.

    Ranks that differ only along a missing dimension would train on the same rows.
    """
    find_root = getattr(mesh, "_get_root_mesh", None)  # torch has no public name for it
    root = mesh if find_root is None else find_root()
    if root is mesh or not root.mesh_dim_names:
        return
    all_data = [name for name in root.mesh_dim_names if _role_of(name) == "data"]
    dims = _Dims("mesh", root.mesh_dim_names, root.shape, root.get_coordinate())
    expected = dims.rank_along(all_data)
    if all_data and (rank, ranks) != expected:
        raise UsageError(
            f"this process is data-parallel rank {rank} of {ranks} in the submesh of "
            f"{_listed(names)}, but rank {expected[0]} of {expected[1]} in the mesh that it was "
            f"taken from, along {_listed(all_data)}. Pass the whole mesh, or data= if the submesh "
            "is meant"
        )
