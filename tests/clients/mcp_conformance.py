"""The protocol's own conformance suite (npm @modelcontextprotocol/conformance), as a client of `/mcp`, and as servers of the gateway's MCP client: the
suite starts this file with `--drive` as what it calls a client, which is a gateway whose scripted model calls the tools it is offered. And npm's SDK as a client.
usage: mcp_conformance.py HANZO_ENGINE_BINARY NODE_MODULES"""
import json, os, re, subprocess, sys, tempfile, time

from engine import BINARY, Engine, check, run_checks
from javascript import node, script

NODE_MODULES = sys.argv[2]

# Scenarios of tools, resources and prompts that the suite's own example server has, by names that begin with `test_`. Ours has none of them.
OF_THE_EXAMPLE = """completion-complete tools-call-simple-text tools-call-image tools-call-audio tools-call-embedded-resource tools-call-mixed-content
    tools-call-with-logging tools-call-error tools-call-with-progress tools-call-sampling tools-call-elicitation json-schema-2020-12 elicitation-sep1034-defaults
    elicitation-sep1330-enums server-sse-polling resources-read-text resources-read-binary resources-templates-read resources-subscribe resources-unsubscribe prompts-list
    prompts-get-simple prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image""".split()
# Its scenario `initialize` wants the protocol of 2025-11-25 by name, and this client offers a newer one first.
AS_CLIENT = {"tools_call": ("add_numbers", {"a": 5, "b": 3}), "sse-retry": ("test_reconnection", {})}


def conformance(*args):
    suite = os.path.join(NODE_MODULES, "@modelcontextprotocol", "conformance", "dist", "index.js")
    return subprocess.run([node(NODE_MODULES), suite, *args], capture_output=True, text=True, timeout=120)


@check
def the_server_passes_what_is_not_of_the_suites_own_tools():
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as expected, Engine() as engine:
        # One of these that passes fails the run too.
        expected.write("server:\n" + "".join(f"  - {name}\n" for name in OF_THE_EXAMPLE))
        expected.flush()
        run = conformance("server", "--url", f"http://{engine.http}/mcp", "--suite", "all", "--expected-failures", expected.name)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
        passed = re.findall(r"^✓ ([\w-]+)", run.stdout, re.M)
        assert len(passed) >= 7, run.stdout[-6000:]
        return f"{len(passed)} scenarios: {', '.join(sorted(passed))}"


@check
def the_client_passes_what_is_not_of_oauth():
    drive = f"{sys.executable} {os.path.abspath(__file__)} {BINARY} {NODE_MODULES} --drive"
    said = []
    for name in AS_CLIENT:
        run = conformance("client", "--command", f"{drive} {name}", "--scenario", name)
        assert run.returncode == 0 and "FAIL" not in run.stdout, name + run.stdout[-6000:] + run.stderr[-4000:]
        said += re.findall(r"Passed: (\S+),", run.stdout + run.stderr)
    return f"{len(AS_CLIENT)} scenarios; checks passed: {', '.join(said)}"


@check
def npms_sdk():
    with Engine() as engine:
        script(NODE_MODULES, "mcp_js.mjs", f"http://{engine.http}/mcp")


def drive(name, url):
    """What the suite calls a client: a chat whose model calls the tool that it is offered."""
    from mcp_tools_client import Calls, ask, offered
    from scripted_engine import Gateway

    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump({"mcpServers": {"suite": {"url": url}}}, config)
        config.flush()
        engine = Calls()
        env = {"HANZO_ENGINE_GATEWAY_ENABLE_MCP": "true", "HANZO_ENGINE_GATEWAY_MCP_CONFIG": config.name}
        with Gateway(engine, env=env) as gateway:
            gateway.engine = engine
            call = AS_CLIENT[name]
            # A chat has the tools that are known when it begins, and the server is asked for them meanwhile.
            deadline = time.monotonic() + 30
            while not offered(gateway) and time.monotonic() < deadline:
                time.sleep(0.05)
            answer = ask(gateway, [[[f"suite__{call[0]}", call[1]]]])
            assert [made["status"] for made in answer.model_extra["mcp_calls"]] == ["completed"], answer


if __name__ == "__main__":
    if sys.argv[3:4] == ["--drive"]:
        drive(sys.argv[4], sys.argv[5])
    else:
        sys.exit(run_checks())
