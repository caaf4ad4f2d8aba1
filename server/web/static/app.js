"use strict";
// Reads the server's numbers every two seconds. Names are only ever set as text, never as markup.

const POLL_MS = 2000, KEPT = 150, SVG = "http://www.w3.org/2000/svg";
const samples = [];
const at = (id) => document.getElementById(id);

function text(tag, content, className) {
  const node = document.createElement(tag);
  node.textContent = content;
  if (className) node.className = className;
  return node;
}

function scaled(value, units, step) {
  let place = 0;
  while (value >= step && place < units.length - 1) { value /= step; place += 1; }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + units[place];
}
const bytes = (value) => scaled(value, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
const count = (value) => (value < 10000 ? String(value) : scaled(value, ["", " k", " M", " G"], 1000));
function duration(seconds) {
  if (seconds < 1e-3) return (seconds * 1e6).toFixed(0) + " µs";
  if (seconds < 1) return (seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0) + " ms";
  if (seconds < 120) return seconds.toFixed(seconds < 10 && !Number.isInteger(seconds) ? 1 : 0) + " s";
  if (seconds < 7200) return (seconds / 60).toFixed(0) + " min";
  if (seconds < 172800) return (seconds / 3600).toFixed(1) + " h";
  return (seconds / 86400).toFixed(1) + " d";
}
const ago = (then, now) => (now - then < 1 ? "now" : duration(Math.round(now - then)) + " ago");
const many = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
const sum = (counts) => Object.values(counts).reduce((total, value) => total + value, 0);

function tile(label, value, note, part) {
  const node = document.createElement("div");
  node.className = "tile";
  node.append(text("span", label), text("b", value));
  if (part !== undefined) {
    const bar = document.createElement("progress");
    bar.max = 1;
    bar.value = part;
    node.append(bar);
  }
  node.append(text("span", note));
  return node;
}

function showTiles(now) {
  const lookups = now.hits + now.misses;
  const rate = lookups ? (100 * now.hits / lookups).toFixed(1) + " %" : "–";
  const reasons = Object.entries(now.miss_reasons).sort((a, b) => b[1] - a[1]).map(([why, n]) => `${count(n)} ${why}`);
  at("tiles").replaceChildren(
    tile("Hit rate", rate, `${count(now.hits)} of ${many(lookups, "lookup")}`),
    tile("Prefill saved", duration(now.seconds_saved), `${many(now.tokens_served, "token")} in ${many(now.restores, "restore")}`),
    tile("Stored", bytes(now.stored), now.budget ? `of ${bytes(now.budget)}` : "no limit", now.budget ? now.stored / now.budget : undefined),
    tile("Prefixes", count(now.namespaces), `${many(now.sessions, "session")}, ${many(now.pages, "page")}`),
    tile("Misses", count(now.misses), reasons.join(", ") || "none"),
    tile("Removed", count(now.evictions), `to make room; ${count(now.quarantined)} quarantined`),
  );
}

function plot(id, series, show) {
  const svg = at(id), width = Math.max(30, samples.length) - 1, height = 100;
  const top = Math.max(...series.flatMap(([, values]) => values), 0);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const nodes = [0.5, 99.5].map((y) => {
    const line = document.createElementNS(SVG, "line");
    for (const [key, value] of [["x1", 0], ["x2", width], ["y1", y], ["y2", y]]) line.setAttribute(key, value);
    return line;
  });
  for (const [kind, values] of series) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", kind);
    line.setAttribute("points", values.map((value, i) =>
      `${width - values.length + 1 + i},${(height - 2 - (top ? value / top : 0) * (height - 6)).toFixed(1)}`).join(" "));
    nodes.push(line);
  }
  svg.replaceChildren(...nodes);
  const caption = svg.previousElementSibling;
  let label = caption.querySelector(".top");
  if (!label) { label = text("span", "", "top"); caption.append(label); }
  label.textContent = "most " + show(top);
}

function rates(number) {
  const found = [];
  for (let i = 1; i < samples.length; i += 1) {
    const seconds = samples[i].time - samples[i - 1].time;
    found.push(seconds > 0 ? Math.max(0, number(samples[i]) - number(samples[i - 1])) / seconds : 0);
  }
  return found;
}

