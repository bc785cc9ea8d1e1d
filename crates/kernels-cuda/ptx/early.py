#!/usr/bin/env python3
"""Has every kernel of a module wait for those before it when it begins, but for those that say themselves when they do.

usage: ptx/early.py <MODULE.ptx >MODULE.ptx        cards of compute capability 9.0 and above may begin a kernel early (cuda/device.cuh)
"""
import sys

LAUNCH, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
# What stands before a kernel's first instruction.
DECLARATIONS = (".reg ", ".local ", ".shared ")


def with_waits(lines: list[str]) -> list[str]:
    out, at = [], 0
    while at < len(lines):
        if not lines[at].startswith(".visible .entry "):
            out.append(lines[at])
            at += 1
            continue
        begin = lines.index("{", at) + 1
        end, depth = begin, 1
        while depth > 0:
            depth += (lines[end] == "{") - (lines[end] == "}")
            end += 1
        while lines[begin].startswith(DECLARATIONS):
            begin += 1
        own = lines[begin:end]
        if LAUNCH in own:
            if WAIT not in own:
                sys.exit(f"{lines[at]} begins early and never waits")
            out += lines[at:end]
        else:
            out += [*lines[at:begin], LAUNCH, WAIT, *own]
        at = end
    return out


if __name__ == "__main__":
    print("\n".join(with_waits(sys.stdin.read().splitlines())))
