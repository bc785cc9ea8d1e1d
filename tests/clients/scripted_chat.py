"""A model that chats as a script says, to the letter, for clients of what no small model does reliably: it reasons, calls the tools it is
offered, and answers with what they gave. What it was asked is in .seen."""
import json

from scripted_engine import Scripted
from stubs import pb

ARGUMENTS = {"get_weather": {"city": "Paris"}, "apply_patch": {"input": "*** Begin Patch\n+é\n*** End Patch"}}


def text_of(message):
    return "".join(part.text for part in message.content)


def answer(chat, request):
    """The parts of an answer: ("reasoning" | "text", text) or ("call", name, arguments)."""
    last = chat.messages[-1]
    offered = [json.loads(tool)["function"]["name"] for tool in chat.tools_json]
    said = text_of(last)
    if request.constraint.json_schema:
        return [("text", json.dumps({"city": "Paris", "degrees": 18}))]
    if last.role == "tool":
        return [("text", f"The tool says: {said}")]
    if last.role == "user" and "both" in said:
        return [("reasoning", "Two of them."), *(("call", name, ARGUMENTS.get(name, {})) for name in offered[:2])]
    wanted = [name for name in offered if name.startswith("transfer_to") or name.split("_")[-1] in said.lower()]
    if request.tool_use.choice not in (pb.TOOL_CHOICE_NONE,) and wanted and last.role == "user":
        return [("reasoning", "I should look."), ("text", "I look."), ("call", wanted[0], ARGUMENTS.get(wanted[0], {}))]
    return [("reasoning", "No tool."), ("text", f"{len(chat.messages)} messages, the last: {said}")]


class Chat(Scripted):
    capabilities = [pb.CAPABILITY_CHAT, pb.CAPABILITY_TOOLS]

    def __init__(self):
        self.seen = []

    def Tokenize(self, request, context):
        return pb.TokenizeResponse(ids=range(sum(len(text_of(message)) for message in request.chat.messages)), context_tokens_max=4096)

    def Infer(self, request, context):
        self.seen.append(request)
        yield pb.InferEvent(started=pb.Started(request_id=request.request_id, model="scripted", prompt_tokens=len(request.chat.messages), cached_tokens=0))
        calls, tokens = 0, 0
        for kind, *what in answer(request.chat, request):
            if kind == "call":
                name, arguments = what[0], json.dumps(what[1], ensure_ascii=False)
                for i in range(0, len(arguments), 7):
                    first = i == 0
                    call = pb.ToolCallDelta(index=calls, id=f"call{len(self.seen):04}{calls}" if first else "", name=name if first else "", arguments_json=arguments[i:i + 7])
                    yield pb.InferEvent(delta=pb.Delta(tool_calls=[call]))
                calls += 1
                continue
            for i in range(0, len(what[0]), 5):
                tokens += 1
                yield pb.InferEvent(delta=pb.Delta(**{kind: what[0][i:i + 5]}, token_ids=[1]))
        reason = pb.FINISH_REASON_TOOL_CALLS if calls else pb.FINISH_REASON_STOP
        usage = pb.Usage(prompt_tokens=len(request.chat.messages), completion_tokens=tokens + calls, reasoning_tokens=1)
        yield pb.InferEvent(finished=pb.Finished(reason=reason, usage=usage))
