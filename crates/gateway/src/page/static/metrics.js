// Prometheus' text as samples, and what the difference of two readings says.

/** {name: [{labels, value}]} */
export function parse(text) {
  const found = {};
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    (found[match[1]] ??= []).push({ labels, value: Number(match[3]) });
  }
  return found;
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
