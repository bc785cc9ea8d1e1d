//! Diagnosis of NVIDIA GPUs that the machine has but this process cannot use: hidden by a container, by the sandbox
//! of systemd's unit, or because the driver's files are missing. Reads Linux's own files and produces a sentence
//! with the remedy.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
};

/// Values of PCI attributes: NVIDIA's vendor id, and the classes of display controllers (VGA, 3D).
const NVIDIA: &str = "0x10de";
const DISPLAY: &str = "0x03";
/// Name of the daemon's unit, and the folders of units and their drop-ins, with the administrator's first.
const UNIT: &str = "engined.service";
const UNITS: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

/// Reason why a process does not see the GPUs.
enum Behind {
    Container,
    /// Service of systemd, by its name.
    Unit(String),
    Nothing,
}

/// Explanation of the GPUs that the machine below `root` has but this process cannot use. `why` is the driver's
/// reason for finding none. `None` if there is no GPU, or if `why` is sufficient.
pub(crate) fn hidden(root: &Path, why: &str) -> Option<String> {
    let cards = on_pci(root);
    let driver = root.join("proc/driver/nvidia");
    if cards.is_empty() && entries(&driver.join("gpus")).is_empty() {
        return None;
    }
    let has = match &cards[..] {
        [] => "the machine has an NVIDIA card".to_owned(),
        [card] => format!("the machine has an NVIDIA card ({card})"),
        cards => format!("the machine has {} NVIDIA cards ({})", cards.len(), cards.join(", ")),
    };
    let behind = Behind::of(root);
    if !driver.join("version").exists() {
        let other = cards.first().and_then(|card| bound_to(root, card));
        let instead = match other.as_deref() {
            Some("vfio-pci") => "it is given to virtual machines (vfio-pci)".to_owned(),
            Some(other) => format!("{other} has it: install NVIDIA's driver"),
            None => "NVIDIA's driver is not loaded: install it, or `modprobe nvidia`".to_owned(),
        };
        return Some(format!("{has}, and {instead}"));
    }
    let dev = entries(&root.join("dev"));
    let numbered =
        |name: &String| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let there = |name: &str| dev.iter().any(|other| other == name);
    let control = root.join("dev/nvidiactl");
    let forbidden = File::open(&control).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    if !there("nvidiactl") || !dev.iter().any(numbered) || forbidden {
        let instead = match behind {
            Behind::Container => {
                "this container is not shown it: start it by NVIDIA's container toolkit with --gpus all, or in Kubernetes with nvidia.com/gpu among its limits"
                    .to_owned()
            }
            // PrivateDevices= mounts a separate /dev; DeviceAllow= forbids access to files that are there.
            Behind::Unit(unit) if forbidden || has_own_dev(root) => unit_hides(&unit, "it"),
            _ if forbidden => "this user may not open /dev/nvidiactl: change its mode, or the user's groups".to_owned(),
            _ => "its files in /dev are missing: `nvidia-modprobe -c 0 -u` makes them".to_owned(),
        };
        return Some(format!("{has}, and {instead}"));
    }
    if !there("nvidia-uvm") {
        let before =
            if let Behind::Unit(unit) = &behind { format!(", and restart {unit}") } else { String::new() };
        return Some(format!(
            "{has}, and /dev/nvidia-uvm is missing: `modprobe nvidia-uvm` on the machine itself{before}"
        ));
    }
    if why.contains("libcuda") {
        let instead = match behind {
            Behind::Container => {
                "this container has no libcuda.so.1: NVIDIA_DRIVER_CAPABILITIES is to be compute,utility or all"
            }
            _ => "the driver's libcuda.so.1 is missing: install it with the driver (libcuda1 on Debian)",
        };
        return Some(format!("{has}, and {instead}"));
    }
    None
}

/// Warning for a machine whose GPUs this process sees: the daemon's installed unit would hide them from the daemon.
pub(crate) fn hidden_by_unit(root: &Path) -> Option<String> {
    let unit = UNITS.iter().find_map(|folder| fs::read_to_string(root.join(folder).join(UNIT)).ok())?;
    let mut texts = vec![unit];
    for folder in UNITS.iter().rev() {
        let beside = root.join(folder).join(format!("{UNIT}.d"));
        let names = entries(&beside).into_iter().filter(|name| name.ends_with(".conf"));
        texts.extend(names.filter_map(|name| fs::read_to_string(beside.join(name)).ok()));
    }
    let last = texts
        .iter()
        .flat_map(|text| text.lines())
        .rfind(|line| line.trim_start().starts_with("PrivateDevices="))?;
    let private = matches!(last.trim().trim_start_matches("PrivateDevices="), "yes" | "true" | "on" | "1");
    private.then(|| unit_hides(UNIT, "the card"))
}

