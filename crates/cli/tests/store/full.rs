//! A disk that is full to its last byte: the program on a small file system of its own. Where none can be mounted this
//! says so; the store's own tests pretend a full disk everywhere.

use super::content::Content;
use super::place::{Place, text};
use std::process::Command;

/// Runs `script` where `$1` is a fresh file system of 64 MiB; none where that may not be mounted.
fn on_small_disk(place: &Place, script: &str) -> Option<std::process::Output> {
    let disk = place.path("disk");
    std::fs::create_dir_all(&disk).unwrap();
    // As root; or as somebody who is root in a namespace.
    for flags in ["-m", "-Urm"] {
        let mounts = Command::new("unshare")
            .args([flags, "mount", "-t", "tmpfs", "-o", "size=64m", "none"])
            .arg(&disk)
            .output();
        if !mounts.is_ok_and(|mounts| mounts.status.success()) {
            continue;
        }
        let script = format!("set -e; mount -t tmpfs -o size=64m none \"$1\"; {script}");
        // The variables of the program's other runs.
        let program = place.program("disk/store", &[]);
        let mut command = Command::new("unshare");
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args([flags, "bash", "-c", &script, "bash"]).arg(&disk).arg(program.get_program());
        return Some(command.output().unwrap());
    }
    eprintln!("NOT TESTED HERE: no small file system can be mounted (unshare -m and -Urm are both refused)");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_keeps_nobody_from_looking_and_removing() {
    let place = Place::new().await;
    place.hub.put("Owner/Other", &[("other-Q8_0.gguf", Content::given("GGUF and no more"))]);
    let fill = r#"dd if=/dev/zero of="$1/fill" bs=1k 2>/dev/null || true; test "$(df --output=avail "$1" | tail -1)" -eq 0"#;
    let script = format!(
        r#"p="$2"; "$p" pull zen-nano -q; "$p" pull owner/other -q; "$p" cp owner/other other
        {fill}
        "$p" list; "$p" show zen-nano >/dev/null; "$p" verify; "$p" du >/dev/null; "$p" doctor; "$p" gc
        echo full; {fill}; "$p" rm other; {fill}; "$p" rm owner/other; {fill}; "$p" rm zen-nano; "$p" list --json
        rm "$1/fill"; "$p" doctor; "$p" pull zen-nano -q; "$p" verify; test -s "$1/store/reserve"; echo end"#
    );
    let Some(output) = on_small_disk(&place, &script) else { return };
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(
        stdout.contains("freed 6.3 MB") && stdout.contains("[]") && stdout.ends_with("end\n"),
        "{stdout}"
    );
    assert!(!stderr.contains("error") && !stderr.contains("warning"), "{stderr}");
}
