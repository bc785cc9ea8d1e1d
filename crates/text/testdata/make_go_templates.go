// Makes go_templates.json: what Go's text/template makes of conversations where a template in its language is run as Ollama runs one
// (its template/template.go): one system prompt, messages of one speaker in a row as one, and where a template has no
// `.Messages` a run for each question and answer, the last up to `.Response`. Of tools and arguments the JSON is printed.
// usage: go run make_go_templates.go >go_templates.json
// With a folder it makes the same of each *.gotmpl in it, and GO_TEMPLATES=FILE has the test compare those: go run make_go_templates.go FOLDER >FILE
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
	"text/template/parse"
)

type types []string

func (t *types) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*t = types{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(t))
}

func (t types) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]string(t))
}

func (t types) String() string {
	if len(t) == 1 {
		return t[0]
	}
	return fmt.Sprintf("%v", []string(t))
}

type property struct {
	Type        types      `json:"type,omitempty"`
	Items       any        `json:"items,omitempty"`
	Description string     `json:"description,omitempty"`
	Enum        []any      `json:"enum,omitempty"`
	Properties  properties `json:"properties,omitempty"`
	Required    []string   `json:"required,omitempty"`
}

type properties map[string]property

func (p properties) String() string { return asJSON(p) }

type parameters struct {
	Type       string     `json:"type"`
	Required   []string   `json:"required,omitempty"`
	Properties properties `json:"properties"`
}

func (p parameters) String() string { return asJSON(p) }

type function struct {
	Name        string     `json:"name"`
	Description string     `json:"description"`
	Parameters  parameters `json:"parameters"`
}

func (f function) String() string { return asJSON(f) }

type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

func (t tool) String() string { return asJSON(t) }

type tools []tool

func (t tools) String() string { return asJSON(t) }

type arguments map[string]any

func (a arguments) String() string { return asJSON(a) }

type called struct {
	Name      string
	Arguments arguments
}

type call struct {
	ID       string
	Function called
}

type message struct {
	Role, Content string
	Thinking      string `json:"reasoning_content"`
	ToolCalls     []call `json:"tool_calls"`
	ToolName      string `json:"name"`
	ToolCallID    string `json:"tool_call_id"`
}

type chat struct {
	Messages []message
	Tools    tools
	Kwargs   struct {
		Think *bool  `json:"enable_thinking"`
		Level string `json:"reasoning_effort"`
	}
}

func asJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

// render is Ollama's Template.Execute.
func render(source string, of chat) (string, error) {
	read, err := template.New("").Option("missingkey=zero").Funcs(template.FuncMap{"json": asJSON}).Parse(source)
	if err != nil {
		return "", err
	}
	names := map[string]bool{}
	identifiers(read.Root, names)
	if !names["messages"] && !names["response"] {
		read.Root.Nodes = append(read.Root.Nodes, response(read))
	}
	var systems []string
	var messages []*message
	for i := range of.Messages {
		each := of.Messages[i]
		if each.Role == "system" {
			systems = append(systems, each.Content)
		}
		if last := len(messages) - 1; last >= 0 && messages[last].Role == each.Role && each.Role != "tool" {
			messages[last].Content += "\n\n" + each.Content
		} else {
			messages = append(messages, &each)
		}
	}
	var out bytes.Buffer
	run := func(read *template.Template, values map[string]any) error {
		values["Think"], values["ThinkLevel"] = of.Kwargs.Think != nil && *of.Kwargs.Think, of.Kwargs.Level
		values["IsThinkSet"] = of.Kwargs.Think != nil
		return read.Execute(&out, values)
	}
	if names["messages"] {
		err := run(read, map[string]any{"System": strings.Join(systems, "\n\n"), "Messages": messages, "Tools": of.Tools, "Response": ""})
		return out.String(), err
	}
	var system, prompt, said string
	turn := func(read *template.Template) error {
		values := map[string]any{"System": system, "Prompt": prompt, "Response": said}
		system, prompt, said = "", "", ""
		return run(read, values)
	}
	for _, each := range messages {
		if each.Role == "system" && (prompt != "" || said != "") || each.Role == "user" && said != "" {
			if err := turn(read); err != nil {
				return "", err
			}
		}
		switch each.Role {
		case "system":
			system = each.Content
		case "user":
			prompt = each.Content
		case "assistant":
			said = each.Content
		}
	}
	done := false
	tree := parse.Tree{Root: cut(read.Root.Copy(), &done).(*parse.ListNode)}
	last, err := template.New("").Funcs(template.FuncMap{"json": asJSON}).AddParseTree("", &tree)
	if err != nil {
		return "", err
	}
	err = turn(last)
	return out.String(), err
}

