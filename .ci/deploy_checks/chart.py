"""helm/: the chart lints, renders what Kubernetes accepts, its parts name each other rightly, and its schema refuses."""
import base64
import json
import pathlib
import re
import shutil

import kubernetes_validate
import yaml

import monitoring
from harness import ROOT, Fault, check, expect, must, run, scratch

CHART = ROOT / "helm/hanzo-engine"
# The oldest that Chart.yaml admits, and the newest that the validator knows.
KUBERNETES = ["1.30", kubernetes_validate.latest_version()]
# Kinds of the Prometheus operator, of KEDA, of the Gateway API and its inference extension, which the validator does not know.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute", "InferencePool"}
CASES_MIN = 10
# Container → (port of its probes, path of liveness and startup, path of readiness).
PROBES = {"engined": ("admin", "/healthz", "/readyz"), "gateway": ("http", "/alive", "/ready")}
# After the drain the gateway writes last bytes for 2 s.
AFTER_DRAIN_S = 5


def cases():
    """Values files to render: the defaults, then each of ci/."""
    return [None, *sorted((CHART / "ci").glob("*.yaml"))]


def render(values=None, *more):
    """The chart's objects as {(kind, name): object}."""
    files = ["-f", values] if values else []
    output = must("helm", "template", "release", CHART, "--namespace", "space", *files, *more)
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(output) if o}


def of_kind(objects, kind):
    return [o for (k, _), o in objects.items() if k == kind]


def key(objects, container):
    """The API key that a container has from its secret; None where it has none. One that is not the chart's is made up."""
    named = {env["name"]: env for env in container.get("env") or []}
    strange = named.keys() - {"HANZO_ENGINE_API_KEY", "HANZO_ENGINE_GATEWAY_CLOUD_API_KEY", "CUDA_CACHE_PATH"}
    expect(not strange, f"{strange} are set")
    env = named.get("HANZO_ENGINE_API_KEY")
    if env is None:
        return None
    reference = env["valueFrom"]["secretKeyRef"]
    secrets = {o["metadata"]["name"]: o["data"] for o in of_kind(objects, "Secret")}
    if reference["name"] not in secrets:
        return "sk-of-another-secret"
    return base64.b64decode(secrets[reference["name"]][reference["key"]]).decode()


def configs(objects):
    """engined's and the gateway's configuration, as text."""
    [data] = [o["data"] for o in of_kind(objects, "ConfigMap") if "engine.yaml" in o["data"]]
    return data["engine.yaml"], data["gateway.yaml"]


def workloads(objects):
    """{container: its workload}: the daemon's StatefulSet and the gateway's Deployment, each with one container."""
    found = {}
    for thing in of_kind(objects, "StatefulSet") + of_kind(objects, "Deployment"):
        [container] = thing["spec"]["template"]["spec"]["containers"]
        found[container["name"]] = thing
    expect(set(found) == set(PROBES), f"the workloads run {sorted(found)}")
    return found


def container_of(workload):
    [container] = workload["spec"]["template"]["spec"]["containers"]
    return container


def test_of(objects):
    """The container of `helm test`."""
    [test] = of_kind(objects, "Pod")
    [container] = test["spec"]["containers"]
    return container


@check
def chart_lints():
    for values in cases():
        must("helm", "lint", "--strict", CHART, *(["-f", values] if values else []))
    expect(len(cases()) >= CASES_MIN, f"{len(cases())} sets of values")
    return f"{len(cases())} sets of values"


@check
def chart_renders_what_kubernetes_accepts():
    seen = set()
    for values in cases():
        for (kind, name), thing in render(values).items():
            seen.add(kind)
            if kind in FOREIGN:
                continue
            for version in KUBERNETES:
                try:
                    kubernetes_validate.validate(thing, version, strict=True)
                except Exception as error:
                    raise Fault(f"{values or 'values.yaml'}: {kind}/{name} on {version}: {error}") from None
    expected = {"Pod", "InferencePool", "StatefulSet", "Deployment", "PrometheusRule", "ScaledObject", "HTTPRoute", "Ingress", "Service", "ConfigMap", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy",
                "HorizontalPodAutoscaler", "ServiceMonitor", "Secret"}
    expect(seen == expected, f"the sets of values render {sorted(seen)}, not {sorted(expected)}")
    return f"{len(seen) - len(FOREIGN)} kinds, Kubernetes {' and '.join(KUBERNETES)}, strict; {', '.join(FOREIGN)} by its references alone"


