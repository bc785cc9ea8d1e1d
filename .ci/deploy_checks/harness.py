"""What every check needs: the repository's root, the list of checks, running a tool, and saying what was not run."""
import pathlib
import subprocess
import tempfile
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKS = []
NOT_RUN = []


class Fault(Exception):
    """What is wrong, in words: shown without a traceback."""


def check(function):
    """Registers a check: a function that raises `Fault` or returns a note."""
    CHECKS.append(function)
    return function


def expect(condition, fault):
    if not condition:
        raise Fault(fault)


def not_run(what, why):
    """Says aloud what could not be checked here; the summary repeats it."""
    NOT_RUN.append(f"{what}: {why}")
    print(f"NOT RUN {what}: {why}", flush=True)


def run(*command, cwd=ROOT, text=None):
    """(exit status, stdout and stderr together)."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, cwd=cwd, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=300)
    except FileNotFoundError:
        raise Fault(f"{command[0]}: not installed") from None
    return done.returncode, done.stdout


def must(*command, **options):
    """The tool's output; a fault where it fails."""
    status, output = run(*command, **options)
    expect(status == 0, f"{' '.join(map(str, command))} exits with {status}:\n{output}")
    return output


def scratch():
    """A folder that is gone after the `with`."""
    return tempfile.TemporaryDirectory(prefix="deploy-checks-")


def run_all():
    """Runs every check; True where all passed."""
    failed = []
    for function in CHECKS:
        try:
            note = function()
            print(f"ok   {function.__name__}" + (f": {note}" if note else ""), flush=True)
        except Fault as fault:
            failed.append(function.__name__)
            print(f"FAIL {function.__name__}: {fault}", flush=True)
        except Exception:
            failed.append(function.__name__)
            print(f"FAIL {function.__name__}", flush=True)
            traceback.print_exc()
    for line in NOT_RUN:
        print(f"NOT RUN {line}")
    print(f"deploy checks: {len(CHECKS) - len(failed)} passed, {len(failed)} failed"
          + (f" ({', '.join(failed)})" if failed else "") + f", {len(NOT_RUN)} not run here", flush=True)
    return not failed
