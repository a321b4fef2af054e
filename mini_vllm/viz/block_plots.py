"""KV memory drawn: slots in use, block tables over their pool, one call of allocate_slots. Knows no rule. Chapter 6."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from mini_vllm.core.block_pool import NULL_BLOCK
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request
from mini_vllm.viz.records import read_trace
from mini_vllm.viz.style import BLUE, INK, SAND, SKY, SMALL, SOFT, WIDTH_IN, Picture, house_style, legend_above

ROW_IN = 0.42
HAS_TOKENS: dict[str, Any] = {"facecolor": SKY, "edgecolor": "none"}
OWNED: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.1}
UNOWNED: dict[str, Any] = {"facecolor": "none", "edgecolor": SOFT, "linestyle": ":", "linewidth": 1.1}
PIECES: dict[str, dict[str, Any]] = {
    "computed": {"facecolor": BLUE, "edgecolor": "white"},
    "this step": {"facecolor": SKY, "edgecolor": INK, "hatch": "////"},
    "lookahead": {"facecolor": "white", "edgecolor": INK, "hatch": "...."},
    "known, later": {"facecolor": "white", "edgecolor": SOFT},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "blocks it has": OWNED,
    "new blocks": {"facecolor": SAND, "edgecolor": INK},
    "must be free, not taken": UNOWNED,
}


# ---- slots


def memory_grid(pictures: Mapping[str, Sequence[int]], *, cell: int = 16, alt: str) -> Picture:
    """Memories side by side, slot after slot as one reads: `title -> what sim.contiguous.picture gives`.

    cell: slots that one little square stands for; it shows what most of them are.
    """
    with house_style():
        figure = Figure(figsize=(WIDTH_IN, 2.15), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(pictures), squeeze=False)[0]
        for ax, (title, slots) in zip(axes, pictures.items(), strict=True):
            side = isqrt(len(slots) // cell)
            cells = [slots[i * cell : (i + 1) * cell] for i in range(side * side)]
            most = [max(range(3), key=states.count) for states in map(list, cells)]
            rows = [most[i * side : (i + 1) * side] for i in range(side)]
            ax.imshow(rows, cmap=ListedColormap(["white", SAND, BLUE]), vmin=0, vmax=2, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.set_ylabel("slots, row by row", fontsize=SMALL)
            ax.spines[:].set_visible(True)
            ax.set_title(title, fontsize=SMALL)
            ax.set_xlabel(f"{list(slots).count(2) / len(slots):.0%} hold a token", fontsize=SMALL)
        kinds = (("holds a token", BLUE), ("taken, and empty", SAND), ("free", "white"))
        legend_above(figure, [Patch(facecolor=c, edgecolor=INK, linewidth=0.6, label=name) for name, c in kinds])
        return Picture(figure, alt)


# ---- block tables


def block_map(trace: Any, steps: Sequence[int], *, alt: str) -> Picture:
    """The block tables of everybody running after these steps were planned, above the pool that they point into.

    trace: as for `StepPlayer`. Raises ConfigError for a step that it does not have.
    """
    header, records = read_trace(trace)
    size, pool = header["config"]["block_size"], header["config"]["num_gpu_blocks"]
    by_step = {record["step"]: record for record in records}
    if missing := [step for step in steps if step not in by_step]:
        raise ConfigError(f"step {missing[0]} is not in the trace; it has steps {min(by_step)} to {max(by_step)}")
    chosen = [by_step[step] for step in steps]
    heights = [len(record["running"]) + 1.6 for record in chosen]
    with house_style():
        figure = Figure(figsize=(WIDTH_IN, ROW_IN * sum(heights) + 0.75), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(chosen), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, record in zip(axes, chosen, strict=True):
            _draw_tables(ax, record, size, pool)
        axes[-1].set_xlabel("block by block: of a table in its order, of the pool by number", fontsize=SMALL)
        handles = [Patch(**HAS_TOKENS, label="slots with a token"), Patch(**OWNED, label="owned"),
                   Patch(**UNOWNED, label="free")]  # fmt: skip
        legend_above(figure, handles)
        return Picture(figure, alt)


def _draw_tables(ax: Axes, record: dict[str, Any], size: int, pool: int) -> None:
    tables = {rid: record["blocks"].get(rid, []) for rid in record["running"]}
    shares = {}  # block -> how much of it holds tokens, and whose it is
    for row, (rid, table) in enumerate(tables.items()):
        computed = record["computed"][rid][1]
        for i, block in enumerate(table):
            share = min(max(computed - i * size, 0), size) / size
            if block != NULL_BLOCK:
                shares[block] = (share, rid)
            _draw_box(ax, i, row, share, OWNED, str(block) if block != NULL_BLOCK else "–")
    bottom = len(tables) + 0.6
    for block in range(1, pool + 1):
        share, owner = shares.get(block, (0.0, ""))
        _draw_box(
            ax, block - 1, bottom, share, OWNED if owner else UNOWNED, f"{block}: {owner}" if owner else f"{block}"
        )
    names = [f"{rid}, {record['computed'][rid][1]} tokens" for rid in tables]
    ax.set_yticks([*(row + 0.4 for row in range(len(tables))), bottom + 0.4], [*names, "the pool"])
    ax.set(xlim=(-0.1, max(pool, *map(len, tables.values()), 1)), ylim=(bottom + 0.95, -0.1), xticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(f"step {record['step']}", fontsize=SMALL)


def _draw_box(ax: Axes, x: float, y: float, share: float, look: dict[str, Any], label: str) -> None:
    ax.add_patch(Rectangle((x + 0.03, y), 0.94 * share, 0.8, **HAS_TOKENS))
    ax.add_patch(Rectangle((x + 0.03, y), 0.94, 0.8, **look))
    ax.text(x + 0.5, y + 0.4, label, ha="center", va="center", fontsize=SMALL)


# ---- one call of allocate_slots


@dataclass(frozen=True)
class Allocation:
    """What `allocate_slots` was asked, what it found, and what it answered (`new_blocks` is None for "not now")."""

    block_size: int
    num_computed_tokens: int
    num_new_tokens: int
    num_lookahead_tokens: int
    num_known_tokens: int
    owned: list[int]
    num_free: int
    watermark_blocks: int
    full_sequence: bool
    new_blocks: list[int] | None

    @property
    def num_required(self) -> int:
        """Blocks that must be free."""
        end = self.num_computed_tokens + self.num_new_tokens + self.num_lookahead_tokens
        if self.full_sequence:
            end = max(end, self.num_known_tokens)
        return -(-end // self.block_size) - len(self.owned) + self.watermark_blocks

    @property
    def words(self) -> str:
        """The arithmetic of the answer."""
        must = str(self.num_required - self.watermark_blocks)
        if self.watermark_blocks:
            must += f" + {self.watermark_blocks} of watermark"
        answer = "None" if self.new_blocks is None else f"takes {self.new_blocks}"
        return f"{must} must be free, {self.num_free} are: {answer}"


def watch_allocation(manager: KVCacheManager, request: Request, num_new_tokens: int, **how: Any) -> Allocation:
    """Call `manager.allocate_slots(request, num_new_tokens, **how)`, and keep what it saw. Without prefix hits."""
    owned, free = list(manager.get_block_ids(request.request_id)), manager.num_free_blocks
    new_blocks = manager.allocate_slots(request, num_new_tokens, **how)
    return Allocation(
        manager.config.block_size,
        request.num_computed_tokens,
        num_new_tokens,
        how.get("num_lookahead_tokens", 0),
        request.num_tokens,
        owned,
        free,
        how.get("watermark_blocks", 0),
        how.get("full_sequence", False),
        new_blocks,
    )


def allocation(calls: Mapping[str, Allocation], *, alt: str) -> Picture:
    """One panel a call, `title -> watch_allocation(…)`: its tokens on a line, above the blocks that hold them."""
    width = max(_num_blocks(call) * call.block_size for call in calls.values())
    with house_style():
        figure = Figure(figsize=(WIDTH_IN, 1.38 * len(calls) + 0.7), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(calls), 1, sharex=True, squeeze=False)[:, 0]
        for ax, (title, call) in zip(axes, calls.items(), strict=True):
            _draw_call(ax, call)
            ax.set_title(f"{title}:\n{call.words}", fontsize=SMALL)
            ax.set(xlim=(0, width), ylim=(2.05, -0.05), yticks=[0.4, 1.5], yticklabels=["tokens", "blocks"])
            ax.set_xticks(range(0, width + 1, call.block_size))
            ax.spines[["left", "bottom"]].set_visible(False)
            ax.tick_params(length=0)
        axes[-1].set_xlabel("token of the request", fontsize=SMALL)
        legend_above(figure, [Patch(**look, label=name) for name, look in _shown(calls).items()])
        return Picture(figure, alt)


def _num_blocks(call: Allocation) -> int:
    return len(call.owned) + max(len(call.new_blocks or ()), call.num_required - call.watermark_blocks)


def _spans(call: Allocation) -> list[tuple[str, int, int]]:
    """The pieces of the token line: (kind, from, to)."""
    new = call.num_computed_tokens + call.num_new_tokens
    ahead = new + call.num_lookahead_tokens
    spans = [
        ("computed", 0, call.num_computed_tokens),
        ("this step", call.num_computed_tokens, new),
        ("lookahead", new, ahead),
        ("known, later", new, call.num_known_tokens),
    ]
    return [span for span in spans if span[1] < span[2]]


def _block_kinds(call: Allocation) -> list[str]:
    granted = call.new_blocks or []
    kinds = ["blocks it has"] * len(call.owned) + ["new blocks"] * len(granted)
    return kinds + ["must be free, not taken"] * (_num_blocks(call) - len(kinds))


def _draw_call(ax: Axes, call: Allocation) -> None:
    for kind, start, end in _spans(call):
        ax.add_patch(Rectangle((start, 0.05), end - start, 0.7, **PIECES[kind]))
    ids = [*call.owned, *(call.new_blocks or [])]
    for i, kind in enumerate(_block_kinds(call)):
        x = i * call.block_size
        ax.add_patch(Rectangle((x + 0.15, 1.1), call.block_size - 0.3, 0.8, **BLOCKS[kind]))
        if i < len(ids):
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
            ax.text(x + call.block_size / 2, 1.5, str(ids[i]), ha="center", va="center", fontsize=SMALL, bbox=box)


def _shown(calls: Mapping[str, Allocation]) -> dict[str, dict[str, Any]]:
    kinds = {kind for call in calls.values() for kind, _, _ in _spans(call)}
    kinds |= {kind for call in calls.values() for kind in _block_kinds(call)}
    return {kind: look for kind, look in {**PIECES, **BLOCKS}.items() if kind in kinds}
