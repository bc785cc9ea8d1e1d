"""Tools of MCP servers inside chats and responses: `engine-gateway --enable-mcp` in front of a scripted engine that calls them, servers made with
the official mcp package over stdio and over HTTP, and the official openai package as the client."""
import json, os, signal, socket, subprocess, sys, tempfile, textwrap, time

import openai

from engine import BINARY, check, run_checks
from scripted_engine import Gateway, Scripted
from stubs import pb

SERVER = textwrap.dedent('''
    import os, sys, time
    from mcp.server.mcpserver import MCPServer
    server = MCPServer("tools")
    print("secret-of-stderr" * 3, file=sys.stderr, flush=True)

    @server.tool()
    def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    @server.tool()
    def token() -> str:
        return os.environ.get("TOKEN", "none") + os.environ.get("HANZO_ENGINE_API_KEY", "")

    @server.tool()
    def slow() -> str:
        time.sleep(30)
        return "late"

    @server.tool()
    def large() -> str:
        return "x" * 1_000_000

    @server.tool()
    def die() -> str:
        os._exit(3)

    @server.tool()
    def hidden() -> str:
        return "never"

    server.run("stdio")
''')


OVER_HTTP = textwrap.dedent('''
    import socket, sys
    import uvicorn
    from mcp.server.mcpserver import MCPServer
    server = MCPServer("web")

    @server.tool()
    def multiply(a: int, b: int) -> str:
        """Multiplies."""
        return str(a * b)

    app = server.streamable_http_app()

    async def only_with_the_key(scope, receive, send):
        if scope["type"] == "http" and (b"authorization", b"Bearer of-the-file") not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            return await send({"type": "http.response.body", "body": b""})
        await app(scope, receive, send)

    uvicorn.Server(uvicorn.Config(only_with_the_key, log_level="warning")).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
''')


class Calls(Scripted):
    """Calls what the first message of the user says, in JSON, one turn each; then repeats the last results."""

    capabilities = [pb.CAPABILITY_CHAT, pb.CAPABILITY_TOOLS]

    def __init__(self):
        self.requests = []

    def Infer(self, request, context):
        self.requests.append(request)
        yield pb.InferEvent(started=pb.Started(model="scripted", prompt_tokens=10))
        said = request.chat.messages
        turns = json.loads(next(m for m in said if m.role == "user").content[0].text)
        turn = sum(m.role == "assistant" for m in said)
        usage = pb.Usage(prompt_tokens=10, completion_tokens=2)
        if turn < len(turns) and request.tool_use.choice != pb.TOOL_CHOICE_NONE:
            for i, (name, arguments) in enumerate(turns[turn]):
                call = pb.ToolCallDelta(index=i, id=f"call{turn}{i}", name=name, arguments_json="")
                yield pb.InferEvent(delta=pb.Delta(tool_calls=[call], token_ids=[1]))
                yield pb.InferEvent(delta=pb.Delta(tool_calls=[pb.ToolCallDelta(index=i, arguments_json=json.dumps(arguments))], token_ids=[1]))
            yield pb.InferEvent(finished=pb.Finished(reason=pb.FINISH_REASON_TOOL_CALLS, usage=usage))
            return
        results = [m.content[0].text for m in said if m.role == "tool"]
        yield pb.InferEvent(delta=pb.Delta(text="|".join(results)[:2000], token_ids=[1, 2]))
        yield pb.InferEvent(finished=pb.Finished(reason=pb.FINISH_REASON_STOP, usage=usage))


def ask(gateway, turns, **more):
    client = openai.OpenAI(base_url=f"http://{gateway.http}/v1", api_key="none")
    return client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": json.dumps(turns)}], **more)


def offered(gateway):
    ask(gateway, [])
    return [json.loads(tool)["function"]["name"] for tool in gateway.engine.requests[-1].chat.tools_json]


