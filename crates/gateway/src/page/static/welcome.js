// What stands where nothing has been said yet: something to try, and how a program asks the same.

import { at } from './api.js';
import { h } from './dom.js';
import { codeBlock } from './markdown.js';
import * as models from './models.js';

const TRY = ['What is the capital of France?', 'Tell me a story about a fox.', 'Write a list of three colours.', 'What can you do?'];

const snippets = (model, base) => [
  ['curl', 'sh', `curl ${base}/chat/completions \\\n  -H 'content-type: application/json' \\\n  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello!"}]}'`],
  ['Python', 'python', `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key="unused")\nanswer = client.chat.completions.create(\n    model="${model}",\n    messages=[{"role": "user", "content": "Hello!"}],\n)\nprint(answer.choices[0].message.content)`],
  ['JavaScript', 'javascript', `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: '${base}', apiKey: 'unused' });\nconst answer = await client.chat.completions.create({\n  model: '${model}',\n  messages: [{ role: 'user', content: 'Hello!' }],\n});\nconsole.log(answer.choices[0].message.content);`],
];

/** The welcome; `ask` says a suggestion. */
export function welcome(ask) {
  const code = h('div', { class: 'snippet' });
  const tabs = h('div', { class: 'tabs', role: 'group', 'aria-label': 'Language' });
  let shown = 0;
  const show = () => {
    const list = snippets(models.picked()?.id ?? 'hanzo-demo', at('v1'));
    tabs.replaceChildren(...list.map(([name], index) => h('button', { type: 'button', 'aria-pressed': String(index === shown), onclick: () => { shown = index; show(); tabs.children[shown].focus(); } }, name)));
    code.replaceChildren(codeBlock(list[shown][2], list[shown][1]));
  };
  show();
  const element = h('div', { class: 'welcome' },
    h('h2', {}, 'What would you like to ask?'),
    h('p', { class: 'lead' }, 'Everything said here stays between this browser and your engine.'),
    h('ul', { class: 'suggestions' }, TRY.map((words) => h('li', {}, h('button', { type: 'button', onclick: () => ask(words) }, words)))),
    h('details', { class: 'from-code' }, h('summary', {}, 'Ask from your own code'), tabs, code));
  let known = models.picked()?.id;
  models.onChange((model) => {
    if (!element.isConnected || model?.id === known) return;
    known = model?.id;
    show();
  });
  return element;
}
