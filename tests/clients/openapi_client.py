"""schemathesis makes requests of /openapi.json, right and wrong ones: no answer has a status of 5xx, one that the document does not
have, or a body or an event of a stream that its schema does not allow. Against the demo model, once more for what changes which models there are, and
against an engine of a few lines that also ranks and classifies.
usage: openapi_client.py HANZO_ENGINE_BINARY [EXAMPLES_OF_EACH_ROUTE]"""
import os, re, subprocess, sys

from engine import Engine, check, run_checks
from scripted_engine import Gateway

EXAMPLES = int(sys.argv[2]) if len(sys.argv) > 2 else 30
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# What would change what the others find.
CHANGES = ["/v1/models/load", "/v1/models/unload", "/models/load", "/models/unload", "/v1/models/{id}", "/v1/responses/{id}", "/api/delete", "/api/copy"]
# To fetch models is the network's; MCP has a protocol of its own, and a check.
LEFT_OUT = ["/v1/models/pull", "/api/pull", "/mcp"]
OTHERS = ["--exclude-method", "DELETE", *(word for path in CHANGES if "{" not in path for word in ("--exclude-path", path))]


def fuzzed(http, *more):
    command = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", f"http://{http}/openapi.json", "--url", f"http://{http}",
               "--checks", CHECKS, "--phases", "examples,fuzzing", "--max-examples", str(EXAMPLES), "--workers", "2", "--seed", "7",
               "--request-timeout", "60", "--generation-database", "none", "--no-color", "--suppress-health-check", "all", *more]
    for path in LEFT_OUT:
        command += ["--exclude-path", path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    count = re.search(r"(\d+) generated", run.stdout)
    assert count and int(count[1]) > 10, run.stdout[-2000:]
    return f"{count[1]} requests"


@check
def the_demo_model_answers_as_the_document_says():
    # A short context: what is generated is short too.
    with Engine("--max-context", "256", "--adapter-updates") as engine:
        return fuzzed(engine.http, *OTHERS)


@check
def what_changes_models_answers_as_the_document_says():
    with Engine("--max-context", "256") as engine:
        return fuzzed(engine.http, *(word for path in CHANGES for word in ("--include-path", path)))


@check
def what_ranks_and_classifies_answers_as_the_document_says():
    with Gateway() as gateway:
        return fuzzed(gateway.http, *OTHERS, "--include-path-regex", r"^/(?!api/).*(rerank|score|classify|predict|similarity|embed|info)|^/$")


if __name__ == "__main__":
    sys.exit(run_checks())
