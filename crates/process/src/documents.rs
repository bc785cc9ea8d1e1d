//! Manual pages and completions, generated from a program's command line, for packages.

use std::{fs, io, path::Path};

use clap::Command;
use clap_complete::Shell;

/// Supported shells, with the names of the scripts in packages.
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
        // Via memory, because the generator panics on a full disk.
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
