// Images that go with the next message, for models that look at them. They are made smaller here: models see no more.

import { $, h, icon, toast } from './dom.js';

const SIDE_MAX = 1280; // pixels
const COUNT_MAX = 8;

let list = [];

async function shrink(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SIDE_MAX / Math.max(bitmap.width, bitmap.height));
  const canvas = h('canvas', { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const drawing = canvas.getContext('2d');
  drawing.fillStyle = '#fff'; // JPEG has no transparency
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return { name: file.name, url: canvas.toDataURL('image/jpeg', 0.85) };
}

async function add(files) {
  for (const file of files) {
    if (!file.type.startsWith('image/')) continue;
    if (list.length >= COUNT_MAX) {
      toast(`At most ${COUNT_MAX} images go with a message.`, 'bad');
      break;
    }
    try {
      list.push(await shrink(file));
    } catch {
      toast(`${file.name} is no image that this browser can read.`, 'bad');
    }
  }
  show();
}

function show() {
  const box = $('attached');
  box.hidden = list.length === 0;
  box.replaceChildren(...list.map((image) => h('li', {}, h('img', { src: image.url, alt: image.name }),
    h('button', { type: 'button', 'aria-label': `Remove ${image.name}`, onclick: () => { list = list.filter((other) => other !== image); show(); } }, icon('close')))));
}

export const attachments = {
  any: () => list.length > 0,
  /** Images that a message has already, in place of those that are here. */
  put(images) {
    list = [...images];
    show();
  },
  take() {
    const taken = list;
    list = [];
    show();
    return taken;
  },
  setUp() {
    $('attach').append(icon('attach'));
    $('attach').addEventListener('click', () => $('attach-file').click());
    $('attach-file').addEventListener('change', (event) => { add([...event.target.files]); event.target.value = ''; });
    const offered = () => !$('attach').hidden;
    $('draft').addEventListener('paste', (event) => { if (offered() && event.clipboardData.files.length > 0) { event.preventDefault(); add([...event.clipboardData.files]); } });
    $('chat').addEventListener('dragover', (event) => { if (offered()) event.preventDefault(); });
    $('chat').addEventListener('drop', (event) => { if (offered()) { event.preventDefault(); add([...event.dataTransfer.files]); } });
  },
};
