"""Attention kernels drawn: which slots a program reads, which tiles it skips. Knows sizes, runs no kernel. Ch. 13."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from mini_vllm.errors import ConfigError
from mini_vllm.viz.style import BLUE, INK, SAND, SMALL, SOFT, Picture, house_style, legend_above, panels

TILE_LOOKS: tuple[dict[str, Any], ...] = (
    {"facecolor": BLUE, "edgecolor": "white"},
    {"facecolor": SAND, "edgecolor": "white"},
)
MOST_SLOTS = 48  # more, and the number in a slot is not readable on a phone
SKIPPED, FULL, MASKED = "never read", "seen by all rows", "needs the mask"
LOOKS: dict[str, dict[str, Any]] = {
    FULL: {"facecolor": BLUE, "edgecolor": "white"},
    MASKED: {"facecolor": SAND, "edgecolor": INK, "hatch": "////"},
    SKIPPED: {"facecolor": "white", "edgecolor": SOFT, "linestyle": ":"},
}


# ---- decode: one program's reads


def slots_read(block_table: Sequence[int], seq_len: int, block_size: int) -> list[int]:
    """The slot of each position 0 .. seq_len - 1. Raises ConfigError for a table that does not reach so far."""
    if seq_len < 1 or block_size < 1 or len(block_table) * block_size < seq_len:
        raise ConfigError(
            f"a table of {len(block_table)} blocks of {block_size} does not hold seq_len={seq_len} tokens (at least 1)"
        )
    return [block_table[p // block_size] * block_size + p % block_size for p in range(seq_len)]


def kv_reads(
    block_table: Sequence[int],
    seq_len: int,
    *,
    block_size: int,
    block_n: int,
    num_blocks: int,
    follow: int = 1,
    alt: str,
) -> Picture:
    """One program's way through a context: its positions in tiles of block_n, and the slots where they lie.

    num_blocks: of the pool, block 0 included. follow: the tile whose reads are drawn as lines.
    """
    slots = slots_read(block_table, seq_len, block_size)
    if max(block_table) >= num_blocks or num_blocks * block_size > MOST_SLOTS:
        raise ConfigError(
            f"block {max(block_table)} of a pool of {num_blocks} blocks of {block_size}: at most {MOST_SLOTS} slots "
            "are drawn, and every block of the table must be among them"
        )
    width = num_blocks * block_size
    shift = (width - seq_len) / 2
    with house_style():
        figure, (ax,) = panels(1, 2.7)
        for position, slot in enumerate(slots):
            tile = position // block_n
            look = TILE_LOOKS[tile % 2]
            for x, y in ((shift + position, 0.0), (slot, 2.2)):
                ax.add_patch(Rectangle((x, y), 1, 0.6, linewidth=0.6, **look))
                ink = INK if tile % 2 else "white"
                ax.text(x + 0.5, y + 0.3, str(tile), color=ink, ha="center", va="center", fontsize=SMALL)
            if tile == follow:
                ax.plot([shift + position + 0.5, slot + 0.5], [0.62, 2.18], color=INK, linewidth=0.7)
        for block in range(num_blocks):
            ax.add_patch(Rectangle((block * block_size, 2.2), block_size, 0.6, facecolor="none", edgecolor=INK))
            ax.text((block + 0.5) * block_size, 3.05, str(block), ha="center", va="center", fontsize=SMALL)
        ax.set(xlim=(-0.3, width + 0.3), ylim=(3.35, -0.25), xticks=[], yticks=[0.3, 2.5])
        ax.set_yticklabels(["positions", "slots"])
        ax.set_xlabel(f"block of the pool ({block_size} slots each); in a cell: the tile that reads it", fontsize=SMALL)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        names = ("tiles 0, 2, …", "tiles 1, 3, …")
        handles = [Patch(**look, label=name) for name, look in zip(names, TILE_LOOKS, strict=True)]
        legend_above(figure, [*handles, Patch(facecolor="white", edgecolor=INK, label="not read")])
        return Picture(figure, alt)


# ---- prefill: tiles of rows against tiles of KV


@dataclass(frozen=True)
class TileMap:
    """Which KV tiles each program of a prefill piece reads: kinds[i][j] of rows i and KV tile j."""

    kinds: list[list[str]]
    block_m: int
    block_n: int

    def count(self, kind: str) -> int:
        return sum(row.count(kind) for row in self.kinds)


def tile_map(
    query_len: int, seq_len: int, *, group: int, block_m: int, block_n: int, sliding_window: int | None = None
) -> TileMap:
    """Of a piece of query_len tokens at the end of a context of seq_len, for one KV head: row by row, what is seen.

    Row r of the packed rows belongs to token r // group and sees the positions up to that token's own.
    """
    if not 1 <= query_len <= seq_len:
        raise ConfigError(f"query_len={query_len} must be at least 1 and at most seq_len={seq_len}")
    history, num_rows, window = seq_len - query_len, query_len * group, sliding_window or seq_len
    kinds = []
    for first_row in range(0, num_rows, block_m):
        last_row = min(first_row + block_m, num_rows) - 1
        positions_of_rows = range(history + first_row // group, history + last_row // group + 1)
        line = []
        for first in range(0, seq_len, block_n):
            tile = range(first, first + block_n)
            seen = [p - window < position <= p for p in positions_of_rows for position in tile]
            line.append(FULL if all(seen) else MASKED if any(seen) else SKIPPED)
        kinds.append(line)
    return TileMap(kinds, block_m, block_n)


def prefill_tiles(maps: Mapping[str, TileMap], *, alt: str) -> Picture:
    """One panel a piece, `title -> tile_map(…)`: a line for each program, a cell for each KV tile."""
    heights = [len(found.kinds) + 1.6 for found in maps.values()]
    with house_style():
        figure, axes = panels(len(maps), 0.27 * sum(heights) + 0.9, heights)
        for ax, (title, found) in zip(axes, maps.items(), strict=True):
            _draw_tiles(ax, found)
            ax.set_title(title, fontsize=SMALL)
        axes[-1].set_xlabel(f"KV tile ({next(iter(maps.values())).block_n} positions each)", fontsize=SMALL)
        legend_above(figure, [Patch(**look, label=name) for name, look in LOOKS.items()])
        return Picture(figure, alt)


def _draw_tiles(ax: Axes, found: TileMap) -> None:
    for y, line in enumerate(found.kinds):
        for x, kind in enumerate(line):
            ax.add_patch(Rectangle((x + 0.06, y + 0.08), 0.88, 0.84, linewidth=0.6, **LOOKS[kind]))
    num_tiles = len(found.kinds[0])
    ax.set(xlim=(0, num_tiles), ylim=(len(found.kinds), 0), xticks=[x + 0.5 for x in range(num_tiles)])
    ax.set_xticklabels(range(num_tiles))
    ax.set_yticks([y + 0.5 for y in range(len(found.kinds))], [f"program {y}" for y in range(len(found.kinds))])
    ax.tick_params(length=0, labelbottom=True)
    ax.spines[:].set_visible(False)
