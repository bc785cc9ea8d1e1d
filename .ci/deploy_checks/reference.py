"""Pages of docs/reference/ that are written from the programs: every flag from `--help`, every route from `/openapi.json`.
usage: python .ci/deploy_checks/reference.py FOLDER_OF_THE_THREE_PROGRAMS    writes them anew"""
import functools
import json
import pathlib
import re
import sys

import commands
from harness import ROOT, check, expect

ENTRY = re.compile(r"^ {2,6}((?:-\w, )?--[\w-]+(?: [<\[].*?)?|[<\[][^\s].*?|[a-z][a-z-]*)(?: {2,}(.*))?$")


def cell(text):
    """A table's cell: one line, with nothing that Markdown would read."""
    text = re.sub(r"\s+", " ", text).strip()
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part.replace("|", "\\|") if part.startswith("`") else re.sub(r"([|*<])", r"\\\1", part) for part in parts)


def entries(lines):
    """(what is written, what it does) of a section of flags or arguments."""
    found = []
    for line in lines:
        match = ENTRY.match(line)
        if match and (len(line) - len(line.lstrip())) <= 6:
            found.append([match[1], match[2] or ""])
        elif found:
            # A list of values goes on in the same cell.
            value = re.match(r"\s+- (\S+?):?\s+(.*)", line)
            found[-1][1] += f"; `{value[1]}`: {value[2]}" if value else " " + line.strip()
    return [(name, re.sub(r"Possible values: ?;", "Possible values:", re.sub(r"\s+", " ", said))) for name, said in found]


def sections(text):
    """[(title, lines)]: a help's parts; the first has no title."""
    parts = [("", [])]
    for line in text.splitlines():
        title = re.match(r"^([A-Z][^.]*):$", line)
        if title:
            parts.append((title[1], []))
        else:
            parts[-1][1].append(line)
    return parts


def paragraphs(lines):
    return [re.sub(r"\s+", " ", part).strip() for part in "\n".join(lines).strip().split("\n\n") if part.strip()]


def of_command(command, level):
    """A command's part of the page, and its own commands'."""
    _, text = commands.ask(*command, "--help")
    out = [f"{'#' * level} {' '.join(command)}"]
    inside = []
    for title, lines in sections(text):
        if title == "":
            out += [cell(part) if not part.startswith("Usage: ") else f"```text\n{part.removeprefix('Usage: ')}\n```" for part in paragraphs(lines)]
        elif title == "Commands":
            inside = [name for name, _ in entries(lines) if name != "help"]
        elif title == "Examples":
            # The text behind the examples begins where lines are no longer set in.
            shown = [line for line in lines if line.startswith("  ") or not line]
            while shown and not shown[-1]:
                shown.pop()
            # A digest that is only hinted at is no reference, and crates/store/tests/documented.rs reads all of them.
            out.append("```text\n" + "\n".join(line.removeprefix("  ") for line in shown).replace("#sha256=…", "") + "\n```")
            out += [cell(part) for part in paragraphs([line for line in lines if not line.startswith("  ")])]
        else:
            rows = [(name, said) for name, said in entries(lines) if name != "-h, --help"]
            rows = [f"| `{name.replace('|', chr(92) + '|')}` | {cell(said)} |" for name, said in rows]
            if rows:
                head = {"Options": "flag", "Arguments": "argument"}.get(title, title.lower())
                out.append(f"| {head} | meaning |\n|---|---|\n" + "\n".join(rows))
    parts = ["\n\n".join(out)]
    return "\n\n".join(parts + [of_command((*command, name), min(level + 1, 4)) for name in inside])


def flags_page():
    """docs/reference/flags.md"""
    head = """# All flags

This page is written from `--help` of the three programs. [Commands](cli.md) is the shorter page to begin with. `-h, --help` and `-V, --version` are left out."""
    return "\n\n".join([head, *(of_command((program,), 2) for program in commands.PROGRAMS)]) + "\n"


def routes_page():
    """docs/reference/routes.md"""
    with commands.serving() as http:
        status, text = commands.asked(f"http://{http}/openapi.json", None, {}, "GET")
    expect(status == 200, f"/openapi.json: {status}")
    described = json.loads(text)
    rows = {}
    for path, ways in described["paths"].items():
        for method, route in ways.items():
            if method in ("get", "post", "put", "delete", "head"):
                group = (route.get("tags") or ["others"])[0]
                said = route.get("summary") or route.get("description", "").split("\n")[0]
                rows.setdefault(group, []).append(f"| `{method.upper()} {path}` | {cell(said)} |")
    head = """# All routes

This page is written from `/openapi.json` of a running server, which also has the fields of each route. `/docs` of a server shows them in a browser. [HTTP APIs](http.md) is the shorter page to begin
with."""
    tables = [f"## {group}\n\n| route | what it does |\n|---|---|\n" + "\n".join(found) for group, found in rows.items()]
    return "\n\n".join([head, *tables]) + "\n"


WRITTEN = {"docs/reference/flags.md": flags_page, "docs/reference/routes.md": routes_page}


@functools.cache
def rpcs():
    return re.findall(r"^  rpc (\w+)\(", "".join((ROOT / f"proto/hanzo/engine/v1/{name}.proto").read_text() for name in ("engine", "speech")), re.M)


@check
def reference_is_of_the_programs():
    for path, text in WRITTEN.items():
        there = ROOT / path
        expect(there.exists() and there.read_text() == text(), f"{path}: python .ci/deploy_checks/reference.py FOLDER_OF_THE_PROGRAMS writes it anew")


@check
def reference_names_every_call_and_error():
    page = (ROOT / "docs/reference/grpc.md").read_text()
    missing = [name for name in rpcs() if f"`{name}`" not in page]
    expect(not missing, f"docs/reference/grpc.md has no {missing}")
    page = (ROOT / "docs/reference/errors.md").read_text()
    source = (ROOT / "crates/gateway/src/error.rs").read_text().partition("#[cfg(test)]\nmod tests {")[0]
    codes = set(re.findall(r'Some\("([a-z_]{6,})"\)', source)) | set(re.findall(r'"(rate_limit_exceeded|invalid_api_key)"', source))
    missing = [code for code in sorted(codes - {"message_too_large", "tokens_per_minute"}) if f"`{code}`" not in page]
    expect(not missing, f"docs/reference/errors.md has no {missing}")
    return f"{len(rpcs())} calls, {len(codes)} codes"


if __name__ == "__main__":
    commands.FOLDER = pathlib.Path(sys.argv[1]).resolve()
    for path, text in WRITTEN.items():
        (ROOT / path).write_text(text())
        print(path)
