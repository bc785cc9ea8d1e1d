"""docs/ and the chart's README: tables are written from what they are of, guides name what exists, and each alert has its part.

`python .ci/deploy_checks --write` writes the tables."""
import re
import tomllib

import yaml

import chart
import monitoring
from harness import ROOT, check, expect

# Where a metric is made: the maker's call, its name and what it says of itself.
SAID = re.compile(r'\b(counter|seconds|gauge|float|single|histogram|opts)\(\s*"([a-z0-9_]+)",\s*"((?:[^"\\]|\\.)*)"')


def metrics():
    """docs/reference/metrics.md, from the source of what exports them."""
    kinds = monitoring.exported()
    rows = {}
    for source in monitoring.SOURCES:
        for _, name, help_text in SAID.findall(source.read_text()):
            name = "hanzo_engine_" + name
            kind = "histogram" if kinds[name] else "counter" if name.endswith("_total") else "gauge"
            where = "engined" if "daemon" in source.relative_to(ROOT).parts else "engine-gateway"
            rows[name] = f"| `{name}` | {kind} | {where} | {help_text.rstrip('.')} |"
    expect(rows.keys() == kinds.keys(), f"metrics that say nothing of themselves: {sorted(kinds.keys() - rows.keys())}")
    head = """# Metrics

engined has metrics at `/metrics` of port 36902, the gateway at `/metrics` of its own port, in Prometheus' text format. `deploy/grafana/dashboards` shows them, and
[alerts](../operate/alerts.md) says what the alerts on them mean.

- Metrics of a model have the label `model`. They exist while the model is loaded or a request of it runs. `model_load_wait_seconds` is kept for the last 128 models.
- A histogram's series end in `_bucket`, `_sum` and `_count`.
- Metrics that begin with `gpu_` come from NVIDIA's driver, and exist if there is one. A metric that a GPU does not know is left out.
- Both programs have those of every process: `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`,
  `process_open_fds`, `process_max_fds`, `process_threads` and `process_start_time_seconds`.

A scraper that asks for OpenMetrics' text, as Prometheus does, gets exemplars. Buckets of `request_duration_seconds`, `time_to_first_token_seconds` and
`http_request_duration_seconds` then name the last traced request by its `trace_id`. Prometheus keeps them with
`--enable-feature=exemplar-storage`.

## All metrics

| metric | kind | of | what it is |
|---|---|---|---|
"""
    return head + "\n".join(rows[name] for name in sorted(rows)) + "\n" + vllm_names()


def vllm_names():
    """The names that `metrics_compat` adds, from their own table."""
    source = (ROOT / "crates/daemon/src/metrics/vllm.rs").read_text()
    pairs = re.findall(r'^    \("([a-z0-9_]+)", "([a-z0-9_]+)"\),$', source, re.M)
    expect(len(pairs) > 10, f"vllm.rs has {len(pairs)} names")
    head = """
## vLLM's names

With `metrics_compat = "vllm"` (`--metrics-compat vllm`) engined has these too, with the label `model_name`. Kubernetes' inference
gateways (gateway-api-inference-extension, llm-d) and dashboards made for vLLM then work. It also has
`vllm:cache_config_info{block_size, num_gpu_blocks}` and, for a model with adapters, `vllm:lora_requests_info`.

| vLLM's | ours |
|---|---|
"""
    return head + "\n".join(f"| `vllm:{theirs}` | `hanzo_engine_{ours}` |" for ours, theirs in pairs) + "\n"


