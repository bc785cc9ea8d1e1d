"""Commands, flags, model references, routes, requests and programs that documents show: the programs must take and answer them.
usage: python .ci/deploy_checks/commands.py FOLDER_OF_THE_THREE_PROGRAMS

A command line gets `--help` at its end: the program then reads every word before it, refuses an unknown command, flag or value, and
starts nothing. A reference goes to `hanzo-engine pull` with the network forbidden: what cannot be read is refused in other words than
what is merely not on this machine."""
import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request

import yaml

from harness import ROOT, check, expect, run

# Where the three programs are; set before the checks run.
FOLDER = pathlib.Path()
PROGRAMS = ("hanzo-engine", "engined", "engine-gateway")
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "helm/hanzo-engine/README.md", "models/*/README.md", "docs/**/*.md"]
SETTINGS = ["helm/hanzo-engine/values.yaml", "helm/hanzo-engine/ci/*.yaml", "deploy/*.yaml", "deploy/Dockerfile", "systemd/*"]
# What stands for something that the reader puts in.
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_.]*|…|\.\.\.|<[^>]*>|\$\w+")
# Tried in turn where a flag does not take a placeholder as it stands.
STAND_INS = ("1", "cpu", "none", "k=int:1", "q4_k_m")
# A word that only a reference to a model begins with.
REFERENCE = re.compile(r"(?:hf:(?://)?|hf\.co/|https://huggingface\.co/|mlx://|ollama://)[\w./:@#=%+?\[\]-]+")
# Flags of other programs, by what has them, and lines that are about other programs.
OTHERS = {"--acts": "soak.py", "--clients": "soak.py", "--check": "ptx/make", "--enable-feature": "Prometheus", "--example": "cargo", "--gpus": "docker",
          "--icf": "lld", "--kl-divergence": "llama-perplexity", "--network": "docker", "--no-default-features": "cargo", "--pure": "llama-quantize"}
FOREIGN = re.compile(r"\b(cargo|llama-\w+|docker|kubectl|helm|systemctl|apt-get|pip|python|mkdocs|git|espeak-ng)\b|\b(tests|deploy|fuzz)/|\.ci/")


def documents(patterns):
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})


def ask(*command):
    """(exit status, output) of a program that must neither find a network nor a store."""
    with tempfile.TemporaryDirectory(prefix="commands-") as home:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HANZO_", "HF_"))}
        done = subprocess.run([FOLDER / command[0], *command[1:]], cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, env={**clean, "HOME": home, "HF_HUB_OFFLINE": "1"})
    return done.returncode, done.stdout


def spans(text):
    """(language, text) of each block of code, and ("", text) of each piece of code in a line or a table's cell."""
    blocks = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
    for _, language, block in blocks.findall(text):
        yield language or "text", block
    for code in re.findall(r"`([^`\n]+)`", blocks.sub("", text)):
        yield "", code.replace("\\|", "|")


def uncommented(block):
    """A shell's text without comments. A quote that is open before a `#` makes it text."""
    kept = ""
    for line in block.splitlines(keepends=True):
        for mark in re.finditer(r"(?<!\S)#", line):
            if all((kept + line[: mark.start()]).count(quote) % 2 == 0 for quote in "'\""):
                line = line[: mark.start()] + "\n"
                break
        kept += line
    return kept


def simple_commands(block):
    """The words of each command of a shell's text, without variables in front of it."""
    lexer = shlex.shlex(uncommented(re.sub(r"\\\n\s*", " ", block)), posix=True, punctuation_chars="|&;<>()\n")
    lexer.commenters, lexer.whitespace, lexer.whitespace_split = "", " \t", True
    words, command = list(lexer), []
    for word in [*words, ";"]:
        if re.fullmatch(r"[|&;<>()\n]+", word):
            yield command
            command = []
        elif command or not re.fullmatch(r"\w+=.*", word, re.S):
            command.append(word)


