//! Manual pages and completions, made from what a program takes: for packages.

use std::{fs, io, path::Path};

use clap::Command;
use clap_complete::Shell;

/// Shells that are completed in, and what packages call the scripts.
const SHELLS: [(Shell, &str, &str, &str); 3] =
    [(Shell::Bash, "bash", "", ""), (Shell::Zsh, "zsh", "_", ""), (Shell::Fish, "fish", "", ".fish")];

/// Writes `man/NAME.1`, one more for each subcommand, and `completions/SHELL/…` below `dir`.
///
/// # Errors
/// The first file that cannot be written.
pub fn write(mut command: Command, dir: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, folder, before, after) in SHELLS {
        let folder = dir.join("completions").join(folder);
        fs::create_dir_all(&folder)?;
        // Through memory: the generator takes a full disk for a broken program.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut script);
        fs::write(folder.join(format!("{before}{name}{after}")), script)?;
    }
    let man = dir.join("man");
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), &man)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_scripts_are_of_what_the_program_takes() {
        let dir = tempfile::tempdir().unwrap();
        let serve = Command::new("serve").about("Serves models").arg(clap::Arg::new("port").long("port"));
        write(Command::new("prog").version("1.2").about("A program").subcommand(serve), dir.path()).unwrap();
        for (file, words) in [
            ("man/prog.1", "A program"),
            ("man/prog-serve.1", "\\-\\-port"),
            ("completions/bash/prog", "--port"),
            ("completions/zsh/_prog", "--port"),
            ("completions/fish/prog.fish", "port"),
        ] {
            let text = fs::read_to_string(dir.path().join(file)).unwrap();
            assert!(text.contains(words), "{file}: {text}");
        }
    }
}
