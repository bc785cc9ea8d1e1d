"""The official mcp package, unmodified, as a client of `serve` over streamable HTTP and of `hanzo-engine mcp` over stdio, in both of the
protocol's forms: with sessions, and as of 2026-07-28 without."""
import asyncio, json, os, sys, tempfile, time, warnings

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from engine import BINARY, Engine, check, run_checks

warnings.filterwarnings("ignore", message=".*2026-07-28.*")
MODES = ["legacy", "auto"]


async def each_way(engine, use):
    """Runs `use` with a client of each transport and form."""
    with tempfile.TemporaryDirectory(prefix="hanzo-models-") as models:
        stdio = StdioServerParameters(command=BINARY, args=["mcp", "--engine", "none", "--model-dir", models])
        for mode in MODES:
            for server in (f"http://{engine.http}/mcp", stdio):
                async with Client(server, mode=mode, read_timeout_seconds=60) as client:
                    await use(client)


async def running(client):
    stats = json.loads((await client.read_resource("hanzo://stats")).contents[0].text)
    return sum(model["requests_running"] for model in stats["models"])


@check
def tools_and_their_results(engine):
    async def use(client):
        tools = (await client.list_tools()).tools
        names = [tool.name for tool in tools]
        assert names == ["hanzo_infer", "hanzo_embed", "hanzo_rerank", "hanzo_list_models", "hanzo_pull", "hanzo_load", "hanzo_unload"], names
        assert all(tool.input_schema and tool.output_schema and tool.annotations for tool in tools)
        seen = []

        async def progress(reached, total, message):
            seen.append((reached, total, message or ""))

        # The package checks results by their schemas itself.
        arguments = {"prompt": "Hello", "max_tokens": 12, "temperature": 0}
        answer = await client.call_tool("hanzo_infer", arguments, progress_callback=progress)
        said = answer.structured_content
        assert not answer.is_error and answer.content[0].text == said["text"], answer
        assert (said["model"], said["finish_reason"], said["usage"]["completion_tokens"]) == ("hanzo-demo", "length", 12), said
        assert "".join(message for *_, message in seen) == said["text"] and seen[-1][:2] == (12, 12), seen
        assert [reached for reached, *_ in seen] == sorted({reached for reached, *_ in seen}), seen
        again = await client.call_tool("hanzo_infer", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0})
        assert again.structured_content["text"] == said["text"]
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
        answer = await client.call_tool("hanzo_infer", {"prompt": "Is it?", "response_schema": schema, "max_tokens": 200, "reasoning_effort": "none"})
        assert set(json.loads(answer.structured_content["text"])) == {"ok"}, answer
        vectors = (await client.call_tool("hanzo_embed", {"input": ["a", "b"]})).structured_content["embeddings"]
        assert [vector["index"] for vector in vectors] == [0, 1] and len(vectors[0]["embedding"]) == len(vectors[1]["embedding"]) > 0
        models = (await client.call_tool("hanzo_list_models", {})).structured_content["models"]
        assert any(model["id"] == "hanzo-demo" and model["state"] == "ready" for model in models), models

    asyncio.run(each_way(engine, use))


@check
def errors_are_told_to_whom_they_concern(engine):
    async def use(client):
        answer = await client.call_tool("hanzo_infer", {"prompt": "a", "temperature": 9})
        assert answer.is_error and answer.content[0].text.startswith("temperature: "), answer
        answer = await client.call_tool("hanzo_infer", {"prompt": "a", "model": "no-such-model"})
        assert answer.is_error and "no-such-model" in answer.content[0].text, answer
        answer = await client.call_tool("hanzo_load", {"model": "/etc/passwd"})
        assert answer.is_error, answer
        for wrong in (client.call_tool("hanzo_nothing", {}), client.read_resource("hanzo://models/none")):
            try:
                raise AssertionError(f"no error: {await wrong}")
            except Exception as error:
                assert "hanzo_nothing" in str(error) or "models/none" in str(error), error

    asyncio.run(each_way(engine, use))


@check
def resources(engine):
    async def use(client):
        listed = (await client.list_resources()).resources
        assert [str(resource.uri) for resource in listed][:3] == ["hanzo://models", "hanzo://stats", "hanzo://models/hanzo-demo"]
        for resource in listed:
            contents = (await client.read_resource(str(resource.uri))).contents[0]
            assert contents.mime_type == "application/json" and json.loads(contents.text), contents
        card = json.loads((await client.read_resource("hanzo://models/hanzo-demo")).contents[0].text)
        assert "chat" in card["capabilities"] and card["context_tokens_max"] > 0, card
        assert [template.uri_template for template in (await client.list_resource_templates()).resource_templates] == ["hanzo://models/{+name}"]

    asyncio.run(each_way(engine, use))


@check
def a_call_that_nobody_waits_for_any_more_frees_the_model(engine):
    async def use(client):
        begun = asyncio.Event()

        async def progress(*_):
            begun.set()

        # With no end token in the grammar's way it writes until it is stopped.
        arguments = {"prompt": "Count.", "response_schema": {"type": "object", "properties": {"a": {"type": "string", "minLength": 3000}}, "required": ["a"]}}
        call = asyncio.create_task(client.call_tool("hanzo_infer", arguments, progress_callback=progress))
        await asyncio.wait_for(begun.wait(), 60)
        assert await running(client) == 1 and not call.done()
        call.cancel()
        deadline = time.monotonic() + 10
        while await running(client) > 0:
            assert time.monotonic() < deadline, "it goes on"
            await asyncio.sleep(0.05)

    asyncio.run(each_way(engine, use))


@check
def stdio_ends_with_its_input(engine):
    import subprocess

    with tempfile.TemporaryDirectory(prefix="hanzo-models-") as models:
        process = subprocess.Popen([BINARY, "mcp", "--engine", "none", "--model-dir", models], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        out, _ = process.communicate(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n', timeout=60)
        assert process.returncode == 0 and json.loads(out)["result"]["serverInfo"]["name"] == "hanzo-engine", (process.returncode, out)


if __name__ == "__main__":
    with Engine() as engine:
        sys.exit(run_checks(engine))
