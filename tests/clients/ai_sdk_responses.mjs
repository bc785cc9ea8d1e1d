// Vercel's AI SDK with OpenAI's own provider, unmodified, which speaks the Responses API: a question, a call of a tool, the answer, and a
// next turn; see responses_client.py. Kept, it names the items of earlier responses; sent, it sends them, reasoning included.
// usage: node ai_sdk_responses.mjs NODE_MODULES BASE_URL whole|streamed kept|sent
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, baseURL, how, what] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const { generateText, stepCountIs, streamText, tool, Output } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");

const model = createOpenAI({ baseURL, apiKey: "none" })("scripted");
const openai = { forceReasoning: true, reasoningSummary: "auto", ...(what === "sent" ? { store: false } : {}) };
const tools = {
  get_weather: tool({
    description: "Weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (city === "Paris" ? "sunny" : "unknown"),
  }),
};

async function ask(messages, more) {
  const settings = {
    model, messages, stopWhen: stepCountIs(3), maxRetries: 0, providerOptions: { openai },
    onError: ({ error }) => { throw error; }, ...more,
  };
  const result = how === "streamed" ? streamText(settings) : await generateText(settings);
  if (how === "streamed") await result.consumeStream({ onError: (error) => { throw error; } });
  return { text: await result.text, steps: await result.steps, response: await result.response, output: more?.output && (await result.output) };
}

const typed = await ask([{ role: "user", content: "weather" }], { output: Output.object({ schema: z.object({ city: z.string(), degrees: z.number() }) }) });
if (typed.output.city !== "Paris" || typed.output.degrees !== 18) throw new Error(JSON.stringify(typed.output));

const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const first = await ask(messages, { tools });
if (first.text !== "The tool says: sunny" || first.steps.length !== 2) throw new Error(JSON.stringify(first.steps));
if (first.steps[0].finishReason !== "tool-calls" || first.steps[0].reasoningText !== "I should look.") throw new Error(JSON.stringify(first.steps[0]));
await ask([...messages, ...first.response.messages, { role: "user", content: "thanks" }], { tools });