def of_programs(words):
    """The program and its arguments, where the command is one of ours; of a container's what runs inside of it."""
    if words[:4] == ["cargo", "run", "--release", "--"]:
        return ["hanzo-engine", *words[4:]]
    if words and pathlib.Path(words[0]).name in PROGRAMS:
        return [pathlib.Path(words[0]).name, *words[1:]]
    inside = [at for at, word in enumerate(words) if word in PROGRAMS]
    if words[:2] == ["docker", "run"] and inside and inside[-1] + 1 < len(words):
        return words[inside[-1]:]
    return None


def unfolded(code):
    """A synopsis with all that may be left out, such as `[--quant Q]… --srt|--vtt`, as a command."""
    return re.sub(r"[\[\]…]", " ", code).replace("|", " ").replace("COMMAND", "serve").strip()


def command_lines(path):
    """{command: where}: what blocks and lines of a document have programs do."""
    found = {}
    if path.name == "flags.md":  # written from the programs
        return found
    text = path.read_text()
    for language, code in spans(text):
        if language in ("sh", "bash", "text", "console"):
            try:
                lines = list(simple_commands(code))
            except ValueError as error:  # a quote that does not end
                expect(language == "text", f"{path.name}: {error}: {code}")
                continue
        elif language == "" and code.split(" ")[0] in PROGRAMS and " " in code:
            lines = simple_commands(unfolded(code))
        else:
            continue
        for words in lines:
            if command := of_programs(words):
                found[tuple(command)] = path
    if path.name == "cli.md":
        [table] = re.findall(r"^\| command \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
        for row in table.splitlines():
            cell = re.split(r"(?<!\\)\|", row)[1]
            for code in re.findall(r"`([^`]+)`", cell):
                for words in simple_commands(unfolded(code.replace("\\|", "|"))):
                    found["hanzo-engine", *words] = path
    return found


def fault_of(command):
    """What the program does not take of a command; None where it takes all of it."""
    words = list(command)
    for _ in range(20):
        status, output = ask(*words, "--help")
        if status == 0:
            return None
        wrong = re.search(r"invalid value '(.*?)' for '.*?'", output)
        # `--flag=VALUE` is told by its value.
        at = next((n for n, word in enumerate(words) if wrong and wrong[1] and (word == wrong[1] or word.endswith("=" + wrong[1]))), None)
        value = None if at is None else command[at].rpartition("=")[2]
        if at is None or not PLACEHOLDER.fullmatch(value):
            break
        tried = STAND_INS.index(wrong[1]) + 1 if wrong[1] in STAND_INS else 0
        if tried == len(STAND_INS):
            return None  # its type is of no account: the flag is there
        words[at] = words[at].removesuffix(wrong[1]) + STAND_INS[tried]
    return output.strip().splitlines()[0] if output.strip() else f"exits with {status}"


def all_of(items, fault):
    """Those that have a fault, asked for by several at once."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return [f"{where.relative_to(ROOT)}: {said}" for (item, where), said in zip(items.items(), pool.map(fault, items)) if said]


def lines_of(paths):
    return {command: where for path in paths for command, where in command_lines(path).items()}


@functools.cache
def flags():
    """Every flag that some command of a program has."""
    commands = [(program,) for program in PROGRAMS]
    known = set()
    while commands:
        command = commands.pop()
        _, text = ask(*command, "--help")
        known.update(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", text, re.M))
        if "Commands:" in text:
            commands += [(*command, name) for name in re.findall(r"^  ([a-z-]+)  ", text.partition("Commands:")[2].partition("\n\n")[0], re.M) if name != "help"]
    expect(len(known) > 100, f"only {len(known)} flags are known")
    return known


def is_other_name(flag):
    """Whether a command takes a flag that its help does not list: another name of one that it lists."""
    commands = (["hanzo-engine", "serve"], ["hanzo-engine", "load", "MODEL"], ["engined"], ["engine-gateway"])
    return any("unexpected argument" not in ask(*command, flag, "1", "--help")[1] for command in commands)


def flags_named(path):
    """Flags that a document names by themselves, such as `--gpu-layers N`."""
    for line in re.sub(r"^( *)```.*?^\1```$", "", path.read_text(), flags=re.M | re.S).splitlines():
        if not FOREIGN.search(line):
            for code in re.findall(r"`(-[^`]+)`", line):
                yield from re.findall(r"(?<![\w-])--[a-z][\w-]+", code)


def words_in(value):
    """Every text of a document in YAML."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in words_in(item)]
    if isinstance(value, list):
        return [text for item in value for text in words_in(item)]
    return [value] if isinstance(value, str) else []


def references(pages, settings):
    """{reference: where}: what begins as one, and what is pulled."""
    found = {}
    for path in [*pages, *settings]:
        text = path.read_text()
        codes = [code for _, code in spans(text)] if path.suffix == ".md" else [text]
        for code in codes:
            for reference in REFERENCE.findall(re.sub(r"\[[^\]]*\]", "", code)):
                found[reference.rstrip(".,:/")] = path
        if path.suffix == ".md":
            for command in command_lines(path):
                if command[:2] == ("hanzo-engine", "pull"):
                    for word in command[2:]:
                        # The value of a flag is asked as a name of the store, which is no fault.
                        if not word.startswith("-") and not PLACEHOLDER.fullmatch(word) and "/" in word + "/" and not word.isdigit():
                            found[word] = path
            # helm's own way to write a list.
            for listed in re.findall(r"pull=\{([^}]+)\}", text):
                found.update((word, path) for word in listed.split(","))
        elif path.suffix == ".yaml" and "helm" in path.parts:
            found.update((word, path) for word in words_in((yaml.safe_load(text) or {}).get("pull")))
    return found


def reference_fault(reference):
    status, output = ask("hanzo-engine", "pull", "--engine", "none", "--", reference)
    said = output.strip().splitlines()[-1] if output.strip() else f"exits with {status}"
    return None if "is not on this machine" in said or status == 0 else said


# What clients put more behind, and what is registered by another way than `route("…")`.
ELSEWHERE = ("/", "/v1", "/docs", "/mcp")


def routes():
    """Patterns of every route that gateway and daemon register."""
    made = [path.read_text() for path in [*(ROOT / "crates/gateway/src").rglob("*.rs"), *(ROOT / "crates/daemon/src").rglob("*.rs")]]
    found = {route for text in made for route in re.findall(r'\.(?:route|nest_service|route_service)\(\s*"(/[^"]*)"', text)}
    expect(len(found) > 60, f"only {len(found)} routes are registered")
    return found


def routes_asked(path):
    """Paths of this machine's addresses that a document's commands and programs ask."""
    for language, code in spans(path.read_text()):
        if language in ("sh", "bash", "text", "console", ""):
            yield from re.findall(r"(?:https?://)?(?:127\.0\.0\.1|localhost):3690[02](/[\w./{}-]*)", code)


@check
def commands_of_documents_are_taken():
    found = lines_of(documents(PAGES))
    expect(len(found) > 60, f"only {len(found)} commands were found")
    faults = all_of(found, lambda command: (said := fault_of(command)) and f"{shlex.join(command)}: {said}")
    expect(not faults, "\n".join(faults))
    return f"{len(found)} commands"


def others_fault(words):
    """What is wrong with a command of cargo, helm or a script of the repository; None for other programs."""
    flags = {word: value for word, value in zip(words, [*words[1:], ""])}
    if words[0] == "cargo":
        packages = {tomllib.loads(path.read_text())["package"]["name"]: path.parent for path in [*ROOT.glob("crates/*/Cargo.toml"), ROOT / "tests/Cargo.toml"]}
        name = flags.get("-p", flags.get("--package"))
        if name is None or PLACEHOLDER.fullmatch(name):
            return None
        if name not in packages:
            return f"no package {name}"
        for flag, folder in (("--example", "examples"), ("--test", "tests"), ("--bench", "benches")):
            if (target := flags.get(flag)) and not list((packages[name] / folder).glob(f"{target}*")):
                return f"{name} has no {folder}/{target}"
    elif words[0] == "helm" and words[1] in ("install", "upgrade", "template"):
        values = [word for flag, value in zip(words, words[1:]) if flag == "--set" for word in (flag, value)]
        status, output = run("helm", "template", "release", ROOT / "helm/hanzo-engine", *values)
        return None if status == 0 else output
    elif words[0].endswith(".py") and (script := ROOT / words[0]).is_file():
        text = script.read_text()
        unknown = [word for word in words[1:] if re.fullmatch(r"--?[a-z][\w-]*", word) and f'"{word}"' not in text]
        return f"{words[0]} has no {unknown}" if unknown else None
    return None


@check
def commands_of_others_are_there():
    """Packages, examples and tests that cargo is given, flags of the repository's scripts in Python, and values that helm is given."""
    found = {tuple(words): path for path in documents(PAGES) for language, code in spans(path.read_text())
             if language in ("sh", "bash") or (language == "" and re.match(r"cargo |helm |tests/\S+\.py ", code))
             for words in simple_commands(code if language else unfolded(code)) if words}
    faults = all_of(found, lambda words: (said := others_fault(list(words))) and f"{shlex.join(words)}: {said}")
    expect(not faults, "\n".join(faults))
    for wrong in ("cargo test -p hanzo-engine-kernel", "cargo run -p hanzo-engine-proto --example inferr", "tests/bench/pairs.py --models FILE"):
        expect(others_fault(wrong.split()), f"{wrong} is taken")
    return f"{len(found)} commands"


@check
def flags_of_documents_are_there():
    pages = documents(["README.md", "docs/**/*.md"])
    named = {flag: path for path in pages for flag in flags_named(path)}
    unknown = [f"{named[flag].relative_to(ROOT)}: no program has {flag}"
               for flag in sorted(named.keys() - flags() - OTHERS.keys()) if not is_other_name(flag)]
    expect(not unknown, "\n".join(unknown))
    return f"{len(named)} flags"


@check
def references_of_documents_are_read():
    found = references(documents(PAGES), documents(SETTINGS))
    expect(len(found) > 8, f"only {sorted(found)} were found")
    faults = all_of(found, reference_fault)
    expect(not faults, "\n".join(faults))
    return f"{len(found)} references"


@check
def wrong_commands_and_references_are_found():
    for wrong in ("hf:Qwen/Qwen3-4B-GGUF:Q8_0x?", "owner/repo/more", "ollama://", "https://host/model.gguf#sha256=00"):
        expect(reference_fault(wrong), f"{wrong} is taken")
    for wrong in ("hanzo-engine serve --modell FILE", "hanzo-engine srve", "hanzo-engine run MODEL --top-k=x", "engined --port 1", "engine-gateway --threads N"):
        [words] = [list(words) for words in simple_commands(wrong) if words]
        expect(fault_of(tuple(words)), f"{wrong} is taken")


@check
def routes_of_documents_are_there():
    known = [re.compile(re.sub(r"\{\*?\w+\}", "[^ ]+", route)) for route in routes()]
    asked = {route: path for path in documents(PAGES) for route in routes_asked(path) if route not in ELSEWHERE}
    unknown = [f"{path.relative_to(ROOT)}: no route {route}" for route, path in asked.items() if not any(one.fullmatch(route) for one in known)]
    expect(not unknown, "\n".join(unknown))
    return f"{len(asked)} routes"


@contextlib.contextmanager
def serving():
    """The HTTP address of a server of the demo model, with no store and no network."""
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
    with tempfile.TemporaryDirectory(prefix="commands-") as home, open(f"{home}/log", "w+") as log:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HANZO_", "HF_"))}
        flags = [word for flag, port in zip(("--port", "--grpc-port", "--admin-port"), ports) for word in (flag, str(port))]
        server = subprocess.Popen([FOLDER / "hanzo-engine", "serve", *flags, "--adapter-updates"], cwd=home, stdout=log, stderr=log,
                                  env={**clean, "HOME": home, "HF_HUB_OFFLINE": "1"})
        try:
            deadline = time.monotonic() + 60
            while asked(f"http://127.0.0.1:{ports[0]}/ready", None, {}, "GET")[0] != 200:
                expect(server.poll() is None and time.monotonic() < deadline, f"the server does not come up: {pathlib.Path(log.name).read_text()}")
                time.sleep(0.1)
            yield f"127.0.0.1:{ports[0]}"
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def asked(url, body, headers, method):
    """(status, text) of an answer; status 0 where nobody answers."""
    request = urllib.request.Request(url, body and body.encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def curls(path):
    """(method, path of the URL, headers, body) of each curl to the HTTP port in a document."""
    for language, code in spans(path.read_text()):
        for words in simple_commands(code) if language in ("sh", "bash") or language == "" and code.startswith("curl ") else ():
            if words[:1] == ["curl"] and "-F" not in words and (url := next((word for word in words if re.search(r"(127\.0\.0\.1|localhost):36900", word)), None)):
                after = lambda flag: [value for word, value in zip(words, words[1:]) if word == flag]  # noqa: E731
                headers = dict(header.split(": ", 1) for header in after("-H"))
                body = next(iter(after("-d")), None)
                yield next(iter(after("-X")), "POST" if body else "GET"), url.split(":36900")[1] or "/", headers, body


def answer_fault(answer):
    """What is wrong with a request by its answer. A model that is not here, or cannot do what is asked, is not the document's fault."""
    status, text = answer
    try:
        code = json.loads(text)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = None
    if status == 200 or code in ("model_not_found", "not_pulled", "model_not_loaded", "model_not_capable") or status in (409, 503) or "this model" in text or (status >= 500 and "HF_HUB_OFFLINE" in text):
        return None
    return f"{status}: {text[:300]}"


@check
def requests_of_documents_are_answered():
    """Each curl as it stands, but for the port; and again with the demo model in place of others, so that its fields are read."""
    asks = {request: path for path in documents(PAGES) for request in map(lambda r: (r[0], r[1], tuple(r[2].items()), r[3]), curls(path))}
    expect(len(asks) > 8, f"only {len(asks)} requests were found")
    faults = []
    with serving() as http:
        for (method, route, headers, body), path in asks.items():
            for sent in {body, re.sub(r'"model": "[^"/]*"', '"model": "hanzo-demo"', body or "") or None}:
                if said := answer_fault(asked(f"http://{http}{route}", sent, dict(headers), method)):
                    faults.append(f"{path.relative_to(ROOT)}: {method} {route} {sent or ''}: {said}")
        expect(answer_fault(asked(f"http://{http}/v1/chat/completions", '{"model": "hanzo-demo", "message": []}', {"content-type": "application/json"}, "POST")),
               "a field that nobody knows is taken")
        expect(answer_fault(asked(f"http://{http}/v1/chat/completion", "{}", {"content-type": "application/json"}, "POST")), "a route that is not there answers")
    expect(not faults, "\n".join(faults))
    return f"{len(asks)} requests"


@check
def programs_of_documents_run():
    """Each example in Python that asks the HTTP port, as it stands but for the port, ends well and prints something."""
    examples = [(path, code) for path in documents(PAGES) for language, code in spans(path.read_text()) if language == "python" and ":36900" in code]
    expect(examples, "there are none")
    with serving() as http:
        for path, code in examples:
            done = subprocess.run([sys.executable, "-c", code.replace("127.0.0.1:36900", http)], capture_output=True, text=True, timeout=120)
            expect(done.returncode == 0 and done.stdout.strip(), f"{path.relative_to(ROOT)}: a program ends with {done.returncode}: {done.stderr[-2000:]}")
    return f"{len(examples)} programs"


if __name__ == "__main__":
    import harness

    FOLDER = pathlib.Path(sys.argv[1]).resolve()
    sys.exit(0 if harness.run_all() else 1)
