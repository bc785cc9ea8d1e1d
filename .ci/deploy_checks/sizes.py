"""deploy/sizes.sh: the programs keep to their sizes; called with the folder of the programs. A release is looked at where one lies
beside them; of a debug build the data alone is."""
import os
import tomllib

from harness import ROOT, check, expect, must, not_run, run, scratch

SIZES = ROOT / "deploy/sizes.sh"
PROGRAMS = ("hanzo-engine", "engined", "engine-gateway")


@check
def releases_are_made_small():
    """The settings that sizes rest on: flags of the profile, and flags of the linker for each program."""
    profile = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]["release"]
    expect(profile.get("opt-level") in ("s", "z") and profile.get("strip") == "symbols", f"[profile.release] of Cargo.toml has {profile}")
    hot = {name for name, settings in profile["package"].items() if settings == {"opt-level": 3}}
    wanted = {f"hanzo-engine-{name}" for name in ("ops", "kernels", "kernels-cuda", "model-files", "families", "text", "runtime", "voice", "sound", "media")}
    expect(wanted <= hot, f"{wanted - hot} are not compiled for speed")
    for crate in ("cli", "daemon", "gateway"):
        package = tomllib.loads((ROOT / f"crates/{crate}/Cargo.toml").read_text())["package"]
        expect(package.get("build") == "../process/link/build.rs", f"crates/{crate} has the build script {package.get('build')}")
    expect("deploy/sizes.sh" in (ROOT / "deploy/build.sh").read_text(), "deploy/build.sh does not hold the sizes")


@check
def sizes_are_refused():
    """A program of another size than its budget's is told of."""
    with scratch() as folder:
        for name in PROGRAMS:
            with open(f"{folder}/{name}", "wb") as file:
                file.truncate(1 << 20)
        must(SIZES, folder)
        os.truncate(f"{folder}/engined", 1 << 30)
        status, output = run(SIZES, folder)
        expect(status == 1 and "engined is" in output and "too large" in output, output)


def hold(programs):
    """Called with the programs."""
    notes = must(SIZES, "--data", programs).strip().splitlines()
    release = programs.parent / "release"
    if all((release / name).exists() for name in PROGRAMS):
        notes += must(SIZES, release).strip().splitlines()
    else:
        not_run("sizes of a release", f"no programs in {release}; deploy/build.sh holds them, here their embedded data alone is")
    return ", ".join(note.replace(" bytes", "").replace(", at most ", "/") for note in notes)
