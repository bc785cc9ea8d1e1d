"""helm/: the chart lints, renders what Kubernetes accepts, its parts name each other rightly, and its schema refuses."""
import base64
import pathlib
import shutil

import kubernetes_validate
import yaml

from harness import ROOT, Fault, check, expect, must, run, scratch

CHART = ROOT / "helm/hanzo-engine"
# The oldest that Chart.yaml admits, and the newest that the validator knows.
KUBERNETES = ["1.30", kubernetes_validate.latest_version()]
# Kinds of the Prometheus operator, which the validator does not know.
FOREIGN = {"ServiceMonitor"}
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
    [env] = container.get("env") or [None]
    if env is None:
        return None
    expect(env["name"] == "HANZO_ENGINE_API_KEY", f"{env['name']} is set")
    reference = env["valueFrom"]["secretKeyRef"]
    secrets = {o["metadata"]["name"]: o["data"] for o in of_kind(objects, "Secret")}
    if reference["name"] not in secrets:
        return "sk-of-another-secret"
    return base64.b64decode(secrets[reference["name"]][reference["key"]]).decode()


def configs(objects):
    """engined's and the gateway's configuration, as text."""
    [data] = [o["data"] for o in of_kind(objects, "ConfigMap")]
    return data["engine.yaml"], data["gateway.yaml"]


@check
def chart_lints():
    for values in cases():
        must("helm", "lint", "--strict", CHART, *(["-f", values] if values else []))
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
    expected = {"StatefulSet", "Service", "ConfigMap", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy",
                "HorizontalPodAutoscaler", "ServiceMonitor", "Secret"}
    expect(seen == expected, f"the sets of values render {sorted(seen)}, not {sorted(expected)}")
    return f"{len(seen) - len(FOREIGN)} kinds, Kubernetes {' and '.join(KUBERNETES)}, strict; {', '.join(FOREIGN)} by its references alone"


