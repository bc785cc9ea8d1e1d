"""deploy/package.sh, install.sh and notices.sh: scripts are sound, others' work is named; with the programs, a tarball and a package
have what they should."""
import email.utils
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

from harness import ROOT, check, expect, must, not_run, run, scratch
import units

SCRIPTS = ["deploy/build.sh", "deploy/sizes.sh", "tests/install/run", "deploy/package.sh", "deploy/notices.sh", "deploy/install.sh", "deploy/debian/postinst", "deploy/debian/prerm", "deploy/debian/postrm"]
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


@check
def builds_call_folders_the_same_everywhere():
    """What build.sh tells the compilers: a path of the sources, of what was fetched and of what is generated, as it was given and without
    its links, has the name that it has on every other machine."""
    with scratch() as folder:
        folder = pathlib.Path(folder).resolve()
        home, sources, other = folder / "home", folder / "real place/sources", folder / "generated"
        for made in (home, sources / "deploy", other):
            made.mkdir(parents=True)
        (folder / "link").symlink_to("real place")
        shutil.copy(ROOT / "deploy/build.sh", sources / "deploy")
        (sources / "deploy/sizes.sh").write_text("#!/bin/sh\n")
        (sources / "deploy/sizes.sh").chmod(0o755)
        (folder / "cargo").write_text("#!/bin/sh\nprintf '%s\\037' \"$CARGO_ENCODED_RUSTFLAGS\"; eval printf \"'%s\\037'\" \"$CFLAGS\"\n")
        (folder / "cargo").chmod(0o755)
        for through in (sources, folder / "link/sources"):
            for more, fetched, generated in [
                    ({"HOME": home}, home / ".cargo", through / "target"),
                    ({"CARGO_HOME": through / "fetched"}, through / "fetched", through / "target"),
                    ({"CARGO_HOME": home, "CARGO_TARGET_DIR": other}, home, other)]:
                told = must("env", "-u", "CARGO_HOME", "-u", "CARGO_TARGET_DIR", f"PATH={folder}:{os.environ['PATH']}",
                            *(f"{name}={value}" for name, value in more.items()), through / "deploy/build.sh").split("\x1f")
                for flag in ("--remap-path-prefix=", "-ffile-prefix-map="):
                    pairs = [word.removeprefix(flag).rsplit("=", 1) for word in told if word.startswith(flag)]
                    for path, name in [(through / "crates/a.rs", "/hanzo-engine/crates/a.rs"), (fetched / "b/c.rs", "/cargo/b/c.rs"),
                                       (generated / "d.rs", "/target/d.rs")]:
                        for given in {path, path.parent.resolve() / path.name}:
                            fit = [(before, after) for before, after in pairs if given.is_relative_to(before)]
                            expect(fit and fit[-1][1] + str(given).removeprefix(fit[-1][0]) == name, f"{flag}: {given} becomes no {name}: {told}")


def compiled_in():
    """Others' crates, as "name version", that cargo would compile into the programs: not those that scripts of a build are made of."""
    plan = json.loads(must("env", "RUSTC_BOOTSTRAP=1", "cargo", "build", "-Zunstable-options", "--unit-graph", "--offline", "--locked", "--bins",
                           "-p", "hanzo-engine", "-p", "hanzo-engine-daemon", "-p", "hanzo-engine-gateway"))
    units, seen, todo = plan["units"], set(), list(plan["roots"])
    while todo:
        at = todo.pop()
        if at not in seen and units[at]["mode"] == "build" and "custom-build" not in units[at]["target"]["kind"]:
            seen.add(at)
            todo += [dependency["index"] for dependency in units[at]["dependencies"]]
    found = (re.fullmatch(r"registry\+[^#]*#(.+)@(.+)", units[at]["pkg_id"]) for at in seen)
    return {" ".join(match.groups()) for match in found if match}


@check
def notices_are_of_every_crate():
    text = must(ROOT / "deploy/notices.sh")
    crates, *texts = re.split(r"^={80}\n(?=Text \d+, of |The standard library)", text, flags=re.M)
    entries = dict(re.findall(r"^(\S+ \d\S+)\n((?:  .+\n)+)", crates, re.M))
    wanted = compiled_in()
    expect(entries.keys() == wanted, f"notices and the programs differ in {sorted(entries.keys() ^ wanted)}")
    without = 0
    for crate, entry in entries.items():
        numbers = {int(number) for number in re.findall(r"(\d+) \(", entry.partition("  texts: ")[2])}
        without += not numbers
        expect(numbers or "  no text comes with it" in entry, f"{crate}: {entry}")
        for number in numbers:
            head, _, body = texts[number - 1].partition("\n\n")
            expect(head.startswith(f"Text {number}, of ") and crate in head[head.index("of ") + 3:].split(", ") and body.strip(), f"{crate}: {head}")
    expect("The standard library of rustc" in texts[-1], "Rust's standard library is not named")
    return f"{len(entries)} crates, {len(texts) - 1} texts, {without} crates without one"


