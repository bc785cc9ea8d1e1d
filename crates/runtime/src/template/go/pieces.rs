//! What stands before a translated template: what Ollama makes of a conversation before its template sees it, and what Go prints.
//! None of it speaks of what the template does not, because a template's words say what its model knows (`roles.rs`).

/// What a template with `.Messages` sees of a conversation: one system prompt, and one message where one speaker has said several in a
/// row. Most conversations have none such and stay what they are. A list grows some messages at a time, because each time is a copy.
pub(super) const MESSAGES: &str = "\
{%- set go = namespace(prompt='', response='', messages=messages, twice=false, last='', part=[], start=0) -%}
{%- set go.system = messages|selectattr('role', 'equalto', 'system')|map(attribute='content')|join('\\n\\n') -%}
{%- for m in messages -%}
{%- if m.role == go.last and m.role in ['system', 'user', 'assistant'] -%}{%- set go.twice = true -%}{%- endif -%}
{%- set go.last = m.role -%}
{%- endfor -%}
{%- if go.twice -%}
{%- set go.messages = [] -%}
{%- for m in messages -%}
{%- if loop.last or messages[loop.index].role != m.role or m.role not in ['system', 'user', 'assistant'] -%}
{%- set said = messages[go.start:loop.index]|map(attribute='content')|join('\\n\\n') -%}
{%- set go.part = go.part + [dict(messages[go.start], content=said)] -%}
{%- set go.start = loop.index -%}
{%- if go.part|length == 64 or loop.last -%}
{%- set go.messages = go.messages + go.part -%}
{%- set go.part = [] -%}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
";

/// Before a template that is run for each question and answer.
pub(super) const TURNS: &str = "{%- set go = namespace(system='', prompt='', response='', start=0) -%}\n";

/// Behind the macro `go_turn`, which is such a run: all of them but the last, which ends where the answer is to go on.
pub(super) const EACH_TURN: &str = "\
{%- for m in messages -%}
{%- if loop.last or messages[loop.index].role != m.role -%}
{%- set said = messages[go.start:loop.index]|map(attribute='content')|join('\\n\\n') -%}
{%- set go.start = loop.index -%}
{%- if (m.role == 'system' and (go.prompt or go.response)) or (m.role == 'user' and go.response) -%}
{{- go_turn() -}}
{%- set go.system = '' -%}{%- set go.prompt = '' -%}{%- set go.response = '' -%}
{%- endif -%}
{%- if m.role == 'system' -%}{%- set go.system = said -%}
{%- elif m.role == 'user' -%}{%- set go.prompt = said -%}
{%- elif m.role == 'assistant' -%}{%- set go.response = said -%}{%- endif -%}
{%- endif -%}
{%- endfor -%}
";

/// JSON as Go's library writes it: without spaces, names of maps in their order, and what HTML would read escaped.
pub(super) const JSON: &str = "\
{%- macro go_json(value) -%}
{{- value|tojson(separators=(',', ':'), sort_keys=true)|replace('&', '\\\\u0026')|replace('<', '\\\\u003c')|replace('>', '\\\\u003e') -}}
{%- endmacro -%}
";

/// The JSON of what Ollama knows the fields of: those in its order, and the client's own behind them.
pub(super) const OBJECTS: &str = "\
{%- set go_fields = {'tool': ['type', 'items', 'function'], 'function': ['name', 'description', 'parameters'],
  'parameters': ['type', '$defs', 'items', 'required', 'properties'],
  'property': ['anyOf', 'type', 'items', 'description', 'enum', 'properties', 'required']} -%}
{%- set go_kinds = {'function': 'function', 'parameters': 'parameters', 'properties': 'properties', 'anyOf': 'any'} -%}
{%- macro go_object(value, kind) -%}
{%- if kind in ['tools', 'any'] -%}
{{- '[' -}}{%- for item in value -%}{{- ',' if not loop.first -}}{{- go_object(item, 'tool' if kind == 'tools' else 'property') -}}{%- endfor -%}{{- ']' -}}
{%- elif value is not mapping -%}
{{- go_json(value) -}}
{%- elif kind == 'properties' -%}
{{- '{' -}}{%- for name, item in value|dictsort(true) -%}{{- ',' if not loop.first -}}{{- go_json(name) -}}{{- ':' -}}{{- go_object(item, 'property') -}}{%- endfor -%}{{- '}' -}}
{%- else -%}
{{- '{' -}}
{%- for name in go_fields[kind] + (value|list|reject('in', go_fields[kind])|list) if name in value -%}
{{- ',' if not loop.first -}}{{- go_json(name) -}}{{- ':' -}}
{%- if name in go_kinds and name in go_fields[kind] -%}{{- go_object(value[name], go_kinds[name]) -}}{%- else -%}{{- go_json(value[name]) -}}{%- endif -%}
{%- endfor -%}
{{- '}' -}}
{%- endif -%}
{%- endmacro -%}
";

/// A value of JSON as Go prints one.
pub(super) const PRINT: &str = "\
{%- macro go_print(value) -%}
{%- if value is undefined -%}
{%- elif value is string -%}{{- value -}}
{%- elif value is none -%}{{- '<nil>' -}}
{%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
{%- elif value is mapping -%}
{{- 'map[' -}}{%- for name, item in value|dictsort(true) -%}{{- ' ' if not loop.first -}}{{- name -}}{{- ':' -}}{{- go_print(item) -}}{%- endfor -%}{{- ']' -}}
{%- elif value is iterable -%}
{{- '[' -}}{%- for item in value -%}{{- ' ' if not loop.first -}}{{- go_print(item) -}}{%- endfor -%}{{- ']' -}}
{%- else -%}{{- value -}}{%- endif -%}
{%- endmacro -%}
";
