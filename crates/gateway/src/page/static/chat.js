// The conversation: what is said, asked, streamed, stopped and asked again.

import * as api from './api.js';
import { attachments } from './attach.js';
import { $, announce, h, icon, toast } from './dom.js';
import { welcome } from './welcome.js';
import { messageView } from './message.js';
import * as models from './models.js';
import * as settings from './settings.js';
import * as store from './store.js';

const NEAR_END_PX = 80;
const SAVE_MS = 1000; // while an answer comes
const CURRENT = 'hanzo.current';

let conversation = store.create();
let views = [];
let running = null; // {controller, message} while an answer comes
let editing = null; // {message, draft, images} while an earlier question is written anew, and what was being written before
let listChanged = () => {};

export const current = () => conversation.id;

/** Another tab has changed the conversation that is shown: what it kept is shown here too. */
export function changed(id) {
  if (running || editing || (id !== undefined && id !== conversation.id)) return;
  const kept = store.load(conversation.id);
  if (!kept || kept.updated === conversation.updated) return;
  conversation = kept;
  showAll();
}

/** The conversation that is shown has another name. */
export function retitle(title) {
  conversation.title = title;
}

/** Shows a conversation, or a new one. */
export function open(id) {
  stop();
  endEdit();
  conversation = (id && store.load(id)) || store.create();
  remember();
  if (conversation.model) models.pick(conversation.model);
  showAll();
  listChanged();
}

/** Remembers the conversation for when the page is loaded again. */
function remember() {
  try { sessionStorage.setItem(CURRENT, conversation.id); } catch { /* not remembered */ }
}

/** Keeps a conversation: as a copy, where another tab has changed it meanwhile. */
function save(one) {
  if (!store.save(one)) return;
  if (one === conversation) remember();
  toast('Another tab has changed this conversation: yours goes on as a copy.');
  listChanged();
}

function showAll() {
  const thread = $('thread');
  views = conversation.messages.filter((message) => message.role !== 'tool').map((message) => viewOf(message));
  thread.replaceChildren(h('div', { class: 'column' }, views.length > 0 ? views.map((view) => view.element) : welcome(ask)));
  $('chat').classList.toggle('empty', views.length === 0);
  const edited = editing && views.find((view) => view.message === editing.message);
  edited?.element.classList.add('edited');
  showNotices();
  if (edited) edited.element.scrollIntoView({ block: 'nearest' });
  else toEnd();
}

function viewOf(message) {
  const at = () => conversation.messages.indexOf(message);
  const isLast = () => conversation.messages.slice(at() + 1).every((later) => later.role === 'tool');
  const actions = {
    edit: message.role === 'user' ? () => edit(at()) : null,
    again: message.role === 'assistant' ? () => again(at()) : null,
    get answer() { return message.role === 'assistant' && message.tool_calls?.some((call) => call.result === undefined) && isLast() ? giveResult : null; },
  };
  return { message, ...messageView(message, actions) };
}

/** Puts an earlier question in the field. Nothing changes until it is sent. */
function edit(at) {
  if (running) return;
  const message = conversation.messages[at];
  endEdit();
  editing = { message, draft: $('draft').value, images: attachments.take() };
  $('draft').value = message.content;
  attachments.put(message.images ?? []);
  showAll();
  grow();
  $('draft').focus();
}

function cancelEdit() {
  if (!editing) return;
  endEdit();
  $('draft').focus();
}

/** Ends an edit, and gives back what was being written before it. */
function endEdit() {
  if (!editing) return;
  $('draft').value = editing.draft;
  attachments.put(editing.images);
  editing = null;
  showNotices();
  for (const view of views) view.element.classList.remove('edited');
  grow();
}

/** Takes the messages from a place on out of the conversation. They are kept beside it until others are. */
function replaceFrom(at) {
  const messages = conversation.messages.splice(at);
  if (messages.length > 0) conversation.replaced = { at, messages };
}

/** Puts back what was replaced, and keeps what stood there since in its place. */
function undo() {
  const { at, messages } = conversation.replaced ?? {};
  if (running || !messages) return;
  endEdit();
  replaceFrom(at);
  conversation.messages.push(...messages);
  save(conversation);
  showAll();
  listChanged();
}

function again(at) {
  if (running || !models.picked()) return;
  endEdit();
  replaceFrom(at);
  showAll();
  answer();
}