@check
def notices_want_a_licence_of_each():
    """A crate without one, sources that are not there, and a program of other crates: nothing is written for any of them."""
    with scratch() as folder:
        folder = pathlib.Path(folder)
        (folder / "registry/src/somewhere/bare-1.0.0").mkdir(parents=True)
        manifest = folder / "registry/src/somewhere/bare-1.0.0/Cargo.toml"
        manifest.write_text('[package]\nname = "bare"\nauthors = [\n    "A. One <a@example.com>",\n    "B. Two",\n]\n')
        cargo = folder / "cargo"
        program = folder / "program"

        def notices(line, says=""):
            cargo.write_text(f"#!/bin/sh\nprintf '{line}\\n'\n")
            cargo.chmod(0o755)
            program.write_text(says)
            return run("env", f"PATH={folder}:{os.environ['PATH']}", f"CARGO_HOME={folder}", ROOT / "deploy/notices.sh", program)

        for line, says, word in [(r"bare v1.0.0\t\t", "", "neither a licence nor the text of one: bare 1.0.0"),
                                 (r"gone v1.0.0\tMIT\t", "", "no sources of gone 1.0.0"),
                                 (r"bare v1.0.0 (https://example.com/bare)\tMIT\t", "", "bare is of no registry"),
                                 (r"bare v1.0.0\tMIT\t", "panicked at registry/src/x/other-2.0.0/src/lib.rs", "other-2.0.0")]:
            status, output = notices(line, says)
            expect(status != 0 and word in output, f"{line}: {status} {output}")
        status, output = notices(r"bare v1.0.0\tMIT/Apache-2.0\thttps://example.com", "registry/src/x/bare-1.0.0/src/lib.rs")
        entry = "bare 1.0.0\n  MIT OR Apache-2.0\n  https://example.com\n  no text comes with it; authors: A. One <a@example.com>, B. Two\n"
        expect(status == 0 and entry in output, output)


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if not path.is_dir())


def as_debian_has_it(package, folder):
    """The package's changelog, copyright and sums; what lintian says of a package with stand-ins of programs is not of it."""
    must("dpkg-deb", "--extract", package, folder)
    doc = folder / "usr/share/doc/hanzo-engine"
    version, architecture, maintainer = (must("dpkg-deb", "--field", package, field).strip() for field in ("Version", "Architecture", "Maintainer"))
    release = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    expect(version == release.replace("-", "~") + "-1", f"{release} has the version {version}")
    expect(package.name == f"hanzo-engine_{version}_{architecture}.deb" and f"./dist/{package.name}" in (ROOT / "docs/start/install.md").read_text()
           or architecture != "amd64", f"docs/start/install.md does not install {package.name}")
    packed = (doc / "changelog.Debian.gz").read_bytes()
    expect(packed[4:8] == bytes(4) and not packed[3] & 8, "the changelog has a time or a name in its head")
    changelog = gzip.decompress(packed).decode()
    head, *entry, signed = [line for line in changelog.splitlines() if line]
    expect(head == f"hanzo-engine ({version}) unstable; urgency=medium" and entry and all(re.match(r"  (\* |  )\S", line) for line in entry)
           and max(map(len, entry)) <= 80, changelog)
    who, _, when = signed.removeprefix(" -- ").partition("  ")
    expect(who == maintainer and email.utils.parsedate_to_datetime(when), changelog)
    expect("/usr/share/common-licenses/Apache-2.0" in (doc / "copyright").read_text(), "copyright")
    for line in must("dpkg-deb", "--info", package, "md5sums").splitlines():
        md5, _, path = line.partition("  ")
        expect(hashlib.md5((folder / path).read_bytes()).hexdigest() == md5, f"md5sums: {path}")
    left = {path for path in tree(folder) if not path.startswith("usr/")} - {"etc/hanzo-engine/engine.toml", "etc/hanzo-engine/gateway.toml"}
    expect(not left, f"no sums of {left}")


def installs_and_goes_away(programs):
    """Called with the programs: packs them, installs below a folder, takes all away again; twice the same bytes."""
    must(ROOT / "deploy/notices.sh", *(programs / name for name in ("engined", "engine-gateway", "hanzo-engine")))
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
        elsewhere = ["COLUMNS=40", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "HANZO_ENGINE_ADDRESS=http://elsewhere:1", "HANZO_ENGINE_LOG_LEVEL=debug"]
        for dist, mask, set_there in (("one", "022", []), ("below/two", "077", elsewhere)):
            must("env", *set_there, "bash", "-c", f'umask {mask} && exec "$@"', "-", ROOT / "deploy/package.sh", stand_ins, folder / dist)
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
        notices = gzip.decompress((root / "usr/local/share/doc/hanzo-engine/THIRD-PARTY-NOTICES.gz").read_bytes()).decode()
        expect(notices == must(ROOT / "deploy/notices.sh"), "other notices are installed than are written")
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
            for wanted in ("usr/bin/engined", "usr/lib/systemd/system/engine-gateway.socket", "usr/share/doc/hanzo-engine/THIRD-PARTY-NOTICES.gz"):
                expect(f"./{wanted}\n" in listed, f"the package has no {wanted}:\n{listed}")
            as_debian_has_it(debian[0], folder / "unpacked")
            kept = must("dpkg-deb", "--info", debian[0], "conffiles").split()
            depends = must("dpkg-deb", "--field", debian[0], "Depends")
            expect(f"libc6 (>= {GLIBC})" in depends, f"programs that ask for GLIBC_{GLIBC} depend on {depends}")
            expect(kept == ["/etc/hanzo-engine/engine.toml", "/etc/hanzo-engine/gateway.toml"], f"conffiles {kept}")
    return f"{len(there)} files" + (", a .deb" if debian else "")