func response(read *template.Template) parse.Node {
	of, _ := template.New("").Parse("{{ .Response }}")
	return of.Root.Nodes[0]
}

func identifiers(node parse.Node, names map[string]bool) {
	add := func(of []string) {
		for _, name := range of {
			names[strings.ToLower(name)] = true
		}
	}
	branch := func(of *parse.BranchNode) {
		identifiers(of.Pipe, names)
		identifiers(of.List, names)
		if of.ElseList != nil {
			identifiers(of.ElseList, names)
		}
	}
	switch of := node.(type) {
	case *parse.ListNode:
		for _, each := range of.Nodes {
			identifiers(each, names)
		}
	case *parse.ActionNode:
		identifiers(of.Pipe, names)
	case *parse.IfNode:
		branch(&of.BranchNode)
	case *parse.RangeNode:
		branch(&of.BranchNode)
	case *parse.WithNode:
		branch(&of.BranchNode)
	case *parse.PipeNode:
		for _, command := range of.Cmds {
			for _, arg := range command.Args {
				identifiers(arg, names)
			}
		}
	case *parse.FieldNode:
		add(of.Ident)
	case *parse.VariableNode:
		add(of.Ident)
	}
}

// cut leaves what stands before the first `.Response` that is printed, with it.
func cut(node parse.Node, done *bool) parse.Node {
	branch := func(of *parse.BranchNode) {
		of.List = cut(of.List, done).(*parse.ListNode)
		if of.ElseList != nil {
			of.ElseList = cut(of.ElseList, done).(*parse.ListNode)
		}
	}
	switch of := node.(type) {
	case *parse.ListNode:
		var kept []parse.Node
		for _, each := range of.Nodes {
			if *done {
				break
			}
			kept = append(kept, cut(each, done))
		}
		of.Nodes = kept
	case *parse.IfNode:
		branch(&of.BranchNode)
	case *parse.WithNode:
		branch(&of.BranchNode)
	case *parse.RangeNode:
		branch(&of.BranchNode)
	case *parse.ActionNode:
		*done = *done || strings.Contains(of.String(), ".Response")
	}
	return node
}

const conversations = `{
"one": {"messages": [{"role": "user", "content": "Hello <you> & \"me\"!"}]},
"three": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": " Bye\n"}]},
"begun": {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One,"}]},
"late": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "system", "content": "S1"}, {"role": "system", "content": "S2"},
  {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"}, {"role": "system", "content": "S3"}, {"role": "user", "content": "e"}]},
"tools": {"messages": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Rome & Oslo?"},
  {"role": "assistant", "content": "", "reasoning_content": "I need both.", "tool_calls": [
    {"id": "a1", "type": "function", "function": {"name": "weather", "arguments": {"days": 2, "city": "Rome", "near": ["<sea>", null], "more": {"b": true, "a": 1.5}}}},
    {"id": "b2", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
  {"role": "tool", "content": "22", "name": "weather", "tool_call_id": "a1"}, {"role": "tool", "content": "9", "name": "weather", "tool_call_id": "b2"}],
 "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather of a city, in °C & words", "parameters": {"type": "object",
   "properties": {"days": {"description": "How many", "type": ["integer", "null"]}, "city": {"type": "string", "description": "Its name", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}}}]},
"thinks": {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}, {"role": "user", "content": "And?"}], "kwargs": {"enable_thinking": true, "reasoning_effort": "high"}},
"hurries": {"messages": [{"role": "user", "content": "Why?"}], "kwargs": {"enable_thinking": false}}
}`