fn unit_hides(unit: &str, card: &str) -> String {
    format!(
        "{unit} is not shown {card}: copy /usr/share/doc/hanzo-engine/gpu.conf (/usr/local/share/… by tarball) into /etc/systemd/system/{unit}.d, `systemctl daemon-reload`, and restart it"
    )
}

impl Behind {
    fn of(root: &Path) -> Behind {
        if [".dockerenv", "run/.containerenv"].iter().any(|file| root.join(file).exists()) {
            return Behind::Container;
        }
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        // A shell's own cgroup is below its user's service, which is user@UID.service.
        let unit = group.rsplit('/').find(|part| part.ends_with(".service"));
        // Containers mount an overlay as their root, whatever runs them. Some whole machines do so too.
        let laid_over = kind_of_mount(root, "/").as_deref() == Some("overlay");
        match unit.filter(|unit| !unit.starts_with("user@")) {
            Some(unit) => Behind::Unit(unit.to_owned()),
            None if laid_over => Behind::Container,
            None => Behind::Nothing,
        }
    }
}

/// Whether /dev is not the kernel's devtmpfs.
fn has_own_dev(root: &Path) -> bool {
    kind_of_mount(root, "/dev").as_deref() == Some("tmpfs")
}

/// Type of the file system mounted last at a path.
fn kind_of_mount(root: &Path, at: &str) -> Option<String> {
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(at))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

/// PCI addresses of NVIDIA GPUs.
fn on_pci(root: &Path) -> Vec<String> {
    let devices = root.join("sys/bus/pci/devices");
    let is = |address: &String, file: &str, begin: &str| {
        fs::read_to_string(devices.join(address).join(file)).is_ok_and(|text| text.starts_with(begin))
    };
    entries(&devices)
        .into_iter()
        .filter(|card| is(card, "vendor", NVIDIA) && is(card, "class", DISPLAY))
        .collect()
}

