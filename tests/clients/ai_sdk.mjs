// A loop of five turns of Vercel's AI SDK, unmodified, which sends back the messages of each answer; see agents_client.py.
// usage: node ai_sdk.mjs NODE_MODULES BASE_URL whole|streamed
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, baseURL, how] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const { generateText, streamText } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

const model = createOpenAICompatible({ name: "hanzo", baseURL, includeUsage: true })("hanzo-demo");
const questions = ["Hello!", "What is the capital of France?", "And of Italy?", "What is a fox?", "Thank you!"];
const messages = [];
const prompts = [];

for (const [i, question] of questions.entries()) {
  messages.push({ role: "user", content: i % 2 ? [{ type: "text", text: question }] : question });
  const settings = {
    model, messages, system: "You are short.", maxOutputTokens: 24, maxRetries: 0,
    onError: ({ error }) => { throw error; },
  };
  const result = how === "streamed" ? streamText(settings) : await generateText(settings);
  if (how === "streamed") await result.consumeStream({ onError: (error) => { throw error; } });
  const [usage, response] = [await result.usage, await result.response];
  if (!(usage.outputTokens > 0)) throw new Error(`turn ${i}: no answer`);
  if (prompts.length > 0 && !(usage.inputTokens > prompts.at(-1))) {
    throw new Error(`turn ${i}: ${usage.inputTokens} tokens after ${prompts}`);
  }
  prompts.push(usage.inputTokens);
  messages.push(...response.messages);
  if (i === 2) {
    const call = (toolCallId, input) => ({ type: "tool-call", toolCallId, toolName: "weather", input });
    const output = (toolCallId, output) => ({ type: "tool-result", toolCallId, toolName: "weather", output });
    messages.push(
      {
        role: "assistant",
        content: [
          { type: "reasoning", text: "I should look.", providerOptions: { hanzo: { signature: "c2ln" } } },
          call("call_1", { city: "Rome" }), call("call_2", '{"city": "Par'),
        ],
      },
      {
        role: "tool",
        content: [
          output("call_1", { type: "json", value: { sky: "clear" } }),
          output("call_2", { type: "error-text", value: "arguments are no JSON" }),
        ],
      },
      { role: "assistant", content: "It is warm." },
    );
  }
}
if (prompts.length !== 5) throw new Error(`${prompts}`);
console.log(`prompts of [${prompts.join(", ")}] tokens`);
