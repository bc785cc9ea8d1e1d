"""The real programs, started the way the units, the chart, compose and the image start them, on free loopback ports:
each flag, variable, setting, port and path that those files name is one that the programs know."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import chart
import container
import documents
import monitoring
import packages
import sizes
import units
from harness import ROOT, check, expect, must, not_run, run, scratch

# Where the three programs are; set before the checks run.
FOLDER = pathlib.Path()
READY_S_MAX = 60
# Nothing runs when it is told to end, so nothing has to drain.
STOP_S_MAX = 15
# Whoever answers at 127.0.0.1 is meant; what a gateway trusts is its own to check.
TRUSTING = ssl._create_unverified_context()
CHAT = {"model": "hanzo-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def free_ports(count):
    """Ports that were free just now, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


def ask(url, body=None, key=None):
    """(status, text); status 0 where nobody answers."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=TRUSTING) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Program:
    """A running program with its output in a file."""

    def __init__(self, command, environment, folder):
        self.command = [str(FOLDER / pathlib.Path(command[0]).name), *command[1:]]
        self.log = pathlib.Path(folder) / f"{pathlib.Path(command[0]).name}.log"
        expect(os.access(self.command[0], os.X_OK), f"{self.command[0]} is not there: build the workspace first")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HANZO_")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                                            env={**clean, "HOME": str(folder), **environment})

    def fault(self, what):
        return f"{' '.join(self.command)} {what}:\n{self.log.read_text()[-4000:]}"

    def until(self, url):
        """Waits until `url` answers 200."""
        deadline = time.monotonic() + READY_S_MAX
        while True:
            status, text = ask(url)
            if status == 200:
                return
            expect(self.process.poll() is None, self.fault(f"ended with {self.process.returncode}"))
            expect(time.monotonic() < deadline, self.fault(f"still says {status} {text} at {url}"))
            time.sleep(0.1)

    def end(self):
        """SIGTERM must end it with 0."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            expect(False, self.fault(f"runs on {STOP_S_MAX} s after SIGTERM"))
        expect(status == 0, self.fault(f"exits with {status} after SIGTERM"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Pair:
    """engined and engine-gateway as two commands, moved to free ports by their environment variables."""

    def __init__(self, folder, daemon, gateway, environment=None, key=None, tls=False, upstreams=None):
        self.key, self.scheme = key, "https" if tls else "http"
        self.http, self.grpc, self.admin, self.pool = free_ports(4)
        daemon_environment = {
            # What has no value here is passed on from whoever starts it.
            **{name: value for name, value in (environment or {}).items() if value is not None},
            **({"HANZO_ENGINE_API_KEY": key} if key else {}),
            "HANZO_ENGINE_SERVER_HOST": "127.0.0.1",
            "HANZO_ENGINE_SERVER_GRPC_PORT": str(self.grpc),
            "HANZO_ENGINE_SERVER_ADMIN_PORT": str(self.admin),
            "HANZO_ENGINE_STORE_DIR": str(pathlib.Path(folder) / "models"),
        }
        gateway_environment = {
            "HANZO_ENGINE_GATEWAY_HOST": "127.0.0.1",
            "HANZO_ENGINE_GATEWAY_PORT": str(self.http),
            "HANZO_ENGINE_GATEWAY_ENGINE": f"{self.scheme}://127.0.0.1:{self.grpc}",
            "HANZO_ENGINE_GATEWAY_UPSTREAMS": (upstreams or f"{self.scheme}://127.0.0.1:{{grpc}}").format(grpc=self.grpc),
            "HANZO_ENGINE_LOG_LEVEL": "info",
        }
        # One environment for both, as one engine.env is read by both units.
        shared = {**daemon_environment, **gateway_environment}
        self.stack = contextlib.ExitStack()
        # A daemon that speaks HTTP itself has a port of its own for that.
        itself = {"HANZO_ENGINE_GATEWAY_PORT": str(self.pool)} if "serve" in daemon else {}
        self.daemon = self.stack.enter_context(Program(daemon, shared | itself, folder))
        self.gateway = self.stack.enter_context(Program(gateway, shared, folder))

    def url(self, path, port="http"):
        # The admin port stays in the clear, for probes.
        scheme = self.scheme if port == "http" else "http"
        return f"{scheme}://127.0.0.1:{getattr(self, port)}{path}"

    def serves(self, model="hanzo-demo"):
        """All probes of the chart answer 200, and so does a chat."""
        for name, program in [("engined", self.daemon), ("gateway", self.gateway)]:
            port, alive, ready = chart.PROBES[name]
            program.until(self.url(alive, port))
            program.until(self.url(ready, port))
        if self.key:
            status, text = ask(self.url("/v1/chat/completions"), {**CHAT, "model": model})
            expect(status == 401, self.gateway.fault(f"answers a chat without a key with {status} {text}"))
        status, text = ask(self.url("/v1/chat/completions"), {**CHAT, "model": model}, self.key)
        expect(status == 200, self.gateway.fault(f"answers a chat with {status} {text}"))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        with self.stack:
            if kind is None:
                self.gateway.end()
                self.daemon.end()


def samples(text):
    """{series name: label names} of an exposition."""
    found = {}
    for name, labels in re.findall(r"^([a-z0-9_]+)(\{[^}]*\})? ", text, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def metrics_are_as_scanned(pair):
    """The exposition is sound, has the scanned metrics with their types, and the labels that rules and panels use."""
    scanned, live, types = monitoring.exported(), {}, {}
    for port in ("http", "admin"):
        status, text = ask(pair.url("/metrics", port))
        expect(status == 200, f"/metrics on {port}: {status}")
        code, output = run("promtool", "check", "metrics", text=text)
        expect(code == 0, f"/metrics on {port}: promtool says\n{output}")
        live.update(samples(text))
        types.update(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))
    strange = {name: kind for name, kind in types.items()
               if not name.startswith("process_") and scanned.get(name) != (kind == "histogram")}
    expect(not strange, f"the scan of the source missed or mistook {strange}")
    used = {f"alert {rule['alert']}": rule["expr"] for rule in monitoring.alerts()}
    used |= dict(monitoring.expressions())
    absent = set()
    for where, expression in used.items():
        for name, selector in re.findall(r"\b(hanzo_engine_[a-z0-9_]+)(\{[^}]*\})?", expression):
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) - {"instance", "job"}
            if name in live:
                expect(asked <= live[name], f"{where}: {name} has labels {sorted(live[name])}, not {sorted(asked)}")
            else:
                absent.add(name)
    return f"{len(types)} of {len(scanned)} metrics have samples; named but without a sample yet: {', '.join(sorted(absent)) or 'none'}"


@check
def units_start_the_programs():
    """By their ExecStart and the example settings, with one environment for both."""
    commands = []
    for name in units.UNITS:
        line = units.unit(name)["Service"]["ExecStart"][0].replace("/etc/hanzo-engine/", f"{ROOT}/systemd/")
        commands.append(shlex.split(line))
    with scratch() as folder, Pair(folder, *commands) as pair:
        pair.serves()
        return metrics_are_as_scanned(pair)


def certificates(folder):
    """An authority, and a certificate of it for 127.0.0.1, as a secret of kubernetes.io/tls has them."""
    folder.mkdir()
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    must("openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt", cwd=folder)
    must("openssl", "req", *curve, "-subj", "/CN=engine", "-keyout", "tls.key", "-out", "tls.csr", cwd=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    must("openssl", "x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
         "-extfile", "names", "-out", "tls.crt", cwd=folder)


@check
def chart_starts_the_programs():
    """By the containers' commands and the rendered settings of every set of values."""
    for values in chart.cases():
        objects = chart.render(values)
        containers = {name: chart.container_of(part) for name, part in chart.workloads(objects).items()}
        with scratch() as folder:
            texts = chart.configs(objects)
            tls = any("tls_cert" in text for text in texts)
            if tls:
                certificates(pathlib.Path(folder) / "tls")
            clients = {"api_keys_file" in text for text in texts}
            expect(len(clients) == 1, "one program alone knows the clients' keys")
            if clients == {True}:
                os.mkdir(f"{folder}/keys")
                made = json.loads(must(FOLDER / "hanzo-engine", "keys", "create", "client", "--json", "--file", f"{folder}/keys/keys.json"))
            if "mcp_config" in texts[1]:
                os.mkdir(f"{folder}/mcp")
                pathlib.Path(folder, "mcp/mcp.json").write_text('{"mcpServers": {"away": {"url": "http://127.0.0.1:9/mcp"}}}')
            for name, text in zip(("engine.yaml", "gateway.yaml"), texts):
                text = re.sub("/etc/hanzo-engine(-engine)?-tls/", f"{folder}/tls/", text)
                text = text.replace("/etc/hanzo-engine-keys/", f"{folder}/keys/").replace("/etc/hanzo-engine-mcp/", f"{folder}/mcp/")
                (pathlib.Path(folder) / name).write_text(text)
            command = lambda c: [w.replace("/etc/hanzo-engine/", f"{folder}/") for w in [*c["command"], *c["args"]]]
            key = chart.key(objects, containers["gateway"])
            with Pair(folder, command(containers["engined"]), command(containers["gateway"]), key=key, tls=tls) as pair:
                [model, *_] = yaml.safe_load(chart.configs(objects)[0])["models"]
                pair.serves(model.get("alias") or model["source"])
                # `helm test` asks the service, and fails where the key is another.
                asks = chart.test_of(objects)
                words = [word.replace("/etc/hanzo-engine-tls/", f"{folder}/tls/") for word in [*asks["command"], *asks["args"]]]
                words[2] = pair.url("").replace("127.0.0.1", "localhost")
                for shown, passes in [(key, True), *([("sk-of-somebody-else", False)] if key else [])]:
                    words[4] = words[4] if passes else "0"
                    with Program(words, {"HANZO_ENGINE_API_KEY": shown} if shown else {}, folder) as test:
                        ended = test.process.wait(READY_S_MAX)
                        told = (model.get("alias") or model["source"]) in test.log.read_text()
                        expect((ended == 0) == passes == told, test.fault(f"ends with {ended}"))
                if clients == {True}:
                    status, text = ask(pair.url("/v1/chat/completions"), CHAT, made["key"])
                    expect(status == 200, f"a client's key of the file gets {status} {text}")
                if chart.of_kind(objects, "InferencePool"):
                    status, text = ask(pair.url("/metrics", "pool"))
                    told = {"num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "cache_config_info"}
                    missing = {name for name in told if f"vllm:{name}{{" not in text}
                    expect(status == 200 and not missing, f"a pool's pod answers /metrics with {status}, without {missing}")
                    status, _ = ask(pair.url("/v1/chat/completions", "pool"), CHAT, key)
                    expect(status == 200, f"a pool's pod answers a chat with {status}")
    return f"{len(chart.cases())} sets of values"


@check
def compose_starts_the_programs():
    services = yaml.safe_load(container.COMPOSE.read_text())["services"]
    daemon, gateway = services["engined"], services["gateway"]
    mounts = dict(reversed(mount.split(":")[:2]) for mount in daemon["volumes"])
    command = [str(container.COMPOSE.parent / mounts[word]) if word in mounts else word for word in daemon["command"]]
    with scratch() as folder:
        # The name of a container means nothing here: its flag is left to the variable that stands for it.
        words = gateway["command"]
        at = words.index("--engine")
        expect(words[at + 1] == "http://engined:36901", f"the gateway asks {words[at + 1]}")
        for key in (None, "sk-of-whoever-starts-it"):
            with Pair(folder, command, words[:at] + words[at + 2:], daemon["environment"], key) as pair:
                pair.serves()


@check
def image_starts_and_is_healthy():
    """By its CMD, and its HEALTHCHECK tells a daemon that answers from one that does not."""
    [command] = container.final("CMD")
    healthcheck = json.loads(container.final("HEALTHCHECK")[0].split("CMD")[1])
    http, grpc, admin = free_ports(3)
    key = {"HANZO_ENGINE_API_KEY": "sk-of-whoever-starts-it"}
    address = {"HANZO_ENGINE_ADDRESS": f"http://127.0.0.1:{grpc}", **key}
    with scratch() as folder:
        words = [word.replace("/var/lib/hanzo-engine", folder) for word in json.loads(command)]
        ports = ["--port", http, "--grpc-port", grpc, "--admin-port", admin]

        def healthy():
            with Program(healthcheck, address, folder) as asked:
                return asked.process.wait(30) == 0

        with Program([*words, *map(str, ports)], {}, folder) as keyless:
            expect(keyless.process.wait(30) != 0, "the image listens on every address without a key")
        with Program([*words, *map(str, ports)], key, folder) as serve:
            serve.until(f"http://127.0.0.1:{http}/ready")
            status, text = ask(f"http://127.0.0.1:{http}/v1/chat/completions", CHAT, *key.values())
            expect(status == 200, serve.fault(f"answers a chat with {status} {text}"))
            expect(healthy(), "the health check fails on a daemon that answers")
            serve.end()
        expect(not healthy(), "the health check passes where no daemon answers")


# Of a trace that is kept: what is asked with it is an exemplar.
TRACED = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
LOAD_S = 8
# What the dashboards' windows are here.
WINDOW = "1m"


def load(pair, seconds):
    """Clients that chat, stream, embed, leave, ask for a model that is not loaded and for more than there is room for."""
    over = time.monotonic() + seconds

    def client(number):
        at = 0
        while time.monotonic() < over:
            at += 1
            model = "other" if number == 0 and at == 1 else "hanzo-demo"
            chat = {**CHAT, "model": model, "max_tokens": 24, "stream": number % 2 == 1}
            path, body = ("/v1/embeddings", {"model": model, "input": ["a", "b"]}) if number == 2 else ("/v1/chat/completions", chat)
            connection = http.client.HTTPConnection("127.0.0.1", pair.http, timeout=30)
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **TRACED})
            answer = connection.getresponse()
            # One leaves before its answer ends.
            if not (number == 3 and at % 2):
                answer.read()
            connection.close()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in clients:
        thread.start()
    time.sleep(seconds / 2)
    models = json.loads(must(FOLDER / "hanzo-engine", "ps", "--json", "--engine", f"http://127.0.0.1:{pair.grpc}"))
    os.kill(next(model["worker_pid"] for model in models if model["name"] == "hanzo-demo"), signal.SIGKILL)
    for thread in clients:
        thread.join()


@check
def node_examples_print_what_is_inferred():
    """docs/guides/hanzo-node.md in both languages, as it stands there but for the port, prints a text and what it took."""
    with scratch() as folder:
        [grpc, admin] = free_ports(2)
        environment = {"HANZO_ENGINE_SERVER_GRPC_PORT": str(grpc), "HANZO_ENGINE_SERVER_ADMIN_PORT": str(admin),
                       "HANZO_ENGINE_STORE_DIR": f"{folder}/models"}
        python = documents.example("python").replace("127.0.0.1:36901", f"127.0.0.1:{grpc}")
        (pathlib.Path(folder) / "infer.py").write_text(python)
        must(sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", "--python_out=.", "--grpc_python_out=.",
             "hanzo/engine/v1/engine.proto", cwd=folder)
        with Program(["engined", "--config", str(ROOT / "systemd/engine.toml")], environment, folder) as daemon:
            daemon.until(f"http://127.0.0.1:{admin}/readyz")
            said = must(sys.executable, "infer.py", cwd=folder)
            expect("completion_tokens: 32" in said and len(said.split("\n")[0]) > 20, said)
            if (FOLDER / "examples/infer").exists():
                rust = must(FOLDER / "examples/infer", f"http://127.0.0.1:{grpc}")
                expect("completion_tokens: 32" in rust and len(rust.split("\n")[0]) > 20, rust)
            else:
                not_run("the example in Rust of docs/guides/hanzo-node.md", "it is made with the tests: cargo test -p hanzo-engine-proto")
            daemon.end()


@check
def prometheus_draws_every_panel():
    """A Prometheus scrapes both programs while they work, and has data for every expression of every dashboard; exemplars too. The
    card is the one of the daemon's own tests."""
    if not shutil.which("prometheus"):
        not_run("a scrape by Prometheus", "not installed")
        return
    with scratch() as folder:
        folder = pathlib.Path(folder)
        (folder / "lib").mkdir()
        must("cc", "-shared", "-fPIC", "-o", folder / "lib/libnvidia-ml.so.1", ROOT / "crates/daemon/testdata/nvml.c")
        environment = {
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "HANZO_ENGINE_ENGINE_ISOLATION": "process",
            "HANZO_ENGINE_ENGINE_SEQUENCES_MAX": "2",
            "HANZO_ENGINE_ENGINE_QUEUE_REQUESTS_MAX": "2",
            "HANZO_ENGINE_ENGINE_KEEP_ALIVE": "2s",
            "HANZO_ENGINE_ENGINE_PREFIX_CACHE_DIR": str(folder / "kv"),
        }
        # One model more, that the first request for it loads.
        for name, more in (("engine.toml", '[[models]]\nsource = "hanzo-demo"\nalias = "other"\nat_start = false\n'), ("gateway.toml", "")):
            (folder / name).write_text((ROOT / "systemd" / name).read_text() + "\n" + more)
        commands = [shlex.split(units.unit(name)["Service"]["ExecStart"][0].replace("/etc/hanzo-engine/", f"{folder}/"))
                    for name in units.UNITS]
        [port] = free_ports(1)
        # A name, so that the gateway looks for several engines.
        with Pair(folder, *commands, environment, upstreams="dns://localhost:{grpc}") as pair:
            config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
            config["global"] = {"scrape_interval": "1s"}
            del config["rule_files"]
            targets = {"engined": f"127.0.0.1:{pair.admin}", "engine-gateway": f"127.0.0.1:{pair.http}"}
            for scrape in config["scrape_configs"]:
                scrape["static_configs"] = [{"targets": [targets[scrape["job_name"]]]}]
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                       f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=warn"]
            with (folder / "prometheus.log").open("w") as log:
                prometheus = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                pair.serves()
                load(pair, LOAD_S)
                api = lambda path, **asked: json.loads(
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(asked)}").read())["data"]
                # The one that was loaded for a request leaves, and that is scraped.
                for _ in range(100):
                    left = api("query", query='hanzo_engine_model_evictions_total')["result"]
                    if left:
                        break
                    time.sleep(0.2)
                down = [target["lastError"] for target in api("targets")["activeTargets"] if target["health"] != "up"]
                expect(not down, f"Prometheus cannot read what it scrapes: {down}")
                empty = []
                drawn = list(monitoring.expressions(WINDOW))
                for where, expression in drawn:
                    expression = re.sub(r"\$(instance|model|gpu)\b", ".*", expression)
                    if not api("query", query=expression)["result"]:
                        empty.append(f"{where}: {expression}")
                expect(not empty, "no data for\n" + "\n".join(empty))
                now = time.time()
                named = {}
                for family in ("request_duration_seconds", "time_to_first_token_seconds", "http_request_duration_seconds"):
                    found = api("query_exemplars", query=f"hanzo_engine_{family}_bucket", start=now - 60, end=now + 1)
                    named[family] = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
                expect(all(ids == {TRACED["traceparent"][3:35]} for ids in named.values()), f"exemplars: {named}")
            finally:
                prometheus.terminate()
                prometheus.wait(30)
        return f"{len(drawn)} expressions, Prometheus {must('prometheus', '--version').split()[2]}"


@check
def what_is_packed_installs_and_goes_away():
    return packages.installs_and_goes_away(FOLDER)


@check
def programs_keep_to_their_sizes():
    return sizes.hold(FOLDER)
