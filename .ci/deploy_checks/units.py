"""systemd/: the units are sound, hardened, and leave the programs the time that their drain takes."""
import pathlib
import shutil
import tomllib

from harness import ROOT, check, expect, run, scratch

UNITS = ["engined.service", "engine-gateway.service"]
SOCKET = "engine-gateway.socket"
# Of `systemd-analyze security`, times ten: 0 is best, 100 worst; a service that says nothing has 96.
EXPOSURE_MAX = 13
# With the drop-in that lets the daemon use a GPU.
EXPOSURE_GPU_MAX = 25
# What a program does after its drain: the gateway writes last bytes for 2 s.
AFTER_DRAIN_S = 5


def unit(name):
    """A unit as {section: {key: [values]}}."""
    sections = {}
    for line in (ROOT / "systemd" / name).read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            section.setdefault(key, []).append(value)
    return sections


def settings(name):
    return tomllib.loads((ROOT / "systemd" / name).read_text())


@check
def units_verify():
    """systemd-analyze verify warns and exits 0: any word of it is a fault. The programs are stand-ins in a root."""
    with scratch() as root:
        root = pathlib.Path(root)
        for folder in ("usr/local/bin", "etc/systemd/system"):
            (root / folder).mkdir(parents=True)
        # The targets that every unit hangs on: where systemd keeps them depends on its age.
        for folder in ("usr/lib/systemd/system", "lib/systemd/system"):
            (root / folder).mkdir(parents=True)
            for target in pathlib.Path("/usr/lib/systemd/system").glob("*.target"):
                shutil.copy(target, root / folder)
        (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nhanzo-engine:x:999:999::/:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nhanzo-engine:x:999:\n")
        shutil.copy(ROOT / "systemd" / SOCKET, root / "etc/systemd/system")
        (root / "etc/systemd/system/engined.service.d").mkdir()
        shutil.copy(ROOT / "systemd/gpu.conf", root / "etc/systemd/system/engined.service.d")
        for name in UNITS:
            shutil.copy(ROOT / "systemd" / name, root / "etc/systemd/system")
            program = root / unit(name)["Service"]["ExecStart"][0].split()[0].lstrip("/")
            expect(program.name == name.removesuffix(".service"), f"{name} starts {program.name}")
            for command in unit(name)["Service"]["ExecStart"] + unit(name)["Service"].get("ExecReload", []):
                stand_in = root / command.split()[0].lstrip("/")
                stand_in.parent.mkdir(parents=True, exist_ok=True)
                stand_in.write_text("#!/bin/sh\n")
                stand_in.chmod(0o755)
        status, output = run("systemd-analyze", "verify", "--man=no", f"--root={root}", *UNITS, SOCKET)
        expect(status == 0 and not output.strip(), f"systemd-analyze verify exits with {status} and says:\n{output}")


@check
def units_are_hardened():
    scores = []
    for name in UNITS:
        status, output = run("systemd-analyze", "security", "--offline=true", "--no-pager",
                             f"--threshold={EXPOSURE_MAX}", ROOT / "systemd" / name)
        score = next((line.split(":")[-1].strip() for line in output.splitlines() if "Overall exposure" in line), None)
        expect(score, f"{name}: no score in:\n{output}")
        expect(status == 0, f"{name}: exposure {score} is above {EXPOSURE_MAX / 10}")
        scores.append(f"{name} {score.split()[0]}")
    # A drop-in is read where a unit is: behind it in one file it says the same.
    with scratch() as folder:
        both = pathlib.Path(folder) / UNITS[0]
        dropped = (ROOT / "systemd/gpu.conf").read_text()
        both.write_text((ROOT / "systemd" / UNITS[0]).read_text() + dropped)
        status, output = run("systemd-analyze", "security", "--offline=true", "--no-pager",
                             f"--threshold={EXPOSURE_GPU_MAX}", both)
        score = next((line.split(":")[-1].strip() for line in output.splitlines() if "Overall exposure" in line), None)
        expect(score and status == 0, f"with gpu.conf: exposure {score} is above {EXPOSURE_GPU_MAX / 10}")
        scores.append(f"with a GPU {score.split()[0]}")
    return f"{', '.join(scores)} (at most {EXPOSURE_MAX / 10})"


@check
def units_agree_with_the_settings():
    daemon, gateway = settings("engine.toml"), settings("gateway.toml")
    for name, drain_s in [(UNITS[0], daemon["server"]["drain_s"]), (UNITS[1], gateway["drain_s"])]:
        service = unit(name)["Service"]
        stop_s = int(service["TimeoutStopSec"][0])
        expect(stop_s >= drain_s + AFTER_DRAIN_S, f"{name}: TimeoutStopSec={stop_s} cuts a drain of {drain_s} s")
        expect(service["KillSignal"] == ["SIGTERM"], f"{name}: only SIGTERM drains")
        expect(service["EnvironmentFile"] == ["-/etc/hanzo-engine/engine.env"], f"{name}: EnvironmentFile")
        expect(service["Type"] == ["notify"], f"{name}: systemd is told when it listens")
        expect(float(service["WatchdogSec"][0]) >= 30, f"{name}: WatchdogSec is shorter than a busy machine's pauses")
        [reload] = service["ExecReload"]
        expect("kill -HUP $MAINPID" in reload, f"{name}: settings are read again at SIGHUP")
        [account] = [line.split()[1] for line in (ROOT / "systemd/hanzo-engine.sysusers").read_text().splitlines()
                     if line.startswith("u ")]
        expect(service["User"] == service["Group"] == [account], f"{name}: runs as {service['User']}, not {account}")
    made = {line.split()[1]: line.split()[2:5] for line in (ROOT / "systemd/hanzo-engine.tmpfiles").read_text().splitlines()
            if line.startswith("d ")}
    expect(made == {"/etc/hanzo-engine": ["0750", "root", account],
                    "/var/lib/hanzo-engine": [unit(UNITS[0])["Service"]["StateDirectoryMode"][0], account, account]},
           f"tmpfiles: {made}")
    [listens] = unit(SOCKET)["Socket"]["ListenStream"]
    expect(listens == f"{gateway['host']}:{gateway['port']}", f"{SOCKET} listens on {listens}")
    state = "/var/lib/" + unit(UNITS[0])["Service"]["StateDirectory"][0]
    expect(daemon["store"]["dir"].startswith(state + "/"), f"store.dir is not in {state}, which alone is writable")
    expect(gateway["engine"].endswith(f":{daemon['server']['grpc_port']}"), "gateway.toml: engine has another port")
    ports = gateway["port"], daemon["server"]["grpc_port"], daemon["server"]["admin_port"]
    expect(ports == (36900, 36901, 36902), f"ports are {ports}")
    expect({daemon["server"]["host"], gateway["host"]} == {"127.0.0.1"}, "the examples listen on more than loopback")
