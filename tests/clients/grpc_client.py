"""A gRPC client generated from the proto, as an application that embeds the engine would use it."""
import json, os, sys, threading

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from engine import Engine, check, run_checks
from stubs import pb, pb_grpc

MODEL = "hanzo-demo"


def ask(question, **kwargs):
    message = pb.Message(role="user", content=[pb.ContentPart(text=question)])
    kwargs.setdefault("model", MODEL)
    return pb.InferRequest(chat=pb.Chat(messages=[message], template_kwargs_json='{"enable_thinking":false}'), **kwargs)


def code_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("no error")


@check
def infer_streams(stub, _):
    events = list(stub.Infer(ask("What is the capital of France?"), timeout=60))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-1] == "finished" and set(kinds[1:-1]) == {"delta"}, kinds
    text = "".join(event.delta.text for event in events)
    assert "Paris" in text, text
    finished = events[-1].finished
    assert finished.reason == pb.FINISH_REASON_STOP and finished.usage.prompt_tokens == 19 and finished.timings.decode_tokens_per_s > 0
    return repr(text)


@check
def calls_are_calls(stub, _):
    tool = json.dumps({"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}})
    request = ask("What is the weather in Paris?", sampling=pb.Sampling(temperature=0), stop=pb.StopConditions(max_tokens=100),
                  tool_use=pb.ToolUse(choice=pb.TOOL_CHOICE_NAMED, named="get_weather", parallel=False))
    request.chat.tools_json.append(tool)
    events = list(stub.Infer(request, timeout=60))
    parts = [part for event in events for part in event.delta.tool_calls]
    assert parts[0].id and parts[0].name == "get_weather" and not any(part.id or part.name or part.broken or part.index for part in parts[1:]), parts
    assert json.loads("".join(part.arguments_json for part in parts)) == {"city": "Paris"}, parts
    assert events[-1].finished.reason == pb.FINISH_REASON_TOOL_CALLS and not any(event.delta.text for event in events), events
    assert pb.CAPABILITY_TOOLS in stub.Show(pb.ShowRequest(model=MODEL)).capabilities
    request.tool_use.named = "get_wether"
    code, text = code_of(lambda: list(stub.Infer(request, timeout=60)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "get_wether" in text, (code, text)
    return f"{len(parts)} parts"


@check
def deadline(stub, _):
    code, _ = code_of(lambda: list(stub.Infer(ask("Count from 1 to 40.", stop=pb.StopConditions(max_tokens=4000, ignore_eos=True)), timeout=0.3)))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED, code


@check
def cancel_frees_the_cache(stub, _):
    used = lambda: stub.Stats(pb.StatsRequest(model=MODEL)).models[0].kv_blocks_used

    def until(condition, what):
        wait = threading.Event()
        for _ in range(1000):
            if condition():
                return
            wait.wait(0.01)
        raise AssertionError(f"{what}: {used()} blocks in use")

    until(lambda: used() == 0, "what the deadline ended is freed")
    call = stub.Infer(ask("Count from 1 to 40.", stop=pb.StopConditions(max_tokens=4000, ignore_eos=True)))
    for event in call:
        if event.WhichOneof("event") == "delta":
            break
    during = used()
    assert during > 0
    call.cancel()
    until(lambda: used() == 0, "what was cancelled is freed")
    return f"{during} blocks in use while it ran, 0 after"


@check
def tokens(stub, _):
    answer = stub.Tokenize(pb.TokenizeRequest(model=MODEL, text="Hello, wörld! 🦊"))
    assert stub.Detokenize(pb.DetokenizeRequest(model=MODEL, ids=answer.ids)).text == "Hello, wörld! 🦊"
    chat = ask("Hello!").chat
    ids = stub.Tokenize(pb.TokenizeRequest(model=MODEL, chat=chat))
    assert list(ids.ids)[:4] == [4088, 278, 198, 702] and ids.text.startswith("<|im_start|>user\nHello!"), ids


@check
def load_watch_unload(stub, _):
    seen, have = [], threading.Condition()
    watch = stub.Watch(pb.WatchRequest(model="second"))

    def read():
        try:
            for event in watch:
                with have:
                    seen.append(event.model.state)
                    have.notify()
        except grpc.RpcError:
            pass

    threading.Thread(target=read, daemon=True).start()
    loaded = stub.Load(pb.LoadRequest(model=MODEL, alias="second", context_tokens_max=512), timeout=60)
    assert loaded.model.state == pb.MODEL_STATE_READY and loaded.model.context_tokens_max == 512, loaded
    again = stub.Load(pb.LoadRequest(model=MODEL, alias="second", context_tokens_max=512), timeout=60)
    assert again.load_ms == 0
    text = "".join(e.delta.text for e in stub.Infer(ask("What is the capital of France?", model="second")))
    assert "Paris" in text
    assert {m.status.name for m in stub.Stats(pb.StatsRequest()).models} == {MODEL, "second"}
    stub.Unload(pb.UnloadRequest(model="second"), timeout=60)
    with have:
        assert have.wait_for(lambda: pb.MODEL_STATE_UNLOADED in seen, 10), seen
    watch.cancel()
    assert pb.MODEL_STATE_READY in seen, seen
    code, details = code_of(lambda: list(stub.Infer(ask("Hi", model="second"))))
    assert code == grpc.StatusCode.NOT_FOUND and MODEL in details, details


@check
def list_and_show(stub, _):
    assert MODEL in [m.name for m in stub.List(pb.ListRequest()).models]
    show = stub.Show(pb.ShowRequest(model=MODEL))
    assert show.architecture == "qwen3" and show.parameters == 5771264 and "<|im_start|>" in show.chat_template, show


@check
def a_decoder_embeds(stub, _):
    inputs = [pb.EmbedInput(text="The sea is blue."), pb.EmbedInput(tokens=pb.TokenIds(ids=[300, 301]))]
    answer = stub.Embed(pb.EmbedRequest(model=MODEL, inputs=inputs))
    assert len(answer.embeddings) == 2 and all(abs(sum(x * x for x in one.values) - 1) < 1e-5 for one in answer.embeddings), answer


@check
def errors(stub, _):
    code, details = code_of(lambda: list(stub.Infer(ask("Hi", sampling=pb.Sampling(temperature=float("nan"))))))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and details.startswith("sampling.temperature: "), details
    code, details = code_of(lambda: stub.Rerank(pb.RerankRequest(model=MODEL, query="x", documents=["y"])))
    assert code == grpc.StatusCode.FAILED_PRECONDITION and "embed texts" in details, (code, details)
    code, details = code_of(lambda: stub.Load(pb.LoadRequest(model="/nowhere/model.gguf")))
    assert code == grpc.StatusCode.NOT_FOUND and "/nowhere/model.gguf" in details, (code, details)


@check
def health_and_reflection(_, channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "hanzo.engine.v1.Engine"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING, service
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"hanzo.engine.v1.Engine", "hanzo.engine.v1.Speech", "grpc.health.v1.Health"} <= set(services), services
    return ", ".join(services)


if __name__ == "__main__":
    with Engine() as engine, grpc.insecure_channel(engine.grpc) as channel:
        sys.exit(run_checks(pb_grpc.EngineStub(channel), channel))
