// npm's openai, as it is, in front of `serve` with the demo model: chats whole, streamed and parsed, completions, responses, embeddings, models, errors.
// usage: node openai_js.mjs NODE_MODULES BASE_URL
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, baseURL] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const { OpenAI } = require("openai");
const { zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const model = "hanzo-demo";
const ask = { model, messages: [{ role: "user", content: "What is the capital of France?" }], temperature: 0, max_tokens: 40 };

const models = [];
for await (const one of client.models.list()) models.push(one.id);
assert(models.includes(model), models.join());
assert.equal((await client.models.retrieve(model)).id, model);

const whole = await client.chat.completions.create(ask);
const said = whole.choices[0].message.content;
assert(said.length > 3 && whole.usage.total_tokens === whole.usage.prompt_tokens + whole.usage.completion_tokens, JSON.stringify(whole));
let streamed = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.deepEqual([streamed, usage.total_tokens], [said, whole.usage.total_tokens]);
const runner = client.chat.completions.stream(ask);
assert.equal((await runner.finalChatCompletion()).choices[0].message.content, said);

const Answer = z.object({ ok: z.boolean() });
const parsed = await client.chat.completions.parse({ ...ask, max_tokens: 200, reasoning_effort: "none", response_format: zodResponseFormat(Answer, "answer") });
assert.equal(typeof parsed.choices[0].message.parsed.ok, "boolean");

const text = await client.completions.create({ model, prompt: "Once", max_tokens: 5, temperature: 0 });
let pieces = "";
for await (const chunk of await client.completions.create({ model, prompt: "Once", max_tokens: 5, temperature: 0, stream: true })) pieces += chunk.choices[0]?.text ?? "";
assert.equal(pieces, text.choices[0].text);

const response = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 60 });
assert(response.output_text.length > 3, JSON.stringify(response));
const kinds = [];
for await (const event of await client.responses.create({ model, input: "Hello!", max_output_tokens: 20, stream: true })) kinds.push(event.type);
assert.deepEqual([kinds[0], /^response\.(completed|incomplete)$/.test(kinds.at(-1))], ["response.created", true], kinds.join());

// Its default asks for base64 and gives numbers.
const vectors = await client.embeddings.create({ model, input: ["a", "b"] });
assert.deepEqual([vectors.data.length, vectors.data[0].embedding.length > 0], [2, true]);

const controller = new AbortController();
await assert.rejects(async () => {
  for await (const _ of await client.chat.completions.create({ ...ask, max_tokens: 2000, ignore_eos: true, stream: true }, { signal: controller.signal })) controller.abort();
  throw new OpenAI.APIUserAbortError();
}, OpenAI.APIUserAbortError);
await assert.rejects(() => client.chat.completions.create({ ...ask, temperature: 9 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
await assert.rejects(() => client.chat.completions.create({ ...ask, model: "no-such-model" }), OpenAI.NotFoundError);
