// A plot of a few series over the last minutes, drawn as SVG.

import { h, s } from './dom.js';

const [WIDTH, HEIGHT] = [560, 170];
const [LEFT, RIGHT, TOP, BOTTOM] = [54, 8, 10, 22];

/** The top of an axis: a round number that has a round half. */
function niceMax(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 1.02) ?? 10 * power;
}

/** `series`: [{name, key, fill}]; `format`: a value in words. `draw(points, spanMs)` shows points {at, [key]}, null where nothing was. */
export function plot({ title, series, format, least = 0 }) {
  const svg = s('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: 'plot', role: 'img', 'aria-label': title });
  const now = series.map((_, index) => h('strong', { class: `value-${index}` }, '–'));
  const legend = h('ul', { class: 'legend' }, series.map(({ name }, index) => h('li', {}, h('span', { class: `swatch swatch-${index}`, 'aria-hidden': 'true' }), `${name} `, now[index])));
  const element = h('figure', { class: 'plot-card' }, h('figcaption', {}, h('h3', {}, title), legend), svg);
  let drawn = { points: [], x: () => 0 };

  function draw(points, spanMs) {
    const end = points.at(-1)?.at ?? Date.now();
    const values = points.flatMap((point) => series.map(({ key }) => point[key]).filter((value) => value !== null && value !== undefined));
    const max = Math.max(niceMax(Math.max(0, ...values)), least);
    const x = (at) => WIDTH - RIGHT - ((end - at) / spanMs) * (WIDTH - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / max) * (HEIGHT - TOP - BOTTOM);
    drawn = { points, x };
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(max * share);
      parts.push(s('line', { class: 'grid', x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }), s('text', { x: LEFT - 6, y: at + 4, class: 'axis', 'text-anchor': 'end' }, format(max * share)));
    }
    const minutes = spanMs / 60000;
    for (const share of [0, 0.5, 1]) {
      const words = share === 1 ? 'now' : `${-(minutes * (1 - share))} min`.replace('-', '−');
      parts.push(s('text', { x: LEFT + share * (WIDTH - LEFT - RIGHT), y: HEIGHT - 6, class: 'axis', 'text-anchor': share === 0 ? 'start' : share === 1 ? 'end' : 'middle' }, words));
    }
    series.forEach(({ key, fill }, index) => {
      for (const run of runs(points.filter((point) => x(point.at) >= LEFT), key)) {
        const path = run.map((point, at) => `${at === 0 ? 'M' : 'L'}${x(point.at).toFixed(1)} ${y(point[key]).toFixed(1)}`).join('');
        if (fill && run.length > 1) parts.push(s('path', { class: `area area-${index}`, d: `${path}L${x(run.at(-1).at).toFixed(1)} ${y(0)}L${x(run[0].at).toFixed(1)} ${y(0)}Z` }));
        parts.push(run.length > 1 ? s('path', { class: `line line-${index}`, d: path }) : s('circle', { class: `point point-${index}`, cx: x(run[0].at), cy: y(run[0][key]), r: 2.5 }));
      }
    });
    parts.push(s('line', { class: 'cursor', x1: -9, x2: -9, y1: TOP, y2: HEIGHT - BOTTOM }));
    svg.replaceChildren(...parts);
    tell(points.at(-1));
  }

  function tell(point) {
    const said = series.map(({ key }) => { const value = point?.[key]; return value === null || value === undefined ? '–' : format(value); });
    said.forEach((words, index) => { now[index].textContent = words; });
    svg.setAttribute('aria-label', `${title}: ${series.map(({ name }, index) => `${name} ${said[index]}`).join(', ')}`);
  }

  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = drawn.points.reduce((best, point) => (best && Math.abs(drawn.x(best.at) - wanted) <= Math.abs(drawn.x(point.at) - wanted) ? best : point), null);
    if (!nearest) return;
    const line = svg.querySelector('.cursor');
    line.setAttribute('x1', drawn.x(nearest.at));
    line.setAttribute('x2', drawn.x(nearest.at));
    tell(nearest);
  });
  svg.addEventListener('pointerleave', () => { svg.querySelector('.cursor')?.setAttribute('x1', -9); svg.querySelector('.cursor')?.setAttribute('x2', -9); tell(drawn.points.at(-1)); });
  return { element, draw };
}

/** Points in a row that have a value. */
function runs(points, key) {
  const found = [];
  let run = [];
  for (const point of points) {
    if (point[key] === null || point[key] === undefined) {
      if (run.length > 0) found.push(run);
      run = [];
    } else {
      run.push(point);
    }
  }
  if (run.length > 0) found.push(run);
  return found;
}
