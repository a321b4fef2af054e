"""Pictures of a prefix cache: chains of names, and what a pool holds. Knows no scheduler and no run. Chapter 7."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.prefix_cache import extend_hashes, root_hash
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request
from mini_vllm.viz.style import INK, SKY, SMALL, SOFT, Picture, house_style, legend_above, panels

MOST_COLUMNS, MOST_ROWS = 5, 8  # of chains: what a column of the book can hold
MOST_BLOCKS = 10  # of a pool
PITCH, GAP = 1.4, 0.45  # of its rows; between blocks in use and the free queue, in blocks
SHARED, OWN, EMPTY = SKY, "#FAE7DB", "#FFFFFF"  # three greys in print
SHOWN_BYTES = 2  # of each hash
HALF = 0.43  # of a box's width, in columns


# ---- chains


class Node(NamedTuple):
    """One name: where it stands, what it names, who has it."""

    row: float
    column: int
    text: str
    requests: list[str]
    parent: bytes | None


def hash_chains(requests: Sequence[Request], block_size: int, *, alt: str) -> Picture:
    """The names of the requests' full blocks, from the root on; requests that begin alike share boxes, then fork.

    Under each name stand the block's token ids; a block that is not full has no name yet and a dashed border.
    Raises ConfigError for no requests, and for more of them or longer ones than the picture can hold.
    """
    nodes, tails = _forest(requests, block_size)
    num_rows, drawn = len(requests), [*nodes.values(), *(tail for _, tail in tails)]
    with house_style():
        figure, (ax,) = panels(1, 0.62 * num_rows + 0.75)
        for name, node in nodes.items():
            if node.parent is not None:
                _connect(ax, nodes[node.parent], node)
            fill = EMPTY if node.parent is None else SHARED if len(node.requests) > 1 else OWN
            head = node.text if node.parent is None else name[:SHOWN_BYTES].hex() + "…"
            _box(ax, node.column, node.row, head, "" if node.parent is None else node.text, fill)
        for parent, tail in tails:
            _connect(ax, nodes[parent], tail)
            _box(ax, tail.column, tail.row, "no name", tail.text, EMPTY, dashed=True)
        for row, request in enumerate(requests):
            column = max(n.column for n in drawn if request.request_id in n.requests)
            ax.text(column + 0.5, row, request.request_id, va="center", fontweight="bold")
        ax.set_xlim(-0.5, max(n.column for n in drawn) + 0.9)
        ax.set_ylim(num_rows - 0.45, -0.5)
        _say(ax, x="the blocks of a prompt, from its beginning on", y="one request a row")
        legend_above(figure, _patches({"of several requests": SHARED, "of one request": OWN}))
        return Picture(figure, alt)


def _forest(requests: Sequence[Request], block_size: int) -> tuple[dict[bytes, Node], list[tuple[bytes, Node]]]:
    """Every name once, at the row of the first request that has it; and the blocks that are not full."""
    if not 1 <= len(requests) <= MOST_ROWS:
        raise ConfigError(f"{len(requests)} requests cannot be drawn as chains: give 1 to {MOST_ROWS}")
    nodes: dict[bytes, Node] = {}
    tails: list[tuple[bytes, Node]] = []
    for row, request in enumerate(requests):
        num_full = request.num_tokens // block_size
        if num_full + 1 > MOST_COLUMNS:
            raise ConfigError(
                f"{request.request_id} has {num_full} full blocks; the picture holds {MOST_COLUMNS - 1}: shorten it"
            )
        parent = root_hash(request.cache_salt, request.adapter)
        marks = {"salt": request.cache_salt, "adapter": request.adapter}
        told = "\n".join(f"{name} {value!r}" for name, value in marks.items() if value is not None)
        nodes.setdefault(parent, Node(row, 0, told or "root", [], None)).requests.append(request.request_id)
        for i, name in enumerate(extend_hashes(request, block_size, num_full)[:num_full]):
            text = _tokens(request.token_ids[i * block_size : (i + 1) * block_size])
            nodes.setdefault(name, Node(row, i + 1, text, [], parent)).requests.append(request.request_id)
            parent = name
        if rest := request.token_ids[num_full * block_size :]:
            tails.append((parent, Node(row, num_full + 1, _tokens(rest), [request.request_id], parent)))
    return nodes, tails


def _tokens(token_ids: Sequence[int]) -> str:
    return " ".join(map(str, token_ids)) if len(token_ids) <= 4 else f"{token_ids[0]} … {token_ids[-1]}"


def _connect(ax: Axes, parent: Node, child: Node) -> None:
    start, end = parent.column + HALF + 0.02, child.column - HALF - 0.02
    middle = end - 0.03
    ax.plot([start, middle, middle, end], [parent.row, parent.row, child.row, child.row], color=INK, linewidth=1.2)


# ---- the pool


class PoolState(NamedTuple):
    """What a pool held at one moment: (block, hash, owners), first the free queue from its head, then those in use."""

    free: tuple[tuple[int, bytes | None, int], ...]
    in_use: tuple[tuple[int, bytes | None, int], ...]


def pool_state(pool: BlockPool) -> PoolState:
    """A picture can be drawn of it later, when the pool has gone on."""
    queue = pool.free_queue()
    owned = [block for block in range(1, pool.num_gpu_blocks + 1) if pool.ref_count[block]]
    free, in_use = (tuple((b, pool.hash_of[b], pool.ref_count[b]) for b in blocks) for blocks in (queue, owned))
    return PoolState(free, in_use)


def free_queue(moments: Mapping[str, PoolState], *, names: Mapping[bytes, str] | None = None, alt: str) -> Picture:
    """A pool at several moments: blocks in use with their owners, and the free queue from head (taken next) to tail.

    names: hash -> what to call the content of a block; by default the first bytes of the hash.
    Raises ConfigError for no moments and for pools that are too large to draw.
    """
    if not moments:
        raise ConfigError("there is nothing to draw: give title -> pool_state(pool)")
    width = max(len(state.free) + len(state.in_use) for state in moments.values())
    if width > MOST_BLOCKS:
        raise ConfigError(f"a pool of {width} blocks is too large to draw; {MOST_BLOCKS} fit")
    with house_style():
        figure, (ax,) = panels(1, 0.86 * len(moments) + 0.5)
        for row, (title, state) in enumerate(moments.items()):
            y = PITCH * row
            ax.text(-0.42, y - 0.44, title, va="bottom", fontsize=SMALL, fontweight="bold")
            for column, (block, block_hash, owners) in enumerate(state.in_use):
                text = f"{block} ×{owners}"
                _box(ax, column, y, text, _content(block_hash, names), _fill(block_hash), heavy=True)
            head = width - len(state.free) + GAP
            for place, (block, block_hash, _) in enumerate(state.free):
                _box(ax, head + place, y, f"{block}", _content(block_hash, names), _fill(block_hash))
            if state.free:
                ax.text(head - 0.4, y + 0.42, "↑ taken next", va="top", fontsize=SMALL, color=SOFT)
        ax.set_xlim(-0.5, width + GAP - 0.5)
        ax.set_ylim(PITCH * (len(moments) - 1) + 0.75, -0.85)
        _say(ax, x="blocks by number: those in use, then the free queue from its head", y="one moment a row")
        words = {"cached: a prefix can find it": SHARED, "nothing to find": EMPTY}
        in_use = Patch(facecolor=EMPTY, edgecolor=INK, linewidth=1.8, label="in use, × owners")
        legend_above(figure, [*_patches(words), in_use])
        return Picture(figure, alt)


def _fill(block_hash: bytes | None) -> str:
    return EMPTY if block_hash is None else SHARED


def _content(block_hash: bytes | None, names: Mapping[bytes, str] | None) -> str:
    if block_hash is None:
        return "–"
    return (names or {}).get(block_hash) or block_hash[:SHOWN_BYTES].hex()


# ---- boxes


def _box(
    ax: Axes, x: float, y: float, head: str, text: str, fill: str, *, dashed: bool = False, heavy: bool = False
) -> None:
    """A box around (x, y) with a bold line and a small one."""
    ax.add_patch(
        FancyBboxPatch(
            (x - HALF, y - 0.34),
            2 * HALF,
            0.68,
            boxstyle="round,pad=0.02,rounding_size=0.06",
            mutation_aspect=0.8,
            facecolor=fill,
            edgecolor=INK,
            linewidth=1.8 if heavy else 0.8,
            linestyle="--" if dashed else "-",
        )
    )
    ax.text(x, y - (0.12 if text else 0), head, ha="center", va="center", fontsize=SMALL)
    ax.text(x, y + 0.16, text, ha="center", va="center", fontsize=SMALL, color=INK)


def _say(ax: Axes, x: str, y: str) -> None:
    """What the two directions mean, on a picture without scales."""
    ax.set_xlabel(x, fontsize=SMALL)
    ax.set_ylabel(y, fontsize=SMALL)
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_visible(False)


def _patches(words: Mapping[str, str]) -> list[Artist]:
    return [Patch(facecolor=fill, edgecolor=INK, linewidth=0.8, label=word) for word, fill in words.items()]
