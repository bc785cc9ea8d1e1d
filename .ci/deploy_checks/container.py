"""deploy/: the Dockerfile parses and builds from what it is given; compose accepts its file, and it fits the programs."""
import json
import pathlib
import re
import shutil
import tomllib

import yaml

from harness import ROOT, check, expect, must, not_run, run, scratch

DOCKERFILE = ROOT / "deploy/Dockerfile"
COMPOSE = ROOT / "deploy/compose.yaml"
COMPOSE_GPU = ROOT / "deploy/compose.gpu.yaml"
PORTS = {"36900", "36901", "36902"}


def instructions():
    """(instruction, arguments) of the Dockerfile, continuation lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


def final(instruction):
    """Arguments of `instruction` in the last stage."""
    found = instructions()
    last = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return [arguments for word, arguments in found[last:] if word == instruction]


def programs():
    """Names of the programs that the crates build."""
    manifests = (tomllib.loads(path.read_text()) for path in sorted((ROOT / "crates").glob("*/Cargo.toml")))
    return {binary["name"] for manifest in manifests for binary in manifest.get("bin", [])}


def context():
    """What the build sees. The file is an allow-list: * first, then what it takes back."""
    first, *rest = [line for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text().split("\n")
                    if line and not line.startswith("#")]
    expect(first == "*" and all(re.fullmatch(r"![\w./]+", line) for line in rest), "not an allow-list")
    return [line[1:] for line in rest]


@check
def dockerfile_lints():
    must("hadolint", DOCKERFILE)
    not_run("docker build", "no engine here; the Dockerfile is linted, its context and its command are checked")


@check
def image_holds_what_it_runs():
    [user] = final("USER")
    expect(re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), f"USER {user}: numbers, so that runAsNonRoot can be checked")
    expect(set(final("EXPOSE")[0].split()) == PORTS, f"EXPOSE {final('EXPOSE')}")
    expect(not final("ENV"), "ENV would go over a mounted configuration file")
    [build] = [arguments for word, arguments in instructions() if word == "RUN"]
    copied = {pathlib.Path(word).name for word in re.findall(r"target/release/(\S+)", build)}
    expect(copied == programs(), f"the image has {copied}, the crates build {programs()}")
    expect("cargo build --release --locked" in build, "the build is not --release --locked")
    made = set(re.findall(r"/image/doc/([\w-]+)", build))
    expect("deploy/notices.sh /image/bin/*" in build and made == {"THIRD-PARTY-NOTICES", "copyright"}, f"licences that the image has: {made}")
    expect(any(word.startswith("--from=build /image/doc/ /usr/share/doc/hanzo-engine/") for word in final("COPY")), "the image has no licences")
    for start in (final("CMD")[0], final("HEALTHCHECK")[0].split("CMD")[1]):
        expect(json.loads(start)[0] in copied, f"{start} is not in the image")


@check
def context_is_the_whole_build():
    """The workspace resolves from what the build sees, and no crate includes a file from outside of it."""
    seen = context()
    targets = lambda folder: sorted(
        (package["name"], target["name"], *target["kind"])
        for package in json.loads(must("cargo", "metadata", "--locked", "--no-deps", "--format-version=1", cwd=folder))["packages"]
        for target in package["targets"])
    with scratch() as folder:
        for name in seen:
            source = ROOT / name
            expect(source.exists(), f"Dockerfile.dockerignore names {name}, which does not exist")
            copy = shutil.copytree if source.is_dir() else shutil.copy
            (pathlib.Path(folder) / name).parent.mkdir(exist_ok=True)
            copy(source, pathlib.Path(folder) / name)
        expect(targets(folder) == targets(ROOT), "the build would not see every crate")
        expect(must(pathlib.Path(folder) / "deploy/notices.sh") == must(ROOT / "deploy/notices.sh"), "the image's notices would be others")
    for path in sorted((ROOT / "crates").rglob("*.rs")):
        for word in re.findall(r'"((?:\.\./)+[^"\n]+)"', path.read_text()):
            for base in (path.parent, ROOT / "/".join(path.relative_to(ROOT).parts[:2])):
                found = (base / word).resolve()
                if found.exists() and found != ROOT and found.is_relative_to(ROOT):
                    expect(found.relative_to(ROOT).parts[0] in seen, f"{path} includes {word}: not in the context")
    return ", ".join(seen)


@check
def compose_takes_its_file():
    command = ["docker", "compose"] if run("docker", "compose", "version")[0] == 0 else ["docker-compose"]
    must(*command, "-f", COMPOSE, "config", "--quiet")
    both = yaml.safe_load(must(*command, "-f", COMPOSE, "-f", COMPOSE_GPU, "config"))["services"]
    [cards] = both["engined"]["deploy"]["resources"]["reservations"]["devices"]
    expect(cards["capabilities"] == ["gpu"] and both["engined"]["read_only"], f"with compose.gpu.yaml: {both['engined']}")
    return " ".join(command)


@check
def compose_fits_the_programs():
    compose = yaml.safe_load(COMPOSE.read_text())
    drain_s = tomllib.loads((ROOT / "systemd/engine.toml").read_text())["server"]["drain_s"]
    for name, service in compose["services"].items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            known = (COMPOSE.parent / source).exists() if source.startswith(".") else source in compose["volumes"]
            expect(known, f"{name}: no {source}")
        for port in service.get("ports", []):
            expect(port.startswith("127.0.0.1:"), f"{name}: {port} is open to the network")
        if service["image"] == "hanzo-engine":
            expect(service["command"][0] in programs(), f"{name}: {service['command']}")
            expect(int(service["stop_grace_period"].rstrip("s")) >= drain_s + 5, f"{name}: stop_grace_period")
    scrapes = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    targets = {t for scrape in scrapes for group in scrape["static_configs"] for t in group["targets"]}
    expect(targets == {"engined:36902", "gateway:36900"}, f"Prometheus scrapes {targets}")
    expect({t.split(":")[0] for t in targets} <= compose["services"].keys(), "Prometheus scrapes no service")
