"""Races the embedded engine against transformers' ``generate`` and TRL's GRPOTrainer, in one run.

    python benchmarks/engine.py --workload long --model 3m --threads 2 --repeats 5 --json FILE

Every contestant is a process of its own (``peers.py``) that works on demand, and they take turns: a machine
that slows down slows all of them. Reported are medians, and the medians of the ratios of neighbouring turns.
On a machine that others use, one thread and CPU seconds say more than two threads and the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from shapes import GEOMETRIES, RANGES, SAMPLES, Rates, Workload, rollout_floor, train_floor

HERE = Path(__file__).resolve().parent

RACES = {
    "rollout": ("rollout_ours", "rollout_generate", "rollout_static"),
    "step": ("step_ours", "step_trl"),
}
"""Ours first; ratios are the others' seconds over ours."""

NAMES = {
    "rollout_ours": "kolb: publish and sample, with logprobs",
    "rollout_generate": "transformers generate, dynamic cache",
    "rollout_static": "transformers generate, static cache",
    "step_ours": "kolb: whole GRPO step",
    "step_trl": "TRL GRPOTrainer: whole step",
}

PACKAGES = ("torch", "transformers", "trl", "numpy")


class Peer:
    """A contestant's process."""

    def __init__(self, name: str, order: dict[str, Any]) -> None:
        self.name = name
        self.units: list[dict[str, Any]] = []
        self.peak_mib = 0.0
        environment = {**os.environ, "OMP_NUM_THREADS": str(order["threads"])}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
        command = [sys.executable, str(HERE / "peers.py"), name, json.dumps(order)]
        self._process: Any = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("BENCH_LOG") else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._hear()

    def _hear(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} died; set BENCH_LOG=1 to see what it says")
        return dict(json.loads(line))

    def work(self, *, counts: bool) -> None:
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        unit = self._hear()
        if counts:
            self.units.append(unit)

    def end(self) -> None:
        self._process.stdin.close()
        self.peak_mib = self._hear()["peak_mib"]
        self._process.wait()

    def median(self, key: str) -> float:
        return median(unit[key] for unit in self.units)

    def parts(self) -> dict[str, float]:
        return {k: median(u["parts"][k] for u in self.units) for k in self.units[0]["parts"]}


def race(names: Sequence[str], order: dict[str, Any], repeats: int) -> list[Peer]:
    """One warm-up turn each, then ``repeats`` turns, always in the same order."""
    peers = [Peer(name, order) for name in names]
    for turn in range(repeats + 1):
        for peer in peers:
            peer.work(counts=turn > 0)
    for peer in peers:
        peer.end()
    return peers


def ratio(other: Peer, ours: Peer, key: str) -> float:
    """How many times longer the other one takes for a token: the median over the turns."""
    pairs = zip(other.units, ours.units, strict=True)
    return median(a[key] / a["tokens"] / (b[key] / b["tokens"]) for a, b in pairs)


def summary(peer: Peer, ours: Peer, floor_s: float) -> dict[str, Any]:
    return {
        "peer": peer.name,
        "wall_s": peer.median("wall_s"),
        "cpu_s": peer.median("cpu_s"),
        "tokens": peer.median("tokens"),
        "tokens_per_s": median(u["tokens"] / u["wall_s"] for u in peer.units),
        "tokens_per_cpu_s": median(u["tokens"] / u["cpu_s"] for u in peer.units),
        "wall_ratio": ratio(peer, ours, "wall_s"),
        "cpu_ratio": ratio(peer, ours, "cpu_s"),
        "wall_over_floor": peer.median("wall_s") / floor_s,
        "peak_mib": peer.peak_mib,
        "parts": peer.parts(),
        "units": peer.units,
    }


def measure(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """All races at one number of threads."""
    order = {
        "model": args.model,
        "workload": args.workload,
        "tasks": args.tasks,
        "threads": threads,
    }
    geometry, workload = GEOMETRIES[args.model], Workload(args.workload, args.tasks)
    [probe] = race(["rates"], order, 5)
    rates = Rates(*(max(u["parts"][k] for u in probe.units) for k in ("large", "rows64", "read")))
    floors = {
        "rollout": rollout_floor(geometry, workload, rates),
        "train": train_floor(geometry, workload, rates),
    }
    floors["step"] = floors["rollout"] + floors["train"]
    result: dict[str, Any] = {"threads": threads, "rates": vars(rates), "floors_s": floors}
    for name, peers in RACES.items():
        names = [p for p in peers if p != "step_trl" or has("trl")]
        if args.only in (None, name):
            ran = race(names, order, args.repeats)
            result[name] = [summary(p, ran[0], floors[name]) for p in ran]
            report(name, result)
    return result


def report(name: str, result: dict[str, Any]) -> None:
    rates, floor = result["rates"], result["floors_s"][name]
    print(
        f"\n{name}, {result['threads']} thread(s); floor {floor:.2f} s at {rates['large'] / 1e9:.0f} GFLOP/s,"
        f" {rates['rows64'] / 1e9:.0f} with 64 rows, {rates['read'] / 1e9:.1f} GB/s"
    )
    columns = ("wall s", "CPU s", "tok/s", "tok/CPU-s", "x wall", "x CPU", "/ floor", "peak MiB")
    print(f"{'':42}" + "".join(f"{c:>10}" for c in columns))
    for row in result[name]:
        numbers = (row["wall_s"], row["cpu_s"], row["tokens_per_s"], row["tokens_per_cpu_s"])
        numbers += (row["wall_ratio"], row["cpu_ratio"], row["wall_over_floor"], row["peak_mib"])
        kinds = (".2f", ".2f", ".0f", ".0f", ".2f", ".2f", ".1f", ".0f")
        cells = (f"{x:>10{kind}}" for x, kind in zip(numbers, kinds, strict=True))
        parts = ", ".join(f"{k} {s:.2f} s" for k, s in row["parts"].items())
        print(f"{NAMES[row['peer']]:42}" + "".join(cells) + (f"   ({parts})" if parts else ""))
    if name == "step" and len(result[name]) == 1:
        print("TRL is not installed here, so nothing was compared (pip install trl)")


def has(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), cpu)
    return {
        "date": date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{p: version(p) for p in PACKAGES if has(p)},
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workload", choices=RANGES, default="long")
    parser.add_argument("--model", choices=GEOMETRIES, default="3m")
    parser.add_argument("--threads", type=int, nargs="+", default=[os.cpu_count() or 1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=0, help="0: 8, and 2 for 135m")
    parser.add_argument("--only", choices=RACES)
    parser.add_argument("--json", type=Path, help="everything that was measured, unit by unit")
    args = parser.parse_args()
    args.tasks = args.tasks or (2 if args.model == "135m" else 8)
    return args


def main() -> None:
    args = arguments()
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    workload = Workload(args.workload, args.tasks)
    prompts = sum(map(len, workload.prompts)) / args.tasks
    print(
        f"{args.model}, {args.workload}: {args.tasks} tasks x {SAMPLES} completions, prompts of {prompts:.0f} tokens"
        f" on average, {workload.tokens} sampled tokens; {args.repeats} turns after a warm-up, medians"
    )
    runs = [measure(args, threads) for threads in args.threads]
    if args.json:
        settings = {"model": args.model, "workload": args.workload, "tasks": args.tasks}
        plain = {"machine": about, **settings, "repeats": args.repeats, "runs": runs}
        args.json.write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    main()
