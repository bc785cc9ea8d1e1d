// What goes beside the messages: the system prompt and how an answer is drawn. Only what is set is sent.

import { $, h, icon } from './dom.js';
import { settings } from './store.js';

const NUMBERS = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, about: '0 always takes the likeliest word; higher is more varied.' },
  { name: 'top_p', label: 'Top p', min: 0.01, max: 1, step: 0.01, about: 'Of the likeliest words, those that make up this share.' },
  { name: 'top_k', label: 'Top k', min: 0, max: 1000, step: 1, about: 'The likeliest so many words; 0 for all.' },
  { name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01, about: 'Words at least this likely, measured by the likeliest.' },
  { name: 'max_tokens', label: 'Max tokens', min: 1, max: 1000000, step: 1, about: 'The answer ends here at the latest.' },
  { name: 'seed', label: 'Seed', min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, about: 'The same seed gives the same answer.' },
  { name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 0.1, about: 'Against words the more they were said.' },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1, about: 'Against words that were said at all.' },
];
const EFFORTS = ['none', 'low', 'medium', 'high'];

let values = settings.get();

/** What a request says beside model and messages. */
export function sampling() {
  const said = {};
  for (const { name } of NUMBERS) {
    if (Number.isFinite(values[name])) said[name] = values[name];
  }
  const stop = (values.stop ?? '').split('\n').filter((line) => line !== '');
  if (stop.length > 0) said.stop = stop;
  if (EFFORTS.includes(values.reasoning_effort)) said.reasoning_effort = values.reasoning_effort;
  const tools = parseTools(values.tools ?? '');
  if (tools.list?.length) said.tools = tools.list;
  return said;
}

/** The system prompt for conversations to come. */
export const systemPrompt = () => values.system ?? '';

/** Tools in OpenAI's shape, or those of MCP, which have less around them. */
function parseTools(text) {
  if (text.trim() === '') return { list: [] };
  try {
    const parsed = JSON.parse(text);
    const list = Array.isArray(parsed) ? parsed : parsed.tools ?? [parsed];
    if (!list.every((tool) => tool && typeof tool === 'object')) return { error: 'a list of tools is wanted' };
    const whole = (tool) => (tool.type ? tool : { type: 'function', function: { name: tool.name, description: tool.description, parameters: tool.parameters ?? tool.inputSchema ?? tool.input_schema } });
    return { list: list.map(whole) };
  } catch (error) {
    return { error: error.message };
  }
}

function change(name, value) {
  if (value === undefined || value === '') delete values[name];
  else values[name] = value;
  settings.set(values);
}

function numberField({ name, label, min, max, step, about }) {
  const fault = h('span', { class: 'fault', id: `set-${name}-fault`, role: 'alert' });
  const input = h('input', {
    id: `set-${name}`, type: 'number', min, max, step: step < 1 ? 'any' : step, inputmode: step < 1 ? 'decimal' : 'numeric',
    placeholder: 'model’s own', value: values[name] ?? '', 'aria-describedby': `set-${name}-about set-${name}-fault`,
  });
  input.addEventListener('input', () => {
    const fine = input.checkValidity();
    input.setAttribute('aria-invalid', String(!fine));
    fault.textContent = fine ? '' : `From ${min} to ${max}${step < 1 ? '' : ', whole'}.`;
    if (fine) change(name, input.value === '' ? undefined : Number(input.value));
  });
  return h('div', { class: 'field' }, h('label', { for: input.id }, label), input, h('p', { class: 'about', id: `set-${name}-about` }, about), fault);
}

function textField({ name, label, about, rows, placeholder, check, mono }) {
  const fault = h('span', { class: 'fault', id: `set-${name}-fault`, role: 'alert' });
  const area = h('textarea', { id: `set-${name}`, rows, placeholder, class: mono ? 'mono' : null, spellcheck: mono ? 'false' : null, value: values[name] ?? '', 'aria-describedby': `set-${name}-about set-${name}-fault` });
  const look = () => {
    const problem = check?.(area.value);
    fault.textContent = problem ?? '';
    area.setAttribute('aria-invalid', String(Boolean(problem)));
  };
  area.addEventListener('input', () => { change(name, area.value); look(); });
  look();
  return h('div', { class: 'field tall' }, h('label', { for: area.id }, label), area, h('p', { class: 'about', id: `set-${name}-about` }, about), fault);
}

function effortField() {
  const select = h('select', { id: 'set-reasoning_effort', onchange: () => change('reasoning_effort', select.value) },
    h('option', { value: '' }, 'model’s own'), EFFORTS.map((effort) => h('option', { value: effort }, effort)));
  select.value = EFFORTS.includes(values.reasoning_effort) ? values.reasoning_effort : '';
  return h('div', { class: 'field' }, h('label', { for: select.id }, 'Reasoning'), select, h('p', { class: 'about' }, 'How long models that reason may think first.'));
}

function fill(panel, close) {
  const reset = h('button', { type: 'button', class: 'button', onclick: () => { values = {}; settings.set(values); fill(panel, close); } }, 'Reset all');
  panel.replaceChildren(
    h('div', { class: 'panel-head' }, h('h2', { id: 'settings-head' }, 'Settings'),
      h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Close settings', onclick: close }, icon('close'))),
    h('div', { class: 'panel-body' },
      textField({ name: 'system', label: 'System prompt', rows: 4, placeholder: 'You are…', about: 'Said to the model before each new conversation.' }),
      h('div', { class: 'fields' }, NUMBERS.map(numberField), effortField()),
      textField({ name: 'stop', label: 'Stop at', rows: 2, mono: true, placeholder: 'one text a line', about: 'The answer ends before any of these.' }),
      textField({ name: 'tools', label: 'Tools', rows: 5, mono: true, placeholder: '[{"name": "get_weather", "description": "…", "parameters": {…}}]', about: 'JSON, as OpenAI or MCP list them. Calls are shown; you give their results.', check: (text) => parseTools(text).error }),
      reset));
}

/** Makes the panel, and its button open it. */
export function setUp() {
  const [panel, button] = [$('settings'), $('settings-open')];
  button.replaceChildren(icon('sliders'));
  const show = (open) => {
    panel.hidden = !open;
    button.setAttribute('aria-expanded', String(open));
    document.body.classList.toggle('with-panel', open);
    if (open) panel.querySelector('textarea').focus();
    else button.focus();
  };
  fill(panel, () => show(false));
  button.addEventListener('click', () => show(panel.hidden));
  panel.addEventListener('keydown', (event) => { if (event.key === 'Escape') show(false); });
}
