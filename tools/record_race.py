"""The two runs on the book's first page: records them on the real engine, and draws their player. Knows one workload.

record_race.py record    run the model twice on this machine, write book/_data/race-*.jsonl.gz, then draw
record_race.py draw      write book/_generated/race.html from the recordings; --check only compares
"""

import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mini_vllm.trace.trace import Trace  # noqa: E402
from mini_vllm.viz.ab_player import ABPlayer  # noqa: E402

RUNS = {"static": "Static: nobody in until everybody is out", "continuous": "Continuous: a new batch in every step"}
PAGE = ROOT / "book" / "_generated" / "race.html"
QUESTIONS = [
    "What is the capital of France? Answer in one word.",
    "Tell me a story about a lighthouse.",
    "What is the capital of Spain? Answer in one word.",
    "Name three colours.",
    "What is the capital of Japan? Answer in one word.",
]


def recording(name: str) -> Path:
    return ROOT / "book" / "_data" / f"race-{name}.jsonl.gz"


def record() -> None:
    """Both runs with the same three places in the batch, in real times of this machine; kept only if it was quiet."""
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.batching import ContinuousBatcher, StaticBatcher

    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    traces, decode_ms = {}, {}
    for name, batcher in (("static", StaticBatcher), ("continuous", ContinuousBatcher)):
        llm = LLM("smollm2-135m", scheduler_cls=batcher, max_num_seqs=3, num_gpu_blocks=24)
        llm.chat(chats, SamplingParams(max_tokens=4))  # the first run of a process is slower
        for output in llm.chat(chats, SamplingParams(max_tokens=48)):
            print(f"{name:11}{len(output.token_ids):4} tokens  {output.text[:60]!r}")
        lone = [s["t_end"] - s["t_start"] for s in llm.trace.steps if s["budget_used"] == 1]
        traces[name], decode_ms[name] = llm.trace, 1000 * median(lone)
        print(f"{name}: {len(llm.trace.steps)} steps, {llm.trace.steps[-1]['t_end']:.2f} s, "
              f"a lone decode takes {decode_ms[name]:.1f} ms")  # fmt: skip
    if max(decode_ms.values()) > 1.25 * min(decode_ms.values()):
        sys.exit("the same step took over 25 % longer in one of the runs: the machine is busy, nothing was written")
    for name, trace in traces.items():
        recording(name).parent.mkdir(exist_ok=True)
        trace.save(recording(name))


def page() -> str:
    """The player as the page embeds it; the picture for readers without scripts stands inside."""
    runs = [Trace.load(recording(name)) for name in RUNS]
    player = ABPlayer(*runs, labels=tuple(RUNS.values()), lock="time", brief=True, title="Five questions, one model")
    return player._repr_mimebundle_()["text/html"] + "\n"


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["record"]:
        record()
    elif arguments[:1] != ["draw"]:
        print(__doc__)
        return 2
    text = page()
    if "--check" in arguments:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(text) / 1024:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