function showPlots() {
  const each = (value) => count(Math.round(value)) + "/s";
  plot("plot-bytes", [["in", rates((s) => sum(s.received))], ["out", rates((s) => sum(s.sent))]], (v) => bytes(Math.round(v)) + "/s");
  plot("plot-commands", [["out", rates((s) => s.commands)]], each);
  plot("plot-lookups", [["in", rates((s) => s.hits)], ["miss", rates((s) => s.misses)]], each);
  plot("plot-lag", [["out", samples.map((s) => s.loop_lag * 1e3)]], (v) => v.toFixed(2) + " ms");
}

function row(cells) {
  const node = document.createElement("tr");
  for (const cell of cells) node.append(cell instanceof Node ? cell : text("td", cell));
  return node;
}

const formats = (sides) => {
  const side = (runs) => runs.map(([format, layers]) => `${format} × ${layers}`).join(", ") || "–";
  const [k, v] = [side(sides.k || []), side(sides.v || [])];
  return k === v ? k : `${k} / ${v}`;
};

function state(prefix, now) {
  const cell = document.createElement("td");
  cell.append(prefix.readable ? text("span", "ready", "badge good") : text("span", "not readable", "badge bad"));
  if (prefix.pinned) cell.append(" ", text("span", "pinned", "badge soft"));
  if (prefix.expires) cell.append(" ", text("span", "ends in " + duration(Math.max(0, Math.round(prefix.expires - now))), "badge soft"));
  return cell;
}

function showPrefixes(found, now) {
  const children = new Map();
  const names = new Set(found.prefixes.map((prefix) => prefix.name));
  for (const prefix of found.prefixes) {
    const parent = names.has(prefix.parent) ? prefix.parent : null;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(prefix);
  }
  const rows = [], waiting = [...(children.get(null) || [])].reverse().map((prefix) => [prefix, 0]);
  while (waiting.length) {
    const [prefix, depth] = waiting.pop();
    const name = text("td", "", "name");
    name.append(text("i", "\u00a0\u00a0".repeat(depth) + (depth ? "└ " : "")), prefix.name);
    rows.push(row([name, count(prefix.tokens), String(prefix.layers), formats(prefix.formats), bytes(prefix.bytes),
      count(prefix.hits), prefix.seconds_saved ? duration(prefix.seconds_saved) : "–", ago(prefix.used, now), state(prefix, now)]));
    for (const child of [...(children.get(prefix.name) || [])].reverse()) waiting.push([child, depth + 1]);
  }
  if (!rows.length) rows.push(row([text("td", "nothing is stored yet", "soft")]));
  at("prefixes").tBodies[0].replaceChildren(...rows);
  at("count").textContent = found.prefixes.length + (found.more ? " of more" : "");
}

function showMisses(found, now) {
  const rows = found.map((miss) => row([text("td", miss.namespace, "name"), miss.reason, count(miss.count), ago(miss.at, now)]));
  at("misses").tBodies[0].replaceChildren(...(rows.length ? rows : [row([text("td", "none", "soft")])]));
}

function showLatency(found) {
  const rows = found.map((one) => row([text("td", one.command, "name"), count(one.calls), count(one.failures), duration(one.p50), duration(one.p99)]));
  at("latency").tBodies[0].replaceChildren(...rows);
}

async function load(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function poll() {
  try {
    const [now, prefixes, misses] = await Promise.all(["api/overview", "api/prefixes", "api/misses"].map(load));
    samples.push(now);
    if (samples.length > KEPT) samples.shift();
    at("server").textContent = `up ${duration(now.uptime)} · ${many(now.workers, "worker")} · ${many(now.clients, "client")} · ${many(now.commands, "command")}, ${many(now.errors, "error")}`;
    showTiles(now);
    showPlots();
    showPrefixes(prefixes, now.time);
    showMisses(misses, now.time);
    showLatency(now.latency);
    at("state").textContent = "";
    at("state").className = "";
    document.body.dataset.polls = String(samples.length);
  } catch (error) {
    at("state").textContent = "No answer: " + error.message;
    at("state").className = "bad";
  }
  setTimeout(poll, POLL_MS);
}

poll();
