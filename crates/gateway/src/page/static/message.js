// One message as it is shown, and shown again while it grows.

import { copyButton, h, icon } from './dom.js';
import { codeBlock, renderer } from './markdown.js';

const NAMES = { user: 'You', assistant: 'Assistant', tool: 'Result of a tool' };
const REASONS = {
  length: 'Ended at its limit of tokens.',
  content_filter: 'Ended by a filter.',
};

/** A message's element. `actions`: {edit, again, answer} where they apply. `update()` shows what has come since. */
export function messageView(message, actions) {
  const body = h('div', { class: 'words' });
  const show = renderer(body);
  const reasoning = reasoningView();
  const calls = h('div', { class: 'calls' });
  const foot = h('div', { class: 'message-foot' });
  const images = (message.images ?? []).map((image) => h('img', { src: image.url, alt: image.name || 'attached image', class: 'picture' }));
  const element = h('article', { class: `message ${message.role}` },
    h('h2', { class: 'hidden' }, NAMES[message.role] ?? message.role), images, reasoning.element, body, calls, foot);
  let shownCalls = '';

  const update = (running = false) => {
    element.classList.toggle('running', running);
    element.setAttribute('aria-busy', String(running));
    // What a person wrote stays as it was written.
    if (message.role === 'user' || message.role === 'tool') body.textContent = message.content ?? '';
    else show(message.content ?? '');
    const quiet = running && !message.content && !message.tool_calls?.length;
    element.classList.toggle('thinking', quiet);
    reasoning.update(message, quiet);
    const state = JSON.stringify([message.tool_calls, running, Boolean(actions.answer)]);
    if (state !== shownCalls) {
      shownCalls = state;
      calls.replaceChildren(...(message.tool_calls ?? []).map((call) => callView(call, running ? null : actions.answer)));
    }
    if (!running) foot.replaceChildren(...footOf(message, actions));
  };
  update();
  return { element, update };
}

function reasoningView() {
  const words = h('div', { class: 'reasoning-words' });
  const show = renderer(words);
  const summary = h('summary', {}, 'Reasoning');
  const element = h('details', { class: 'reasoning', hidden: true }, summary, words);
  return {
    element,
    update(message, thinking) {
      if (!message.reasoning?.trim()) return;
      element.hidden = false;
      const seconds = message.reasoned_ms >= 100 ? ` for ${(message.reasoned_ms / 1000).toFixed(1)} s` : '';
      summary.textContent = thinking ? 'Reasoning…' : `Reasoned${seconds}`;
      show(message.reasoning);
    },
  };
}

function callView(call, answer) {
  let shown = call.arguments;
  try { shown = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { /* still coming */ }
  const card = h('section', { class: 'call', 'aria-label': `Call of ${call.name}` },
    h('div', { class: 'call-head' }, icon('tool'), h('strong', {}, call.name || '…'), h('span', {}, call.result === undefined ? (answer ? 'waits for a result' : 'called') : 'answered')),
    codeBlock(shown, 'json'));
  if (call.result !== undefined) {
    card.append(h('p', { class: 'call-result' }, call.result));
  } else if (answer) {
    const area = h('textarea', { rows: 2, class: 'mono', id: `result-${call.id}`, placeholder: '{"temperature": 21}' });
    card.append(h('form', { class: 'call-form', onsubmit: (event) => { event.preventDefault(); answer(call, area.value); } },
      h('label', { for: area.id }, 'Its result'), area, h('button', { class: 'button', type: 'submit' }, 'Give the result')));
  }
  return card;
}

function footOf(message, actions) {
  const parts = [];
  if (message.error) parts.push(h('p', { class: 'problem', role: 'alert' }, message.error));
  if (message.stopped) parts.push(h('p', { class: 'note' }, 'Stopped.'));
  if (REASONS[message.finish]) parts.push(h('p', { class: 'note' }, REASONS[message.finish]));
  const buttons = [];
  if (message.content) buttons.push(copyButton(() => message.content, 'Copy message'));
  const button = (name, label, action) => h('button', { type: 'button', class: 'mini', 'aria-label': label, title: label, onclick: action }, icon(name));
  if (actions.edit) buttons.push(button('edit', 'Edit and ask again', actions.edit));
  if (actions.again) buttons.push(button('again', 'Answer again', actions.again));
  const figures = figuresOf(message);
  if (buttons.length > 0 || figures) {
    parts.push(h('div', { class: 'message-tools' }, buttons, figures && h('span', { class: 'figures' }, figures)));
  }
  return parts;
}

/** Model, tokens and speed. */
function figuresOf(message) {
  if (message.role !== 'assistant') return '';
  const parts = [];
  if (message.model) parts.push(message.model);
  const { usage, timings } = message;
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${usage.completion_tokens} tokens`);
    if (cached) parts.push(`${cached} of ${usage.prompt_tokens} from cache`);
  }
  if (timings?.decode_tokens_per_s > 0) parts.push(`${timings.decode_tokens_per_s.toFixed(1)} tokens/s`);
  if (message.first_ms !== undefined) parts.push(`first after ${(message.first_ms / 1000).toFixed(2)} s`);
  return parts.join(' · ');
}
