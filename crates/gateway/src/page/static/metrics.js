// Prometheus' text as samples, and what the difference of two readings says.

/** {name: [{labels, value}]} */
export function parse(text) {
  const found = {};
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const open = line.indexOf('{');
    const space = line.indexOf(' ');
    const isLabelled = open !== -1 && open < space;
    const name = line.slice(0, isLabelled ? open : space);
    const { labels, end } = isLabelled ? labelsOf(line, open + 1) : { labels: {}, end: space };
    // A time of the sample may follow its value.
    const [value] = line.slice(end).trim().split(' ');
    if (name && value) (found[name] ??= []).push({ labels, value: Number(value) });
  }
  return found;
}

/** Labels as they stand from a place on, `name="value"` with commas between, and the place after their brace. */
function labelsOf(line, from) {
  const labels = {};
  let at = from;
  while (at < line.length && line[at] !== '}') {
    const equals = line.indexOf('="', at);
    if (equals === -1) return { labels, end: line.length };
    let close = equals + 2;
    while (close < line.length && line[close] !== '"') close += line[close] === '\\' ? 2 : 1;
    labels[line.slice(at, equals).trim()] = line.slice(equals + 2, close);
    at = close + 1;
    while (line[at] === ',' || line[at] === ' ') at += 1;
  }
  return { labels, end: at + 1 };
}

/** Cumulative buckets of the routes that compute: {le: count}. */
export function buckets(samples, name, routes) {
  const sums = new Map();
  for (const { labels, value } of samples[`${name}_bucket`] ?? []) {
    if (!routes(labels.route)) continue;
    const le = labels.le === '+Inf' ? Infinity : Number(labels.le);
    sums.set(le, (sums.get(le) ?? 0) + value);
  }
  return sums;
}

/** The quantile of what came between two readings; null where nothing did. */
export function quantile(before, after, share) {
  const edges = [...after.keys()].sort((a, b) => a - b);
  const counts = edges.map((le) => after.get(le) - (before.get(le) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (total <= 0) return null;
  const wanted = share * total;
  const at = counts.findIndex((count) => count >= wanted);
  const [low, lowCount] = at > 0 ? [edges[at - 1], counts[at - 1]] : [0, 0];
  if (edges[at] === Infinity) return low;
  return low + (edges[at] - low) * ((wanted - lowCount) / (counts[at] - lowCount || 1));
}

/** 12,345 as 12.3k. */
export function short(number) {
  if (!Number.isFinite(number)) return '–';
  const steps = [[1e9, 'G'], [1e6, 'M'], [1e4, 'k']];
  for (const [size, letter] of steps) {
    if (Math.abs(number) >= size) return `${(number / (letter === 'k' ? 1e3 : size)).toFixed(1)}${letter}`;
  }
  return number >= 100 || Number.isInteger(number) ? String(Math.round(number)) : number.toFixed(1);
}

export function bytes(number) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [value, at] = [number, 0];
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function time(ms) {
  const seconds = Math.floor(ms / 1000);
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${seconds} s`;
}