const counted = (count) => (count === 1 ? '1 message' : `${count} messages`);

/** What is being edited, and what was replaced. */
function showNotices() {
  const later = editing ? conversation.messages.length - conversation.messages.indexOf(editing.message) - 1 : 0;
  $('editing').hidden = !editing;
  $('editing-words').textContent = later > 0 ? `Editing: sending replaces this question and ${counted(later)} after it.` : 'Editing: sending replaces this question.';
  const replaced = editing || running ? null : conversation.replaced;
  $('replaced').hidden = !replaced;
  $('replaced-words').textContent = replaced ? `${counted(replaced.messages.length)} replaced.` : '';
}

function giveResult(call, result) {
  if (running) return;
  call.result = result;
  const owner = conversation.messages.find((message) => message.tool_calls?.includes(call));
  views.find((view) => view.message === owner)?.update();
  save(conversation);
  if (owner.tool_calls.every((other) => other.result !== undefined)) answer();
}

/** What the server is sent: history in OpenAI's shape. */
function history() {
  const list = [];
  if (conversation.system) list.push({ role: 'system', content: conversation.system });
  for (const message of conversation.messages) {
    if (message.role === 'user') {
      const images = (message.images ?? []).map((image) => ({ type: 'image_url', image_url: { url: image.url } }));
      list.push({ role: 'user', content: images.length > 0 ? [...images, { type: 'text', text: message.content }] : message.content });
      continue;
    }
    if (!message.content && !message.tool_calls?.length) continue; // nothing came of it
    const calls = (message.tool_calls ?? []).map(({ id, name, arguments: said }) => ({ id, type: 'function', function: { name, arguments: said } }));
    list.push({ role: 'assistant', content: message.content || null, ...(calls.length > 0 ? { tool_calls: calls } : {}) });
    for (const call of message.tool_calls ?? []) {
      if (call.result !== undefined) list.push({ role: 'tool', tool_call_id: call.id, content: call.result });
    }
  }
  return list;
}

/** Says something, and has it answered. */
export function ask(text) {
  const words = text.trim();
  if (running || (words === '' && !attachments.any())) return;
  if (!models.picked()) {
    toast('There is no model to ask yet.', 'bad');
    return;
  }
  // A call that nobody has answered must have some result: templates refuse a turn without one.
  for (const message of conversation.messages) {
    for (const call of message.tool_calls ?? []) call.result ??= 'No result was given.';
  }
  const message = { role: 'user', content: words };
  const images = attachments.take();
  if (editing) {
    replaceFrom(conversation.messages.indexOf(editing.message));
    endEdit();
    showAll();
  } else {
    $('draft').value = '';
    grow();
  }
  if (images.length > 0) message.images = images;
  if (conversation.messages.length === 0) {
    conversation.title ||= words.replace(/\s+/g, ' ').slice(0, 60) || 'An image';
    conversation.system = settings.systemPrompt();
    $('thread').firstElementChild.replaceChildren();
    $('chat').classList.remove('empty');
  }
  conversation.messages.push(message);
  append(message);
  answer();
}

function append(message) {
  const view = viewOf(message);
  views.push(view);
  $('thread').firstElementChild.append(view.element);
  toEnd();
  return view;
}

async function answer() {
  const model = models.picked();
  if (!model) {
    toast('There is no model to ask yet.', 'bad');
    return;
  }
  conversation.model = model.id;
  const body = {
    model: model.id, messages: history(), stream: true, stream_options: { include_usage: true }, ...settings.sampling(),
  };
  const message = { role: 'assistant', content: '', model: model.id };
  conversation.messages.push(message);
  const controller = new AbortController();
  running = { controller, message };
  const view = append(message);
  view.update(true);
  save(conversation);
  listChanged();
  showRunning();
  announce('Answering');
  const mine = conversation; // another may be opened meanwhile
  let [frame, saved] = [0, performance.now()];
  const show = () => {
    frame = 0;
    const stick = nearEnd();
    view.update(true);
    if (stick) toEnd();
    else showToEnd();
    if (performance.now() - saved > SAVE_MS) {
      saved = performance.now();
      save(mine);
    }
  };
  try {
    await receive(message, body, controller.signal, () => { frame ||= requestAnimationFrame(show); });
  } catch (error) {
    if (error.name === 'AbortError') message.stopped = true;
    else message.error = explain(error);
  }
  cancelAnimationFrame(frame);
  running = null;
  const stick = nearEnd();
  view.update();
  if (stick) toEnd();
  save(mine);
  listChanged();
  showRunning();
  announce(message.error ?? (message.stopped ? 'Stopped' : `Answer: ${message.content || 'a call of a tool'}`));
  models.refresh();
}

