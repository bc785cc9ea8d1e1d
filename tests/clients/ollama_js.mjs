// npm's ollama, unmodified. usage: node ollama_js.mjs URL MODEL NODE_MODULES
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [host, model, modules] = process.argv.slice(2);
const { Ollama } = createRequire(`${modules}/`)("ollama");
const client = new Ollama({ host });
const ask = { model, messages: [{ role: "user", content: "What is the capital of France?" }], think: false, options: { temperature: 0, num_predict: 64 } };

const whole = await client.chat(ask);
assert.match(whole.message.content, /Paris/);
let text = "";
for await (const part of await client.chat({ ...ask, stream: true })) text += part.message.content;
assert.equal(text, whole.message.content);
const prompted = await client.generate({ model, prompt: ask.messages[0].content, think: false, options: ask.options });
assert.equal(prompted.response, text);
assert.ok((await client.list()).models.some((one) => one.name === `${model}:latest`));
assert.ok((await client.ps()).models.length > 0);
assert.ok((await client.show({ model })).capabilities.includes("completion"));
await assert.rejects(client.chat({ ...ask, model: "no-such-model" }), /not found/);
assert.equal((await client.embed({ model, input: ["a", "b"] })).embeddings.length, 2);
console.log("chat, stream, generate, list, ps, show, embed, errors");