def values():
    """The chart's README, from values.yaml: a row for each value, with the comment above it."""
    rows, said, path = [], [], []
    for line in chart.CHART.joinpath("values.yaml").read_text().splitlines()[3:]:
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        if text.startswith("#"):
            # What is commented out is an example of a setting.
            if not re.match(r"# [a-z_]+: \S", text):
                said.append(text.lstrip("# "))
            continue
        match = re.match(r"([A-Za-z_.]+):(?: (.*))?$", text)
        if not match:
            said = []
            continue
        path = path[: indent // 2] + [match[1]]
        if match[2] is not None:
            rows.append((".".join(path), match[2], " ".join(said)))
        elif said:
            rows.append((".".join(path), "", " ".join(said)))
        said = []
    table = "\n".join(f"| `{key}` | {f'`{default}`' if default else ''} | {what.replace('|', '/')} |" for key, default, what in rows)
    head = """# hanzo-engine

The Hanzo Engine on Kubernetes 1.30 and later: `engined` as a StatefulSet, `engine-gateway` as a Deployment in front of it.
[Kubernetes](../../docs/guides/kubernetes.md) in the docs book says how to use it. `ci/` has sets of values to begin with. values.schema.json refuses values that are unknown
or out of range.

```sh
helm install engine helm/hanzo-engine --namespace inference --create-namespace
```

## Values

| value | default | what it is |
|---|---|---|
"""
    return head + table + "\n"


WRITTEN = {"docs/reference/metrics.md": metrics, "helm/hanzo-engine/README.md": values}


def write():
    for path, text in WRITTEN.items():
        (ROOT / path).write_text(text())


@check
def tables_are_of_what_they_say():
    for path, text in WRITTEN.items():
        there = ROOT / path
        expect(there.exists() and there.read_text() == text(), f"{path}: python .ci/deploy_checks --write writes it anew")
    given = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    missing = [key for key in given if f"| `{key}" not in values()]
    expect(not missing, f"the chart's README has no {missing}")


@check
def every_alert_has_its_part_of_the_runbook():
    parts = set(re.findall(r"^### (\w+)$", (ROOT / "docs/operate/alerts.md").read_text(), re.M))
    names = {rule["alert"] for rule in monitoring.alerts()}
    expect(parts == names, f"docs/operate/alerts.md and the alerts: {sorted(parts ^ names)}")
    for rule in monitoring.alerts():
        page, _, part = rule["annotations"]["runbook_url"].partition("#")
        expect(page.endswith("/docs/operate/alerts.md") and part == rule["alert"].lower(), f"{rule['alert']} leads to {page}#{part}")


@check
def guides_lead_where_something_is():
    count = 0
    for path in [*(ROOT / "docs").rglob("*.md"), chart.CHART / "README.md", ROOT / "README.md"]:
        text = path.read_text()
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)?(?:#[\w-]*)?\)", text):
            expect(not target or (path.parent / target).exists(), f"{path.name}: no {target}")
            count += 1
        for name in re.findall(r"hanzo_engine_(?!proto\b|gateway=|daemon=)[a-z0-9_]+", text):
            known = monitoring.exported()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            expect(name in known or base in known or path.name == "configuration.md", f"{path.name}: nobody exports {name}")
    return f"{count} links"


# Where a path that a document names begins, and what of it is a pattern or a place on another machine.
TOPS = ("crates/", "proto/", "tests/", "models/", "deploy/", "systemd/", "helm/", "docs/", "fuzz/", ".ci/", ".github/")


@check
def paths_of_guides_exist():
    """Paths in backquotes, and scripts and files in blocks of commands; README and ARCHITECTURE.md are held to it by tests/tests/tidy.rs."""
    count, missing = 0, []
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S)
        words = [word for code in [*re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S)), *blocks] for word in code.split()]
        for word in words:
            word = word.strip("'\"(),;").removesuffix("/")
            if word.startswith(TOPS) and not re.search(r"[*{}…<>A-Z]{2}|[*{}…<>$|]", word):
                count += 1
                if not (ROOT / word.split(":")[0]).exists() and not word.startswith(("models/FILE", "models/your")):
                    missing.append(f"{page.relative_to(ROOT)}: no {word}")
    expect(not missing, "\n".join(missing))
    return f"{count} paths"


@check
def settings_of_guides_are_there():
    """Names such as `engine.kv_type` in text, and the keys of examples in TOML and YAML, are settings of the programs."""
    known, count, unknown = chart.keys_of_programs(), 0, []
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        plain = re.sub(r"```.*?```", "", text, flags=re.S)
        named = re.findall(r"`(server|store|engine|log|traces|gateway)\.(\w+)(?: = [^`]*)?`", plain)
        for example in re.findall(r"```toml\n(.*?)```", text, re.S):
            read = tomllib.loads(example)
            # A table of the gateway's file has no section; others' files, such as Codex's, have sections of their own.
            tables = {name: table for name, table in read.items() if name in known}
            named += [(section, key) for section, table in tables.items() for one in (table if isinstance(table, list) else [table]) for key in one]
        count += len(named)
        # `engine.proto` and the like are files; a chart's values have more than the programs.
        unknown += [f"{page.relative_to(ROOT)}: no setting {section}.{key}" for section, key in named
                    if key not in known.get(section, ()) and key not in ("proto", "toml", "env", "yaml")]
    expect(not unknown, "\n".join(unknown))
    return f"{count} settings"


def example(language):
    """The one block of code of docs/guides/hanzo-node.md in a language."""
    [code] = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/guides/hanzo-node.md").read_text(), re.S)
    return code


@check
def node_example_is_the_one_that_compiles():
    there = (ROOT / "crates/proto/examples/infer.rs").read_text()
    expect(there.partition("\n\n")[2] == example("rust"), "docs/guides/hanzo-node.md and crates/proto/examples/infer.rs differ")
