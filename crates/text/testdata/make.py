"""Remakes the fixtures beside this file with the reference implementations:
pip install tokenizers sentencepiece protobuf jinja2; python make.py DEMO_TOKENIZER_JSON"""

import io
import json
import pathlib
import sys
import unicodedata

import jinja2
import jinja2.ext
import sentencepiece
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from sentencepiece import sentencepiece_model_pb2

HERE = pathlib.Path(__file__).parent

TEXTS = [
    "", " ", "  ", "\n", "\n\n", " \n ", "\t\tx", "a", " a", "a ", "Hello, world!", "I'll we're DON'T they've it's",
    "x = 1234567890; y=3.14159e-10", "don\u2019t \u2018quote\u2019", "trailing spaces   ", "   leading", "a  b   c    d",
    "line one\nline two\r\nline three\rfour\n\n\nfive", "tab\tseparated\t\tvalues",
    "\u00e9\u00e8\u00ea \u00fc\u00f6\u00e4\u00df \u00f1 \u00e7", "e\u0301 combining a\u030a o\u0302\u0323 \u1112\u1161\u11ab",
    "\u212b \ufb01 \u2126", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u6f22\u5b57\u3002", "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \u2764\ufe0f \U0001f44d\U0001f3fd", "\U0001d54f\U0001d7d9 \U00010348",
    "\u0000\u0001\u001f\u007f\u0080\u009f", "zero\u200bwidth\ufeffbom\u00adsoft", "nbsp\u00a0thin\u2009em\u2003ideo\u3000next\u0085line\u2028sep\u2029",
    "\u0664\u0665\u0666 \u0967\u0968 \u2167 \u00bd \u00b2", "1,234,567.89 \u20ac99 $5 50% #1 @x", "((([[{{<<>>}}]])))...---***///\\\\\\",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))\n", "{\"key\": [1, 2.5, null], \"k2\": \"v\\n\"}", "<|im_start|>user\nHi<|im_end|>\n",
    "<think>\nhm\n</think>\n\n<tool_call>{}</tool_call>", "text<|endoftext|>", "<|im_start|", "<|im_end|><|im_end|> <|im_end|>x", "<unk><s>a</s> b",
    "https://example.org/a?b=c&d=%20#e", "C:\\path\\to\\file.txt", "CamelCaseWord snake_case_word SCREAMING", "a" * 100, "ab" * 60, " " * 70 + "x", "\n" * 30,
    "\u00e0" * 20, "\U0001f600" * 9, "\u0301\u0301leading marks", "\u2581 literal mark \u2581\u2581", "\ud7ff\ue000\uffff\U0010ffff",
]


def demo(path):
    tokenizer = tokenizers.Tokenizer.from_file(path)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    return [{"text": text, "ids": encode(text), "decoded": unicodedata.normalize("NFC", text)} for text in TEXTS]


def sentencepiece_model():
    corpus = [line for line in pathlib.Path(__file__).read_text().splitlines() if line.strip()] * 4
    corpus += ["the quick brown fox jumps over the lazy dog", "she sells sea shells by the sea shore"] * 50
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, vocab_size=700, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, add_dummy_prefix=True,
        character_coverage=0.999, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = []
    for id in range(processor.vocab_size()):
        kinds.append(
            2 if processor.is_unknown(id) else 3 if processor.is_control(id) else 6 if processor.is_byte(id)
            else 5 if processor.is_unused(id) else 1
        )
    texts = [text for text in TEXTS if "<s>" not in text and text and "\u0000" not in text]
    cases = lambda: [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))} for text in texts]
    written = cases()
    # Unused pieces are joined towards, then taken apart again.
    unused = [id for id in range(processor.vocab_size()) if kinds[id] == 1 and id % 3 == 0]
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    for id in unused:
        proto.pieces[id].type = sentencepiece_model_pb2.ModelProto.SentencePiece.UNUSED
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return {
        "tokens": [processor.id_to_piece(id) for id in range(processor.vocab_size())],
        "scores": [processor.get_score(id) for id in range(processor.vocab_size())],
        "types": kinds,
        "cases": written,
        "unused": unused,
        "cases_with_unused": cases(),
    }


LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}
        {{- " " + message["content"]|trim + eos_token}}
        {%- endgeneration %}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

ODDS = """{# a comment #}
{% for message in messages %}
    {% if loop.index0 == 3 %}
    {% break %}
    {% endif %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
{{ loop.index }}: {{ message.role.upper() }} {{ message.content | length }} {{ message.content[:5] }} {{ message.content.split('\\n')[-1] | default('-', true) }}
{% endfor %}
{% macro show(x, y='!') %}{{ x }}{{ y }}{% endmacro %}
{{ show(true) }} {{ show(none, '?') }} {{ show(1.0) }} {{ show([1, 'a', none]) }} {{ {'a': 'b'} }}
{{ kwarg | tojson }} {{ kwarg | tojson(sort_keys=true, separators=(',', ':')) }} {{ kwarg | tojson(ensure_ascii=true) }}
{{ messages[::-1][0].content.rstrip().lstrip('x').strip('\\n') }} {{ messages | map(attribute='role') | join(',') }}
{{ 'yes' if undefined_thing is not defined else 'no' }} {{ tools is none }} {{ documents is none }} {{ "%s" | format('f') }}
{{ [1,2,3] | sum }} {{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content | replace('e', 'E') | title }}
{{ 'abc'.find('c') }} {{ 'a b'.split() }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 'x' ~ 1 ~ none }} {{ ['b', 'a'] | sort }} {{ {'k': 1}.get('z', 'd') }}
"""


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def render(template, case):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    variables = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None, **case.get("kwargs", {})}
    if case.get("tools"):
        variables["tools"] = case["tools"]
    variables |= {"messages": case["messages"], "add_generation_prompt": case["add_generation_prompt"]}
    try:
        return {"prompt": environment.from_string(template).render(**variables)}
    except jinja2.exceptions.TemplateError as error:
        return {"refusal": error.message}


def templates():
    user, assistant = {"role": "user", "content": "  Hi there, \u00fcn\u00efc\u00f6de <&> 'q' \"d\"\nsecond "}, {"role": "assistant", "content": " Hello! "}
    system = {"role": "system", "content": "Be brief."}
    tools = [{"type": "function", "function": {"name": "f", "description": "d\u00e9j\u00e0 <b>", "parameters": {"type": "object", "properties": {"z": {"type": "number", "minimum": 1.0, "maximum": 1e20}, "a": {"enum": ["x", None, True]}}, "required": []}}}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"z": 0.00001, "a": "\u00e9\n\t\u0001/"}}}]}
    answer = {"role": "tool", "content": "{\"r\": 1}", "tool_call_id": "abcdefghi"}
    chats = [[user], [system, user], [user, assistant, user], [system, user, assistant, user], [user, call, answer], [assistant, user], [user, user]]
    kwarg = {"kwargs": {"kwarg": {"b": [1, 2.0, -0.5, 1e16, 1e-7, None, True, {}], "a": "\u65e5\U0001f600<>&'\u007f\u2028", "n": {"x": []}}}}
    cases = []
    for name, template in [("llama3", LLAMA3), ("mistral", MISTRAL), ("gemma", GEMMA), ("odds", ODDS)]:
        for messages in chats:
            for with_tools in [False, True]:
                for prompt in [False, True]:
                    case = {"template": name, "messages": messages, "add_generation_prompt": prompt, "tools": tools if with_tools else []}
                    case |= kwarg if name == "odds" else {}
                    cases.append(case | render(template, case))
    return {"templates": {"llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "odds": ODDS}, "cases": cases}


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


write("demo_tokens.json", demo(sys.argv[1]))
write("sentencepiece.json", sentencepiece_model())
write("templates.json", templates())
