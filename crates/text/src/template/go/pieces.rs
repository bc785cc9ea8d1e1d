//! Jinja code in front of a translated template: Ollama's changes to a conversation before its template sees it,
//! and Go's printing. None of it mentions features that the template does not, because a template's words tell what
//! its model supports (`roles.rs`).

/// Conversation of a template with `.Messages`: a single system prompt, and consecutive messages of one speaker
/// joined. Most conversations stay as they are. The list grows several messages at a time, because each time copies
/// it.
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

/// Prologue of a template that runs once for each question and answer.
pub(super) const TURNS: &str = "{%- set go = namespace(system='', prompt='', response='', start=0) -%}\n";

/// Calls of the macro `go_turn` for all turns but the last, which ends where the answer starts.
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

/// JSON as Go's library writes it: without spaces, keys of maps sorted, HTML characters escaped.
pub(super) const JSON: &str = "\
{%- macro go_json(value) -%}
{{- value|tojson(separators=(',', ':'), sort_keys=true)|replace('&', '\\\\u0026')|replace('<', '\\\\u003c')|replace('>', '\\\\u003e') -}}
{%- endmacro -%}
";

/// JSON of objects with fields known to Ollama: those first, in its order, then the client's own.
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

/// JSON value as Go prints it.
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
