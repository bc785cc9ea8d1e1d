"""deploy/package.sh and install.sh: scripts are sound; with the programs, a tarball and a package have what they should."""
import os
import pathlib
import re
import shutil
import subprocess

from harness import ROOT, check, expect, must, not_run, scratch
import units

SCRIPTS = ["deploy/build.sh", "tests/install/run", "deploy/package.sh", "deploy/install.sh", "deploy/debian/postinst", "deploy/debian/prerm", "deploy/debian/postrm"]
# What the stand-ins of programs ask for.
GLIBC = "2.34"


@check
def scripts_are_sound():
    if not shutil.which("shellcheck"):
        for script in SCRIPTS:
            must("bash", "-n", ROOT / script)
        not_run("shellcheck of deploy/", "not installed; the scripts are parsed by bash alone")
        return
    must("shellcheck", *(ROOT / script for script in SCRIPTS))


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if not path.is_dir())


def installs_and_goes_away(programs):
    """Called with the programs: packs them, installs below a folder, takes all away again; twice the same bytes."""
    with scratch() as folder:
        folder = pathlib.Path(folder)
        stand_ins = folder / "programs"
        stand_ins.mkdir()
        for name in ("engined", "engine-gateway", "hanzo-engine"):
            # Debug builds are large: what is packed is a script that asks the real one.
            (stand_ins / name).write_text(f'#!/bin/sh\nexec "{programs / name}" "$@"\n# GLIBC_2.9 GLIBC_{GLIBC}\n')
            (stand_ins / name).chmod(0o755)
        bytes_of = []
        # Whoever packs it, and wherever.
        for dist, mask in (("one", "022"), ("two", "077")):
            must("bash", "-c", f'umask {mask} && exec "$@"', "-", ROOT / "deploy/package.sh", stand_ins, folder / dist)
            [tarball] = (folder / dist).glob("*.tar.gz")
            bytes_of.append([path.read_bytes() for path in [tarball, *(folder / dist).glob("*.deb")]])
        expect(bytes_of[0] == bytes_of[1], "packed twice, the bytes differ")
        [unpacked] = [path for path in (folder / "one").iterdir() if path.is_dir()]
        root = folder / "root"
        # What asks systemd is not for a folder: files alone.
        environment = {**os.environ, "DESTDIR": str(root), "PREFIX": "/usr/local"}
        subprocess.run([unpacked / "install.sh", "--files-only"], env=environment, check=True)
        there = tree(root)
        for wanted in ("usr/local/bin/engined", "etc/systemd/system/engined.service", "etc/hanzo-engine/engine.toml",
                       "usr/local/share/man/man1/hanzo-engine-serve.1.gz", "usr/local/share/man/man1/engine-gateway.1.gz",
                       "usr/local/share/bash-completion/completions/hanzo-engine", "etc/sysusers.d/hanzo-engine.conf", "usr/local/share/doc/hanzo-engine/copyright"):
            expect(wanted in there, f"{wanted} is not installed: {there}")
        for name in units.UNITS:
            text = (root / "etc/systemd/system" / name).read_text()
            [program] = re.findall(r"^ExecStart=(\S+)", text, re.M)
            expect((root / program.lstrip("/")).exists(), f"{name} starts {program}, which is not installed")
        subprocess.run([unpacked / "install.sh", "--uninstall"], env=environment, check=True, stdout=subprocess.DEVNULL)
        left = tree(root)
        expect(not left, f"after the removal there are {left}")
        debian = list((folder / "one").glob("*.deb"))
        if debian:
            listed = must("dpkg-deb", "--contents", debian[0])
            expect("./usr/bin/engined" in listed and "./usr/lib/systemd/system/engine-gateway.socket" in listed, listed)
            kept = must("dpkg-deb", "--info", debian[0], "conffiles").split()
            depends = must("dpkg-deb", "--field", debian[0], "Depends")
            expect(f"libc6 (>= {GLIBC})" in depends, f"programs that ask for GLIBC_{GLIBC} depend on {depends}")
            expect(kept == ["/etc/hanzo-engine/engine.toml", "/etc/hanzo-engine/gateway.toml"], f"conffiles {kept}")
    return f"{len(there)} files" + (", a .deb" if debian else "")
