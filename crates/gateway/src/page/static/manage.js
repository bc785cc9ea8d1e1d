// What an operator does with models from the page: pulls them, and loads, unloads and removes them. Each is one route of the API.

import * as api from './api.js';
import { announce, h, icon, meter, toast } from './dom.js';
import { bytes, time } from './metrics.js';
import * as models from './models.js';

const SAID_EVERY = 25; // percent, to a screen reader
const PHASES = { resolving: 'Looking it up', downloading: 'Downloading', verifying: 'Checking', done: 'Done' };

const own = new Set(); // models that this page pulls

/** How far a pull is, shown in `about`. */
function tell(about, name, step) {
  const share = step.bytes_total > 0 ? step.bytes_done / step.bytes_total : 0;
  const left = step.eta_s > 0 && step.status === 'downloading' ? `, ${time(step.eta_s * 1000)} left` : '';
  const far = step.bytes_total > 0 ? `${bytes(step.bytes_done)} of ${bytes(step.bytes_total)}${left}` : '';
  about.replaceChildren(meter(name, share, [PHASES[step.status] ?? step.status, far].filter(Boolean).join(' · ')));
  return share;
}

/** The pulls that others have begun. */
export function others(list, running) {
  const theirs = running.filter((step) => !own.has(step.model));
  list.replaceChildren(...theirs.map((step) => {
    const about = h('div', {});
    tell(about, step.model, step);
    return h('li', { class: 'pull' }, about);
  }));
}

/** A pull as it goes: its element, which stays when it has failed. */
function pulling(reference, list) {
  const controller = new AbortController();
  const about = h('div', {});
  const end = h('button', { type: 'button', class: 'mini', 'aria-label': `Stop pulling ${reference}`, title: 'Stop', onclick: () => controller.abort() }, icon('close'));
  const item = h('li', { class: 'pull', 'aria-busy': 'true' }, about, end);
  let [said, model] = [0, reference];
  const show = (step) => {
    if (step.model) {
      model = step.model;
      own.add(model);
    }
    const share = tell(about, model, step);
    const percent = Math.floor((share * 100) / SAID_EVERY) * SAID_EVERY;
    if (percent > said) {
      said = percent;
      announce(`${model}: ${percent} %`);
    }
  };
  const run = async () => {
    show({ status: 'resolving', model: reference });
    try {
      let stored = null;
      for await (const step of api.events('v1/models/pull', { model: reference }, controller.signal)) {
        show(step);
        stored = step.stored ?? stored;
      }
      toast(`${stored?.id ?? reference} is here.`);
      item.remove();
      models.refresh();
    } catch (error) {
      if (error.name === 'AbortError') {
        item.remove();
        toast('Stopped. What has come is kept for the next time.');
        return;
      }
      item.setAttribute('aria-busy', 'false');
      about.replaceChildren(h('p', { class: 'problem', role: 'alert' }, `${reference}: ${error.message}`));
      end.replaceWith(h('button', { type: 'button', class: 'mini', 'aria-label': `Dismiss ${reference}`, title: 'Dismiss', onclick: () => item.remove() }, icon('close')));
    } finally {
      own.delete(model);
      own.delete(reference);
    }
  };
  list.append(item);
  run();
}

/** The form that begins a pull, those that it has begun, and in `theirs` those of others. */
export function pullForm(theirs) {
  const list = h('ul', { class: 'pulls' });
  const input = h('input', { id: 'pull-name', type: 'text', required: true, spellcheck: 'false', autocapitalize: 'off', placeholder: 'hf://Qwen/Qwen3-0.6B-GGUF:Q8_0' });
  const form = h('form', { class: 'pull-form' },
    h('label', { for: 'pull-name' }, 'Get a model'),
    h('div', { class: 'pull-row' }, input, h('button', { type: 'submit', class: 'button primary' }, 'Pull')),
    h('p', { class: 'note' }, 'A name, or one of hf://, ollama:// and https://. It goes on for as long as this page is open.'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const reference = input.value.trim();
    if (reference === '') return;
    input.value = '';
    pulling(reference, list);
  });
  return h('section', { 'aria-label': 'Get a model' }, form, list, theirs);
}

/** Asks for one thing, once at a time; whatever comes of it is told. */
function button(words, label, act, after) {
  const element = h('button', { type: 'button', class: 'button small', 'aria-label': label }, words);
  element.addEventListener('click', async () => {
    element.disabled = true;
    after();
    try {
      await act();
    } catch (error) {
      toast(error.message, 'bad');
    }
    element.disabled = false;
    models.refresh();
    after();
  });
  return element;
}

/** What can be done with a model in memory. `after` shows what has come of it. */
export const ofLoaded = (name, after) => button('Unload', `Unload ${name}`, () => api.json('v1/models/unload', { method: 'POST', body: { model: name } }), after);

/** What can be done with one on disk. */
export function ofStored(name, after) {
  const load = button('Load', `Load ${name}`, () => api.json('v1/models/load', { method: 'POST', body: { model: name } }), after);
  const remove = button('Remove', `Remove ${name} from disk`, async () => {
    if (confirm(`Remove ${name} from disk?`)) await api.json(`v1/models/${name.split('/').map(encodeURIComponent).join('/')}`, { method: 'DELETE' });
  }, after);
  return [load, remove];
}