/** Puts what comes into a message. */
async function receive(message, body, signal, changed) {
  const started = performance.now();
  for await (const event of api.events('v1/chat/completions', body, signal)) {
    const delta = event.choices?.[0]?.delta ?? {};
    const said = delta.content || delta.reasoning_content || delta.tool_calls?.length;
    if (said && message.first_ms === undefined) message.first_ms = Math.round(performance.now() - started);
    if (delta.reasoning_content) message.reasoning = (message.reasoning ?? '') + delta.reasoning_content;
    if ((delta.content || delta.tool_calls) && message.reasoning && message.reasoned_ms === undefined) {
      message.reasoned_ms = Math.round(performance.now() - started - message.first_ms);
    }
    if (delta.content) message.content += delta.content;
    for (const part of delta.tool_calls ?? []) {
      message.tool_calls ??= [];
      const call = (message.tool_calls[part.index] ??= { id: '', name: '', arguments: '' });
      if (part.id) call.id = part.id;
      if (part.function?.name) call.name += part.function.name;
      if (part.function?.arguments) call.arguments += part.function.arguments;
    }
    if (event.choices?.[0]?.finish_reason) message.finish = event.choices[0].finish_reason;
    if (event.usage) message.usage = event.usage;
    if (event.timings) message.timings = event.timings;
    if (event.model) message.model = event.model;
    changed();
  }
}

function explain(error) {
  const later = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : '';
  return `${error.message}${later}`;
}

export function stop() {
  running?.controller.abort();
}

function showRunning() {
  $('send').hidden = running !== null;
  $('stop').hidden = running === null;
  showNotices();
  if (running === null && document.activeElement === document.body) $('draft').focus();
}

function nearEnd() {
  const thread = $('thread');
  return thread.scrollHeight - thread.scrollTop - thread.clientHeight < NEAR_END_PX;
}

function toEnd() {
  const thread = $('thread');
  thread.scrollTop = thread.scrollHeight;
  showToEnd();
}

function showToEnd() {
  $('to-end').hidden = nearEnd();
}

/** The field grows with what is in it. */
function grow() {
  const draft = $('draft');
  draft.style.height = 'auto';
  draft.style.height = `${Math.min(draft.scrollHeight, window.innerHeight * 0.4)}px`;
}

export function setUp(onListChange) {
  listChanged = onListChange;
  $('send').append(icon('send'));
  $('stop').append(icon('stop'));
  $('composer').addEventListener('submit', (event) => { event.preventDefault(); ask($('draft').value); });
  $('stop').addEventListener('click', stop);
  $('editing-cancel').addEventListener('click', cancelEdit);
  $('replaced-undo').addEventListener('click', undo);
  $('replaced-dismiss').append(icon('close'));
  $('replaced-dismiss').addEventListener('click', () => { delete conversation.replaced; save(conversation); showNotices(); });
  $('to-end').prepend(icon('down'));
  $('to-end').addEventListener('click', toEnd);
  $('thread').addEventListener('scroll', showToEnd, { passive: true });
  $('draft').addEventListener('input', grow);
  $('draft').addEventListener('keydown', (event) => {
    const coarse = matchMedia('(pointer: coarse)').matches; // a phone's Return makes a line
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !coarse) {
      event.preventDefault();
      ask($('draft').value);
    }
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
    if (running) stop();
    else cancelEdit();
  });
  addEventListener('pagehide', () => { if (running) save(conversation); });
  attachments.setUp();
  models.onChange((model) => {
    const offered = models.can('vision');
    $('attach').hidden = !offered;
    if (!offered) attachments.take();
    $('hint').textContent = model && model.state === 'stored' ? 'This model is on disk: the first answer waits until it is loaded.' : model?.state === 'failed' ? models.words(model) : '';
  });
  let last = null;
  try { last = sessionStorage.getItem(CURRENT); } catch { /* none */ }
  open(last && store.load(last) ? last : undefined);
}