// In the forms of those that packages have.
var templates = map[string]string{
	"prompt":    "{{ .Prompt }}",
	"turns":     "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n{{ .Response }}<|im_end|>\n",
	"inst":      "[INST] {{ if .System }}{{ .System }} {{ end }}{{ .Prompt }} [/INST]",
	"inside":    "{{- if .System }}S:{{ .System }};{{ end }}{{ if .Prompt }}U:{{ .Prompt }};A:{{ if .Response }}{{ .Response }}{{ else }}?{{ end }};{{ end }}.",
	"roles":     "{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>\n{{- end }}<|start_header_id|>assistant<|end_header_id|>\n\n",
	"carried":   "{{- $system := \"\" }}\n{{- range .Messages }}\n{{- if eq .Role \"system\" }}\n{{- if not $system }}{{ $system = .Content }}\n{{- else }}{{ $system = printf \"%s\\n\\n%s\" $system .Content }}\n{{- end }}\n{{- continue }}\n{{- else if eq .Role \"user\" }}<start_of_turn>user\n{{- if $system }}\n{{ $system }}\n{{- $system = \"\" }}\n{{- end }}\n{{- else if eq .Role \"assistant\" }}<start_of_turn>model\n{{- end }}\n{{ .Content }}<end_of_turn>\n{{ end }}<start_of_turn>model\n",
	"gap":       "{{- if .Suffix }}<fim_prefix>{{ .Prompt }}<fim_suffix>{{ .Suffix }}<fim_middle>\n{{- else if .Messages }}\n{{- range $i, $_ := .Messages }}{{ $i }}{{ .Role }}={{ .Content }};{{ end }}\n{{- else }}{{ .Prompt }}{{ end }}{{ .Response }}",
	"calls":     "{{- $lastUser := -1 -}}\n{{- range $at, $each := .Messages -}}\n{{- if eq $each.Role \"user\" }}{{ $lastUser = $at }}{{ end -}}\n{{- end }}\n{{- if or .System .Tools }}<|im_start|>system\n{{ if .System }}\n{{ .System }}\n{{- end }}\n{{- if .Tools }}\n\n# Tools\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{{- range .Tools }}\n{\"type\": \"function\", \"function\": {{ .Function }}}\n{{- end }}\n</tools>\n\nFor each function call, return a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>\n{{- end }}<|im_end|>\n{{ end }}\n{{- range $i, $_ := .Messages }}\n{{- $last := eq (len (slice $.Messages $i)) 1 -}}\n{{- if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}\n{{- if and $.IsThinkSet (eq $i $lastUser) }}\n   {{- if $.Think -}}\n      {{- \" \"}}/think\n   {{- else -}}\n      {{- \" \"}}/no_think\n   {{- end -}}\n{{- end }}<|im_end|>\n{{ else if eq .Role \"assistant\" }}<|im_start|>assistant\n{{ if (and $.IsThinkSet (and .Thinking (or $last (gt $i $lastUser)))) -}}\n<think>{{ .Thinking }}</think>\n{{ end -}}\n{{ if .Content }}{{ .Content }}\n{{- else if .ToolCalls }}<tool_call>\n{{ range .ToolCalls }}{\"name\": \"{{ .Function.Name }}\", \"arguments\": {{ .Function.Arguments }}}\n{{ end }}</tool_call>\n{{- end }}{{ if not $last }}<|im_end|>\n{{ end }}\n{{- else if eq .Role \"tool\" }}<|im_start|>user\n<tool_response>\n{{ .Content }}\n</tool_response><|im_end|>\n{{ end }}\n{{- if and (ne .Role \"assistant\") $last }}<|im_start|>assistant\n{{ if and $.IsThinkSet (not $.Think) -}}\n<think>\n\n</think>\n\n{{ end -}}\n{{ end }}\n{{- end }}",
	"available": "{{- range $index, $_ := .Messages }}\n{{- if eq .Role \"user\" }}\n{{- if and (le (len (slice $.Messages $index)) 5) $.Tools }}[AVAILABLE_TOOLS] {{ $.Tools }}[/AVAILABLE_TOOLS]\n{{- end }}[INST] {{ if and (eq (len (slice $.Messages $index)) 1) $.System }}{{ $.System }}\n\n{{ end }}{{ .Content }}[/INST]\n{{- else if eq .Role \"assistant\" }}\n{{- if .Content }} {{ .Content }}</s>\n{{- else if .ToolCalls }}[TOOL_CALLS] [\n{{- range $n, $c := .ToolCalls }}{{ if $n }}, {{ end }}{\"name\": \"{{ .Function.Name }}\", \"arguments\": {{ json .Function.Arguments }}, \"id\": {{ .ID | json }}}\n{{- end }}]</s>\n{{- end }}\n{{- else if eq .Role \"tool\" }}[TOOL_RESULTS] {\"content\": {{ .Content }}, \"name\": \"{{ .ToolName }}\"}[/TOOL_RESULTS]\n{{- end }}\n{{- end }}",
	"python":    "{{- range .Tools }}def {{ .Function.Name }}(\n{{- range $name, $property := .Function.Parameters.Properties }}{{ $name }}: {{ $property.Type }}, {{ end }}) -> List[Dict]:\n    '''{{ .Function.Description }}\n{{- if .Function.Parameters.Properties }}\n\n    Args:\n{{- range $name, $property := .Function.Parameters.Properties }}\n        {{ $name }} ({{ $property.Type }}): {{ $property.Description }} {{ $property.Enum }}\n{{- end }}\n{{- end }}\n    '''{{ json . }}{{ .Function.Parameters.Required }}\n{{- end }}{{ range .Messages }}{{ if eq .Role \"system\" \"tool\" }}{{ continue }}{{ end }}{{ with .ToolCalls }}{{ range . }}<function={{ .Function.Name }}>{{ range $key, $value := .Function.Arguments }}<{{ $key }}>{{ $value }}</{{ $key }}>{{ end }}{{ end }}{{ else }}{{ printf \"%s: %v (%d%%)\" .Role .Content 7 }}{{ end }}{{ end }}",
	"odd":       "{{/* nothing */}}a {{- /* at all */ -}} b{{ \"\\u00e9\\t\\\"x\\\"\" }}{{ `raw \\n` }}{{ print \"p\" \"q\" }}{{ println \"r\" }}{{ with $first := index .Messages 0 }}{{ $first.Role }}{{ .Content | printf \"<%s>\" }}{{ end }}{{ (index $.Messages 0).Role | len }}{{ range $i, $m := .Messages }}{{ if ge $i 2 }}{{ break }}{{ end }}{{ if and (lt $i 1) (not (gt $i 0)) }}it's {{ true }} {{ $i }}{{ else }}\"{{ $m.Role }}\"{{ end }}{{ else }}none{{ end }}{{ $.ThinkLevel }}{{ or $.System \"no system\" }}{{ and $.System \"x\" }}{{ 3 }}{{ eq $.System \"\" }}",
}