/// Kernel driver bound to a device.
fn bound_to(root: &Path, address: &str) -> Option<String> {
    let link = fs::read_link(root.join("sys/bus/pci/devices").join(address).join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Names in a folder, sorted; empty if there is no such folder.
fn entries(folder: &Path) -> Vec<String> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const NO_LIBRARY: &str = "no CUDA driver: libcuda.so.1: cannot open shared object file";
    const CARD: [(&str, &str); 2] = [
        ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
        ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
    ];
    const DRIVER: (&str, &str) = ("proc/driver/nvidia/version", "NVRM version: 580\n");
    const DEVICES: [(&str, &str); 3] = [("dev/nvidiactl", ""), ("dev/nvidia0", ""), ("dev/nvidia-uvm", "")];
    const IN_UNIT: (&str, &str) = ("proc/self/cgroup", "0::/system.slice/engined.service\n");
    const PRIVATE: (&str, &str) = (
        "proc/self/mountinfo",
        "1 2 8:1 / / rw - ext4 /dev/sda1 rw\n3 1 0:5 / /dev rw - devtmpfs dev rw\n4 1 0:9 / /dev ro - tmpfs tmpfs rw\n",
    );
    const IN_CONTAINER: (&str, &str) =
        ("proc/self/mountinfo", "1 2 0:3 / / rw - overlay overlay rw\n4 1 0:5 / /proc rw - proc proc rw\n");
    const IN_SHELL: (&str, &str) =
        ("proc/self/cgroup", "0::/user.slice/user-0.slice/user@0.service/app.slice/term.scope\n");

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn said(files: &[&[(&str, &str)]]) -> String {
        let root = tempfile::tempdir().unwrap();
        files.iter().for_each(|files| put(root.path(), files));
        hidden(root.path(), NO_LIBRARY).unwrap_or_default()
    }

    #[test]
    fn a_card_that_is_hidden_is_told_with_what_to_do() {
        let told = |files: &[&[(&str, &str)]], parts: &[&str]| {
            let said = said(files);
            for part in parts {
                assert!(said.contains(part), "{part}: {said}");
            }
        };
        let has = "the machine has an NVIDIA card (0000:01:00.0), and ";
        told(
            &[&CARD, &[DRIVER, IN_CONTAINER]],
            &[has, "this container is not shown it", "--gpus all", "nvidia.com/gpu"],
        );
        told(&[&CARD, &[DRIVER, (".dockerenv", "")]], &[has, "this container is not shown it"]);
        told(&[&CARD, &[DRIVER, IN_UNIT, PRIVATE]], &[has, "engined.service is not shown it", "gpu.conf"]);
        // A service that hides nothing, such as sshd's for a shell.
        told(&[&CARD, &[DRIVER, IN_UNIT]], &[has, "its files in /dev are missing"]);
        told(&[&CARD, &[DRIVER, IN_SHELL]], &[has, "its files in /dev are missing", "nvidia-modprobe"]);
        told(
            &[&CARD, &[DRIVER, IN_UNIT], &DEVICES[..2]],
            &[has, "`modprobe nvidia-uvm`", "restart engined.service"],
        );
        told(&[&CARD, &[DRIVER, IN_CONTAINER], &DEVICES], &[has, "NVIDIA_DRIVER_CAPABILITIES"]);
        told(&[&CARD, &[DRIVER, IN_SHELL], &DEVICES], &[has, "libcuda.so.1 is missing"]);
        told(&[&CARD], &[has, "NVIDIA's driver is not loaded"]);
        // Without sysfs the driver's own list of GPUs suffices.
        told(
            &[&[DRIVER, IN_CONTAINER, ("proc/driver/nvidia/gpus/0000:01:00.0/information", "")]],
            &["the machine has an NVIDIA card, and this container"],
        );
        let second = CARD.map(|(path, text)| (path.replace("01:00", "41:00"), text));
        let second: Vec<(&str, &str)> = second.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        told(
            &[&CARD, &second, &[DRIVER, IN_UNIT]],
            &["the machine has 2 NVIDIA cards (0000:01:00.0, 0000:41:00.0), and "],
        );
    }

    #[test]
    fn nothing_is_told_where_nothing_is_hidden() {
        assert_eq!(said(&[]), "");
        // A GPU of another vendor, and another kind of device by NVIDIA.
        assert_eq!(
            said(&[&[
                ("sys/bus/pci/devices/0/vendor", "0x1002\n"),
                ("sys/bus/pci/devices/0/class", "0x030000\n")
            ]]),
            ""
        );
        assert_eq!(
            said(&[&[
                ("sys/bus/pci/devices/0/vendor", "0x10de\n"),
                ("sys/bus/pci/devices/0/class", "0x040300\n")
            ]]),
            ""
        );
        let root = tempfile::tempdir().unwrap();
        put(root.path(), &[&CARD[..], &[DRIVER, IN_UNIT], &DEVICES].concat());
        assert_eq!(
            hidden(root.path(), "cuInit: initialization error (CUDA error 3)"),
            None,
            "its own words say it"
        );
    }

    #[test]
    fn whoever_else_has_the_card_is_named() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), &CARD);
        let link = root.path().join("sys/bus/pci/devices/0000:01:00.0/driver");
        for (driver, part) in
            [("nouveau", "nouveau has it: install"), ("vfio-pci", "virtual machines (vfio-pci)")]
        {
            symlink(format!("../../../bus/pci/drivers/{driver}"), &link).unwrap();
            let said = hidden(root.path(), NO_LIBRARY).unwrap();
            assert!(said.contains(part), "{said}");
            fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn a_unit_that_would_hide_it_is_told_until_gpu_conf_is_beside_it() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(hidden_by_unit(root.path()), None);
        let of = |name: &str| {
            fs::read_to_string(format!("{}/../../systemd/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        put(root.path(), &[("usr/lib/systemd/system/engined.service", of("engined.service").as_str())]);
        let said = hidden_by_unit(root.path()).unwrap();
        assert!(said.starts_with("engined.service is not shown the card: copy"), "{said}");
        put(root.path(), &[("etc/systemd/system/engined.service.d/gpu.conf", of("gpu.conf").as_str())]);
        assert_eq!(hidden_by_unit(root.path()), None);
    }
}
