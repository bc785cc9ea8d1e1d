"""deploy/: Prometheus takes the rules, each alert fires in its test, and every metric named is one that is exported."""
import json
import pathlib
import re

import yaml

from harness import ROOT, check, expect, must, scratch

DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
# Every file of the two programs: a metric may be made in any of them.
SOURCES = sorted(path for program in ("daemon", "gateway") for path in (ROOT / "crates" / program / "src").rglob("*.rs")
                 if "tests" not in path.relative_to(ROOT).parts)
NAME = re.compile(r"\bhanzo_engine_[a-z0-9_]+")
# Where a metric is made: the maker's call, then the name as its first argument.
MADE = re.compile(r'\b(counter|seconds|gauge|float|single|histogram|opts)\(\s*"([a-z0-9_]+)"')


def exported():
    """{name: whether it is a histogram}, from the source of what exports them."""
    names = {}
    for source in SOURCES:
        text = source.read_text()
        for maker, name in MADE.findall(text):
            made_as_histogram = maker == "histogram" or f'HistogramOpts::from(opts(\n            "{name}"' in text
            names["hanzo_engine_" + name] = made_as_histogram
    expect(len(names) > 20, f"only {len(names)} metrics found in {len(SOURCES)} files")
    return names


def unknown(text, names):
    """Names in `text` that nobody exports. A histogram's own name has no series: only _bucket, _sum and _count."""
    series = {name for name, histogram in names.items() if not histogram}
    series |= {name + end for name, histogram in names.items() if histogram for end in ("_bucket", "_sum", "_count")}
    return sorted(set(NAME.findall(text)) - series)


def alerts():
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def panels():
    """(dashboard, panel) of every dashboard."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            yield path.name, panel


def expressions(window="5m"):
    """(where, PromQL) of every panel, with Grafana's own variable filled in."""
    for name, panel in panels():
        for target in panel.get("targets", []):
            yield f"{name}: {panel['title']}", target["expr"].replace("$__rate_interval", window)


@check
def prometheus_takes_the_rules():
    must("promtool", "check", "config", DEPLOY / "prometheus.yml")
    must("promtool", "check", "rules", "--lint=all", "--lint-fatal", DEPLOY / "alerts.yml")


@check
def every_alert_fires_in_its_test():
    must("promtool", "test", "rules", "alerts.test.yml", cwd=DEPLOY)
    tests = yaml.safe_load((DEPLOY / "alerts.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    names = {rule["alert"] for rule in alerts()}
    expect(fires == names, f"alerts without a test in which they fire: {sorted(names ^ fires)}")
    expect(silent == names, f"alerts without a test in which they are silent: {sorted(names ^ silent)}")
    return f"{len(names)} alerts"


@check
def alerts_name_exported_metrics():
    for rule in alerts():
        faults = unknown(rule["expr"], exported())
        expect(not faults, f"{rule['alert']}: nobody exports {faults}")


@check
def dashboards_are_sound():
    expect(DASHBOARDS, "no dashboard")
    names, seen = exported(), set()
    for where, expression in expressions():
        faults = unknown(expression, names)
        expect(not faults, f"{where}: nobody exports {faults}")
        seen |= set(NAME.findall(expression))
    for path in DASHBOARDS:
        faults = unknown(json.dumps(json.loads(path.read_text())["templating"]), names)
        expect(not faults, f"{path.name}: variables: nobody exports {faults}")
        ids = [panel["id"] for name, panel in panels() if name == path.name]
        expect(len(ids) == len(set(ids)), f"{path.name}: two panels have one id")
    # promtool has no check of a bare expression: each becomes a recording rule.
    rules = [{"record": f"panel:{i}", "expr": e} for i, (_, e) in enumerate(expressions())]
    with scratch() as folder:
        path = pathlib.Path(folder) / "panels.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        must("promtool", "check", "rules", path)
    return f"{len(rules)} expressions over {len(seen)} series"


@check
def grafana_finds_the_dashboards():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    mounts = dict(mount.split(":")[:2] for mount in compose["services"]["grafana"]["volumes"])
    [provider] = yaml.safe_load((DEPLOY / "grafana/dashboards.yml").read_text())["providers"]
    expect(mounts.get("./grafana/dashboards") == provider["options"]["path"], "dashboards are mounted elsewhere")
    sources = yaml.safe_load((DEPLOY / "grafana/datasources.yml").read_text())["datasources"]
    urls = [source["url"] for source in sources]
    expect(urls == ["http://prometheus:9090", "http://jaeger:16686"], f"the data sources are {urls}")
    [link] = sources[0]["jsonData"]["exemplarTraceIdDestinations"]
    expect((link["name"], link["datasourceUid"]) == ("trace_id", sources[1]["uid"]), f"exemplars lead to {link}")


@check
def traces_find_their_way():
    """Both programs of compose send to its collector, which listens there and gives to the service behind it."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    collector = yaml.safe_load((DEPLOY / "collector.yaml").read_text())
    expect(collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(":4317"), "another port")
    sent = [compose["engined"]["environment"]["HANZO_ENGINE_TRACES_ENDPOINT"],
            compose["gateway"]["environment"]["HANZO_ENGINE_GATEWAY_TRACES_ENDPOINT"]]
    expect(sent == ["http://collector:4317"] * 2 and "collector" in compose, f"traces go to {sent}")
    [pipeline] = collector["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        expect(set(pipeline[kind]) == set(collector[kind]), f"{kind}: {pipeline[kind]}")
    [exporter] = collector["exporters"].values()
    expect(exporter["endpoint"].split(":")[0] in compose, f"traces are given to {exporter['endpoint']}")
