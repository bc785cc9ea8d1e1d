#!/usr/bin/env python3
"""Looks for instructions in the machine code that ptx/make has made.

usage: ptx/sass.py CUOBJDUMP FOLDER RESOURCES      FOLDER has MODULE.ARCH.cubin
"""
import re
import subprocess
import sys

# Of kernels by name: what must be there. HGMMA is wgmma, HMMA is mma, LDGSTS is cp.async, UBLKCP is cp.async.bulk, LDSM is ldmatrix. Caches in
# Q8_0 become halves on their way to shared memory.
MUST = {
    r"kernel_product_wide(_blocks)?": ["HGMMA", "UBLKCP"],
    r"kernel_attention_groups(_narrow)?": ["HGMMA", "LDGSTS", "USETMAXREG"],
    r"kernel_(product|expert)_many(_blocks)?": ["HMMA", "LDGSTS"],
    r"kernel_(product|expert)_(few|some|batch)(_blocks)?": ["HMMA"],
    r"kernel_attention_(few|wide|many)": ["HMMA", "LDGSTS", "LDSM"],
    r"kernel_attention_(few|wide|many)_q8": ["HMMA", "LDSM"],
    r"kernel_matmul.*": ["HMMA"],
}
MODULES = ["kernels.sm_80", "kernels.sm_90a", "kernels.sm_120a", "hopper.sm_90a"]


def kernels(cuobjdump: str, cubin: str) -> dict[str, set[str]]:
    """Each kernel's instructions, without their suffixes."""
    text = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, check=True, text=True).stdout
    found: dict[str, set[str]] = {}
    own: set[str] = set()
    for line in text.splitlines():
        if function := re.match(r"\s*Function : (\S+)", line):
            own = found.setdefault(function[1], set())
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9]*)", line):
            own.add(instruction[1])
    return found


def main(cuobjdump: str, folder: str, resources: str) -> int:
    rows = [line.split() for line in open(resources, encoding="utf-8")]
    stacks = {(row[0], row[1]): int(row[4]) for row in rows}
    wrong, seen = [], 0
    for module in MODULES:
        arch = module.split(".")[1]
        for kernel, own in kernels(cuobjdump, f"{folder}/{module}.cubin").items():
            seen += 1
            must = [name for pattern, names in MUST.items() if re.fullmatch(pattern, kernel) for name in names]
            wrong += [f"{arch} {kernel} has no {name}" for name in must if name not in own]
            local = own & {"LDL", "STL"}
            if local and stacks[arch, kernel] == 0:
                wrong.append(f"{arch} {kernel} has {local}, and no stack")
    if seen != len(rows):
        wrong.append(f"cuobjdump shows {seen} kernels, and {resources} has {len(rows)}")
    print("\n".join(wrong) or f"{seen} kernels have the instructions that they should", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