def matches(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def references(objects):
    """Faults of one rendering."""
    parts = workloads(objects)
    services = {s["metadata"]["name"]: s for s in of_kind(objects, "Service")}
    daemon, gateway = (yaml.safe_load(text) for text in configs(objects))
    labels = {name: part["spec"]["template"]["metadata"]["labels"] for name, part in parts.items()}
    ports = {name: {p["name"]: p["containerPort"] for p in container_of(part)["ports"]} for name, part in parts.items()}
    secure = "tls_cert" in gateway

    pools = of_kind(objects, "InferencePool")
    spoken = {"grpc": daemon["server"]["grpc_port"], "admin": daemon["server"]["admin_port"]}
    expect(ports["engined"] == spoken | ({"http": 36900} if pools else {}), f"{ports}")
    for pool in pools:
        spec = pool["spec"]
        expect(set(spec) == {"selector", "targetPorts", "endpointPickerRef"}, f"{spec}")
        expect([port["number"] for port in spec["targetPorts"]] == [ports["engined"]["http"]], f"{spec}")
        expect(matches(spec["selector"]["matchLabels"], labels["engined"])
               and not matches(spec["selector"]["matchLabels"], labels["gateway"]), "the pool has other pods")
        expect(daemon["server"]["metrics_compat"] == "vllm", "a picker cannot read the pods' metrics")
        command = container_of(parts["engined"])
        expect([*command["command"], command["args"][0]] == ["hanzo-engine", "serve"], "the pods speak no HTTP")
    traced = daemon.get("traces", {})
    expect(traced == {key.removeprefix("traces_"): value for key, value in gateway.items() if key.startswith("traces_")},
           "the two programs trace differently")
    expect(ports["gateway"] == {"http": gateway["port"]}, f"{ports}")
    for name, (port, alive, ready) in PROBES.items():
        part, container = parts[name], container_of(parts[name])
        spec = part["spec"]["template"]["spec"]
        for probe, path in [("startupProbe", alive), ("livenessProbe", alive), ("readinessProbe", ready)]:
            get = container[probe]["httpGet"]
            scheme = "HTTPS" if secure and name == "gateway" else "HTTP"
            expect({"scheme": "HTTP", **get} == {"path": path, "port": port, "scheme": scheme}, f"{name}: {probe} asks {get}")
        for inside in [container, *spec.get("initContainers", [])]:
            security = inside["securityContext"]
            expect(security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
                   and security["capabilities"] == {"drop": ["ALL"]}, f"{name}: securityContext {security}")
            volumes = {v["name"] for v in spec["volumes"]}
            volumes |= {c["metadata"]["name"] for c in part["spec"].get("volumeClaimTemplates", [])}
            mounted = {m["name"] for m in inside["volumeMounts"]}
            expect(mounted <= volumes, f"{name} mounts {mounted - volumes}, which is no volume")
        sleep_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain_s = {"engined": daemon["server"]["drain_s"], "gateway": gateway["drain_s"]}[name]
        grace_s = spec["terminationGracePeriodSeconds"]
        expect(grace_s >= sleep_s + drain_s + AFTER_DRAIN_S, f"{name}: {grace_s} s of grace for {sleep_s} + {drain_s}")
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        config = container["args"][container["args"].index("--config") + 1]
        expect(config.startswith(mounts["config"] + "/"), f"{name}: {config} is not mounted")
        settings = daemon["server"] if name == "engined" else gateway
        for setting in ("tls_cert", "tls_key", "engine_ca", "api_keys_file"):
            path = settings.get(setting)
            expect(path is None or pathlib.PurePath(path).parent in map(pathlib.PurePath, mounts.values()),
                   f"{name}: {setting} {path} is on no mount of {mounts}")
        security = spec["securityContext"]
        expect(security["runAsNonRoot"] and security["runAsUser"] > 0, f"the pod's securityContext: {security}")
        expect(spec["enableServiceLinks"] is False, "service links put foreign HANZO_ENGINE_* variables into the pods")
        expect(spec["automountServiceAccountToken"] is False, "the pods hold a token")
        expect(matches(part["spec"]["selector"]["matchLabels"], labels[name]), f"{name}: selects other pods")
    expect(not matches(parts["engined"]["spec"]["selector"]["matchLabels"], labels["gateway"])
           and not matches(parts["gateway"]["spec"]["selector"]["matchLabels"], labels["engined"]), "one selects the other's pods")

    keys = {key(objects, container_of(part)) for part in parts.values()}
    expect(len(keys) == 1, "the two programs have different keys")
    insecure = {daemon["server"].get("insecure", False), gateway.get("insecure", False)}
    expect(insecure == {keys == {None}}, f"insecure is {insecure} with {len(keys - {None})} keys")
    expect(keys == {None} or len(keys.pop()) > 16, "the key is short")
    pods = parts["engined"]
    models = {m["name"]: m["mountPath"] for m in container_of(pods)["volumeMounts"]}["models"]
    expect(daemon["store"]["dir"].startswith(models + "/"), "store.dir is not on the volume")
    for pull in pods["spec"]["template"]["spec"].get("initContainers", []):
        at = pull["args"].index("--model-dir") + 1
        expect(pull["args"][at] == daemon["store"]["dir"], f"{pull['name']} pulls into {pull['args'][at]}")

    def chosen(selector):
        """The one workload whose pods a selector means."""
        found = [name for name in parts if matches(selector, labels[name])]
        expect(len(found) == 1, f"{selector} selects pods of {found}")
        return found[0]

    [upstream] = gateway["upstreams"]
    asked = re.fullmatch(r"(https?)://([a-z0-9-]+):(\d+)", upstream)
    expect(asked and asked[2] in services, f"the gateway asks {upstream}, which is no service")
    grpc_service = services[asked[2]]["spec"]
    expect(grpc_service["clusterIP"] == "None" and not grpc_service.get("publishNotReadyAddresses"),
           "the gateway must see each daemon that is ready")
    expect((asked[1] == "https") == ("tls_cert" in daemon["server"]) == ("engine_ca" in gateway), "TLS of one side alone")
    [grpc] = services[asked[2]]["spec"]["ports"]
    expect(int(asked[3]) == grpc["port"] and grpc["targetPort"] == "grpc", f"{asked[2]} has {grpc}")
    expect(chosen(services[asked[2]]["spec"]["selector"]) == "engined", "the gateway asks itself")
    expect(pods["spec"]["serviceName"] in services, "serviceName names no service")
    for name, service in services.items():
        of = chosen(service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            expect(port["targetPort"] in ports[of], f"{name}: {of} has no port {port['targetPort']}")
    [test] = of_kind(objects, "Pod")
    asks = test_of(objects)
    expect(test["metadata"]["annotations"]["helm.sh/hook"] == "test", "`helm test` does not know its pod")
    others = pods["spec"]["template"]["spec"]
    for setting in ("enableServiceLinks", "automountServiceAccountToken", "imagePullSecrets", "priorityClassName", "serviceAccountName"):
        expect(test["spec"].get(setting) == others.get(setting), f"the test's {setting} is not that of the other pods")
    without = {key: value for key, value in others["securityContext"].items() if key != "fsGroupChangePolicy"}
    expect(test["spec"]["securityContext"] == without and asks["securityContext"] == container_of(pods)["securityContext"]
           and asks["image"] == container_of(pods)["image"], "the test's pod is another kind of pod")
    expect(not any(matches(labels_of, test["metadata"]["labels"]) for labels_of in
                   [part["spec"]["selector"]["matchLabels"] for part in parts.values()] + [s["spec"]["selector"] for s in services.values()]),
           "the test's pod is taken for one that serves")
    asked = re.fullmatch(r"(https?)://([a-z0-9-]+):(\d+)", asks["args"][1])
    of = services.get(asked[2], {"spec": {"ports": [], "selector": {}}})["spec"]
    expect([asks["command"][0], asks["args"][0]] == ["hanzo-engine", "health"] and asked[1] == ("https" if secure else "http")
           and int(asked[3]) in {port["port"] for port in of["ports"]} and chosen(of["selector"]) == "gateway", f"the test asks {asks['args']}")
    expect(key(objects, asks) == key(objects, container_of(pods)), "the test has another key")
    sees = {f"{mount['mountPath']}/{item['path']}" for mount in asks.get("volumeMounts", []) for volume in test["spec"]["volumes"]
            if volume["name"] == mount["name"] for item in volume["secret"]["items"]}
    expect(sees == set(asks["args"][asks["args"].index("--pinned") + 1:] if secure else []), f"the test trusts {asks['args']} and sees {sees}")
    for budget in of_kind(objects, "PodDisruptionBudget"):
        expect(budget["metadata"]["name"] == parts[chosen(budget["spec"]["selector"]["matchLabels"])]["metadata"]["name"],
               "the disruption budget is of other pods")
    opened = {}
    for policy in of_kind(objects, "NetworkPolicy"):
        of = chosen(policy["spec"]["podSelector"]["matchLabels"])
        opened[of] = {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}
        for rule in policy["spec"]["ingress"]:
            if {p["port"] for p in rule["ports"]} == {"grpc"}:
                [first, *_] = rule["from"]
                expect(chosen(first["podSelector"]["matchLabels"]) == "gateway", "the gateway may not ask the daemon")
            elif of == "gateway" and "from" in rule:
                let_in = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if set(peer) == {"podSelector"}]
                expect(any(matches(wanted, test["metadata"]["labels"]) for wanted in let_in), "the test may not ask the gateway")
    expect(opened in ({}, {name: set(of) for name, of in ports.items()}), f"the network policies open {opened}")
    scaled = [*of_kind(objects, "HorizontalPodAutoscaler"), *of_kind(objects, "ScaledObject")]
    targets = [(s["spec"]["scaleTargetRef"]["kind"], s["spec"]["scaleTargetRef"]["name"]) for s in scaled]
    expect(len(targets) == len(set(targets)), f"two scale one workload: {targets}")
    for part in parts.values():
        is_scaled = (part["kind"], part["metadata"]["name"]) in targets
        expect(is_scaled != ("replicas" in part["spec"]), f"{part['metadata']['name']}: replicas fight the autoscaler")
    expect(set(targets) <= {(p["kind"], p["metadata"]["name"]) for p in parts.values()}, f"scales {targets}")
    for scaler in of_kind(objects, "ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            faults = monitoring.unknown(trigger["metadata"]["query"], monitoring.exported())
            expect(not faults, f"KEDA asks for {faults}, which nobody exports")
    seen = set()
    for monitor in of_kind(objects, "ServiceMonitor"):
        meant = [s for s in services.values() if matches(monitor["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])]
        expect(len(meant) == 1, f"the service monitor selects {len(meant)} services: each pod once")
        [endpoint] = monitor["spec"]["endpoints"]
        expect(endpoint["port"] in {p["name"] for p in meant[0]["spec"]["ports"]}, f"no port {endpoint['port']}")
        expect(endpoint["path"] == "/metrics", "metrics are at /metrics")
        expect(endpoint["scheme"] == ("https" if secure and endpoint["port"] == "http" else "http"), f"{endpoint}")
        seen.add((endpoint["port"], endpoint["relabelings"][0]["replacement"]))
    expect(seen in (set(), {("admin", "engined"), ("http", "engine-gateway")}), f"service monitors: {seen}")
    for rule in of_kind(objects, "PrometheusRule"):
        expect(rule["spec"] == yaml.safe_load((ROOT / "deploy/alerts.yml").read_text()), "other alerts than deploy/alerts.yml")
    for boards in of_kind(objects, "ConfigMap"):
        for name, text in boards["data"].items():
            if name.endswith(".json"):
                expect(json.loads(text) == json.loads((ROOT / "deploy/grafana/dashboards" / name).read_text()), f"{name} differs")
    for way_in in of_kind(objects, "Ingress"):
        [rule] = way_in["spec"]["rules"]
        [path] = rule["http"]["paths"]
        backend = path["backend"]["service"]
        expect(chosen(services[backend["name"]]["spec"]["selector"]) == "gateway", "the ingress leads elsewhere")
        expect(backend["port"]["name"] in {p["name"] for p in services[backend["name"]]["spec"]["ports"]}, f"{backend}")
    for route in of_kind(objects, "HTTPRoute"):
        [backend] = route["spec"]["rules"][0]["backendRefs"]
        if pools:
            expect(backend == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pools[0]["metadata"]["name"]}, f"{backend}")
            continue
        expect(chosen(services[backend["name"]]["spec"]["selector"]) == "gateway", "the route leads elsewhere")
        expect(backend["port"] in {p["port"] for p in services[backend["name"]]["spec"]["ports"]}, f"{backend}")


@check
def chart_parts_name_each_other():
    for values in cases():
        try:
            references(render(values))
        except Fault as fault:
            raise Fault(f"{values or 'values.yaml'}: {fault}") from None


@check
def chart_honours_values():
    full = render(CHART / "ci/full.yaml")
    given = yaml.safe_load((CHART / "ci/full.yaml").read_text())
    daemon, gateway = (yaml.safe_load(text) for text in configs(full))
    expect(daemon["engine"] == given["engine"] and daemon["models"] == given["models"] and daemon["log"] == given["log"],
           f"engine.yaml is {daemon}")
    expect(given["gateway"].items() <= gateway.items(), f"gateway.yaml is {gateway}")
    expect(given["server"].items() <= daemon["server"].items(), f"engine.yaml is {daemon}")
    # Beyond 2^53 a number would not come through, and from 10^6 some ways of printing turn it into a float.
    big = yaml.safe_load(configs(render(None, "--set", "engine.memory_budget_bytes=1099511627776"))[0])
    expect(big["engine"]["memory_budget_bytes"] == 1 << 40, f"{big['engine']}")

    def checksum(*more):
        [pods] = of_kind(render(None, *more), "StatefulSet")
        return pods["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    expect(checksum() == checksum("--set", "gateway.choices_max=3"), "the gateway's settings replace the daemon's pods")
    expect(checksum() != checksum("--set", "engine.threads=3"), "a changed configuration does not replace the pods")
    expect(checksum() == checksum("--set", "replicas=3"), "a changed number of pods replaces them")
    full_pods, small, claim = (
        of_kind(render(CHART / f"ci/{name}.yaml"), "StatefulSet")[0]["spec"] for name in ("full", "small", "claim"))
    expect(full_pods["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "200Gi", "size")
    models = {v["name"]: v for v in small["template"]["spec"]["volumes"]}["models"]
    expect(models == {"name": "models", "emptyDir": {}}, f"without persistence: {models}")
    models = {v["name"]: v for v in claim["template"]["spec"]["volumes"]}["models"]
    expect(models.get("persistentVolumeClaim") == {"claimName": "models"}, f"existing claim: {models}")
    expect(not of_kind(render(CHART / "ci/claim.yaml"), "Secret"), "a secret beside the one that is there")
    expect(key(render(), container_of(of_kind(render(), "StatefulSet")[0])), "no key by default")
    budgets = {o["metadata"]["name"] for o in of_kind(render(), "PodDisruptionBudget")}
    expect(budgets == {"release-hanzo-engine-gateway"}, f"budgets {budgets}: one over one pod blocks the draining of its node")
    gpu = of_kind(render(CHART / "ci/gpu.yaml"), "StatefulSet")[0]["spec"]["template"]["spec"]
    [pull] = gpu["initContainers"]
    expect(pull["args"][:2] == ["pull", "hf:Qwen/Qwen3-4B-GGUF:Q8_0"], f"{pull['args']}")
    token = {env["name"]: env for env in pull["env"]}["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
    expect(token == {"name": "hugging-face", "key": "token"}, f"{token}")
    expect(gpu["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1 and gpu["runtimeClassName"] == "nvidia"
           and gpu["nodeSelector"] and gpu["tolerations"], "GPU")
    kept = {env["name"]: env.get("value") for env in gpu["containers"][0]["env"]}["CUDA_CACHE_PATH"]
    expect(any(kept.startswith(mount["mountPath"] + "/") and not mount.get("readOnly") for mount in gpu["containers"][0]["volumeMounts"]),
           f"what the driver compiles is kept in {kept}, which is not writable")
    settings = yaml.safe_load(configs(render(CHART / "ci/gpu.yaml", "--set", "engine.gpu_layers=20"))[0])
    layers = (settings["engine"]["gpu_layers"], settings["models"][0]["gpu_layers"], settings["engine"]["devices"])
    expect(layers == (20, "auto", "cuda:0,cpu"), f"layers on a card: {layers}")


# Keys of the programs that the chart's values have no place for, or another one.
ELSEWHERE = {
    "server": {"host", "api_key", "api_keys_file", "tls_cert", "tls_key", "tls_client_ca", "insecure", "metrics_compat", "grpc_port",
               "admin_port", "drain_s", "private_metrics"},  # the service monitor and the alerts' scrape have no key
    "gateway": {"host", "port", "api_key", "api_keys_file", "tls_cert", "tls_key", "tls_client_ca", "insecure", "engine", "upstreams",
                "engine_ca", "engine_cert", "engine_cert_key", "engine_api_key", "cloud_api_key", "enable_mcp", "mcp_config", "drain_s",
                "log_level", "log_format", "traces_endpoint", "traces_protocol", "traces_ratio",
                # Pods have no volume of their own for what is kept, and /mcp of their one port has MCP.
                "responses_dir", "mcp_enabled", "mcp_port"},
}


def keys_of_programs():
    """{section: its keys}, as docs/reference/configuration.md has them, which is written from the programs' types."""
    found, section, program = {}, None, None
    for line in (ROOT / "docs/reference/configuration.md").read_text().splitlines():
        if line.startswith("## "):
            program = line[3:]
            section = "gateway" if program == "engine-gateway" else None
        elif heading := re.fullmatch(r"### `\[+([\w.]+)\]+`", line):
            section = heading[1]
        elif section and (row := re.match(r"\| `(\w+)` \| ", line)):
            found.setdefault(section, set()).add(row[1])
    return found


@check
def chart_takes_what_the_programs_take():
    programs = keys_of_programs()
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    model = schema["models"]["items"]["properties"]
    given = {name: schema[name]["properties"] for name in ("server", "engine", "log", "traces", "gateway")}
    given |= {"models": model.keys() - {"overrides"}, "models.overrides": model["overrides"]["properties"]}
    expect(programs.keys() == given.keys() | {"store"}, f"sections of the programs are {sorted(programs)}")
    for section, keys in given.items():
        wanted = programs[section] - ELSEWHERE.get(section, set())
        expect(set(keys) == wanted, f"{section}: the schema lacks {sorted(wanted - set(keys))} and has {sorted(set(keys) - wanted)} beside them")
        strange = ELSEWHERE.get(section, set()) - programs[section]
        expect(not strange, f"{section}: {sorted(strange)} are no keys of a program")
    full = yaml.safe_load((CHART / "ci/full.yaml").read_text())
    # A budget and fixed memory are one or the other, and the rest is of files that a cluster may have, or asks for keys where none is known.
    apart = {"fixed_memory_bytes", "prefix_cache_dir", "voice_activity", "private_metrics"}
    told = {**{name: full[name] for name in ("server", "engine", "gateway")}, "models.overrides": full["models"][1]["overrides"],
            "models": set().union(*full["models"]) - {"overrides"}}
    for section, keys in told.items():
        missing = set(given[section]) - set(keys) - apart
        expect(not missing, f"ci/full.yaml, which has every setting, lacks {sorted(missing)} of {section}")
    return f"{sum(map(len, given.values()))} settings"


# What must be refused, and a word of the refusal.
REFUSED = [
    ("replicas=-1", "replicas"),
    ("replicas=two", "replicas"),
    ("replica=2", "replica"),
    ("drainSeconds=1.5", "drainSeconds"),
    ("preStopSeconds=0", "preStopSeconds"),
    ("test.waitSeconds=-1", "waitSeconds"),
    ("test.enabled=true", "enabled"),
    ("listenHost=example.com", "listenHost"),
    ("models=null", "models"),
    ("models[0].source=", "models"),
    ("models[0].path=x", "models"),
    ("engine.threads=0", "threads"),
    ("engine.thread=4", "thread"),
    ("engine.memory_budget_bytes=8Gi", "memory_budget_bytes"),
    ("engine.kv_type=q4_0", "kv_type"),
    ("engine.prefix_cache=1", "prefix_cache"),
    ("engine.devices=tpu", "devices"),
    ("models[0].gpu_devices=tpu", "models"),
    ("models[0].overrides.rope=2", "models"),
    ("server.grpc_port=80", "grpc_port"),
    ("engine.gpu_layers=some", "gpu_layers"),
    ("models[0].gpu_layers=-1", "models"),
    ("log.format=xml", "format"),
    ("gateway.port=80", "port"),
    ("gateway.api_key=in-the-open", "api_key"),
    ("keys.insecure=maybe", "insecure"),
    ("keys.insecure=true,keys.fileSecret=engine-keys", "keys.fileSecret"),
    ("keys.apiKey=in-the-open", "apiKey"),
    ("gateway.engine=http://elsewhere:1", "engine"),
    ("gateway.request_timeout_s=0", "request_timeout_s"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("image.digest=sha256:12", "digest"),
    ("service.httpPort=70000", "httpPort"),
    ("service.type=ExternalName", "type"),
    ("service.grpc=true", "grpc"),
    ("gatewayPods.replicas=-1", "replicas"),
    ("gatewayPods.autoscaling.enabled=true,gatewayPods.autoscaling.minReplicas=9", "minReplicas"),
    ("ingress.enabled=true", "ingress.host"),
    ("httpRoute.enabled=true", "parentRefs"),
    ("autoscaling.enabled=true,autoscaling.keda.enabled=true", "prometheusAddress"),
    ("tls.secret=x", "tls"),
    ("traces.endpoint=collector:4317", "endpoint"),
    ("traces.ratio=2", "ratio"),
    ("traces.headers=x", "headers"),
    ("inferencePool.enabled=true", "inferencePool.picker.name"),
    ("inferencePool.picker.failureMode=Never", "failureMode"),
    ("pull=x", "pull"),
    ("persistence.size=lots", "size"),
    ("persistence.accessModes={ReadOnlyMany}", "accessModes"),
    ("resources.engine.limits.cpu=1", "engine"),
    ("podDisruptionBudget.maxUnavailable=0", "maxUnavailable"),
    ("autoscaling.enabled=yes please", "enabled"),
    ("serviceMonitor.interval=often", "interval"),
    ("nodeSelector.disk.kind=ssd", "nodeSelector"),
    # Refused by the templates, as the schema sees one value at a time.
    ("persistence.existingClaim=models,replicas=2", "existingClaim"),
    ("persistence.existingClaim=models,autoscaling.enabled=true", "existingClaim"),
    ("autoscaling.enabled=true,autoscaling.minReplicas=5", "minReplicas"),
    ("autoscaling.enabled=true,autoscaling.targetCPUUtilizationPercentage=0", "nothing to scale by"),
]


@check
def chart_refuses_bad_values():
    for setting, word in REFUSED:
        status, output = run("helm", "template", "release", CHART, "--set", setting)
        expect(status != 0, f"--set {setting} is accepted")
        expect(word in output, f"--set {setting} is refused without the word {word}:\n{output}")
    return f"{len(REFUSED)} refused by name"


@check
def chart_notes_say_where():
    """helm prints the notes only with a cluster: a copy of the chart renders them as an object."""
    with scratch() as folder:
        copy = shutil.copytree(CHART, pathlib.Path(folder) / "chart")
        (copy / "templates/NOTES.txt").rename(copy / "notes.txt")
        (copy / "templates/notes.yaml").write_text("text: |\n  {{- tpl (.Files.Get \"notes.txt\") . | nindent 2 }}\n")
        output = must("helm", "template", "release", copy, "--namespace", "space", "-f", CHART / "ci/full.yaml",
                      "--show-only", "templates/notes.yaml")
    notes = yaml.safe_load(output)["text"]
    for word in ("http://inference.space:80/v1", "inference-engined.space:36901", "statefulset/inference", "Models       small"):
        expect(word in notes, f"no {word} in the notes:\n{notes}")
