// Vercel's AI SDK, unmodified, from a question over a call of its own tool to the answer; see tools_client.py.
// usage: node ai_sdk_tools.mjs NODE_MODULES BASE_URL whole|streamed
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, baseURL, how] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const { generateText, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");

const asked = [];
const settings = {
  model: createOpenAICompatible({ name: "hanzo", baseURL, includeUsage: true })("hanzo-demo"),
  prompt: "What is the weather in Paris?",
  tools: {
    get_weather: tool({
      description: "Get the current weather for a city",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        asked.push(city);
        return { city, temperature: 21, sky: "sunny" };
      },
    }),
  },
  stopWhen: stepCountIs(3), temperature: 0, maxOutputTokens: 100, maxRetries: 0,
  onError: ({ error }) => { throw error; },
};
const result = how === "streamed" ? streamText(settings) : await generateText(settings);
if (how === "streamed") await result.consumeStream({ onError: (error) => { throw error; } });
const [text, steps] = [await result.text, await result.steps];
if (asked.length !== 1 || asked[0] !== "Paris") throw new Error(`asked of ${JSON.stringify(asked)}`);
if (steps[0].finishReason !== "tool-calls" || steps[0].toolCalls[0].input.city !== "Paris") throw new Error(JSON.stringify(steps[0]));
if (!text || steps.length !== 2) throw new Error(`${steps.length} steps, ${JSON.stringify(text)}`);
console.log(text);
