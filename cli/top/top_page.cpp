#include "cli/top/top_page.h"

namespace trireme::cli {

// All texts of a view enter the page as textContent, so names of files and actions are never markup.
const char* const kTopPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>trireme top</title>
<style>
:root { color-scheme: light dark; --page: #f9f9f7; --card: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --grid: #e1e0d9;
  --bad: #b3261e; --wait: #d4d3cc; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --card: #1a1a19; --ink: #fff; --soft: #c3c2b7;
  --grid: #2c2c2a; --bad: #ff8a80; --wait: #3a3a38; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 20px 16px 40px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { margin: 0; font-size: 22px; overflow-wrap: anywhere; }
.sub { margin: 2px 0 12px; color: var(--soft); overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 10px 14px; margin: 0 0 12px; }
#straggler.found { border-color: var(--bad); color: var(--bad); font-weight: 600; }
#ended { border-color: var(--ink); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 0 0 12px; }
.tile { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 8px 12px; color: var(--soft);
  font-size: 13px; }
.tile b { display: block; color: var(--ink); font-size: 18px; font-weight: 600; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 8px; border-top: 1px solid var(--grid); text-align: right; white-space: nowrap; }
th { border-top: 0; color: var(--soft); font-weight: 500; }
th.name, td.name { text-align: left; width: 40%; }
tr.found td { color: var(--bad); font-weight: 600; }
h2 { margin: 0 0 6px; font-size: 15px; }
canvas { display: block; width: 100%; }
.legend { color: var(--soft); font-size: 13px; margin-top: 6px; }
.legend span { margin-right: 14px; white-space: nowrap; display: inline-block; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 5px; border-radius: 3px; vertical-align: -1px; }
@media (max-width: 640px) { .less { display: none; } th, td { padding: 4px 5px; } td.name { white-space: normal; }
  body { padding: 12px 10px 30px; } .tiles { grid-template-columns: 1fr 1fr 1fr; gap: 6px; }
  .tile { padding: 6px 8px; font-size: 11.5px; } .tile b { font-size: 15px; } }
</style></head><body>
<h1 id="title">trireme top</h1>
<p class="sub" id="sub">waiting for the first view ...</p>
<div class="card" id="ended" hidden></div>
<div class="card" id="straggler" hidden></div>
<div class="tiles" id="tiles"></div>
<p class="sub" id="memory"></p>
<div class="card"><h2>Timeline of the last 20 s</h2><canvas id="timeline"></canvas><div class="legend" id="legend"></div></div>
<div class="card scroll"><table><thead id="head"></thead><tbody id="body"></tbody></table></div>
<script>
'use strict';
const COLOURS = { other: '#8a8880', data: '#eda100', forward: '#2a78d6', backward: '#eb6834', transfer: '#1baf7a',
  weights: '#7a5bd0', gradients: '#c2408f', update: '#3aa6c9', evaluation: '#6b8e23', checkpoint: '#a0522d' };
const SECONDS = 20, LANE = 22, SPANS = 20000;
const byId = (id) => document.getElementById(id);
const lanes = new Map();  // spans by rank: [begin, activity, waits, micro-batch]
let last = null;

function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; ++unit; }
  return (unit === 0 ? Math.round(count) : count.toFixed(1)) + ' ' + units[unit];
}
function duration(seconds) {
  if (seconds < 1) return Math.round(seconds * 1000) + ' ms';
  if (seconds < 60) return seconds.toFixed(1) + ' s';
  return Math.floor(seconds / 60) + 'm ' + Math.floor(seconds % 60) + 's';
}
const percent = (share) => Math.round(share * 100) + ' %';
function element(tag, words, className) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (className) made.className = className;
  return made;
}

const diskOf = (rank) => {
  const of = rank.disk_bytes_per_s;
  if (of.process) return of.process.read + of.process.written;
  return ['data', 'checkpoints', 'offload'].reduce((sum, use) => sum + of[use].read + of[use].written, 0);
};
const actionOf = (rank) => (rank.stopped ? 'STOPPED in ' : rank.waits ? 'waits in ' : '') + (rank.action || rank.activity);
const COLUMNS = [  // name, text of a rank, class
  ['rank', (r) => r.rank], ['step', (r) => r.step], ['action', actionOf, 'name'],
  ['for', (r) => duration(r.for_s), 'less'], ['own', (r) => percent(r.own_share)], ['wait', (r) => percent(r.wait_share)],
  ['data', (r) => percent(r.data_share), 'less'],
  ['queue', (r) => r.loader.fill === null ? '-' : percent(r.loader.fill), 'less'],
  ['memory', (r) => r.rss_bytes === null ? '-' : bytes(r.rss_bytes)],
  ['link/s', (r) => bytes(r.link_bytes_per_s), 'less'], ['disk/s', (r) => bytes(diskOf(r)), 'less']];

