"""What the step player costs a reader: stored bytes, time to the first picture, time of a step, in Chromium.

    python benchmarks/player.py [--json FILE] [--rounds N]

Four runs: the five requests of chapter 4, both admission rules side by side, 200 busy steps of 8 requests, and a large
one of 200 requests over some 2,000 steps and 4,096 KV blocks. Each player stands in an iframe, as in the book.
First picture: from the request for the page to the end of the frame in which the player has drawn itself. A step: from
the call to the end of the frame that shows it, so up to one 16.7 ms frame of waiting is in it; "script ms" is without.
Needs Chromium (or its path in MINI_VLLM_CHROMIUM) and playwright.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.yardstick import yardstick_ms
from mini_vllm.config import SchedulerConfig
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.trace.trace import Trace
from mini_vllm.viz import ABPlayer, StepPlayer

HERE = Path(__file__).resolve().parent
ADDRESS = "http://book.example/page.html"
SEED = 1
LIMITS = {"stored_kb": 1500, "first_picture_ms": 1000, "step_ms": 50}  # of the large run
SIZES = {"width": 1000, "height": 900}

MEASURE = """async ([count, span]) => {
  const frame = document.querySelector("iframe").contentWindow, times = [], scripts = [];
  const painted = () => new Promise(done => frame.requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = done;
    channel.port2.postMessage(0);
  }));
  const places = frame.eval("M");
  for (let k = 0; k < count; k++) {
    const to = span ? Math.floor(places * ((k * 0.618034) % 1)) : Math.floor(places / 3) + k;
    await painted();
    const start = performance.now();
    frame.eval(`go(${to})`);
    frame.document.body.getBoundingClientRect();
    scripts.push(performance.now() - start);
    await painted();
    times.push(performance.now() - start);
  }
  return [times, scripts];
}"""
READY = """() => new Promise(done => {
  const frame = document.querySelector("iframe");
  const look = () => {
    if (!frame.contentDocument.querySelector(".say")) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => done(performance.now())));
  };
  look();
})"""


def large_run() -> Trace:
    """200 requests, about 2,000 steps, 4,096 blocks, some evictions."""
    rng = random.Random(SEED)
    requests = [
        SimRequest(f"R{i + 1}", rng.randint(64, 2048), rng.randint(100, 700), arrival_step=4 * i) for i in range(200)
    ]
    config = SchedulerConfig(
        max_num_seqs=128, max_num_batched_tokens=1024, max_model_len=4096, num_gpu_blocks=4096, block_size=16
    )
    return simulate(requests, config)


def busy_run() -> Trace:
    """8 requests over 64 blocks, which are soon too few."""
    requests = [SimRequest(f"R{k + 1}", 37 + 13 * k, 110) for k in range(8)]
    config = SchedulerConfig(
        max_num_seqs=8, max_num_batched_tokens=48, max_model_len=512, num_gpu_blocks=64, block_size=16
    )
    return simulate(requests, config)


def players() -> dict[str, StepPlayer | ABPlayer]:
    chunk, full = (simulate(*five_requests(admission)) for admission in ("chunk", "full"))
    return {
        "five requests": StepPlayer(full),
        "two admission rules": ABPlayer(chunk, full),
        "busy": StepPlayer(busy_run()),
        "large": StepPlayer(large_run()),
    }


def measure(browser, player, rounds: int) -> dict:
    """Medians over `rounds` page loads; every step time goes into one list."""
    body = f"<!doctype html><title>A page</title><body>{player.html()}</body>"
    first, steps, jumps, scripts = [], [], [], []
    for _ in range(rounds):
        page = browser.new_context(viewport=SIZES).new_page()
        page.route("**/*", lambda route: route.fulfill(body=body, content_type="text/html; charset=utf-8"))
        page.goto(ADDRESS, wait_until="commit")
        first.append(page.evaluate(READY))
        times, script = page.evaluate(MEASURE, [60, False])
        steps += times
        scripts += script
        times, script = page.evaluate(MEASURE, [40, True])
        jumps += times
        scripts += script
        page.context.close()
    return {
        "requests": len(player.timelines[0].lanes),
        "steps": len(player.timelines[0].records),
        "blocks": player.timelines[0].limit("num_gpu_blocks"),
        "stored_kb": round(sum(len(text.encode()) for text in player._repr_mimebundle_().values()) / 1000, 1),
        "first_picture_ms": round(statistics.median(first)),
        "step_ms": round(statistics.median(steps), 1),
        "step_p95_ms": round(statistics.quantiles(steps, n=20)[-1], 1),
        "jump_ms": round(statistics.median(jumps), 1),
        "jump_p95_ms": round(statistics.quantiles(jumps, n=20)[-1], 1),
        "script_ms": round(statistics.median(scripts), 1),
        "script_p95_ms": round(statistics.quantiles(scripts, n=20)[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Size and speed of the step player in Chromium.")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "player.json")
    parser.add_argument("--rounds", type=int, default=5, help="page loads per player")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    names = (os.environ.get("MINI_VLLM_CHROMIUM"), "chromium", "google-chrome", "chromium-browser")
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    if path is None:
        sys.exit("no Chromium found: install it, or give its path in MINI_VLLM_CHROMIUM")
    before, start = yardstick_ms(), time.perf_counter()
    shown = players()
    build_s = time.perf_counter() - start
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        rows = {name: measure(browser, player, options.rounds) for name, player in shown.items()}
        version = browser.version
        browser.close()
    result = {
        "what": "stored bytes and times of the step player in headless Chromium, no GPU",
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "chromium": version,
        "viewport": SIZES,
        "seed": SEED,
        "yardstick_ms": [round(before, 3), round(yardstick_ms(), 3)],
        "limits_of_the_large_run": LIMITS,
        "players": rows,
    }
    print(f"yardstick {result['yardstick_ms'][0]} ms before, {result['yardstick_ms'][1]} ms after")
    print(
        f"{len(shown)} runs simulated and read in {build_s:.1f} s; Chromium {version}, {result['cpus']} CPUs, "
        f"load average {result['load_average']}"
    )
    columns = ("requests", "steps", "stored_kb", "first_picture_ms", "step_ms", "step_p95_ms", "jump_ms", "jump_p95_ms")
    columns += ("script_ms", "script_p95_ms")
    print(f"{'':20}" + "".join(f"{name.replace('_', ' '):>17}" for name in columns))
    for name, row in rows.items():
        print(f"{name:20}" + "".join(f"{row[column]:>17}" for column in columns))
    for name, limit in LIMITS.items():
        value = rows["large"][name]
        print(f"large, {name.replace('_', ' ')}: {value}, limit {limit}: {'ok' if value <= limit else 'OVER'}")
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