def matches(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def references(objects):
    """Faults of one rendering."""
    [pods] = of_kind(objects, "StatefulSet")
    template = pods["spec"]["template"]
    labels, spec = template["metadata"]["labels"], template["spec"]
    services = of_kind(objects, "Service")
    containers = {c["name"]: c for c in spec["containers"]}
    ports = {p["name"]: p["containerPort"] for c in containers.values() for p in c["ports"]}
    daemon, gateway = (yaml.safe_load(text) for text in configs(objects))

    listens = {"grpc": daemon["server"]["grpc_port"], "admin": daemon["server"]["admin_port"], "http": gateway["port"]}
    expect(ports == listens, f"container ports {ports}, configurations {listens}")
    expect(gateway["engine"].endswith(f":{ports['grpc']}"), "the gateway's engine has another port")
    expect(set(containers) == set(PROBES), f"containers {set(containers)}")
    for name, (port, alive, ready) in PROBES.items():
        container = containers[name]
        for probe, path in [("startupProbe", alive), ("livenessProbe", alive), ("readinessProbe", ready)]:
            get = container[probe]["httpGet"]
            expect(get == {"path": path, "port": port}, f"{name}: {probe} asks {get}")
            expect(port in {p["name"] for p in container["ports"]}, f"{name} has no port {port}")
        security = container["securityContext"]
        expect(security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
               and security["capabilities"] == {"drop": ["ALL"]}, f"{name}: securityContext {security}")
        sleep_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain_s = max(daemon["server"]["drain_s"], gateway["drain_s"])
        grace_s = spec["terminationGracePeriodSeconds"]
        expect(grace_s >= sleep_s + drain_s + AFTER_DRAIN_S, f"{grace_s} s of grace for {sleep_s} + {drain_s}")
        volumes = {v["name"] for v in spec["volumes"]}
        volumes |= {c["metadata"]["name"] for c in pods["spec"].get("volumeClaimTemplates", [])}
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        expect(mounts.keys() <= volumes, f"{name} mounts {set(mounts) - volumes}, which is no volume")
        config = container["args"][container["args"].index("--config") + 1]
        expect(config.startswith(mounts["config"] + "/"), f"{name}: {config} is not mounted")
        expect(config.split("/")[-1] in of_kind(objects, "ConfigMap")[0]["data"], f"{name}: no {config} in the ConfigMap")
    keys = {key(objects, container) for container in containers.values()}
    expect(len(keys) == 1, "the two containers have different keys")
    insecure = {daemon["server"].get("insecure", False), gateway.get("insecure", False)}
    expect(insecure == {keys == {None}}, f"insecure is {insecure} with {len(keys - {None})} keys")
    expect(keys == {None} or len(keys.pop()) > 16, "the key is short")
    expect(daemon["store"]["dir"].startswith(
        {m["name"]: m["mountPath"] for m in containers["engined"]["volumeMounts"]}["models"] + "/"), "store.dir is not on the volume")
    security = spec["securityContext"]
    expect(security["runAsNonRoot"] and security["runAsUser"] > 0, f"the pod's securityContext: {security}")
    expect(spec["enableServiceLinks"] is False, "service links put foreign HANZO_ENGINE_* variables into the pods")
    expect(spec["automountServiceAccountToken"] is False, "the pods hold a token")

    names = {s["metadata"]["name"] for s in services}
    expect(pods["spec"]["serviceName"] in names, "serviceName names no service")
    expect(matches(pods["spec"]["selector"]["matchLabels"], labels), "the StatefulSet selects other pods")
    for service in services:
        expect(matches(service["spec"]["selector"], labels), f"{service['metadata']['name']} selects other pods")
        for port in service["spec"]["ports"]:
            expect(port["targetPort"] in ports, f"no container port {port['targetPort']}")
    for budget in of_kind(objects, "PodDisruptionBudget"):
        expect(matches(budget["spec"]["selector"]["matchLabels"], labels), "the disruption budget selects other pods")
    for policy in of_kind(objects, "NetworkPolicy"):
        expect(matches(policy["spec"]["podSelector"]["matchLabels"], labels), "the network policy selects other pods")
        opened = {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}
        offered = {p["targetPort"] for s in services for p in s["spec"]["ports"]}
        expect(opened == offered, f"the network policy opens {opened}, the services offer {offered}")
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        expect((target["kind"], target["name"]) == ("StatefulSet", pods["metadata"]["name"]), f"scales {target}")
        expect("replicas" not in pods["spec"], "replicas fight the autoscaler")
    for monitor in of_kind(objects, "ServiceMonitor"):
        chosen = [s for s in services if matches(monitor["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])]
        expect(len(chosen) == 1, f"the service monitor selects {len(chosen)} services: each pod once")
        offered = {p["name"] for p in chosen[0]["spec"]["ports"]}
        asked = {e["port"] for e in monitor["spec"]["endpoints"]}
        expect(asked == {"admin", "http"} <= offered, f"the service monitor asks {asked} of {offered}")
        expect({e["path"] for e in monitor["spec"]["endpoints"]} == {"/metrics"}, "metrics are at /metrics")


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
    # Beyond 2^53 a number would not come through, and from 10^6 some ways of printing turn it into a float.
    big = yaml.safe_load(configs(render(None, "--set", "engine.memory_budget_bytes=1099511627776"))[0])
    expect(big["engine"]["memory_budget_bytes"] == 1 << 40, f"{big['engine']}")

    def checksum(*more):
        [pods] = of_kind(render(None, *more), "StatefulSet")
        return pods["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

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
    expect(key(render(), of_kind(render(), "StatefulSet")[0]["spec"]["template"]["spec"]["containers"][0]), "no key by default")
    expect(not of_kind(render(), "PodDisruptionBudget"), "a budget over one pod blocks the draining of its node")


# What must be refused, and a word of the refusal.
REFUSED = [
    ("replicas=-1", "replicas"),
    ("replicas=two", "replicas"),
    ("replica=2", "replica"),
    ("drainSeconds=1.5", "drainSeconds"),
    ("preStopSeconds=0", "preStopSeconds"),
    ("listenHost=example.com", "listenHost"),
    ("models=null", "models"),
    ("models[0].source=", "models"),
    ("models[0].path=x", "models"),
    ("engine.threads=0", "threads"),
    ("engine.thread=4", "thread"),
    ("engine.memory_budget_bytes=8Gi", "memory_budget_bytes"),
    ("engine.kv_type=q4_0", "kv_type"),
    ("engine.prefix_cache=1", "prefix_cache"),
    ("log.format=xml", "format"),
    ("gateway.port=80", "port"),
    ("gateway.api_key=in-the-open", "api_key"),
    ("keys.insecure=maybe", "insecure"),
    ("keys.apiKey=in-the-open", "apiKey"),
    ("gateway.engine=http://elsewhere:1", "engine"),
    ("gateway.request_timeout_s=0", "request_timeout_s"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("image.digest=sha256:12", "digest"),
    ("service.httpPort=70000", "httpPort"),
    ("service.type=ExternalName", "type"),
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
    for word in ("http://inference.space:80/v1", "inference.space:36901", "statefulset/inference", "Models       small"):
        expect(word in notes, f"no {word} in the notes:\n{notes}")