function tile(name, words) {
  const made = element('div', undefined, 'tile');
  made.append(element('b', words), name);
  return made;
}
function showTiles(view) {
  const pressure = (of) => of.some === null ? '-' : Math.round(of.some) + ' %';
  const disk = (use) => bytes(view.ranks.reduce(
    (sum, rank) => sum + rank.disk_bytes_per_s[use].read + rank.disk_bytes_per_s[use].written, 0)) + '/s';
  const of = view.pressure_percent;
  byId('tiles').replaceChildren(
    tile('steps per second', Math.max(0, ...view.ranks.map((r) => r.steps_per_s)).toFixed(2)),
    tile('pressure: cpu', pressure(of.cpu)), tile('pressure: memory', pressure(of.memory)),
    tile('pressure: disk', pressure(of.io)), tile('disk: data', disk('data')),
    tile('disk: checkpoints', disk('checkpoints')), tile('disk: offload', disk('offload')));
}
function showMemory(view) {
  const sums = {};
  let place = 'Memory peak';
  for (const rank of view.ranks) {
    const onDevice = Object.values(rank.device_memory_peak_bytes).some((count) => count > 0);
    if (onDevice) place = 'Device memory peak';
    for (const [kind, count] of Object.entries(onDevice ? rank.device_memory_peak_bytes : rank.memory_peak_bytes))
      sums[kind] = (sums[kind] || 0) + count;
  }
  const kinds = Object.entries(sums).filter(([, count]) => count > 0).map(([kind, count]) => kind + ' ' + bytes(count));
  byId('memory').textContent = kinds.length ? place + ' of all ranks here: ' + kinds.join(', ') : '';
}
function showTable(view) {
  const head = element('tr');
  for (const [name, , className] of COLUMNS) head.append(element('th', name, className));
  byId('head').replaceChildren(head);
  byId('body').replaceChildren(...view.ranks.map((rank) => {
    const row = element('tr', undefined, view.straggler && view.straggler.rank === rank.rank ? 'found' : '');
    for (const [, words, className] of COLUMNS) row.append(element('td', words(rank), className));
    return row;
  }));
}
function showHead(view) {
  const name = view.run.split('/').pop() || 'program without a run folder';
  const here = view.ranks.length, step = Math.max(0, ...view.ranks.map((r) => r.step));
  document.title = name + ' - trireme top';
  byId('title').textContent = name;
  byId('sub').textContent = (view.world_size > here ? here + ' of ' + view.world_size + ' ranks are on ' + view.host
    : here + (here === 1 ? ' rank on ' : ' ranks on ') + view.host) + ', step ' + step + (view.run ? ' - ' + view.run : '');
  const card = byId('straggler');
  card.hidden = false;
  card.className = view.straggler ? 'card found' : 'card';
  card.textContent = view.straggler ? view.straggler.message : 'no straggler: no rank costs more than 5 % of the time';
}
function keepSpans(view) {
  for (const rank of view.ranks) {
    const lane = lanes.get(rank.rank) || [];
    const known = lane.length ? lane[lane.length - 1][0] : -1;
    // Of many actions a view has the last ones. Those before them are not known, and nothing is drawn.
    if (lane.length && rank.spans.length && rank.spans[0][0] > lane.until) lane.push([lane.until, null]);
    for (const span of rank.spans) if (span[0] > known) lane.push(span);
    lane.until = view.at_s;
    while (lane.length > 1 && (lane[1][0] < view.at_s - SECONDS || lane.length > SPANS)) lane.shift();
    lanes.set(rank.rank, lane);
  }
}
)html"
                             R"html(
function drawTimeline() {
  if (!last) return;
  const canvas = byId('timeline'), width = canvas.clientWidth, ranks = [...lanes.keys()].sort((a, b) => a - b);
  const style = getComputedStyle(document.documentElement), scale = window.devicePixelRatio || 1;
  const height = ranks.length * LANE + 18, left = 34;
  canvas.style.height = height + 'px';
  canvas.width = width * scale;
  canvas.height = height * scale;
  const draw = canvas.getContext('2d');
  draw.scale(scale, scale);
  draw.font = '12px system-ui, sans-serif';
  draw.textBaseline = 'middle';
  const at = (s) => left + (s - last.at_s + SECONDS) / SECONDS * (width - left);
  ranks.forEach((rank, row) => {
    const lane = lanes.get(rank), top = row * LANE;
    draw.fillStyle = style.getPropertyValue('--soft');
    draw.fillText(String(rank), 4, top + LANE / 2);
    lane.forEach((span, i) => {
      const begin = Math.max(at(span[0]), left), end = at(i + 1 < lane.length ? lane[i + 1][0] : last.at_s);
      if (end <= begin || span[1] === null) return;
      draw.fillStyle = COLOURS[span[1]] || COLOURS.other;
      if (span[2]) draw.fillStyle = style.getPropertyValue('--wait');
      draw.fillRect(begin, top + 2, Math.max(end - begin, 0.5), LANE - 4);
      if (span[3] >= 0 && !span[2] && end - begin > 16) {
        draw.fillStyle = '#fff';
        draw.fillText(String(span[3]), begin + 3, top + LANE / 2);
      }
    });
  });
  draw.fillStyle = style.getPropertyValue('--soft');
  for (let s = -SECONDS; s <= 0; s += 5) {
    draw.textAlign = s === 0 ? 'right' : s === -SECONDS ? 'left' : 'center';
    draw.fillText(s === 0 ? 'now' : s + ' s', at(last.at_s + s), height - 8);
  }
}
function showLegend() {
  const legend = byId('legend');
  for (const [name, colour] of [...Object.entries(COLOURS), ['waits for other ranks', 'var(--wait)']]) {
    const entry = element('span', name), swatch = element('i');
    swatch.style.background = colour;
    entry.prepend(swatch);
    legend.append(entry);
  }
}
function show(view) {
  last = view;
  showHead(view);
  showTiles(view);
  showMemory(view);
  showTable(view);
  keepSpans(view);
  drawTimeline();
}

showLegend();
const source = new EventSource('events' + location.search);
const tell = (words) => { byId('ended').hidden = false; byId('ended').textContent = words; };
source.onmessage = (event) => {
  const view = JSON.parse(event.data);
  if (view.ended !== undefined) { source.close(); tell(view.ended); return; }
  byId('ended').hidden = true;
  show(view);
};
source.onerror = () => tell('The connection is lost: trireme top has ended, or its token has changed. Trying again ...');
window.addEventListener('resize', drawTimeline);
</script></body></html>
)html";

}  // namespace trireme::cli
