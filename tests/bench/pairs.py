#!/usr/bin/env python3
"""Our speed beside llama.cpp's, or beside that of another build of ours: same file, same threads, runs in turns, medians of
ratios, as a Markdown table.

    tests/bench/pairs.py --model qwen3-0.6b-Q4_K_M.gguf --engine target/release/hanzo-engine \
        --llama-bench llama-bench --llama-batched-bench llama-batched-bench -t 2 -r 5
    tests/bench/pairs.py --model qwen3-0.6b-Q4_K_M.gguf --engine target/release/hanzo-engine --before old/hanzo-engine

A pair is one run of ours and one of theirs, right after each other; who is first changes from pair to pair, so that
what disturbs a machine for a while disturbs both. Each pair gives a ratio; the table has the medians, and the least and
largest ratio in brackets. Every run is a process of its own that warms up before it measures. --neighbours runs one
`nice -n 19` busy loop per core meanwhile. Nothing is built or downloaded; only the standard library is needed.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

TESTS = ["pp512", "tg64", "tg64@d4096", "pp512@d4096", "tg64 b16"]
NAME = re.compile(r"(pp|tg)([1-9][0-9]*)(?:@d([1-9][0-9]*))?(?: ?b([1-9][0-9]*))?")
# Ends when its parent does, however that comes.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"


class Test:
    """One row, read from its name: `tg64@d4096 b16`."""

    def __init__(self, name):
        found = NAME.fullmatch(name.strip())
        if not found:
            raise argparse.ArgumentTypeError(f"{name!r} is no test such as pp512, tg64@d4096 or 'tg64 b16'")
        self.kind = found[1]
        self.length, self.depth, self.batch = (int(number or 0) for number in found.groups()[1:])
        self.batch = max(self.batch, 1)
        if self.kind == "pp" and self.batch > 1:
            raise argparse.ArgumentTypeError(f"{name!r}: a batch is of sequences that generate")
        self.name = name.strip()

    def lengths(self):
        """The arguments that leave just this kind of test."""
        prompt, generate = (self.length, 0) if self.kind == "pp" else (0, self.length)
        return ["-p", str(prompt), "-n", str(generate)]


def json_of(command):
    """Runs a command and reads its output as JSON; its own words go on only where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = done.stdout.strip().splitlines()
    try:
        return json.loads(done.stdout) if lines and lines[0] in "[{" else json.loads(lines[-1])
    except (ValueError, IndexError):
        sys.exit(f"{' '.join(command)}\nprinted no JSON:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def ours(test, options, engine=None):
    """Our tokens per second and, if asked for, the share of the limit that binds first."""
    command = [engine or options.engine, "bench", "--model", options.model, *test.lengths(), "-r", "1", "--json"]
    command += ["-d", str(test.depth), "-b", str(test.batch), "-t", str(options.threads)]
    row = json_of(command + (["--limits"] if options.limits else []))["rows"][0]
    shares = row["shares"] or {}
    of = max((name for name in shares if shares[name] is not None), key=shares.get, default=None)
    return row["tokens_per_s"], (shares[of], of) if of else None


def theirs(test, options):
    """llama.cpp's tokens per second for the same, or the other build's."""
    if options.before:
        return ours(test, options, options.before)[0]
    model = ["-m", options.model, "-t", str(options.threads)]
    if test.batch == 1:
        command = [options.llama_bench, *model, *test.lengths(), "-d", str(test.depth), "-r", "1", "-o", "json"]
        return json_of(command)[0]["avg_ts"]
    if not options.llama_batched_bench:
        sys.exit(f"{test.name} needs --llama-batched-bench")
    # A sequence there needs a prompt of one token at least.
    prompt = max(test.depth, 1)
    context = -(-(prompt + test.length) // 256) * 256 * test.batch
    command = [options.llama_batched_bench, *model, "-tb", str(options.threads), "-c", str(context)]
    command += ["-npp", str(prompt), "-ntg", str(test.length), "-npl", str(test.batch), "--output-format", "jsonl"]
    return json_of(command)["speed_tg"]


def neighbours():
    """One busy loop per core, each in a session of its own, as neighbours are. Where Linux groups processes by session
    (sched_autogroup), niceness only counts within one: a loop in ours would get next to nothing."""
    command = ["nice", "-n", "19", sys.executable, "-c", BUSY]
    return [subprocess.Popen(command, start_new_session=True) for _ in range(len(os.sched_getaffinity(0)))]


def row(test, options):
    """All pairs of a test, as a line of the table."""
    pairs, shares = [], []
    busy = neighbours() if options.neighbours else []
    try:
        for number in range(options.repetitions):
            speeds = {}
            for engine in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                speeds[engine] = engine(test, options)
            (mine, share), peer = speeds[ours], speeds[theirs]
            pairs.append((mine, peer))
            shares += [share] if share else []
            print(f"{test.name}: {mine:.2f} and {peer:.2f} tokens/s, {mine / peer:.2f}", file=sys.stderr)
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()
    ratios = [mine / peer for mine, peer in pairs]
    share = "-"
    if shares:
        binding = statistics.mode(of for _, of in shares)
        share = f"{statistics.median(share for share, of in shares if of == binding):.0%} of {binding}"
    return [
        test.name + (" beside busy loops" if options.neighbours else ""),
        f"{statistics.median(mine for mine, _ in pairs):.1f}",
        f"{statistics.median(peer for _, peer in pairs):.1f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        share,
    ]


def main():
    """Reads the arguments, runs the pairs, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file for both")
    parser.add_argument("--engine", default="target/release/hanzo-engine", help="our program")
    beside = parser.add_mutually_exclusive_group(required=True)
    beside.add_argument("--llama-bench", help="theirs")
    beside.add_argument("--before", help="another build of our program, instead of theirs")
    parser.add_argument("--llama-batched-bench", help="theirs, for batches")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of both")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="pairs of each test")
    parser.add_argument("--tests", help="comma-separated; default: " + ", ".join(TESTS))
    parser.add_argument("--limits", action="store_true", help="measure the machine with each of our runs")
    parser.add_argument("--neighbours", action="store_true", help="beside busy loops; default test: tg64")
    options = parser.parse_args()
    if options.repetitions < 1 or options.threads < 1:
        parser.error("repetitions and threads must be at least 1")
    names = options.tests.split(",") if options.tests else ["tg64"] if options.neighbours else TESTS
    try:
        tests = [Test(name) for name in names]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    other = "before" if options.before else "llama.cpp"
    print(f"| test | ours, tokens/s | {other}, tokens/s | ratio | share of limit |")
    print("|---|---|---|---|---|", flush=True)
    for test in tests:
        print("| " + " | ".join(row(test, options)) + " |", flush=True)


if __name__ == "__main__":
    main()
