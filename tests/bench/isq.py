#!/usr/bin/env python3
"""How much memory and time a load takes that quantises: the most memory that `hanzo-engine serve` had until it answered, above
what it has with no model, and the seconds from its start until then.

    tests/bench/shapes.py qwen3-0.6b f16.gguf
    tests/bench/isq.py --engine target/release/hanzo-engine --model f16.gguf --isq 4

The cache of contexts is counted with it (eight of them), so --context is short; --isq none loads the file as it is. Processor seconds are those of
all threads: on a machine with other work they say more than the clock. Only the standard library is needed; Linux alone tells.
"""

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request


def most(pid):
    """The most memory a process has had, in bytes."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", open(f"/proc/{pid}/status").read())[1]) * 1000 * 1.024


def processor_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(options, model):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = [options.engine, "serve", "--port", port, "--grpc-port", 0, "--admin-port", 0, "--threads", options.threads, "--max-context", options.context]
    command += ["-m", model] if model else []
    command += ["--isq", options.isq] if model and options.isq != "none" else []
    began = time.monotonic()
    server = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{'ready' if model else 'alive'}", timeout=5)
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit(f"{command} ended with {server.returncode}:\n{server.stderr.read().decode()[-2000:]}")
                time.sleep(0.02)
        return time.monotonic() - began, processor_s(server.pid), most(server.pid)
    finally:
        server.terminate()
        server.wait()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--engine", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--isq", default="4")
parser.add_argument("--context", type=int, default=256)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("-r", type=int, default=3, help="runs, whose median counts")
options = parser.parse_args()
baseline = statistics.median(run(options, None)[2] for _ in range(options.r))
runs = [run(options, options.model) for _ in range(options.r)]
wall, processor, peak = (statistics.median(values) for values in zip(*runs))
print(f"{os.path.getsize(options.model) / 1e9:.2f} GB, --isq {options.isq}, {options.threads} threads: {wall:.1f} s ({processor:.1f} s of processors), "
      f"peak {(peak - baseline) / 1e9:.2f} GB above {baseline / 1e6:.0f} MB")