@check
def tools_are_offered_and_called_and_the_model_goes_on(gateway):
    names = offered(gateway)
    assert sorted(names) == sorted(["tools__add", "tools__token", "tools__slow", "tools__large", "tools__die", "web__multiply"]), names
    answer = ask(gateway, [[["tools__add", {"a": 2, "b": 3}]], [["tools__add", {"a": 1, "b": 1}], ["tools__token", {}]]])
    assert answer.choices[0].message.content == "5|2|of-the-file" and answer.choices[0].finish_reason == "stop", answer
    assert not answer.choices[0].message.tool_calls
    calls = answer.model_extra["mcp_calls"]
    assert [(c["server"], c["name"], c["status"], c["output"]) for c in calls] == [("tools", "add", "completed", "5"), ("tools", "add", "completed", "2"), ("tools", "token", "completed", "of-the-file")], calls
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (30, 6), answer.usage
    last = gateway.engine.requests[-1].chat.messages
    assert [m.role for m in last] == ["user", "assistant", "tool", "assistant", "tool", "tool"], last
    assert last[1].tool_calls[0].arguments_json == json.dumps({"a": 2, "b": 3}) and last[2].tool_call_id == last[1].tool_calls[0].id


@check
def a_stream_shows_them(gateway):
    text, calls = "", []
    for chunk in ask(gateway, [[["tools__add", {"a": 2, "b": 3}]]], stream=True):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        assert not choice.delta.tool_calls
        if "mcp_call" in chunk.model_extra:
            calls.append(chunk.model_extra["mcp_call"])
    assert text == "5" and [(c["status"], c.get("output")) for c in calls] == [("in_progress", None), ("completed", "5")], (text, calls)


@check
def tools_of_a_server_over_http(gateway):
    answer = ask(gateway, [[["web__multiply", {"a": 6, "b": 7}]], [["web__multiply", {"a": "x", "b": 7}]]])
    first, wrong = answer.model_extra["mcp_calls"]
    assert (first["server"], first["name"], first["status"], first["output"]) == ("web", "multiply", "completed", "42"), first
    assert wrong["status"] == "failed", wrong


@check
def responses_have_them_as_items(gateway):
    client = openai.OpenAI(base_url=f"http://{gateway.http}/v1", api_key="none")
    turns = json.dumps([[["tools__add", {"a": 2, "b": 3}], ["web__multiply", {"a": 2, "b": 3}]], [["tools__add", {"a": "x"}]]])
    whole = client.responses.create(model="scripted", input=turns)
    assert [item.type for item in whole.output] == ["mcp_call", "mcp_call", "mcp_call", "message"], whole
    add, multiply, wrong = whole.output[:3]
    assert (add.server_label, add.name, add.status, add.output, add.error, json.loads(add.arguments)) == ("tools", "add", "completed", "5", None, {"a": 2, "b": 3}), add
    assert (multiply.server_label, multiply.output) == ("web", "6") and (wrong.status, wrong.output, wrong.error.type) == ("failed", None, "mcp_tool_execution_error"), wrong
    assert whole.output_text.startswith("5|6|error"), whole.output_text
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (30, 6), whole.usage
    # Streamed: the same, told as it happens, and the client's own accumulator agrees.
    with client.responses.stream(model="scripted", input=turns) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    for kind, times in [("in_progress", 3), ("completed", 2), ("failed", 1)]:
        assert kinds.count(f"response.mcp_call.{kind}") == times, kinds
    done = [event.item for event in events if event.type == "response.output_item.done"]
    strip = lambda items: [{**item.model_dump(), "id": None} for item in items[:3]]
    assert strip(done) == strip(final.output) == strip(whole.output) and final.output_text == whole.output_text, final
    assert len({item.id for item in final.output}) == 4 and all(item.id.startswith("mcp_") for item in final.output[:3])
    # What follows knows of them.
    client.responses.create(model="scripted", input="[]", previous_response_id=whole.id)
    said = gateway.engine.requests[-1].chat.messages
    assert [m.role for m in said] == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"] or [m.role for m in said] == ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant", "user"], [m.role for m in said]
    assert [call.name for m in said for call in m.tool_calls] == ["tools__add", "web__multiply", "tools__add"]
    # No more calls than the client allows.
    bounded = client.responses.create(model="scripted", input=json.dumps([[["tools__add", {"a": 1, "b": i}]] for i in range(5)]), max_tool_calls=2)
    assert [item.output for item in bounded.output if item.type == "mcp_call"] == ["1", "2"], bounded


