"""Runs what npm brought: scripts of official packages, by a Node that they want."""
import glob, os, re, subprocess


def node(modules):
    """A Node of version 22 or later: of npm's own package of it, or on the path."""
    for binary in [*glob.glob(os.path.join(modules, "node-linux-*", "bin", "node")), "node"]:
        version = subprocess.run([binary, "--version"], capture_output=True, text=True)
        if version.returncode == 0 and int(re.match(r"v(\d+)", version.stdout)[1]) >= 22:
            return binary
    raise SystemExit(f"no Node 22 or later, on the path or in {modules}")


def script(modules, name, *args):
    """Runs a script of this folder to its end."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    run = subprocess.run([node(modules), path, modules, *args], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-6000:]