func main() {
	if len(os.Args) > 1 {
		templates = map[string]string{}
		files, _ := filepath.Glob(filepath.Join(os.Args[1], "*.gotmpl"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				panic(err)
			}
			templates[filepath.Base(file)] = string(text)
		}
	}
	var chats map[string]chat
	var raw map[string]json.RawMessage
	for _, into := range []any{&chats, &raw} {
		if err := json.Unmarshal([]byte(conversations), into); err != nil {
			panic(err)
		}
	}
	made := map[string]any{}
	for name, source := range templates {
		prompts := map[string]string{}
		for of, chat := range chats {
			prompt, err := render(source, chat)
			if err != nil {
				panic(fmt.Sprint(name, ": ", err))
			}
			prompts[of] = prompt
		}
		made[name] = map[string]any{"template": source, "prompts": prompts}
	}
	names := make([]string, 0, len(made))
	for name := range made {
		names = append(names, name)
	}
	sort.Strings(names)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	fmt.Print("{\"conversations\": ")
	_ = out.Encode(raw)
	fmt.Print(",\"templates\": {\n")
	for at, name := range names {
		fmt.Printf("%q: ", name)
		_ = out.Encode(made[name])
		if at+1 < len(names) {
			fmt.Print(",")
		}
	}
	fmt.Println("}}")
}
