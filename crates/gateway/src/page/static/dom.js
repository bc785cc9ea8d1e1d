// Elements are built here and nowhere of strings: what a model, a server or a file says only ever becomes text.

/** An element. `attributes`: `class`, `on…` listeners, booleans, and anything `setAttribute` takes. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value') element.value = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** An element of SVG. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat());
  return element;
}

export const $ = (id) => document.getElementById(id);

const ICONS = {
  menu: 'M3 5.5h14M3 10h14M3 14.5h14',
  close: 'M5 5l10 10M15 5L5 15',
  plus: 'M10 4v12M4 10h12',
  chat: 'M4 4.5h12a1.5 1.5 0 0 1 1.5 1.5v7a1.5 1.5 0 0 1-1.5 1.5H9L5.5 17.5v-3H4A1.5 1.5 0 0 1 2.5 13V6A1.5 1.5 0 0 1 4 4.5z',
  live: 'M2.5 10.5h3l2.5-6 4 11 2.5-5h3',
  docs: 'M5.5 2.5h6l3.5 3.5v11.5h-9.5zM11.5 2.5v3.5h3.5M8 10h4.5M8 13h4.5',
  key: 'M9.3 10.7l7.2-7.2M13.5 6.5L16 9M7 10a3.2 3.2 0 1 0 0 6.4A3.2 3.2 0 0 0 7 10z',
  sun: 'M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1',
  moon: 'M16.5 11.8A6.8 6.8 0 0 1 8.2 3.5a6.8 6.8 0 1 0 8.3 8.3z',
  sliders: 'M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4',
  send: 'M10 16V4.5M5 9.5l5-5 5 5',
  stop: 'M6 6h8v8H6z',
  attach: 'M16.5 9.5l-6.4 6.4a4 4 0 0 1-5.7-5.7l6.8-6.8a2.7 2.7 0 0 1 3.8 3.8l-6.8 6.8a1.3 1.3 0 0 1-1.9-1.9l6-6',
  copy: 'M7.5 7.5h9v9h-9zM4.5 12.5h-1v-9h9v1',
  check: 'M4 10.5l4 4 8-9',
  again: 'M16 8.5A6.2 6.2 0 0 0 4.5 7M4 11.5A6.2 6.2 0 0 0 15.5 13M4.2 3.5V7h3.5M15.8 16.5V13h-3.5',
  edit: 'M4 16l.8-3.5L13.3 4l2.7 2.7-8.5 8.5zM11.5 5.8l2.7 2.7',
  trash: 'M4 5.5h12M8 5.5v-2h4v2M5.5 5.5l.7 11h7.6l.7-11M8.5 8.5v5M11.5 8.5v5',
  download: 'M10 3v10M6 9.5l4 4 4-4M4 17h12',
  down: 'M5 8l5 5 5-5',
  tool: 'M12.5 3.5a4 4 0 0 0-3.7 5.4L3.5 14.2l2.3 2.3 5.3-5.3a4 4 0 0 0 5.2-5.1l-2.4 2.4-2.3-.7-.7-2.3z',
};

/** How much of something there is, from 0 to 1, with a name and in words. */
export function meter(label, share, words) {
  const element = h('div', { class: 'meter', role: 'meter', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': Math.round(share * 100), 'aria-valuetext': words }, h('div', { class: 'meter-fill' }));
  element.firstElementChild.style.width = `${Math.min(100, share * 100)}%`;
  return h('div', { class: 'measure' }, h('div', { class: 'measure-words' }, h('span', {}, label), h('span', {}, words)), element);
}

/** A line icon, which says nothing to a screen reader. */
export function icon(name) {
  return s('svg', { viewBox: '0 0 20 20', class: 'icon', 'aria-hidden': 'true', width: 20, height: 20 }, s('path', { d: ICONS[name] }));
}

/** A short notice that goes away by itself. */
export function toast(text, kind = '') {
  const note = h('p', { class: `toast ${kind}` }, text);
  $('toasts').append(note);
  setTimeout(() => note.remove(), kind === 'bad' ? 9000 : 4000);
}

/** Says something to a screen reader alone. */
export function announce(text) {
  $('announce').textContent = text;
}

/** A button that copies what `text` gives and says so. */
export function copyButton(text, label = 'Copy') {
  const button = h('button', { type: 'button', class: 'mini', 'aria-label': label, title: label }, icon('copy'));
  button.addEventListener('click', async () => {
    const copied = await copy(text());
    button.replaceChildren(icon(copied ? 'check' : 'close'));
    announce(copied ? 'Copied' : 'This browser did not let the page copy');
    setTimeout(() => button.replaceChildren(icon('copy')), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without HTTPS, other hosts than localhost have no clipboard but this one.
    const area = h('textarea', { class: 'hidden', value: text, 'aria-hidden': 'true' });
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    return copied;
  }
}

/** Offers a file to keep. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h('a', { href: url, download: name, class: 'hidden' });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