@check
def what_goes_wrong_is_told_to_the_model(gateway):
    answer = ask(gateway, [[["tools__slow", {}]], [["tools__add", {"a": "x"}]], [["tools__large", {}]]])
    slow, wrong, large = answer.model_extra["mcp_calls"]
    assert slow["status"] == "failed" and "within 1 seconds" in slow["output"], slow
    assert wrong["status"] == "failed", wrong
    assert large["status"] == "completed" and len(large["output"]) == 64 << 10 and large["output"].endswith("[cut off]"), large["output"][-50:]


@check
def a_server_that_dies_costs_its_tools_and_comes_back(gateway):
    answer = ask(gateway, [[["tools__die", {}]], [["tools__add", {"a": 1, "b": 1}]]])
    assert answer.model_extra["mcp_calls"][0]["status"] == "failed", answer
    deadline = time.monotonic() + 30
    while ask(gateway, [[["tools__add", {"a": 1, "b": 1}]]]).choices[0].message.content != "2":
        assert time.monotonic() < deadline, "it does not come back"
        time.sleep(0.2)


@check
def turns_are_bounded(gateway):
    answer = ask(gateway, [[["tools__add", {"a": 1, "b": i}]] for i in range(50)])
    assert len(answer.model_extra["mcp_calls"]) == 8 and answer.choices[0].finish_reason == "stop", answer


@check
def a_clients_own_tools_work_beside(gateway):
    own = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
    answer = ask(gateway, [[["tools__add", {"a": 1, "b": 1}]], [["mine", {"x": 1}]]], tools=[own])
    call = answer.choices[0].message.tool_calls[0]
    assert (answer.choices[0].finish_reason, call.function.name, call.function.arguments) == ("tool_calls", "mine", '{"x": 1}'), answer
    assert [c["output"] for c in answer.model_extra["mcp_calls"]] == ["2"]
    assert ask(gateway, [], tools=[own], tool_choice="none").choices[0].message.content == ""
    assert len(gateway.engine.requests[-1].chat.tools_json) == 1


def processes(mark):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in open(f"/proc/{pid}/cmdline", "rb").read():
                found.append(int(pid))
        except OSError:
            pass
    return found


@check
def they_end_with_the_gateway(gateway):
    assert processes(gateway.script), "it runs"
    log = "".join(gateway.lines)
    assert "of-the-file" not in log and "secret-of-stderr" in log, log[-2000:]
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.wait(30)
    assert not processes(gateway.script), "it is left behind"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mcp-") as folder:
        listener = socket.create_server(("127.0.0.1", 0))
        port, over_http = listener.getsockname()[1], os.path.join(folder, "web.py")
        open(over_http, "w").write(OVER_HTTP)
        web = subprocess.Popen([sys.executable, over_http, str(listener.fileno())], pass_fds=[listener.fileno()])
        script, config = os.path.join(folder, "server.py"), os.path.join(folder, "mcp.json")
        open(script, "w").write(SERVER)
        servers = {
            "tools": {"command": sys.executable, "args": [script], "env": {"TOKEN": "of-the-file"}, "timeout": 1, "allowed_tools": ["add", "token", "slow", "large", "die"]},
            "web": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer of-the-file"}},
            "dead": {"command": "/no/such/program"},
            "nowhere": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer of-the-file"}},
        }
        json.dump({"mcpServers": servers}, open(config, "w"))
        engine = Calls()
        settings = {"HANZO_ENGINE_GATEWAY_ENABLE_MCP": "true", "HANZO_ENGINE_GATEWAY_MCP_CONFIG": config, "HANZO_ENGINE_API_KEY": ""}
        with Gateway(engine, env=settings) as gateway:
            gateway.engine, gateway.script = engine, script
            deadline = time.monotonic() + 60
            while len(offered(gateway)) < 6:
                assert time.monotonic() < deadline, "its tools do not come:\n" + "".join(gateway.lines)
                time.sleep(0.1)
            failed = run_checks(gateway)
        web.terminate()
        web.wait(30)
        sys.exit(failed)
